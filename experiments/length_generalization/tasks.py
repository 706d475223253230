"""The task and the model of a configuration."""

from collections.abc import Callable, Sequence
import functools
import hashlib
import inspect
import os
import re
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import own_function
from experiments.harness.fields import flag, Kind, optional, whole
from vvlen.models.dictionary import DictionaryRetriever, with_key_rows
from vvlen.models.retriever import Retriever
from vvlen.tasks import lookup, retrieval

# Fields of a configuration's `task`, for the two tasks of the paper.
FIELDS: dict[str, dict[str, Kind]] = {
    'retrieval': {
        'task.num_classes': whole(least=2),
        'task.informative_query': optional(flag()),
    },
    'lookup': {
        'task.num_classes': whole(least=2),
        'task.num_keys': whole(least=1),
        # In a grid, the base may be retrieval, which has this field.
        'task.informative_query': optional(Kind(
            'False, as only retrieval supports it', '', lambda value: value is False)),
    },
}
# 'uniform' is PyTorch's default for linear layers: between ±1 / √(inputs).
INITIALIZERS = {
    'lecun_normal': nn.initializers.lecun_normal(),
    'uniform': nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform'),
}


class Task(NamedTuple):
  """What training, measuring and figures need to know about a task."""

  name: str  # in the column experiment; letters, digits and _
  # (key, *, batch_size, min_length, max_length, longest) -> a batch of sequences, with
  # the fields query, items, mask, target and target_index (`vvlen.tasks.retrieval`)
  sample: Callable[..., Any]
  # arm -> the model with that norm (`vvlen.models.retriever.Retriever`)
  model: Callable[[str], nn.Module]
  # () -> [M, x]: all items, or a grid of items, for the bound of Proposition 1
  vocabulary: Callable[[], jax.Array]
  # (batch, weights [S, N]) -> [S, N]: Figure 4 shows items in descending order of it
  order: Callable[[Any, jax.Array], jax.Array]
  fixed_query: np.ndarray  # one query, without a batch axis, for Proposition 1
  shown_items: str  # the items in Figure 4, in words
  # parameters -> variables: them, and tables that measuring can compute in advance
  prepare: Callable[[Any], Any] = lambda params: {'params': params}
  # batch -> [S, N] int: the class of each item; for interventions
  item_class: Callable[[Any], jax.Array] | None = None
  max_length: int | None = None  # the most items in a sequence; None for no bound

  def sample_at(self, key: jax.Array, num_sequences: int, length: int) -> Any:
    """Draws sequences of one length, to measure models on."""
    return self.sample(
        key, batch_size=num_sequences, min_length=length, max_length=length
    )


def make_task(config: Any) -> Task:
  """Returns the task of a configuration, from its fields `task` and `model`.

  `task.name` is 'retrieval', 'lookup', or 'FILE.py:FUNCTION'. FUNCTION is called with
  the fields of `task` and those of `model`, two dicts, and must return a `Task`.

  Raises:
    ValueError: if the file or function does not exist, or does not return a `Task`.
  """
  fields = config.model.to_dict()
  fields['kernel_init'] = INITIALIZERS[fields.get('kernel_init', 'lecun_normal')]
  makers = {'retrieval': _retrieval, 'lookup': _lookup}
  make = makers.get(config.task.name) or _own(config.task.name)
  own = config.task.to_dict()
  if own.pop('sha256', None) not in (None, _sha256(config.task.name)):
    raise ValueError(
        f'{config.task.name} is another file than the one that the models were trained '
        'on: choose another --workdir, or put the old file back'
    )
  task = make(own, fields)
  if not isinstance(task, Task) or not re.fullmatch('[A-Za-z0-9_]+', task.name):
    raise ValueError(
        f'config.task.name: {config.task.name} must return a Task whose name consists '
        f'of letters, digits and _: {task!r:.80}'
    )
  return task


def identified(config: Any) -> Any:
  """Returns a configuration with the SHA-256 of the file of a user's task.

  It keeps a run from being resumed or measured after the file has changed.
  Configurations of built-in tasks are returned as they are.
  """
  if ':' not in config.task.name or 'sha256' in config.task:
    return config
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.task.update(identity(config.task.name))
  return config


def identity(name: str) -> dict[str, str]:
  """Returns {'sha256': of the file of a task}, and {} for a built-in one."""
  return {'sha256': _sha256(name)} if ':' in name else {}


def make_identifying(part: dict[str, Any], machine: Sequence[str]) -> None:
  """Leaves in a part of a configuration only the fields that identify its results.

  Args:
    part: a plain dict, which is changed. Its fields `task` and `train` may be missing.
      A task of the user gets the SHA-256 of its file.
    machine: fields of `train` that may differ between machines, which are removed.
  """
  for name in machine:
    part.get('train', {}).pop(name, None)
  if 'name' in part.get('task', {}):
    part['task'] |= identity(part['task']['name'])


def _sha256(name: str) -> str:
  """Returns the SHA-256 of the file in 'FILE.py:FUNCTION', '' if there is no file."""
  path = name.rpartition(':')[0]
  if not os.path.isfile(path):
    return ''
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _own(name: str) -> Callable[[dict[str, Any], dict[str, Any]], Task]:
  """Returns the function named by 'FILE.py:FUNCTION'; the file is run as Python."""
  path, _, function = name.rpartition(':')
  if not path.endswith('.py') or not os.path.exists(path):
    raise ValueError(
        'config.task.name must be retrieval, lookup, or FILE.py:FUNCTION, where the '
        f'file exists: {name!r}'
    )
  found = own_function.load('config.task.name', path, function)
  try:
    inspect.signature(found).bind({}, {})
  except TypeError as error:
    raise ValueError(f'config.task.name: {path}:{function} must take two arguments, '
                     f'the fields of task and those of model: {error}') from error
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
      # The middle of [0, 1), or of [1/2, 1), where an informative query asks for the
      # highest priority.
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
      max_length=num_keys,  # the keys in a sequence are distinct
  )
