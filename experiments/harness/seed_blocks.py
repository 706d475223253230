"""Blocks of seeds, which are trained together: where they are kept, and their rows."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from etils import epath
import jax

from vvlen import sharding
from vvlen.reporting import results
from vvlen.reporting.curves import Curves
from vvlen.training import ensemble

SEEDS_ADDED = (
    'Seeds are added to results: p-values hold only if that was planned before they '
    'were seen.'
)


def first_seeds(config: Any) -> range:
  """Returns the first seed of each block; blocks are trained whole."""
  return range(0, config.num_seeds, config.train.seeds_at_once)


def seeds_of(config: Any, first: int) -> range:
  """Returns the seeds of a block that are asked for."""
  return range(first, min(first + config.train.seeds_at_once, config.num_seeds))


class Place(NamedTuple):
  """Where the runs of one configuration are told of."""

  experiment: str  # of their rows
  folder: epath.Path  # of their checkpoints
  curves: Curves


def checkpoints(
    folder: epath.PathLike, config: Any, arm: str, first: int
) -> epath.Path:
  """Returns where the checkpoints of a block of seeds of one arm are."""
  last = first + config.train.seeds_at_once - 1
  return epath.Path(folder) / f'checkpoints/{arm}/seeds_{first}_{last}'


def measuring_keys(
    keys: jax.Array, mesh: jax.sharding.Mesh
) -> tuple[jax.Array, jax.Array]:
  """Returns the keys [S] of test data and of validation data, on the mesh."""
  test, validation = (
      sharding.put(jax.vmap(ensemble.purpose_key, (0, None))(keys, purpose), mesh)
      for purpose in (ensemble.TEST, ensemble.VALIDATION)
  )
  return test, validation


def merge(
    arms: Sequence[str], rows: Iterable[results.Row], new: Iterable[results.Row]
) -> list[results.Row]:
  """Adds rows, in an order that does not depend on the order of computing."""
  merged = {row[:-1]: row for row in (*rows, *new)}.values()
  return sorted(merged, key=order(arms))


def order(arms: Sequence[str]) -> Callable[[results.Row], Any]:
  """Returns what rows of these arms are sorted by."""
  place = {arm: i for i, arm in enumerate(arms)}
  return lambda row: (
      row.experiment, place[row.arm.split('+')[0]], row.arm, row.seed,
      row.length or 0, row.metric,
  )
