"""Figures of language models with and without the misalignment term.

Runs without JAX.
"""

from collections.abc import Collection, Iterable
from fractions import Fraction
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
import numpy as np

from experiments.language_model import paper
from experiments.language_model.arms import (
  Arm,
  endpoint,
  Family,
  have_learned,
  Run,
  without_learning,
)
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, number
from vvlen.reporting.results import Index
from vvlen.statistics import mean_interval

# The term whose weight is α -> words on it; none on the misalignment term itself.
_TERMS = {'sce': '', 'entropy': ' of entropy', 'symmetric_kl': ' of symmetric KL'}


NOT_LEARNED = ', not learned'  # follows the label of such an arm


def label(arm: Arm) -> str:
  """Returns the label of an arm: α, and what differs from the default."""
  parts = [f'α = {arm.weight:g}{_TERMS[arm.term]}']
  if arm.offsets != (0, 0.5):
    parts.append(_offsets(arm))
  if arm.steps != 1:
    parts.append(f'{arm.steps:g} of the steps')
  return ', '.join(parts)


def label_in(family: Family, arm: Arm) -> str:
  """Returns the label of an arm in a family, in whose figure it stands."""
  return _offsets(arm) if family.name == 'offsets' else label(arm)


def _offsets(arm: Arm) -> str:
  """Returns words on the range of an arm's offsets, such as 'offset up to L/2'."""
  low, high = (Fraction(x).limit_denominator(100) for x in arm.offsets)
  written = lambda x: (f'{x.numerator} L' if x.numerator != 1 else 'L') + (
      f'/{x.denominator}' if x.denominator != 1 else '')
  return f'offset {written(low)} to {written(high)}' if low else (
      f'offset up to {written(high)}')


def times(multiple: float) -> str:
  """Returns the name of a multiple of the training length."""
  return f'{multiple:g} L' if multiple > 1 else 'L'


def look(run: Run, arm: Arm) -> tuple[str, str, str]:
  """Returns colour, marker and line of an arm, the same in all figures of a run.

  Arms that differ in name alone, of several methods, look alike.
  """
  settings = {name: other._replace(name='') for name, other in run.arms.items()}
  place = [*dict.fromkeys(settings.values())].index(settings[arm.name])
  return (*plots.LOOKS[place % len(plots.LOOKS)],
          '-' if place < len(plots.LOOKS) else '--')


def by_length(
    family: Family, run: Run, index: Index, most: float = math.inf
) -> Figure:
  """Draws perplexity by length, the change of its logarithm, and symmetric KL.

  Args:
    family: the arms to draw.
    run: the run.
    index: of the rows of the run.
    most: the log perplexity at L above which a model has not learned, which its label
      says. The change of such an arm, or from such a control, has no interval.
  """
  arms = (family.control, *family.others)
  seeds = max(len(index[arm.name, 'nll', run.length]) for arm in arms)
  known = _published(family)
  lost = {arm.name for arm in family.others
          if not have_learned(family, arm.name, run, index, most)}
  weak = without_learning(run, index, most)
  reference = label_in(family, family.control)
  apart_of = {arm.name: plots.values(index, arm.name, 'symmetric_kl')
              for arm in arms}
  reaching = {name for name, (_, apart) in apart_of.items() if _reaches_0(apart)}
  overlap = len(family.others) > 2  # so that bars take the place of bands
  figure = plots.new(
      3.1 if len(arms) < 4 else 3.3,
      _headline(family, run, index, lost),
      f'Perplexity, the difference of its logarithm from that of {reference}, paired '
      'by seed, and symmetric KL of two windows, by length of context: '
      f'{plots.over_seeds(seeds, "geometric mean of perplexity, mean of the others,")}'
      + '; bars where bands would overlap' * overlap
      + '; bars to the bottom reach 0' * bool(reaching)
      + ('; without an interval: the difference where a model has not learned'
         if lost else '')
      + ("; hollow: the paper's Llama-2-7B with CLEX on RedPajama-Book at 2 L, one run "
         'each' if known else '') + '.',
      plots.with_bands(f'{family.title}; {models_of(run, family)}', seeds,
                       'bands and bars' if overlap or reaching else 'bands'))
  plain, difference, divergence = figure.subplots(1, 3)
  plots.log_axis(plain)
  plots.log_axis(divergence)
  measured = set()  # lengths with symmetric KL
  means: list[float] = []  # of it
  for place, arm in enumerate(arms):
    colour, marker, line = look(run, arm)
    name = label_in(family, arm) + NOT_LEARNED * (arm.name in weak)
    lengths, nll = plots.values(index, arm.name, 'nll')
    plots.draw(plain, lengths, np.exp(nll), colour, marker, name, line)
    lengths, change = plots.gain(index, arm.name, family.control.name, 'nll')
    if arm is not family.control and len(change):
      if arm.name in lost:
        difference.plot(lengths, mean_interval(change)[0], color=colour, marker=marker,
                        linestyle=line, label=name)
      elif overlap:
        plots.bars(difference, lengths, change, colour, marker, name, line,
                   0.12 * (place - len(arms) / 2))
      else:
        plots.draw(difference, lengths, change, colour, marker, name, line)
    lengths, apart = apart_of[arm.name]
    if lengths:
      if arm.name in reaching:
        plots.bars(divergence, lengths, apart, colour, marker, name, line)
      else:
        plots.draw(divergence, lengths, apart, colour, marker, name, line,
                   geometric=False)
      measured |= {*lengths}
      means += [*mean_interval(apart)[0]]
    if arm.name in known:
      difference.plot([2 * run.length], [known[arm.name]], color=colour,
                      marker=marker, markerfacecolor='white', markersize=5,
                      linestyle='', zorder=3)
  if known:
    _, marker, _ = look(run, next(arm for arm in arms if arm.name in known))
    difference.plot([], [], color='black', marker=marker, markerfacecolor='white',
                    markersize=5, linestyle='',
                    label='hollow: the paper at 2 L, Llama-2-7B')
  difference.axhline(0, color=look(run, family.control)[0], linewidth=1.0)
  for axes in (plain, difference, divergence):
    axes.set_xscale('log', base=2)
    shown = [m for m in run.multiples
             if axes is not divergence or not measured or m * run.length in measured]
    axes.set_xticks([m * run.length for m in shown], [times(m) for m in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel('length of context')
  if reaching:
    divergence.set_ylim(bottom=min(x for x in means if x > 0) / 3)
  plain.set(title='perplexity')
  difference.set(title=f'log perplexity, nats,\nminus that of {reference}')
  divergence.set(title='symmetric KL of\ntwo windows, nats')
  legend(figure, [plain, difference], family, weak)
  return figure


def _headline(
    family: Family, run: Run, index: Index, lost: Collection[str]
) -> str:
  """Says what arms change from the control, those in `lost` left out.

  That is of one arm the range over all lengths, of several the range over arms at the
  length of the primary endpoint; and where intervals do not reach 0.
  """
  at, changes = endpoint(run), []
  tables = {}
  for arm in family.others:
    lengths, table = plots.gain(index, arm.name, family.control.name, 'nll')
    if arm.name not in lost and at in lengths and len(table):
      tables[label_in(family, arm)] = dict(
          zip(lengths, np.transpose(mean_interval(table)), strict=True))
  if len(tables) == 1:
    [by_length] = tables.values()
    where = f'{times(lengths[0] // run.length)} to {times(lengths[-1] // run.length)}'
    changes = [(times(n // run.length), found) for n, found in by_length.items()]
  else:
    where = times(at // run.length)
    changes = [(name, by_length[at]) for name, by_length in tables.items()]
  changes = [(name, found) for name, found in changes if math.isfinite(found[0])]
  if not changes:
    return 'Perplexity by length of context'  # the family is in the setup
  ends = [min(changes, key=lambda each: each[1][0]),
          max(changes, key=lambda each: each[1][0])]
  sides: dict[str, list[str]] = {}
  for name, (_, low, high) in changes:
    if math.isfinite(low):
      sides.setdefault('worse' if low > 0 else 'better' if high < 0 else
                       'no difference found', []).append(name)
  said = [side if len(sides) == 1 else f'{side} at {", ".join(names)}'
          for side, names in sides.items()]
  # Where sides differ, they name the arms and lengths.
  least, most = (number(float(mean), '+.3f') + f' ({name})' * (len(sides) < 2)
                 for name, (mean, *_) in ends)
  words = f'{least} nats' if least == most else f'{least} to {most} nats'
  reference = label_in(family, family.control)
  return (f'Change of log perplexity from {reference} at {where}: {words}'
          + f'; {", ".join(said)}' * bool(said))


def _reaches_0(table: np.ndarray) -> bool:
  """Returns whether an interval of [seeds, lengths] reaches 0."""
  return len(table) > 1 and bool((mean_interval(table)[1] <= 0).any())


def legend(
    figure: Any, panels: Iterable[Axes], family: Family, weak: Collection[str] = ()
) -> None:
  """Writes the labels of arms below a figure, more in a row if they are short.

  Labels of the arms in `weak` say that these have not learned, and are long.
  """
  arms = (family.control, *family.others)
  short = all(len(label_in(family, arm)) < 9 and arm.name not in weak for arm in arms)
  plots.legend(figure, panels, 5 if short else 2)


def _published(family: Family) -> dict[str, float]:
  """Returns {arm: the paper's log perplexity minus that of its baseline}.

  The paper's numbers are those of CLEX on RedPajama-Book after the last step, measured
  at twice its L.
  """
  of_alpha = paper.ALPHA['CLEX on RedPajama-Book']
  if family.name == 'alpha':
    found = {arm.name: of_alpha.get(f'{arm.weight:g}') for arm in family.others}
  elif family.name == 'equal_time':
    found = {arm.name: paper.EQUAL_TIME['CLEX on RedPajama-Book']
             for arm in family.others if (arm.weight, arm.steps) == (0.1, 0.95)}
  else:
    found = {}
  return {name: float(np.log(steps[-1] / of_alpha['0'][-1]))
          for name, steps in found.items() if steps}


def models_of(run: Run, family: Family | None = None) -> str:
  """Returns words on the models of a run, for setups; of a family if it is given."""
  differ = family and any(arm.steps != family.control.steps for arm in family.others)
  steps = counted(run.steps, 'step') + ' at most' * bool(differ) if run.steps else ''
  return ', '.join(filter(None, (
      'language models', run.words, steps, f'L = {run.length} tokens')))
