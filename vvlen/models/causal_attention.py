"""Placeholder until the chunked form."""
import jax.numpy as jnp
from vvlen.models.masked_attention import Alibi, masked_attention

def causal_attention(queries, keys, values, *, slopes=None, positions=None, implementation=None):
  return masked_attention(queries, keys, values, jnp.tri(queries.shape[1], dtype=bool), None if slopes is None else Alibi(slopes,positions,positions)).output
