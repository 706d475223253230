"""How a run changes its checkpoint, in words. Runs without JAX."""

from collections.abc import Mapping
from typing import Any


def changes(config: Mapping[str, Any]) -> list[str]:
  """Returns what differs from the files of the checkpoint, [] if nothing does.

  Args:
    config: of a run, flattened.

  Returns:
    Such as ['yarn by 4 from 128 tokens', 'bfloat16', 'window 512 tokens'].
  """
  found = []
  if config.get('rope.kind', 'none') != 'none':
    length = config['rope.original_length']
    start = f' from {length:,} tokens' if length else ''
    found.append(f'{config["rope.kind"]} by {config["rope.factor"]:g}{start}')
  if config.get('dtype'):
    found.append(config['dtype'])
  if config.get('window'):
    found.append(window_words(config['window']))
  return found


def window_words(window: int) -> str:
  """Returns a window in words, such as 'window 512 tokens'."""
  return f'window {window:,} tokens'
