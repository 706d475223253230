"""Figures of outcomes against predictors, a point per model. Runs without JAX."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from experiments.correlation import paper
from experiments.correlation.points import (
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
from vvlen.reporting.numbers import interval_words, number

_COLOUR, _MARKER = plots.LOOKS[0]


class Panel(NamedTuple):
  """One predictor and one outcome of M models."""

  x: np.ndarray  # [M]
  y: np.ndarray  # [M]
  related: Related
  seeds: Sequence[tuple[float, float]] = ()  # x and y of single seeds


def make(run: Run, points: Points) -> dict[str, Figure]:
  """Returns {name of the file: figure}."""
  if run.of_term:
    return {'term': of_term(run, points)} if points.models else {}
  made = {'paper': of_paper(run)}
  return ({'correlations': of_models(run, points)} | made) if points.models else made


def of_models(run: Run, points: Points) -> Figure:
  """Draws both outcomes of the models against training loss and misalignment."""
  predictors = {TRAINING_LOSS: 'training loss, nats',
                run.measure: f'{PREDICTORS[run.measure]} at the length of training'}
  panels = {
      (predictor, outcome): Panel(
          points.means[predictor], points.means[f'{outcome}_beyond'],
          ours(run, points, predictor, f'{outcome}_beyond'),
          _seeds(points, predictor, f'{outcome}_beyond'))
      for outcome in OUTCOMES for predictor in predictors}
  return _draw(
      run, panels, predictors,
      {name: f'{words}, {run.beyond_words}' for name, words in OUTCOMES.items()},
      'Results on longer inputs, by training loss and misalignment',
      'Score of the benchmark and log perplexity beyond the training length, against '
      'training loss and misalignment, a numbered point for each model, as in the '
      'table models: means over seeds; grey: single seeds. r: the primary correlation '
      'over models, with its bootstrap interval.',
      f'{run.words}, trained at {_lengths(run)} tokens; L = {run.length}')


def of_term(run: Run, points: Points) -> Figure:
  """Draws the score by length of each model, with its seeds and the shortcut."""
  figure = plots.new(
      2.6, 'Score by length of the prompt, with and without the misalignment term',
      'Score of the benchmark by tokens of prompt and answer, a line for each '
      'model: means over seeds; thin lines: single seeds, of which those of one number '
      'have the same initial weights, text and prompts in all models; dotted: the '
      'score of an answer that takes a fitting word of the context, whatever is asked.',
      f'{run.words}, trained at {run.length} tokens')
  axes = figure.subplots()
  for place, model in enumerate(points.models):
    colour, marker = plots.LOOKS[place]
    for seed in points.seeds['chance'][place]:
      axes.plot(run.lengths,
                [points.seeds[f'score_{n}'][place][seed] for n in run.lengths],
                color=colour, linewidth=0.5, alpha=0.4)
    axes.plot(run.lengths, [points.means[f'score_{n}'][place] for n in run.lengths],
              color=colour, marker=marker, label=model.label)
  plots.chance(axes, float(points.means['shortcut'].mean()), 'shortcut')
  plots.doubling_axis(axes, 8)
  axes.set(xlabel='tokens of prompt and answer', ylabel='score', ylim=(-0.03, 1.03))
  plots.legend(figure, [axes], 2)
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
                                  published(run, predictor, outcome))
      for outcome in OUTCOMES for predictor in predictors}
  return _draw(
      run, panels, predictors,
      {'score': 'LongBench-E', 'nll': 'log perplexity at 16k'},
      'The seven rows of Table 1 of arXiv 2506.11769',
      'LongBench-E and log perplexity at 16k, against training loss and misalignment, '
      f'as the paper prints them: {_numbered(list(paper.ROWS))}. r: recomputed, with '
      'its bootstrap interval over the seven.',
      'language models of 6 to 20 billion parameters')


def _lengths(run: Run) -> str:
  return ' or '.join(map(str, sorted({model.length for model in run.models})))


def _numbered(names: Sequence[str]) -> str:
  return ', '.join(f'{place}: {name}' for place, name in enumerate(names, 1))


def _draw(
    run: Run, panels: Mapping[tuple[str, str], Panel], predictors: Mapping[str, str],
    words: Mapping[str, str], title: str, caption: str, setup: str,
) -> Figure:
  """Draws a row of panels for each outcome, a column for each predictor.

  Args:
    run: for the primary outcome, the first row, and the primary correlation.
    panels: {(predictor, outcome): panel}.
    predictors: {predictor: label of its axis}.
    words: {outcome: label of its axis}.
    title: above the figure.
    caption: below it.
    setup: which models, below the title.
  """
  figure = plots.new(4.4, title, caption, setup)
  grid = figure.subplots(2, 2, sharex='col', sharey='row', squeeze=False)
  for row, outcome in zip(grid, outcomes(run), strict=True):
    row[0].set_ylabel(words[outcome])
    for axes, predictor in zip(row, predictors, strict=True):
      _panel(axes, panels[predictor, outcome], run.correlation)
  for axes, label in zip(grid[-1], predictors.values(), strict=True):
    axes.set_xlabel(label)
  return figure


def _panel(axes: Axes, panel: Panel, correlation: str) -> None:
  if panel.seeds:
    x, y = zip(*panel.seeds, strict=True)
    axes.plot(x, y, linestyle='', marker='.', color='#bbbbbb', zorder=1)
  axes.plot(panel.x, panel.y, linestyle='', marker=_MARKER, color=_COLOUR)
  for place, (x, y) in enumerate(zip(panel.x, panel.y, strict=True), 1):
    axes.annotate(str(place), (x, y), xytext=(2, 2), textcoords='offset points',
                  fontsize=plots.SMALLEST)
  value, low, high = getattr(panel.related, correlation)
  if not np.isnan(value):
    ends = '' if np.isnan(low) else f' {interval_words(low, high, "+.2f")}'
    axes.set_title(f'r = {number(value, "+.2f")}{ends}')
