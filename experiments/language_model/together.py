"""Trains the language models of several seeds as an ensemble; for small models."""

from collections.abc import Callable, Sequence
import functools
import math
import os
from typing import Any, NamedTuple

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import seed_blocks
from experiments.harness.progress import Progress
from experiments.harness.run_loop import curves_of
from experiments.harness.train import train_block
from experiments.language_model import measuring, training
from experiments.language_model.training import Text
from vvlen import sharding
from vvlen.models.llama.model import Llama
from vvlen.reporting import results
from vvlen.sharding import memory
from vvlen.tasks.tokens import narrowest, Stream
from vvlen.training import checkpoint, ensemble

_SEGMENTS_AT_ONCE = 8  # in one batch when measuring


class Programs(NamedTuple):
  """What the blocks of seeds of an arm share, each compiled when first called."""

  trainer: ensemble.Trainer
  # (parameters, keys [S]) -> {metric: {length: [S]}}
  measure: Callable[[Any, jax.Array], dict[str, dict[int, jax.Array]]]


class Trained(NamedTuple):
  """A trained block of seeds, and what was measured of it."""

  params: Any  # [S, ...], on the devices
  # Of each seed below num_seeds, {metric: {length: value}}; metrics of training have
  # no length, None.
  measured: dict[int, dict[str, dict[int | None, float]]]


def check_text(text: Text, mesh: jax.sharding.Mesh) -> None:
  """Raises ValueError if a text takes more than half of the memory.

  Every device holds all tokens, in the narrowest dtype, and this machine holds them
  once more as int32.
  """
  tokens = len(Stream(text.documents, text.tokenizer.begin)) + len(text.held_out)
  size = tokens * np.dtype(narrowest(text.tokenizer)).itemsize
  limit = memory.memory_limit(mesh)  # MiB
  # Devices that report no memory of their own use that of the machine.
  here = 4 * tokens + (size * mesh.local_mesh.size if limit is None else 0)
  for what, needed, most in (
      ('each device', size, math.inf if limit is None else limit * 2**20),
      ('this machine', here, _machine_memory())):
    if needed > most / 2:
      raise ValueError(
          f'the text has {tokens:,} tokens, which take {needed / 2**20:,.0f} MiB of '
          f'{what}, more than half of its {most / 2**20:,.0f} MiB. Seeds that are '
          'trained together need the whole text in memory. With '
          '--config.train.seeds_at_once=0, seeds are trained one at a time and read it '
          'from a file')


def _machine_memory() -> float:
  """Returns the bytes of memory of this machine, inf if it does not say."""
  try:
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  except (AttributeError, ValueError, OSError):
    return math.inf


def make_programs(
    config: Any, name: str, model: Llama, text: Text, mesh: jax.sharding.Mesh,
    measures: Sequence[str] = measuring.MEASURES,
) -> Programs:
  """Builds the functions that train and measure blocks of seeds of an arm.

  Args:
    config: as in configs/language_model.py.
    name: of the arm.
    model: the model to train.
    text: to train on and, its held-out part, to measure on.
    mesh: with the axis 'seed'.
    measures: of misalignment, fields of `vvlen.objectives.measures.Measures`.
  """
  train, arm = config.train, config.arms[name]
  # The narrowest dtype, because every device holds the whole text.
  narrow = narrowest(text.tokenizer)
  stream = Stream(text.documents, text.tokenizer.begin)[:].astype(narrow)
  trainer = ensemble.make_trainer(
      training.problem(config, arm, model, training.num_steps(config, arm)),
      data=(stream, np.float32(arm.weight)),
      steps_per_call=train.steps_per_call, group_size=train.group_size, mesh=mesh,
  )
  held_out = jax.device_put(
      text.held_out[:].astype(narrow), sharding.whole(mesh))
  return Programs(
      trainer,
      functools.partial(_measure(config, model, mesh, measures), held_out))


def run_block(
    config: Any,
    name: str,
    model: Llama,
    programs: Programs,
    first: int,
    folder: epath.Path,
    progress: Progress,
) -> list[results.Row]:
  """Trains and measures a block of seeds of an arm, resuming from its checkpoint.

  Args:
    config: as in configs/language_model.py.
    name: of the arm.
    model: the model to train.
    programs: of the arm.
    first: the first seed of the block.
    folder: of the run. The model of seed 0 is saved there in hub layout.
    progress: counts seed-steps.
  """
  trained = train_and_measure(config, name, programs, first, folder, progress)
  if first == 0:
    save_models(config, name, model, trained, [0], folder)
  return [row for seed, measured in trained.measured.items()
          for row in measuring.rows_of(name, seed, measured)]


def train_and_measure(
    config: Any, name: str, programs: Programs, first: int, folder: epath.Path,
    progress: Progress,
) -> Trained:
  """Trains and measures a block of seeds; arguments as in `run_block`."""
  train, total = config.train, training.num_steps(config, config.arms[name])
  curves, evaluations = curves_of(folder), curves_of(folder, 'evaluations')
  keys = ensemble.seed_keys(config.seed, first, train.seeds_at_once)
  test_keys, _ = seed_blocks.measuring_keys(
      keys, programs.trainer.mesh, train.group_size)
  where = seed_blocks.checkpoints(folder, config, name, first)
  done, since = checkpoint.last_step(where), 0
  every = config.evaluate.every_steps
  for stop in [*range(every, total, every), total]:
    if stop < done:
      continue
    [state] = train_block(
        [programs.trainer], keys, stop, name=f'{name}, seeds from {first}', arm=name,
        first=first, folders=[where], curves=[curves], progress=progress,
        save_every_seconds=train.save_every_seconds, since=since,
    )
    since = stop
    with progress.measuring(name):
      measured = sharding.fetch(programs.measure(state.params, test_keys))
    flat = {f'{metric}_{length}': values[:len(keys)]
            for metric, by_length in measured.items()
            for length, values in by_length.items()}
    evaluations.add(name, stop, first, flat)
    evaluations.flush()
  late = {f'training_{metric}': {None: curves.late_mean(name, first, metric)}
          for metric in ('loss', 'cross_entropy', 'misalignment')}
  return Trained(state.params, {
      seed: {metric: {length: x[seed - first] for length, x in by_length.items()}
             for metric, by_length in {**measured, **late}.items()}
      for seed in seed_blocks.seeds_of(config, first)})


def save_models(
    config: Any, name: str, model: Llama, trained: Trained, seeds: Sequence[int],
    folder: epath.Path,
) -> None:
  """Saves models of a block of seeds in hub layout, as models/NAME/seed_N.

  Args:
    config: as in configs/language_model.py.
    name: of the arm.
    model: as it is to be loaded.
    trained: of the block.
    seeds: of the block, those to save.
    folder: of the run.
  """
  params, first = sharding.fetch(trained.params), min(trained.measured)
  for seed in seeds:
    own = jax.tree.map(lambda x, place=seed - first: jnp.asarray(x[place]), params)
    training.save_model(config, folder / f'models/{name}/seed_{seed}', model, own)


def _measure(
    config: Any, model: Llama, mesh: jax.sharding.Mesh,
    measures: Sequence[str] = measuring.MEASURES,
) -> Any:
  """Returns (held-out text [n], parameters, keys [S]) -> {metric: {length: [S]}}."""
  at_once = math.gcd(config.evaluate.num_segments, _SEGMENTS_AT_ONCE)

  def one(text, params, key):
    segments = measuring.draw_segments(config, key, text)
    parts = segments.reshape(-1, at_once, segments.shape[1])
    several = jax.lax.map(
        lambda part: measuring.evaluate(
            config, model, params, part, measures=measures), parts)
    return jax.tree.map(lambda x: x.mean(0), several)

  return sharding.over_seeds(one, mesh, config.train.group_size, shared=1)
