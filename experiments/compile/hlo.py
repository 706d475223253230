"""Counts what a compiled program moves, from its text, loops included.

XLA's own `cost_analysis` counts the body of a loop once. Here it is counted as often as
the loop runs it. XLA writes that number beside most loops; for others it is the
constant with which the loop's condition compares.
"""

from collections.abc import Iterator
import functools
import math
import re
from typing import NamedTuple

COLLECTIVES = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all',
               'collective-permute')
_ARRAY = re.compile(r'\b([a-z]+\d*\w*)\[([\d,]*)\](\{[^}]*\})?')
_HEAD = re.compile(r'^(ENTRY )?%?([\w.\-]+) .*\{$')
_LINE = re.compile(r'^\s+(ROOT )?%?([\w.\-]+) = (.*)$')
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(r'(?:calls|to_apply|body)=%?([\w.\-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?'
                       r'([\w.\-]+)')
# Operations that move nothing by themselves.
_FREE = {'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all',
         'partition-id', 'replica-id', 'iota', 'domain', 'opt-barrier', 'while', 'call',
         'conditional', 'async-start', 'async-update'}


class Traffic(NamedTuple):
  """What one device moves in one call of a program."""

  bytes: float  # read from and written to its memory
  collectives: dict[str, tuple[float, float]]  # {kind: (number, bytes of results)}
  unknown_loops: int  # loops whose number of turns is not known, counted once


class _Op(NamedTuple):
  name: str
  kind: str
  type: str
  operands: list[str]
  rest: str
  root: bool


def traffic(text: str) -> Traffic:
  """Returns what one device moves in one call of a program.

  Bytes are those that operations outside fusions read from and write to the device's
  main memory. If a fusion reads only slices of an array, or writes a slice of it, only
  the slices count. This is an estimate: kernels may read an operand twice.

  Args:
    text: of the compiled program, as XLA writes it.
  """
  computations, entry = _parse(text)
  loops = {name: (op, parent) for parent, ops in computations.items() for op in ops
           if op.kind == 'while' for name in re.findall(
               r'(?:body|condition)=%?([\w.\-]+)', op.rest)}

  @functools.cache
  def of(name: str) -> Traffic:
    total, kinds, unknown = 0.0, dict[str, tuple[float, float]](), 0
    types = {op.name: op.type for op in computations[name]}
    for op in computations[name]:
      total += _moved(op, types, computations)
      kind = _collective(op)
      if kind:
        kinds = _add(kinds, {kind: (1, _result(op))})
        continue
      times, inside = 1.0, _CALLED.findall(op.rest)
      if op.kind == 'while':
        turns = _turns(op, computations, loops)
        times = turns or 1.0
        unknown += not turns
      elif op.kind == 'conditional':
        names = [x for pair in _BRANCHES.findall(op.rest) for x in pair if x]
        names = re.findall(r'[\w.\-]+', ' '.join(names))
        inside = [max(names, key=lambda x: of(x).bytes)] if names else []
      elif op.kind not in ('fusion', 'call', 'async-start'):
        inside = []
      for other in inside:
        found = of(other)
        # What a fusion computes inside does not pass through the main memory.
        total += 0 if op.kind == 'fusion' else times * found.bytes
        kinds = _add(kinds, {
            k: (times * n, times * b) for k, (n, b) in found.collectives.items()})
        unknown += found.unknown_loops
    return Traffic(total, kinds, unknown)

  return of(entry)


def _turns(
    loop: _Op, computations: dict[str, list[_Op]], loops: dict[str, tuple[_Op, str]]
) -> float | None:
  """Returns the turns of a loop that counts up from 0; None if they are not known."""
  if written := _TURNS.search(loop.rest):
    return float(written[1])
  name = re.search(r'condition=%?([\w.\-]+)', loop.rest)[1]
  root = next(op for op in computations[name] if op.root)
  places = root.operands
  if root.kind == 'fusion':
    inner = computations[_CALLED.search(root.rest)[1]]
    root = next(op for op in inner if op.root)
    numbers = {op.name: int(op.operands[0]) for op in inner if op.kind == 'parameter'}
    places = [places[numbers[x]] if x in numbers else '' for x in root.operands]
  if root.kind != 'compare':
    return None
  known = [x for place in places if (x := _value(place, name, computations, loops))]
  return float(known[0]) if len(known) == 1 else None


def _value(
    name: str, where: str, computations: dict[str, list[_Op]],
    loops: dict[str, tuple[_Op, str]],
) -> int | None:
  """Returns the value of a constant, also of one that is passed into a loop."""
  ops = {op.name: op for op in computations[where]}
  op = ops.get(name)
  if op is None:
    return None
  if op.kind == 'constant':
    return int(op.operands[0]) if re.fullmatch(r'-?\d+', op.operands[0]) else None
  if op.kind in ('copy', 'bitcast', 'convert'):
    return _value(op.operands[0], where, computations, loops)
  if op.kind != 'get-tuple-element' or where not in loops:
    return None
  loop, parent = loops[where]
  outside = {x.name: x for x in computations[parent]}
  start = outside.get(loop.operands[0])
  if start is None or start.kind != 'tuple':
    return None
  place = int(re.search(r'index=(\d+)', op.rest)[1])
  return _value(start.operands[place], parent, computations, loops)


def _parse(text: str) -> tuple[dict[str, list[_Op]], str]:
  """Returns {name of a computation: its operations}, and the name of the entry."""
  computations: dict[str, list[_Op]] = {}
  entry, current = '', ''
  for line in text.splitlines():
    if head := _HEAD.match(line):
      current = head[2]
      computations[current] = []
      entry = current if head[1] else entry
    elif current and (found := _LINE.match(line)):
      computations[current].append(_op(found[2], found[3], bool(found[1])))
  return computations, entry


def _op(name: str, rest: str, root: bool) -> _Op:
  """Reads one operation from what follows its name: TYPE KIND(OPERANDS), ATTRIBUTES."""
  kind_at = _balanced(rest, 0) if rest.startswith('(') else rest.index(' ')
  type_, rest = rest[:kind_at], rest[kind_at:].lstrip()
  opened = rest.index('(')
  closed = _balanced(rest, opened)
  inside = rest[opened + 1:closed - 1]
  kind = rest[:opened]
  # In place of operands, a parameter has its number, and a constant its value.
  plain = kind in ('parameter', 'constant')
  operands = [inside] if plain else re.findall(r'%([\w.\-]+)', inside)
  return _Op(name, kind, type_, operands, rest[closed:], root)


def _balanced(text: str, start: int) -> int:
  """Returns the place after the parenthesis that closes the one at `start`."""
  depth = 0
  for place in range(start, len(text)):
    depth += (text[place] == '(') - (text[place] == ')')
    if not depth:
      return place + 1
  raise ValueError(f'not the text of a compiled program: {text[:80]!r}')


def sizes(type_: str, everywhere: bool = False) -> Iterator[float]:
  """Yields the bytes of each array of a type, 0 if it is not in the main memory."""
  for dtype, shape, layout in _ARRAY.findall(type_):
    bits = re.search(r'\d+', dtype)
    width = 1.0 if dtype == 'pred' else int(bits[0]) / 8 if bits else 0.0
    main = everywhere or not re.search(r'S\([1-9]', layout)
    yield main * width * math.prod(map(int, filter(None, shape.split(','))))


def _moved(op: _Op, types: dict[str, str], computations: dict[str, list[_Op]]) -> float:
  """Returns the bytes that an operation reads from and writes to the main memory."""
  if op.kind in _FREE or op.kind.endswith('-done'):
    return 0.0
  size = lambda name: sum(sizes(types.get(name, '')))
  if op.kind in ('dynamic-slice', 'slice', 'gather'):
    return 2 * sum(sizes(op.type))
  if op.kind == 'dynamic-update-slice':
    return 2 * size(op.operands[1])
  called = _CALLED.search(op.rest) if op.kind == 'fusion' else None
  if not called:
    return sum(sizes(op.type)) + sum(map(size, op.operands))
  inner = computations[called[1]]
  inner_types = {x.name: x.type for x in inner}
  total = 0.0
  for x in inner:
    if x.kind == 'parameter' and (whole := size(op.operands[int(x.operands[0])])):
      total += _read(x.name, inner, inner_types, whole)
  root = next((x for x in inner if x.root), None)
  written = sum(sizes(op.type))
  while root is not None and root.kind in ('bitcast', 'copy', 'convert'):
    root = next((x for x in inner if x.name == root.operands[0]), None)
  if root is not None and root.kind == 'dynamic-update-slice':
    part = sum(sizes(inner_types.get(root.operands[1], ''), everywhere=True))
    written = min(written, part)
  return total + written


def _read(name: str, inner: list[_Op], types: dict[str, str], whole: float) -> float:
  """Returns the bytes that a fusion reads of one of its parameters."""
  total = 0.0
  for op in inner:
    if name not in op.operands:
      continue
    if op.kind in ('dynamic-slice', 'slice', 'gather'):
      total += sum(sizes(op.type, everywhere=True))
    elif op.kind == 'dynamic-update-slice' and op.operands[0] == name:
      continue  # written in place
    elif op.kind == 'bitcast':
      total += _read(op.name, inner, types, whole)
    else:
      return whole
  return min(total, whole)


def _collective(op: _Op) -> str:
  """Returns which of COLLECTIVES an operation is, '' if none."""
  if op.kind == 'fusion' and 'all-reduce-scatter' in op.rest:
    return 'reduce-scatter'
  kind = op.kind.removesuffix('-start')
  return kind if kind in COLLECTIVES else ''


def _result(op: _Op) -> float:
  """Returns the bytes of the result of a collective."""
  each = list(sizes(op.type, everywhere=True))
  return max(each, default=0.0) if op.kind.endswith('-start') else sum(each)


def _add(
    one: dict[str, tuple[float, float]], other: dict[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
  both = dict(one)
  for kind, (number, size) in other.items():
    n, b = both.get(kind, (0.0, 0.0))
    both[kind] = (n + number, b + size)
  return both
