"""What a configuration of `experiments.length_generalization` must be to run."""

import math
from typing import Any

from experiments.harness.fields import naming_fields
from experiments.length_generalization import tasks, training
from vvlen.models.norm import KINDS
from vvlen.models.retriever import ITEM_ENCODERS
from vvlen.reporting.run_folder import flatten

_POSITIVE = {
    'train': ('batch_size', 'min_length', 'num_steps', 'steps_per_call',
              'seeds_at_once', 'group_size'),
    'model': ('width',),
    'optimizer': ('learning_rate',),
    'evaluate': ('num_sequences', 'fit_sequences', 'histogram_sequences',
                 'weight_sequences'),
}
L2_ON = ('kernels', 'all')  # parameters that weight decay acts on
_REAL = {'model.epsilon', 'optimizer.l2', 'optimizer.learning_rate',
         'train.save_every_seconds'}
_WHOLE = {
    'num_seeds', 'optimizer.decay_steps', 'seed', 'task.num_classes', 'task.num_keys',
    'train.first_max_length', 'train.max_length',
    *(f'{group}.{name}' for group, names in _POSITIVE.items() for name in names),
} - _REAL


def check(config: Any) -> None:
  """Raises ValueError on a configuration that cannot run."""
  with naming_fields():
    _check(config)
    for arm in config.arms:
      training.problem(config, arm)


def _check(config: Any) -> None:
  for name, value in flatten(config.to_dict()).items():
    if name in _REAL and not isinstance(value, (int, float)):
      raise ValueError(f'config.{name} must be a number: {value!r}')
    if name in _WHOLE and not isinstance(value, int):
      raise ValueError(f'config.{name} must be a whole number: {value!r}')
  train, evaluate = config.train, config.evaluate
  if config.num_seeds < 2:
    raise ValueError(
        f'config.num_seeds must be at least 2, to test a difference: {config.num_seeds}'
    )
  for group, names in _POSITIVE.items():
    for name in names:
      if not config[group][name] > 0:
        raise ValueError(
            f'config.{group}.{name} must be positive: {config[group][name]}'
        )
  if not config.task.num_classes > 1:
    raise ValueError(
        f'config.task.num_classes must be at least 2: {config.task.num_classes}'
    )
  for name, value in config.optimizer.items():
    if name != 'l2_on' and not 0 <= value < math.inf:
      raise ValueError(f'config.optimizer.{name} must be finite, not negative: {value}')
  if (l2_on := config.optimizer.get('l2_on', 'kernels')) not in L2_ON:
    raise ValueError(
        f'config.optimizer.l2_on must be of {", ".join(L2_ON)}: {l2_on!r}'
    )
  ends = train.get('averaged_at', ())
  if any(not isinstance(end, int) or not 0 < end <= train.num_steps for end in ends):
    raise ValueError(
        'config.train.averaged_at must be steps, up to num_steps '
        f'{train.num_steps}: {tuple(ends)}'
    )
  if not train.save_every_seconds >= 0:
    raise ValueError(
        'config.train.save_every_seconds must not be negative: '
        f'{train.save_every_seconds}'
    )
  if not 0 <= config.seed < 2**32:
    raise ValueError(f'config.seed must lie in 0..2**32-1: {config.seed}')
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
  if train.num_steps % train.steps_per_call:
    raise ValueError(
        f'config.train.num_steps {train.num_steps} must be a multiple of '
        f'config.train.steps_per_call {train.steps_per_call}'
    )
  if train.seeds_at_once % train.group_size:
    raise ValueError(
        f'config.train.seeds_at_once {train.seeds_at_once} must be a multiple of '
        f'group_size {train.group_size}'
    )
  for name in ('lengths', 'fit_lengths', 'histogram_lengths'):
    values = evaluate[name]
    optional = name == 'fit_lengths'  # without them nothing is fitted
    if not (values or optional) or any(
        not isinstance(n, int) or n < 1 for n in values
    ):
      raise ValueError(f'config.evaluate.{name} must be positive integers: {values}')
  if max(evaluate.lengths) <= train.max_length:
    raise ValueError(
        'config.evaluate.lengths must go beyond config.train.max_length: '
        f'{evaluate.lengths}, {train.max_length}'
    )
  arms = config.arms
  if not arms or set(arms) - set(KINDS) or len(set(arms)) < len(arms):
    raise ValueError(f'config.arms must be distinct, of {", ".join(KINDS)}: {arms}')
  if config.task.name not in tasks.NAMES and ':' not in config.task.name:
    raise ValueError(
        f'config.task.name must be of {", ".join(tasks.NAMES)}: {config.task.name!r}'
    )
  longest = max(train.max_length, *evaluate.lengths, *evaluate.fit_lengths,
                *evaluate.histogram_lengths)
  num_keys = config.task.get('num_keys')
  if (config.task.name == 'lookup') != (num_keys is not None):
    raise ValueError(
        f'config.task.num_keys is for lookup, which needs it: {num_keys}, task '
        f'{config.task.name}'
    )
  if num_keys is not None and longest > num_keys:
    raise ValueError(
        'config.task.num_keys must not be less than any length: '
        f'{num_keys} < {longest}'
    )
  if config.task.name == 'lookup' and config.task.get('informative_query'):
    raise ValueError('config.task.informative_query is for retrieval: True')
  initializer = config.model.get('kernel_init', 'lecun_normal')
  if initializer not in tasks.INITIALIZERS:
    raise ValueError(
        f'config.model.kernel_init must be of {", ".join(tasks.INITIALIZERS)}: '
        f'{initializer!r}'
    )
  if not 0 < config.model.get('epsilon', 1e-5) < math.inf:
    raise ValueError(f'config.model.epsilon must be positive: {config.model.epsilon}')
  if config.model.item_encoder not in ITEM_ENCODERS:
    raise ValueError(
        f'config.model.item_encoder must be of {", ".join(ITEM_ENCODERS)}: '
        f'{config.model.item_encoder!r}'
    )
