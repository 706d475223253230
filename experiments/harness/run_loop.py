"""Runs the jobs of a study in its folder, writes their rows, and makes the report."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from etils import epath
import jax

from experiments.harness import machine, reports, seed_blocks
from experiments.harness.progress import Progress
from vvlen import sharding
from vvlen.reporting import results, run_folder

# {fields that identify a row: the row}
Rows = dict[tuple[Any, ...], results.Row]


class Job(NamedTuple):
  """A piece of work whose rows are written together."""

  amount: int  # of work, in the unit of the progress bar
  rows: Callable[[Progress], Iterable[results.Row]]


def seed_devices(train: Any) -> jax.sharding.Mesh:
  """Returns the devices that share the seeds, from the field `train` of a config.

  Raises:
    ValueError: if the seeds cannot be divided equally among the devices.
  """
  machine.use_devices(train.seeds_at_once // train.group_size)
  mesh = sharding.seed_mesh()
  sharding.check_divisible(train.seeds_at_once, mesh, train.group_size)
  return mesh


def claim_for_seeds(config: Any, workdir: str, study: str) -> epath.Path:
  """Claims and locks a folder for a run to which seeds can be added later.

  Raises:
    ValueError: if the folder belongs to another run, or another process uses it.
  """
  machine.lock(workdir)
  before = run_folder.claim(
      workdir, config.to_dict(), machine.session(), may_grow=['num_seeds'],
      may_differ=['train.save_every_seconds'], study=study,
  )
  at_once = config.train.seeds_at_once
  if extra := -config.num_seeds % at_once:
    print(f'{at_once} seeds are trained at once, so {extra} more than requested.')
  if before and before['num_seeds'] < config.num_seeds:
    print(seed_blocks.SEEDS_ADDED)
  return epath.Path(workdir)


def read_rows(folder: epath.Path) -> Rows:
  """Returns the rows in a run's folder."""
  return {row.key: row for row in results.read_rows(folder / 'results.csv')}


def run_jobs(
    folder: epath.Path, jobs: Sequence[Job], unit: str,
    order: Callable[[results.Row], Any] | None = None,
) -> None:
  """Runs jobs, and makes the report.

  Args:
    folder: of the run; `results.csv` is written after each job.
    jobs: those that are not finished.
    unit: of their amounts, such as 'seed-steps'.
    order: sort key of the rows in the file, so that their order does not depend on the
      order of jobs; None for the order in which they are computed.
  """
  rows, first = read_rows(folder), jax.process_index() == 0
  with Progress(sum(job.amount for job in jobs), unit) as progress:
    for job in jobs:
      rows |= {row.key: row for row in job.rows(progress)}
      if first:
        kept = sorted(rows.values(), key=order) if order else rows.values()
        results.write_rows(folder / 'results.csv', kept)
  if first:
    reports.show(folder)
    run_folder.finish(folder, finished=machine.now())
