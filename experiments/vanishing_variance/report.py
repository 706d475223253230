"""Writes the tables and figures of a family of runs. Runs without JAX."""

from collections.abc import Mapping

from etils import epath

from experiments.length_generalization.about import about
from experiments.mechanism import parts, parts_tables
from experiments.mechanism import report as mechanism
from experiments.mechanism.parts_tables import Measured
from experiments.vanishing_variance import effects, figures, outputs, tables
from experiments.vanishing_variance.answer import answer
from vvlen.reporting import plots, results
from vvlen.reporting.endpoints import CONTROL, TREATED
from vvlen.reporting.family import read_family
from vvlen.reporting.page import Report
from vvlen.reporting.plots import ARMS
from vvlen.reporting.results import Index
from vvlen.reporting.tables import write_tables


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a family into its folder.

  Args:
    workdir: a folder with the config.json and results.csv of
      `experiments.vanishing_variance`.

  Returns:
    What the family has found.

  Raises:
    ValueError: if there are no results, if they are damaged, or if they belong to
      another family than config.json describes.
  """
  folder = epath.Path(workdir)
  family = read_family(folder)
  cells, claim = effects.read_cells(family), effects.read_claim(family)
  indices = results.index_cells(results.read_run(folder, r'\w+', ARMS))
  if odd := [f'{name} at step {step}' for name, step in indices
             if name not in cells or step not in cells[name].steps]:
    raise ValueError(f'{folder} has rows that are not of its family: {min(odd)}')
  found = {
      (name, suffix): [
          effect for step in cell.steps
          if (effect := effects.effect(indices, cell, step, claim, suffix)) is not None
      ]
      for name, cell in cells.items() for suffix in tables.SUFFIXES
  }
  contrasts = effects.contrasts(cells)
  tests = {
      suffix: [(each, effects.contrast_test(each, indices, cells, claim, suffix))
               for each in contrasts]
      for suffix in ('', '+averaged')
  }
  # Apart from the verdicts, nothing is shown of models that have not learned.
  last = {name: tables.last_effect(found, cell) for name, cell in cells.items()}
  shown = {name: cell for name, cell in cells.items()
           if (effect := last[name]) is None or effect.learned}
  shown_effects = {key: each for key, each in found.items() if key[0] in shown}
  made = [
      tables.main_table(cells, found, claim),
      tables.along_table(shown, shown_effects),
      tables.contrast_table(tests, claim.level / len(contrasts)),
      tables.averaging_table(shown_effects),
  ]
  if (about_outputs := outputs.table(shown, indices)).records:
    made.append(about_outputs)
  changed = {name: index for name, index in _interventions(folder, shown).items()
             if (effect := last[name]) is not None and effect.complete}
  with plots.style():
    drawn = {'verdicts': figures.verdicts(cells, found, claim)}
    if averaging := figures.averaging(found, cells, claim):
      drawn['averaged_weights'] = averaging
    if changed:
      measured = {
          name: Measured(index, cells[name].trained_up_to, cells[name].num_seeds)
          for name, index in changed.items()
      }
      count = len(family['mechanism']['cells'])
      made += [parts_tables.table(measured),
               parts_tables.gain_table(measured, claim.level, count)]
      drawn['where_lost'] = figures.where_lost(changed, cells)
    paths = plots.save(folder / 'figures', drawn)
  for name in changed:
    mechanism.write(folder / 'mechanism' / name)
  write_tables(folder, made)
  return Report(
      'Does LayerNorm after attention help at longer inputs? A family of runs',
      answer(made[0].records), made, paths,
      about=about(list(dict.fromkeys(cell.task for cell in cells.values())),
                  'The settings, their seeds and the test were fixed before any run.'))


def _interventions(
    folder: epath.Path, cells: Mapping[str, effects.FamilyCell]
) -> dict[str, Index]:
  """Returns {cell: rows} of the cells with interventions measured in both arms."""
  indices = {}
  for name, cell in cells.items():
    path = folder / 'mechanism' / name / 'results.csv'
    index = results.index(results.read_rows(path))
    if all(parts.measured(index, arm, cell.trained_up_to)
           for arm in (CONTROL, TREATED)):
      indices[name] = index
  return indices
