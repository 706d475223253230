"""Checks that models can be trained and measured on a task of the user.

Axes: S sequences, N items, Q queries, C classes; a model answers with logits [S, C], or
[S, Q, C] if a sequence has several queries.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from experiments.length_generalization import tasks

_MOST = 64  # sequences that are drawn


def check_own_task(config: Any) -> None:
  """Raises ValueError if models cannot be trained or measured on a task of the user.

  Draws one batch and computes the shapes of what the task returns for it. Tasks of this
  package are not checked. JAX uses its devices from here on.
  """
  if ':' not in config.task.name:
    return
  if problem := next(_problems(config), None):
    raise ValueError(f'{config.task.name}: {problem}')


def _problems(config: Any) -> Iterator[str]:
  """Yields what is wrong; each check presumes that the checks before it have passed."""
  train, size = config.train, min(config.train.batch_size, _MOST)
  task = tasks.make_task(config)
  batch = task.sample(
      jax.random.key(0), batch_size=size, min_length=train.min_length,
      max_length=train.max_length, longest=None)
  mask, target, index = map(np.asarray, (batch.mask, batch.target, batch.target_index))
  yield from _of_mask(mask, (size, train.max_length))
  logits = _shape_of_logits(task, config.arms[0], batch)
  yield from _of_target(target, logits)
  yield from _of_target_index(index, mask, logits[:-1])
  if config.evaluate.fit_lengths and target.ndim != 1:
    yield ('target of a batch must be int, one class, for temperatures to be fitted '
           f'(none are with --config.evaluate.fit_lengths="()"): {_kind(target)}')
  # What is used only after training, to measure the models.
  yield from _of_fixed_query(task, batch)
  yield from _of_vocabulary(task, batch)
  if len(logits) == 2:
    yield from _of_order(task, batch)


def _of_mask(mask: np.ndarray, shape: tuple[int, int]) -> Iterator[str]:
  """A mask says which of N items a sequence has: [S, N] bool."""
  if mask.dtype != bool or mask.shape != shape:
    yield f'mask of a batch must be bool, {[*shape]}: {_kind(mask)}'


def _of_target(target: np.ndarray, logits: tuple[int, ...]) -> Iterator[str]:
  """A target is a class for each answer, int, or a distribution over classes, float."""
  *answers, classes = logits
  if np.issubdtype(target.dtype, np.floating):
    if target.shape != logits:
      yield (f'target of a batch must be {[*logits]} as the logits, or int, {answers}: '
             f'{_kind(target)}')
    return
  if [*target.shape] != answers:
    yield (f'target of a batch must be {answers}, as the logits {[*logits]}: '
           f'{_kind(target)}')
  if not _in_range(target, classes):
    yield (f'target of a batch must be in 0..{classes - 1}, a class of the logits: '
           f'{target.min()} to {target.max()}')


def _of_target_index(
    index: np.ndarray, mask: np.ndarray, answers: Sequence[int]
) -> Iterator[str]:
  """The index of the target is that of an item in the mask, one for each answer."""
  name = 'target_index of a batch'
  if [*index.shape] != [*answers] or not np.issubdtype(index.dtype, np.integer):
    yield f'{name} must be int, {[*answers]}: {_kind(index)}'
  size, longest = mask.shape
  if not _in_range(index, longest):
    yield f'{name} must be in 0..{longest - 1}: {index.min()} to {index.max()}'
  rows = np.arange(size).reshape(-1, *[1] * (index.ndim - 1))
  if not mask[rows, index].all():
    yield f'{name} must be of items in the mask: one is not'


def _of_fixed_query(task: tasks.Task, batch: Any) -> Iterator[str]:
  """The fixed query is put in place of that of each sequence."""
  fixed, query = np.shape(task.fixed_query), batch.query.shape
  if not _broadcasts(fixed, query):
    yield f'fixed_query must be one query, {[*query[1:]]}: {[*fixed]}'


def _of_vocabulary(task: tasks.Task, batch: Any) -> Iterator[str]:
  """The vocabulary lists M items."""
  found, item = np.shape(task.vocabulary()), batch.items.shape[2:]
  if found[1:] != item:
    shape = ', '.join(map(str, ('M', *item)))
    yield f'vocabulary() must be of items, [{shape}]: {[*found]}'


def _of_order(task: tasks.Task, batch: Any) -> Iterator[str]:
  """The order of the items is a number for each, [S, N]."""
  shape = batch.mask.shape
  weights = jax.ShapeDtypeStruct(shape, np.float32)
  found = jax.eval_shape(task.order, batch, weights).shape
  if found != shape:
    yield f'order(batch, weights) must be {[*shape]}: {[*found]}'


def _shape_of_logits(task: tasks.Task, arm: str, batch: Any) -> tuple[int, ...]:
  """Returns [S, C] or [S, Q, C], without computing the logits of a new model."""

  def logits(key: jax.Array, x: Any) -> jax.Array:
    return task.model(arm).init_with_output(key, x.query, x.items, x.mask)[0]

  return jax.eval_shape(logits, jax.random.key(0), batch).shape


def _kind(x: np.ndarray) -> str:
  return f'{x.dtype} {[*x.shape]}'


def _in_range(x: np.ndarray, end: int) -> bool:
  return 0 <= x.min() and x.max() < end


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
  """Whether an array of a shape broadcasts to another shape."""
  try:
    return np.broadcast_shapes(shape, to) == to
  except ValueError:
    return False
