"""Figures of outcomes against predictors, a point per model. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
import numpy as np

from experiments.correlation import paper, term, unfinished
from experiments.correlation.comparison import CORRELATION_WORDS
from experiments.correlation.points import (
    At,
    compared,
    OUTCOMES,
    outcomes,
    Points,
    PREDICTORS,
    Run,
    TRAINING_LOSS,
)
from experiments.correlation.related import ours, Related
from experiments.correlation.tables import published
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, interval_words, number

_DIVERGENCES = ('symmetric_kl', 'kl_first_second', 'kl_second_first', 'js')
_SHORTCUT = ('the score of an answer that takes a fitting word of the context, '
             'whatever is asked')
_MOST_NUMBERS = 15  # of points; more would overlap


class Panel(NamedTuple):
  """One predictor and one outcome of M models."""

  x: np.ndarray  # [M]
  y: np.ndarray  # [M]
  related: Related
  numbers: Sequence[int]  # of the models; (): not shown
  kinds: Sequence[tuple[str, int]] = ()  # positions and L; (): all are drawn alike
  seeds: Sequence[tuple[float, float]] = ()  # x and y of single seeds


def make(run: Run, points: Points) -> dict[str, Figure]:
  """Returns {name of the file: figure}."""
  made, used = {'paper': of_paper(run)}, compared(run, points)
  part = unfinished.part(run, points)
  if used.models:
    made = {'correlations': of_models(run, used, part)} | made
  if term.pairs(run, points, term.PRIMARY):
    made['term'] = of_term(run, points, part)
  return made


def of_models(run: Run, points: Points, part: str = '') -> Figure:
  """Draws the outcomes of the models against training loss and misalignment.

  Args:
    run: what was run.
    points: the models to draw.
    part: which part of the models has results, if not all have; for the title.
  """
  predictors = {TRAINING_LOSS: 'training loss, nats',
                run.measure: f'{PREDICTORS[run.measure]} at L'}
  numbers = {model.name: place for place, model in enumerate(run.models, 1)}
  shown = [numbers[model.name] for model in points.models]
  lengths = sorted({m.length for m in points.models})
  kinds = [(model.positions, model.length) for model in points.models]
  panels = {
      (predictor, outcome): Panel(
          points.means[predictor], points.means[outcome],
          ours(run, points, predictor, outcome),
          shown if len(shown) <= _MOST_NUMBERS else (), kinds,
          _seeds(points, predictor, outcome) if run.num_seeds > 1 else ())
      for outcome in outcomes(run) for predictor in predictors}
  numbered = ('; numbers: as in the table models' * (len(shown) <= _MOST_NUMBERS)
              + '; grey: single seeds' * (run.num_seeds > 1))
  figure = _draw(
      run, panels, predictors, {name: OUTCOMES[name] for name in outcomes(run)},
      'Results on longer inputs, by training loss and misalignment',
      'Score of the benchmark and log perplexity beyond the length of training, '
      'against training loss and misalignment: a point for each model that was '
      'trained without the misalignment term and learned each task that counts, by '
      'its positions and L'
      f'{numbered}; dotted: {_SHORTCUT}. {_words_of_r(run)} over models, with its '
      'bootstrap interval.',
      _setup(f'{run.words}, trained at L = {" or ".join(map(str, lengths))} tokens',
             part))
  axes = figure.axes
  for one, (predictor, outcome) in zip(axes, panels, strict=True):
    if predictor in _DIVERGENCES and (points.means[predictor] > 0).all():
      _log_axis(one)
    if outcome == 'score_near':
      plots.chance(one, float(points.means['shortcut_near'].mean()), 'shortcut')
  plots.legend(figure, axes[:1], 2)
  return figure


def _log_axis(axes: Axes) -> None:
  """Makes the horizontal axis logarithmic, with labels within a decade too."""
  axes.set_xscale('log')
  axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
  axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f'{x:g}'))
  axes.xaxis.set_minor_formatter(NullFormatter())


def _words_of_r(run: Run) -> str:
  return f"r: {CORRELATION_WORDS[run.correlation]}'s correlation"


def _setup(words: str, part: str) -> str:
  return f'{words}; not finished: {part}' if part else words


def of_term(run: Run, points: Points, part: str = '') -> Figure:
  """Draws the mean score by length over pairs of models, and their difference.

  Args:
    run: what was run.
    points: the models that have results.
    part: as in `of_models`.
  """
  found = [term.changed(run, points, term.PRIMARY, At('score', n)) for n in run.lengths]
  count = len(found[0].treated)
  figure = plots.new(
      2.6, 'Score by length of the prompt, with and without the misalignment term',
      'Score of the benchmark by tokens of prompt and answer in units of L, the '
      f'length of training, with α = {term.PRIMARY:g} and without the term, and the '
      f'difference of each pair: means over {counted(count, "pair")} of models that '
      f'both learned each task that counts, with 95 % intervals; dotted: at L, '
      f'{_SHORTCUT}.',
      _setup(f'{run.words}; bands: 95 % intervals over {counted(count, "pair")}'
             if count > 1 else f'{run.words}; one pair', part))
  axes, paired = figure.subplots(1, 2)
  for place, (name, label) in enumerate((
      ('control', 'without the term'), ('treated', f'α = {term.PRIMARY:g}'))):
    table = np.stack([getattr(one, name) for one in found], axis=1)
    plots.draw(axes, run.lengths, table, *plots.LOOKS[place], label)
  plots.chance(axes, float(points.means['shortcut'].mean()), 'shortcut')
  difference = np.stack([one.treated - one.control for one in found], axis=1)
  plots.draw(paired, run.lengths, difference, *plots.LOOKS[2], 'difference, by pairs')
  paired.axhline(0, color='#444444', linewidth=0.8)
  axes.set(ylabel='score', ylim=(-0.03, 1.03))
  paired.set(ylabel='change of the score')
  for one in (axes, paired):
    plots.doubling_axis(one, 8)
    one.set_xlabel('length in units of L')
  plots.legend(figure, [axes, paired], 4)
  return figure


def _seeds(points: Points, x: str, y: str) -> list[tuple[float, float]]:
  """Returns the values of two fields for every seed of every model."""
  return [(own[seed], other[seed])
          for own, other in zip(points.seeds[x], points.seeds[y], strict=True)
          for seed in own]


def of_paper(run: Run) -> Figure:
  """Draws the paper's seven rows as `of_models` draws ours."""
  columns = paper.columns()
  predictors = {'training loss': 'training loss', 'misalignment': 'misalignment'}
  panels = {
      (predictor, outcome): Panel(columns[predictor], columns[outcome],
                                  published(run, predictor, outcome), range(1, 8))
      for outcome in ('score', 'nll') for predictor in predictors}
  return _draw(
      run, panels, predictors,
      {'score': 'LongBench-E', 'nll': 'log perplexity at 16k'},
      'The seven rows of Table 1 of arXiv 2506.11769',
      'LongBench-E and log perplexity at 16k, against training loss and misalignment, '
      f'as the paper prints them: {_numbered(list(paper.ROWS))}. {_words_of_r(run)}, '
      'recomputed, with its bootstrap interval over the seven.',
      'language models of 6 to 20 billion parameters')


def _numbered(names: Sequence[str]) -> str:
  return ', '.join(f'{place}: {name}' for place, name in enumerate(names, 1))


def _draw(
    run: Run, panels: Mapping[tuple[str, str], Panel], predictors: Mapping[str, str],
    words: Mapping[str, str], title: str, caption: str, setup: str,
) -> Figure:
  """Draws a row of panels for each outcome, a column for each predictor.

  Args:
    run: for the primary correlation.
    panels: {(predictor, outcome): panel}.
    predictors: {predictor: label of its axis}.
    words: {outcome: label of its axis}.
    title: above the figure.
    caption: below it.
    setup: which models, below the title.
  """
  figure = plots.new(2.2 * len(words), title, caption, setup)
  grid = figure.subplots(len(words), 2, sharex='col', sharey='row', squeeze=False)
  for row, outcome in zip(grid, words, strict=True):
    row[0].set_ylabel(words[outcome])
    for axes, predictor in zip(row, predictors, strict=True):
      _panel(axes, panels[predictor, outcome], run.correlation)
  for axes, label in zip(grid[-1], predictors.values(), strict=True):
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(4))  # for small numbers, which are long
  return figure


def _panel(axes: Axes, panel: Panel, correlation: str) -> None:
  if panel.seeds:
    x, y = zip(*panel.seeds, strict=True)
    axes.plot(x, y, linestyle='', marker='.', color='#bbbbbb', zorder=1)
  kinds = panel.kinds or len(panel.x) * [('', 0)]
  looks = dict(zip(dict.fromkeys(name for name, _ in kinds), plots.LOOKS, strict=False))
  longest = max(length for _, length in kinds)
  for name, length in sorted(set(kinds)):
    there = [kind == (name, length) for kind in kinds]
    colour, marker = looks[name]
    axes.plot(panel.x[there], panel.y[there], linestyle='', marker=marker, color=colour,
              markerfacecolor='white' if length < longest else colour,
              label=f'{name}, L = {length}' if name else '')
  # Neighbours have their numbers on different sides.
  above = np.argsort(np.argsort(panel.x, kind='stable')) % 2 == 0
  for number_of, x, y, over in zip(
      panel.numbers, panel.x, panel.y, above, strict=False):
    axes.annotate(str(number_of), (x, y), xytext=(2, 2 if over else -8),
                  textcoords='offset points', fontsize=plots.SMALLEST)
  if panel.numbers:
    axes.margins(y=0.15)
  value, low, high = getattr(panel.related, correlation)
  if not np.isnan(value):
    ends = '' if np.isnan(low) else f' {interval_words(low, high, "+.2f")}'
    axes.set_title(f'r = {number(value, "+.2f")}{ends}')
