"""Figures of language models with and without the misalignment term.

Runs without JAX.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
import numpy as np

from experiments.language_model import paper
from experiments.language_model.arms import Arm, endpoint, Family, have_learned, Run
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, number
from vvlen.reporting.results import Index
from vvlen.statistics import mean_interval

# The term whose weight is α -> words on it; none on the misalignment term itself.
_TERMS = {'sce': '', 'entropy': ' of entropy', 'symmetric_kl': ' of symmetric KL'}


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


def times(multiple: int) -> str:
  """Returns the name of a multiple of the training length."""
  return f'{multiple} L' if multiple > 1 else 'L'


def look(run: Run, arm: Arm) -> tuple[str, str, str]:
  """Returns colour, marker and line of an arm, the same in all figures of a run."""
  place = [*run.arms].index(arm.name)
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
    most: the log perplexity at L above which a model has not learned. The change of
      such an arm, or from such a control, has no interval.
  """
  arms = (family.control, *family.others)
  seeds = max(len(index[arm.name, 'nll', run.length]) for arm in arms)
  known = _published(family)
  lost = {arm.name for arm in family.others
          if not have_learned(family, arm.name, run, index, most)}
  reference = label_in(family, family.control)
  figure = plots.new(
      3.1 if len(arms) < 4 else 3.3,
      f'{_headline(family, run, index, lost)}\n{_models(run)}',
      f'Perplexity, the difference of its logarithm from that of {reference}, paired '
      'by seed, and symmetric KL of two windows, by length of context: '
      f'{plots.over_seeds(seeds, "geometric mean of perplexity, mean of the others,")}'
      + '; a band to the bottom reaches 0' * _reaches_0(arms, index)
      + ('; without an interval: the difference where a model has not learned'
         if lost else '')
      + ("; hollow, right of its place: the paper's Llama-2-7B with CLEX on "
         'RedPajama-Book at 2 L, one run each' if known else '') + '.')
  plain, difference, divergence = figure.subplots(1, 3)
  plots.log_axis(plain)
  plots.log_axis(divergence)
  measured = set()  # lengths with symmetric KL
  for arm in arms:
    colour, marker, line = look(run, arm)
    name = label_in(family, arm) + ', not learned' * (arm.name in lost)
    lengths, nll = plots.values(index, arm.name, 'nll')
    plots.draw(plain, lengths, np.exp(nll), colour, marker, name, line)
    lengths, change = plots.gain(index, arm.name, family.control.name, 'nll')
    if arm is not family.control and len(change):
      if arm.name in lost:
        difference.plot(lengths, mean_interval(change)[0], color=colour, marker=marker,
                        linestyle=line, label=name)
      else:
        plots.draw(difference, lengths, change, colour, marker, name, line)
    lengths, apart = plots.values(index, arm.name, 'symmetric_kl')
    if lengths:
      plots.draw(divergence, lengths, apart, colour, marker, name, line,
                 geometric=False)
      measured |= {*lengths}
    if arm.name in known:  # beside our points
      difference.plot([2**1.25 * run.length], [known[arm.name]], color=colour,
                      marker=marker, markerfacecolor='white', markersize=5,
                      linestyle='', zorder=3)
  if known:
    _, marker, _ = look(run, next(arm for arm in arms if arm.name in known))
    difference.plot([], [], color='black', marker=marker, markerfacecolor='white',
                    markersize=5, linestyle='', label='hollow: the paper, Llama-2-7B')
  difference.axhline(0, color=look(run, family.control)[0], linewidth=1.0)
  for axes in (plain, difference, divergence):
    axes.set_xscale('log', base=2)
    shown = [m for m in run.multiples
             if axes is not divergence or not measured or m * run.length in measured]
    axes.set_xticks([m * run.length for m in shown], [times(m) for m in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel('length of context')
  plain.set(title='perplexity')
  difference.set(title=f'log perplexity, nats,\nminus that of {reference}')
  divergence.set(title='symmetric KL, nats')
  _legend(figure, [plain, difference], family)
  return figure


def _headline(
    family: Family, run: Run, index: Index, lost: Collection[str]
) -> str:
  """Says what arms change at the primary endpoint, those in `lost` left out."""
  at, changes = endpoint(run), []
  for arm in family.others:
    lengths, table = plots.gain(index, arm.name, family.control.name, 'nll')
    if arm.name not in lost and at in lengths and len(table):
      mean, low, high = mean_interval(table[:, lengths.index(at)])
      changes.append((float(mean), label_in(family, arm), [float(low), float(high)]))
  changes = sorted(change for change in changes if math.isfinite(change[0]))
  if not changes:
    return family.title
  (least, name, ends), *others = changes
  words = number(least, '+.3f')
  if others:
    most, other, _ = others[-1]
    words += f' ({name}) to {number(most, "+.3f")} nats ({other})'
  else:
    known = ', '.join(number(x, '+.3f') for x in ends if math.isfinite(x))
    words += ' nats' + f' [{known}]' * bool(known)
  return (f'{family.title}: log perplexity at {times(at // run.length)} changes by\n'
          f'{words}')


def _reaches_0(arms: Iterable[Arm], index: Index) -> bool:
  """Returns whether an interval of symmetric KL reaches 0, which a log axis lacks."""
  every = [plots.values(index, arm.name, 'symmetric_kl')[1] for arm in arms]
  return any((mean_interval(table)[1] <= 0).any() for table in every if len(table) > 1)


def _legend(figure: Any, panels: Iterable[Axes], family: Family) -> None:
  """Writes the labels of arms below a figure, more in a row if they are short."""
  arms = (family.control, *family.others)
  short = all(len(label_in(family, arm)) < 9 for arm in arms)
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


def _models(run: Run) -> str:
  """Returns words on the models of a run, for titles."""
  return ', '.join(filter(None, (
      'language models', run.words, f'L = {run.length} tokens')))


def by_step(families: Sequence[Family], run: Run, lines: Iterable[Mapping[str, Any]]
            ) -> Figure:
  """Draws perplexity and symmetric KL during training, a row for each family of arms.

  Args:
    families: with those arms that have results.
    run: the run.
    lines: of evaluations.jsonl, from `vvlen.reporting.curves.read_curves`.
  """
  lines = list(lines)
  panels = {f'nll_{m * run.length}': f'perplexity at {times(m)}'
            for m in (run.multiples[0], run.multiples[-1])}
  panels[f'symmetric_kl_{run.length}'] = 'symmetric KL at L, nats'
  names = {line['arm'] for line in lines}
  rows = [(family, [arm for arm in (family.control, *family.others)
                    if arm.name in names]) for family in families]
  rows = [(family, arms) for family, arms in rows if arms]
  figure = plots.new(
      0.7 + 2.0 * len(rows), f'{_falls(rows, run, lines)}\n{_models(run)}', '')
  parts: Any = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
  seeds, first = 0, None
  for part, (family, arms) in zip(parts, rows, strict=True):
    row = part.subplots(1, len(panels))
    first = row if first is None else first
    words = family.title
    if len(words) < 30:  # as wide as two lines, so that panels stand below each other
      words = f'{words}\n '
    else:
      words = words.replace(', ', ',\n').replace(' of the ', ' of the\n')
    part.supylabel(words, fontsize=7.5)
    for axes, top, (metric, title) in zip(row, first, panels.items(), strict=True):
      plots.log_axis(axes)
      if axes is not top:
        axes.sharey(top)
      for arm in arms:
        steps, values = _course(lines, arm.name, metric)
        seeds = max(seeds, len(values))
        colour, marker, line = look(run, arm)
        plots.draw(axes, steps, values, colour, marker, label_in(family, arm), line,
                   geometric=metric.startswith('nll'))
      if part is parts[0]:
        axes.set_title(title)
      if part is parts[-1]:
        axes.set_xlabel('steps')
      _step_ticks(axes, sorted({line['step'] for line in lines}))
    _legend(part, row[:1], family)
  figure.set_label(
      'Perplexity at the training length L and at the longest, and symmetric KL of two '
      'windows, by training step, a row for each family of arms: '
      f'{plots.over_seeds(seeds, "geometric mean of perplexity, mean of the other,")}.')
  return figure


def _falls(
    rows: Sequence[tuple[Family, Sequence[Arm]]], run: Run,
    lines: Sequence[Mapping[str, Any]],
) -> str:
  """Says in how many arms perplexity falls, at L and at the longest length."""
  arms = dict.fromkeys(arm.name for _, own in rows for arm in own)
  said: list[str] = []
  begins: set[int] = set()
  for multiple in dict.fromkeys((run.multiples[0], run.multiples[-1])):
    falls = 0
    for name in arms:
      steps, values = _course(lines, name, f'nll_{multiple * run.length}')
      means = mean_interval(np.log(values))[0]  # geometric, as it is drawn
      begins.add(steps[0])
      falls += bool(means[-1] < means[0])
    said.append(f'in {falls}' + f' of {counted(len(arms), "arm")}' * (not said)
                + f' at {times(multiple)}')
  if len({line['step'] for line in lines}) < 2 or len(begins) > 1:
    return 'Perplexity and symmetric KL during training'
  return (f'From step {begins.pop():,} to the last, perplexity falls\n'
          + ', '.join(said))


def _course(
    lines: Sequence[Mapping[str, Any]], arm: str, metric: str
) -> tuple[list[int], np.ndarray]:
  """Returns the steps of an arm, and its perplexity or metric [seeds, steps]."""
  own = [line for line in lines if line['arm'] == arm]
  steps = sorted({line['step'] for line in own})
  table = [np.concatenate([np.array(line[metric], float) for line in own
                           if line['step'] == step]) for step in steps]
  most = max(map(len, table))
  filled = np.array([np.pad(x, (0, most - len(x)), constant_values=np.nan)
                     for x in table]).T
  return steps, np.exp(filled) if metric.startswith('nll') else filled


def _step_ticks(axes: Axes, steps: list[int]) -> None:
  """Labels the evaluated steps if they are few and well apart, else round numbers."""
  apart = (steps[-1] - steps[0]) / 5
  kept = [steps[-1]]
  for step in reversed(steps[:-1]):
    if kept[-1] - step >= apart:
      kept.append(step)
  if len(steps) <= 6 and kept[-1] == steps[0]:
    axes.set_xticks(kept)
  else:
    axes.xaxis.set_major_locator(
        MaxNLocator(4, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
  axes.xaxis.set_major_formatter('{x:,.0f}')
