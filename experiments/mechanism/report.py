"""Writes the tables and the figure of interventions. Runs without JAX."""

import functools

from etils import epath
import numpy as np

from experiments.length_generalization.about import about
from experiments.length_generalization.setting import read_setting
from experiments.mechanism.answer import answer, headline
from experiments.mechanism.figures import arms_of, figure, INTERVENTIONS
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.endpoints import change, change_at_equal, compare, CONTROL, LEARNED
from vvlen.reporting.numbers import number, p_value
from vvlen.reporting.page import Report
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index
from vvlen.reporting.tables import (
  blank_without,
  difference,
  difference_cell,
  left_out,
  Table,
  write_tables,
)
from vvlen.statistics import corrected


def write(workdir: epath.PathLike) -> Report:
  """Writes the tables and the figure of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of `experiments.mechanism`.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  rows = results.read_run(folder, r'\w+', ARMS)
  with run_folder.reading(folder / 'config.json') as stored:
    trained = stored['config']['trained_config']
    setting = read_setting(trained, rows[0].experiment)
    trained_step = int(stored['config']['trained_step'])
  trained_up_to = setting.trained_up_to
  index = results.index(rows)
  made = table(index, trained_up_to)
  made = made._replace(
      title=f'{made.title}, after {trained_step:,} training steps'
  )
  tables = [made]
  if CONTROL in arms_of(index) and len(arms_of(index)) > 1:
    tables.append(gain_table(index, trained_up_to))
  shortest = {}
  for arm in arms_of(index):
    lengths, values = plots.values(index, arm, 'accuracy')
    shortest[ARMS[arm][0]] = float(100 * np.nanmean(values[:, 0]))
  with plots.style():
    paths = plots.save(folder / 'figures', {
        made.name: figure(index, setting, headline(made.records, shortest))})
  tables.append(length_table(index, trained_up_to))
  write_tables(folder, tables)
  return Report(
      'Why does accuracy fall with length: vanishing variance, or dispersed attention?',
      answer(made.records, shortest, setting.chance, lengths[0]), tables, paths,
      len(tables) - 1,
      about=about([rows[0].experiment],
                  'A trained model is frozen, and its attention output is changed at '
                  'test time: which change restores accuracy at longer inputs?'))


def table(index: Index, trained_up_to: int) -> Table:
  """Returns the table of what each intervention changes beyond training.

  Args:
    index: from `vvlen.reporting.results.index`.
    trained_up_to: the longest training length.

  Returns:
    A table with a row per arm and intervention: mean accuracy beyond the training
    lengths, and the percentage restored of the accuracy lost since the first length.
  """
  records, compared = [], []
  for arm in arms_of(index):
    comparisons = [
        (label, compare(index, f'{arm}+{name}', arm, trained_up_to=trained_up_to))
        for name, label in _measured(index).items()
    ]
    compared += [c for _, c in comparisons]
    tests = [c.primary for _, c in comparisons]
    for (label, c), test, p, detectable in zip(
        comparisons, tests, *corrected(tests), strict=True
    ):
      treated, control = c.primary_means
      lost = float(c.control_mean[0]) - control
      nan = float('nan')
      records.append({
          'arm': ARMS[arm][0], 'intervention': label, 'control': control,
          'treated': treated,
          **difference(test),
          'restored_percent': 100 * (treated - control) / lost if lost > 0 else nan,
          'variance_control': _variance(index, arm, c.control),
          'variance_treated': _variance(index, arm, c.treated),
          'p_holm': float(p), 'pairs': test.num_pairs if test else 0,
          'smallest_detectable': detectable,
      })
  columns = {
      'arm': lambda r: r['arm'],
      'attention output': lambda r: r['intervention'],
      'difference [95 %]': difference_cell('.2f'),
      'restored %': lambda r: number(r['restored_percent'], '.1f'),
      'unchanged': lambda r: number(r['control'], '.1f'),
      'changed': lambda r: number(r['treated'], '.1f'),
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
      'is lost from the shortest length on. p Holm: over the interventions of an arm.'
      f'{left_out(compared)}'
  )
  more = (
      'Variance: of the output, the sum over its components, before and after the '
      'change, relative to that at the shortest length, geometric mean. Intervals are '
      'uncorrected; p: paired two-sided t-test, corrected. Smallest detectable: with a '
      'power of 80 %, at 5 % divided by the number of interventions. undefined: all '
      'differences are equal, as where a norm undoes a rescaling.'
  )
  odd = {ARMS[c.control][0] for c in compared if c.control_mean[0] < 100 * LEARNED}
  if odd:
    note += (f' Not learned at the shortest length, so that nothing there is about '
             f'length: {", ".join(sorted(odd))}.')
  short = 'arm', 'difference [95 %]', 'restored %', 'attention output'
  return Table('mechanism', 'Accuracy restored by changes of the attention output',
               columns, records, note, short, more)


def gain_table(index: Index, trained_up_to: int) -> Table:
  """Returns the table of each arm's gain if both arms have the same intervention.

  Args:
    index: from `vvlen.reporting.results.index`, with rows of the Baseline.
    trained_up_to: the longest training length.

  Returns:
    A table with a row per arm and intervention: the difference from the Baseline under
    that intervention, and how much it differs from that without intervention.
  """
  records, compared = [], []
  for arm in arms_of(index):
    if arm == CONTROL:
      continue
    before, *after = (
        compare(index, arm + suffix, CONTROL + suffix, trained_up_to=trained_up_to)
        for suffix in ('', *(f'+{name}' for name in _measured(index)))
    )
    compared += [before, *after]
    changes = [change(c, before) for c in after]
    nothing = ('unchanged', before, None, float('nan'))
    rows = zip(_measured(index).values(), after, changes, corrected(changes)[0],
               strict=True)
    for label, c, test, p in (nothing, *rows):
      equal = test and change_at_equal(c, before)
      treated, control = c.primary_means
      records.append({
          'arm': ARMS[arm][0], 'intervention': label, 'control': control,
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
      'uncorrected; p Holm: of the changes, over the interventions of an arm.'
      f'{left_out(compared)}'
  )
  more = (
      'An intervention may make all differences between models smaller. At equal '
      'accuracy: the difference that is left where, without intervention, there would '
      'be none, by least squares over the seeds; 0 if the intervention does the same '
      'to both arms. Its interval and p are uncorrected.'
  )
  return Table('mechanism_gain', 'What is left of the gain under interventions',
               columns, records, note, more=more)


def length_table(index: Index, trained_up_to: int) -> Table:
  """Returns the table of what each intervention changes, by length."""
  records, compared = [], []
  for arm in arms_of(index):
    for name, label in _measured(index).items():
      c = compare(index, f'{arm}+{name}', arm, trained_up_to=trained_up_to)
      compared.append(c)
      for i, length in enumerate(c.lengths):
        test = c.by_length[i]
        records.append({
            'arm': ARMS[arm][0], 'intervention': label, 'length': length,
            'control': float(c.control_mean[i]), 'treated': float(c.treated_mean[i]),
            **difference(test),
            'p_holm': float(c.holm_p[i]), 'pairs': test.num_pairs if test else 0,
        })
  columns = {
      'arm': lambda r: r['arm'],
      'attention output': lambda r: r['intervention'],
      'N': lambda r: str(r['length']),
      'unchanged': lambda r: number(r['control'], '.1f'),
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


def _variance(index: Index, arm: str, changed: str) -> float:
  """Returns the geometric mean of an output's relative variance at longer lengths.

  Args:
    index: from `vvlen.reporting.results.index`.
    arm: the variance is relative to that of this arm at the shortest length.
    changed: the arm whose variance is returned: `arm`, or it with an intervention.
  """
  lengths, own = plots.values(index, arm, 'total_variance')
  if len(lengths) < 2:
    return float('nan')
  _, values = plots.values(index, changed, 'total_variance')
  with np.errstate(divide='ignore', invalid='ignore'):
    return float(np.exp(np.nanmean(np.log(values[:, 1:] / own[:, :1]))))


def _measured(index: Index) -> dict[str, str]:
  """Returns {name: label} of the interventions that were measured."""
  suffixes = {arm.partition('+')[2] for arm, _, _ in index}
  return {name: label for name, (label, _, _) in INTERVENTIONS.items()
          if name in suffixes}
