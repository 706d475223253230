"""Why does accuracy fall with length: vanishing variance, or dispersed attention?

The command line is in `__main__`.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any

from etils import epath
import jax
import ml_collections

from experiments.harness import fields, finished, locks, machine, paths, seed_blocks
from experiments.harness.fields import one_of, several, text, whole
from experiments.harness.parts import naming
from experiments.harness.processes import first_of_processes
from experiments.harness.run_loop import Job, run_jobs, seed_devices
from experiments.length_generalization import tasks, training
from experiments.length_generalization.check import check
from vvlen import sharding
from vvlen.evaluation.retriever import intervention
from vvlen.evaluation.retriever.lengths import make_apply
from vvlen.models.norm import KINDS
from vvlen.reporting import results, run_folder
from vvlen.training import checkpoint, ensemble

# The fields that `block_measurer` reads.
MEASURED = {
    'lengths': several(whole(least=1)),
    'num_sequences': whole(least=2),
    'moment_sequences': whole(least=2),
    'select_sequences': whole(least=2),
}
_FIELDS = {'trained': text(), 'arms': several(one_of(KINDS), once=True), **MEASURED}


def main(config: Any, workdir: str) -> None:
  """Measures all seeds that are not measured yet, and writes tables and a figure."""
  trained, facts = _read_trained(config)
  folder, place = epath.Path(workdir), epath.Path(config.trained)
  place = place.parent.parent if place.parent.name == 'cells' else place
  if place == folder:
    raise ValueError(f'{workdir} holds the trained models. Choose another --workdir.')
  train = trained.train
  mesh = seed_devices(train)
  # Training at the other place would change checkpoints while they are read.
  first_of_processes(lambda: [locks.lock(path) for path in (workdir, place)])
  step = _trained_step(config, trained)
  run = config.to_dict() | {
      'trained': str(epath.Path(config.trained)),  # without a trailing slash
      'trained_config': facts, 'trained_step': step,
  }
  first_of_processes(lambda: run_folder.claim(
      folder, run, machine.session(), may_grow=['trained_config.num_seeds'],
      study='mechanism'))
  done = finished.finished(folder, seed_blocks.part_of)
  measure = {
      arm: block_measurer(config, trained, config.trained, arm, step, mesh)
      for arm in config.arms
  }

  items = train.seeds_at_once * config.num_sequences  # at a length of 1

  def rows_of(arm, first, progress):
    return measure[arm](first, lambda length: progress.show(
        f'{arm}, seeds from {first}, N = {length}', items * length))

  jobs = [
      Job(items * sum(config.lengths), functools.partial(rows_of, arm, first))
      for arm in config.arms for first in seed_blocks.first_seeds(trained)
      if not seed_blocks.is_finished(trained, done, first, arm)
  ]
  run_jobs(folder, jobs, 'items', seed_blocks.part_of, seed_blocks.order(config.arms),
           measures=False)


def _read_trained(config: Any) -> tuple[ml_collections.ConfigDict, dict[str, Any]]:
  """Returns the configuration of the trained models, also as plain values."""
  fields.check(config, _FIELDS)
  paths.check_folder(config.trained, 'config.trained')
  path = epath.Path(config.trained or '.') / 'config.json'
  if not config.trained or not path.exists():
    raise ValueError(
        f'config.trained must be the folder of a trained run: {config.trained!r}'
    )
  with run_folder.reading(path) as stored:
    facts, study = dict(stored['config']), stored.get('study')
    trained = ml_collections.ConfigDict(facts)
  # Earlier versions did not say the study; a grid has a base and cells.
  grids = ('sensitivity', 'vanishing_variance')
  if study in grids or (study is None and 'base' in facts):
    raise ValueError(f'{config.trained} is a grid: give a cell of it, as cells/base')
  with naming(str(path)):
    check(trained)
  if set(config.arms) - set(trained.arms):
    raise ValueError(
        f'config.arms must be one or more of {trained.arms}: {tuple(config.arms)}')
  check_lengths(config.lengths, trained, 'config.lengths')
  return trained, facts


def check_lengths(lengths: Sequence[int], trained: Any, field: str) -> None:
  """Raises ValueError unless lengths suit the models and go beyond their training.

  Args:
    lengths: in items.
    trained: the configuration of the trained models.
    field: the name of the field that holds the lengths, for messages.
  """
  task, longest = tasks.make_task(trained), trained.train.max_length
  if task.item_class is None:
    raise ValueError(
        f'the task {task.name} has no item_class, which interventions on attention need'
    )
  if task.max_length is not None and max(lengths) > task.max_length:
    raise ValueError(f'{field} must not exceed {task.max_length}, the most items of a '
                     f'sequence of {task.name}: {lengths}')
  if max(lengths) <= longest:
    raise ValueError(f'{field} must go beyond {longest}: {lengths}')


def _trained_step(config: Any, trained: Any) -> int:
  """Returns the step of the checkpoints, which must be the same for all models."""
  steps = {
      str(place): checkpoint.last_step(place)
      for arm in config.arms for first in seed_blocks.first_seeds(trained)
      for place in [seed_blocks.checkpoints(config.trained, trained, arm, first)]
  }
  if not any(steps.values()):
    raise ValueError(
        f'{config.trained} holds no checkpoints: train it in a new folder with '
        '--config.train.keep_checkpoints=True, which quick does not have')
  if len(set(steps.values())) > 1:
    found = ', '.join(f'{place} at {step}' for place, step in steps.items())
    raise ValueError(f'all models must be trained to the same step: {found}')
  return next(iter(steps.values()))


def block_measurer(
    config: Any, trained: Any, folder: epath.PathLike, arm: str, step: int,
    mesh: jax.sharding.Mesh,
) -> Callable[..., list[results.Row]]:
  """Returns a function: first seed of a block of one arm -> rows of its measurement.

  Its second argument, which may be left out, is called with each length that is
  measured.

  Args:
    config: with the fields lengths, num_sequences, moment_sequences and
      select_sequences.
    trained: the configuration of the trained models.
    folder: of the trained run, with its checkpoints.
    arm: one of its arms.
    step: the step of its checkpoints.
    mesh: the devices, with the axis 'seed'.
  """
  task = tasks.make_task(trained)
  apply = make_apply(task.model(arm))
  train = trained.train
  prepare = sharding.over_seeds(task.prepare, mesh, train.group_size)
  trainer = ensemble.make_trainer(
      training.problem(trained, arm), steps_per_call=train.steps_per_call,
      group_size=train.group_size, mesh=mesh,
  )

  at_length = {
      length: sharding.over_seeds(
          lambda variables, test_key, validation_key, length=length: (
              intervention.intervene(
                  apply, task.sample_at, variables, test_key, validation_key,
                  length=length, trained_up_to=train.max_length,
                  num_sequences=config.num_sequences,
                  moment_sequences=config.moment_sequences,
                  select_sequences=config.select_sequences,
                  item_class=task.item_class)),
          mesh, train.group_size,
      )
      for length in config.lengths
  }

  def run(first, after_length=lambda length: None):
    keys = ensemble.seed_keys(trained.seed, first, train.seeds_at_once)
    place = seed_blocks.checkpoints(folder, trained, arm, first)
    state = ensemble.train(trainer, keys, step, folder=place)  # only restores
    test_keys, validation_keys = seed_blocks.measuring_keys(
        keys, mesh, train.group_size)
    variables = prepare(state.params)
    rows = []
    sharding.compile_together(at_length.values(), variables, test_keys, validation_keys)
    for length, measure in at_length.items():
      measured = sharding.fetch(measure(variables, test_keys, validation_keys))
      rows += [
          results.Row(task.name, arm + suffix, seed, length, metric,
                      values[seed - first])
          for suffix, metrics in measured.items()
          for metric, values in metrics.items()
          for seed in seed_blocks.seeds_of(trained, first)
      ]
      after_length(length)
    return rows

  return run
