"""Matrix products that must be in full float32 on accelerators, where TF32 is not."""

import functools

import jax
from jax.extend import core
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.evaluation.attention_by_length import logits_of_last
from vvlen.evaluation.retriever import axes, intervention, reader
from vvlen.models import linear_attention
from vvlen.models.attention import attend
from vvlen.models.causal_stack import causal_stack
from vvlen.models.kernels.blockwise import chunked_attention
from vvlen.models.kernels.dense import masked_attention
from vvlen.models.kv_cache import attend_cached
from vvlen.models.stack_variants import heads_layer, random_heads
from vvlen.simulation import chunks, tokens

_ones = functools.partial(jnp.ones, dtype=jnp.float32)
_HEADS = _ones((2, 4, 2, 4))  # [B, n, h, d], or [B, h, n, d] of a cache
_ROWS, _TARGET = _ones((6, 4)), np.arange(6) % 3
_AXES = axes.PrincipalAxes(_ones(4), _ones((4, 4)), _ones(4))
_LINEAR = linear_attention.LinearAttention()
_BITS = jnp.zeros((2, 5), jnp.int32), jnp.array([3, 5])
_PARAMS = linear_attention.from_table(_ones((2, 2)))
_LAW = [jnp.float32(x) for x in tokens.factor_law(3, 8, 0.5, True)]


def _derivatives(function, argnums=(0, 1, 2)):
  loss = lambda *inputs: jnp.sum(function(*inputs))
  return jax.grad(loss, argnums)


# (function, its arguments, matrix products in it)
_CASES = {
    'attention': (attend, (_ones((2, 4)), _ones((2, 5, 4)), _ones((2, 5, 4))), 2),
    'dense': (masked_attention, (*[_HEADS] * 3, np.tri(4, dtype=bool)), 2),
    'blockwise': (
        functools.partial(chunked_attention, block=2),
        (_HEADS, _HEADS, _HEADS), 4,
    ),
    'blockwise, derivatives': (
        _derivatives(functools.partial(chunked_attention, block=2)),
        (_HEADS, _HEADS, _HEADS), 15,
    ),
    'kv_cache': (
        attend_cached, (_HEADS[:, :, 0], _HEADS, _HEADS, jnp.array([1, 2])), 2,
    ),
    'causal_stack': (functools.partial(causal_stack, num_layers=1), (_ROWS,), 2),
    'heads': (heads_layer, (
        _ROWS, _ones(()), random_heads(jax.random.key(0), 4, 2, False, jnp.float32),
    ), 6),
    'linear_attention': (
        lambda params: _LINEAR.apply({'params': params}, *_BITS), (_PARAMS,), 5,
    ),
    'linear_attention, table': (linear_attention.table, (_PARAMS,), 1),
    'attention_by_length': (functools.partial(logits_of_last, num_queries=2),
                            (_HEADS, _HEADS), 1),
    'axes': (axes.match_covariance, (_ROWS, _AXES, _AXES), 4),
    'reader': (reader.read, (reader.Reader(_AXES, _ones((4, 3)), _ones(3)), _ROWS), 2),
    'reader, derivatives': (
        jax.grad(lambda kernel: jnp.sum(reader._logits(kernel, _ones(3), _ROWS))),
        (_ones((4, 3)),), 2,
    ),
    'intervention': (
        functools.partial(intervention.class_weights, num_classes=3),
        (_ones((2, 6)), np.stack([_TARGET, _TARGET])), 1,
    ),
    'tokens': (lambda key: tokens.draw_factor(key, 2, *_LAW), (jax.random.key(0),), 1),
    'chunks': (chunks._moments, (_ones((3, 5)), _ones(5)), 2),
}


def _products(jaxpr):
  """Yields the equations of matrix products, of what is called inside too."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      yield equation
    for inner in core.jaxprs_in_params(equation.params):
      yield from _products(inner)


@pytest.mark.parametrize('name', _CASES)
def test_matrix_products_are_in_full_precision(name):
  function, arguments, count = _CASES[name]
  found = [*_products(jax.make_jaxpr(function)(*arguments).jaxpr)]
  assert len(found) == count
  highest = jax.lax.Precision.HIGHEST
  assert {equation.params['precision'] for equation in found} == {(highest, highest)}
