"""Blocks of seeds that are trained together: their checkpoints, keys and rows."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from etils import epath
import jax

from experiments.harness import finished
from vvlen import sharding
from vvlen.reporting import results
from vvlen.reporting.curves import Curves
from vvlen.training import ensemble

SEEDS_ADDED = (
    'Seeds are added to results: p-values are valid only if that was planned before '
    'the results were seen.'
)


def at_once(config: Any) -> int:
  """Returns the number of seeds in a block, 1 if seeds are trained one at a time."""
  return config.train.seeds_at_once or 1


def first_seeds(config: Any) -> range:
  """Returns the first seed of each block; the last block may exceed num_seeds."""
  return range(0, config.num_seeds, at_once(config))


def seeds_of(config: Any, first: int) -> range:
  """Returns the seeds of a block that are below num_seeds."""
  return range(first, min(first + at_once(config), config.num_seeds))


def is_finished(
    config: Any, done: Collection[finished.Part], first: int, *names: Any
) -> bool:
  """Returns whether all seeds of a block are finished.

  Args:
    config: of the study.
    done: the finished parts, (*names, seed).
    first: seed of the block.
    names: what names the block's parts besides their seed, such as their arm.
  """
  return all((*names, seed) in done for seed in seeds_of(config, first))


class Place(NamedTuple):
  """Where the results of one configuration are stored."""

  experiment: str  # column of the rows
  folder: epath.Path  # of the checkpoints
  curves: Curves
  step: int | None = None  # column of the rows


def checkpoints(
    folder: epath.PathLike, config: Any, arm: str, first: int
) -> epath.Path:
  """Returns the folder of the checkpoints of a block of seeds of one arm."""
  last = first + config.train.seeds_at_once - 1
  return epath.Path(folder) / f'checkpoints/{arm}/seeds_{first}_{last}'


def measuring_keys(
    keys: jax.Array, mesh: jax.sharding.Mesh, group_size: int
) -> tuple[jax.Array, jax.Array]:
  """Returns the keys [S] of test data and of validation data, by `sharding.put`."""
  test, validation = (
      sharding.put(jax.vmap(ensemble.purpose_key, (0, None))(keys, purpose), mesh,
                   group_size)
      for purpose in (ensemble.TEST, ensemble.VALIDATION)
  )
  return test, validation


def merge(
    arms: Sequence[str], rows: Iterable[results.Row], new: Iterable[results.Row]
) -> list[results.Row]:
  """Adds or replaces rows; their order does not depend on the order of computing."""
  merged = {row.key: row for row in (*rows, *new)}.values()
  return sorted(merged, key=order(arms))


def part_of(row: results.Row) -> tuple[str, int]:
  """Returns the part of a row of a run with one configuration: arm and seed."""
  return row.arm.partition('+')[0], row.seed


def part_of_cell(row: results.Row) -> tuple[str, int | None, str, int]:
  """Returns the part of a row of a run with cells: cell, step, arm and seed."""
  return row.experiment, row.step, *part_of(row)


def order(arms: Sequence[str]) -> Callable[[results.Row], Any]:
  """Returns the sort key of the rows of these arms."""
  place = {arm: i for i, arm in enumerate(arms)}
  return lambda row: (
      row.experiment, row.step or 0, place[row.arm.split('+')[0]], row.arm, row.seed,
      row.length or 0, row.metric,
  )
