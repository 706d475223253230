"""Chunked losses are the plain losses, in values, gradients and sharding."""

import functools
import re

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from vvlen.objectives import misalignment as objective
from vvlen.objectives.chunked import chunked_cross_entropy, chunked_two_window_loss
from vvlen.objectives.cross_entropy import next_token_cross_entropy, token_cross_entropy

B, L, D, V = 2, 13, 5, 17


def _inputs(dtype=np.float32, batch=B, vocabulary=V, length=L, width=D):
  """Returns hidden states of both windows, embedding and tokens of both."""
  rng = np.random.default_rng(0)
  normal = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(dtype))
  hidden = normal(batch, length, width), normal(batch, length, width)
  tokens = rng.integers(0, vocabulary, (2, batch, length), np.int32)
  embedding = normal(vocabulary, width) * (D / width) ** 0.5
  return (*hidden, embedding), tuple(map(jnp.asarray, tokens))


def _plain(first, second, embedding, *rest, **kwargs):
  logits = (
      jnp.einsum('bld,vd->blv', h, embedding, preferred_element_type=(
          jnp.promote_types(h.dtype, jnp.float32)))
      for h in (first, second)
  )
  return objective.two_window_loss(*logits, *rest, **kwargs)


def _gradients(loss, **kwargs):
  """Returns a function of arrays to loss, metrics and gradients in arrays and α."""
  of = lambda arrays, tokens, e, weight: loss(*arrays, *tokens, e, weight, **kwargs)
  return jax.jit(jax.value_and_grad(of, (0, 3), has_aux=True))


def _close(found, expected, tolerance):
  for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert x.dtype == y.dtype and x.shape == y.shape
    x, y = (np.asarray(v, np.float64) for v in (x, y))
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.abs(y).max())


@pytest.mark.parametrize('chunk_size', [1, 5, 13, 100])
def test_two_windows_are_the_plain_loss(chunk_size):
  with jax.enable_x64(True):
    arrays, tokens = _inputs(np.float64)
    chunked = _gradients(chunked_two_window_loss, chunk_size=chunk_size)
    plain = _gradients(_plain)
    for e in (1, 3, 5):
      case = arrays, tokens, e, 0.3
      _close(chunked(*case), plain(*case), 1e-12)
    assert chunked._cache_size() == 1  # one program for all offsets


@pytest.mark.parametrize('divergence, whole', [
    (objective.symmetric_kl, True), (objective.jensen_shannon, False),
    (objective.stop_gradient_cross_entropy, True),
])
def test_variants_are_the_plain_loss(divergence, whole):
  with jax.enable_x64(True):
    case = *_inputs(np.float64), 7 if whole else 4, 1.0
    variant = dict(divergence=divergence, whole_overlap=whole)
    found = _gradients(chunked_two_window_loss, chunk_size=6, **variant)(*case)
    _close(found, _gradients(_plain, **variant)(*case), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(('divergence', 'whole'), [
    (objective.symmetric_cross_entropy, False), (objective.symmetric_kl, True)])
def test_sequences_of_weight_0_add_nothing(divergence, whole):
  variant = dict(divergence=divergence, whole_overlap=whole, chunk_size=5)
  with jax.enable_x64(True):
    (first, second, embedding), tokens = _inputs(np.float64, batch=5)
    case = 7 if whole else 4, 0.3
    count = lambda x: x[:3]
    expected = _gradients(chunked_two_window_loss, **variant)(
        (*map(count, (first, second)), embedding), tuple(map(count, tokens)), *case)
    weights = jnp.array([1, 1, 1, 0, 0]) / 3
    found = _gradients(
        chunked_two_window_loss, sequence_weights=weights, **variant)(
            (first, second, embedding), tokens, *case)
    values, ((of_first, of_second, of_embedding), of_weight) = found
    _close((values, ((*map(count, (of_first, of_second)), of_embedding), of_weight)),
           expected, 1e-12)
    assert not of_first[3:].any() and not of_second[3:].any()


def test_weights_that_are_not_of_the_sequences_are_refused():
  (*hidden, embedding), tokens = _inputs()
  with pytest.raises(ValueError, match=r'sequence_weights must be \[B\], B = '):
    chunked_two_window_loss(
        *hidden, embedding, *tokens, 3, 0.3, sequence_weights=jnp.ones(B + 1))


@pytest.mark.slow
def test_float32_and_bfloat16():
  case = *_inputs(), 3, 0.3
  expected = _gradients(_plain)(*case)
  _close(_gradients(chunked_two_window_loss, chunk_size=4)(*case), expected, 1e-5)
  # In bfloat16 the loss is that of rounded inputs, its gradient right to its spacing.
  rounded = tuple(x.astype(jnp.bfloat16) for x in case[0])
  case = rounded, *case[1:]
  (loss, terms), (gradients, of_weight) = _gradients(
      chunked_two_window_loss, chunk_size=4)(*case)
  wide = tuple(x.astype(jnp.float32) for x in rounded), *case[1:]
  (expected, expected_terms), (exact, _) = _gradients(_plain)(*wide)
  _close((loss, terms, of_weight), (
      expected, expected_terms, terms['misalignment']), 1e-5)
  for x, y in zip(gradients, exact, strict=True):
    assert x.dtype == jnp.bfloat16
    error = np.abs(x.astype(jnp.float32) - y).max() / np.abs(y).max()
    assert error < 2**-7


@pytest.mark.slow
def test_products_of_two_types_are_of_the_wider():
  (first, second, embedding), tokens = _inputs()
  narrow = first.astype(jnp.bfloat16), second.astype(jnp.bfloat16), embedding
  wide = *(x.astype(jnp.float32) for x in narrow[:2]), embedding
  found = _gradients(chunked_two_window_loss)(narrow, tokens, 2, 0.3)
  (loss, _), (gradients, _) = _gradients(_plain)(wide, tokens, 2, 0.3)
  np.testing.assert_allclose(found[0][0], loss, rtol=1e-6)
  np.testing.assert_allclose(found[1][0][2], gradients[2], rtol=1e-5, atol=1e-7)
  assert [x.dtype for x in found[1][0]] == [x.dtype for x in narrow]


@pytest.mark.slow
def test_columns_of_a_wide_embedding_are_summed_in_blocks():
  with jax.enable_x64(True):
    case = *_inputs(np.float64, width=768), 3, 0.3
    step = _gradients(chunked_two_window_loss, chunk_size=4)
    _close(step(*case), _gradients(_plain)(*case), 1e-12)
    assert f'{V},256]' in step.lower(*case).compile().as_text()


@pytest.mark.slow
def test_many_small_gradients_are_summed_in_float32():
  # Each of 4,096 rows adds the same to the embedding's gradient. In bfloat16, of eight
  # bits, a sum stops growing at 256 equal terms.
  hidden = jnp.ones((1, 4096, 1), jnp.bfloat16)
  embedding = jnp.zeros((2, 1), jnp.bfloat16)
  targets = jnp.zeros((1, 4096), jnp.int32)
  gradient = jax.grad(
      lambda e: chunked_cross_entropy(hidden, e, targets, chunk_size=1))(embedding)
  np.testing.assert_array_equal(gradient, [[-0.5], [0.5]])


@pytest.mark.parametrize('chunk_size', [5, 13])
def test_cross_entropy_with_a_mask_is_the_plain_mean(chunk_size):
  (hidden, _, embedding), (tokens, _) = _inputs()
  mask = jnp.arange(B * L).reshape(B, L) % 3 > 0

  def plain(hidden, embedding):
    loss = token_cross_entropy(hidden @ embedding.T, tokens)
    return (loss * mask).sum() / mask.sum()

  targets = jnp.where(mask, tokens, -100)  # where masked, anything goes
  chunked = lambda h, e: chunked_cross_entropy(
      h, e, targets, mask, chunk_size=chunk_size)
  found, expected = (
      jax.jit(jax.value_and_grad(f, (0, 1)))(hidden, embedding)
      for f in (chunked, plain)
  )
  _close(found, expected, 1e-5)


@pytest.mark.slow
def test_a_mask_of_no_rows_gives_nan():
  (hidden, _, embedding), (tokens, _) = _inputs()
  loss = jax.jit(jax.value_and_grad(chunked_cross_entropy))
  found, gradient = loss(hidden, embedding, tokens, jnp.zeros((B, L), bool))
  assert jnp.isnan(found) and jnp.isnan(gradient).all()


@pytest.mark.slow
def test_cross_entropy_of_next_tokens():
  (hidden, _, embedding), (tokens, _) = _inputs()
  expected = next_token_cross_entropy(hidden @ embedding.T, tokens)
  found = chunked_cross_entropy(hidden[:, :-1], embedding, tokens[:, 1:])
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_vmap_remat_and_scan():
  arrays, tokens = _inputs()
  of = lambda arrays, e: chunked_two_window_loss(
      *arrays, *tokens, e, 0.2, chunk_size=5)[0]
  gradient = jax.jit(jax.value_and_grad(of))
  negative = tuple(-x for x in arrays)
  offsets, seeds = jnp.array([2, 5]), (arrays, negative)

  @jax.jit
  def found(arrays, stacked):
    remat = jax.value_and_grad(jax.checkpoint(of))
    return (
        jax.vmap(jax.value_and_grad(of), (None, 0))(arrays, offsets),
        jax.lax.map(lambda e: remat(arrays, e), offsets),
        jax.vmap(remat, (0, None))(stacked, 3),
    )

  stack = lambda *trees: jax.tree.map(lambda *x: np.stack(x), *trees)
  over_offsets = stack(*(gradient(arrays, e) for e in offsets))
  over_seeds = stack(*(gradient(x, 3) for x in seeds))
  expected = over_offsets, over_offsets, over_seeds
  _close(found(arrays, stack(*seeds)), expected, 1e-5)


@pytest.mark.slow
def test_the_cotangent_scales_and_metrics_have_no_gradient():
  arrays, tokens = _inputs()
  loss = lambda arrays: chunked_two_window_loss(*arrays, *tokens, 2, 0.2)
  scaled = lambda x: -3 * loss(x)[0] + loss(x)[1]['misalignment']
  once = jax.jit(jax.grad(lambda x: loss(x)[0]))(arrays)
  _close(jax.jit(jax.grad(scaled))(arrays), tuple(-3 * x for x in once), 1e-5)


def test_products_are_three_with_gradients_and_one_without():
  arrays, tokens = _inputs()
  of = lambda arrays: chunked_two_window_loss(*arrays, *tokens, 2, 0.2, chunk_size=4)[0]
  count = lambda f: len(re.findall(r'= dot_general', str(jax.make_jaxpr(f)(arrays))))
  # For each window; and one for coefficients · terms.
  assert count(of) == 2 * 1 + 1
  assert count(jax.grad(of)) == 2 * 3 + 1


@pytest.mark.slow
def test_chunks_in_which_nothing_is_compared_are_spared_it():
  arrays, tokens = _inputs(length=16)
  seen = []

  def noted(first, second):
    jax.debug.callback(lambda: seen.append(1))
    return objective.symmetric_kl(first, second)

  # Of eight chunks of two rows, rows 8 to 15 − e are compared.
  for e, chunks in ((1, 4), (4, 2), (7, 1)):
    seen.clear()
    loss, _ = chunked_two_window_loss(
        *arrays, *tokens, e, 0.2, chunk_size=2, divergence=noted)
    jax.block_until_ready(loss)
    jax.effects_barrier()
    assert len(seen) == chunks
  # With gradients by blocks of a chunk: one chunk of eight blocks of two rows.
  for e, blocks in ((1, 4), (4, 2), (7, 1)):
    seen.clear()
    gradient = jax.grad(lambda x, e=e: chunked_two_window_loss(
        *x, *tokens, e, 0.2, divergence=noted)[0])(arrays)
    jax.block_until_ready(gradient)
    jax.effects_barrier()
    assert len(seen) == blocks


def _arrays_in(text, *sizes):
  """Returns the shapes in a program that have all these sizes."""
  shapes = {tuple(map(int, s.split(','))) for s in re.findall(r'\[([\d,]+)\]', text)}
  return [s for s in shapes if all(size in s for size in sizes)]


@pytest.mark.slow
@pytest.mark.parametrize('width', [D, 512])
def test_a_vocabulary_sharded_over_eight_devices(width):
  batch, vocabulary, length, chunk = 2, 8 * 11, 29, 5
  arrays, tokens = _inputs(batch=batch, vocabulary=vocabulary, length=length,
                           width=width)
  mesh = jax.make_mesh((2, 4), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
  put = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, P(*axes)))
  sharded = (*(put(h, 'data') for h in arrays[:2]), put(arrays[2], 'model'))
  shared_tokens = tuple(put(x, 'data') for x in tokens)
  step = _gradients(chunked_two_window_loss, chunk_size=chunk)
  found = step(sharded, shared_tokens, 6, 0.3)
  _, (gradients, _) = found
  _close(found, _gradients(_plain)(arrays, tokens, 6, 0.3), 1e-5)
  assert gradients[2].sharding.is_equivalent_to(sharded[2].sharding, 2)
  assert gradients[0].sharding.is_equivalent_to(sharded[0].sharding, 3)
  program = step.lower(sharded, shared_tokens, 6, 0.3).compile().as_text()
  # No device has all of the vocabulary, neither of logits nor of the embedding.
  assert _arrays_in(program, vocabulary // 4)
  assert not _arrays_in(program, vocabulary)
  assert not [line for line in program.splitlines()
              if 'all-gather' in line and _arrays_in(line, vocabulary // 4)]


@pytest.mark.slow
def test_a_mesh_of_explicit_axes():
  (hidden, _, embedding), (tokens, _) = _inputs(vocabulary=16)
  mesh = jax.make_mesh((2, 4), ('data', 'model'))
  loss = functools.partial(chunked_cross_entropy, chunk_size=4)
  auto = jax.sharding.auto_axes(loss, out_sharding=P())
  with jax.set_mesh(mesh):
    put = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, P(*axes)))
    sharded = put(hidden, 'data'), put(embedding, 'model'), put(tokens, 'data')
    found = jax.jit(jax.value_and_grad(auto, (0, 1)))(*sharded)
  expected = jax.jit(jax.value_and_grad(loss, (0, 1)))(hidden, embedding, tokens)
  _close(found, expected, 1e-5)
  assert found[1][1].sharding.spec[0] == 'model'


@pytest.mark.slow
def test_no_array_has_the_logits_of_all_rows():
  arrays, tokens = _inputs(vocabulary=1009, length=101)
  case = arrays, tokens, 6, 0.3
  temporary = lambda f: f.lower(*case).compile().memory_analysis().temp_size_in_bytes
  plain = temporary(_gradients(_plain))
  chunked = _gradients(chunked_two_window_loss, chunk_size=4)
  assert temporary(chunked) < plain / 10
  found = [s for s in _arrays_in(chunked.lower(*case).as_text(), 1009) if 101 in s]
  assert not found


@pytest.mark.slow
@pytest.mark.parametrize('dtype, share', [(jnp.float32, 0.05), (jnp.bfloat16, 0.10)])
def test_memory_with_a_large_vocabulary(dtype, share):
  # Compiled, not run.
  shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, dtype)
  arrays = shape(1, 4096, 2048), shape(1, 4096, 2048), shape(128_256, 2048)
  tokens = (jax.ShapeDtypeStruct((1, 4096), jnp.int32),) * 2

  def temporary(loss):
    analysis = _gradients(loss).lower(arrays, tokens, jnp.int32(512), 0.1).compile()
    return analysis.memory_analysis().temp_size_in_bytes

  assert temporary(chunked_two_window_loss) < share * temporary(_plain)


Z, E, T = jnp.zeros((B, L, D)), jnp.zeros((V, D)), jnp.zeros((B, L), jnp.int32)


@pytest.mark.parametrize('call, said', [
    (lambda: chunked_two_window_loss(Z, Z, E, T, T, 6, 0.1), '1..5 at length 13: 6'),
    (lambda: chunked_two_window_loss(Z, Z[:, 1:], E, T, T, 1, 0.1), r'\(2, 12, 5\)'),
    (lambda: chunked_two_window_loss(Z, Z, E, T, T[:, 1:], 1, 0.1), r'\(2, 12\)'),
    (lambda: chunked_two_window_loss(Z, Z, E, T, T, 1, -1), '-1'),
    (lambda: chunked_two_window_loss(Z, Z, E, T + V, T, 1, 0.1), 'vocabulary of 17'),
    (lambda: chunked_two_window_loss(Z, Z, E.T, T, T, 1, 0.1), r'\(5, 17\)'),
    (lambda: chunked_two_window_loss(Z, Z, E, T, T, 1, 0.1, chunk_size=0), ': 0'),
    (lambda: chunked_cross_entropy(Z, E, T - 1), 'vocabulary of 17'),
    (lambda: chunked_cross_entropy(Z, E, T, T[:, 1:] == 0), r'\(2, 12\)'),
    (lambda: chunked_cross_entropy(Z, E, T, T), 'must be bool'),
    (lambda: chunked_two_window_loss(
        Z, Z, E, T, T, 1, 0.1, divergence=lambda p, q: (p - q).sum()),
     r'\(2, 13, 17\) to \(\)'),
    (lambda: chunked_cross_entropy(Z[:0], E, T[:0]), 'an axis has length 0'),
    (lambda: chunked_cross_entropy(Z.astype(jnp.float16), E, T), 'use bfloat16'),
    (lambda: chunked_two_window_loss(
        Z[:, :1], Z[:, :1], E, T[:, :1], T[:, :1], jnp.int32(1), 0.1), 'no rows'),
])
def test_bad_input_is_named_before_anything_runs(call, said):
  with pytest.raises(ValueError, match=said):
    call()


@pytest.mark.slow
def test_an_offset_outside_gives_nan_where_it_is_traced():
  step = _gradients(chunked_two_window_loss)
  (loss, _), (gradients, _) = step(*_inputs(), 6, 0.3)
  assert jnp.isnan(loss) and all(jnp.isnan(x).any() for x in gradients)
