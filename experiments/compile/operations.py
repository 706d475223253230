"""Counts the floating-point operations of a function, loops included."""

import math
from typing import Any

from jax.extend import core

# Operations that cost one flop per element of the result.
_EACH = {
    'add', 'sub', 'mul', 'div', 'neg', 'max', 'min', 'exp', 'exp2', 'log', 'log1p',
    'expm1', 'tanh', 'logistic', 'sqrt', 'rsqrt', 'sin', 'cos', 'erf', 'erf_inv', 'pow',
    'integer_pow', 'square', 'add_any', 'cumsum',
}
_SUMS = {'reduce_sum', 'reduce_max', 'reduce_min', 'argmax', 'argmin'}


def operations(jaxpr: Any) -> float:
  """Returns the operations of a jaxpr, on all devices together.

  A product of matrices [m, k] and [k, n] has 2 m k n operations. Others have one for
  each element of their result; sums and maxima have one for each element that they
  read. Of several branches, the most expensive one counts. The body of a loop of
  unknown length counts once. In an attention kernel half of the blocks count: those
  below the diagonal.
  """
  if isinstance(jaxpr, core.ClosedJaxpr):
    jaxpr = jaxpr.jaxpr
  return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation: Any) -> float:
  name, params = equation.primitive.name, equation.params
  size = lambda variable: float(math.prod(getattr(variable.aval, 'shape', ())))
  if name == 'dot_general':
    (left, _), _ = params['dimension_numbers']
    shape = equation.invars[0].aval.shape
    return 2 * size(equation.outvars[0]) * math.prod(shape[i] for i in left)
  if name in _EACH:
    return size(equation.outvars[0])
  if name in _SUMS:
    return size(equation.invars[0])
  if name == 'cond':
    return max(map(operations, params['branches']))
  times = 1.0
  if name == 'scan':
    times = params['length']
  elif name == 'shard_map':
    times = params['mesh'].size
  elif name == 'pallas_call':
    times = math.prod(x for x in params['grid_mapping'].grid if isinstance(x, int)) / 2
  return times * sum(map(operations, _inside(params)))


def _inside(params: dict[str, Any]) -> list[Any]:
  """Returns the jaxprs that an equation calls."""
  found = []
  for name, value in params.items():
    if name == 'cond_jaxpr':
      continue
    values = value if isinstance(value, (tuple, list)) else [value]
    found += [x for x in values if isinstance(x, (core.ClosedJaxpr, core.Jaxpr))]
  return found
