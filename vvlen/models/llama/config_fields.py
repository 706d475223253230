"""Reads fields of a config.json; each error names the field."""

from collections.abc import Mapping
import sys
from typing import Any

_LARGEST = 2**31 - 1  # the largest allowed integer


def number(
    fields: Mapping[str, Any], name: str, kind: type, default: Any = ...
) -> Any:
  """Returns a number; if it is missing or null, `default`, or an error without one.

  All numbers that are read from a config.json must be positive; ints at most 2³¹ − 1,
  floats finite.
  """
  value = fields.get(name)
  if value is None:
    if default is ...:
      raise ValueError(f'{name} is missing')
    return default
  kinds = (int, float) if kind is float else (int,)
  if isinstance(value, bool) or not isinstance(value, kinds):
    raise ValueError(f'{name} must be a number of type {kind.__name__}: {value!r}')
  if not 0 < value <= (sys.float_info.max if kind is float else _LARGEST):
    limit = 'finite' if kind is float else f'at most {_LARGEST}'
    raise ValueError(f'{name} must be positive and {limit}: {value!r}')
  return kind(value)


def numbers(fields: Mapping[str, Any], name: str) -> tuple[float, ...]:
  """Returns a list of numbers, each as `number` reads it."""
  found = fields.get(name)
  if not isinstance(found, list):
    raise ValueError(f'{name} must be a list of numbers: {found!r}')
  return tuple(number({name: x}, name, float) for x in found)


def whole(fields: Mapping[str, Any], name: str) -> int:
  """Returns a whole number from 0 on."""
  return 0 if fields.get(name) == 0 else number(fields, name, int)


def flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
  """Returns true or false; `default` if it is missing or null."""
  value = fields.get(name)
  if value is not None and not isinstance(value, bool):
    raise ValueError(f'{name} must be true or false: {value!r}')
  return default if value is None else value
