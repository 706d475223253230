"""Weights under a temperature that a model is trained with.

  a = weights(β z),   β = temperature(z, mask)

Softmax, as a function of the form of `vvlen.models.fixes.learned`, and what joins a
temperature and a function of that form.
"""

import inspect

import jax

from vvlen.models.attention import Temperature
from vvlen.models.fixes.keys import wide
from vvlen.models.fixes.learned import learned, Weights
from vvlen.models.masked_softmax import masked_softmax


def softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  """Returns e^z / Σ e^z [..., n], as attention has it without any `weights`."""
  return masked_softmax(wide(logits), mask)


def tempered(temperature: Temperature, weights: Weights = softmax) -> Weights:
  """Returns the function a = weights(β z), β = temperature(z, mask).

  As a field of a model, the temperature belongs to its training too; the argument
  `temperature` of a call multiplies the logits before.

  Args:
    temperature: (logits [..., n], mask, learned scalars) -> β [..., 1], such as a
      law (`vvlen.models.fixes.laws`) or `vvlen.models.temperature.adaptive_temperature`
      (published for inference only).
    weights: a function of the form of `vvlen.models.fixes.learned`.

  Returns:
    A function of the same form, with the learned scalars of both.

  Raises:
    ValueError: if both have a learned scalar of one name.
  """
  of_temperature, of_weights = learned(temperature), learned(weights)
  if both := sorted(of_temperature.keys() & of_weights.keys()):
    raise ValueError(f'temperature and weights both learn '
                     f'{", ".join(both)}: rename one')

  def function(logits, mask=None, **scalars):
    own = {name: scalars.pop(name) for name in of_temperature if name in scalars}
    logits = wide(logits)
    return weights(temperature(logits, mask, **own) * logits, mask, **scalars)

  signature = inspect.signature(softmax)
  both_learned = (of_temperature | of_weights).items()
  keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=start)
              for name, start in both_learned]
  # What `learned` reads.
  function.__signature__ = signature.replace(  # type: ignore[attr-defined]
      parameters=[*signature.parameters.values(), *keywords])
  return function
