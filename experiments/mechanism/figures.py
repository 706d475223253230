"""The figure of interventions on the attention output. Runs without JAX."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.length_generalization.setting import Setting
from vvlen.reporting import plots
from vvlen.reporting.plots import ARMS, SPELLED
from vvlen.reporting.results import Index

# Suffix of the arm's name -> (label, colour, marker). The colours are from the palettes
# of Okabe and Ito and of Tol; no arm has one of these looks.
RESTORED = {
    'rescaled': ('norm as in training', '#882255', 's'),
    'recentred': ('mean as in training', '#56B4E9', 'v'),
    'standardized': ('mean and variance as in training', '#D55E00', '>'),
    'covariance': ('mean and covariance as in training', '#999933', 'P'),
}
ATTENDED = {
    'reweighted': ('weight of the target as in training', '#8C6D31', 'o'),
    'one_hot': ('all weight on the target', '#CC79A7', 'D'),
}
IMPOSED = {
    'shifted': ('z-scores of training, mean as at N', '#117733', '<'),
    'shrunk': ('z-scores of training, variance as at N', '#AA4499', '>'),
    'vanished': ('z-scores of training, mean and variance as at N', '#332288', 'h'),
}
READ = {
    'refit': ('linear reader fitted at N', '#44AA99', 'p'),
    'refit_strong': ('the same, of strong axes alone', '#CC6677', 'v'),
    'attended_class': ('class with most attention weight', '#999999', 'X'),
}
INTERVENTIONS = RESTORED | ATTENDED | IMPOSED | READ
_IMPOSED_ROW = 'Output of short inputs (target known), given the {} at N'
_GROUPS = {
    'Moments as in training, target not known': RESTORED,
    'Attention told which item is the target, an upper limit': ATTENDED,
    _IMPOSED_ROW: IMPOSED,
    'Output unchanged, read otherwise, target not known': READ,
}
# These lines nearly coincide with others of their group or with the unchanged model.
# Larger hollow markers, or dashes, keep both visible.
_LARGE = {'rescaled': 5.5, 'reweighted': 5.5}
_DASHES = {'one_hot': (0, (1, 2)), 'rescaled': (0, (3, 3))}


def figure(
    index: Index, setting: Setting,
    headline: str = 'Accuracy if the attention output is changed',
) -> Figure:
  """Draws accuracy by length under each intervention, and variance of the output.

  Args:
    index: from `vvlen.reporting.results.index`.
    setting: the task and the training.
    headline: what the figure shows, its title.
  """
  arms = arms_of(index)
  # Older results have no linear readers.
  groups = {title: group for title, group in _GROUPS.items()
            if any(key[0].partition('+')[2] in group for key in index)}
  count = plots.seeds_of(index, 'accuracy')
  seeds = plots.over_seeds(count)
  drawn = plots.new(
      2.4 + 2.0 * len(groups), headline,
      'Accuracy by number of items N of trained models whose attention output is '
      'changed, a row for each kind of change and a column for each arm, and variance '
      f'of the output relative to the shortest N (last row): {seeds}; training lengths '
      'grey, chance dotted. The title is of the change that restores most of those in '
      'rows where the target is not known, and, at one length, of lengths that lose 5 '
      'points or more. z-scores of training come from short inputs, where the '
      f'target is known.{_not_run(groups.values(), index)}',
      plots.with_bands(setting.title, count))
  parts: Any = drawn.subfigures(len(groups) + 1, 1, height_ratios=[
      *(1.5 + 0.13 * -(-(len(group) + 2) // 2) for group in groups.values()), 1.75])
  for part, (title, group) in zip(parts, groups.items(), strict=False):
    row = part.subplots(1, len(arms), sharey=True, squeeze=False)[0]
    for axes, arm in zip(row, arms, strict=True):
      _changed(axes, index, arm, group, setting)
      axes.set_title(SPELLED[arm])
    row[0].set_ylabel('accuracy (%)')
    part.suptitle(title.format(_imposed(index)), fontsize=7.5)
    plots.legend(part, row, 2)
  axes = parts[-1].subplots()
  plots.log_axis(axes)
  for arm in arms:
    lengths, total = plots.values(index, arm, 'total_variance')
    plots.band(axes, lengths, total / total[:, :1], arm)
  axes.set(title='Variance of the output, relative to the shortest N')
  plots.length_axis(axes, setting.trained_up_to, 11)
  plots.legend(parts[-1], [axes], 3)
  return drawn


def _changed(
    axes: Axes, index: Index, arm: str, group: Mapping[str, tuple[str, str, str]],
    setting: Setting,
) -> None:
  """Draws the accuracy of an arm under each intervention of a group, and without."""
  for name, (label, colour, marker) in group.items():
    at, values = plots.values(index, f'{arm}+{name}', 'accuracy')
    if at:
      plots.draw(axes, at, 100 * values, colour, marker, label, _DASHES.get(name, '-'))
      if name in _LARGE:
        axes.lines[-1].set(markersize=_LARGE[name], markerfacecolor='none')
  lengths, unchanged = plots.values(index, arm, 'accuracy')
  plots.draw(axes, lengths, 100 * unchanged, 'black', '', 'unchanged', '--')
  axes.set(ylim=(0, 108), yticks=(0, 50, 100))
  if setting.chance:
    plots.chance(axes, 100 * setting.chance)
  plots.length_axis(axes, setting.trained_up_to)


def _imposed(index: Index) -> str:
  """Returns which moments of length N were imposed, such as 'mean or variance'."""
  run = {arm.partition('+')[2] for arm, _, _ in index}
  single = [words for name, words in (('shifted', 'mean'), ('shrunk', 'variance'))
            if name in run]
  both = ['both' if len(single) == 2 else 'mean and variance'] * ('vanished' in run)
  *first, last = [*single, *both] or ['']
  return ', '.join(first) + ' or ' * bool(first) + last


def _not_run(groups: Iterable[Mapping[str, Any]], index: Index) -> str:
  """Returns a sentence on changes of the groups that have no results, or ''."""
  run = {arm.partition('+')[2] for arm, _, _ in index}
  absent = [label for group in groups for name, (label, *_) in group.items()
            if name not in run]
  return f' Not run here: {"; ".join(absent)}.' if absent else ''


def arms_of(index: Index) -> list[str]:
  """Returns the trained arms that have results, Baseline first."""
  return [arm for arm in ARMS if any(key[0] == arm for key in index)]
