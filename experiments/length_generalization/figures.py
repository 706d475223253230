"""Figures of length generalization, from tidy rows. Runs without JAX.

Figure 3 and Proposition 1 of arXiv 2504.02827, accuracy by length, and learning curves.
Figures 2 and 4 are in `sample_figures`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from experiments.length_generalization import sample_figures
from experiments.length_generalization.sample_figures import Samples
from vvlen.reporting import plots
from vvlen.reporting.plots import ADAPTATIONS, ARMS
from vvlen.reporting.results import Index
from vvlen.statistics import mean_interval

# Suffix of an arm's name -> title of its panel: the temperature of attention.
_TEMPERATURES = dict(zip(ADAPTATIONS, (
    'As trained', 'Published\nadaptive temperature', 'Temperature fitted\nto each model'
), strict=True))
Curves = Sequence[Mapping[str, Any]]


def write(
    folder: epath.PathLike,
    index: Index,
    *,
    trained_up_to: int,
    curves: Curves = (),
    samples: Samples | None = None,
) -> list[epath.Path]:
  """Draws all figures for which there is data.

  Args:
    folder: where to write.
    index: from `vvlen.reporting.results.index`.
    trained_up_to: the longest training length, marked in the figures.
    curves: from `vvlen.reporting.curves.read_curves`.
    samples: from `vvlen.reporting.results.read_samples`.

  Returns:
    The paths written.
  """
  samples = samples or {}
  both = {arm: samples[arm] for arm in ('none', 'layer_norm') if arm in samples}
  with plots.style():
    figures = {
        'accuracy': accuracy(index, trained_up_to),
        'figure_3': output_moments(index, trained_up_to),
        'proposition_1': component_variance(index, trained_up_to),
    }
    if both:
      figures['figure_2'] = sample_figures.components(both)
      figures['figure_4'] = sample_figures.weights(index, both, trained_up_to)
    if curves:
      figures['learning_curves'] = learning_curves(curves)
    return plots.save(folder, figures)


def accuracy(index: Index, trained_up_to: int) -> Figure:
  """Draws accuracy by length, and the gain over the Baseline, paired by seed.

  Each column of panels is for one temperature, used by all arms.
  """
  shown = [
      (suffix, title) for suffix, title in _TEMPERATURES.items()
      if any((arm + suffix, 'accuracy') == key[:2] for key in index for arm in ARMS)
  ]
  figure = Figure(figsize=(1.0 + 2.4 * len(shown), 4.4))
  grid = figure.subplots(2, len(shown), sharex=True, sharey='row', squeeze=False)
  for (upper, lower), (suffix, title) in zip(grid.T, shown, strict=True):
    for arm in ARMS:
      lengths, values = plots.values(index, arm + suffix, 'accuracy')
      plots.band(upper, lengths, 100 * values, arm)
      if arm != 'none':
        lengths, gain = plots.gain(index, arm + suffix, 'none' + suffix, 'accuracy')
        plots.band(lower, lengths, 100 * gain, arm)
    lower.axhline(0, color='black', linewidth=0.8)
    upper.set(title=title, ylim=(0, 101))
    for axes in (upper, lower):
      plots.length_axis(axes, trained_up_to)
    upper.set_xlabel('')
  grid[0, 0].set_ylabel('accuracy (%)')
  grid[1, 0].set_ylabel('gain over the Baseline\n(points)')
  figure.legend(*grid[0, 0].get_legend_handles_labels(), ncols=len(ARMS),
                loc='outside upper center')
  figure.supxlabel(plots.caption(index), fontsize=7.5)
  return figure


def output_moments(index: Index, trained_up_to: int) -> Figure:
  """Draws mean and variance of the output over its features (Figure 3)."""
  figure = Figure(figsize=(7.0, 2.9))
  left, right = figure.subplots(1, 2)
  plots.log_axis(right)
  for arm in ARMS:
    plots.band(left, *plots.values(index, arm, 'output_mean'), arm)
    plots.band(right, *plots.values(index, arm, 'output_variance'), arm)
  left.set(title='Global mean of the output after the norm',
           ylabel='mean over features')
  right.set(title='Global variance of the same, geometric mean',
            ylabel='variance over features')
  for axes in (left, right):
    plots.length_axis(axes, trained_up_to)
  figure.legend(*left.get_legend_handles_labels(), loc='outside upper center',
                ncols=len(ARMS))
  figure.supxlabel(plots.caption(index), fontsize=7.5)
  return figure


def component_variance(index: Index, trained_up_to: int) -> Figure:
  """Draws the variance of single output components for one query (Proposition 1)."""
  figure = Figure(figsize=(4.8, 4.2))
  axes = figure.subplots()
  axes.set_yscale('log')
  slopes_of, bound_of = {}, ''
  for arm, (name, _, _) in ARMS.items():
    lengths, values = plots.values(index, arm, 'component_variance')
    if not lengths:
      continue
    plots.band(axes, lengths, values, arm)
    last = [n for n in lengths if n >= lengths[-1] / 16]
    slopes = [
        np.polyfit(np.log(last), np.log(v[-len(last):]), 1)[0]
        for v in values if len(last) > 1 and np.isfinite(v).all() and (v > 0).all()
    ]
    if slopes:
      mean, low, high = mean_interval(slopes)
      slope = f'{mean:.2f} [{low:.2f}, {high:.2f}]'.replace('-', '−')
      slopes_of[name] = f'{name} {slope}'
    delta = index.get((arm, 'logit_range', None), {})
    if arm == 'none' and delta:
      spread = index[arm, 'value_variance', None]
      bound = np.nanmedian([2 * delta[s] / np.log(10) + np.log10(spread[s])
                            for s in delta])
      bound_of = (
          'bound of the Baseline, median over seeds: $e^{2\\delta}\\sigma^2/N = '
          + (f'10^{{{bound:.0f}}}/N$, too loose to draw' if bound > 3 else
             f'{10**bound:.1f}/N$')
      )
  lengths, values = plots.values(index, 'none', 'component_variance')
  if lengths:
    # Through the Baseline at the longest length.
    end = np.exp(np.nanmean(np.log(np.where(values > 0, values, np.nan)[:, -1])))
    axes.plot(lengths, end * lengths[-1] / np.array(lengths), color='black',
              linewidth=0.9, linestyle='-.', label='$\\propto 1/N$')
  axes.set(
      title='Variance of a component of the attention\n'
            'output before the norm, one query',
      ylabel='variance over sequences, geometric mean',
  )
  plots.length_axis(axes, trained_up_to)
  figure.legend(loc='outside upper center', ncols=4)
  notes = [bound_of, plots.caption(index)]
  if slopes_of:
    notes = [f'slopes from N = {last[0]:,} on:', ', '.join(slopes_of.values()), *notes]
  figure.supxlabel('\n'.join(filter(None, notes)), fontsize=6.5)
  return figure


def learning_curves(curves: Curves) -> Figure:
  """Draws loss and accuracy during training, with a thin line per seed."""
  figure = Figure(figsize=(7.0, 2.7))
  left, right = figure.subplots(1, 2)
  for arm, (name, colour, _) in ARMS.items():
    lines = [line for line in curves if line['arm'] == arm]
    blocks = sorted({line['first_seed'] for line in lines})
    for axes, metric, scale in ((left, 'loss', 1), (right, 'accuracy', 100)):
      every = []
      for block in blocks:
        own = [line for line in lines if line['first_seed'] == block]
        steps = [line['step'] for line in own]
        values = scale * np.array([line[metric] for line in own], float)
        axes.plot(steps, values, color=colour, linewidth=0.4, alpha=0.25, zorder=1)
        every.append((steps, values))
      # The mean leaves out blocks that are still in training.
      longest = max((steps for steps, _ in every), key=len, default=[])
      whole = [values for steps, values in every if steps == longest]
      if whole:
        mean = np.nanmean(np.concatenate(whole, axis=1), axis=1)
        alone = 'o' if len(longest) == 1 else ''  # a line of one point is invisible
        axes.plot(longest, mean, color=colour, label=name, marker=alone)
  left.set(title='Training loss, of new batches', ylabel='loss (nats)', xlabel='step')
  plots.log_axis(left)
  right.set(title='Training accuracy, of the same', ylabel='accuracy (%)',
            xlabel='step')
  for axes in (left, right):
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter('{x:,.0f}')
  left.legend(title='mean; thin: single seeds', title_fontsize=7)
  return figure
