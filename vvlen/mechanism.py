"""What interventions on the attention output restore. Runs without JAX."""

import functools

from etils import epath
from matplotlib.figure import Figure
import numpy as np

from vvlen import plots, results, run_folder
from vvlen.comparison import change, change_at_equal, compare, CONTROL, LEARNED
from vvlen.plots import ARMS
from vvlen.results import Index
from vvlen.statistics import corrected
from vvlen.tables import (
  blank_without,
  difference,
  difference_cell,
  left_out,
  markdown,
  number,
  p_value,
  Table,
  write_table,
)

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


def write(workdir: epath.PathLike) -> tuple[str, list[epath.Path]]:
  """Writes table and figure of interventions into their folder.

  Args:
    workdir: a folder with the config.json and results.csv of
      `experiments.mechanism`.

  Returns:
    The table as Markdown, and the paths written.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_run(folder, r'\w+', ARMS)
  with run_folder.reading(folder / 'config.json') as stored:
    trained_up_to = int(stored['config']['trained_config']['train']['max_length'])
    trained_step = int(stored['config']['trained_step'])
  index = results.index(rows)
  made = table(index, trained_up_to)
  made = made._replace(
      title=f'{made.title}, after {trained_step:,} training steps'
  )
  tables = [made]
  if CONTROL in _arms(index) and len(_arms(index)) > 1:
    tables.append(gain_table(index, trained_up_to))
  with plots.style():
    paths = plots.save(
        folder / 'figures', {made.name: figure(index, trained_up_to)}
    )
  for each in (length_table(index, trained_up_to), *reversed(tables)):
    paths = [*write_table(folder, each), *paths]
  return '\n'.join(map(markdown, tables)), paths


def table(index: Index, trained_up_to: int) -> Table:
  """Returns, for each arm and intervention, what it changes beyond training.

  Args:
    index: from `vvlen.results.index`.
    trained_up_to: the longest training length.

  Returns:
    One row an arm and intervention: the mean accuracy beyond the training lengths,
    and the share of what was lost since the first length that is restored.
  """
  records, compared = [], []
  for arm in _arms(index):
    comparisons = [
        (done, compare(index, f'{arm}+{name}', arm, trained_up_to=trained_up_to))
        for name, done in _done(index).items()
    ]
    compared += [c for _, c in comparisons]
    tests = [c.primary for _, c in comparisons]
    for (done, c), test, p, found in zip(
        comparisons, tests, *corrected(tests), strict=True
    ):
      treated, control = c.primary_means
      lost = float(c.control_mean[0]) - control
      nan = float('nan')
      records.append({
          'arm': ARMS[arm][0], 'intervention': done, 'control': control,
          'treated': treated,
          **difference(test),
          'restored_percent': 100 * (treated - control) / lost if lost > 0 else nan,
          'variance_control': _variance(index, arm, c.control),
          'variance_treated': _variance(index, arm, c.treated),
          'p_holm': float(p), 'pairs': test.num_pairs if test else 0,
          'smallest_detectable': found,
      })
  columns = {
      'arm': lambda r: r['arm'],
      'attention output': lambda r: r['intervention'],
      'as it is': lambda r: number(r['control'], '.1f'),
      'changed': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.2f'),
      'restored %': lambda r: number(r['restored_percent'], '.1f'),
      'variance': lambda r: ' → '.join(
          number(r[f'variance_{which}'], '.2f') for which in ('control', 'treated')
      ),
      'p Holm': lambda r: p_value(r['p_holm']),
      'pairs': lambda r: str(r['pairs']),
      'smallest detectable': lambda r: number(r['smallest_detectable'], '.2f'),
  }
  note = (
      'Accuracy in %, mean over the lengths beyond training, of models that are not '
      'trained any further; paired over seeds. Restored: the difference in % of what '
      'is lost from the shortest length on. Variance: of the output, the sum over its '
      'components, as it is and changed, relative to that at the shortest length, '
      'geometric mean. p Holm: over the interventions of an arm; '
      'smallest detectable: with a power of 80 %, at 5 % divided by their number.'
      f'{left_out(compared)}'
  )
  odd = {ARMS[c.control][0] for c in compared if c.control_mean[0] < 100 * LEARNED}
  if odd:
    note += (f' Not learned at the shortest length, so that nothing there is about '
             f'length: {", ".join(sorted(odd))}.')
  return Table('mechanism', 'Accuracy restored by changes of the attention output',
               columns, records, note)


def gain_table(index: Index, trained_up_to: int) -> Table:
  """Returns what is left of each arm's gain where both arms are changed alike.

  Args:
    index: from `vvlen.results.index`, with rows of the Baseline.
    trained_up_to: the longest training length.

  Returns:
    One row an arm and intervention: its difference from the Baseline under that
    intervention, and how it changes.
  """
  records, compared = [], []
  for arm in _arms(index):
    if arm == CONTROL:
      continue
    before, *after = (
        compare(index, arm + suffix, CONTROL + suffix, trained_up_to=trained_up_to)
        for suffix in ('', *(f'+{name}' for name in _done(index)))
    )
    compared += [before, *after]
    changes = [change(c, before) for c in after]
    nothing = ('as it is', before, None, float('nan'))
    rows = zip(_done(index).values(), after, changes, corrected(changes)[0],
               strict=True)
    for done, c, test, p in (nothing, *rows):
      equal = test and change_at_equal(c, before)
      treated, control = c.primary_means
      records.append({
          'arm': ARMS[arm][0], 'intervention': done, 'control': control,
          'treated': treated, **difference(c.primary),
          'p': c.primary.p if c.primary else float('nan'),
          **difference(test, 'change_'), 'change_p_holm': float(p),
          **difference(equal, 'equal_'), 'equal_p': equal.p if equal else float('nan'),
          'pairs': c.primary.num_pairs if c.primary else 0,
      })
  changed = functools.partial(blank_without, 'change_difference')
  at_equal = functools.partial(blank_without, 'equal_difference')
  columns = {
      'arm': lambda r: r['arm'],
      'attention output of both': lambda r: r['intervention'],
      'Baseline': lambda r: number(r['control'], '.1f'),
      'treated': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.2f'),
      'p': lambda r: p_value(r['p']),
      'its change [95 %]': changed(difference_cell('.2f', 'change_')),
      'p Holm': changed(lambda r: p_value(r['change_p_holm'])),
      'at equal accuracy [95 %]': at_equal(difference_cell('.2f', 'equal_')),
      'its p': at_equal(lambda r: p_value(r['equal_p'])),
      'pairs': lambda r: str(r['pairs']),
  }
  note = (
      'Accuracy in %, mean over the lengths beyond training; treated minus Baseline, '
      'and that minus what it is without intervention; paired over seeds. p is '
      'uncorrected; p Holm: of the changes, over the interventions of an arm. An '
      'intervention may make all differences between models smaller. At equal '
      'accuracy: the difference that is left where, as it is, there would be none, by '
      'least squares over the seeds; 0 if the intervention does the same to both arms. '
      'Uncorrected.'
      f'{left_out(compared)}'
  )
  return Table('mechanism_gain', 'What is left of the gain under interventions',
               columns, records, note)


def length_table(index: Index, trained_up_to: int) -> Table:
  """Returns, for each arm, intervention and length, what it changes."""
  records, compared = [], []
  for arm in _arms(index):
    for name, done in _done(index).items():
      c = compare(index, f'{arm}+{name}', arm, trained_up_to=trained_up_to)
      compared.append(c)
      for i, length in enumerate(c.lengths):
        test = c.by_length[i]
        records.append({
            'arm': ARMS[arm][0], 'intervention': done, 'length': length,
            'control': float(c.control_mean[i]), 'treated': float(c.treated_mean[i]),
            **difference(test),
            'p_holm': float(c.holm_p[i]), 'pairs': test.num_pairs if test else 0,
        })
  columns = {
      'arm': lambda r: r['arm'],
      'attention output': lambda r: r['intervention'],
      'N': lambda r: str(r['length']),
      'as it is': lambda r: number(r['control'], '.1f'),
      'changed': lambda r: number(r['treated'], '.1f'),
      'difference [95 %]': difference_cell('.1f'),
      'p Holm': lambda r: p_value(r['p_holm']),
      'pairs': lambda r: str(r['pairs']),
  }
  note = (
      'Accuracy in %, paired over seeds. p Holm: over the lengths of an arm and an '
      'intervention; undefined where all differences are equal.'
      f'{left_out(compared)}'
  )
  return Table('mechanism_by_length', 'Accuracy restored at each length', columns,
               records, note)


def figure(index: Index, trained_up_to: int) -> Figure:
  """Draws accuracy by length under each intervention, and the output's variance."""
  arms = _arms(index)
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
  handles, labels = [], []
  for axes in panels[0, :2]:
    more = zip(*axes.get_legend_handles_labels(), strict=True)
    for handle, label in more:
      if label not in labels:
        handles.append(handle)
        labels.append(label)
  drawn.legend(
      handles, labels, loc='outside lower center', ncols=2,
      title='bands: 95 % intervals of the mean over seeds; grey: training lengths',
      title_fontsize=7.5,
  )
  return drawn


def _variance(index: Index, arm: str, changed: str) -> float:
  """Returns an output's variance beyond the shortest length, relative to that there.

  Args:
    index: from `vvlen.results.index`.
    arm: whose variance at the shortest length is 1.
    changed: the same arm, with the suffix of an intervention.
  """
  lengths, own = plots.values(index, arm, 'total_variance')
  if len(lengths) < 2:
    return float('nan')
  _, values = plots.values(index, changed, 'total_variance')
  with np.errstate(divide='ignore', invalid='ignore'):
    return float(np.exp(np.nanmean(np.log(values[:, 1:] / own[:, :1]))))


def _done(index: Index) -> dict[str, str]:
  """Returns {name: what is done} of the interventions that were measured."""
  suffixes = {arm.partition('+')[2] for arm, _, _ in index}
  return {name: done for name, (done, _, _) in INTERVENTIONS.items()
          if name in suffixes}


def _arms(index: Index) -> list[str]:
  return [arm for arm in ARMS if any(key[0] == arm for key in index)]
