"""Checks configurations of `experiments.length_generalization`."""

from collections.abc import Callable
from typing import Any

from experiments.harness import fields
from experiments.harness.fields import (
  anything,
  flag,
  one_of,
  optional,
  real,
  several,
  text,
  whole,
)
from experiments.length_generalization import tasks, training
from vvlen.models.norm import KINDS
from vvlen.models.retriever import ITEM_ENCODERS

_LENGTH = whole(least=1, most=2**24)
L2_ON = ('kernels', 'all')  # parameters that weight decay acts on
FIELDS = {
    **fields.SEED_BLOCKS,
    'arms': several(one_of(KINDS), once=True),
    'task.name': text(),
    'model.width': fields.width(),
    'model.item_encoder': one_of(ITEM_ENCODERS),
    'model.output_projection': optional(flag()),
    'model.value_bias': optional(flag()),
    'model.epsilon': optional(real(above=0)),
    'model.kernel_init': optional(one_of(tuple(tasks.INITIALIZERS))),
    'model.dtype': optional(one_of(fields.DTYPES)),
    'train.batch_size': whole(least=1),
    'train.min_length': whole(least=1),
    'train.max_length': whole(least=1),
    'train.first_max_length': optional(whole(least=1)),
    'train.keep_checkpoints': optional(flag()),  # of finished blocks; default True
    'train.averaged_at': optional(several(whole(least=1), least=0)),
    'optimizer.l2': real(least=0),
    'optimizer.l2_on': optional(one_of(L2_ON)),
    'optimizer.decoupled': optional(flag()),
    'optimizer.decay_steps': optional(whole(least=0)),
    'evaluate.lengths': several(_LENGTH, once=True),
    'evaluate.num_sequences': whole(least=1),
    'evaluate.fit_lengths': several(_LENGTH, least=0),  # (): none is fitted
    'evaluate.fit_sequences': whole(least=1),
    'evaluate.histogram_lengths': several(_LENGTH, once=True),
    'evaluate.histogram_sequences': whole(least=1),
    'evaluate.weight_sequences': whole(least=1),
}


def table_of(config: Any) -> dict[str, fields.Kind]:
  """Returns the table of what the fields of a configuration must be.

  Where `task.name` names a function of the user, any fields of `task` and `model` are
  allowed, but `model.kernel_init` must be one of `tasks.INITIALIZERS`.
  """
  name = str(fields.at(config, 'task.name'))
  if ':' not in name:
    return {**tasks.FIELDS.get(name, {'task.*': anything()}), **FIELDS}
  own = {field: kind for field, kind in FIELDS.items()
         if not field.startswith('model.') or field == 'model.kernel_init'}
  return {'task.*': anything(), 'model.*': anything(), **own}


def check(
    config: Any, make_task: Callable[[Any], tasks.Task] = tasks.make_task
) -> None:
  """Raises ValueError if a configuration cannot be run.

  Args:
    config: the configuration.
    make_task: a function that returns its task; a study with further tasks gives its
      own.
  """
  fields.check(config, table_of(config))
  fields.check_multiples(config, *fields.MULTIPLES)
  train, evaluate = config.train, config.evaluate
  if any(end > train.num_steps for end in train.get('averaged_at', ())):
    raise ValueError(
        'config.train.averaged_at must not exceed config.train.num_steps '
        f'{train.num_steps}: {tuple(train.averaged_at)}'
    )
  if train.min_length > train.max_length:
    raise ValueError(
        'config.train.min_length must not exceed max_length: '
        f'{train.min_length} > {train.max_length}'
    )
  first = train.get('first_max_length', train.min_length)
  if not train.min_length <= first <= train.max_length:
    raise ValueError(
        'config.train.first_max_length must lie in min_length..max_length: '
        f'{train.min_length}, {first}, {train.max_length}'
    )
  if max(evaluate.lengths) <= train.max_length:
    raise ValueError(
        'config.evaluate.lengths must go beyond config.train.max_length: '
        f'{evaluate.lengths}, {train.max_length}'
    )
  longest = max(train.max_length, *evaluate.lengths, *evaluate.fit_lengths,
                *evaluate.histogram_lengths)
  task = make_task(config)
  most = task.max_length
  if most is not None and longest > most:
    raise ValueError(
        f'lengths in config.train and config.evaluate go up to {longest}, but a '
        f'sequence of this task has at most {most} items'
        f'{": task.num_keys" if "num_keys" in config.task else ""}'
    )
  for arm in config.arms:
    training.problem(config, arm, task)  # raises if averaging intervals overlap
