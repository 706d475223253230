"""Runs the jobs of a study in its folder, writes their rows, and makes the report."""

from collections.abc import Callable, Iterable, Sequence
import functools
from typing import Any, NamedTuple

from etils import epath
import jax
from jax.experimental import multihost_utils

from experiments.harness import (
  command_line,
  finished,
  locks,
  log,
  machine,
  reports,
  seed_blocks,
)
from experiments.harness.processes import first_of_processes, stop_if_told
from experiments.harness.progress import Progress
from experiments.harness.trace import Trace
from vvlen import sharding
from vvlen.reporting import results, run_folder
from vvlen.reporting.board import Board
from vvlen.reporting.curves import Curves
from vvlen.reporting.family import digest_of

# Fields of configurations that choose what is computed now. A run is the same with any
# choice, so they are not kept with it.
_CHOICES = 'run_arms', 'run_models'


class Job(NamedTuple):
  """A piece of work whose rows are written together."""

  amount: int  # of work, in the unit of the progress bar
  rows: Callable[[Progress], Iterable[results.Row]]
  # called by the first process when the rows are written
  after: Callable[[], Any] = lambda: None


def seed_devices(train: Any) -> jax.sharding.Mesh:
  """Returns the devices that share the seeds, from the field `train` of a config.

  If they do not divide the seeds, it prints how much of the work repeats a seed.
  """
  machine.use_devices(train.seeds_at_once)
  mesh = sharding.seed_mesh()
  seeds = train.seeds_at_once
  rows = sharding.padded(seeds, mesh.size, train.group_size)
  if rows > seeds:
    print(f'{seeds} seeds at once on {mesh.size} devices, {rows // mesh.size} on each: '
          f'{rows - seeds} of {rows} places, {1 - seeds / rows:.0%} of the work, '
          'repeat a seed and are not reported.')
  return mesh


def claim_for_seeds(
    config: Any, workdir: str, study: str, facts: Callable[[], dict[str, Any]] = dict,
    may_differ: Sequence[str] = (),
) -> epath.Path:
  """Claims and locks a folder for a run to which seeds can be added later.

  Args:
    config: of the run.
    workdir: the folder.
    study: the name of the experiment.
    facts: returns what else identifies the run; called by the first process only.
    may_differ: fields with which a run may be resumed after they have changed, besides
      `train.save_every_seconds`.

  Raises:
    ValueError: if the folder belongs to another run, or another run uses it.
  """
  may_differ = ['train.save_every_seconds', *may_differ]
  first_of_processes(lambda: _claim(config, workdir, study, facts(), may_differ))
  return epath.Path(workdir)


def claim_family(workdir: str, facts: dict[str, Any], study: str) -> None:
  """Locks and claims a folder for a family, which is fixed before its first result.

  Args:
    workdir: the folder.
    facts: the fields that define the family.
    study: the name of the experiment.

  Raises:
    ValueError: if the folder belongs to another run.
  """
  locks.lock(workdir)
  run_folder.claim(
      workdir, {'digest': digest_of(facts), **facts}, machine.session(), study=study)


def _claim(
    config: Any, workdir: str, study: str, facts: dict[str, Any],
    may_differ: Sequence[str],
) -> None:
  locks.lock(workdir)
  whole = {name: value for name, value in config.to_dict().items()
           if name not in _CHOICES}
  before = run_folder.claim(
      workdir, whole | facts, machine.session(), may_grow=['num_seeds'],
      may_differ=may_differ, study=study,
  )
  at_once = seed_blocks.at_once(config)
  if extra := -config.num_seeds % at_once:
    print(f'{at_once} seeds are trained at once, so {extra} more than requested.')
  if before and before['num_seeds'] < config.num_seeds:
    print(seed_blocks.SEEDS_ADDED)


def curves_of(folder: epath.Path, name: str = 'metrics') -> Curves:
  """Returns the curves in the file NAME.jsonl of a folder.

  Only the first process writes them, there and for TensorBoard.
  """
  return Curves(folder / f'{name}.jsonl', writes=jax.process_index() == 0,
                board=_board_of(folder))


@functools.cache  # TensorBoard shows one file at a time of each arm
def _board_of(folder: epath.Path) -> Board:
  return Board(folder / 'tensorboard')


def run_jobs(
    folder: epath.Path, jobs: Sequence[Job], unit: str, part_of: finished.PartOf,
    order: Callable[[results.Row], Any], jobs_are: str = 'jobs',
    measures: bool = True,
) -> None:
  """Runs jobs, and makes the report.

  All processes of a run must have the same jobs; the first one writes their rows.

  Args:
    folder: of the run; `results.csv` is written after each job.
    jobs: those that are not finished.
    unit: of their amounts, such as 'seed-steps'.
    part_of: row -> its part, all of whose rows come from one job.
    order: sort key of the rows in the file, so that their order does not depend on the
      order of jobs.
    jobs_are: what to call them in the message of a run that is stopped.
    measures: whether jobs also measure what they have trained; their amounts do not
      include that.
  """
  first = jax.process_index() == 0
  if first and jobs:
    log.open_in(folder)
  rows = {row.key: row for row in results.read_rows(folder / 'results.csv')}
  if jobs:
    _check_rows(folder, rows.values(), order)
  told = [*run_folder.changes(folder), *results.which_of_two(folder / 'results.csv')]
  for line in told if jobs else ():
    print(line, flush=True)
  if jobs and (lost := finished.lost(folder, part_of)):
    print(f'{folder}/results.csv has lost rows of {_some(lost)}; they are computed '
          'again.', flush=True)
  # All processes must have read the folder before the first one writes.
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices('jobs')
  amount = sum(job.amount for job in jobs)
  with (Trace(folder, command_line.is_traced()) as trace,
        Progress(amount, unit, jobs=len(jobs), on_work=trace.report,
                 measures=measures) as progress):
    for made, job in enumerate(jobs):
      stop_if_told(f'{made} of {len(jobs)} {jobs_are}')
      new = list(job.rows(progress))
      rows |= {row.key: row for row in new}
      if first:
        finished.write_rows(folder, sorted(rows.values(), key=order), new, part_of)
        job.after()
      progress.end_job()
  if first:
    facts = progress.facts() if jobs else {}
    run_folder.finish(folder, finished=machine.now(), **facts)
    if jobs:
      print('Making tables and figures.', flush=True)
    reports.show(folder)


def _check_rows(
    folder: epath.Path, rows: Iterable[results.Row],
    order: Callable[[results.Row], Any],
) -> None:
  """Raises ValueError if a row has no place in the order, such as an unknown arm."""
  for row in rows:
    try:
      order(row)
    except (KeyError, ValueError) as error:
      line = ','.join('' if field is None else str(field) for field in row[:5])
      raise ValueError(f'{folder}/results.csv has a row that is not of this run. '
                       f'Delete its line: {line},…') from error


def _some(parts: Sequence[finished.Part]) -> str:
  """Names the first of several parts, and says how many there are."""
  first = ' '.join(str(x) for x in parts[0] if x is not None)
  return first if len(parts) == 1 else f'{first} and {len(parts) - 1} more'
