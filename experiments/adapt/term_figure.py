"""The figure of what the misalignment term changes. Runs without JAX."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.adapt.primary import corrected_tests
from experiments.language_model import paper
from experiments.language_model.arms import endpoint, Family, Run
from experiments.language_model.figures import label, times
from experiments.language_model.tables import compare
from vvlen.reporting import plots
from vvlen.reporting.numbers import number
from vvlen.reporting.results import Index
from vvlen.statistics import PairedTest

_PRIMARY, _OTHER = plots.LOOKS[5], plots.LOOKS[0]
# Where a change is at least so large, the axis is logarithmic beyond ±_LINEAR, nats.
_WIDE, _LINEAR = 0.2, 0.01


def term(
    families: Sequence[Family], run: Run, index: Index, weak: Sequence[str] = ()
) -> Figure | None:
  """Draws every arm minus the control of its method, a panel for each method.

  Args:
    families: those with results.
    run: the run.
    index: of its rows.
    weak: titles of the methods that predict no better than counts of pairs of tokens;
      their differences have no intervals.

  Returns:
    The figure; None if no method has a test of the primary endpoint.
  """
  shown = corrected_tests(families, run, index)
  if not shown:
    return None
  rows = list(dict.fromkeys(
      label(arm) for family, _ in shown for arm in family.others))
  place = times(endpoint(run) // run.length)
  seeds = max(test.num_pairs for _, test in shown)
  learned = [test for family, test in shown if family.title not in weak]
  figure = plots.new(
      1.1 + 0.2 * len(rows), _message(learned, place),
      f'Log perplexity at {place} minus that of α = 0 with the same method, paired '
      f'over {seeds} seeds, with 95 % intervals: corrected by Holm over methods for '
      'the primary endpoint, which has another colour, uncorrected for other arms. '
      'Shaded: the paper, at 8,192 tokens: 2 L of CLEX, L of the others; α = 0.1, '
      'single runs of Llama-2-7B'
      + ('; without intervals: methods that have not learned.' if weak else '.'),
      plots.with_bands(f'{run.words}, L = {run.length} tokens', seeds, 'bars'))
  panels = figure.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False)[0]
  changes = []
  for axes, (family, test) in zip(panels, shown, strict=True):
    changes += _draw(axes, family, test, rows, run, index, family.title not in weak)
    axes.set_title(family.title)
  panels[0].set_yticks(range(len(rows)), rows)
  panels[0].set_ylim(len(rows) - 0.4, -0.6)
  figure.supxlabel(
      f'change of log perplexity, nats{_spread(panels[0], changes)}',
      fontsize=plots.SMALLEST)
  return figure


def _spread(axes: Axes, changes: Sequence[float]) -> str:
  """Gives panels that share this axis a logarithmic one if changes differ much.

  Returns:
    What is to be said of it.
  """
  widest = max(map(abs, changes))
  if widest < _WIDE:
    return ''
  axes.set_xscale('symlog', linthresh=_LINEAR)
  ticks = [-_LINEAR, 0, _LINEAR, 10 * _LINEAR]
  words = [number(x, 'g') for x in ticks]
  axes.set_xticks(ticks, [words[0], words[1], '', words[3]])  # there is room for three
  axes.xaxis.set_minor_locator(NullLocator())
  axes.set_xlim(right=1.5 * max(axes.get_xlim()[1], widest))
  return f', logarithmic beyond ±{_LINEAR:g}'


def _draw(
    axes: Axes, family: Family, primary: PairedTest, rows: Sequence[str], run: Run,
    index: Index, learned: bool,
) -> list[float]:
  """Draws the arms of a method, a row each, and returns their changes."""
  changes = []
  axes.axvspan(*paper.changes(), color=plots.GREY, zorder=0, linewidth=0)
  axes.axvline(0, color='black', linewidth=0.8)
  for arm in family.others:
    is_primary = arm.name == family.primary
    test = primary if is_primary else compare(
        index, arm.name, family.control.name, endpoint(run))
    if test is None:
      continue
    colour, marker = _PRIMARY if is_primary else _OTHER
    mean = test.mean_difference
    changes.append(mean)
    reach = [[mean - test.ci_low], [test.ci_high - mean]] if learned else None
    axes.errorbar(
        x=[mean], y=[rows.index(label(arm))], xerr=reach, color=colour, marker=marker,
        capsize=1.5, linestyle='', label=arm.name)
  axes.grid(visible=False, axis='y')
  return changes


def _message(tests: Sequence[PairedTest], place: str) -> str:
  """Counts the methods with which the term helps and harms."""
  worse = sum(test.p < 0.05 and test.mean_difference > 0 for test in tests)
  better = sum(test.p < 0.05 and test.mean_difference < 0 for test in tests)
  if not tests:
    return f'The misalignment term at {place}: no method has learned'
  return (f'Misalignment term, α = 0.1, at {place}: worse with {worse} of '
          f'{len(tests)} methods, better with {better}')
