"""The figures of a league. Runs without JAX."""

from collections.abc import Mapping, Sequence
import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
import numpy as np

from experiments.league.chance import Chance
from experiments.league.effects import DECIDED, Effect, Family, has_interval
from experiments.league.names import CONTROL, in_words, KINDS, name_of
from experiments.league.ranking import best_arms, shared_tasks, sorted_arms
from vvlen.reporting import plots
from vvlen.reporting.results import Index

# Of the best arms of tasks, beside softmax and LN.
_LOOKS = (*plots.LOOKS[3:], plots.LOOKS[1])


def league(found: Mapping[str, Sequence[Effect]], family: Family) -> Figure:
  """Draws the gain of each arm over softmax, a row per arm and a panel per task."""
  arms = sorted_arms(found)
  everywhere = len(shared_tasks(found)) == len(found)
  absent = '' if everywhere else ' An arm without a mark has no result on that task.'
  drawn = plots.new(
      1.5 + 0.17 * len(arms),
      'What each arm gains over softmax beyond the training lengths',
      'Mean accuracy beyond the training lengths, arm minus softmax in points, paired '
      f'over {family.num_seeds} seeds, with 95 % intervals corrected over the '
      f'{family.num_tests} arms of a task (Bonferroni); hollow: no verdict '
      '(the table says why), and no interval if the run or the training is not '
      'finished. Softmax is the line at 0; arms are sorted by their mean over the '
      f'tasks that all have.{absent}',
      f'{family.words}; bars: corrected 95 % intervals')
  panels = drawn.subplots(1, len(found), sharey=True, squeeze=False)[0]
  for axes, (task, effects) in zip(panels, found.items(), strict=True):
    _gains(axes, effects, arms)
    axes.set(title=in_words(task), xlabel='gain (points)')
  panels[0].set_yticks(range(len(arms)), [name_of(arm).label for arm in arms])
  panels[0].set_ylim(len(arms) - 0.4, -0.6)
  kinds = [kind for kind in KINDS if kind in {name_of(arm).kind for arm in arms}]
  handles = [Line2D([], [], color=KINDS[kind][1], marker=KINDS[kind][2],
                    linestyle='', label=KINDS[kind][0]) for kind in kinds]
  drawn.legend(handles=handles, loc='outside lower center', ncols=min(len(kinds), 3))
  return drawn


def _gains(axes: Axes, effects: Sequence[Effect], arms: Sequence[str]) -> None:
  """Draws one line per arm."""
  axes.axvline(0, color=KINDS['control'][1], linewidth=1)
  for effect in effects:
    if (shown := effect.shown) is None:
      continue
    _, colour, marker = KINDS[name_of(effect.arm).kind]
    gain = shown.mean_difference
    reach = None
    if np.isfinite(shown.ci_low) and has_interval(effect.verdict):
      reach = [[gain - shown.ci_low], [shown.ci_high - gain]]
    axes.errorbar(
        x=[gain], y=[arms.index(effect.arm)], xerr=reach, color=colour, marker=marker,
        capsize=1.5, linestyle='', label=effect.arm,
        markerfacecolor=colour if effect.verdict in DECIDED else 'white')
  axes.grid(visible=False, axis='y')


def by_length(
    indices: Mapping[str, Index], found: Mapping[str, Sequence[Effect]],
    family: Family,
) -> Figure:
  """Draws accuracy by length of softmax, LN and the best arm of each task."""
  best = best_arms(found)
  looks = {CONTROL: plots.LOOKS[0], 'layer_norm': plots.LOOKS[2],
           **dict(zip(dict.fromkeys(best.values()), itertools.cycle(_LOOKS)))}
  tasks = [*found]
  rows = -(-len(tasks) // 2)
  drawn = plots.new(
      0.9 + 1.9 * rows,
      'Accuracy by length: softmax, LN and the best arm of each task',
      'Accuracy by number of items N of softmax, LN (where it is among the arms) and '
      'the arms beside LN that gain most on a task (its own first, five lines at most, '
      'arms with a verdict where there are any); '
      f'{plots.over_seeds(family.num_seeds)}; training lengths are shaded.',
      plots.with_bands(family.words, family.num_seeds))
  panels = drawn.subplots(rows, min(len(tasks), 2), squeeze=False, sharey=True)
  for axes in panels.flat[len(tasks):]:
    axes.set_axis_off()
  for axes, task in zip(panels.flat, tasks, strict=False):
    run = {arm for arm, metric, _ in indices[task] if metric == 'accuracy'}
    order = dict.fromkeys([CONTROL, 'layer_norm', best.get(task, CONTROL), *looks])
    shown = [arm for arm in order if arm in run][:plots.MOST_LINES]
    for arm in sorted(shown, key=[*looks].index):
      lengths, table = plots.values(indices[task], arm, 'accuracy')
      plots.draw(axes, lengths, 100 * table, *looks[arm], name_of(arm).label)
    if task in family.chance:
      draw_chance(axes, family.chance[task], indices[task])
    plots.length_axis(axes, family.tasks[task])
    axes.set_title(in_words(task))
  for row in panels:
    row[0].set_ylabel('accuracy (%)')
  plots.legend(drawn, panels.flat[:len(tasks)], 3)
  return drawn


def draw_chance(axes: Axes, chance: Chance, index: Index) -> None:
  """Draws chance dotted: across the panel or, if it falls, over softmax's lengths."""
  lengths, _ = plots.values(index, CONTROL, 'accuracy')
  if not chance.slope:
    plots.chance(axes, chance.at_zero)
  elif lengths:
    grid = np.geomspace(lengths[0], lengths[-1], 64)
    axes.plot(grid, chance.at(grid), label='set ignored', marker='', **plots.CHANCE)
  axes.set_ylim(bottom=0)
