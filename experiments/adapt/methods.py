"""How a checkpoint learns to read longer inputs, by the name of a method.

  none    no change
  pi      position interpolation; ntk, yarn: other rates (`vvlen.models.rope`)
  eabf    a larger base, and queries that grow with their position
  clex    rates that are learned for every length (`vvlen.models.clex`). Each step of
          training draws t, and positions from t L₀ tokens, and has the rates of that
          length; in measuring, the rates are those of the input's own length
  random  sorted positions drawn at random from more than the longest test has
          (`vvlen.models.positions`): new ones in each step of training, always the
          same ones in measuring
  alibi   ALiBi in place of rotary positions

Axes: n tokens.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax

from vvlen.models import clex
from vvlen.models import rope as rotary
from vvlen.models.kernels.shifted import Shifted
from vvlen.models.llama.model import Llama
from vvlen.models.positions import random_positions

# Name of a method -> kind of rotary positions.
_ROPE = {'pi': 'linear', 'ntk': 'ntk', 'yarn': 'yarn', 'eabf': 'eabf', 'clex': 'clex'}
METHODS = ('none', *_ROPE, 'random', 'alibi')
STRETCHED = {'pi', 'ntk', 'yarn'}  # those that use positions.factor


class Places(NamedTuple):
  """The positions of a forward pass."""

  positions: jax.Array | None = None  # [n]; None: 0, 1, 2, …
  length: jax.Array | None = None  # [], of the input that rates are for; None: n


class Method(NamedTuple):
  """A model as it is trained and as it is measured."""

  trained: Llama
  measured: Llama
  draw: Callable[[jax.Array, int], Places]  # (key, n) -> positions of a training step
  of_test: Callable[[int], Places]  # n -> positions in measuring


def make(name: str, model: Llama, config: Any) -> Method:
  """Returns a method.

  Args:
    name: one of `METHODS`.
    model: the checkpoint's.
    config: as in configs/adapt.py.

  Raises:
    ValueError: if the method does not fit the model.
  """
  fields = config.positions
  original = fields.original_length or model.max_length
  plain = lambda *_: Places()
  if model.rope is not None and model.rope.highest and name not in ('random', 'alibi'):
    raise ValueError(f'{name} does not support a model with random positions')
  if name == 'none':
    found = Method(model, model, plain, plain)
  elif name == 'alibi':
    biased = model.clone(rope=None, alibi=True)
    found = Method(biased, biased, plain, plain)
  elif model.rope is None:
    raise ValueError(f'{name} needs a model with rotary positions')
  elif name == 'random':
    draw = lambda key, n: Places(random_positions(key, n, fields.highest))
    drawn = model.clone(rope=model.rope._replace(highest=fields.highest))
    found = Method(drawn, drawn, draw, lambda n: draw(jax.random.key(0), n))
  else:
    rope = rotary.extended(
        model.rope, _ROPE[name], factor_of(config, model.max_length), original)
    if isinstance(rope.stretched, rotary.Eabf) and 'exempt_layers' in fields:
      rope = rope._replace(stretched=rope.stretched._replace(
          exempt_layers=fields.exempt_layers))
    found = Method(model.clone(rope=rope), model.clone(rope=rope), plain, plain)
  if name == 'clex':
    law = clex.Clex(original, fields.largest)
    with_law = lambda **changes: model.clone(
        rope=rope._replace(stretched=law._replace(**changes)))

    def draw(key, n):
      t, positions = clex.sample(key, n, original, fields.largest)
      return Places(positions, t * original)

    found = Method(with_law(log_scale=False), with_law(), draw, plain)
  length = config.train.max_length
  if model.rope is None or model.rope.stretched is None:
    # The config.json of a saved model names the tokens that it is for. With YaRN these
    # are s L₀, because some versions of transformers compute the factor s as their
    # ratio to L₀.
    factor = factor_of(config, model.max_length)
    longest = round(factor * original) if name == 'yarn' else length
    found = found._replace(measured=found.measured.clone(max_length=longest))
  if not fields.groups:
    return found
  # Shifted sparse attention is for training alone.
  shifted = Shifted(length // fields.groups)
  return found._replace(trained=found.trained.clone(shifted=shifted))


def factor_of(config: Any, max_length: int) -> float:
  """Returns the factor by which pi, ntk and yarn stretch positions.

  Args:
    config: as in configs/adapt.py.
    max_length: of the checkpoint's model.
  """
  fields = config.positions
  original = fields.original_length or max_length
  return fields.factor or float(math.ceil(config.train.max_length / original))
