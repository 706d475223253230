"""Weights under a temperature that a model is trained with.

  a = weights(β z),   β = temperature(z, mask)

`tempered` combines a temperature with a function of the form that
`vvlen.models.fixes.learned` states; `softmax` has this form.
"""

import inspect

import jax

from vvlen.models.attention import Temperature
from vvlen.models.fixes.keys import wide
from vvlen.models.fixes.learned import learned, Weights
from vvlen.models.masked_softmax import masked_softmax


def softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  """Returns e^z / Σ e^z [..., n], the default weights of attention."""
  return masked_softmax(wide(logits), mask)


def tempered(temperature: Temperature, weights: Weights = softmax) -> Weights:
  """Returns the function a = weights(β z), β = temperature(z, mask).

  As the field `weights` of a model, the temperature also acts in training. The argument
  `temperature` of a call multiplies the logits before this one does.

  Args:
    temperature: (logits [..., n], mask, learned scalars) -> β [..., 1], such as a
      law (`vvlen.models.fixes.laws`) or `vvlen.models.temperature.adaptive_temperature`
      (published for inference only).
    weights: a function of the form of `vvlen.models.fixes.learned`.

  Returns:
    A function of the same form, with the learned scalars of both.

  Raises:
    ValueError: if both have a learned scalar of the same name.
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
  # `learned` reads the scalars from the signature.
  function.__signature__ = signature.replace(  # type: ignore[attr-defined]
      parameters=[*signature.parameters.values(), *keywords])
  return function
