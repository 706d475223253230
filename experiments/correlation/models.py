"""The models of the study: how each is trained, and how it is measured.

L is the length of a model's own training, and lengths are in units of it.
"""

import copy
from typing import Any

from experiments.language_model import training
from vvlen.models.llama.model import Llama
from vvlen.tasks.tokenizers import Tokenizer

POSITIONS = ('rope', 'alibi', 'none')


def own_config(config: Any, name: str) -> Any:
  """Returns the configuration of one model, as in configs/language_model.py.

  Args:
    config: as in configs/correlation.py.
    name: of the model.
  """
  fields, own = config.models[name], copy.deepcopy(config)
  with own.unlocked():
    own.seed = config.seed + fields.seed
    own.checkpoint = ''
    own.arms = {name: dict(
        weight=fields.weight, offsets=tuple(fields.offsets), steps=fields.steps)}
    own.model.update(rope_base=fields.rope_base, norm=fields.norm)
    own.train.max_length = round(fields.length * config.train.max_length)
    # At the end alone.
    own.evaluate.every_steps = training.num_steps(own, own.arms[name])
  return own


def make(config: Any, name: str, tokenizer: Tokenizer) -> Llama:
  """Returns a model."""
  model = training.make_model(own_config(config, name), tokenizer)
  positions = config.models[name].positions
  return model if positions == 'rope' else model.clone(
      rope=None, alibi=positions == 'alibi')


def prompt_lengths(config: Any, name: str) -> list[int]:
  """Returns the lengths of a model's prompts in tokens, in their order."""
  length = own_config(config, name).train.max_length
  return [round(n * length) for n in config.benchmark.lengths]
