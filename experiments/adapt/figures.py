"""Figures of models whose context was extended. Runs without JAX."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
import numpy as np

from experiments.language_model.arms import Arm, Family, Run
from experiments.language_model.figures import times
from experiments.language_model.tables import compare
from vvlen.reporting import plots
from vvlen.reporting.results import Index
from vvlen.statistics import by_holm, mean_interval

_LONG = 40  # letters of a name


def methods(
    families: Sequence[Family], base: Arm | None, run: Run, index: Index, original: int,
    weak: Sequence[str] = (),
) -> Figure:
  """Draws perplexity by length of each method, and its distance to fine-tuning alone.

  Args:
    families: those with results.
    base: the arm of fine-tuning alone, None if it has no results.
    run: the run.
    index: of its rows.
    original: tokens of the checkpoint's own length.
    weak: titles of the methods that predict no better than counts of pairs of tokens.
      Their distances have no intervals, nor have those of others if fine-tuning alone
      is among them.
  """
  seeds = max(len(index[f.control.name, 'nll', run.length]) for f in families)
  title = _message([f for f in families if f.title not in weak], base, run, index)
  # The arm that others are compared with.
  alone = base.name if base is not None and len(families) > 1 else ''
  minus = (', and its logarithm minus that of fine-tuning alone, paired by seed'
           if alone else '')
  figure = plots.new(
      2.8, title,
      'Perplexity in blocks after fine-tuning with each method, without the '
      f'misalignment term{minus}, by length of context: '
      f'{plots.over_seeds(seeds, "geometric mean")}'
      + ('; without an interval: the difference where a method has not learned'
         if alone and weak else '') + '.',
      plots.with_bands(f'{run.words}, L = {run.length} tokens', seeds))
  plain, *change = figure.subplots(1, 1 + bool(alone), squeeze=False)[0]
  plots.log_axis(plain)
  for place, family in enumerate(families):
    name = family.control.name
    look = plots.LOOKS[place % len(plots.LOOKS)]
    words = family.title + ', not learned' * (family.title in weak)
    lengths, nll = plots.values(index, name, 'nll')
    plots.draw(plain, lengths, np.exp(nll), *look, words)
    for axes in change:
      if name == alone:
        axes.axhline(0, color=look[0], linewidth=1.0)
        continue
      lengths, difference = plots.gain(index, name, alone, 'nll')
      if not len(difference):
        continue
      if {family.title, *(f.title for f in families if f.control is base)} & {*weak}:
        axes.plot(lengths, mean_interval(difference)[0], color=look[0], marker=look[1],
                  label=words)
      else:
        plots.draw(axes, lengths, difference, *look, words)
  ticks = {original: str(original)} | {m * run.length: times(m) for m in run.multiples}
  for axes in (plain, *change):
    axes.set_xscale('log', base=2)
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel('length of context, tokens')
  plain.set(title='perplexity')
  for axes in change:
    axes.set(title='log perplexity, nats,\nminus that of fine-tuning alone')
  # A row holds two names, unless they are long.
  long = max(len(family.title) for family in families) > _LONG
  plots.legend(figure, [plain], 1 if long else 2)
  return figure


def _message(
    families: Sequence[Family], base: Arm | None, run: Run, index: Index
) -> str:
  """Says which method has the lowest perplexity at the longest length, if one has.

  It is named if its difference to each other method is found, paired over seeds, by
  Holm. A method with a seed whose loss is not finite is not among them. The families
  are those that have learned.
  """
  plain = 'Perplexity by length of context'
  longest = run.multiples[-1] * run.length
  every = {f: np.mean([*index[f.control.name, 'nll', longest].values()])
           for f in families if (f.control.name, 'nll', longest) in index}
  means = {family: mean for family, mean in every.items() if np.isfinite(mean)}
  if base is None or len(means) < 2:
    return plain
  best, *others = sorted(means, key=lambda family: means[family])
  tests = by_holm([compare(index, other.control.name, best.control.name, longest)
                   for other in others])
  if not all(test is not None and test.p < 0.05 for test in tests):
    return plain
  return f'At {times(run.multiples[-1])}, {best.title} has the lowest perplexity'
