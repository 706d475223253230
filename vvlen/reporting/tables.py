"""Tables: records, which are written as CSV, and columns that show them in Markdown.

Runs without JAX.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import csv
import io
import itertools
import math
import textwrap
from typing import Any, NamedTuple

from etils import epath

from vvlen.reporting import results
from vvlen.reporting.endpoints import Comparison
from vvlen.reporting.numbers import (
    alike,
    name_seeds,
    number,
    p_value,
    with_interval,
)
from vvlen.statistics import PairedTest

_DIFFERENCE = ('difference', 'ci_low', 'ci_high')

_LITTLE = 12  # characters; a text with less room is cut, not wrapped
_NAME = 24  # letters of the first column that are never cut

Record = Mapping[str, Any]
CellText = Callable[[Record], str]  # what Markdown shows of a record in one column


class Table(NamedTuple):
  """Records, and how Markdown shows them."""

  name: str  # of the files
  title: str
  columns: Mapping[str, CellText]  # header -> cell
  records: Sequence[Record]  # one per row, of plain values, as in the CSV
  note: str  # what a reader needs at once: at most two lines, then seeds left out
  short: Sequence[str] = ()  # the columns for a terminal; () for all
  more: str = ''  # what else is known of the columns and tests, shown folded


MORE = 'More about this table'  # above `Table.more`

# Characters that text in a CSV file may have -> how they are written there.
_ASCII = str.maketrans({
    '−': '-', '–': '-', '→': '->', '×': 'x', '÷': '/', '·': '*', '±': '+-', '≤': '<=',
    '≥': '>=', '²': '^2', '½': '1/2', '√': 'sqrt ', '‖': '||', '∞': 'infinity',
    '∝': 'prop. to', '₀': '_0', '₂': '_2',
    'α': 'alpha', 'β': 'beta', 'ε': 'epsilon', 'Γ': 'Gamma', 'Δ': 'Delta', 'Σ': 'Sum',
    '…': '...',
})

# Characters that LaTeX has no letter for, or that it would take for commands.
_LATEX = {
    '\\': r'\textbackslash{}', '&': r'\&', '%': r'\%', '_': r'\_', '#': r'\#',
    '$': r'\$', '{': r'\{', '}': r'\}', '~': r'\textasciitilde{}', '^': r'\^{}',
    '−': '$-$', '±': r'$\pm$', '×': r'$\times$', '÷': r'$\div$', '·': r'$\cdot$',
    '→': r'$\to$', '≤': r'$\le$', '<': '$<$', '>': '$>$', '√': r'$\surd$', '²': '$^2$',
    '∝': r'$\propto$', '₀': '$_0$', '₂': '$_2$',
    '‖': r'$\Vert$', '≥': r'$\ge$', '½': r'$\frac{1}{2}$', '∞': r'$\infty$',
    'α': r'$\alpha$', 'β': r'$\beta$', 'ε': r'$\epsilon$', 'Γ': r'$\Gamma$',
    'Δ': r'$\Delta$', 'Σ': r'$\Sigma$', '–': '--', '…': r'\ldots{}',
}


def write_tables(folder: epath.Path, tables: Iterable[Table]) -> None:
  """Writes tables/NAME.md, .csv and .tex of each table."""
  for table in tables:
    for kind, text in (
        ('md', markdown(table)), ('csv', to_csv(table)), ('tex', latex(table))):
      results.write_text(folder / 'tables' / f'{table.name}.{kind}', text)


def cells(table: Table, names: Iterable[str] | None = None) -> list[list[str]]:
  """Returns the cells of each record, of the columns `names`, or of all."""
  shown = [table.columns[name] for name in (table.columns if names is None else names)]
  return [[cell(record) for cell in shown] for record in table.records]


def latex(table: Table) -> str:
  """Returns the cells of a table as a LaTeX tabular, which needs booktabs."""
  escape = lambda text: ''.join(_LATEX.get(c, c) for c in text)
  row = lambda texts: ' & '.join(map(escape, texts)) + r' \\'
  body = map(row, cells(table))
  kinds = 'l' + 'r' * (len(table.columns) - 1)
  return '\n'.join([
      f'% {escape(table.title)}', rf'\begin{{tabular}}{{{kinds}}}', r'\toprule',
      row(table.columns), r'\midrule', *body, r'\bottomrule', r'\end{tabular}', ''])


def markdown(table: Table) -> str:
  """Returns a table as aligned Markdown with its title, note, and the rest folded."""
  more = (f'\n<details><summary>{MORE}</summary>\n\n{table.more}\n\n</details>\n'
          if table.more else '')
  return f'**{table.title}**\n\n{grid(table)}\n\n{table.note}\n{more}'


def grid(table: Table, width: int | None = None) -> str:
  """Returns the cells of a table as aligned Markdown.

  Args:
    table: the table.
    width: the largest number of characters of a line; None: no limit. With a limit, a
      table with `short` shows only these columns, and wraps the last of them into
      further lines. Other tables drop columns on the right that do not fit, but never
      the first one. Where columns do not fit, a long first one is cut to a third.
  """
  names = (width is not None and table.short) or [*table.columns]
  lines_of = [[*names], *cells(table, names)]
  widest = lambda: [max(map(len, column)) for column in zip(*lines_of, strict=True)]
  widths = widest()
  if width is not None and sum(widths) + 3 * len(widths) + 1 > width:
    room = max(width // 3, _NAME)
    lines_of = [[_cut(first, room), *rest] for first, *rest in lines_of]
    widths = widest()
  if width is not None and table.short:
    room = max(width - sum(widths[:-1]) - 3 * len(widths) - 1, 1)
    parts = [_wrapped(texts[-1], room) for texts in lines_of[1:]]
    lines_of = [
        [*names[:-1], _cut(names[-1], room)],
        *([*(texts[:-1] if number == 0 else [''] * len(texts[:-1])), part]
          for texts, own in zip(lines_of[1:], parts, strict=True)
          for number, part in enumerate(own))]
    widths[-1] = min(widths[-1], room)
  columns = [*zip(*lines_of, strict=True)]
  ends = itertools.accumulate((w + 3 for w in widths), initial=1)
  fit = sum(width is None or end <= width for end in [*ends][1:])
  columns, widths = columns[:max(fit, 1)], widths[:max(fit, 1)]
  header, *lines = [
      '| ' + ' | '.join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + ' |'
      for row in zip(*columns, strict=True)
  ]
  rule = '|' + '|'.join('-' * (w + 2) for w in widths) + '|'
  return '\n'.join([header, rule, *lines])


def _wrapped(text: str, room: int) -> list[str]:
  """Wraps a text into lines of `room` characters; if that is little, cuts it to one."""
  if room < _LITTLE:
    return [_cut(text, room)]
  return textwrap.wrap(text, room) or ['']


def _cut(text: str, room: int) -> str:
  return text if len(text) <= room else f'{text[:room - 1]}…'


def to_csv(table: Table) -> str:
  r"""Returns the records of a table in ASCII, numbers with 12 significant digits.

  Sums differ between processors in the digits after these, which would change the file.
  In text, '−' becomes '-', '→' '->', 'α' 'alpha', and so on; a character without such
  a spelling becomes its escape in Python, such as '\xe4'.
  """
  buffer = io.StringIO()
  fields = list(table.records[0]) if table.records else []
  writer = csv.DictWriter(buffer, fields, lineterminator='\n')
  writer.writeheader()
  writer.writerows(
      {name: _rounded(x) for name, x in record.items()} for record in table.records)
  text = buffer.getvalue().translate(_ASCII)
  return text.encode('ascii', 'backslashreplace').decode()


def _rounded(value: Any) -> Any:
  """Returns a float as text of 12 significant digits, without −0; else the value."""
  return format(value + 0.0, '.12g') if isinstance(value, float) else value


def difference(test: PairedTest | None, prefix: str = '') -> dict[str, float]:
  """Returns what `difference_cell` shows: a difference and its interval, or nan."""
  values = (test.mean_difference, test.ci_low, test.ci_high) if test else 3 * [math.nan]
  return dict(zip([prefix + name for name in _DIFFERENCE], values, strict=True))


def p_of(test: PairedTest | None) -> float:
  """Returns the p of a test, nan if there is none."""
  return math.nan if test is None else test.p


def difference_cell(
    form: str, prefix: str = '', interval_if: Callable[[Record], Any] | None = None
) -> CellText:
  """Returns the cell of a difference and, where there is one, its interval.

  Args:
    form: of the numbers, such as '.1f'.
    prefix: of the fields, as in `difference`.
    interval_if: the interval is shown only for records of which this is true, such as
      those of models that have learned; None: for all.
  """
  mean, low, high = (prefix + name for name in _DIFFERENCE)
  form = f'+{form}'
  whole = lambda record: with_interval(record[mean], record[low], record[high], form)
  if interval_if is None:
    return whole
  return cell_if(interval_if, whole, lambda record: number(record[mean], form))


def interval_cell(name: str, form: str) -> CellText:
  """Returns the cell of `name` and, if it has one, its interval, _low to _high."""
  mean, low, high = (name + end for end in results.ENDS)
  return lambda record: with_interval(record[mean], record[low], record[high], form)


def interval_fields(name: str, values: Iterable[Any]) -> dict[str, float]:
  """Returns what `interval_cell` shows: a number and both ends of its interval."""
  return {name + end: float(x) for end, x in zip(results.ENDS, values, strict=True)}


def cell_if(
    holds: Callable[[Record], Any], cell: CellText, otherwise: CellText | str = ''
) -> CellText:
  """Returns `cell` for records of which `holds` is true, else `otherwise`."""
  other = otherwise if callable(otherwise) else lambda _: otherwise
  return lambda record: cell(record) if holds(record) else other(record)


def blank_without(field: str, cell: CellText) -> CellText:
  """Returns the cell, but '' for a record whose `field` is nan."""
  return cell_if(lambda record: not math.isnan(record[field]), cell)


def number_cell(name: str, form: str) -> CellText:
  """Returns the cell of a number, '' where it is nan."""
  return blank_without(name, lambda record: number(record[name], form))


def p_cell(name: str) -> CellText:
  """Returns the cell of a p-value, '' where it is nan."""
  return blank_without(name, lambda record: p_value(record[name]))


def pair_cell(first: str, second: str, form: str, between: str = '→') -> CellText:
  """Returns the cell of two numbers, such as '0.2 → 0.3'; see `alike` for '.3g'."""

  def cell(record: Record) -> str:
    values = record[first], record[second]
    if form.endswith('g'):
      return f' {between} '.join(alike(values, int(form[-2])))
    return f' {between} '.join(number(x, form) for x in values)

  return cell


def left_out(comparisons: Iterable[Comparison]) -> str:
  """Returns a sentence that names the seeds left out of tests, '' if there are none."""
  out = sorted({s for c in comparisons for s in c.left_out})
  why = 'not there or not finite in one of the arms'
  return f' Left out, {why}: {name_seeds(out)}.' if out else ''


