"""Checks configurations of `experiments.length_generalization`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

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


def check_own_task(config: Any) -> None:
  """Raises ValueError if models cannot be trained or measured on a task of the user.

  Draws one batch and computes the shapes of what the task returns for it. Tasks of this
  package are not checked. JAX uses its devices from here on.
  """
  if ':' not in config.task.name:
    return
  train, size = config.train, min(config.train.batch_size, 64)
  task = tasks.make_task(config)
  batch = task.sample(
      jax.random.key(0), batch_size=size, min_length=train.min_length,
      max_length=train.max_length, longest=None)

  def check_that(
      right: bool, field: str, must: str, found: Any, of: str = ' of a batch'
  ) -> None:
    if not right:
      raise ValueError(f'{config.task.name}: {field}{of} must {must}: {found}')

  mask, target, places = map(np.asarray, (batch.mask, batch.target, batch.target_index))
  kind = lambda x: f'{x.dtype} {[*x.shape]}'
  check_that(mask.dtype == bool and mask.shape == (size, train.max_length), 'mask',
             f'be bool, [{size}, {train.max_length}]', kind(mask))
  logits = jax.eval_shape(
      lambda key, x: task.model(config.arms[0]).init_with_output(
          key, x.query, x.items, x.mask)[0], jax.random.key(0), batch)
  *answers, classes = logits.shape
  if np.issubdtype(target.dtype, np.floating):
    check_that(target.shape == logits.shape, 'target',
               f'be {[*logits.shape]} as the logits, or int, {answers}', kind(target))
  else:
    check_that([*target.shape] == answers, 'target',
               f'be {answers}, as the logits {[*logits.shape]}', kind(target))
    check_that(0 <= target.min() and target.max() < classes, 'target',
               f'be in 0..{classes - 1}, a class of the logits',
               f'{target.min()} to {target.max()}')
  check_that([*places.shape] == answers and np.issubdtype(places.dtype, np.integer),
             'target_index', f'be int, {answers}', kind(places))
  check_that(0 <= places.min() and places.max() < train.max_length, 'target_index',
             f'be in 0..{train.max_length - 1}', f'{places.min()} to {places.max()}')
  rows = np.arange(size).reshape(-1, *[1] * (places.ndim - 1))
  check_that(bool(mask[rows, places].all()), 'target_index', 'be of items in the mask',
             'one is not')
  check_that(not config.evaluate.fit_lengths or target.ndim == 1, 'target',
             'be int, one class, for temperatures to be fitted (none are with '
             '--config.evaluate.fit_lengths="()")', kind(target))
  # What is used only after training, to measure the models.
  query, items = batch.query.shape, batch.items.shape
  fixed = np.shape(task.fixed_query)
  check_that(_broadcasts(fixed, query), 'fixed_query',
             f'be one query, {[*query[1:]]}', [*fixed], '')
  every = np.shape(task.vocabulary())
  check_that(every[1:] == items[2:], 'vocabulary()',
             f'be of items, {["M", *items[2:]]}'.replace("'", ''), [*every], '')
  if len(answers) == 1:
    weights = jax.ShapeDtypeStruct(mask.shape, np.float32)
    order = jax.eval_shape(task.order, batch, weights).shape
    check_that(order == mask.shape, 'order(batch, weights)', f'be {[*mask.shape]}',
               [*order], '')


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
  """Whether an array of a shape broadcasts to another shape."""
  try:
    return np.broadcast_shapes(shape, to) == to
  except ValueError:
    return False
