"""Laws by which the logits of heads are multiplied at inference, and their controls."""

import jax
import numpy as np

from vvlen.evaluation.tempered_heads import power_of_log_n, power_of_n


def factors(law: str, powers: np.ndarray, length: int, longest: int) -> jax.Array:
  """Returns the factors of a law, [layers, length, heads].

  Args:
    law: its name; one with 'log' is a power of the logarithm.
    powers: [layers, heads]; nan: the head keeps its logits.
    length: of the input, in keys.
    longest: that of training, up to which all factors are 1.
  """
  return (power_of_log_n if 'log' in law else power_of_n)(powers, length, longest)


def with_controls(
    power: np.ndarray, power_of_log: np.ndarray
) -> dict[str, np.ndarray]:
  """Returns the powers of the laws that were fitted, and of their controls, by law.

  log_n gives all heads the logarithm itself, inverse_log_n its inverse, and
  power_of_others each head the power of another one.

  Args:
    power: of the number of keys, [..., layers, heads].
    power_of_log: of its logarithm, of the same shape.
  """
  flat = power.reshape(*power.shape[:-2], -1)
  others = np.roll(flat, flat.shape[-1] // 2, axis=-1).reshape(power.shape)
  ones = np.ones_like(power)
  return {'power': power, 'power_of_log': power_of_log, 'log_n': ones,
          'power_of_others': others, 'inverse_log_n': -ones}
