"""The run of a study: its folder, the work that is left, its rows, its report."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from etils import epath
import jax

from experiments import report
from experiments.harness import machine, seed_blocks
from experiments.harness.progress import Progress
from vvlen import sharding
from vvlen.reporting import results, run_folder

# What identifies a row: all of it but its value.
Rows = dict[tuple[Any, ...], results.Row]


class Job(NamedTuple):
  """A piece of work whose rows are written together."""

  amount: int  # of what the progress counts
  rows: Callable[[Progress], Iterable[results.Row]]


def seed_devices(train: Any) -> jax.sharding.Mesh:
  """Returns the devices that share the seeds of a configuration's `train`.

  Raises:
    ValueError: if they cannot share them equally.
  """
  machine.use_devices(train.seeds_at_once // train.group_size)
  mesh = sharding.seed_mesh()
  sharding.check_divisible(train.seeds_at_once, mesh, train.group_size)
  return mesh


def claim_for_seeds(config: Any, workdir: str, study: str) -> epath.Path:
  """Makes a folder that of a run which may grow by seeds, and keeps others out of it.

  Raises:
    ValueError: if it is another run's, or another process is at work in it.
  """
  machine.lock(workdir)
  before = run_folder.claim(
      workdir, config.to_dict(), machine.session(), may_grow=['num_seeds'],
      may_differ=['train.save_every_seconds'], study=study,
  )
  at_once = config.train.seeds_at_once
  if extra := -config.num_seeds % at_once:
    print(f'Seeds are trained {at_once} at once, {extra} more than asked.')
  if before and before['num_seeds'] < config.num_seeds:
    print(seed_blocks.SEEDS_ADDED)
  return epath.Path(workdir)


def read_rows(folder: epath.Path) -> Rows:
  """Returns the rows that a run's folder has."""
  return {row[:-1]: row for row in results.read_rows(folder / 'results.csv')}


def run_jobs(
    folder: epath.Path, jobs: Sequence[Job], unit: str,
    order: Callable[[results.Row], Any] | None = None,
) -> None:
  """Does the work that is left, and makes the report.

  Args:
    folder: of the run; `results.csv` is written after each job.
    jobs: what is left to do.
    unit: of their amounts, as in 'seed-steps'.
    order: of the rows in the file, which then does not depend on that of computing;
      None for the order in which they come.
  """
  rows, first = read_rows(folder), jax.process_index() == 0
  with Progress(sum(job.amount for job in jobs), unit) as progress:
    for job in jobs:
      rows |= {row[:-1]: row for row in job.rows(progress)}
      if first:
        kept = sorted(rows.values(), key=order) if order else rows.values()
        results.write_rows(folder / 'results.csv', kept)
  if first:
    report.show(folder)
    run_folder.finish(folder, finished=machine.now())
