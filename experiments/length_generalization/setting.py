"""What figures say about a trained model: its task and training. Runs without JAX."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Setting(NamedTuple):
  """A task, and how models were trained on it."""

  task: str = ''  # as in the column experiment
  trained_up_to: int = 16  # the longest training length
  chance: float | None = None  # share of right answers by guessing; None if unknown
  words: str = ''  # of training: lengths, steps, weight decay

  @property
  def title(self) -> str:
    """Returns words such as 'retrieval, trained on 5 to 16 items for 40,000 steps'."""
    task = self.task.removesuffix('_growing').replace('_', ' ')
    return ', '.join(filter(None, (task, self.words)))


def read_setting(config: Mapping[str, Any], task: str) -> Setting:
  """Returns the setting of a configuration such as configs/retrieval.py."""
  train = config['train']
  longest = int(train['max_length'])
  first = train.get('first_max_length') or longest
  lengths = f'{train.get("min_length", 1)} to {first} items'
  if first != longest:
    lengths = f'{train.get("min_length", 1)} to {first}, later {longest} items'
  words = [f'trained on {lengths}']
  if steps := train.get('num_steps'):
    words[0] += f' for {steps:,} steps'
  if (decay := config.get('optimizer', {}).get('l2')) is not None:
    words.append(f'L2 {decay:g}' if decay else 'no L2')
  # Classes of retrieval and lookup are equally frequent; those of others may not be.
  known = task.removesuffix('_growing') in ('retrieval', 'lookup')
  classes = config.get('task', {}).get('num_classes') if known else None
  return Setting(task, longest, 1 / classes if classes else None, ', '.join(words))
