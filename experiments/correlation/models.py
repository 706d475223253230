"""The models of the study: how each is trained, and how it is measured.

L is the longest training length; a model may be trained on windows of L / k tokens.
"""

import copy
import math
from typing import Any

from experiments.language_model import training
from vvlen.models import rope
from vvlen.models.llama.model import Llama
from vvlen.models.rope import Rope
from vvlen.tasks.tokenizers import Tokenizer

POSITIONS = ('rope', 'alibi', 'none')
STRETCHED = ('none', 'linear', 'ntk', 'dynamic', 'yarn')


def own_config(config: Any, name: str) -> Any:
  """Returns the configuration of one model, as in configs/language_model.py.

  Its lengths are in units of its own training length: that one, and those of
  config.evaluate, so that all models are measured at the same numbers of tokens. Test
  data are the same for all models, and have room for a second window of the longest
  length.

  Args:
    config: as in configs/correlation.py.
    name: of the model.
  """
  fields, own = config.models[name], copy.deepcopy(config)
  with own.unlocked():
    own.checkpoint = ''
    own.arms = {name: dict(
        weight=fields.weight, offsets=tuple(fields.offsets), steps=fields.steps)}
    own.model.update(rope_base=fields.rope_base, norm=fields.norm)
    own.train.max_length = config.train.max_length // fields.shorter
    lengths = [n * fields.shorter for n in config.evaluate.lengths]
    own.evaluate.lengths = tuple(sorted({1, *lengths}))
    own.evaluate.segment = math.ceil(
        max(config.evaluate.lengths) * (1 + max(config.evaluate.offsets))
    ) * fields.shorter
    own.evaluate.every_steps = config.train.num_steps  # at the end alone
  return own


def make(config: Any, name: str, tokenizer: Tokenizer) -> tuple[Llama, Llama]:
  """Returns a model as it is trained and as it is measured, with the same parameters.

  They differ if rotary positions are stretched, by the longest length over that of
  training.

  Raises:
    ValueError: if the fields of the model do not fit each other.
  """
  fields, own = config.models[name], own_config(config, name)
  model = training.make_model(own, tokenizer)
  if fields.positions != 'rope':
    if fields.stretched != 'none':
      raise ValueError(f'only rotary positions are stretched: {fields.positions}')
    model = model.clone(rope=None, alibi=fields.positions == 'alibi')
    return model, model
  stretched = rope.extended(
      Rope(fields.rope_base), fields.stretched, factor=max(own.evaluate.lengths),
      original_length=own.train.max_length)
  return model, model.clone(rope=stretched)
