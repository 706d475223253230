"""The figures of a suite. Runs without JAX."""

from collections.abc import Iterable
import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
import numpy as np

from experiments.long_context import scores
from experiments.long_context.tables import (
    depths_of,
    joined,
    lengths_of,
    name_of,
    Run,
)
from vvlen.evaluation.longbench import BUCKETS
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted

_INTERVALS = '95 % intervals by bootstrap over samples'
_BANDS, _BARS = f'bands: {_INTERVALS}', f'bars: {_INTERVALS}'


def make(run: Run) -> dict[str, Figure]:
  """Returns {name of the file: figure}."""
  if run.suite == 'longbench':
    return {'scores': by_bucket(run)}
  made = {'scores': by_length(run)}
  if depths_of(run):
    made['depth'] = by_depth(run)
  return made


def by_length(run: Run) -> Figure:
  """Draws the score by length, a panel for each task, with chance."""
  found = scores.cells(run.rows, f'score_{run.dialect}')
  chance = scores.cells(run.rows, 'chance')
  tasks = scores.tasks_of(run.rows)
  columns = min(3, len(tasks))
  lines = math.ceil(len(tasks) / columns)
  window = (f' The window of the model is {run.window:,} tokens.' if run.window else
            ' A length of 0 tokens is not drawn.' * any(n == 0 for _, n in found))
  figure = plots.new(
      1.3 + 1.5 * lines, f'Score by length of the {run.length_of}',
      f'Mean score in % by number of tokens of the {run.length_of}, a panel for each '
      'task; '
      f'{_BANDS}; dotted: chance, the score of a guess without the context.{window} '
      f'{joined(run.source, run.prompts)}',
      f'{_samples(run, found.values(), "task and length")}; {_BANDS}')
  grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
  for axes, task in zip(grid.flat, tasks, strict=False):
    lengths = sorted(n for own, n in found if own == task and isinstance(n, int))
    mean, low, high = 100 * np.array([
        scores.interval(found[task, n], run.num_resamples, run.seed)
        for n in lengths]).T
    colour, marker = plots.LOOKS[0]
    axes.plot(lengths, mean, color=colour, marker=marker, label='score')
    axes.fill_between(lengths, low, high, color=colour, alpha=0.18, linewidth=0)
    of_length = np.concatenate([chance[task, n] for n in lengths])
    plots.chance(axes, 100 * float(of_length.mean()))
    plots.doubling_axis(axes, 4 if columns > 1 else 8)
    _mark(axes, run.window, lengths)
    axes.set(title=name_of(task), ylim=(-3, 103))
  _label_panels(run, grid, len(tasks), 'score, %')
  plots.legend(figure, [grid[0, 0]], 3)
  return figure


def by_depth(run: Run) -> Figure:
  """Draws the score by depth and length as a heat map, a panel for each task."""
  metric = f'score_{run.dialect}'
  depths, lengths = depths_of(run), lengths_of(scores.cells(run.rows, metric))
  of_depth = [scores.cells(run.rows, metric, depth) for depth in depths]
  there = {task for found in of_depth for task, _ in found}
  tasks = [task for task in scores.tasks_of(run.rows) if task in there]
  columns = min(2, len(tasks))
  lines = math.ceil(len(tasks) / columns)
  figure = plots.new(
      1.2 + (0.3 + 0.28 * len(depths)) * lines, 'Score by depth and length',
      f'Mean score in % by number of tokens of the {run.length_of} and by where in the '
      f'context what is asked for stands{", a panel for each task" * (columns > 1)}. '
      f'Empty: no sample. {joined(run.source, run.prompts)}',
      _samples(run, [x for found in of_depth for x in found.values()], 'cell'))
  grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
  words = [f'{x}' if run.suite == 'passkey' else f'{x}–{x + 25}' for x in depths]
  for axes, task in zip(grid.flat, tasks, strict=False):
    table = np.array([[100 * found[task, n].mean() if (task, n) in found else np.nan
                       for n in lengths] for found in of_depth])
    image = _heat_map(axes, table)
    axes.set_title(name_of(task))
    axes.set_yticks(range(len(depths)), words)
    axes.set_xticks(range(len(lengths)), [f'{n:,}' for n in lengths])
  _label_panels(run, grid, len(tasks), 'depth, % of the context')
  figure.colorbar(image, ax=[*grid.flat[:len(tasks)]], label='score, %', fraction=0.05)
  return figure


def _label_panels(run: Run, grid: np.ndarray, count: int, label: str) -> None:
  """Labels the outer panels of a grid, of which the first `count` are used."""
  for axes in grid.flat[count:]:
    axes.remove()
  for axes in grid.flat[max(0, count - grid.shape[1]):count]:  # nothing is below
    axes.tick_params(labelbottom=True)
    axes.set_xlabel(f'tokens of the {run.length_of}')
  for axes in grid[:, 0]:
    axes.set_ylabel(label)


def _heat_map(axes: Axes, table: np.ndarray) -> AxesImage:
  """Draws scores in %, [depths, lengths], with their numbers."""
  axes.grid(False)
  image = axes.imshow(table, vmin=0, vmax=100, cmap='viridis', aspect='auto')
  for (row, column), value in np.ndenumerate(table):
    if not np.isnan(value):
      axes.text(column, row, f'{value:.0f}', ha='center', va='center',
                fontsize=plots.SMALLEST, color='white' if value < 60 else 'black')
  return image


def by_bucket(run: Run) -> Figure:
  """Draws LongBench's scores by task, a marker for each bucket of lengths."""
  found = scores.cells(run.rows, f'score_{run.dialect}')
  tasks = scores.tasks_of(run.rows)
  figure = plots.new(
      1.2 + 0.22 * len(tasks), 'LongBench-E by task and length',
      'Mean score in %, a line for each task, a marker for each bucket of lengths of '
      f'texts in words; {_BARS}; 0 is the score of an empty answer. '
      f'{joined(run.source, run.prompts)}',
      f'{_samples(run, found.values(), "task and bucket")}; {_BARS}')
  axes = figure.subplots()
  for place, (bucket, (colour, marker)) in enumerate(
      zip(BUCKETS, plots.LOOKS, strict=False)):
    there = [i for i, task in enumerate(tasks) if (task, bucket) in found]
    if not there:
      continue
    mean, low, high = 100 * np.array([
        scores.interval(found[tasks[i], bucket], run.num_resamples, run.seed)
        for i in there]).T
    axes.errorbar(
        mean, np.array(there) + 0.2 * (place - 1), color=colour, marker=marker,
        xerr=np.nan_to_num([np.maximum(mean - low, 0), np.maximum(high - mean, 0)]),
        linestyle='', linewidth=0.9, label=f'{bucket} words')
  axes.set_yticks(range(len(tasks)), tasks)
  axes.set(ylim=(len(tasks) - 0.5, -0.5), xlim=(-3, 103), xlabel='score, %')
  axes.axvline(0, color='#444444', linewidth=1.0, linestyle=(0, (1, 1.5)))
  plots.legend(figure, [axes], 3)
  return figure


def _samples(run: Run, cells: Iterable[np.ndarray], of: str) -> str:
  """Says how many samples each cell has, and by which rule they are scored."""
  sizes = sorted({len(x) for x in cells})
  fewest = f'{sizes[0]:,} to ' * (len(sizes) > 1)
  return f'{fewest}{counted(sizes[-1], "sample")} of each {of}, dialect {run.dialect}'


def _mark(axes: Axes, window: int, lengths: list[int]) -> None:
  """Marks the window with a vertical line if it lies among the lengths."""
  if window and lengths[0] <= window <= lengths[-1]:
    axes.axvline(window, color='#777777', linewidth=0.9, linestyle='-.',
                 label=f'window, {window:,}')
