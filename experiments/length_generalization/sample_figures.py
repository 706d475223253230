"""Figures of single outputs and weights, sampled from one model of each arm.

Figures 2 and 4 of arXiv 2504.02827. Runs without JAX.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
import numpy as np

from experiments.length_generalization.setting import Setting
from vvlen.reporting import plots
from vvlen.reporting.numbers import counted, from_to, number
from vvlen.reporting.plots import ARMS, SPELLED
from vvlen.reporting.results import Index

# Arm -> its arrays, from `vvlen.reporting.results.read_samples`.
Samples = Mapping[str, Mapping[str, np.ndarray]]
_SHOWN = 2  # components of each arm


def typical(values: np.ndarray) -> list[int]:
  """Returns the two components of [sequences, components] of most typical spread.

  These are the ones whose standard deviations are nearest to the root mean square of
  all. Others may be nearly constant: those where the scale of a norm is near 0.
  """
  with np.errstate(divide='ignore', invalid='ignore'):
    spread = np.nanstd(values, axis=0)
    far = np.abs(np.log(spread / np.sqrt(np.mean(spread**2))))
  return sorted(np.argsort(far, kind='stable')[:_SHOWN].tolist())


def components(samples: Samples, setting: Setting) -> Figure:
  """Draws the distribution of single output components, by length (Figure 2).

  From each component its mean at the shortest length is subtracted, and the rest is
  divided by its standard deviation there, so that all arms can share their axes.
  """
  lengths = _lengths(samples, 'components')
  drawn = {}  # (arm, component) -> its values at each length, in those units
  for arm, arrays in samples.items():
    first = arrays[f'components_{lengths[0]}']
    for i in typical(first):
      middle, spread = np.nanmean(first[:, i]), np.nanstd(first[:, i])
      with np.errstate(divide='ignore', invalid='ignore'):
        drawn[arm, i] = [
            (arrays[f'components_{n}'][:, i] - middle) / spread for n in lengths]
  spreads = {key: float(np.nanstd(values[-1])) for key, values in drawn.items()}
  shifts = {key: float(np.nanmean(values[-1])) for key, values in drawn.items()}
  sequences = len(next(iter(samples.values()))[f'components_{lengths[0]}'])
  recorded = next(iter(samples.values()))[f'components_{lengths[0]}'].shape[1]
  shown = len(drawn) // len(samples)
  figure = plots.new(
      4.0, f'Spread of {shown} of {counted(recorded, "output component")}, '
      f'N = {lengths[0]:,} → '
      f'{lengths[-1]:,}: {", ".join(_spreads(spreads))}',
      'Density of single components of the attention output, after the norm where the '
      f'arm has one, over {sequences:,} sequences of the model of seed 0: of each arm '
      f'the {shown} of {counted(recorded, "component")} whose spread is most typical, '
      f'in units of their standard deviation at N = {lengths[0]:,} and from their mean '
      'there; above each panel, standard deviation and mean at '
      f'N = {lengths[-1]:,} in these units; the axis shows the middle 99.6 % of all '
      'values.',
      f'{setting.title}; model of seed 0; their means shift by up to '
      f'{max(map(abs, shifts.values())):.1f} standard deviations')
  arms = [*samples]
  grid = figure.subplots(_SHOWN, len(arms), sharex=True, sharey=True, squeeze=False)
  shades = matplotlib.colormaps['viridis'](np.linspace(0.1, 0.85, len(lengths)))
  everything = np.concatenate([np.concatenate(values) for values in drawn.values()])
  finite = everything[np.isfinite(everything)]
  low, high = np.quantile(finite, (0.002, 0.998)) if finite.size else (0, 1)
  bins = np.linspace(low, high + 1e-9, 81)
  for column, arm in zip(grid.T, arms, strict=True):
    own = {i: values for (name, i), values in drawn.items() if name == arm}
    for axes, (component, of_lengths) in zip(column, own.items(), strict=False):
      for length, values, shade in zip(lengths, of_lengths, shades, strict=True):
        axes.hist(values, bins, density=True, histtype='stepfilled', alpha=0.35,
                  color=shade)
        axes.hist(values, bins, density=True, histtype='step', color=shade,
                  label=f'N = {length:,}', linewidth=0.9)
      moved = number(shifts[arm, component], '+.1f')
      axes.set(yticks=[], title=f'{SPELLED[arm]}, component {component}\n'
               f'spread ×{spreads[arm, component]:.2f}, shift {moved}')
      axes.spines['left'].set_visible(False)
      axes.grid(False)
    column[-1].set_xlabel(f'value − mean at N = {lengths[0]:,},\n'
                          'in standard deviations there')
  plots.legend(figure, [grid[0, 0]], len(lengths))
  return figure


def _spreads(spreads: Mapping[tuple[str, int], float]) -> list[str]:
  """Returns by what the spread of each arm is multiplied, such as 'LayerNorm × 0.2'."""
  said = []
  arms = list(dict.fromkeys(arm for arm, _ in spreads))
  names = SPELLED if len(arms) < 3 else {arm: name for arm, (name, *_) in ARMS.items()}
  for arm in arms:
    own = [spread for (name, _), spread in spreads.items() if name == arm]
    said.append(f'{names[arm]} × {from_to(own, ".2f")}')
  return said


def weights(index: Index, samples: Samples, setting: Setting) -> Figure:
  """Draws the attention weights on 16 items, by length (Figure 4)."""
  lengths = _lengths(samples, 'weights')
  # The task's description of the items shown and of their order.
  words = str(next(iter(samples.values())).get('shown_items', '16 items'))
  sequences = len(next(iter(samples.values()))[f'weights_{lengths[0]}'])
  count = plots.seeds_of(index, 'attention_entropy')
  seeds = plots.over_seeds(count)
  figure = plots.new(
      2.9 + 0.75 * len(samples),
      _on_the_target(index, [*samples]),
      f'Above, attention weights on {words}, in {sequences} sequences, a row each, by '
      'number of items N, of the model of seed 0 of each arm; below, entropy of the '
      f'weights and weight of the target: {seeds}; training lengths grey, uniform '
      'weights dotted.', plots.with_bands(setting.title, count))
  halves: Any = figure.subfigures(2, 1, height_ratios=[0.9 + 0.75 * len(samples), 1.8])
  upper, lower = halves
  norm = LogNorm(1e-4, 1, clip=True)
  grid = upper.subplots(len(samples), len(lengths), squeeze=False)
  for row, (arm, arrays) in zip(grid, samples.items(), strict=True):
    for axes, length in zip(row, lengths, strict=True):
      picture: Any = axes.imshow(
          arrays[f'weights_{length}'], aspect='auto', norm=norm, cmap='magma',
          interpolation='nearest',
      )
      axes.set(xticks=[], yticks=[])
      axes.grid(False)
    row[0].set_ylabel(SPELLED[arm])
  shown = [0, picture.get_array().shape[1] - 1]
  for axes in grid[-1]:
    axes.set_xticks(shown, [str(i + 1) for i in shown])
  for i, (axes, length) in enumerate(zip(grid[0], lengths, strict=True)):
    axes.set_title('N = ' * (not i) + f'{length:,}', fontsize=plots.SMALLEST, pad=3)
  upper.supxlabel(f'{words}; each row is a sequence', fontsize=7.5)
  bar = upper.colorbar(picture, ax=grid, pad=0.01, fraction=0.02,
                       label='attention weight', ticks=[1, 0.1, 0.01, 0.001, 0.0001])
  bar.ax.yaxis.set_major_formatter('{x:g}')
  left, right = lower.subplots(1, 2)
  for axes, metric, title in (
      (left, 'attention_entropy', 'entropy (nats), mean'),
      (right, 'target_weight', 'weight of the target, mean'),
  ):
    for arm in ARMS:
      plots.band(axes, *plots.values(index, arm, metric), arm)
    axes.set_title(title)
    at = plots.values(index, next(iter(samples)), metric)[0]
    of_uniform = np.log(at) if axes is left else 1 / np.array(at, float)
    axes.plot(at, of_uniform, color='#555555', linewidth=0.9,
              linestyle=(0, (1, 1.5)), label='uniform weights')
    plots.length_axis(axes, setting.trained_up_to)
    axes.set_ylim(bottom=-0.04 * axes.get_ylim()[1])  # from 0, with whole markers
  plots.legend(lower, [left], 4)
  return figure


def _on_the_target(index: Index, arms: Sequence[str]) -> str:
  """Says how much attention each arm has on the target, as a title."""
  found = {arm: plots.values(index, arm, 'target_weight') for arm in arms}
  found = {arm: (at, weight) for arm, (at, weight) in found.items() if at}
  if not found:
    return 'Attention weights by length'
  at, _ = next(iter(found.values()))
  each = []
  for arm, (_, weight) in found.items():
    first, last = (f'{100 * x:.{0 if x > 0.01 else 1}f}'
                   for x in np.nanmean(weight, axis=0)[[0, -1]])
    each.append(f'{SPELLED[arm]} {first} → {last} %')
  return (f'Attention on the target from N = {at[0]:,} to {at[-1]:,}: '
          + ', '.join(each))


def _lengths(samples: Samples, kind: str) -> list[int]:
  """Returns the lengths of arrays named KIND_LENGTH, in ascending order."""
  names = next(iter(samples.values()))
  return sorted(
      int(name.rsplit('_', 1)[1]) for name in names if name.startswith(kind)
  )
