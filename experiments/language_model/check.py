"""What a configuration of `experiments.language_model` must be to run."""

import math
from typing import Any

from experiments.language_model import report as alignment
from experiments.language_model import training
from vvlen.models import rope
from vvlen.models.llama.model import check_model
from vvlen.models.norm import KINDS as NORMS
from vvlen.objectives.windows import offset_range
from vvlen.reporting import run_folder
from vvlen.tasks.tokenizers import byte_tokenizer

# Whole numbers, and the least that each may be.
_LEAST = {
    'num_seeds': 1, 'seed': 0, 'train.max_length': 4, 'train.batch_size': 1,
    'train.num_steps': 1, 'train.steps_per_call': 1, 'train.seeds_at_once': 0,
    'train.group_size': 1, 'train.save_every_steps': 1, 'train.parts': 1,
    'evaluate.every_steps': 1, 'evaluate.num_segments': 1, 'optimizer.warmup_steps': 0,
    'model.num_layers': 1, 'model.width': 1, 'model.mlp_width': 1,
    'model.num_heads': 1, 'model.num_key_heads': 1,
}
# Of seeds one at a time alone, and what they are where seeds are trained together.
_ALONE: dict[str, tuple[Any, ...]] = {
    'checkpoint': ('',), 'text.within_documents': (False,), 'train.parts': (1,),
    'mesh.data': (-1, 1), 'mesh.fsdp': (1,), 'mesh.tensor': (1,),
}


def check(config: Any) -> None:
  """Raises ValueError on a configuration that cannot run."""
  fields = run_folder.flatten(config.to_dict())
  for name, least in _LEAST.items():
    if name.startswith('model.') and 'model' not in config:
      continue
    value = fields[name]
    if type(value) is not int or value < least:
      raise ValueError(
          f'config.{name} must be a whole number from {least} on: {value!r}')
  for name, plain in _ALONE.items():
    if config.train.seeds_at_once and fields[name] not in plain:
      raise ValueError(f'config.{name} {fields[name]!r} is for seeds one at a time: '
                       '--config.train.seeds_at_once=0')
  _check_model(config)
  _check_arms(config)
  _check_evaluation(config)
  if config.train.dtype not in ('float32', 'bfloat16'):
    raise ValueError('config.train.dtype must be float32 or bfloat16: '
                     f'{config.train.dtype!r}')
  for arm in config.arms.values():
    try:
      training.make_optimizer(
          config, training.num_steps(config, arm))
    except ValueError as error:
      raise ValueError(f'config.optimizer: {error}') from error


def _check_model(config: Any) -> None:
  if config.checkpoint:
    return
  if 'model' not in config:
    raise ValueError('config.checkpoint is missing: a folder to go on from')
  if config.model.norm not in NORMS:
    raise ValueError(f'config.model.norm must be of {", ".join(NORMS)}: '
                     f'{config.model.norm!r}')
  try:
    model = training.make_model(config, byte_tokenizer())
    check_model(model)
    rope.check(model.rope)  # type: ignore[arg-type]
  except ValueError as error:
    raise ValueError(f'config.model: {error}') from error


def _check_arms(config: Any) -> None:
  if config.control not in config.arms:
    raise ValueError(f'config.control {config.control!r} is none of config.arms')
  for name, arm in config.arms.items():
    if not name.replace('_', '').isalnum():
      raise ValueError(f'config.arms: a name has letters, digits and _: {name!r}')
    offset_range(config.train.max_length, tuple(arm.offsets))
    if not 0 <= arm.weight < math.inf:
      raise ValueError(f'config.arms.{name}.weight must be finite and not negative: '
                       f'{arm.weight}')
    if not 0 < arm.steps <= 10:
      raise ValueError(f'config.arms.{name}.steps must lie in 0..10: {arm.steps}')
  alignment.check(alignment.read_run(config.to_dict()))


def _check_evaluation(config: Any) -> None:
  length, lengths = config.train.max_length, list(config.evaluate.lengths)
  if not lengths or sorted(set(lengths)) != lengths or not all(
      type(x) is int and x >= 1 for x in lengths):
    raise ValueError(
        f'config.evaluate.lengths must be rising whole multiples: {lengths}')
  if lengths[0] != 1 or len(lengths) < 2:
    raise ValueError('config.evaluate.lengths must be 1 and at least one more: '
                     f'{lengths}')
  if not config.evaluate.offsets:
    raise ValueError('config.evaluate.offsets must not be empty')
  for share in config.evaluate.offsets:
    if not 1 <= int(share * length) <= length // 2 - 1:
      raise ValueError('config.evaluate.offsets must be shares of the length that '
                       f'leave 1..{length // 2 - 1} of {length}: {share}')
  for name, steps in (('train.num_steps', config.train.num_steps),
                      ('evaluate.every_steps', config.evaluate.every_steps)):
    if config.train.seeds_at_once and steps % config.train.steps_per_call:
      raise ValueError(f'config.{name} {steps} must be a multiple of '
                       f'config.train.steps_per_call {config.train.steps_per_call}')
