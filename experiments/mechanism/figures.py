"""The figure of interventions on the attention output. Runs without JAX."""

from matplotlib.figure import Figure

from vvlen.reporting import plots
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index

# Suffix of the arm's name -> (label, colour of Okabe and Ito or Tol, marker).
RESTORED = {
    'rescaled': ('norm as in training', '#E69F00', 's'),
    'recentred': ('mean as in training', '#56B4E9', 'v'),
    'standardized': ('mean and variance as in training', '#D55E00', '^'),
    'covariance': ('mean and covariance as in training', '#F0E442', 'P'),
    'reweighted': ('weight of the target as in training', '#8C6D31', '.'),
    'one_hot': ('all weight on the target', '#CC79A7', 'D'),
}
IMPOSED = {
    'shifted': ('z-scores of training, mean as at N', '#117733', '<'),
    'shrunk': ('z-scores of training, variance as at N', '#882255', '>'),
    'vanished': ('z-scores of training, mean and variance as at N', '#332288', 'o'),
}
READ = {
    'refit': ('linear reader fitted at N', '#0072B2', 's'),
    'refit_strong': ('the same, of strong axes alone', '#AA4499', 'v'),
    'attended_class': ('class with most attention weight', '#999999', 'X'),
}
INTERVENTIONS = RESTORED | IMPOSED | READ


def figure(index: Index, trained_up_to: int) -> Figure:
  """Draws accuracy by length under each intervention, and variance of the output."""
  arms = arms_of(index)
  # Older results have no linear readers.
  groups = [RESTORED, IMPOSED] + [READ] * any('+refit' in key[0] for key in index)
  drawn = Figure(figsize=(1.0 + 2.0 * (len(groups) + 1), 2.2 * len(arms) + 1.2))
  panels = drawn.subplots(len(arms), len(groups) + 1, squeeze=False)
  for (*changed, variance), arm in zip(panels, arms, strict=True):
    lengths, as_it_is = plots.values(index, arm, 'accuracy')
    for axes, group in zip(changed, groups, strict=True):
      for name, (done, colour, marker) in group.items():
        # These two lines nearly coincide with others ('reweighted', and the unchanged
        # model), so they are dashed.
        linestyle = {'one_hot': (0, (1, 2)), 'rescaled': (0, (3, 3))}.get(name, '-')
        at, values = plots.values(index, f'{arm}+{name}', 'accuracy')
        if at:
          plots.draw(axes, at, 100 * values, colour, marker, done, linestyle)
      plots.draw(axes, lengths, 100 * as_it_is, 'black', '', 'as it is', '--')
      axes.set(ylim=(0, 103))
    titles = ('changed', 'z-scores of training', 'read otherwise')
    for axes, title in zip(changed, titles, strict=False):
      axes.set_title(f'{ARMS[arm][0]}, {title}')
    changed[0].set_ylabel('accuracy (%)')
    lengths, total = plots.values(index, arm, 'total_variance')
    variance.set_yscale('log')
    plots.band(variance, lengths, total / total[:, :1], arm)
    variance.set(title='Variance of the output,\nrelative to the shortest N')
    for axes in (*changed, variance):
      plots.length_axis(axes, trained_up_to)
      if arm != arms[-1]:
        axes.set_xlabel('')
    for axes in changed[1:]:
      axes.tick_params(labelleft=False)
  named = {
      label: handle for axes in panels[0, :-1]
      for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
  }
  drawn.legend(
      named.values(), named, loc='outside lower center', ncols=2,
      title='bands: 95 % intervals of the mean over seeds; grey: training lengths',
      title_fontsize=7.5,
  )
  return drawn


def arms_of(index: Index) -> list[str]:
  """Returns the trained arms that have results, Baseline first."""
  return [arm for arm in ARMS if any(key[0] == arm for key in index)]
