"""Figures of language models with and without the misalignment term.

Runs without JAX.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
import numpy as np

from vvlen.reporting import plots
from vvlen.reporting.results import Index


def label(arm: Any) -> str:
  """Returns the label of a `report.Arm`: α, and what differs from the default."""
  parts = [f'α = {arm.weight:g}']
  if arm.offsets != (0, 0.5):
    parts.append(f'e / L in {arm.offsets[0]:g}..{arm.offsets[1]:g}')
  if arm.steps != 1:
    parts.append(f'{arm.steps:g} of the steps')
  return ', '.join(parts)


def times(multiple: int) -> str:
  """Returns the name of a multiple of the training length."""
  return f'{multiple} L' if multiple > 1 else 'L'


def by_length(family: Any, run: Any, index: Index) -> Figure:
  """Draws perplexity by length, the change of its logarithm, and misalignment.

  Args:
    family: a `report.Family`.
    run: a `report.Run`.
    index: of the rows of the run.
  """
  figure = Figure(figsize=(9.0, 3.2))
  plain, difference, excess = figure.subplots(1, 3)
  plots.log_axis(plain)  # both show geometric means
  plots.log_axis(excess)
  arms = (family.control, *family.others)
  for arm, (colour, marker) in zip(arms, plots.LOOKS[:len(arms)], strict=True):
    name = label(arm)
    lengths, nll = plots.values(index, arm.name, 'nll')
    plots.draw(plain, lengths, np.exp(nll), colour, marker, name)
    lengths, change = plots.gain(index, arm.name, family.control.name, 'nll')
    if arm is not family.control and len(change):
      plots.draw(difference, lengths, change, colour, marker, name)
    lengths, apart = plots.values(index, arm.name, 'excess')
    if lengths:
      plots.draw(excess, lengths, apart, colour, marker, name)
  difference.axhline(0, color=plots.LOOKS[0][0], linewidth=1.0)
  for axes in (plain, difference, excess):
    axes.set_xscale('log', base=2)
    ticks = [m * run.length for m in run.multiples]
    axes.set_xticks(ticks, [times(m) for m in run.multiples])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f'length of context, L = {run.length} tokens')
  plain.set(ylabel='perplexity', title='Perplexity')
  difference.set(ylabel='Δ log perplexity, nats a token',
                 title=f'against {label(family.control)}')
  excess.set(ylabel='symmetric KL, nats', title='Misalignment')
  figure.legend(*plain.get_legend_handles_labels(), ncols=min(len(arms), 5),
                loc='outside upper center')
  seeds = max(len(index[arm.name, 'nll', run.length]) for arm in arms)
  figure.supxlabel(_lines(seeds, ', in the middle the mean difference, paired'),
                   fontsize=6.5)
  return figure


def by_step(run: Any, lines: Iterable[Mapping[str, Any]]) -> Figure:
  """Draws perplexity and misalignment during training, one line per arm.

  Args:
    run: a `report.Run`.
    lines: of evaluations.jsonl, from `vvlen.reporting.curves.read_curves`.
  """
  lines = list(lines)
  panels = {f'nll_{m * run.length}': f'perplexity at {times(m)}'
            for m in (run.multiples[0], run.multiples[-1])}
  panels[f'excess_{run.length}'] = 'symmetric KL at L, nats'
  figure = Figure(figsize=(7.6, 3.1))
  row = figure.subplots(1, len(panels))
  names = [name for name in run.arms if any(line['arm'] == name for line in lines)]
  seeds = 0
  for axes, (metric, title) in zip(row, panels.items(), strict=True):
    plots.log_axis(axes)  # geometric means
    for i, name in enumerate(names):
      colour, marker = plots.LOOKS[i % len(plots.LOOKS)]
      steps = sorted({line['step'] for line in lines if line['arm'] == name})
      table = [
          np.concatenate([np.array(line[metric], float) for line in lines
                          if (line['arm'], line['step']) == (name, step)])
          for step in steps
      ]
      most = max(map(len, table))
      seeds = max(seeds, most)
      filled = np.array([np.pad(x, (0, most - len(x)), constant_values=np.nan)
                         for x in table]).T
      values = np.exp(filled) if metric.startswith('nll') else filled
      plots.draw(axes, steps, values, colour, marker, label(run.arms[name]),
                 '-' if i < len(plots.LOOKS) else '--')
    axes.set(title=title, xlabel='steps')
    _step_ticks(axes, sorted({line['step'] for line in lines}))
  figure.legend(*row[0].get_legend_handles_labels(), ncols=4,
                loc='outside upper center')
  figure.supxlabel(_lines(seeds), fontsize=6.5)
  return figure


def _lines(seeds: int, more: str = '') -> str:
  """Describes lines and bands."""
  if seeds == 1:
    return 'one seed, so without intervals'
  return f'geometric mean over {seeds} seeds{more}; bands: 95 % intervals'


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
        MaxNLocator(5, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
