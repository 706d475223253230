"""Checks the fields of configurations against a table of what each must be.

A study has a table with one line for each field of its configuration:

  FIELDS = {
      'num_seeds': whole(least=2, why='to test a difference'),
      'train.batch_size': whole(least=1),
      'train.first_max_length': optional(whole(least=1)),
      'optimizer.l2': real(least=0),
      'evaluate.lengths': several(whole(least=1)),
      'arms.*.weight': real(least=0),  # for each of config.arms
  }

Relations between two fields are not in the table: the study checks them itself, after
each field has been checked on its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import difflib
import math
import sys
from typing import Any, NamedTuple

INT32 = 2**31 - 1  # JAX counts steps and indexes arrays in int32
INT64 = 2**63 - 1
_LARGEST = sys.float_info.max
_NAMED: dict[float, str] = {
    2**24: '2**24', INT32: '2**31-1', 2**32 - 1: '2**32-1', 2**53: '2**53',
    INT64: '2**63-1'}


class Kind(NamedTuple):
  """What a field must be."""

  words: str  # for messages, such as 'a whole number from 1 to 2**31-1'
  plural: str  # the plural, such as 'whole numbers from 1 to 2**31-1'
  fits: Callable[[Any], bool]
  optional: bool = False  # whether a configuration may lack the field


def whole(least: int, most: int = INT32, why: str = '') -> Kind:
  """A whole number; True and False are not accepted."""
  ends = f'from {least} to {_NAMED.get(most, most)}{why and ", "}{why}'
  return Kind(f'a whole number {ends}', f'whole numbers {ends}',
              lambda value: _is_number(value, int) and least <= value <= most)


def seed() -> Kind:
  """A seed of JAX's random number generator."""
  return whole(0, 2**32 - 1)


def width() -> Kind:
  """A width of a model; products of larger ones would crash the compiler."""
  return whole(1, 2**24)


def real(
    least: float | None = None, most: float | None = None, *,
    above: float | None = None, below: float | None = None, why: str = '',
) -> Kind:
  """A finite number.

  Args:
    least: inclusive lower end of the range.
    most: inclusive upper end; needs a lower end too.
    above: exclusive lower end.
    below: exclusive upper end; needs a lower end too.
    why: the reason for the range, added to the message.
  """
  low, high = (least if above is None else above), (most if below is None else below)
  finite, ends = 'finite ', ''
  if low is not None and high is not None:
    opens, closes = '[' if above is None else '(', ']' if below is None else ')'
    finite, ends = '', f' in {opens}{low:g}, {_NAMED.get(high, f"{high:g}")}{closes}'
  elif low is not None:
    ends = f' of at least {low:g}' if above is None else f' above {low:g}'
  ends += f'{why and ", "}{why}'

  def fits(value):
    # Comparisons alone: nan fails them, and they work for ints too large for a float.
    return (_is_number(value, (int, float)) and -_LARGEST <= value <= _LARGEST
            and (least is None or value >= least) and (most is None or value <= most)
            and (above is None or value > above) and (below is None or value < below))

  return Kind(f'a {finite}number{ends}', f'{finite}numbers{ends}', fits)


def flag() -> Kind:
  """True or False."""
  return Kind('True or False', 'True or False', lambda value: isinstance(value, bool))


def one_of(values: Sequence[str]) -> Kind:
  """One of some names."""
  words = f"of {', '.join(value or repr(value) for value in values)}"
  return Kind(f'one {words}', words,
              lambda value: isinstance(value, str) and value in values)


def text(what: str = 'text') -> Kind:
  """A str."""
  return Kind(f'a {what}', f'{what}s', lambda value: isinstance(value, str))


def anything() -> Kind:
  """Anything; the field is checked where it is used."""
  return Kind('there', 'there', lambda value: True)


def group() -> Kind:
  """A group of fields, which are checked elsewhere."""
  return Kind('fields of its own', 'fields of their own',
              lambda value: isinstance(value, Mapping))


def several(
    kind: Kind, least: int = 1, most: float = math.inf, *, once: bool = False,
    rising: bool = False,
) -> Kind:
  """A tuple or list.

  Args:
    kind: of each entry.
    least: the smallest number of entries.
    most: the largest number of entries.
    once: whether entries must be distinct.
    rising: whether entries must be strictly increasing.
  """
  count = {0: '', 1: 'one or more '}.get(least, f'{least} or more ')
  count = f'{least} ' if least == most else count
  words = f'{count}{"rising " if rising else ""}{kind.plural}'
  words += ', each once' if once else ''

  def fits(values):
    if not isinstance(values, (tuple, list)) or not least <= len(values) <= most:
      return False
    if not all(map(kind.fits, values)):
      return False
    ordered = sorted(set(values)) if rising or once else values
    return list(values) == ordered if rising else len(ordered) == len(values)

  return Kind(words, words, fits)


def or_none(kind: Kind) -> Kind:
  """A value of the given kind, or None."""
  return Kind(f'{kind.words}, or None', f'{kind.plural}, or None',
              lambda value: value is None or kind.fits(value))


def zero_or(kind: Kind) -> Kind:
  """A number of the given kind, or 0."""
  return Kind(f'{kind.words}, or 0', f'{kind.plural}, or 0',
              lambda value: kind.fits(value) or (
                  _is_number(value, (int, float)) and value == 0))


def optional(kind: Kind) -> Kind:
  """A value of the given kind, in a field that a configuration may lack."""
  return kind._replace(optional=True)


DTYPES = ('float32', 'bfloat16')  # of matrix products
# Fields of studies that train seeds in blocks (`experiments.harness.seed_blocks`).
SEED_BLOCKS = {
    'seed': seed(),
    'num_seeds': whole(least=2, most=10**6, why='to test a difference'),
    'train.num_steps': whole(least=1),
    'train.steps_per_call': whole(least=1),
    'train.seeds_at_once': whole(least=1, most=10**6),
    'train.group_size': whole(least=1),
    'train.save_every_seconds': real(least=0),
    'optimizer.learning_rate': real(above=0),
}
# The first field of each pair must be a multiple of the second.
MULTIPLES = (('train.num_steps', 'train.steps_per_call'),)
# Arguments of `vvlen.sharding.mesh.make_mesh`; -1: all remaining devices.
MESH = {f'mesh.{axis}': whole(least=-1) for axis in ('data', 'fsdp', 'tensor')}


def check(config: Any, table: Mapping[str, Kind], where: str = 'config') -> None:
  """Checks that each field of a configuration is what a table requires.

  Args:
    config: an ml_collections.ConfigDict, or nested dictionaries.
    table: {name: kind}; a name such as 'arms.*.weight' stands for all fields of `arms`.
    where: the name of the configuration in messages.

  Raises:
    ValueError: if the configuration lacks a field, or has an unknown field or a wrong
      value; the message names the field.
  """
  tree = config if isinstance(config, dict) else config.to_dict()
  known = {name: kind for pattern, kind in table.items()
           for name in _names(pattern, tree)}
  leaves = dict(_leaves(tree, known))
  for name, value in leaves.items():
    if name not in known:
      raise ValueError(f'{where}{_unknown(name, value, [*known, *table])}')
  for name, kind in known.items():
    if name not in leaves:
      if not kind.optional:
        raise ValueError(
            f'{where} lacks a field: {name}, which must be {kind.words}')
    elif not kind.fits(leaves[name]):
      raise ValueError(f'{where}.{name} must be {kind.words}: {leaves[name]!r}')


def check_multiples(config: Any, *pairs: tuple[str, str]) -> None:
  """Raises ValueError unless the first field of each pair is a multiple of the second.

  Names are as in a table; both fields must be positive.
  """
  for many, part in pairs:
    if at(config, many) % at(config, part):
      raise ValueError(f'config.{many} {at(config, many)} must be a multiple of '
                       f'config.{part} {at(config, part)}')


def at(config: Any, name: str) -> Any:
  """Returns the field with a name such as 'train.num_steps'; None if it is missing."""
  for part in name.split('.'):
    config = config.get(part) if hasattr(config, 'get') else None
  return config


def _is_number(value: Any, kind: Any) -> bool:
  """Whether a value is of a type of numbers, but not True or False."""
  return isinstance(value, kind) and not isinstance(value, bool)


def changed(base: Any, changes: Any, words: str) -> Any:
  """Returns a copy of a configuration with fields changed or added.

  Args:
    base: a ConfigDict.
    changes: a ConfigDict of those fields alone.
    words: what is changed, with which an error begins.

  Raises:
    ValueError: if a group of fields is changed into a value, or a value into a group.
  """
  config = base.copy_and_resolve_references()
  try:
    with config.unlocked():
      config.update(changes)
  except (AttributeError, TypeError) as error:
    raise ValueError(f'{words}: {error}') from error
  return config


def _names(pattern: str, tree: Mapping[str, Any]) -> list[str]:
  """Returns the names of fields that match a name with at most one *."""
  before, star, after = pattern.partition('*')
  if not star:
    return [pattern]
  inside = at(tree, before.removesuffix('.'))
  inside = inside if isinstance(inside, Mapping) else {}
  return [f'{before}{name}{after}' for name in inside]


def _leaves(
    tree: Mapping[str, Any], known: Mapping[str, Kind], prefix: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields names and values of fields; groups that the table lists are not opened."""
  for name, value in tree.items():
    if isinstance(value, Mapping) and f'{prefix}{name}' not in known:
      yield from _leaves(value, known, f'{prefix}{name}.')
    else:
      yield f'{prefix}{name}', value


def _unknown(name: str, value: Any, known: Sequence[str]) -> str:
  """Returns a message about a field that is not in the table."""
  inside = [other for other in known if other.startswith(f'{name}.')]
  if inside:
    return f'.{name} must have fields, such as {inside[0]}: {value!r}'
  near = difflib.get_close_matches(name, known, 1)
  return f' has no field {name}: {f"is it {near[0]}?" if near else "remove it"}'
