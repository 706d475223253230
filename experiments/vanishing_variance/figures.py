"""The figures of a family of runs. Runs without JAX."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
import numpy as np

from experiments.mechanism import parts
from experiments.vanishing_variance import effects
from experiments.vanishing_variance.effects import Claim, Effect, FamilyCell
from experiments.vanishing_variance.tables import Effects, last_effect, verdict_words
from vvlen.reporting import plots
from vvlen.reporting.endpoints import CONTROL, TREATED
from vvlen.reporting.numbers import counted, from_to
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index

_OPEN = '#6e6e6e'  # where no difference was found
_BAND = '#ececec'
_VERDICTS = (effects.AHEAD, effects.AHEAD_LITTLE, effects.BEHIND,
             effects.BEHIND_LITTLE, effects.EQUAL)
_PARTS = (
    ('weights', 'a linear reader loses it too', '#4d4d4d'),
    ('rest', 'only a linear reader does not lose it', '#56B4E9'),
    ('scales', 'mean and variance as in training restore it', '#E69F00'),
)


def verdicts(cells: Mapping[str, FamilyCell], found: Effects, claim: Claim) -> Figure:
  """Draws the effect of LN in each cell, after its last step and during training."""
  drawn = plots.new(
      1.9 + 0.36 * len(cells), _title(cells, found),
      'Accuracy beyond the training lengths, LN minus Baseline in points, paired over '
      'seeds: on the left after the last step, with 95 % intervals corrected over the '
      f'{claim.num_tests} settings, hollow where seeds are missing, nothing where an '
      'arm has not learned; on the right during training, with uncorrected 95 % '
      f'intervals as bands. {_finished(cells, found)}',
      'accuracy beyond the training lengths; left bars: corrected 95 % intervals, '
      'right bands: uncorrected')
  left, right = drawn.subplots(1, 2, width_ratios=[1.25, 1])
  for axes, vertical in ((left, False), (right, True)):
    span = axes.axhspan if vertical else axes.axvspan
    span(-claim.equivalence, claim.equivalence, color=_BAND, zorder=0, linewidth=0)
    line = axes.axhline if vertical else axes.axvline
    line(0, color='black', linewidth=0.8)
  _by_cell(left, cells, found, claim)
  _along(right, cells, found)
  unit = 'point' if claim.equivalence == 1 else 'points'
  handles: list[Any] = [
      *right.get_lines()[1:],
      Line2D([], [], color=_OPEN, marker=ARMS[TREATED][2],
             label='no difference found'),
      Patch(color=_BAND, label=f'within {claim.equivalence:g} {unit}, the smallest '
            'effect of interest'),
  ]
  drawn.legend(handles=handles, loc='outside lower center', ncols=2)
  return drawn


def _title(cells: Mapping[str, FamilyCell], found: Effects) -> str:
  """Returns the effects of LN without and with L2, and their tasks, as a title."""
  gains: dict[bool, list[float]] = {False: [], True: []}
  tasks: dict[str, None] = {}  # in the order of the cells
  for cell in cells.values():
    last = last_effect(found, cell)
    if last is not None and last.test is not None and last.complete and last.learned:
      gains[bool(cell.l2)].append(last.test.mean_difference)
      tasks[cell.task] = None
  said = [
      f'{from_to(own, "+.1f")} points {"with" if decays else "without"} L2'
      for decays, own in gains.items() if own
  ]
  title = 'LN − Baseline in accuracy'
  return f'{title} of {" and ".join(tasks)}: {", ".join(said)}' if said else title


def _finished(cells: Mapping[str, FamilyCell], found: Effects) -> str:
  """Returns a sentence on how many settings are finished."""
  last = [last_effect(found, cell) for cell in cells.values()]
  done = sum(each is not None and each.complete for each in last)
  return f'{done} of {len(cells)} settings {"is" if done == 1 else "are"} finished.'


def _by_cell(
    axes: Axes, cells: Mapping[str, FamilyCell], found: Effects, claim: Claim
) -> None:
  """Draws one line per cell, those without L2 above those with it."""
  labels = []
  for y, cell in enumerate(sorted(cells.values(), key=lambda cell: cell.l2 > 0)):
    last = last_effect(found, cell)
    labels.append(f'{_short(cell)}\n{cell.steps[-1]:,} steps: '
                  f'{verdict_words(last, claim)}')
    if last is not None and last.corrected is not None and last.learned:
      test = last.corrected
      colour = ARMS[TREATED][1] if last.verdict in _VERDICTS else _OPEN
      axes.errorbar(  # hollow where seeds are still missing
          x=[test.mean_difference], y=[y], color=colour, marker=ARMS[TREATED][2],
          capsize=2,
          markerfacecolor=colour if last.complete else 'white',
          xerr=[[test.mean_difference - test.ci_low],
                [test.ci_high - test.mean_difference]],
      )
  axes.set_yticks(range(len(labels)), labels)
  axes.set_ylim(len(labels) - 0.5, -0.7)
  axes.grid(visible=False, axis='y')
  axes.set(xlabel='LN − Baseline (points)\n← hurts    helps →',
           title='after the last step')


def _short(cell: FamilyCell) -> str:
  """Describes the setting of a cell in words that fit into a figure."""
  where = 'all parameters' if cell.l2_on == 'all' else 'kernels'
  words = [
      cell.task, f'up to {cell.trained_up_to}' if cell.grows else '',
      f'L2 on {where}' if cell.l2 else 'no L2',
      'decaying rate' if cell.decays else '',
      'output projection' if cell.output_projection else '',
  ]
  return ', '.join(word for word in words if word)


def _along(axes: Axes, cells: Mapping[str, FamilyCell], found: Effects) -> None:
  """Draws the effect of LN by step, for cells that are measured at several steps."""
  followed = [cell for cell in cells.values() if len(cell.steps) > 1]
  # The first three looks are those of the arms.
  for cell, (colour, marker) in zip(followed, plots.LOOKS[3:], strict=False):
    points = [(e.step, e.test) for e in found.get((cell.name, ''), ())
              if e.complete and e.test]
    if not points:
      continue
    at, tests = zip(*points, strict=True)
    axes.plot(at, [t.mean_difference for t in tests], color=colour, marker=marker,
              label=_short(cell).removeprefix('retrieval, '))
    axes.fill_between(at, [t.ci_low for t in tests], [t.ci_high for t in tests],
                      color=colour, alpha=0.15, linewidth=0)
  steps = sorted({step for cell in followed for step in cell.steps})
  axes.set(xscale='log', xlabel='steps', ylabel='LN − Baseline (points)',
           title='retrieval, constant rate')
  if steps:
    axes.set_xlim(steps[0] / 1.2, steps[-1] * 1.2)
  axes.set_xticks(steps, [f'{step:,}' for step in steps], rotation=30)
  axes.minorticks_off()


def where_lost(indices: Mapping[str, Index], cells: Mapping[str, FamilyCell]) -> Figure:
  """Draws the parts of the lost accuracy by length, a bar for each of the two arms."""
  names = [*indices]
  # Two in a row; the last of an odd number has the whole row.
  rows: list[Any] = [[names[i], names[min(i + 1, len(names) - 1)]]
                     for i in range(0, len(names), 2)]
  drawn = plots.new(
      1.9 * len(rows) + 1.3,
      _lost(indices, cells),
      'Accuracy lost since the training lengths, in points, by number of items N, '
      'split into what a linear reader of the attention output loses too, and what it '
      f'does not lose: left bars {ARMS[CONTROL][0]}, right hatched bars '
      f'{ARMS[TREATED][0]}; means over seeds, with 95 % intervals of what the reader '
      'loses and of all that is lost.',
      f'accuracy lost at longer inputs in {ARMS[CONTROL][0]} and {ARMS[TREATED][0]}; '
      'reader: of the attention output, fitted at N, in place of the layers after it; '
      'blue and orange: not lost by the reader; bars: 95 % intervals')
  panels = drawn.subplot_mosaic(rows, sharey=True)
  for name, index in indices.items():
    axes = panels[name]
    for arm, shift in ((CONTROL, -0.2), (TREATED, 0.2)):
      _bars(axes, parts.parts(index, arm, cells[name].trained_up_to), shift,
            arm == TREATED)
    axes.set_title(f'{_short(cells[name])}, {cells[name].steps[-1]:,} steps')
    axes.set_axisbelow(True)
    axes.grid(visible=False, axis='x')
    axes.axhline(0, color='black', linewidth=0.6)
  for name, _ in rows:
    panels[name].set_ylabel('accuracy lost (points)')
  handles: list[Any] = [
      Patch(color=colour, label=label) for _, label, colour in _PARTS
  ]
  drawn.legend(handles=handles, loc='outside lower center', ncols=2,
               title=f'left bars {ARMS[CONTROL][0]}, right bars {ARMS[TREATED][0]}')
  return drawn


def _lost(indices: Mapping[str, Index], cells: Mapping[str, FamilyCell]) -> str:
  """Says which share of the lost accuracy a reader does not lose, at two lengths."""
  shares: dict[bool, dict[int, list[float]]] = {}  # by whether there is L2, by length
  for name, index in indices.items():
    for arm in (CONTROL, TREATED):
      found = parts.parts(index, arm, cells[name].trained_up_to)
      # At one of the lengths in the middle, and at the longest.
      for at in {(len(found.lengths) - 1) // 2, len(found.lengths) - 1}:
        readers, lost = np.nanmean(
            [found.readers[:, at], found.lost[:, at]], axis=1)
        if lost > 0:
          shares.setdefault(bool(cells[name].l2), {}).setdefault(
              found.lengths[at], []).append(100 * readers / lost)
  if not shares:
    return 'Where accuracy is lost'
  lengths = sorted({length for own in shares.values() for length in own})
  said = []
  for decays, own in sorted(shares.items()):
    ranges = (f'{from_to(own[length], ".0f")} %' for length in sorted(own))
    said.append(f'{" and ".join(ranges)} {"with" if decays else "without"} L2')
  where = ' and '.join(f'{length:,}' for length in lengths)
  return (f'Of the accuracy lost at N = {where}, a linear reader does not lose '
          + ', '.join(said))


def _bars(axes: Axes, found: parts.Parts, shift: float, hatched: bool) -> None:
  """Draws the stacked parts of one arm, one bar per length."""
  at = np.arange(len(found.lengths))
  values = {
      'weights': found.weights, 'rest': found.readers - found.scales,
      'scales': found.scales,
  }
  bottom = np.zeros(len(at))
  for name, _, colour in _PARTS:
    mean = values[name].mean(axis=0)
    axes.bar(at + shift, mean, 0.36, bottom=bottom, color=colour,
             hatch='////' if hatched else '', edgecolor='white', linewidth=0)
    bottom = bottom + mean
  for table in (found.weights, found.lost):
    mean, low, high = plots.mean_interval(table)
    axes.errorbar(x=at + shift, y=mean, yerr=[mean - low, high - mean], color='black',
                  linestyle='', capsize=1.5, linewidth=0.8)
  axes.set_xticks(at, [f'{n:,}' for n in found.lengths])
  axes.set_xlabel('number of items N')


def _seeds(effect: Effect) -> str:
  count, asked = len(effect.comparison.primary_differences), effect.cell.num_seeds
  return f'{count} seeds' if count == asked else f'{count} of {asked} seeds'


def _averaged(pairs: Sequence[tuple[FamilyCell, Effect, Effect]]) -> str:
  """Says how many verdicts averaged weights keep, and by what they multiply spreads."""
  kept, ratios = [], collections.defaultdict(list)
  for cell, *both in pairs:
    if all(each.learned and each.complete and each.step == cell.steps[-1]
           for each in both):
      kept.append(both[0].verdict == both[1].verdict)
      plain, averaged = (
          np.std([*each.comparison.primary_differences.values()], ddof=1)
          for each in both)
      if plain > 0:
        ratios[cell.decays].append(float(averaged / plain))
  if not kept:
    return 'Weights as they are, and averaged'
  said = []
  for decays in (False, True):
    if own := ratios[decays]:
      said.append(f'× {from_to(own, ".2f")} at {"decaying" if decays else "constant"} '
                  'rates')
  return (f'Averaging weights keeps {sum(kept)} of {counted(len(kept), "verdict")}'
          + f'; spread over seeds {", ".join(said)}' * bool(said))


def averaging(
    found: Effects, cells: Mapping[str, FamilyCell], claim: Claim
) -> Figure | None:
  """Draws LN − Baseline for each seed, with weights as they are and averaged.

  Cells that an arm has not learned are left out.
  """
  pairs: list[tuple[FamilyCell, Effect, Effect]] = [
      (cell, plain[-1], averaged[-1])
      for cell in cells.values()
      for plain, averaged in [(found.get((cell.name, ''), ()),
                               found.get((cell.name, '+averaged'), ()))]
      if plain and averaged and plain[-1].step == averaged[-1].step
      and plain[-1].learned
  ]
  if not pairs:
    return None
  drawn = plots.new(
      1.8 + 0.46 * len(pairs), _averaged(pairs),
      'Accuracy beyond the training lengths, LN minus Baseline in points, a dot for '
      'each seed and a bar for their mean, with the weights of the last step and with '
      'weights averaged over the last tenth of steps; on the left, the verdict with '
      'each of both; settings that an arm has not learned are left out.',
      'LN − Baseline, accuracy beyond the training lengths; a marker for each seed; '
      'verdicts: weights as they are → averaged')
  axes = drawn.subplots()
  _, colour, marker = ARMS[TREATED]
  looks: Any = dict(color=colour, marker=marker, linestyle='', alpha=0.7)
  kinds = (('weights as they are', -0.16, colour),
           ('averaged over the last tenth of steps', 0.16, 'white'))
  for y, (_, *both) in enumerate(pairs):
    for each, (_, shift, fill) in zip(both, kinds, strict=True):
      differences = list(each.comparison.primary_differences.values())
      axes.plot(differences, np.full(len(differences), y + shift),
                markerfacecolor=fill, **looks)
      axes.plot([np.mean(differences)], [y + shift], '|', color='black', markersize=10)
  axes.axvline(0, color='black', linewidth=0.8)
  axes.set_yticks(range(len(pairs)), [
      f'{_short(cell)}\n{plain.step:,} steps, {_seeds(plain)}:\n'
      f'{" → ".join(verdict_words(each, claim) for each in (plain, averaged))}'
      for cell, plain, averaged in pairs])
  axes.set_ylim(len(pairs) - 0.5, -0.6)
  axes.grid(visible=False, axis='y')
  axes.set_xlabel('LN − Baseline (points)\n← hurts    helps →')
  drawn.legend(loc='outside lower center', ncols=3, handles=[
      Line2D([], [], label=label, markerfacecolor=fill, **looks)
      for label, _, fill in kinds
  ] + [Line2D([], [], label='mean of seeds', color='black', marker='|', markersize=10,
              linestyle='')])
  return drawn
