"""Writes the tables and figures of a league. Runs without JAX."""

from collections.abc import Mapping

from etils import epath
from matplotlib.figure import Figure

from experiments.league import effects, figures, needs, tables
from experiments.league.answer import answer
from experiments.league.effects import Family
from experiments.league.names import in_words, name_of
from vvlen.reporting import plots, results
from vvlen.reporting.family import read_family
from vvlen.reporting.numbers import counted
from vvlen.reporting.page import Report, unfinished
from vvlen.reporting.results import Index
from vvlen.reporting.tables import write_tables

_ABOUT = (
    'One query attends to N items. Each arm changes one head of attention, and has the '
    'learning rate that trains best at the training lengths, chosen on other seeds; '
    'arms share initial weights, data and test data by seed. Family, endpoint and '
    'correction were fixed before any run. What the arms are: docs/league.md.'
)


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a league into its folder.

  Args:
    workdir: a folder with the config.json, results.csv and tuning/results.csv of
      `experiments.league`.

  Returns:
    What the league has found.

  Raises:
    ValueError: if there are no results, if they are damaged, or if they belong to
      another family than config.json describes.
  """
  folder = epath.Path(workdir)
  family = effects.family_of(read_family(folder))
  rows = results.read_run(folder, '|'.join(family.tasks), family.arms)
  indices = {task: results.index(row for row in rows if row.experiment == task)
             for task in family.tasks
             if any(row.experiment == task for row in rows)}
  found = {task: own for task, own in effects.read_effects(indices, family).items()
           if own}
  choices = effects.read_choices(
      results.read_rows(folder / 'tuning' / 'results.csv'), family)
  some = needs.measured(indices, family)
  made = [
      tables.league_table(found, choices, family),
      tables.by_task_table(found, family),
      tables.laws_table(effects.best_laws(indices, family)),
      tables.contrasts_table(effects.contrasts(indices, family)),
      needs.needs_table(some, family),
      needs.gains_table(some, family),
      *(tables.by_length_table(task, index, family) for task, index in indices.items()),
      tables.targets_table(indices, family),
      tables.scalars_table(effects.read_scalars(indices, family)),
      tables.tuning_table(choices, family),
  ]
  records = {table.name: table.records for table in made}
  said = [*answer(records['league'], records['laws'], family.chance),
          *needs.needs_answer(records['needs'], records['at_inference'])]
  made = [table for table in made if table.records]
  drawn: dict[str, Figure] = {}
  with plots.style():
    if found:
      drawn |= {'league': figures.league(found, family),
                'league_by_length': figures.by_length(indices, found, family)}
    if some:
      drawn['needs'] = needs.needs_figure(some, family)
    paths = plots.save(folder / 'figures', drawn)
  write_tables(folder, made)
  return Report('Which change of attention carries to longer inputs?', said, made,
                paths, missing=unfinished(_missing(indices, family)), about=_ABOUT)


def _missing(indices: Mapping[str, Index], family: Family) -> list[str]:
  """Names the arms that are not run, or lack seeds, by task."""
  missing = []
  labels = lambda arms: ', '.join(name_of(arm).label for arm in arms)
  for task in family.tasks:
    have = {arm: len(indices.get(task, {}).get((arm, 'training_loss', None), {}))
            for arm in family.arms}
    none = [arm for arm, count in have.items() if not count]
    part = [arm for arm, count in have.items() if 0 < count < family.num_seeds]
    on = f'on {in_words(task)}'
    if len(none) == len(have):
      missing.append(f'all arms {on}')
    elif none:
      missing.append(f'{len(none)} of {counted(len(have), "arm")} {on} '
                     f'({labels(none)})')
    if part:
      missing.append(f'seeds of {labels(part)} {on}')
  return missing
