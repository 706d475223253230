"""Losses and measures from hidden states: as from logits, in less memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from tests.llamas import llama, variables_of
from vvlen.evaluation import misalignment as evaluation
from vvlen.evaluation import perplexity, programs
from vvlen.evaluation.programs import Hidden
from vvlen.models.llama.model import output_table
from vvlen.objectives.chunked_rows import (
    measures_of_hidden,
    token_losses,
    token_scores,
)
from vvlen.objectives.cross_entropy import token_cross_entropy
from vvlen.objectives.misalignment import measures

B, L, D, V = 3, 22, 8, 50


def _windows(dtype=jnp.float32, length=L, words=V):
  keys = jax.random.split(jax.random.key(0), 3)
  shapes = (B, length, D), (B, length, D), (words, D)
  return [jax.random.normal(k, x, dtype) for k, x in zip(keys, shapes, strict=True)]


def _logits(hidden, table):
  return jnp.einsum('bld,vd->blv', hidden, table, preferred_element_type=jnp.float32)


@pytest.mark.parametrize('chunk_size', [1, 5, 8, 100])
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_losses_are_those_of_all_logits(chunk_size, dtype):
  hidden, _, table = _windows(dtype)
  targets = jax.random.randint(jax.random.key(1), (B, L), 0, V)
  found = token_losses(hidden, table, targets, chunk_size=chunk_size)
  assert found.dtype == jnp.float32
  expected = token_cross_entropy(_logits(hidden, table), targets)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize('chunk_size', [1, 5, 100])
def test_the_best_words_are_those_of_all_logits(chunk_size):
  hidden, _, table = _windows()
  table = table.at[7].set(table[3])  # of two alike, the first one is the best
  best = _logits(hidden, table).argmax(-1)
  assert (best == 3).any() and not (best == 7).any()
  odd = (jnp.arange(B * L) % 2 == 1).reshape(B, L)
  for step, where_not in ((1, odd), (4, odd | (best == 3))):
    targets = jnp.where(where_not, (best + step) % V, best)
    found = token_scores(hidden, table, targets, chunk_size=chunk_size)
    np.testing.assert_array_equal(found.is_best, targets == best)
    assert 0 < found.is_best.sum() < B * L
    np.testing.assert_allclose(
        found.losses, token_losses(hidden, table, targets), rtol=1e-5)
  with pytest.raises(ValueError, match='vocabulary of 50'):
    token_scores(hidden, table, targets + V)


@pytest.mark.parametrize('chunk_size', [1, 4, 100])
@pytest.mark.parametrize(
    'whole, offset', mostly_slow([(False, 1), (False, 10), (True, 15)], 1))
def test_measures_are_those_of_all_logits(chunk_size, whole, offset):
  first, second, table = _windows()
  run = functools.partial(
      measures_of_hidden, whole_overlap=whole, chunk_size=chunk_size)
  logits = [_logits(x, table) for x in (first, second)]
  expected = measures(*logits, offset, whole_overlap=whole)
  apart = run(first, second, table, offset, by_sequence=True)
  traced = jax.jit(run)(first, second, table, offset)
  for i, found in enumerate(run(first, second, table, offset)):
    np.testing.assert_allclose(found, expected[i], rtol=1e-5)
    np.testing.assert_allclose(traced[i], expected[i], rtol=1e-5)
    one = measures(*(z[1:2] for z in logits), offset, whole_overlap=whole)
    np.testing.assert_allclose(apart[i][1], one[i], rtol=1e-5)
    assert apart[i].shape == (B,)
  for x in jax.jit(run)(first, second, table, 0):
    assert jnp.isnan(x)


def test_a_window_with_itself_agrees_wholly():
  hidden, _, table = _windows()
  same = jnp.broadcast_to(hidden[:, :1], hidden.shape)
  found = measures_of_hidden(same, same, table, 3, chunk_size=4)
  assert found.top1_agreement == 1 and found.symmetric_kl == 0
  np.testing.assert_allclose(found.half_sce, found.entropy_first, rtol=1e-5)


def _temporary(function, length, words):
  """Returns bytes of the temporary memory of a compiled program."""
  first, second, table = _windows(length=length, words=words)
  compiled = jax.jit(function).lower(first, second, table).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_does_not_grow_as_positions_times_words():
  words, size = 4096, 16
  losses = lambda first, second, table: token_losses(
      first, table, jnp.zeros(first.shape[:2], int), chunk_size=size)
  both = lambda first, second, table: measures_of_hidden(
      first, second, table, 7, chunk_size=size)
  all_logits = lambda first, second, table: measures(
      _logits(first, table), _logits(second, table), 7)
  grown = lambda f: _temporary(f, 1024, words) - _temporary(f, 256, words)
  added = 4 * B * (1024 - 256) * words  # bytes of logits
  assert grown(all_logits) > added  # the measurement sees them where they are
  for function in (losses, both):
    assert grown(function) < 0.02 * added
    assert _temporary(function, 1024, words) < 12 * (4 * B * size * words)


# Of two sequences three positions at once, with 23 words, and all that there are.
@pytest.mark.parametrize('most', mostly_slow([2 * 3 * 23, 2**27]))
def test_a_model_by_its_hidden_states_is_measured_alike(monkeypatch, most):
  model = llama()
  variables = variables_of(model)
  plain = functools.partial(jax.jit(model.apply), variables)
  states = functools.partial(model.apply, variables, method='hidden')
  hidden = Hidden(states, output_table(model, variables['params']))
  text = np.random.default_rng(0).integers(0, model.vocab_size, 90)
  streams = jnp.asarray(text[:60].reshape(2, 30))
  monkeypatch.setattr(programs, '_LOGITS_AT_ONCE', most)
  for read in (
      lambda x: perplexity.nll_by_position(x, text, 12, begin=0, tokens_at_once=24),
      lambda x: perplexity.sliding_nll(x, text, 12, 5, tokens_at_once=24),
      lambda x: evaluation.misalignment(x, streams, 20, 3),
      lambda x: evaluation.misalignment(x, streams, 20, 10, whole_overlap=True),
      lambda x: evaluation.misalignment_at_offsets(
          x, streams, 20, [1, 9], by_sequence=True),
  ):
    found, expected = read(hidden), read(plain)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected),
                          strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
  for read in (lambda x: perplexity.block_nll(x, text + 1, 12),
               lambda x: evaluation.misalignment(x, streams + 1, 20, 3),
               lambda x: evaluation.misalignment_at_offsets(x, streams + 1, 20, [3])):
    with pytest.raises(ValueError, match='are not in the vocabulary of 23'):
      read(hidden)


def test_chunks_have_logits_of_half_a_gibibyte_or_of_one_position():
  assert programs.chunk_size(1, 65_536, 128_256) == 1046
  assert programs.chunk_size(16, 512, 512) == 512
  assert programs.chunk_size(4096, 16, 128_256) == 1


H, E, Y = jnp.zeros((B, L, D)), jnp.zeros((V, D)), jnp.zeros((B, L), jnp.int32)


@pytest.mark.parametrize('call, words', [
    (lambda: token_losses(H, E[:, 1:], Y), r'do not fit .* \(3, 22, 8\), \(50, 7\)'),
    (lambda: token_losses(H, E, Y[:, 1:]), r'\(3, 21\)'),
    (lambda: token_losses(H, E, Y + V), 'vocabulary of 50'),
    (lambda: token_losses(H, E, Y, chunk_size=0), 'positive whole number: 0'),
    (lambda: token_losses(H[:0], E, Y[:0]), 'an axis has length 0'),
    (lambda: measures_of_hidden(H, H[:, 1:], E, 1), r'\(3, 21, 8\)'),
    (lambda: measures_of_hidden(H, H, E, 11), '1..10 at length 22: 11'),
    (lambda: measures_of_hidden(H, H, E, 1, chunk_size=1.5), 'whole number: 1.5'),
])
def test_what_does_not_fit_is_told(call, words):
  with pytest.raises(ValueError, match=words):
    call()
