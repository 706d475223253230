"""A custom task: predict the class of the item with the second highest priority.

python -m experiments.length_generalization --config=configs/retrieval.py:quick \
      --config.task.name=docs/examples/second_largest.py:make_task --workdir=runs/second
"""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.length_generalization.tasks import Task
from vvlen.models.retriever import Retriever
from vvlen.tasks import retrieval


def make_task(task, model):
  """Returns the task; both arguments are fields of the configuration, as dicts."""
  classes = task['num_classes']

  def sample(key, **sizes):
    batch = retrieval.sample(key, num_classes=classes, **sizes)
    priority = jnp.where(batch.mask, batch.items[..., 0], -1.0)
    second = jax.lax.top_k(priority, 2)[1][:, 1]
    chosen = jnp.take_along_axis(batch.items, second[:, None, None], axis=1)[:, 0, 1:]
    return batch._replace(target=chosen.argmax(-1), target_index=second)

  return Task(
      'second_largest', sample,
      lambda norm: Retriever(num_classes=classes, norm=norm, **model),
      lambda: retrieval.vocabulary(classes),
      lambda batch, weights: batch.items[..., 0],
      np.array([0.5], np.float32),
      'the 16 items of highest priority, the highest on the left',
  )
