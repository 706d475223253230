"""Writes the tables and figures of counting. Runs without JAX.

The outcome of a model is its mean squared error at each length. Errors span many powers
of ten, so models are compared by their logarithm: the endpoint is the mean of log10 of
the error over all lengths beyond training, treated minus control, paired over seeds,
and is shown as a factor. Tests are corrected by Holm over the lines of a figure.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from etils import epath
import numpy as np

from experiments.counting import figures
from experiments.counting.answer import (
  answer,
  best_constant,
  has_learned,
  learned,
  short,
  summary,
)
from experiments.counting.cells import (
  all_cells,
  FigureSetups,
  read_figures,
  Setup,
)
from experiments.counting.figures import FLOOR
from experiments.counting.heads_table import heads_table
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.numbers import counted, name_seeds, number, p_value
from vvlen.reporting.page import missing_seeds, Report, unfinished
from vvlen.reporting.results import by_seed, Index
from vvlen.reporting.tables import Table, write_tables
from vvlen.statistics import (
  corrected,
  mean_interval,
  paired_t_test,
  PairedTest,
)

_ABOUT = ('Transformers read l bits and give their mean, their number (length) or '
          'their sum; lengths beyond training are tested. RoPE, ALiBi, learned and '
          'others are encodings of positions; 1/√y and the like are targets, from '
          'which the answer is computed back. Paper: long-short alignment, arXiv '
          '2506.11769.')
_SHOWN = (10, 20, 35, 50)
_RIGHT = 0.95

# experiment -> its rows, by (arm, metric, length)
Indices = dict[str, Index]


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of a run of counting.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='a run of counting') as stored:
    config = dict(stored['config'])
    planned = read_figures(config['figures'])
    asked, longest = int(config['num_seeds']), int(config['evaluate']['max_length'])
  cells = all_cells(planned)
  rows = results.read_rows(folder / 'results.csv')
  known = {(cell.experiment, cell.arm) for cell in cells}
  if odd := [row for row in rows if (row.experiment, row.arm) not in known]:
    raise ValueError(f'{folder}/results.csv has a row of another run: {odd[0].key}')
  of_heads = [row for row in rows if row.head is not None]
  indices: Indices = {
      cell.experiment: results.index(
          r for r in rows if r.experiment == cell.experiment and r.head is None)
      for cell in cells
  }
  have = {cell: _seeds(indices, cell) for cell in cells}
  if not any(have.values()):
    raise ValueError(f'{folder} has no results.csv with results')
  shown = {
      name: figure._replace(cells=tuple(c for c in figure.cells if have[c]))
      for name, figure in planned.items()
  }
  shown = _with_something_of_their_own(shown)
  tables = [table(name, figure, indices, longest) for name, figure in shown.items()]
  with plots.style():
    words = (f'{counted(config["model"]["num_layers"], "layer")} of width '
             f'{config["model"]["width"]}, '
             f'{counted(config["train"]["num_steps"], "step")}')
    drawn = {name: figures.errors(figure, indices, longest, words)
             for name, figure in shown.items()}
    paths = plots.save(folder / 'figures', drawn)
  # Figures with something to compare first.
  in_turn = sorted(zip(tables, shown.values(), strict=True),
                   key=lambda pair: len(pair[1].cells) == 1)
  of_each = [(made.title, made.records, _control(figure)) for made, figure in in_turn]
  found = [answer(title, records, longest, control)
           for title, records, control in of_each]
  # The second sentence is whether they learned, after that on all figures or the only.
  found[:0] = summary([(title.partition('.')[0], records, control)
                       for title, records, control in of_each])
  found.insert(1, learned([r for made in tables for r in made.records]))
  missing = missing_seeds({f'{cell.experiment}/{cell.arm}': len(seeds)
                           for cell, seeds in have.items()}, asked)
  more = [heads] if (heads := heads_table(of_heads, cells)) else []
  write_tables(folder, [*tables, *more])
  return Report(
      'Which positions and targets let transformers count beyond the training lengths?',
      found, [*tables, *more], paths, len(tables),
      unfinished(missing), _ABOUT)


def _with_something_of_their_own(
    shown: Mapping[str, FigureSetups]
) -> dict[str, FigureSetups]:
  """Drops figures without lines, and of one line that another figure has too."""
  kept = {name: figure for name, figure in shown.items() if figure.cells}
  for name, figure in list(kept.items()):
    others = [cell for other in kept if other != name for cell in kept[other].cells]
    if len(figure.cells) == 1 and figure.cells[0] in others:
      del kept[name]
  return kept


def table(
    name: str, figure: FigureSetups, indices: Indices, longest: int
) -> Table:
  """Makes the table of a figure, a row for each of its lines.

  Args:
    name: of the figure.
    figure: with cells that all have results.
    indices: of all experiments.
    longest: the longest test length.
  """
  control = figure.control
  tests = [
      None if control in (None, cell) else compare(indices, cell, control)
      for cell in figure.cells
  ]
  p_holm, detectable = corrected(tests)
  lengths = [n for n in _SHOWN if n < longest] + [longest]
  counted = figure.cells[0].task != 'mean'
  records = [
      _record(indices, cell, lengths, counted, test, p, least)
      for cell, test, p, least in zip(
          figure.cells, tests, p_holm, detectable, strict=True)
  ]
  columns: dict[str, Any] = {'model': lambda r: r['model']}
  for n in lengths:
    columns[f'l = {n}'] = _error_cell(f'error_{n}')
  columns[f'median, l = {longest}'] = lambda r: short(r['median_error'])
  if counted:
    columns['right up to'] = lambda r: str(r['right_up_to'])
  for cell, record in zip(figure.cells, records, strict=True):
    record['model'] = _label(figure, cell)
  if control is not None:
    # Models that have not learned, or whose control has not, have no test to show.
    lost = {r['model'] for r in records if not has_learned(r)}
    lost = lost if _label(figure, control) not in lost else {
        r['model'] for r in records}
    columns |= {
        'factor beyond training [95 %]': lambda r: (
            short(r['factor']) if r['model'] in lost and math.isfinite(r['factor'])
            else _factor_cell(r)),
        'p Holm': lambda r: '' if r['model'] == _label(figure, control) else (
            'not learned' if r['model'] in lost else p_value(r['p_holm'])),
        'smallest detectable': lambda r: '' if r['model'] in lost or math.isnan(
            r['smallest_detectable']) else f'×/÷ {short(r["smallest_detectable"])}',
    }
  return Table(name, _title(name, figure), columns, records,
               _note(figure, indices, longest), more=_more(figure, counted, longest))


def compare(indices: Indices, treated: Setup, control: Setup) -> PairedTest | None:
  """Tests log10 of the error beyond training, treated − control.

  Returns:
    The test; None if fewer than two seeds have finite errors in both cells.
  """
  one, other = (endpoint(indices, cell) for cell in (treated, control))
  seeds = [s for s in one if s in other and math.isfinite(one[s] + other[s])]
  if len(seeds) < 2:
    return None
  return paired_t_test([one[s] for s in seeds], [other[s] for s in seeds])


def endpoint(indices: Indices, cell: Setup) -> dict[int, float]:
  """Returns {seed: mean of log10 of the error over lengths beyond training}."""
  index = indices[cell.experiment]
  lengths, _ = plots.values(index, cell.arm, 'squared_error')
  beyond = [n for n in lengths if n > cell.train_length]
  errors = by_seed(index, cell.arm, 'squared_error', beyond)
  return {seed: float(np.log10(np.maximum(x, FLOOR)).mean())
          for seed, x in errors.items()}


def _broken(indices: Indices, cell: Setup) -> list[int]:
  """Returns the seeds whose error is not finite at some length."""
  index = indices[cell.experiment]
  lengths, _ = plots.values(index, cell.arm, 'squared_error')
  errors = by_seed(index, cell.arm, 'squared_error', lengths)
  return [seed for seed, x in errors.items() if not np.isfinite(x).all()]


def _seeds(indices: Indices, cell: Setup) -> set[int]:
  index = indices[cell.experiment]
  return {*index.get((cell.arm, 'squared_error', 1), ())}


def _record(
    indices: Indices, cell: Setup, lengths: Sequence[int], counted: bool,
    test: PairedTest | None, p_holm: float, detectable: float,
) -> dict[str, Any]:
  index = indices[cell.experiment]
  values = lambda metric, n: np.array([*index[cell.arm, metric, n].values()])
  record: dict[str, Any] = {'model': '', 'seeds': len(_seeds(indices, cell))}
  for n in lengths:
    errors = np.log10(np.maximum(values('squared_error', n), FLOOR))
    for name, value in zip(results.ENDS, mean_interval(errors), strict=True):
      record[f'error_{n}{name}'] = 10 ** float(value)
  median = values('median_squared_error', lengths[-1])
  learned = np.log10(np.maximum(values('squared_error', cell.train_length), FLOOR))
  record['training_error'] = 10 ** float(mean_interval(learned)[0])
  record['constant_error'] = best_constant(
      cell.task, cell.counts, cell.train_length)
  record['median_error'] = 10 ** float(
      mean_interval(np.log10(np.maximum(median, FLOOR)))[0])
  if counted:
    record['right_up_to'] = _right_up_to(index, cell.arm)
  nan = math.nan
  power = lambda x: float(10**x)
  record |= {
      'factor': power(test.mean_difference) if test else nan,
      'factor_low': power(test.ci_low) if test else nan,
      'factor_high': power(test.ci_high) if test else nan,
      'p': test.p if test else nan, 'p_holm': float(p_holm),
      'smallest_detectable': power(detectable),
  }
  return record


def _right_up_to(index: Index, arm: str) -> int:
  """Returns the last length up to which 95 % of answers round to the target."""
  lengths, _ = plots.values(index, arm, 'accuracy')
  last = 0
  for n in lengths:
    share, _, _ = mean_interval([*index[arm, 'accuracy', n].values()])
    if not share >= _RIGHT:
      break
    last = n
  return last


def _control(figure: FigureSetups) -> str | None:
  """Returns the label of the model that others are tested against, if any."""
  return None if figure.control is None else _label(figure, figure.control)


def _label(figure: FigureSetups, cell: Setup) -> str:
  return figures.label(figure.varied, cell)


def _title(name: str, figure: FigureSetups) -> str:
  words = name.removeprefix('figure_').replace('_', ', ')
  return f'Figure {words}. Mean squared error of the {figures.what(figure)}'


def _note(figure: FigureSetups, indices: Indices, longest: int) -> str:
  seeds = sorted({len(_seeds(indices, cell)) for cell in figure.cells})
  trained = sorted({cell.train_length for cell in figure.cells})
  upto = '' if len(trained) > 1 else f', trained on 1 to {trained[0]} bits'
  parts = [f'Geometric mean over {" or ".join(map(str, seeds))} seeds [95 %]{upto}.']
  if figure.control is not None:
    parts.append(
        f'Factor: the error divided by that of {_label(figure, figure.control)}; p: '
        'paired two-sided t-test, corrected over the lines.')
  parts += _trivial(figure, longest)
  broken = {_label(figure, cell): _broken(indices, cell) for cell in figure.cells}
  parts += [f'Not finite, and left out: {cell}, {name_seeds(s)}.'
            for cell, s in broken.items() if s]
  return ' '.join(parts)


def _trivial(figure: FigureSetups, longest: int) -> list[str]:
  """Returns a sentence on the error of the mean without reading any bits."""
  if figure.cells[0].task != 'mean':
    return []
  counts = figure.cells[0].counts
  formula = '1/(4l)' if counts == 'fair' else '1/12 + 1/(6l)'
  error = best_constant('mean', counts, longest)
  return [f'To answer 1/2 always is an error of {formula}, {short(error)} at '
          f'{longest}.']


def _more(figure: FigureSetups, counted: bool, longest: int) -> str:
  parts = ['Median: over strings of one length.']
  if counted:
    parts.append('Right up to: the last length up to which 95 % of answers round to '
                 'the target.')
  if any(cell.positions == 'learned' for cell in figure.cells):
    parts.append('Learned positions beyond the training lengths keep their initial '
                 'values.')
  if figure.control is not None:
    parts.append(
        'Factor: geometric mean over all lengths beyond training; p is of its '
        'logarithm, corrected by Holm over the lines of the table. Smallest '
        'detectable: the factor that this test finds four times in five.'
    )
  return ' '.join([*parts, *_published(figure, longest)])


def _published(figure: FigureSetups, longest: int) -> list[str]:
  """Returns sentences on the paper's values, which are read off its figures."""
  parts, (mean, (at, _)) = [], figures.PUBLISHED
  if mean in figure.cells and longest >= at:
    parts.append('The paper: about 1e-5 at 50 without positions.')
  if mean._replace(task='length', reparameterization='inverse_sqrt') in figure.cells:
    parts.append('The paper: 1/√y is nearly perfect up to 35.')
  return parts


def _error_cell(field: str):
  def cell(record):
    ends = [record[f'{field}{end}'] for end in results.ENDS]
    if math.isnan(ends[1]):
      return short(ends[0])
    shown = [*map(short, ends)]
    if len({'e' in text for text in shown}) > 1:
      shown = [number(x, '.1e') for x in ends]  # in one notation
    return f'{shown[0]} [{shown[1]}, {shown[2]}]'
  return cell


def _factor_cell(record: dict[str, Any]) -> str:
  if math.isnan(record['factor']):
    return ''
  ends = [record['factor_low'], record['factor_high']]
  return f'{short(record["factor"])} [{", ".join(map(short, ends))}]'
