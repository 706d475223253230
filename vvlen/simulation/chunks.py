"""Simulations in chunks of fixed size, summed up so that a run can be extended.

Chunk i is drawn from `fold_in(key, i)`: its tokens depend neither on the number of
devices nor on the number of simulations. Within a chunk, moments are computed on the
device, in two passes; chunks are added one by one, in float64. A run that resumes from
the totals of a shorter one gives, bit for bit, the same result as one that starts from
nothing; on different numbers of devices, means agree to 1e-6 of the largest score.
Memory does not depend on the number of simulations.
"""

from collections.abc import Callable, Iterable, Iterator
import functools
import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vvlen import sharding
from vvlen.models.causal_stack import Layer
from vvlen.models.kernels import short as short_inputs
from vvlen.models.kernels.stages import stage
from vvlen.sharding import platform
from vvlen.theory.ordering import order

# Upper limit on the numbers in a chunk's largest array. In float32 they take 512 KiB,
# and a core's own cache holds two such arrays. Vector units need at least twenty
# simulations of short inputs in a chunk; of longer inputs one is enough.
_CHUNK_NUMBERS = 2**17
_CHUNK_SIZES = (2000, 1000, 500, 200, 100, 50, 20, 1)
_FEW = 20
# The most chunks that a device computes, and numbers that it returns, in one call.
_CHUNKS_A_CALL = 10
_NUMBERS_A_CALL = 2**24
# Chunks that an accelerator computes at once. A CPU core computes one after the other.
_CHUNKS_AT_ONCE = 64

Progress = Callable[[int], None]


class Simulation(NamedTuple):
  """How tokens are drawn and what a layer does. Simulations are the last axis.

  The functions must be the same objects in every run, or every run compiles again.
  """

  draw: Callable[..., jax.Array]  # (key, count, *draw_arguments) -> [n, d, ..., count]
  layer: Callable[..., Layer]  # ([n, d, ..., count], *layer_arguments) -> Layer
  draw_arguments: tuple[Any, ...]
  layer_arguments: tuple[Any, ...]


class Totals(NamedTuple):
  """Sums over the chunks of a run, and which run it is.

  For chunks of c simulations with mean m, `sums` has, in float64, NAME.first = Σ c m,
  NAME.second = Σ c m², and NAME.within, the sum of squared deviations from m within
  chunks; for weights it has NAME.first only.
  """

  num_chunks: int
  run: str
  sums: dict[str, np.ndarray]

  def mean(self, name: str, count: int) -> np.ndarray:
    """Returns the mean of a statistic over `count` simulations."""
    return self.sums[f'{name}.first'] / count

  def standard_error(self, name: str, count: int) -> np.ndarray:
    """Returns the standard error of that mean; nan for a single simulation."""
    first, second, within = (
        self.sums[f'{name}.{which}'] for which in ('first', 'second', 'within')
    )
    if count < 2:
      return np.full_like(first, np.nan)
    squares = within + second - first**2 / count
    return np.sqrt(np.maximum(squares, 0) / (count - 1) / count)


def run(
    key: jax.Array,
    simulation: Simulation,
    *,
    num_layers: int,
    num_simulations: int,
    settings: dict[str, Any],
    previous: Totals | None,
    progress: Progress | None,
) -> tuple[Totals, Totals]:
  """Returns totals of all simulations, and totals of the complete chunks among them.

  Arguments are those of `vvlen.simulation.simulate`. `previous` is not changed.
  """
  if not isinstance(key, jax.Array) or jax.random.key_data(key).ndim != 1:
    raise ValueError(f'key must be one key of jax.random.key: {key!r}')
  arguments = (key, simulation.draw_arguments, simulation.layer_arguments)
  mesh = sharding.seed_mesh()
  program, chunk, returned, block = plan(simulation, arguments, num_layers, mesh)
  identity = _identity(settings, key, chunk)
  if previous is None:
    previous = Totals(0, identity, _zeros(returned))
  done = previous.num_chunks * chunk
  _check_previous(previous.run, identity, done, num_simulations)

  def call(start):
    numbers = np.arange(start, start + block)
    counts = np.clip(num_simulations - chunk * numbers, 0, chunk)
    own = sharding.put((numbers.astype(np.int32), counts.astype(np.int32)), mesh)
    return counts[counts > 0], program(*arguments, *own)

  last = math.ceil(num_simulations / chunk)
  sums = whole = _copied(previous.sums)
  for counts, found in _one_ahead(call, range(previous.num_chunks, last, block)):
    found = sharding.fetch(found)
    for i, count in enumerate(counts.tolist()):
      if count < chunk:  # the last one
        sums = _copied(whole)
      _add(sums, count, {name: [x[i] for x in y] for name, y in found.items()})
      done += count
    if progress is not None:
      progress(done)
  return (
      Totals(last, identity, sums), Totals(num_simulations // chunk, identity, whole)
  )


def _identity(settings: dict[str, Any], key: jax.Array, chunk: int) -> str:
  """Returns what identifies a run: its settings, its key and the size of its chunks."""
  facts = {**settings, 'key': np.asarray(jax.random.key_data(key)).tolist(),
           'generator': jax.random.key_impl(key), 'chunk': chunk}
  return ', '.join(f'{name}={value}' for name, value in facts.items())


def _check_previous(there: str, here: str, done: int, num_simulations: int) -> None:
  """Raises ValueError if a run cannot begin with earlier totals.

  Args:
    there: `_identity` of the run of these totals.
    here: that of the run.
    done: simulations in these totals.
    num_simulations: of the run.
  """
  if there != here:
    own, new = (set(re.split(r', (?=\w+=)', run)) for run in (there, here))
    raise ValueError(
        f'previous is of another run: it has {", ".join(sorted(own - new))}, this '
        f'run has {", ".join(sorted(new - own))}; start without it'
    )
  if done > num_simulations:
    raise ValueError(f'previous has {done} simulations already: {num_simulations}')


def _copied(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  return {name: values.copy() for name, values in sums.items()}


class Plan(NamedTuple):
  """How a simulation is computed on some devices."""

  # (*arguments, numbers of chunks [block], simulations in each [block]) -> moments
  program: Callable[..., Any]
  chunk: int  # simulations
  returned: Any  # shapes of the moments of a chunk
  block: int  # chunks of a call


def plan(
    simulation: Simulation, arguments: tuple[Any, ...], num_layers: int,
    mesh: jax.sharding.Mesh,
) -> Plan:
  """Plans a simulation.

  Args:
    simulation: how tokens are drawn, and the layer.
    arguments: (key, draw_arguments, layer_arguments).
    num_layers: the number of layers.
    mesh: of one axis, 'seed', over the devices.
  """
  tokens, layer = _one(simulation.draw, simulation.layer).eval_shape(*arguments)
  size = max(math.prod(x.shape) for x in jax.tree.leaves((tokens, layer)))
  least = _FEW if tokens.shape[0] <= short_inputs.TOKENS else 1
  chunk = next(c for c in _CHUNK_SIZES if c * size <= _CHUNK_NUMBERS or c == least)
  function = _chunk(simulation.draw, simulation.layer, num_layers, chunk)
  returned = function.eval_shape(*arguments, 0, chunk)
  numbers_a_chunk = sum(math.prod(x.shape) for x in jax.tree.leaves(returned))
  a_call = max(1, _NUMBERS_A_CALL // numbers_a_chunk)
  group = 1 if platform.target(mesh) == 'cpu' else min(_CHUNKS_AT_ONCE, a_call)
  block = mesh.size * group * min(_CHUNKS_A_CALL, a_call // group)
  return Plan(_program(function, mesh, group), chunk, returned, block)


def _one_ahead(call: Callable[[int], Any], starts: Iterable[int]) -> Iterator[Any]:
  """Yields what each call returns, after starting the next call."""
  running = None
  for start in starts:
    following = call(start)
    if running is not None:
      yield running
    running = following
  if running is not None:
    yield running


def _zeros(returned):
  names = ('first', 'second', 'within')
  return {
      f'{name}.{which}': np.zeros(values[0].shape)
      for name, values in returned.items()
      for which in (names if len(values) > 1 else names[:1])
  }


def _add(sums, count, found):
  """Adds a chunk of `count` simulations, {name: (mean, within)}, to the sums."""
  for name, (mean, *within) in found.items():
    mean = mean.astype(np.float64)
    sums[f'{name}.first'] += count * mean
    if within:
      sums[f'{name}.second'] += count * mean**2
      sums[f'{name}.within'] += within[0]


@functools.lru_cache(maxsize=64)
def _one(draw, layer):
  """Returns a function that draws and computes one simulation, for its shapes."""

  def one(key, draw_arguments, layer_arguments):
    x = draw(key, 1, *draw_arguments)
    return x, layer(x, *layer_arguments)

  return jax.jit(one)


@functools.lru_cache(maxsize=64)
def _chunk(draw, layer, num_layers, size):
  """Returns the function that computes a chunk, from its number."""

  def compute(key, draw_arguments, layer_arguments, number, count):
    x = draw(jax.random.fold_in(key, number), size, *draw_arguments)
    use = (jnp.arange(size) < count).astype(x.dtype)

    def step(x, _):
      x, scores, weights = layer(x, *layer_arguments)
      each = {'scores': scores, **stage(order)(scores)._asdict()}
      moments = {name: _moments(values, use) for name, values in each.items()}
      return x, {**moments, 'weights': _moments(weights, use)[:1]}

    return jax.lax.scan(step, x, length=num_layers)[1]

  def chunk(*arguments):
    # Skips chunks that only pad a call. (On an accelerator, vmap computes them anyway.)
    shapes = jax.eval_shape(compute, *arguments)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.cond(
        arguments[-1] > 0, compute, lambda *_: nothing, *arguments
    )

  return jax.jit(chunk)  # traced once, also to know what it returns


@functools.lru_cache(maxsize=64)
def _program(chunk, mesh, group):
  return sharding.over_seeds(chunk, mesh, group, shared=3)


def _moments(values: jax.Array, use: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns mean and sum of squared deviations of those in use, over the last axis."""
  total = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
  mean = total(values, use) / use.sum()
  return mean, total(jnp.square(values - mean[..., None]), use)
