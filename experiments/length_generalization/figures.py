"""Figures of length generalization, from tidy rows. Runs without JAX.

Figure 3 and Proposition 1 of arXiv 2504.02827, and accuracy by length. Figures 2 and 4
are in `sample_figures`, learning curves in `curve_figures`.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure
import numpy as np

from experiments.length_generalization import sample_figures
from experiments.length_generalization.answer import NOT_LEARNED, PRIMARY
from experiments.length_generalization.curve_figures import Curves, learning_curves
from experiments.length_generalization.sample_figures import Samples
from experiments.length_generalization.setting import Setting
from experiments.length_generalization.slopes import slopes_at_the_end
from experiments.length_generalization.training_table import training_table
from vvlen.reporting import plots, titles
from vvlen.reporting.numbers import alike, counted, number
from vvlen.reporting.plots import ADAPTATIONS, ARMS, SPELLED
from vvlen.reporting.results import Index
from vvlen.reporting.tables import Record
from vvlen.statistics import mean_interval

# Suffix of an arm's name -> title of its panel: the temperature of attention.
_TEMPERATURES = dict(zip(ADAPTATIONS, (
    'As trained', 'Published\nadaptive temperature', 'Temperature fitted\nto each model'
), strict=True))
# Accuracy in % of max retrieval in arXiv 2410.01104, trained on up to 16 items, by the
# suffix of the Baseline.
_PUBLISHED_AT = (16, 64, 256, 512, 1024, 2048, 4096, 16384)
PUBLISHED = {
    '': (98.6, 94.3, 81.3, 70.1, 53.8, 35.7, 22.6, 12.4),
    '+adaptive': (98.6, 94.5, 82.1, 72.5, 57.7, 39.4, 24.9, 14.0),
}


def make(
    index: Index, setting: Setting, curves: Curves = (), samples: Samples | None = None,
    primary: Sequence[Record] = (),
) -> dict[str, Figure]:
  """Draws all figures for which there is data.

  Args:
    index: from `vvlen.reporting.results.index`.
    setting: the task and the training.
    curves: from `vvlen.reporting.curves.read_curves`.
    samples: from `vvlen.reporting.results.read_samples`.
    primary: the records of the table `primary_endpoint`.

  Returns:
    {name of the file: figure}.
  """
  samples = {arm: (samples or {})[arm] for arm in ARMS if arm in (samples or {})}
  figures = {
      'accuracy': accuracy(index, setting, primary),
      'figure_3': output_moments(index, setting),
      'proposition_1': component_variance(index, setting),
  }
  if samples:
    figures['figure_2'] = sample_figures.components(samples, setting)
    figures['figure_4'] = sample_figures.weights(index, samples, setting)
  if curves:
    figures['learning_curves'] = learning_curves(
        curves, setting, training_table(index).records)
  return figures


def accuracy(
    index: Index, setting: Setting, primary: Sequence[Record] = ()
) -> Figure:
  """Draws accuracy by length, and the gain over the Baseline, paired by seed.

  A column of panels has one temperature, the same for all arms. The title of a panel of
  gains is the mean gain of LayerNorm beyond the training lengths, and in how many seeds
  it is ahead.
  """
  shown = [
      (suffix, title) for suffix, title in _TEMPERATURES.items()
      if any((arm + suffix, 'accuracy') == key[:2] for key in index for arm in ARMS)
  ]
  published = setting.task == 'retrieval' and setting.trained_up_to == 16
  count = plots.seeds_of(index, 'accuracy')
  seeds = plots.over_seeds(count)
  means = {record['comparison']: record for record in primary}
  figure = plots.new(
      4.6, _found(means.get(PRIMARY)),
      'Accuracy by number of items N (above) and its difference from the Baseline, '
      'paired by seed (below), with attention as trained and with temperatures adapted '
      f'at inference: {seeds}, each length by itself, uncorrected'
      + ('; in words, the mean difference beyond the training lengths with its '
         'interval, which is the primary endpoint where attention is as trained, and '
         'the seeds in which it is above 0'
         if means else '') + '; training lengths grey, chance dotted'
      + (', crosses the accuracy that arXiv 2410.01104 prints for a model like the '
         'Baseline' if published else '') + '.', plots.with_bands(setting.title, count))
  grid = figure.subplots(2, len(shown), sharex=True, sharey='row', squeeze=False)
  for (upper, lower), (suffix, title) in zip(grid.T, shown, strict=True):
    for arm in ARMS:
      lengths, values = plots.values(index, arm + suffix, 'accuracy')
      plots.band(upper, lengths, 100 * values, arm)
      if arm != 'none':
        lengths, gain = plots.gain(index, arm + suffix, 'none' + suffix, 'accuracy')
        plots.band(lower, lengths, 100 * gain, arm)
    if published and suffix in PUBLISHED:
      upper.plot(_PUBLISHED_AT, PUBLISHED[suffix], color='black', marker='x',
                 linestyle='', label='arXiv 2410.01104', zorder=3)
    lower.axhline(0, color='black', linewidth=0.8)
    if record := means.get(PRIMARY + suffix.replace('+', ', ')):
      lower.set_title(_mean_beyond(record), fontsize=plots.SMALLEST, color='#333333')
    upper.set(title=title, ylim=(0, 101))
    if setting.chance:
      plots.chance(upper, 100 * setting.chance)
    for axes in (upper, lower):
      plots.length_axis(axes, setting.trained_up_to)
    upper.set_xlabel('')
  grid[0, 0].set_ylabel('accuracy (%)')
  grid[1, 0].set_ylabel('norm − Baseline (points)')
  plots.legend(figure, grid[0], 5)
  return figure


def _found(record: Record | None) -> str:
  """Says what LayerNorm changes with attention as trained, as a title."""
  if record is None or record['at_5_percent'] in (NOT_LEARNED, 'undefined'):
    return 'Accuracy by length, and its change by a norm'
  difference, low, high = _difference(record)
  interval = f'{difference} points [{low}, {high}]'
  side = _side(record)
  if not side:
    return ('As trained, no difference found between LayerNorm and Baseline in '
            f'accuracy beyond the training lengths: {interval}')
  where = f'{side} of' if side == 'ahead' else side
  return (f'As trained, LayerNorm is {where} the Baseline in accuracy beyond the '
          f'training lengths: {interval}')


def _difference(record: Record) -> list[str]:
  """Returns the difference of a record of `primary_endpoint` and its interval."""
  return [number(record[name], '+.1f')
          for name in ('difference', 'ci_low', 'ci_high')]


def _mean_beyond(record: Record) -> str:
  """Returns the difference of a record of `primary_endpoint` in words, in lines."""
  difference, low, high = _difference(record)
  if record['at_5_percent'] == NOT_LEARNED:
    return f'LayerNorm: {NOT_LEARNED},\nmean {difference}'
  return (f'LayerNorm: {_side(record) or "no difference found"},\n'
          f'mean {difference} [{low}, {high}],\n'
          f'ahead in {record["treated_ahead"]} of {counted(record["seeds"], "seed")}')


def _side(record: Record) -> str:
  """Returns whether a difference is 'ahead' or 'behind', '' if none was found."""
  if not (record['ci_low'] > 0 or record['ci_high'] < 0):
    return ''
  return 'ahead' if record['difference'] > 0 else 'behind'


def output_moments(index: Index, setting: Setting) -> Figure:
  """Draws mean and variance of the output over its features (Figure 3)."""
  count = plots.seeds_of(index, 'output_mean')
  seeds = plots.over_seeds(count)
  ends: list[float] = []  # the first and the last variance of each arm
  for arm in ARMS:
    lengths, values = plots.values(index, arm, 'output_variance')
    if lengths:
      with np.errstate(divide='ignore'):
        ends += [*np.exp(mean_interval(np.log(values))[0])[[0, -1]]]
      span = f', N = {lengths[0]:,} → {lengths[-1]:,}: '
  words = iter(alike(ends, 2))
  each = [f'{SPELLED[arm]} {next(words)} → {next(words)}' for arm in ARMS
          if plots.values(index, arm, 'output_variance')[0]]
  figure = plots.new(
      2.9, 'Variance over features of the attention output'
      + (span + ', '.join(each) if each else ' after the norm'),
      'Mean (left) and variance (right, logarithmic, so its geometric mean) over the '
      'features of one attention output, after the norm where the arm has one, by '
      f'number of items N: {seeds}; training lengths grey. The axis of means reaches '
      'as far as the largest standard deviation over features.',
      plots.with_bands(f'{setting.title}; after the norm, if any', count))
  left, right = figure.subplots(1, 2, width_ratios=(0.7, 1))
  plots.log_axis(right)
  for arm in ARMS:
    plots.band(left, *plots.values(index, arm, 'output_mean'), arm)
    plots.band(right, *plots.values(index, arm, 'output_variance'), arm)
  left.set(title='mean over features')
  right.set(title='variance over features')
  # Means are small beside the spread of features, and so is what they differ by.
  if ends and np.isfinite(ends).all():
    least = max(np.abs(left.dataLim.intervaly).max(), max(ends) ** 0.5)
    left.set_ylim(-1.05 * least, 1.05 * least)
  for axes in (left, right):
    plots.length_axis(axes, setting.trained_up_to, 3 if axes is left else 4)
  plots.legend(figure, [left], len(ARMS))
  return figure


def component_variance(index: Index, setting: Setting) -> Figure:
  """Draws the variance of single output components for one query (Proposition 1)."""
  slopes_from = ''
  of_arms = []
  figure = plots.new(3.2, '', '')
  axes = figure.subplots()
  plots.log_axis(axes)
  for arm, (_, colour, marker) in ARMS.items():
    lengths, values = plots.values(index, arm, 'component_variance')
    if not lengths:
      continue
    slopes, start = slopes_at_the_end(lengths, values)
    label = SPELLED[arm]
    if slopes:
      mean, low, high = mean_interval(slopes)
      slope = f'{mean:.2f} [{low:.2f}, {high:.2f}]'.replace('-', '−')
      label += f', slope from N = {start:,}: {slope}'
      slopes_from = f'; slopes from N = {start:,} on, with intervals'
      of_arms.append(f'{number(float(mean), ".2f")} ({SPELLED[arm]})')
      since = f'From N = {start:,}, variance over sequences'
    plots.draw(axes, lengths, values, colour, marker, label)
  lengths, values = plots.values(index, 'none', 'component_variance')
  if lengths:
    # Through the Baseline where its slopes begin, so that it shows what they add up to.
    _, start = slopes_at_the_end(lengths, values)
    first = values[:, lengths.index(start)]
    top = np.exp(np.nanmean(np.log(np.where(first > 0, first, np.nan))))
    last = [n for n in lengths if n >= start]
    axes.plot(last, top * start / np.array(last), color='black',
              linewidth=0.9, linestyle='-.', label='slope −1, as 1/N')
  axes.set(ylabel='variance over sequences')
  plots.length_axis(axes, setting.trained_up_to, 11)
  plots.legend(figure, [axes], 2)
  count = plots.seeds_of(index, 'component_variance')
  seeds = plots.over_seeds(count, 'geometric mean')
  titles.set_title(
      figure, f'{since if of_arms else "Variance over sequences"} of the attention '
      + (f'output before the norm has log-log slope {", ".join(of_arms)}' if of_arms
         else 'output before the norm, of one query'),
      plots.with_bands(f'{setting.title}; one query', count))
  figure.set_label(
      'Variance over sequences of a component of the attention output by number of '
      f'items N: {seeds}{slopes_from}{_bound(index)}; training lengths grey.')
  return figure


def _bound(index: Index) -> str:
  """Returns words on the bound exp(2δ)σ²/N of Proposition 1, '' if it is unknown.

  δ is the range of the logits (metric `logit_range`), σ² the variance of the values
  (`value_variance`).
  """
  delta = index.get(('none', 'logit_range', None))
  if not delta:
    return ''
  variance = index['none', 'value_variance', None]
  # log10 of exp(2δ)σ², the median over seeds.
  bound = np.nanmedian([2 * delta[s] / np.log(10) + np.log10(variance[s])
                        for s in delta])
  said = '; the proof bounds the Baseline by exp(2δ)σ²/N, '
  if bound > 3:
    return f'{said}which is too large here to say anything (about 10^{bound:.0f}/N)'
  return f'{said}in the median over seeds {10**bound:.1f}/N'
