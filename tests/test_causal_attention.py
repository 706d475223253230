"""Causal attention, against numpy, PyTorch and its own rows."""

import functools

import chex
import jax
import jax.numpy as jnp
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec,
)
import numpy as np
import pytest

from vvlen.models.kernels.blockwise import chunked_attention
from vvlen.models.kernels.causal import causal_attention
from vvlen.models.kernels.dense import Alibi, masked_attention
from vvlen.sharding import seed_mesh

# Sequences; tokens; query heads, key heads; width of a head.
B, N, H, K, D = 2, 7, 6, 3, 5
SLOPES = 2.0 ** -np.arange(1, H + 1)


def _exact(queries, keys, values, slopes=None, positions=None):
  """Attention in numpy, float64, one query at a time: logits, weights, output."""
  queries, keys, values = (np.asarray(x, np.float64) for x in (queries, keys, values))
  batch, n, heads, width = queries.shape
  slopes = np.zeros(heads) if slopes is None else np.asarray(slopes, np.float64)
  positions = np.broadcast_to(np.arange(n) if positions is None else positions,
                              (batch, n))
  logits, weights = np.zeros((2, batch, heads, n, n))
  output = np.zeros(queries.shape)
  for b, h, i in np.ndindex(batch, heads, n):
    key_head = h // (heads // keys.shape[2])
    row = keys[b, : i + 1, key_head] @ queries[b, i, h] / np.sqrt(width)
    row -= slopes[h] * (positions[b, i] - positions[b, : i + 1])
    powers = np.exp(row - row.max())
    logits[b, h, i, : i + 1] = row
    weights[b, h, i, : i + 1] = powers / powers.sum()
    output[b, i, h] = weights[b, h, i, : i + 1] @ values[b, : i + 1, key_head]
  return logits, weights, output


def _normal(*shape, dtype=np.float32, seed=0):
  return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def _inputs(n=N, heads=H, key_heads=K, width=D, batch=B, dtype=np.float32):
  """Returns queries, keys and values."""
  return (
      _normal(batch, n, heads, width, dtype=dtype),
      _normal(batch, n, key_heads, width, dtype=dtype, seed=1),
      _normal(batch, n, key_heads, width, dtype=dtype, seed=2),
  )


POSITIONS = {
    'none': None,
    'one_for_all': np.array([0, 1, 2, 10, 11, 12, 13]),
    'of_each': np.array([[0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 3, 4]]),
}


@pytest.mark.parametrize('slopes', [None, SLOPES], ids=['no_bias', 'alibi'])
@pytest.mark.parametrize('positions', POSITIONS)
def test_values_are_those_of_numpy(slopes, positions):
  inputs, positions = _inputs(), POSITIONS[positions]
  bias = dict(slopes=slopes, positions=positions)
  logits, weights, output = _exact(*inputs, **bias)
  for implementation in ('plain', 'chunked'):
    found = causal_attention(*inputs, implementation=implementation, **bias)
    np.testing.assert_allclose(found, output, rtol=1e-5, atol=1e-6)
  probed = masked_attention(*inputs, np.tri(N, dtype=bool), _alibi(slopes, positions))
  np.testing.assert_allclose(probed.output, output, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(probed.logits, logits, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(probed.weights, weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('slopes', [None, SLOPES], ids=['no_bias', 'alibi'])
@pytest.mark.parametrize('positions', POSITIONS)
def test_some_queries_give_the_rows_of_all(slopes, positions):
  queries, keys, values = _inputs()
  positions = POSITIONS[positions]
  index = np.array([[6, 0, 3], [2, 2, 6]])
  take = lambda rows: np.take_along_axis(np.asarray(rows), index[..., None, None], 1)
  mask = np.arange(N) <= index[..., None]
  bias = _alibi(slopes, positions)
  if bias is not None:
    own = np.broadcast_to(bias.key_positions, (B, N))
    bias = bias._replace(query_positions=np.take_along_axis(own, index, axis=1))
  found = jax.jit(masked_attention)(take(queries), keys, values, mask, bias)
  rows = causal_attention(queries, keys, values, slopes=slopes, positions=positions)
  np.testing.assert_allclose(found.output, take(rows), rtol=1e-5, atol=1e-6)


def test_a_query_that_sees_no_key_gives_zeros_and_finite_gradients():
  queries, keys, values = _inputs()
  mask = np.stack([np.zeros((1, N), bool), np.ones((1, N), bool)])
  attend = lambda *inputs: masked_attention(*inputs, mask).output
  loss = lambda *inputs: jnp.sum(jnp.sin(attend(*inputs)))
  inputs = queries[:, :1], keys, values
  np.testing.assert_array_equal(attend(*inputs)[0], np.zeros((1, H, D)))
  for gradient in jax.jit(jax.grad(loss, (0, 1, 2)))(*inputs):
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[0] == 0).all() and np.asarray(gradient)[1].any()


def _alibi(slopes, positions):
  """Returns what `masked_attention` takes for a bias between the same tokens."""
  positions = np.arange(N) if positions is None else positions
  return None if slopes is None else Alibi(slopes, positions, positions)


def _gradients(attend, *inputs):
  """Returns the output and its derivatives in a direction that differs by entry."""
  output, pull = jax.vjp(attend, *inputs)
  return output, pull(jnp.asarray(_normal(*output.shape, seed=9), output.dtype))


@pytest.mark.parametrize('n, block, heads, key_heads, alibi', [
    (1, 4, 2, 2, True),
    (12, 4, 2, 2, False),
    (15, 4, 4, 2, True),
    (33, 8, 3, 1, True),
])
def test_blocks_change_neither_values_nor_gradients(n, block, heads, key_heads, alibi):
  # In float64, where equal to rounding is equal to 1e-12.
  with jax.enable_x64(True):
    inputs = _inputs(n, heads, key_heads, dtype=np.float64)
    # Gaps of up to 3, from another start in every sequence.
    positions = np.random.default_rng(n).integers(0, 4, (B, n)).cumsum(1)
    slopes = np.array([0.5, 0.01, 2.0, 0.1])[:heads]
    bias = dict(slopes=slopes, positions=positions) if alibi else {}
    expected = jax.jit(functools.partial(
        _gradients, functools.partial(causal_attention, implementation='plain', **bias)
    ))(*inputs)

    chunked = functools.partial(chunked_attention, block=block, **bias)
    found = jax.jit(functools.partial(_gradients, chunked))(*inputs)
    chex.assert_trees_all_close(found, expected, rtol=1e-11, atol=1e-12)
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype('float64')}


def test_values_and_gradients_are_those_of_pytorch():
  torch = pytest.importorskip(
      'torch', reason="compares with PyTorch: pip install '.[oracle]'")
  n = 300
  inputs = _inputs(n, width=16)
  attend = functools.partial(
      causal_attention, slopes=SLOPES, implementation='chunked'
  )
  output, gradients = jax.jit(functools.partial(_gradients, attend))(*inputs)
  theirs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs]
  distance = np.arange(n)[:, None] - np.arange(n)
  bias = np.where(distance >= 0, -SLOPES[:, None, None] * distance, -np.inf)
  expected = torch.nn.functional.scaled_dot_product_attention(
      *(x.transpose(1, 2) for x in theirs), attn_mask=torch.tensor(bias),
      enable_gqa=True,
  ).transpose(1, 2)
  expected.backward(torch.tensor(_normal(*expected.shape, seed=9), dtype=torch.float64))
  np.testing.assert_allclose(output, expected.detach(), rtol=1e-5, atol=2e-6)
  for found, x in zip(gradients, theirs, strict=True):
    np.testing.assert_allclose(found, x.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('implementation', ['plain', 'chunked'])
def test_no_output_depends_on_later_tokens(implementation):
  # 130 tokens are two blocks.
  inputs = _inputs(130, 2, 1, 4, 1)
  attend = jax.jit(functools.partial(causal_attention, implementation=implementation))
  for i in (0, 1, 63, 127, 128, 129):
    row = lambda *inputs, i=i: jnp.sum(jnp.sin(attend(*inputs)[:, i]))
    queries, keys, values = map(np.asarray, jax.grad(row, (0, 1, 2))(*inputs))
    assert not keys[:, i + 1 :].any() and not values[:, i + 1 :].any()
    assert values[:, : i + 1].all() and not np.delete(queries, i, 1).any()


@pytest.mark.parametrize('implementation', ['plain', 'chunked'])
def test_large_logits_give_finite_values_and_gradients(implementation):
  # Logits of up to 40,000 do not overflow, and the last key, with the
  # largest, has all the weight.
  queries = np.full((1, 200, 1, 4), 100.0, np.float32)
  keys = np.arange(200, dtype=np.float32).reshape(1, 200, 1, 1) * np.ones((1, 1, 1, 4))
  values = _normal(1, 200, 1, 4)
  attend = functools.partial(causal_attention, implementation=implementation)
  output, gradients = jax.jit(functools.partial(_gradients, attend))(
      queries, keys.astype(np.float32), values
  )
  np.testing.assert_allclose(output, values, rtol=1e-6)
  chex.assert_tree_all_finite(gradients)


@pytest.mark.parametrize('implementation', ['plain', 'chunked'])
def test_alibi_of_equal_logits_is_a_geometric_series(implementation):
  # Weights e^(−m (i − j)), normalized; distances of up to 2000 with an m of 1/2.
  n, slope = 2001, 0.5
  nothing = np.zeros((1, n, 1, 1), np.float32)
  distance = np.arange(n, dtype=np.float32)[None, :, None, None]
  output = causal_attention(
      nothing, nothing, distance, slopes=np.array([slope]),
      implementation=implementation,
  )
  i, r = np.arange(n), np.exp(-slope)
  powers = r ** np.minimum(i, 1000)
  mean_distance = r / (1 - r) - (i + 1) * r * powers / (1 - r * powers)
  np.testing.assert_allclose(
      output[0, :, 0, 0], i - mean_distance, rtol=1e-5, atol=1e-5
  )


def test_slopes_and_positions_are_constants():
  inputs = _inputs(9)
  for implementation in ('plain', 'chunked'):
    loss = lambda slopes, positions, implementation=implementation: jnp.sum(
        causal_attention(*inputs, slopes=slopes, positions=positions,
                         implementation=implementation) ** 2)
    given = jnp.asarray(SLOPES, jnp.float32), jnp.arange(9.0)
    for gradient in jax.jit(jax.grad(loss, (0, 1)))(*given):
      assert not gradient.any()


@pytest.mark.parametrize('implementation', ['plain', 'chunked'])
def test_bfloat16_logits_weights_and_sums_are_float32(implementation):
  inputs = _inputs(200, width=16, batch=1, dtype=jnp.bfloat16)
  attend = functools.partial(
      causal_attention, implementation=implementation, slopes=SLOPES
  )
  output, gradients = jax.jit(functools.partial(_gradients, attend))(*inputs)
  assert {x.dtype for x in (output, *gradients)} == {jnp.dtype('bfloat16')}
  exact = _exact(*inputs, SLOPES)[-1]
  # One rounding, of 2⁻⁹, is that of the output.
  np.testing.assert_allclose(
      np.asarray(output, np.float64), exact, rtol=2**-8, atol=1e-5
  )
  wide = [x.astype(np.float32) for x in inputs]
  # The direction is rounded too.
  plain = lambda *inputs: causal_attention(*inputs, slopes=SLOPES).astype(jnp.bfloat16)
  _, expected = jax.jit(functools.partial(_gradients, plain))(*wide)
  for found, gradient in zip(gradients, expected, strict=True):
    np.testing.assert_allclose(
        found.astype(np.float32), gradient, rtol=2**-7, atol=1e-3
    )


@pytest.mark.slow
def test_bfloat16_sums_do_not_stall():
  # A running sum in bfloat16 stalls when its terms fall below 1/256 of it.
  one = jnp.ones((1, 1009, 1, 1), jnp.bfloat16)
  for implementation in ('plain', 'chunked'):
    output = causal_attention(0 * one, one, one, implementation=implementation)
    np.testing.assert_array_equal(output.astype(jnp.float32), one.astype(jnp.float32))


@pytest.mark.slow
def test_float64_stays_float64():
  with jax.enable_x64(True):
    inputs = _inputs(150, dtype=np.float64)
    exact = _exact(*inputs, SLOPES)[-1]
    for implementation in ('plain', 'chunked'):
      output = jax.jit(functools.partial(
          causal_attention, slopes=SLOPES, implementation=implementation
      ))(*inputs)
      assert output.dtype == jnp.float64
      np.testing.assert_allclose(output, exact, rtol=1e-12, atol=1e-14)
    probed = masked_attention(*inputs, np.tri(150, dtype=bool))
    assert probed.weights.dtype == probed.logits.dtype == jnp.float64


@pytest.mark.slow
def test_vmap_recomputing_and_sharding_change_no_gradient():
  inputs = _inputs(140, 2, 1, 4, 8)
  attend = functools.partial(
      causal_attention, implementation='chunked', slopes=np.array([0.5, 0.1])
  )
  run = jax.jit(functools.partial(_gradients, attend))
  expected = run(*inputs)
  one = lambda *inputs: attend(*(x[None] for x in inputs))[0]
  for other in (jax.vmap(one), jax.checkpoint(attend)):
    found = jax.jit(functools.partial(_gradients, other))(*inputs)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
  placement = NamedSharding(seed_mesh(), PartitionSpec('seed'))
  found = run(*jax.device_put(inputs, placement))
  for x in jax.tree.leaves(found):
    assert x.addressable_shards[0].data.shape[0] == 1
  chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_splash_kernel_is_plain():
  # Interpreted; 150 tokens are padded to 256.
  inputs = _inputs(150, 2, 1, 16, 1)
  run = lambda implementation: jax.jit(functools.partial(
      _gradients, functools.partial(causal_attention, implementation=implementation)
  ))(*inputs)
  chex.assert_trees_all_close(run('splash'), run('plain'), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('width', [64, 80])
def test_the_splash_kernel_lowers_for_a_tpu(monkeypatch, width):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  monkeypatch.setattr(jax, 'device_count', lambda: 1)
  shape = jax.ShapeDtypeStruct((1, 600, 2, width), jnp.bfloat16)
  loss = lambda *inputs: causal_attention(*inputs).astype(jnp.float32).sum()
  gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
  exported = jax.export.export(gradient, platforms=['tpu'])(shape, shape, shape)
  assert exported.mlir_module().count('tpu_custom_call') >= 3


@pytest.mark.slow
def test_a_batch_on_several_tpus():
  mesh = AbstractMesh((8,), ('data',), (AxisType.Auto,),
                      abstract_device=AbstractDevice('TPU v5 lite', 1, 'tpu'))
  sharded = NamedSharding(mesh, PartitionSpec('data'))
  shape = jax.ShapeDtypeStruct((8, 600, 2, 64), jnp.bfloat16, sharding=sharded)
  loss = lambda *inputs: causal_attention(*inputs).astype(jnp.float32).sum()[None]
  inside = jax.shard_map(loss, mesh=mesh, in_specs=PartitionSpec('data'),
                         out_specs=PartitionSpec('data'), check_vma=False)
  # XLA cannot share out the kernel; a shard_map does.
  for f, kernels in ((loss, False), (inside, True)):
    gradient = jax.jit(jax.grad(lambda *x, f=f: f(*x).sum(), (0, 1, 2)))
    with jax.sharding.use_abstract_mesh(mesh):
      exported = jax.export.export(gradient, platforms=['tpu'])(shape, shape, shape)
    assert ('tpu_custom_call' in exported.mlir_module()) == kernels


def _taken(backend, monkeypatch, dtype=jnp.bfloat16, n=2048, **options):
  """Returns the names of what `causal_attention` would call, without calling it."""
  from vvlen.models.kernels import causal as module

  called = []
  note = lambda name: lambda queries, *_, **__: called.append(name) or queries
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  monkeypatch.setattr(jax, 'device_count', lambda: 1)
  monkeypatch.setattr(jax.nn, 'dot_product_attention', note('cudnn'))
  functions = {'plain': '_plain', 'chunked': 'chunked_attention', 'splash': '_splash'}
  for name, function in functions.items():
    monkeypatch.setattr(module, function, note(name))
  x = jnp.zeros((1, n, 1, options.pop('width', 64)), dtype)
  causal_attention(x, x, x, **options)
  name, = called
  return name


@pytest.mark.parametrize('backend, options, name', [
    ('cpu', {}, 'chunked'),
    ('cpu', {'n': 64}, 'plain'),
    ('gpu', {}, 'cudnn'),
    ('gpu', {'dtype': np.float32}, 'chunked'),
    ('gpu', {'slopes': np.ones(1)}, 'chunked'),
    ('gpu', {'width': 60}, 'chunked'),
    ('tpu', {}, 'splash'),
    ('tpu', {'width': 60}, 'splash'),
    ('tpu', {'dtype': np.float32}, 'chunked'),
    ('tpu', {'slopes': np.ones(1)}, 'chunked'),
])
def test_what_is_chosen(backend, options, name, monkeypatch):
  assert _taken(backend, monkeypatch, **options) == name


@pytest.mark.parametrize('change, told', [
    ({'implementation': 'flash'}, "one of plain, chunked, cudnn, splash: 'flash'"),
    ({'implementation': 'cudnn'}, "'cudnn' needs a GPU: cpu"),
    ({'implementation': 'splash', 'slopes': SLOPES}, "'splash' does not support ALiBi"),
    ({'keys': np.zeros((B, N, 4, D))}, 'differ in shape'),
    ({'keys': np.zeros((B, N, 4, D)), 'values': np.zeros((B, N, 4, D))},
     '6 query heads are not a multiple of 4 key heads'),
    ({'queries': np.zeros((B, 3, H, D))}, r'\(2, 3, 6, 5\) do not fit keys'),
    ({'queries': np.zeros((N, H, D))}, r'queries must be \[B, n, heads, d\]'),
    ({'queries': np.zeros((B, N, H, D), complex)}, 'real numbers: complex64'),
    ({'slopes': np.ones(3)}, r'slopes must be \[6\]: \(3,\)'),
    ({'positions': np.ones(3)}, r'positions must be \[7\] or \[2, 7\]: \(3,\)'),
])
def test_what_cannot_be_done_is_told_in_one_line(change, told):
  arguments = dict(zip(('queries', 'keys', 'values'), _inputs(), strict=True)) | change
  with pytest.raises(ValueError, match=told) as error:
    causal_attention(**arguments)
  assert '\n' not in str(error.value)


def test_memory_at_16384_tokens():
  # Weights of all pairs would be 4 GiB.
  x = jax.ShapeDtypeStruct((1, 16384, 4, 64), jnp.float32)
  loss = lambda *inputs: causal_attention(*inputs, slopes=SLOPES[:4]).sum()
  compiled = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(x, x, x).compile()
  # Queries, keys, values, output and each gradient are 16 MiB.
  assert compiled.memory_analysis().temp_size_in_bytes < 256 * 2**20


@pytest.mark.slow
def test_masked_attention_of_integers_and_what_does_not_fit():
  values = np.array([2, 3])[None, :, None, None]
  same = np.zeros((1, 2, 1, 1))
  found = masked_attention(same, same, values, jnp.ones((2, 2), bool)).output
  np.testing.assert_allclose(found[0, :, 0, 0], 2.5)
  for change, told in (
      ({'mask': jnp.ones((1, 1, 2, 2), bool)}, 'mask'),
      ({'mask': jnp.ones((2, 3), bool)}, 'mask'),
      ({'mask': jnp.zeros((2, 2))}, 'mask must be bool.*float32'),
      ({'keys': same[:, :1]}, 'queries, keys and values'),
      ({'queries': np.zeros((1, 2, 1, 3))}, 'do not fit keys'),
      ({'keys': np.zeros((1, 2, 2, 1)), 'values': np.zeros((1, 2, 2, 1))},
       '2 key heads'),
  ):
    arguments = {'queries': same, 'keys': same, 'values': values,
                 'mask': jnp.ones((2, 2), bool)} | change
    with pytest.raises(ValueError, match=told):
      masked_attention(**arguments)
