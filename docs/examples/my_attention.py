"""An arm of one's own for the league: (z + b)² where z > −b, normalized to sum 1.

python -m experiments.league --config=configs/league.py:quick --workdir=runs/mine \
      --config.arms.mine=docs/examples/my_attention.py:attend
"""

import jax.numpy as jnp


def attend(logits, mask=None, b=1.0):
  """Maps logits and mask [..., n] to weights [..., n]; b is learned, from 1."""
  weights = jnp.square(jnp.maximum(logits + b, 0.0))
  if mask is not None:
    weights = jnp.where(mask, weights, 0.0)
  return weights / (weights.sum(-1, keepdims=True) + 1e-6)
