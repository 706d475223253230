"""Tables of length generalization, from tidy rows. Runs without JAX.

Tables 1 and 3 (retrieval) or 2 and 6 (lookup) of arXiv 2504.02827, or Table 4 or 5 if
lengths grow during training; the primary endpoint; and a table about training.
"""

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
TABLES = {
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
  accuracy, gain = TABLES.get(task, ('', ''))

  def pairs(*names: tuple[str, str]) -> list[Comparison]:
    return [
        compare(index, treated, control, trained_up_to=trained_up_to)
        for treated, control in names if arms.issuperset((treated, control))
    ]

  against_baseline = pairs(*(('layer_norm' + s, 'none' + s) for s in ADAPTATIONS))
  gains = pairs(*GAINS)
  tables = []
  if against_baseline:
    tables.append(accuracy_by_model(
        f'{main_table(task)}_by_model',
        (f'Table {accuracy} in the form of the paper. ' if accuracy else '')
        + 'Accuracy in %', against_baseline, chance))
    tables.append(by_length(
        main_table(task),
        (f'Table {accuracy}. ' if accuracy else '')
        + 'Accuracy by length, with and without LayerNorm after attention',
        against_baseline, trained_up_to,
    ))
  if len(gains) == len(GAINS) and gain is not None:
    tables.append(gain_by_model(
        f'table_{gain}_by_model' if gain else 'gain_by_model',
        (f'Table {gain} in the form of the paper. ' if gain else '')
        + 'Gain of accuracy in points', gains))
    tables.append(by_length(
        f'table_{gain}' if gain else 'gain',
        (f'Table {gain}. ' if gain else '')
        + 'Gain of standardization and of LayerNorm over the Baseline',
        gains, trained_up_to,
    ))
  others = [c for c in gains if (c.treated, c.control) != ('layer_norm', 'none')]
  primary = against_baseline + others + pairs(*OTHERS)
  if primary:
    learned = {
        arm: median_accuracy(index[arm, 'training_accuracy', None]) for arm in NAMES
        if (arm, 'training_accuracy', None) in index
    }
    tables.append(primary_endpoint(
        primary, trained_up_to, learned, chance))
  tables.append(training_table(index))
  return tables


def main_table(task: str) -> str:
  """Returns the name of the table of accuracy."""
  accuracy, _ = TABLES.get(task, ('', ''))
  return f'table_{accuracy}' if accuracy else 'accuracy'
