"""Tables of length generalization, from tidy rows. Runs without JAX.

Tables 1 and 3 (retrieval) or 2 and 6 (lookup) of arXiv 2504.02827, or Table 4 or 5 if
lengths grow during training; the primary endpoint; and a table about training.
"""

from collections.abc import Iterable, Sequence

from experiments.length_generalization.comparisons import NAMES
from experiments.length_generalization.endpoint_table import primary_endpoint
from experiments.length_generalization.length_table import by_length
from experiments.length_generalization.paper_tables import (
  accuracy_by_model,
  gain_by_model,
)
from experiments.length_generalization.training_table import training_table
from vvlen.reporting import results
from vvlen.reporting.endpoints import compare, Comparison, median_accuracy
from vvlen.reporting.plots import ADAPTATIONS
from vvlen.reporting.tables import Table

# Task -> the paper's numbers of its tables of accuracy and of gain. With lengths that
# grow during training the paper has no table of gain; tasks that are not in the paper
# are not listed.
TABLES: dict[str, tuple[str, str | None]] = {
    'retrieval': ('1', '3'), 'lookup': ('2', '6'),
    'retrieval_growing': ('4', None), 'lookup_growing': ('5', None),
}
# Pairs of arms, treated and control, of the paper's tables of gain.
GAINS = (
    ('standardize', 'none'), ('layer_norm', 'none'), ('layer_norm', 'standardize'),
)
# Other pairs of arms to test, where a run has both: in the table of the primary
# endpoint alone, uncorrected.
OTHERS: tuple[tuple[str, str], ...] = ()
_OWN = ('', '')  # the numbers of a task that is not in the paper
_PAPERS_FORM = ' in the form of the paper'


def make_tables(
    index: results.Index, trained_up_to: int = 16, task: str = 'retrieval',
    chance: float | None = None,
) -> list[Table]:
  """Makes all tables for which the arms have results.

  Args:
    index: from `vvlen.reporting.results.index`.
    trained_up_to: the longest training length.
    task: as in the column experiment; `TABLES` lists those of the paper.
    chance: share of right answers by guessing; None if it is not known.

  Returns:
    The tables of accuracy and of gain, with the paper's numbers if the task is in the
    paper, else named `accuracy` and `gain`; `primary_endpoint`; and `training`.
  """
  arms = {arm for arm, _, _ in index}

  def compared(pairs: Iterable[tuple[str, str]]) -> list[Comparison]:
    return [
        compare(index, treated, control, trained_up_to=trained_up_to)
        for treated, control in pairs if arms.issuperset((treated, control))
    ]

  ln = compared(('layer_norm' + at, 'none' + at) for at in ADAPTATIONS)
  gains = compared(GAINS)
  tables = []
  if ln:
    tables += _of_accuracy(ln, trained_up_to, task, chance)
  if len(gains) == len(GAINS):
    tables += _of_gain(gains, trained_up_to, task)
  others = [c for c in gains if (c.treated, c.control) != ('layer_norm', 'none')]
  if tested := ln + others + compared(OTHERS):
    learned = {
        arm: median_accuracy(index[arm, 'training_accuracy', None]) for arm in NAMES
        if (arm, 'training_accuracy', None) in index
    }
    tables.append(primary_endpoint(tested, trained_up_to, learned, chance))
  return [*tables, training_table(index)]


def main_table(task: str) -> str:
  """Returns the name of the table of accuracy."""
  return _name(TABLES.get(task, _OWN)[0], 'accuracy')


def _of_accuracy(
    ln: Sequence[Comparison], trained_up_to: int, task: str, chance: float | None
) -> list[Table]:
  """Makes the tables of accuracy with and without LayerNorm, in two forms."""
  number, _ = TABLES.get(task, _OWN)
  name = main_table(task)
  in_papers_form = _title(number, _PAPERS_FORM, 'Accuracy in %')
  title = _title(
      number, '', 'Accuracy by length, with and without LayerNorm after attention')
  return [
      accuracy_by_model(f'{name}_by_model', in_papers_form, ln, chance),
      by_length(name, title, ln, trained_up_to),
  ]


def _of_gain(
    gains: Sequence[Comparison], trained_up_to: int, task: str
) -> list[Table]:
  """Makes the tables of gain in two forms, none if the paper has none for a task."""
  _, number = TABLES.get(task, _OWN)
  if number is None:
    return []
  name = _name(number, 'gain')
  in_papers_form = _title(number, _PAPERS_FORM, 'Gain of accuracy in points')
  title = _title(
      number, '', 'Gain of standardization and of LayerNorm over the Baseline')
  return [
      gain_by_model(f'{name}_by_model', in_papers_form, gains),
      by_length(name, title, gains, trained_up_to),
  ]


def _name(number: str, otherwise: str) -> str:
  """Returns the name of a table with a number of the paper, or of one without."""
  return f'table_{number}' if number else otherwise


def _title(number: str, form: str, text: str) -> str:
  """Returns the title of a table, with the paper's number if it has one."""
  return f'Table {number}{form}. {text}' if number else text
