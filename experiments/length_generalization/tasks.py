"""A task and the model that is trained on it, as a configuration says."""

from collections.abc import Callable
import functools
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
  """What training and measuring need of a task."""

  # (key, *, batch_size, min_length, max_length) -> batch
  sample: Callable[..., Any]
  # arm -> the model with that norm
  model: Callable[[str], nn.Module]
  # Parameters -> the same, with what measuring needs to compute but once.
  prepare: Callable[[Any], Any]
  # For Proposition 1: one query without a batch axis, and all items.
  fixed_query: np.ndarray
  vocabulary: Callable[[], jax.Array]
  # (batch, weights [S, N]) -> [S, N]: in Figure 4 the largest stands first
  order: Callable[[Any, jax.Array], jax.Array]
  # batch -> [S, N] int, the class that each item stands for
  item_class: Callable[[Any], jax.Array]

  def sample_at(self, key: jax.Array, num_sequences: int, length: int) -> Any:
    """Draws sequences of one length, for measuring."""
    return self.sample(
        key, batch_size=num_sequences, min_length=length, max_length=length
    )


def make_task(config: Any) -> Task:
  """Returns the task of a configuration, of which `task` and `model` are read."""
  task, fields = config.task, config.model.to_dict()
  fields['kernel_init'] = INITIALIZERS[fields.get('kernel_init', 'lecun_normal')]
  if task.name == 'retrieval':
    informative = task.get('informative_query', False)
    return Task(
        functools.partial(
            retrieval.sample, num_classes=task.num_classes,
            informative_query=informative,
        ),
        lambda norm: Retriever(num_classes=task.num_classes, norm=norm, **fields),
        lambda params: params,
        # The middle of all queries, or of those for the highest priority.
        np.array([0.75 if informative else 0.5], np.float32),
        functools.partial(retrieval.vocabulary, task.num_classes),
        lambda batch, weights: batch.items[..., 0],
        lambda batch: batch.items[..., 1:].argmax(-1),
    )
  sizes = dict(num_keys=task.num_keys, num_classes=task.num_classes)
  return Task(
      functools.partial(
          lookup.sample, num_keys=task.num_keys, num_values=task.num_classes
      ),
      lambda norm: DictionaryRetriever(norm=norm, **sizes, **fields),
      with_key_rows,
      np.zeros((), np.int32),
      functools.partial(lookup.vocabulary, task.num_keys, task.num_classes),
      lambda batch, weights: weights + 2 * jax.nn.one_hot(
          batch.target_index, weights.shape[-1], dtype=jnp.float32
      ),
      lambda batch: batch.items[..., 1],
  )
