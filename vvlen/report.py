"""Tables of length generalization, from results.csv alone. Runs without JAX.

Tables 1 and 3 of arXiv 2504.02827, the primary endpoint, and a table of training.
Each is written as Markdown to be read and as CSV to be used.
"""

from collections.abc import Iterable, Sequence
import csv
import io
import json
import math
from typing import NamedTuple

from etils import epath

from vvlen import figures, results
from vvlen.comparison import compare, Comparison, not_converged
from vvlen.plots import ADAPTATIONS, ARMS
from vvlen.statistics import PairedTest

NAMES = {arm: name for arm, (name, _, _) in ARMS.items()}


class Table(NamedTuple):
  """A table, its cells already text."""

  name: str  # of the files
  title: str
  header: tuple[str, ...]
  rows: Sequence[tuple[str, ...]]
  note: str


def write(workdir: epath.PathLike) -> tuple[str, list[epath.Path]]:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with results.csv; config.json, metrics.jsonl and samples/ are
      used where they are there.

  Returns:
    The main tables as Markdown, and the paths written.

  Raises:
    ValueError: if there is no results.csv, or it is damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_rows(folder / 'results.csv')
  if not rows:
    raise ValueError(f'{folder} has no results.csv with results')
  index = results.index(rows)
  trained_up_to = _trained_up_to(folder / 'config.json')
  tables = make_tables(index, trained_up_to)
  paths = []
  for table in tables:
    path = folder / 'tables' / f'{table.name}.md'
    results.write_text(path, markdown(table))
    results.write_text(path.with_suffix('.csv'), _csv(table))
    paths += [path, path.with_suffix('.csv')]
  paths += figures.write(
      folder / 'figures',
      index,
      trained_up_to=trained_up_to,
      curves=results.read_curves(folder / 'metrics.jsonl'),
      samples=results.read_samples(folder / 'samples'),
  )
  main = [t for t in tables if t.name in ('table_1', 'primary_endpoint')]
  return '\n'.join(markdown(table) for table in main), paths


def _trained_up_to(path: epath.Path) -> int:
  """Returns the longest training length; 16 where no config.json tells."""
  if not path.exists():
    return 16
  try:
    return json.loads(path.read_text())['config']['train']['max_length']
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'{path} is not the config.json of a run') from error


def make_tables(index: results.Index, trained_up_to: int = 16) -> list[Table]:
  """Makes all tables that the arms at hand allow.

  Args:
    index: from `vvlen.results.index`.
    trained_up_to: the longest training length.

  Returns:
    Tables 1 and 3, `primary_endpoint` and `training`.
  """
  arms = {arm for arm, _, _ in index}

  def pair(treated, control, suffix=''):
    names = treated + suffix, control + suffix
    if not arms.issuperset(names):
      return None
    return compare(index, *names, trained_up_to=trained_up_to)

  against_baseline = [
      c for s in ADAPTATIONS if (c := pair('layer_norm', 'none', s)) is not None
  ]
  standardized = pair('standardize', 'none')
  between = pair('layer_norm', 'standardize')
  tables = []
  if against_baseline:
    tables.append(_table_1(against_baseline, trained_up_to))
  if against_baseline and standardized and between:
    tables.append(_table_3(against_baseline[0], standardized, between))
  primary = [c for c in (*against_baseline, standardized, between) if c]
  if primary:
    tables.append(_primary_endpoint(primary, trained_up_to))
  tables.append(_training(index))
  return tables


def _table_1(comparisons: Sequence[Comparison], trained_up_to: int) -> Table:
  header = ('adaptation', 'N', 'Baseline', '+ LN', 'difference [95 %]', 'effect', 'p',
            'p Holm', 'smallest detectable')
  rows = []
  for c in comparisons:
    adaptation = c.control.partition('+')[2] or 'none'
    for i, length in enumerate(c.lengths):
      test = c.by_length[i]
      rows.append((
          adaptation, str(length), _number(c.control_mean[i], '.1f'),
          _number(c.treated_mean[i], '.1f'), _difference(test),
          _number(test and test.effect_size, '+.2f'), _p(test and test.p),
          _p(c.holm_p[i]), _number(c.detectable_by_length[i], '.1f'),
      ))
  note = (
      f'Accuracy in %, mean over {_pairs(comparisons)}; trained on at most '
      f'{trained_up_to} items. Differences in points with 95 % intervals; effect: mean '
      'over standard deviation of the paired differences; p: paired two-sided t-test; '
      'p Holm: corrected over the lengths of its block; smallest detectable: as in '
      'the table of the primary endpoint, uncorrected. undefined: all differences '
      f'are equal, or fewer than two pairs.{_left_out(comparisons)}'
  )
  title = 'Table 1. Accuracy by length, with and without LayerNorm after attention'
  return Table('table_1', title, header, rows, note)


def _table_3(
    layer_norm: Comparison, standardized: Comparison, between: Comparison
) -> Table:
  header = ('N', 'Baseline', 'gain of std.', '% of Baseline', 'gain of LN',
            '% of Baseline', 'LN − std. [95 %]', 'effect', 'p', 'p Holm',
            'smallest detectable')
  rows = []
  for i, length in enumerate(layer_norm.lengths):
    base = layer_norm.control_mean[i]
    row = [str(length), f'{base:.1f}']
    for comparison in (standardized, layer_norm):
      gain = comparison.treated_mean[i] - comparison.control_mean[i]
      share = 100 * gain / comparison.control_mean[i]
      row += [_number(gain, '+.1f'), _number(share, '+.1f')]
    test = between.by_length[i]
    row += [
        _difference(test), _number(test and test.effect_size, '+.2f'),
        _p(test and test.p), _p(between.holm_p[i]),
        _number(between.detectable_by_length[i], '.1f'),
    ]
    rows.append(tuple(row))
  note = (
      'Gain in accuracy over the Baseline in points and in % of the Baseline; mean '
      f'over {_pairs([layer_norm, standardized, between])}. p: LN against std., '
      f'as in Table 1.{_left_out([layer_norm, standardized, between])}'
  )
  title = 'Table 3. Gain of standardization and of LayerNorm over the Baseline'
  return Table('table_3', title, header, rows, note)


def _primary_endpoint(comparisons: Sequence[Comparison], trained_up_to: int) -> Table:
  header = ('comparison', 'control', 'treated', 'difference [95 %]', 'effect', 't',
            'p', 'pairs', 'smallest detectable', 'at 5 %')
  rows = []
  for c in comparisons:
    test = c.primary
    treated, control = c.primary_means
    rows.append((
        f'{_name(c.treated)} − {_name(c.control)}', _number(control, '.2f'),
        _number(treated, '.2f'), _difference(test, digits=2),
        _number(test and test.effect_size, '+.2f'), _number(test and test.t, '+.2f'),
        _p(test and test.p), str(test.num_pairs if test else 0),
        _number(c.detectable, '.2f'), _verdict(test),
    ))
  beyond = [n for n in comparisons[0].lengths if n > trained_up_to]
  note = (
      f'Mean accuracy over N = {beyond[0]} to {beyond[-1]}, in %, paired over seeds. '
      'LN − Baseline is the primary endpoint, fixed before the run; all else is '
      'secondary and uncorrected. Smallest detectable: the difference, in points, that '
      'this number of pairs with this spread finds with a power of 80 % at the 5 % '
      f'level.{_left_out(comparisons)}'
  )
  title = 'Primary endpoint. Mean accuracy beyond the training lengths'
  return Table('primary_endpoint', title, header, rows, note)


def _training(index: results.Index) -> Table:
  rows = []
  for arm, name in NAMES.items():
    accuracy = index.get((arm, 'training_accuracy', None))
    loss = index.get((arm, 'training_loss', None))
    if not accuracy or not loss:
      continue
    values = [x for x in accuracy.values() if math.isfinite(x)]
    broken = [s for s, x in loss.items() if not math.isfinite(x)]
    behind = [s for s in not_converged(accuracy) if s not in broken]
    rows.append((
        name, str(len(accuracy)),
        _number(_finite_mean(loss.values()), '.4f'),
        _number(100 * _finite_mean(accuracy.values()), '.2f'),
        _number(100 * min(values, default=math.nan), '.2f'),
        _seeds(behind), _seeds(broken),
    ))
  header = ('arm', 'seeds', 'loss', 'accuracy', 'lowest accuracy',
            'seeds not converged', 'seeds not finite')
  note = (
      'Over the last tenth of training, on batches not yet trained on: mean loss in '
      'nats, accuracy in %. Not converged: more than 5 points below the median of the '
      'arm; these stay in the tests. Not finite: left out of the tests.'
  )
  return Table('training', 'Training', header, rows, note)


def markdown(table: Table) -> str:
  """Returns a table as aligned Markdown with its title and note."""
  cells = [table.header, *table.rows]
  widths = [max(len(row[i]) for row in cells) for i in range(len(table.header))]
  lines = [
      '| ' + ' | '.join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + ' |'
      for row in cells
  ]
  rule = '|' + '|'.join('-' * (w + 2) for w in widths) + '|'
  body = '\n'.join([lines[0], rule, *lines[1:]])
  return f'**{table.title}**\n\n{body}\n\n{table.note}\n'


def _csv(table: Table) -> str:
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator='\n')
  writer.writerows([table.header, *table.rows])
  return buffer.getvalue()


def _name(arm: str) -> str:
  base, plus, adaptation = arm.partition('+')
  return f'{NAMES[base]}, {adaptation}' if plus else NAMES[base]


def _pairs(comparisons: Sequence[Comparison]) -> str:
  counts = sorted({t.num_pairs for c in comparisons for t in c.by_length if t})
  return f'{" or ".join(map(str, counts)) or "fewer than two"} seeds'


def _left_out(comparisons: Sequence[Comparison]) -> str:
  seeds = sorted({s for c in comparisons for s in c.left_out})
  return f' Left out, not finite in one of the arms: {_seeds(seeds)}.' if seeds else ''


def _seeds(seeds: Sequence[int]) -> str:
  return ', '.join(map(str, seeds)) or 'none'


def _difference(test: PairedTest | None, digits: int = 1) -> str:
  if test is None:
    return 'undefined'
  mean = f'{test.mean_difference:+.{digits}f}'
  if math.isnan(test.ci_low):
    return mean
  return f'{mean} [{test.ci_low:+.{digits}f}, {test.ci_high:+.{digits}f}]'


def _finite_mean(values: Iterable[float]) -> float:
  finite = [x for x in values if math.isfinite(x)]
  return sum(finite) / len(finite) if finite else math.nan


def _verdict(test: PairedTest | None) -> str:
  if test is None or math.isnan(test.p):
    return 'undefined'
  if test.p >= 0.05:
    return 'no difference found'
  return 'treated higher' if test.mean_difference > 0 else 'treated lower'


def _number(value: float | None, form: str) -> str:
  return 'undefined' if value is None or math.isnan(value) else format(value, form)


def _p(value: float | None) -> str:
  if value is None or math.isnan(value):
    return 'undefined'
  return '< .001' if value < 0.001 else f'{value:.3f}'.removeprefix('0')
