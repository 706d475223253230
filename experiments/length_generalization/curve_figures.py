"""Learning curves of length generalization. Runs without JAX."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from experiments.length_generalization.comparisons import NAMES
from experiments.length_generalization.setting import Growth, Setting
from vvlen.reporting import plots
from vvlen.reporting.plots import ARMS, SPELLED
from vvlen.reporting.tables import Record

Curves = Sequence[Mapping[str, Any]]


def learning_curves(
    curves: Curves, setting: Setting, trained: Sequence[Record] = ()
) -> Figure:
  """Draws loss and error during training: the mean and the range of seeds.

  Blocks of seeds that are still in training are left out. Arms often coincide, so their
  markers are at different steps.

  Args:
    curves: from `vvlen.reporting.curves.read_curves`.
    setting: the task and the training.
    trained: the records of the table `training`, for the errors in the title.
  """
  growing = setting.growth is not None
  figure = plots.new(2.9 + 0.5 * growing, '', '')
  left, right = figure.subplots(1, 2)
  count, faultless = 0, False
  shown: list[float] = []  # mean errors
  for i, (arm, (_, colour, marker)) in enumerate(ARMS.items()):
    lines = [line for line in curves if line['arm'] == arm]
    for axes, metric in ((left, 'loss'), (right, 'accuracy')):
      steps, table = _finished(lines, metric)
      if not steps:
        continue
      if axes is right:
        table = 100 * (1 - table)
        faultless |= bool((table <= 0).any())
        shown += [*np.nanmean(table, axis=1)]
      count = max(count, table.shape[1])
      apart = -(-len(steps) // 8)  # from one marker to the next
      axes.plot(steps, np.nanmean(table, axis=1), color=colour, label=SPELLED[arm],
                marker=marker, markevery=(i * apart // len(ARMS), apart))
      axes.fill_between(steps, np.nanmin(table, axis=1), np.nanmax(table, axis=1),
                        color=colour, alpha=0.1, linewidth=0)
  if setting.chance:
    plots.chance(left, -math.log(setting.chance))
    plots.chance(right, 100 * (1 - setting.chance))
  for axes, title in ((left, 'loss (nats)'), (right, 'error: wrong answers (%)')):
    plots.log_axis(axes)
    axes.set(title=title, xlabel='step')
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter('{x:,.0f}')
    if setting.growth:
      axes.set_xlim(left=0)
      _growth_axis(axes, setting.growth)
  # Seeds without a wrong answer would be at the bottom of any logarithmic axis.
  shown = [x for x in shown if x > 0]
  if shown:
    right.set_ylim(min(shown) / 2, max(100 * (1 - (setting.chance or 0)), *shown) * 1.2)
  plots.legend(
      figure, [left], 4, title='one seed' if count == 1 else
      f'lines: mean of {count} seeds; bands: from the lowest to the highest seed')
  spelled = {NAMES[arm]: name for arm, name in SPELLED.items()}
  # Rounded as in the table, where it is the share of right answers.
  each = [f'{spelled[r["arm"]]} {100 - float(format(r["accuracy"], ".2f")):.2f} %'
          for r in trained]
  plots.set_title(
      figure, f'Wrong answers at the end of training: {", ".join(each)}' if each else
      'Wrong answers in training', setting.title)
  figure.set_label(
      'Loss and error (the share of wrong answers) of new training batches by step, '
      f'both logarithmic: mean over {count} seeds, with bands from the lowest to the '
      'highest seed'
      + ('; grey, above: the longest training length at steps where it grows'
         if growing else '')
      + ('; a band leaves the axis where a seed has no wrong answer'
         if faultless else '') + ('; chance dotted.' if setting.chance else '.'))
  return figure


def _finished(lines: Curves, metric: str) -> tuple[list[int], np.ndarray]:
  """Returns the steps and the values [steps, seeds] of the blocks with most steps."""
  blocks: dict[int, list[Mapping[str, Any]]] = {}
  for line in sorted(lines, key=lambda line: line['first_seed']):
    blocks.setdefault(line['first_seed'], []).append(line)
  steps_of = {first: [line['step'] for line in own] for first, own in blocks.items()}
  longest = max(steps_of.values(), key=len, default=[])
  whole = [np.array([line[metric] for line in own], float)
           for first, own in blocks.items() if steps_of[first] == longest]
  return longest, np.concatenate(whole, axis=1) if whole else np.empty((0, 0))


def _growth_axis(axes: Axes, growth: Growth) -> None:
  """Writes the longest training length above the steps where it grows."""
  steps = np.linspace(0, growth.num_steps, 5).astype(int).tolist()
  above = axes.secondary_xaxis('top')
  above.set_xticks(steps, [f'{growth.at(step):,}' for step in steps], color='#777777')
  above.tick_params(color='#777777', length=2)
  above.spines['top'].set_visible(False)
  above.set_xlabel('longest training length', color='#777777', fontsize=plots.SMALLEST)
