"""Checks configurations of `experiments.language_model`."""

from typing import Any

from experiments.harness import fields
from experiments.harness.fields import (
  flag,
  one_of,
  optional,
  or_none,
  real,
  several,
  text,
  whole,
)
from experiments.harness.parts import naming
from experiments.language_model import arms, training
from vvlen.models.kernels.causal import IMPLEMENTATIONS
from vvlen.models.llama.layers import KEPT
from vvlen.models.llama.sizes import check_model
from vvlen.models.norm import KINDS as NORMS
from vvlen.objectives.windows import offset_range
from vvlen.reporting import run_folder
from vvlen.tasks.tokenizers import byte_tokenizer

# Fields of every study of language models.
TEXT_FIELDS = {
    'text.path': text(),
    'text.tokenizer': text(),
    'text.held_out': real(above=0, below=1),
    'train.max_length': whole(least=4),
    'train.batch_size': whole(least=1),
    'train.dtype': one_of(fields.DTYPES),
    'train.remat': flag(),
    'optimizer.warmup_steps': whole(least=0),
    'optimizer.weight_decay': real(least=0),
    'optimizer.clip_norm': or_none(real(above=0)),
    'optimizer.final_rate': real(least=0, most=1),
    'evaluate.lengths': several(whole(least=1), rising=True),
    'evaluate.num_segments': whole(least=1),
}
# Those of a study whose arms differ in the misalignment term.
ARM_FIELDS = {
    **TEXT_FIELDS,
    'seed': fields.seed(),
    'num_seeds': whole(least=1),
    'checkpoint': text(),
    'arms.*.weight': real(least=0),
    'arms.*.offsets': several(real(least=0, most=1), 2, 2, rising=True),
    'arms.*.steps': real(above=0, most=10),
    'text.within_documents': flag(),
    'train.num_steps': whole(least=1),
    'train.steps_per_call': whole(least=1),
    'train.save_every_steps': whole(least=1),
    'train.parts': whole(least=1),
    **fields.MESH,
    'optimizer.learning_rate': real(above=0),
    'evaluate.every_steps': whole(least=1),
    'evaluate.offsets': several(real(above=0, most=1)),
}
_FIELDS = {
    **ARM_FIELDS,
    'control': text('name'),
    'train.seeds_at_once': whole(least=0),
    'train.group_size': whole(least=1),
    'train.save_every_seconds': real(least=0),
    'train.scan_layers': optional(flag()),
    'train.remat_keeps': optional(one_of(KEPT)),
    'train.stream_dtype': optional(one_of(fields.DTYPES)),
    'optimizer.b1': optional(real(least=0, below=1)),
    'optimizer.b2': optional(real(least=0, below=1)),
}
# Fields of a new model; a checkpoint has its own.
_MODEL = {
    'model.num_layers': whole(least=1),
    'model.width': fields.width(),
    'model.mlp_width': fields.width(),
    'model.num_heads': whole(least=1),
    'model.num_key_heads': whole(least=1),
    'model.head_width': optional(or_none(whole(least=1))),
    'model.norm': one_of(NORMS),
    'model.rope_base': real(above=0),
    'model.epsilon': optional(real(above=0)),
    'model.attention_bias': optional(flag()),
    'model.output_bias': optional(flag()),
    'model.mlp_bias': optional(flag()),
    'model.tied': optional(flag()),
    'model.init_std': optional(real(above=0)),
    'model.init_common': optional(real(least=0)),
    'model.implementation': optional(or_none(one_of(IMPLEMENTATIONS))),
}
# Fields that are only supported for seeds one at a time -> their values for seeds that
# are trained together.
_ALONE: dict[str, tuple[Any, ...]] = {
    'checkpoint': ('',), 'text.within_documents': (False,), 'train.parts': (1,),
    'mesh.data': (-1, 1), 'mesh.fsdp': (1,), 'mesh.tensor': (1,),
}


def check(config: Any) -> None:
  """Raises ValueError if a configuration cannot be run."""
  fields.check(config, _FIELDS | (_MODEL if 'model' in config else {}))
  flat, together = run_folder.flatten(config.to_dict()), config.train.seeds_at_once > 0
  if together:
    for name, plain in _ALONE.items():
      if flat[name] not in plain:
        raise ValueError(f'config.{name} {flat[name]!r} is only supported for seeds '
                         'one at a time, with --config.train.seeds_at_once=0')
    fields.check_multiples(
        config, *fields.MULTIPLES, ('evaluate.every_steps', 'train.steps_per_call'))
  else:
    check_seeds(config)
  _check_model(config)
  if config.control not in config.arms:
    raise ValueError(f'config.control {config.control!r} is not one of config.arms')
  check_arms(config)
  arms.check(arms.read_run(config.to_dict()))
  check_evaluation(config)


def check_seeds(config: Any) -> None:
  """Raises ValueError unless seeds can be trained one at a time.

  They must have keys of their own, and batches be cut into equal parts.
  """
  fields.check_multiples(config, ('train.batch_size', 'train.parts'))
  if config.seed + config.num_seeds > 2**32:
    raise ValueError('config.seed + num_seeds must not exceed 2**32: '
                     f'{config.seed} + {config.num_seeds}')


def _check_model(config: Any) -> None:
  if config.checkpoint:
    return
  if 'model' not in config:
    raise ValueError('config.checkpoint is missing: the folder of a model to train')
  if config.model.get('init_common', 0.0) and 'init_std' not in config.model:
    raise ValueError('config.model.init_common is in units of config.model.init_std, '
                     'which is missing')
  with naming('config.model'):
    check_model(training.make_model(config, byte_tokenizer()))


def check_arms(config: Any) -> None:
  """Raises ValueError unless names, offsets and steps of all arms can be run."""
  for name, arm in config.arms.items():
    if not name.replace('_', '').isalnum():
      raise ValueError('config.arms: a name must consist of letters, digits and _: '
                       f'{name!r}')
    with naming(f'config.arms.{name}.offsets'):
      offset_range(config.train.max_length, tuple(arm.offsets))
    num_steps = training.num_steps(config, arm)
    if config.optimizer.warmup_steps >= num_steps:
      raise ValueError('config.optimizer.warmup_steps must be less than the steps of '
                       f'{name}, {num_steps}: {config.optimizer.warmup_steps}')


def check_evaluation(config: Any) -> None:
  """Raises ValueError unless lengths and offsets can be measured."""
  length, lengths = config.train.max_length, config.evaluate.lengths
  if lengths[0] != 1 or len(lengths) < 2:
    raise ValueError('config.evaluate.lengths must have 1 and at least one more: '
                     f'{lengths}')
  if lengths[-1] * length > fields.INT32:
    raise ValueError('config.evaluate.lengths times config.train.max_length must not '
                     f'exceed 2**31-1: {lengths[-1]}, {length}')
  for share in config.evaluate.offsets:
    if not 1 <= int(share * length) <= length // 2 - 1:
      raise ValueError('config.evaluate.offsets times the length must be in '
                       f'1..{length // 2 - 1} for a length of {length}: {share}')
