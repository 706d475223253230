"""Figures of single outputs and weights, sampled from one model of each arm.

Figures 2 and 4 of arXiv 2504.02827. Runs without JAX.
"""

from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from vvlen.reporting import plots
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index

# Arm -> its arrays, from `vvlen.reporting.results.read_samples`.
Samples = Mapping[str, Mapping[str, np.ndarray]]


def components(samples: Samples) -> Figure:
  """Draws the distribution of single output components, by length (Figure 2)."""
  lengths = _lengths(samples, 'components')
  first = next(iter(samples.values()))
  count = first[f'components_{lengths[0]}'].shape[1]
  figure = Figure(figsize=(7.0, 1.6 * len(samples) + 0.3))
  grid = figure.subplots(len(samples), count, squeeze=False)
  shades = matplotlib.colormaps['viridis'](np.linspace(0.1, 0.85, len(lengths)))
  for row, (arm, arrays) in zip(grid, samples.items(), strict=True):
    for component, axes in enumerate(row):
      columns = [arrays[f'components_{n}'][:, component] for n in lengths]
      everything = np.concatenate(columns)
      finite = everything[np.isfinite(everything)]
      low, high = np.quantile(finite, (0.002, 0.998)) if finite.size else (0, 1)
      bins = np.linspace(low, high + 1e-9, 41)
      for length, values, shade in zip(lengths, columns, shades, strict=True):
        axes.hist(values, bins, density=True, histtype='stepfilled', alpha=0.35,
                  color=shade)
        axes.hist(values, bins, density=True, histtype='step', color=shade,
                  label=f'N = {length:,}', linewidth=0.9)
      axes.set(yticks=[], title=f'{ARMS[arm][0]}, component {component}')
      axes.xaxis.set_major_locator(MaxNLocator(3))
      axes.xaxis.set_major_formatter('{x:.3g}')
      axes.spines['left'].set_visible(False)
      axes.grid(False)
  handles, labels = grid[0, 0].get_legend_handles_labels()
  sequences = len(first[f'components_{lengths[0]}'])
  figure.legend(
      handles, labels, ncols=len(lengths), loc='outside lower center',
      title='attention output after the norm (the Baseline has no norm), density over '
            f'{sequences:,} sequences of seed 0;\n'
            'each panel shows the middle 99.6 % of its values',
      title_fontsize=7.5,
  )
  return figure


def weights(index: Index, samples: Samples, trained_up_to: int) -> Figure:
  """Draws the attention weights on 16 items, by length (Figure 4)."""
  lengths = _lengths(samples, 'weights')
  figure = Figure(figsize=(10.0, 3.4))
  halves: Any = figure.subfigures(1, 2, width_ratios=[7, 3])
  left, right = halves
  norm = LogNorm(1e-4, 1, clip=True)
  grid = left.subplots(len(samples), len(lengths), squeeze=False)
  for row, (arm, arrays) in zip(grid, samples.items(), strict=True):
    for axes, length in zip(row, lengths, strict=True):
      picture: Any = axes.imshow(
          arrays[f'weights_{length}'], aspect='auto', norm=norm, cmap='magma',
          interpolation='nearest',
      )
      axes.set(xticks=[], yticks=[])
      axes.grid(False)
    sequences = len(arrays[f'weights_{lengths[0]}'])
    row[0].set_ylabel(f'{ARMS[arm][0]}\n{sequences} sequences')
  for axes, length in zip(grid[0], lengths, strict=True):
    power = length.bit_length() - 1
    axes.set_title(f'$2^{{{power}}}$' if length == 2**power else str(length))
  left.suptitle('number of items N', fontsize=8.5)
  # The task's description of the items shown and of their order.
  words = str(next(iter(samples.values())).get('shown_items', '16 items'))
  left.supxlabel(f'{words}; model of seed 0', fontsize=8.5)
  left.colorbar(picture, ax=grid, label='attention weight', pad=0.01, fraction=0.02)
  upper, lower = right.subplots(2, 1, sharex=True)
  for axes, metric, title in (
      (upper, 'attention_entropy', 'mean entropy (nats)'),
      (lower, 'target_weight', 'mean weight of the target'),
  ):
    for arm in ARMS:
      plots.band(axes, *plots.values(index, arm, metric), arm)
    axes.set_title(title)
    plots.length_axis(axes, trained_up_to)
  upper.set_xlabel('')
  upper.legend(fontsize=7)
  right.supxlabel(plots.caption(index).replace('; ', '\n'), fontsize=7.5)
  return figure


def _lengths(samples: Samples, kind: str) -> list[int]:
  names = next(iter(samples.values()))
  return sorted(
      int(name.rsplit('_', 1)[1]) for name in names if name.startswith(kind)
  )
