"""The figure of perplexity during training. Runs without JAX."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from experiments.language_model.arms import Arm, Family, Run
from experiments.language_model.figures import (
  label_in,
  legend,
  look,
  models_of,
  NOT_LEARNED,
  times,
)
from vvlen.reporting import plots
from vvlen.reporting.numbers import from_to
from vvlen.statistics import mean_interval


def by_step(
    families: Sequence[Family], run: Run, lines: Iterable[Mapping[str, Any]],
    weak: Collection[str] = (),
) -> Figure:
  """Draws perplexity and symmetric KL during training, a row for each family of arms.

  Args:
    families: with those arms that have results.
    run: the run.
    lines: of evaluations.jsonl, from `vvlen.reporting.curves.read_curves`.
    weak: names of arms that have not learned, which their labels say.
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
      0.7 + 2.0 * len(rows), '', '')
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
        name = label_in(family, arm) + NOT_LEARNED * (arm.name in weak)
        plots.draw(axes, steps, values, colour, marker, name, line,
                   geometric=metric.startswith('nll'))
      if part is parts[0]:
        axes.set_title(title)
      if part is parts[-1]:
        axes.set_xlabel('steps')
      _step_ticks(axes, sorted({line['step'] for line in lines}))
    legend(part, row[:1], family, weak)
  plots.set_title(figure, _falls(rows, run, lines),
                  plots.with_bands(models_of(run), seeds))
  figure.set_label(
      'Perplexity at the training length L and at the longest, and symmetric KL of two '
      'windows, by training step, a row for each family of arms: '
      f'{plots.over_seeds(seeds, "geometric mean of perplexity, mean of the other,")}.')
  return figure


def _falls(
    rows: Sequence[tuple[Family, Sequence[Arm]]], run: Run,
    lines: Sequence[Mapping[str, Any]],
) -> str:
  """Says by how much perplexity changes, at L and at the longest length."""
  arms = dict.fromkeys(arm.name for _, own in rows for arm in own)
  said: list[str] = []
  begins: set[int] = set()
  for multiple in dict.fromkeys((run.multiples[0], run.multiples[-1])):
    changes = []
    for name in arms:
      steps, values = _course(lines, name, f'nll_{multiple * run.length}')
      means = np.exp(mean_interval(np.log(values))[0])  # geometric, as it is drawn
      begins.add(steps[0])
      changes.append(float(100 * (means[-1] / means[0] - 1)))
    said.append(f'by {from_to(changes, "+.1f")} % at {times(multiple)}')
  if len({line['step'] for line in lines}) < 2 or len(begins) > 1:
    return 'Perplexity and symmetric KL during training'
  return (f'From step {begins.pop():,} to the last, perplexity changes '
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
