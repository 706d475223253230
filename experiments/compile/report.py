"""Rows of compiled programs as a table, JSON and Markdown. Runs without JAX."""

from collections.abc import Callable, Mapping, Sequence
import json
from typing import Any

from etils import epath

from experiments.compile.chips import CHIPS
from vvlen.reporting import results, starts

Row = Mapping[str, Any]

_WORDS = """\
Programs compiled for TPU slices on a machine without TPUs, by
`python -m experiments.compile`. Nothing here was measured on a device.

- Bytes are those of one chip. Arguments and temporaries together must fit its memory.
- FLOPs are counted in the traced program: all turns of loops, half of the blocks of
  attention, and what remat computes again. Bytes a step are an estimate of what the
  compiled program reads from and writes to the main memory, with all turns of loops; a
  floor that they set is an estimate too.
- The floor is the larger of FLOPs / peak and bytes / bandwidth, by published peaks of
  bfloat16 products. It is not a measurement: small products, products of float32 (which
  take several passes) and waiting for other chips take longer.
- Hours are the floor times the number of steps of the experiment, without compiling,
  measuring and saving.
- A dash: not known, because the program does not fit or was not compiled.
- By counting: arguments, the stream that is kept before each layer, and gradients. A
  compiled program would need more: a layer's own temporaries and the logits as well.
- *: some loop has an unknown number of turns, of which one is counted, so the bytes and
  a floor that they set are too low.
"""


def floor(row: Row) -> float:
  """Returns the least seconds of a step, by published peaks."""
  chip = next(chip for chip in CHIPS.values() if chip.name == row['chip'])
  return max(row['flops'] / chip.flops, row.get('bytes', 0) / chip.bandwidth)


def needs(row: Row) -> float | None:
  """Returns the bytes of memory that a chip needs."""
  if 'exceeds' in row:
    return row['memory'] + row['exceeds']
  if 'temporaries' not in row:
    return None
  return sum(row[name] for name in ('arguments', 'temporaries', 'results', 'code'))


def _fits(row: Row) -> str:
  """Returns in words whether a program fits into the memory of a chip."""
  if 'exceeds' in row:
    return f'no, by {_size(row["exceeds"])}'
  if row.get('kept'):
    least = row['arguments'] + row['kept']
    return (f'perhaps: {_size(least)} by counting' if least <= row['memory'] else
            f'no, by {_size(least - row["memory"])} at least')
  return 'not compiled' if 'temporaries' not in row else (
      'yes' if needs(row) <= row['memory'] else 'no')


def _collectives(row: Row) -> str:
  found = row.get('collectives', {})
  return '; '.join(f'{x["number"]:,.3g} {kind} {_size(x["bytes"])}'
                   for kind, x in found.items()) or ('none' if 'bytes' in row else '–')


def _size(value: float | None) -> str:
  if value is None:
    return '–'
  for unit, size in (('GiB', 2**30), ('MiB', 2**20), ('KiB', 2**10)):
    if value >= size:
      return f'{value / size:.1f} {unit}'
  return f'{value:.0f} B'


def _number(value: float | None) -> str:
  return '–' if value is None else f'{value:.3g}'


def _hours(row: Row) -> float:
  return floor(row) * row['steps'] / 3600


Columns = tuple[tuple[str, Callable[[Row], str]], ...]

_NAMES: Columns = (
    ('experiment', lambda row: row['experiment']),
    ('slice', lambda row: f'{row["topology"]} ({row["chips"]} chips)'),
)
MEMORY: Columns = (
    *_NAMES,
    ('fits', _fits),
    ('compiling', lambda row: f'{row["compile_seconds"]:.0f} s'
     if 'compile_seconds' in row else '–'),
    ('arguments', lambda row: _size(row.get('arguments'))),
    ('temporaries', lambda row: _size(row.get('temporaries'))),
    ('code', lambda row: _size(row.get('code'))),
    ('memory', lambda row: _size(row['memory'])),
)
TIME: Columns = (
    *_NAMES,
    ('FLOPs a step', lambda row: _number(row['flops'])),
    ('bytes a step', lambda row: _number(row.get('bytes'))
     + ' *' * bool(row.get('unknown_loops'))),
    ('collectives a step', _collectives),
    ('floor a step', lambda row: f'{_number(floor(row))} s'),
    ('steps', lambda row: f'{row["steps"]:,}'),
    ('hours', lambda row: _number(_hours(row))),
    ('chip-hours', lambda row: _number(_hours(row) * row['chips'])),
)


def table(rows: Sequence[Row], columns: Columns) -> str:
  """Returns columns of rows, such as `MEMORY`, as a Markdown table."""
  lines = [[name for name, _ in columns], ['---'] * len(columns)]
  lines += [[cell(row) for _, cell in columns] for row in rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def lines(row: Row) -> str:
  """Returns a row as lines, for a terminal."""
  found = [f'{name:>20}  {cell(row)}' for name, cell in dict(MEMORY + TIME).items()]
  return '\n'.join([*found, f'{"note":>20}  {row["note"]}'])


def read(folder: epath.Path) -> list[Row]:
  """Returns the rows in compiled.json of a folder, none if there is no such file.

  Raises:
    ValueError: if the file is damaged.
  """
  path = folder / 'compiled.json'
  if not path.exists():
    return []
  try:
    rows = json.loads(path.read_text())
    _tables(rows)  # has all that the tables need
  except (ValueError, KeyError, TypeError, StopIteration) as error:
    raise ValueError(f'{path} is damaged: move it away') from error
  return rows


def _tables(rows: Sequence[Row]) -> str:
  return (f'## Memory of a chip\n\n{table(rows, MEMORY)}\n\n'
          f'## Work and time\n\n{table(rows, TIME)}')


def _made(row: Row) -> str:
  """Returns with which versions a row was made."""
  with_libtpu = f', libtpu {row["libtpu"]}' if row.get('libtpu') else ''
  commit = starts.short_commit(row['commit']) if 'commit' in row else 'not noted'
  return f'jax {row["jax"]}{with_libtpu}, commit {commit}'


def add(folder: epath.Path, rows: Sequence[Row], row: Row) -> None:
  """Writes compiled.json and README.md with a row that is added or replaced.

  Args:
    folder: of both files.
    rows: those of `read`.
    row: the new one.
  """
  same = lambda other: all(row[x] == other[x] for x in ('experiment', 'topology'))
  rows = sorted([*(x for x in rows if not same(x)), row],
                key=lambda x: (x['experiment'], x['chips'], x['topology']))
  results.write_text(folder / 'compiled.json',
                     json.dumps(rows, indent=1, ensure_ascii=False) + '\n')
  notes = '\n'.join(f'- {x["experiment"]}, {x["topology"]}: {x["note"]}. {_made(x)}.'
                    for x in rows)
  results.write_text(
      folder / 'README.md',
      f'# Programs compiled for slices\n\n{_WORDS}\n{_tables(rows)}\n\n'
      f'## What each row is\n\n{notes}\n')
