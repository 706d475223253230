"""What figures say about a trained model: its task and training. Runs without JAX."""

from collections.abc import Mapping
from typing import Any, NamedTuple

GROWTH = 0.8  # share of training during which lengths grow, if they grow


class Growth(NamedTuple):
  """How the longest training length grows."""

  first: int  # at step 0
  last: int  # from step `num_steps` on
  num_steps: int

  def at(self, step: int) -> int:
    """Returns the longest length at a step, as `vvlen.tasks.lengths` does."""
    grown = min(step / max(self.num_steps, 1), 1) * (self.last - self.first)
    return self.first + int(grown)


class Setting(NamedTuple):
  """A task, and how models were trained on it."""

  task: str = ''  # as in the column experiment
  trained_up_to: int = 16  # the longest training length
  chance: float | None = None  # share of right answers by guessing; None if unknown
  words: str = ''  # of training: lengths, steps, weight decay
  growth: Growth | None = None  # None: training lengths stay the same
  lengths: str = ''  # at the end of training, such as '5 to 16 items'

  @property
  def title(self) -> str:
    """Returns words such as 'retrieval, trained on 5 to 16 items for 40,000 steps'."""
    task = self.task.removesuffix('_growing').replace('_', ' ')
    return ', '.join(filter(None, (task, self.words)))


def read_setting(config: Mapping[str, Any], task: str) -> Setting:
  """Returns the setting of a configuration such as configs/retrieval.py."""
  train = config['train']
  shortest, longest = train.get('min_length', 1), int(train['max_length'])
  first, steps = train.get('first_max_length') or longest, train.get('num_steps')
  growth, lengths = None, f'{shortest} to {longest} items'
  if first == longest:
    words = [f'trained on {lengths}']
  else:
    words = [f'trained on {shortest} items or more',
             f'longest length growing from {first} to {longest}']
    growth = Growth(first, longest, int(GROWTH * steps)) if steps else None
  if steps:
    words[0] += f' for {steps:,} steps'
  if (decay := config.get('optimizer', {}).get('l2')) is not None:
    words.append(f'L2 penalty {decay:g}' if decay else 'no L2 penalty')
  # Classes of retrieval and lookup are equally frequent; those of others may not be.
  known = task.removesuffix('_growing') in ('retrieval', 'lookup')
  classes = config.get('task', {}).get('num_classes') if known else None
  chance = 1 / classes if classes else None
  return Setting(task, longest, chance, ', '.join(words), growth, lengths)
