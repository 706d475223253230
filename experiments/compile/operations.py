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
  read. Of several branches, the most expensive one counts. In an attention kernel half
  of the blocks count: those below the diagonal. So it is in chunked attention: where a
  loop of B turns holds one that counts up to a number, the inner loop has (B − 1) / 2
  turns, as if that number were 0 … B − 1. The body of any other loop of unknown length
  counts once.
  """
  return _operations(jaxpr, None)


def _operations(jaxpr, turns):
  """Returns the operations of a jaxpr within a loop of so many turns, None: in none."""
  if isinstance(jaxpr, core.ClosedJaxpr):
    jaxpr = jaxpr.jaxpr
  return sum(_of_equation(equation, turns) for equation in jaxpr.eqns)


def _of_equation(equation, turns):
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
    return max(_operations(branch, turns) for branch in params['branches'])
  times = 1.0
  if name == 'scan':
    times = turns = params['length']
  elif name == 'while' and turns is not None and _counts_up(params['cond_jaxpr']):
    times = (turns - 1) / 2
  elif name == 'shard_map':
    times = params['mesh'].size
  elif name == 'pallas_call':
    times = math.prod(x for x in params['grid_mapping'].grid if isinstance(x, int)) / 2
  return times * sum(_operations(inner, turns) for inner in _inside(params))


def _counts_up(condition):
  """Whether a condition is that one number of the state is less than another."""
  names = [equation.primitive.name for equation in condition.jaxpr.eqns]
  return names == ['lt'] and not any(
      isinstance(x, core.Literal) for x in condition.jaxpr.eqns[0].invars)


def _inside(params: dict[str, Any]) -> list[Any]:
  """Returns the jaxprs that an equation calls."""
  found = []
  for name, value in params.items():
    if name == 'cond_jaxpr':
      continue
    values = value if isinstance(value, (tuple, list)) else [value]
    found += [x for x in values if isinstance(x, (core.ClosedJaxpr, core.Jaxpr))]
  return found
