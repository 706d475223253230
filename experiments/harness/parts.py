"""Checks of configurations that have parts, such as the cells of a grid."""

from collections.abc import Collection, Iterable, Iterator, Sequence
import contextlib
import re
from typing import Any


@contextlib.contextmanager
def naming(part: str) -> Iterator[None]:
  """Begins the message of a ValueError with the name of the part that it is about."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'{part}: {error}') from error


def check_names(field: str, names: Iterable[str]) -> None:
  """Raises ValueError unless names of parts consist of a-z, 0-9 and _."""
  if odd := [name for name in names if not re.fullmatch('[a-z0-9_]+', name)]:
    raise ValueError(f'config.{field}: a name must consist of a-z, 0-9 and _: '
                     f'{", ".join(odd)}')


def check_known(field: str, names: Iterable[str], known: Collection[str]) -> None:
  """Raises ValueError if a field names parts that are not there."""
  if unknown := [name for name in names if name not in known]:
    raise ValueError(f'config.{field} must be one or more of {", ".join(known)}: '
                     f'{", ".join(unknown)}')


def chosen(field: str, some: Sequence[str], every: Sequence[str]) -> tuple[str, ...]:
  """Returns the parts that a field chooses, or all of them if it is empty.

  Args:
    field: its name, for the message.
    some: names that it has, in the order in which they are to be run. One that is
      repeated counts once.
    every: all names.

  Raises:
    ValueError: if the field names parts that are not there.
  """
  check_known(field, some, every)
  return tuple(dict.fromkeys(some or every))


def check_blocks(part: Any, field: str) -> None:
  """Raises ValueError unless the seeds of a part are whole blocks.

  Args:
    part: its configuration.
    field: where its number of seeds is set, for the message.
  """
  if part.num_seeds % part.train.seeds_at_once:
    raise ValueError(f'{field} {part.num_seeds} must be a multiple of '
                     f'train.seeds_at_once {part.train.seeds_at_once}')
