"""Writes the tables and figures of counting. Runs without JAX.

The outcome of a model is its mean squared error at each length. Errors span many powers
of ten, so models are compared by their logarithm: the endpoint is the mean of log10 of
the error over all lengths beyond training, treated minus control, paired over seeds,
and is shown as a factor. Tests are corrected by Holm over the lines of a figure.
"""

from collections.abc import Mapping

from etils import epath

from experiments.counting import figures
from experiments.counting.answer import answer, learned, summary
from experiments.counting.cells import all_cells, FigureSetups, read_figures
from experiments.counting.heads_table import heads_table, tempered_table
from experiments.counting.tables import control_label, Indices, seeds_of, table
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.numbers import counted
from vvlen.reporting.page import missing_seeds, Report, unfinished
from vvlen.reporting.tables import write_tables

_ABOUT = ('Transformers read l bits and give their mean, their number (length) or '
          'their sum; lengths beyond training are tested. RoPE, ALiBi, learned and '
          'others are encodings of positions; 1/√y and the like are targets, from '
          'which the answer is computed back. Paper: long-short alignment, arXiv '
          '2506.11769.')


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of a run of counting.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='a run of counting') as stored:
    config = dict(stored['config'])
    planned = read_figures(config['figures'])
    asked, longest = int(config['num_seeds']), int(config['evaluate']['max_length'])
  cells = all_cells(planned)
  rows = results.read_rows(folder / 'results.csv')
  known = {(cell.experiment, cell.arm) for cell in cells}
  if odd := [row for row in rows if (row.experiment, row.arm) not in known]:
    raise ValueError(f'{folder}/results.csv has a row of another run: {odd[0].key}')
  of_heads = [row for row in rows if row.head is not None]
  indices: Indices = {
      cell.experiment: results.index(
          r for r in rows if r.experiment == cell.experiment and r.head is None)
      for cell in cells
  }
  have = {cell: seeds_of(indices, cell) for cell in cells}
  if not any(have.values()):
    raise ValueError(f'{folder} has no results.csv with results')
  shown = {
      name: figure._replace(cells=tuple(c for c in figure.cells if have[c]))
      for name, figure in planned.items()
  }
  shown = _with_something_of_their_own(shown)
  tables = [table(name, figure, indices, longest) for name, figure in shown.items()]
  with plots.style():
    words = (f'{counted(config["model"]["num_layers"], "layer")} of width '
             f'{config["model"]["width"]}, '
             f'{counted(config["train"]["num_steps"], "step")}')
    drawn = {name: figures.errors(figure, indices, longest, words, made.records)
             for (name, figure), made in zip(shown.items(), tables, strict=True)}
    paths = plots.save(folder / 'figures', drawn)
  # Figures with something to compare first.
  in_turn = sorted(zip(tables, shown.values(), strict=True),
                   key=lambda pair: len(pair[1].cells) == 1)
  of_each = [(made.title, made.records, control_label(figure))
             for made, figure in in_turn]
  found = [answer(title, records, longest, control)
           for title, records, control in of_each]
  # The first sentence is on all figures, or on the only one; the second says whether
  # the models have learned.
  found[:0] = summary([(title.partition('.')[0], records, control)
                       for title, records, control in of_each])
  found.insert(1, learned([r for made in tables for r in made.records]))
  missing = missing_seeds({f'{cell.experiment}/{cell.arm}': len(seeds)
                           for cell, seeds in have.items()}, asked)
  of_temperature = heads_table(of_heads, cells), tempered_table(indices, cells)
  more = [made for made in of_temperature if made]
  write_tables(folder, [*tables, *more])
  return Report(
      'Which positions and targets let transformers count beyond the training lengths?',
      found, [*tables, *more], paths, len(tables),
      unfinished(missing), _ABOUT)


def _with_something_of_their_own(
    shown: Mapping[str, FigureSetups]
) -> dict[str, FigureSetups]:
  """Drops figures without lines, and of one line that another figure has too."""
  kept = {name: figure for name, figure in shown.items() if figure.cells}
  for name, figure in list(kept.items()):
    others = [cell for other in kept if other != name for cell in kept[other].cells]
    if len(figure.cells) == 1 and figure.cells[0] in others:
      del kept[name]
  return kept
