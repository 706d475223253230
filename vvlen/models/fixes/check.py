"""Checks a function from logits to attention weights before a model trains with it."""

import inspect
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.fixes.learned import learned, Weights

_SHAPE = (2, 3, 5)  # two batch axes, and the keys
_AXES = ('the first batch axis', 'the second batch axis', 'the keys')
# Each row has another number of keys, down to none.
_MASK = np.arange(5) < np.array([[5, 4, 3], [2, 1, 0]])[..., None]
_LARGE = 1e4


def check_weights(function: Weights) -> None:
  """Checks that a function has the form of `vvlen.models.fixes.learned`.

  Runs it under jax.jit, with and without a mask, and computes its gradients, on a few
  small arrays of one to three axes: ordinary, equal and large logits, one key, and rows
  with some or all keys masked. That takes a second or two.

  Args:
    function: (logits, mask, learned scalars by name) -> weights.

  Raises:
    ValueError: in one line that names the function and what is wrong: its arguments, an
      error under jax.jit or of its gradient, the shape (with the axis), the dtype,
      weights at masked keys that are not 0, weights that depend on masked keys or on
      other rows, values or gradients that are not finite.
  """
  logits = np.random.default_rng(0).normal(size=_SHAPE).astype(np.float32)
  scalars = _arguments(function)
  run = lambda *inputs: _run(function, scalars, *inputs)
  masked = run(logits, _MASK)
  for mask, weights in ((_MASK, masked), (None, run(logits, None))):
    _form(function, weights, 'with' if mask is not None else 'without')
  cases = {'ordinary logits': logits, 'equal logits': np.zeros_like(logits),
           f'logits of ±{_LARGE:.0f}': np.copysign(np.float32(_LARGE), logits),
           'a single key': logits[..., :1]}
  for words, case in cases.items():
    _finite(function, scalars, case, words)

  if (masked[~_MASK] != 0).any():
    _refuse(function, 'weights of masked keys are not exactly 0')
  row, mask = logits[:1, 2:3], _MASK[:1, 2:3]
  alone = run(row, mask)
  if not _close(alone, masked[:1, 2:3]):
    _refuse(function, 'weights depend on other rows: only the last axis, the keys, '
                      'may be reduced')
  if not _close(run(np.where(mask, row, np.float32(50)), mask), alone):
    _refuse(function, 'weights depend on the logits of masked keys')
  if not _close(run(row[..., :3], None), alone[..., :3]):
    _refuse(function, 'weights depend on how many keys are masked: those of 3 keys '
                      'change with 2 masked ones after them')
  if not _close(run(logits, mask), run(logits, np.broadcast_to(mask, _SHAPE))):
    _refuse(function, f'weights change if a mask {[*_SHAPE]} that is the same for all '
                      f'rows is given as {[*mask.shape]}')
  for place in ((0,), (0, 0)):
    fewer = run(logits[place], _MASK[place])
    if fewer.shape != logits[place].shape or not _close(fewer, masked[place]):
      _refuse(function, f'weights of logits {[*_SHAPE]} change if they are given as '
                        f'{[*logits[place].shape]}: batch axes may be any number')


def _refuse(function: Any, words: str, error: Exception | None = None) -> NoReturn:
  name = getattr(function, '__name__', repr(function))
  raise ValueError(f'weights {name}: {words}') from error


def _close(one: np.ndarray, two: np.ndarray) -> bool:
  return np.allclose(one, two, rtol=1e-4, atol=1e-5)


def _arguments(function: Any) -> dict[str, np.float32]:
  """Returns the learned scalars, {name: initial value}."""
  if not callable(function):
    _refuse(function, 'not a function of logits and mask')
  try:
    inspect.signature(function).bind(None, None)
  except (TypeError, ValueError) as error:  # functools.partial raises ValueError
    _refuse(function, 'must take two arguments, logits and mask, and others only with '
                      f'defaults: {error}', error)
  return {name: np.float32(start) for name, start in learned(function).items()}


def _run(function: Any, scalars: Any, logits: Any, mask: Any) -> np.ndarray:
  """Returns the weights, computed under jax.jit."""
  try:
    return np.asarray(jax.jit(function)(logits, mask, **scalars))
  except Exception as error:  # whatever a user's function raises
    _refuse(function, f'fails under jax.jit for logits {[*logits.shape]} and '
                      f'{"no mask" if mask is None else "a mask"}: {_line(error)}',
            error)


def _line(error: Exception) -> str:
  """Returns the kind of an error and the first line of its message."""
  first = str(error).strip().split('\n')[0]
  return f'{type(error).__name__}: {first}'


def _form(function: Any, weights: np.ndarray, has: str) -> None:
  """Checks shape and dtype of the weights of logits of _SHAPE."""
  if weights.ndim != len(_SHAPE):
    _refuse(function, f'{weights.ndim} axes {has} a mask, must be the {len(_SHAPE)} of '
                      f'the logits: {[*weights.shape]}, not {[*_SHAPE]}')
  for axis, (name, size, own) in enumerate(
      zip(_AXES, _SHAPE, weights.shape, strict=True)):
    if size != own:
      _refuse(function, f'axis {axis - len(_SHAPE)}, {name}, has size {own} {has} a '
                        f'mask, must be {size}: {[*weights.shape]}, not {[*_SHAPE]}')
  if not jnp.issubdtype(weights.dtype, jnp.floating) or jnp.promote_types(
      weights.dtype, jnp.float32) != weights.dtype:
    _refuse(function, f'dtype {weights.dtype} {has} a mask, must be float32 or wider')


def _finite(function: Any, scalars: Any, logits: np.ndarray, words: str) -> None:
  """Checks that values and gradients are finite, with and without masked keys."""
  towards = jnp.cos(jnp.arange(logits.size, dtype=jnp.float32)).reshape(logits.shape)

  def total(scalars, logits, mask):
    weights = function(logits, mask, **scalars)
    return (weights * towards).sum()

  for mask in (_MASK[..., :logits.shape[-1]], None):
    weights = _run(function, scalars, logits, mask)
    try:
      of_scalars, of_logits = jax.jit(jax.grad(total, (0, 1)))(scalars, logits, mask)
    except Exception as error:  # such as of a loop without a derivative
      _refuse(function, f'its gradient fails for {words}: {_line(error)}', error)
    parts = {'weights': weights, 'gradients of logits': of_logits} | {
        f'the gradient of {name}': x for name, x in of_scalars.items()}
    for name, part in parts.items():
      if not np.isfinite(part).all():
        of_keys = 'no masked keys' if mask is None else 'rows of 0 to 5 keys'
        _refuse(function, f'{name} not finite for {words}, {of_keys}')
