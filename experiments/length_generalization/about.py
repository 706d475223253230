"""Sentences that tell a reader of a page what was run. Runs without JAX."""

from collections.abc import Sequence

_TASKS = {
    'retrieval': 'Retrieval: name the class of that one of N items which has the '
                 'highest priority.',
    'lookup': 'Lookup: name the value that is stored under a key, among N pairs of key '
              'and value.',
}
_ARMS = ('One query attends to the N items; Baseline has no norm after attention, std. '
         'standardizes the attention output, and LN is LayerNorm there.')
PAPER = 'Paper: vanishing variance, arXiv 2504.02827.'


def about(tasks: Sequence[str], what: str = '') -> str:
  """Says what the tasks and arms are, and in which paper.

  Args:
    tasks: names of tasks. A task of the user is not described. In a name that ends in
      '_growing', training lengths grow.
    what: a sentence on the study, placed before the one on its arms.
  """
  plain = list(dict.fromkeys(task.removesuffix('_growing') for task in tasks))
  said = [_TASKS[task] for task in plain if task in _TASKS]
  if any(task.endswith('_growing') for task in tasks):
    said.append('The longest training length grows during training.')
  return ' '.join(filter(None, [*said, what, _ARMS, PAPER]))
