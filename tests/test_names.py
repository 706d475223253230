"""Choices of configurations are known to all modules that compute or show them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import counting as counting_config
from experiments.counting import figures
from vvlen.models import positions
from vvlen.models.decoder import Decoder
from vvlen.models.norm import KINDS
from vvlen.reporting import plots


def test_every_norm_is_an_arm_with_a_label_and_a_colour():
  assert tuple(plots.ARMS) == KINDS
  assert len({colour for _, colour, _ in plots.ARMS.values()}) == len(KINDS)


def test_every_choice_of_counting_has_a_label():
  config = counting_config.get_config()
  chosen = {name for figure in config.figures.values()
            for name in figure.get('positions', ())}
  assert chosen and chosen <= set(figures._LABELS)


@pytest.mark.parametrize('kind', positions.KINDS)
def test_only_without_positions_the_order_of_earlier_tokens_does_not_matter(kind):
  model = Decoder(vocab_size=9, width=8, num_heads=2, num_layers=1, positions=kind,
                  max_positions=16)
  tokens = jnp.array([[1, 2, 3, 4, 5]])
  rngs = {'params': jax.random.key(0), 'positions': jax.random.key(1)}
  params = model.init(rngs, tokens)
  last = [model.apply(params, x, rngs={'positions': jax.random.key(1)})[0, -1]
          for x in (tokens, tokens[:, jnp.array([3, 1, 0, 2, 4])])]
  assert np.allclose(*last, atol=1e-5) == (kind == 'none')
