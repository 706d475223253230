"""The tasks of a league: those of length generalization, and two more."""

from collections.abc import Callable
import functools
from typing import Any

import numpy as np

from experiments.harness.fields import Kind, whole
from experiments.length_generalization import tasks
from experiments.length_generalization.tasks import INITIALIZERS, Task
from vvlen.models.dictionary import DictionaryRetriever, with_key_rows
from vvlen.models.retriever import Retriever
from vvlen.tasks import associative_recall, lookup, set_complement

# Fields of a configuration's `task`, for the two tasks of this file.
FIELDS: dict[str, dict[str, Kind]] = {
    'associative_recall': {
        'task.num_classes': whole(least=2),
        'task.num_keys': whole(least=1),
        'task.num_queries': whole(least=1),
    },
    'set_complement': {'task.num_classes': whole(least=2)},
}


def make_task(config: Any) -> Task:
  """Returns the task of a configuration, as the function of length generalization."""
  make = _MAKERS.get(config.task.name)
  if make is None:
    return tasks.make_task(config)
  fields = config.model.to_dict()
  fields['kernel_init'] = INITIALIZERS[fields.get('kernel_init', 'lecun_normal')]
  return make(config.task.to_dict(), fields)


def _associative_recall(task: dict[str, Any], model: dict[str, Any]) -> Task:
  num_keys, num_classes = task['num_keys'], task['num_classes']
  return Task(
      'associative_recall',
      functools.partial(associative_recall.sample, num_keys=num_keys,
                        num_values=num_classes, num_queries=task['num_queries']),
      lambda norm: DictionaryRetriever(
          norm=norm, num_keys=num_keys, num_classes=num_classes, **model),
      functools.partial(lookup.vocabulary, num_keys, num_classes),
      lambda batch, weights: weights,
      np.zeros((), np.int32),
      'the items of most weight',
      prepare=with_key_rows,
      max_length=num_keys,  # the keys in a sequence are distinct
  )


def _set_complement(task: dict[str, Any], model: dict[str, Any]) -> Task:
  num_classes = task['num_classes']
  return Task(
      'set_complement',
      functools.partial(set_complement.sample, num_symbols=num_classes),
      lambda norm: Retriever(num_classes=num_classes, norm=norm, **model),
      functools.partial(set_complement.vocabulary, num_classes),
      lambda batch, weights: weights,
      np.ones(1, np.float32),
      'the items of most weight',
      max_length=num_classes - 1,  # a symbol at least is absent
  )


_MAKERS: dict[str, Callable[..., Task]] = {
    'associative_recall': _associative_recall, 'set_complement': _set_complement,
}
