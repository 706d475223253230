"""Checks configurations of `experiments.adapt`."""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.adapt import methods, report
from experiments.adapt.programs import lora_of, TERMS
from experiments.harness import fields
from experiments.harness.fields import (
  flag,
  one_of,
  optional,
  real,
  several,
  text,
  whole,
  zero_or,
)
from experiments.harness.parts import check_known, naming
from experiments.language_model.check import (
  ARM_FIELDS,
  check_arms,
  check_evaluation,
  check_seeds,
)
from vvlen.models.llama import abstract_params
from vvlen.models.llama import lora as adapters
from vvlen.models.llama.adapters import ALSO
from vvlen.models.llama.layers import KEPT
from vvlen.models.llama.model import Llama
from vvlen.models.llama.sizes import check_model as check_sizes

_FIELDS = {
    **ARM_FIELDS,
    'run_arms': several(text('name'), least=0),
    'arms.*.method': one_of(methods.METHODS),
    'arms.*.term': one_of(tuple(TERMS)),
    'positions.factor': zero_or(real(least=1)),
    'positions.original_length': whole(least=0),
    'positions.largest': whole(least=1, most=64),
    'positions.highest': whole(least=2),
    'positions.exempt_layers': optional(whole(least=0)),
    'positions.shared': optional(flag()),
    'positions.groups': whole(least=0),
    'adapters.rank': whole(least=0),
    'adapters.alpha': real(above=0),
    'adapters.dropout': real(least=0, below=1),
    'adapters.targets': several(one_of(adapters.LINEAR)),
    'adapters.quantized': one_of(('', 'nf4', 'int8')),
    'adapters.also': several(one_of(ALSO), 0),
    'optimizer.b2': optional(real(least=0, below=1)),
    'train.scan_layers': flag(),
    'train.remat_keeps': one_of(KEPT),
    'train.stream_dtype': one_of(fields.DTYPES),
    'train.seeds_at_once': whole(least=0, most=0),
    'evaluate.segment': whole(least=0),
}


def check(config: Any) -> None:
  """Raises ValueError if a configuration cannot be run with any checkpoint."""
  fields.check(config, _FIELDS)
  if not config.checkpoint:
    raise ValueError(
        'config.checkpoint is missing: the folder of a model to train further, such as '
        'one of those that experiments.language_model leaves in its folder models')
  check_seeds(config)
  if config.adapters.quantized and not config.adapters.rank:
    raise ValueError('config.adapters.quantized needs adapters, as quantized weights '
                     'are not trained: config.adapters.rank is 0')
  check_evaluation(config)
  segment, longest = config.evaluate.segment, config.evaluate.lengths[-1]
  if segment and segment < longest:
    raise ValueError('config.evaluate.segment must be 0 or at least the longest of '
                     f'config.evaluate.lengths, {longest}: {segment}')
  _check_positions(config)
  report.check(report.read_run(config.to_dict()), config.to_dict())
  check_arms(config)
  check_known('run_arms', config.run_arms, config.arms)


def _check_positions(config: Any) -> None:
  length, lengths = config.train.max_length, config.evaluate.lengths
  groups, draws = config.positions.groups, config.positions.highest
  if groups and length % (2 * groups):
    raise ValueError('config.positions.groups must divide half of '
                     f'config.train.max_length: {groups}, {length}')
  if config.positions.original_length > length:
    raise ValueError('config.positions.original_length must be at most '
                     f'config.train.max_length, {length}: '
                     f'{config.positions.original_length}')
  used = any(arm.method == 'random' for arm in config.arms.values())
  longest = lengths[-1] * length
  if used and draws < longest:
    raise ValueError('config.positions.highest must be at least the longest input that '
                     f'is measured, {longest} tokens: {draws}')


def check_model(config: Any, model: Llama) -> None:
  """Raises ValueError if a configuration does not fit the checkpoint's model."""
  length, original = config.train.max_length, model.max_length
  if length < original:
    raise ValueError(
        f'config.train.max_length is {length}, shorter than the {original} tokens of '
        'the checkpoint: nothing would be extended')
  for name in report.methods_of(config):
    with naming(f'config: method {name}'):
      method = methods.make(name, model, config)
      check_sizes(method.trained)
      _check_reading(method, length)
      if lora := lora_of(config, name):
        measured = adapters.with_adapters(method.measured, lora)
        adapters.split(lora, abstract_params(measured))


def _check_reading(method: methods.Method, length: int) -> None:
  """Raises the errors of a step that reads windows of a length, computing nothing."""

  def read(params, tokens, key):
    places = method.draw(key, length)
    return method.trained.apply({'params': params}, tokens, *places, method='hidden')

  key = jax.eval_shape(jax.random.key, 0)
  tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
  jax.eval_shape(read, abstract_params(method.trained), tokens, key)
