"""The figure of interventions on the attention output. Runs without JAX."""

from matplotlib.figure import Figure

from vvlen import plots
from vvlen.plots import ARMS
from vvlen.results import Index

# Suffix of the arm's name -> what is done, colour (Okabe and Ito's, Tol's), marker.
RESTORED = {
    'rescaled': ('norm as in training', '#E69F00', 's'),
    'recentred': ('mean as in training', '#56B4E9', 'v'),
    'standardized': ('mean and variance as in training', '#D55E00', '^'),
    'reweighted': ('weight of the target as in training', '#8C6D31', '.'),
    'one_hot': ('all weight on the target', '#CC79A7', 'D'),
}
IMPOSED = {
    'shifted': ('signal of training, mean as at N', '#117733', '<'),
    'shrunk': ('signal of training, variance as at N', '#882255', '>'),
    'vanished': ('signal of training, mean and variance as at N', '#332288', 'o'),
}
INTERVENTIONS = RESTORED | IMPOSED


def figure(index: Index, trained_up_to: int) -> Figure:
  """Draws accuracy by length under each intervention, and the output's variance."""
  arms = arms_of(index)
  drawn = Figure(figsize=(7.0, 2.2 * len(arms) + 1.2))
  panels = drawn.subplots(len(arms), 3, squeeze=False)
  for (restored, imposed, variance), arm in zip(panels, arms, strict=True):
    lengths, as_it_is = plots.values(index, arm, 'accuracy')
    for axes, group in ((restored, RESTORED), (imposed, IMPOSED)):
      for name, (done, colour, marker) in group.items():
        # All weight on the target lies on the weight of training, as does its norm on
        # what it is.
        linestyle = {'one_hot': (0, (1, 2)), 'rescaled': (0, (3, 3))}.get(name, '-')
        at, values = plots.values(index, f'{arm}+{name}', 'accuracy')
        if at:
          plots.draw(axes, at, 100 * values, colour, marker, done, linestyle)
      plots.draw(axes, lengths, 100 * as_it_is, 'black', '', 'as it is', '--')
      axes.set(ylim=(0, 103))
    restored.set(title=f'{ARMS[arm][0]}, changed', ylabel='accuracy (%)')
    imposed.set(title=f'{ARMS[arm][0]}, signal of training')
    lengths, total = plots.values(index, arm, 'total_variance')
    variance.set_yscale('log')
    plots.band(variance, lengths, total / total[:, :1], arm)
    variance.set(title='Variance of the output,\nrelative to the shortest N')
    for axes in (restored, imposed, variance):
      plots.length_axis(axes, trained_up_to)
      if arm != arms[-1]:
        axes.set_xlabel('')
    imposed.tick_params(labelleft=False)
  named = {
      label: handle for axes in panels[0, :2]
      for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
  }
  drawn.legend(
      named.values(), named, loc='outside lower center', ncols=2,
      title='bands: 95 % intervals of the mean over seeds; grey: training lengths',
      title_fontsize=7.5,
  )
  return drawn


def arms_of(index: Index) -> list[str]:
  """Returns the arms that have results, without interventions, Baseline first."""
  return [arm for arm in ARMS if any(key[0] == arm for key in index)]
