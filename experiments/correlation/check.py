"""Checks configurations of `experiments.correlation`."""

from typing import Any

from experiments.correlation import models
from experiments.correlation.points import CORRELATIONS, MEASURES, OUTCOMES
from experiments.correlation.prompts import TASKS
from experiments.harness import fields
from experiments.harness.fields import flag, one_of, real, several, text, whole
from experiments.harness.parts import check_known, naming
from experiments.language_model.check import check_arms, check_evaluation, TEXT_FIELDS
from experiments.language_model.training import num_steps
from experiments.long_context.ruler_suites import NEEDLE_VALUES
from vvlen.models.llama.sizes import check_model
from vvlen.models.norm import KINDS as NORMS
from vvlen.tasks.tokenizers import byte_tokenizer

_FIELDS = {
    **TEXT_FIELDS,
    **fields.SEED_BLOCKS,
    'num_seeds': whole(least=1, most=10**6),
    'run_models': several(text('name'), least=0),
    'models.*.positions': one_of(models.POSITIONS),
    'models.*.rope_base': real(above=0),
    'models.*.norm': one_of(NORMS),
    'models.*.length': real(above=0, most=1),
    'models.*.steps': real(above=0, most=10),
    'models.*.weight': real(least=0),
    'models.*.offsets': several(real(least=0, most=1), 2, 2, rising=True),
    'models.*.seed': whole(least=0),
    'primary.measure': one_of(MEASURES),
    'primary.outcome': one_of(tuple(OUTCOMES)),
    'primary.correlation': one_of(tuple(CORRELATIONS)),
    'primary.tasks': several(one_of(TASKS), once=True),
    'num_resamples': whole(least=100, most=10**6),
    'model.num_layers': whole(least=1),
    'model.width': fields.width(),
    'model.mlp_width': fields.width(),
    'model.num_heads': whole(least=1),
    'model.num_key_heads': whole(least=1),
    'model.tied': flag(),
    'model.init_std': real(above=0),
    'model.init_common': real(least=0),
    'evaluate.offsets': several(real(above=0, below=1)),
    'evaluate.all_windows': flag(),
    'benchmark.tasks': several(one_of(TASKS), once=True),
    'benchmark.lengths': several(real(least=1), 2, rising=True),
    'benchmark.num_prompts': whole(least=1),
    'benchmark.needle_values': one_of((*NEEDLE_VALUES,)),
    'benchmark.most_facts': whole(least=2),
    'benchmark.answer_tokens': whole(least=1),
}


def check(config: Any) -> None:
  """Raises ValueError if a configuration cannot be run."""
  fields.check(config, _FIELDS)
  fields.check_multiples(config, *fields.MULTIPLES)
  if not config.models:
    raise ValueError('config.models must have a model or more')
  if not set(config.primary.tasks) <= set(config.benchmark.tasks):
    raise ValueError('config.primary.tasks must be some of config.benchmark.tasks '
                     f'{config.benchmark.tasks}: {config.primary.tasks}')
  lengths = config.benchmark.lengths
  if lengths[0] != 1 or lengths[1] > 2 or lengths[-1] < 2:
    raise ValueError('config.benchmark.lengths must have 1, one that is longer but at '
                     f'most 2, and one of at least 2: {lengths}')
  for name, model in config.models.items():
    with naming(f'config.models.{name}'):
      _check_model(config, name, model)
  check_known('run_models', config.run_models, config.models)
  _check_weights(config)


def _check_model(config: Any, name: str, model: Any) -> None:
  for n in (1, *config.benchmark.lengths):
    tokens = n * model.length * config.train.max_length
    if abs(tokens - round(tokens)) > 1e-6:
      raise ValueError('length and those of config.benchmark must give whole numbers '
                       f'of tokens: {n:g} * {model.length:g} * '
                       f'{config.train.max_length}')
  if config.seed + model.seed >= 2**32:
    raise ValueError(f'config.seed + seed must be less than 2**32: {config.seed} + '
                     f'{model.seed}')
  check_model(models.make(config, name, byte_tokenizer()))
  own = models.own_config(config, name)
  if own.train.max_length < 4:
    raise ValueError('it would be trained on fewer than 4 tokens: '
                     f'{own.train.max_length}')
  check_arms(own)
  check_evaluation(own)


def _check_weights(config: Any) -> None:
  """Raises ValueError if two models would have the same weights.

  Correlations are over models, so these two would count as one.
  """
  found: dict[Any, str] = {}
  for name, model in config.models.items():
    rope_base = model.rope_base if model.positions == 'rope' else None
    # Shares of few steps may be rounded to the same number.
    steps = num_steps(config, model)
    key = (model.positions, rope_base, model.norm, model.length, steps, model.weight,
           tuple(model.offsets), model.seed)
    if key in found:
      raise ValueError(f'config.models {found[key]} and {name} would have the same '
                       'weights: they must differ in training too')
    found[key] = name
