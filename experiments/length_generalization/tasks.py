"""A task and the model that is trained on it, as a configuration says."""

from collections.abc import Callable
import functools
import os
import runpy
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.dictionary import DictionaryRetriever, with_key_rows
from vvlen.models.retriever import Retriever
from vvlen.tasks import lookup, retrieval

NAMES = ('retrieval', 'lookup')
# The second is PyTorch's for a linear layer: uniform within 1 / √(inputs).
INITIALIZERS = {
    'lecun_normal': nn.initializers.lecun_normal(),
    'uniform': nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform'),
}


class Task(NamedTuple):
  """What training, measuring and figures need of a task."""

  name: str  # of its rows; letters, digits and _
  # (key, *, batch_size, min_length, max_length, longest) -> a batch of sequences, with
  # the fields query, items, mask, target and target_index (`vvlen.tasks.retrieval`)
  sample: Callable[..., Any]
  # arm -> the model with that norm (`vvlen.models.retriever.Retriever`)
  model: Callable[[str], nn.Module]
  # -> [M, x], all items, or a grid of them, for the bound of Proposition 1
  vocabulary: Callable[[], jax.Array]
  # (batch, weights [S, N]) -> [S, N]: in Figure 4 the largest stands first
  order: Callable[[Any, jax.Array], jax.Array]
  fixed_query: np.ndarray  # without a batch axis, for Proposition 1
  shown_items: str  # what Figure 4 shows, in words
  # Parameters -> the same, with what measuring needs to compute but once.
  prepare: Callable[[Any], Any] = lambda params: params
  # batch -> [S, N] int, the class that each item stands for; for interventions
  item_class: Callable[[Any], jax.Array] | None = None

  def sample_at(self, key: jax.Array, num_sequences: int, length: int) -> Any:
    """Draws sequences of one length, for measuring."""
    return self.sample(
        key, batch_size=num_sequences, min_length=length, max_length=length
    )


def make_task(config: Any) -> Task:
  """Returns the task of a configuration, of which `task` and `model` are read.

  `task.name` is 'retrieval', 'lookup', or 'FILE.py:FUNCTION', a function of
  (fields of `task`, fields of `model`) that returns a `Task`.

  Raises:
    ValueError: if there is no such file or function.
  """
  fields = config.model.to_dict()
  fields['kernel_init'] = INITIALIZERS[fields.get('kernel_init', 'lecun_normal')]
  makers = {'retrieval': _retrieval, 'lookup': _lookup}
  make = makers.get(config.task.name) or _own(config.task.name)
  return make(config.task.to_dict(), fields)


def _own(name: str) -> Callable[[dict[str, Any], dict[str, Any]], Task]:
  """Returns the function of a task of one's own; its file is run as Python."""
  path, _, function = name.rpartition(':')
  if not path.endswith('.py') or not os.path.exists(path):
    raise ValueError(
        'config.task.name must be retrieval, lookup, or FILE.py:FUNCTION of a file '
        f'that there is: {name!r}'
    )
  found = runpy.run_path(path).get(function)
  if not callable(found):
    raise ValueError(f'config.task.name: {path} has no function {function!r}')
  return found


def _retrieval(task: dict[str, Any], model: dict[str, Any]) -> Task:
  informative = task.get('informative_query', False)
  num_classes = task['num_classes']
  return Task(
      'retrieval',
      functools.partial(
          retrieval.sample, num_classes=num_classes, informative_query=informative
      ),
      lambda norm: Retriever(num_classes=num_classes, norm=norm, **model),
      functools.partial(retrieval.vocabulary, num_classes),
      lambda batch, weights: batch.items[..., 0],
      # The middle of all queries, or of those for the highest priority.
      np.array([0.75 if informative else 0.5], np.float32),
      'the 16 items of highest priority, the highest on the left',
      item_class=lambda batch: batch.items[..., 1:].argmax(-1),
  )


def _lookup(task: dict[str, Any], model: dict[str, Any]) -> Task:
  num_keys, num_classes = task['num_keys'], task['num_classes']
  return Task(
      'lookup',
      functools.partial(lookup.sample, num_keys=num_keys, num_values=num_classes),
      lambda norm: DictionaryRetriever(
          norm=norm, num_keys=num_keys, num_classes=num_classes, **model
      ),
      functools.partial(lookup.vocabulary, num_keys, num_classes),
      lambda batch, weights: weights + 2 * jax.nn.one_hot(
          batch.target_index, weights.shape[-1], dtype=jnp.float32
      ),
      np.zeros((), np.int32),
      'the item asked for, on the left, and the 15 others of most weight',
      prepare=with_key_rows,
      item_class=lambda batch: batch.items[..., 1],
  )
