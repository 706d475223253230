"""Runs a league: tunes each arm on each task, then trains fresh seeds of it."""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

from etils import epath
import jax

from experiments.harness import finished, seed_blocks
from experiments.harness.processes import first_of_processes
from experiments.harness.progress import Progress
from experiments.harness.run_loop import (
  claim_family,
  curves_of,
  Job,
  run_jobs,
  seed_devices,
)
from experiments.league import arms, family, rates, training
from experiments.league.names import in_order
from experiments.league.tasks import make_task
from experiments.length_generalization.tasks import identified
from vvlen.reporting import results
from vvlen.training import checkpoint

_TUNING = 'tuning'  # folder in that of the run


def main(config: Any, workdir: str) -> None:
  """Runs or resumes a league, and writes tables and figures."""
  cells = {name: identified(cell)
           for name, cell in family.task_configs(config).items()}
  chosen = family.chosen_arms(config)
  mesh = seed_devices(next(iter(cells.values())).train)  # before anything is computed
  fields = {
      (name, arm): arms.fields_of(
          arm, family.sources(config)[arm], cells[name].train.max_length)
      for name in family.chosen_tasks(config) for arm in chosen
  }
  for (name, _), changes in fields.items():
    training.changed_task(make_task(cells[name]), changes, name)  # may raise
  folder = epath.Path(workdir)
  first_of_processes(
      lambda: claim_family(workdir, family.facts(config), 'league'))
  done = finished.finished(folder, part_of)
  tuned = finished.finished(folder / _TUNING, part_of_tuning)
  # Read by all processes before the first of them writes.
  before = results.read_rows(folder / 'results.csv')
  tuning = {row.key: row for row in results.read_rows(folder / _TUNING / 'results.csv')}

  @functools.lru_cache(maxsize=1)  # the jobs of a player follow each other
  def player(name, arm):
    return training.make_player(
        cells[name], name, arm, fields[name, arm], _rates(config), mesh)

  jobs = []
  for name, arm in fields:
    cell, make = cells[name], functools.partial(player, name, arm)
    clear = functools.partial(_clear, folder, config, name, arm)
    if all((name, arm, rate, seed) in tuned for rate in _rates(config)
           for seed in range(config.tune.num_seeds)):
      first_of_processes(clear)  # of a run that was killed before it did
    else:
      amount = config.tune.num_seeds * len(config.tune.rates) * cell.train.num_steps
      jobs.append(Job(
          amount, functools.partial(_tune, make, config.tune, folder, tuning),
          after=clear))
    for first in seed_blocks.first_seeds(cell):
      at = seed_blocks.checkpoints(folder / 'tasks' / name, cell, arm, first)
      clear = functools.partial(_remove, at)
      if seed_blocks.is_finished(cell, done, first, name, arm):
        first_of_processes(clear)
      else:
        jobs.append(Job(
            cell.train.seeds_at_once * cell.train.num_steps,
            functools.partial(_play, make, folder, at, first, tuning, before),
            after=clear))
  run_jobs(folder, jobs, 'seed-steps', part_of, _order(family.sources(config)))


def part_of(row: results.Row) -> tuple[str, str, int]:
  """Returns the part of a row of the contest: task, arm and seed."""
  return row.experiment, *seed_blocks.part_of(row)


def part_of_tuning(row: results.Row) -> tuple[str, str, float | None, int]:
  """Returns the part of a row of the tuning: task, arm, learning rate and seed."""
  return row.experiment, row.arm, row.learning_rate, row.seed


def _tune(
    make: Callable[[], training.Player], config: Any, folder: epath.Path,
    tuning: dict[Any, results.Row], progress: Progress,
) -> tuple[()]:
  """Tunes an arm on a task, and adds rows to those of the tuning and to its file."""
  player, home = make(), folder / _TUNING
  places = {}
  for rate in player.trainers:
    own = _at_rate(folder, player.task, player.arm, rate)
    places[rate] = seed_blocks.Place(player.task, own, curves_of(own))
  level([place.folder / 'checkpoints' for place in places.values()])
  new = training.tune(player, places, config.seed, config.num_seeds, progress)
  tuning |= {row.key: row for row in new}
  if jax.process_index() == 0:
    order = _order(in_order({row.arm for row in tuning.values()}))
    finished.write_rows(home, sorted(tuning.values(), key=order), new, part_of_tuning)
  return ()


def level(folders: Sequence[epath.Path]) -> None:
  """Removes checkpoints that are ahead of those of another folder.

  The models of an ensemble are saved one after another. If a run ends in between, some
  have the checkpoint of a step and others only the one before; all go back to that one.
  """
  least = min(checkpoint.last_step(folder) for folder in folders)
  first_of_processes(lambda: [
      path.rmtree() for folder in folders if folder.exists()
      for path in folder.iterdir() if path.name.isdigit() and int(path.name) > least])


def _play(
    make: Callable[[], training.Player], folder: epath.Path, checkpoints: epath.Path,
    first: int, tuning: Mapping[Any, results.Row], before: Sequence[results.Row],
    progress: Progress,
) -> list[results.Row]:
  """Trains and measures a block of seeds at the learning rate that was chosen."""
  player = make()
  losses = rates.read_losses(tuning.values(), player.task, player.arm)
  rate = rates.choose(losses).rate
  others = {row.learning_rate for row in before
            if (row.experiment, row.arm) == (player.task, player.arm)} - {rate}
  if others:
    raise ValueError(
        f'{folder}/results.csv has rows of {player.arm} on {player.task} at the '
        f'learning rate {min(others)}, but the tuning chooses {rate}: delete them')
  # A checkpoint holds its rate, and must not go on under another.
  place = seed_blocks.Place(
      player.task, checkpoints / f'rate_{rate!r}',
      curves_of(folder / 'tasks' / player.task))
  return training.play(player, place, rate, first, progress)


def _rates(config: Any) -> tuple[float, ...]:
  return tuple(map(float, config.tune.rates))


def _at_rate(folder: epath.Path, task: str, arm: str, rate: float) -> epath.Path:
  """Returns the folder of the curves and checkpoints of one rate of the tuning."""
  return folder / _TUNING / task / arm / f'rate_{rate!r}'


def _clear(folder: epath.Path, config: Any, task: str, arm: str) -> None:
  for rate in _rates(config):
    _remove(_at_rate(folder, task, arm, rate) / 'checkpoints')


def _remove(path: epath.Path) -> None:
  if path.exists():
    path.rmtree()


def _order(arm_names: Sequence[str]) -> Callable[[results.Row], Any]:
  """Returns the sort key of rows."""
  place = {arm: i for i, arm in enumerate(arm_names)}
  return lambda row: (
      row.experiment, place[row.arm.partition('+')[0]], row.arm, row.learning_rate or 0,
      row.seed, row.length or 0, row.metric)
