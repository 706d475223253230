"""Attention of one query, against numpy and against its own definition."""

import functools

import chex
from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from vvlen.models.attention import attend, SingleHeadAttention
from vvlen.models.norm import standardize
from vvlen.models.temperature import adaptive_temperature
from vvlen.sharding import seed_mesh

# Batch A, B; N items; D width of queries and keys; V of values; X of items; Q of
# the module's query.
A, B, N, D, V, X, Q = 2, 3, 7, 5, 11, 13, 3


def _exact(query, keys, values, mask=None, beta=1.0):
  """Attention in numpy, float64, one row at a time."""
  query, keys, values = (np.asarray(x, np.float64) for x in (query, keys, values))
  batch = query.shape[:-1]
  output = np.zeros((*batch, values.shape[-1]))
  weights = np.zeros((*batch, keys.shape[-2]))
  for row in np.ndindex(batch):
    there = np.flatnonzero(np.ones(keys.shape[-2]) if mask is None else mask[row])
    if not there.size:
      continue
    exponentials = [
        np.exp(beta * (query[row] @ keys[row][i]) / np.sqrt(query.shape[-1]))
        for i in there
    ]
    weights[row][there] = exponentials / np.sum(exponentials)
    output[row] = sum(weights[row][i] * values[row][i] for i in there)
  return output, weights


def _normal(*shape, dtype=np.float32, seed=0):
  return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def _inputs(dtype=np.float32):
  """Returns a query, keys and values."""
  shapes = (A, B, D), (A, B, N, D), (A, B, N, V)
  return tuple(_normal(*shape, dtype=dtype) for shape in shapes)


def _mask():
  """Lengths 1 .. N, and one row without any item."""
  return np.arange(N) < np.array([[1, N, 0], [2, 5, 3]])[..., None]


_attend = jax.jit(attend, static_argnums=4)


def test_softmax_with_a_known_answer():
  # Logits 0 and 1 after the scale of 1/√4: weights 1/(1+e) and e/(1+e).
  query, keys = jnp.array([2.0, 0, 0, 0]), jnp.eye(4)[jnp.array([3, 0])]
  output, weights = attend(query, keys, jnp.array([[1.0, 0.0], [0.0, 1.0]]))
  expected = [1 / (1 + np.e), np.e / (1 + np.e)]
  np.testing.assert_allclose(weights, expected, rtol=1e-6)
  np.testing.assert_allclose(output, expected, rtol=1e-6)


@pytest.mark.parametrize('mask', [None, _mask()], ids=['all', 'masked'])
def test_attention_is_that_of_numpy_for_any_batch_axes(mask):
  inputs = _inputs()
  output, weights = _attend(*inputs, mask)
  expected_output, expected_weights = _exact(*inputs, mask)
  np.testing.assert_allclose(weights, expected_weights, rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(output, expected_output, rtol=1e-5, atol=1e-6)
  row = (1, 2)
  alone, _ = _attend(*jax.tree.map(lambda x: x[row], (*inputs, mask)))
  np.testing.assert_allclose(alone, expected_output[row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('rubbish', [0.0, 1e3, -1e30, 1e30])
def test_padding_has_weight_0_and_changes_nothing(rubbish):
  query, keys, values = _inputs()
  mask = _mask()
  output, weights = _attend(query, keys, values, mask)
  np.testing.assert_array_equal(np.asarray(weights) > 0, mask)
  other_output, other_weights = _attend(
      query, np.where(mask[..., None], keys, np.float32(rubbish)),
      np.where(mask[..., None], values, np.float32(rubbish)), mask,
  )
  np.testing.assert_array_equal(other_weights, weights)
  np.testing.assert_array_equal(other_output, output)


def test_a_row_without_keys_gives_zeros_and_finite_gradients():
  inputs, mask = _inputs(), _mask()
  empty = ~mask.any(-1)
  assert empty.sum() == 1
  output, weights = _attend(*inputs, mask)
  np.testing.assert_array_equal(np.asarray(output)[empty], np.zeros((1, V)))
  np.testing.assert_array_equal(np.asarray(weights)[empty], np.zeros((1, N)))
  loss = lambda inputs: jnp.sum(jnp.sin(attend(*inputs, mask)[0]))
  for gradient in jax.jit(jax.grad(loss))(inputs):
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[empty] == 0).all()
    assert (np.asarray(gradient)[~empty] != 0).any()


def test_masked_keys_get_no_gradient():
  query, keys, values = _inputs()
  mask = _mask()
  loss = lambda keys, values: jnp.sum(attend(query, keys, values, mask)[0] ** 2)
  for gradient in jax.jit(jax.grad(loss, (0, 1)))(keys, values):
    assert (np.asarray(gradient)[~mask] == 0).all()


def test_bfloat16_logits_and_weights_are_float32():
  inputs = _inputs(jnp.bfloat16)
  output, weights = _attend(*inputs)
  assert weights.dtype == jnp.float32 and output.dtype == jnp.bfloat16
  expected_output, expected_weights = _exact(*inputs)
  np.testing.assert_allclose(weights, expected_weights, rtol=1e-5)
  np.testing.assert_allclose(
      np.asarray(output, np.float64), expected_output, rtol=2**-8, atol=1e-6
  )


@pytest.mark.slow
def test_bfloat16_sums_do_not_stall():
  # A running sum in bfloat16 stalls when its terms fall below 1/256 of it.
  n = 1009
  one = jnp.ones((n, D), jnp.bfloat16)
  output, _ = attend(jnp.zeros(D, jnp.bfloat16), one, one)
  np.testing.assert_array_equal(output.astype(jnp.float32), np.ones(D))


def test_float64_stays_float64():
  with jax.enable_x64(True):
    inputs = _inputs(np.float64)
    output, weights = _attend(*inputs)
    assert output.dtype == weights.dtype == jnp.float64
    expected_output, expected_weights = _exact(*inputs)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-12)
    np.testing.assert_allclose(output, expected_output, rtol=1e-12, atol=1e-14)


def test_temperature_multiplies_the_scaled_logits_of_its_row():
  query, keys, values = _inputs()
  mask, beta = _mask(), np.array([[1.0, 2.0, 3.0], [0.5, 0.0, 7.0]])[..., None]
  seen = {}

  def temperature(logits, mask):
    seen.update(logits=logits, mask=mask)
    return jnp.asarray(beta, logits.dtype)

  output, weights = attend(query, keys, values, mask, temperature)
  expected_output, expected_weights = _exact(query * beta, keys, values, mask)
  np.testing.assert_allclose(weights, expected_weights, rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(output, expected_output, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(seen['mask'], mask)
  scaled = np.einsum('abd,abnd->abn', query, keys) / D**0.5
  np.testing.assert_allclose(seen['logits'], scaled, rtol=1e-5, atol=1e-6)


def test_a_temperature_of_another_shape_and_no_features_are_refused():
  query, keys, values = _inputs()
  shape = jnp.shape(query)[:-1]
  with pytest.raises(ValueError, match='temperature must give β'):
    attend(query, keys, values, temperature=lambda *_: jnp.ones((2, *shape, 1)))
  with pytest.raises(ValueError, match='features must be positive: 0'):
    SingleHeadAttention(0).init(jax.random.key(0), query, keys)


def test_order_of_items_does_not_matter():
  query, keys, values = _inputs()
  mask = _mask()
  output, weights = _attend(query, keys, values, mask)
  order = np.random.default_rng(0).permutation(N)
  moved, moved_weights = _attend(
      query, keys[..., order, :], values[..., order, :], mask[..., order]
  )
  np.testing.assert_allclose(moved, output, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(moved_weights, weights[..., order], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('mask, told', [
    (np.where(_mask(), 0.0, -1e9), 'mask must be bool.*float'),
    (_mask().astype(np.int32), 'mask must be bool.*int32'),
    (_mask()[:, None], r'mask \(2, 1, 3, 7\) does not broadcast'),
    (_mask()[..., :-1], r'mask \(2, 3, 6\)'),
    (_mask()[:, :2], r'mask \(2, 2, 7\)'),
], ids=['added', 'ints', 'axes', 'keys', 'rows'])
def test_a_mask_that_is_not_bool_or_does_not_fit_is_refused(mask, told):
  query, keys, values = _inputs()
  with pytest.raises(ValueError, match=told):
    attend(query, keys, values, mask)
  with pytest.raises(ValueError, match=told):
    attend(query, keys, values, mask, adaptive_temperature)
  query, items = _module_inputs()
  with pytest.raises(ValueError, match=told):
    SingleHeadAttention(D).init(jax.random.key(0), query, items, mask)
  with pytest.raises(ValueError, match=told):
    adaptive_temperature(jnp.zeros((A, B, N)), mask)


def test_a_mask_broadcasts_over_rows():
  inputs = _inputs()
  keys = np.arange(N) % 2 == 0
  whole = np.broadcast_to(keys, (A, B, N))
  expected = attend(*inputs, whole)
  rows = np.arange(A)[:, None, None] > 0
  for mask, other in ((keys, expected), (keys[None], expected),
                      (rows, attend(*inputs, np.broadcast_to(rows, (A, B, N))))):
    chex.assert_trees_all_equal(attend(*inputs, mask), other)
  # The same holds without the strict promotion of these tests, and for the module.
  query, items = _module_inputs()
  module = SingleHeadAttention(D)
  variables = module.init(jax.random.key(0), query, items)
  np.testing.assert_array_equal(
      module.apply(variables, query, items, keys, adaptive_temperature),
      module.apply(variables, query, items, whole, adaptive_temperature),
  )


def _zeros(*shapes):
  return [np.zeros(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize('inputs, told', [
    (_zeros((2, 4, 8), (2, 5, 8), (2, 5, 3)), 'must be one query.*masked_atten'),
    # Leading axes that happen to fit: each query would attend to keys of another row.
    (_zeros((4, 4, 8), (4, 5, 8), (4, 5, 3)), 'must be one query.*jax.vmap'),
    (_zeros((4, 8), (5, 8), (5, 3)), r'query \(4, 8\) has too many axes for keys'),
    (_zeros((4, 8), (4, 5, 8), (5, 3)), r'query \(4, 8\) has too many axes for values'),
    (_zeros((2, 8), (2, 5, 7), (2, 5, 3)), r'\(2, 8\).*\(2, 5, 7\).*last axis'),
    (_zeros((2, 8), (2, 5, 8), (2, 6, 3)), r'of items: \(2, 5, 8\), \(2, 6, 3\)'),
    (_zeros((2, 8), (3, 5, 8), (3, 5, 3)), r'leading axes.*\(2, 8\), \(3, 5, 8\)'),
    (_zeros((2, 8), (2, 5, 8), (3, 5, 3)), r'leading axes.*\(3, 5, 3\)'),
    (_zeros((8,), (8,), (8,)), r'must be \[..., d\] and keys'),
    (_zeros((), (5, 8), (5, 3)), r'must be \[..., d\] and keys'),
], ids=['queries', 'queries_as_rows', 'shared_keys', 'shared_values', 'width', 'number',
        'rows_of_keys', 'rows_of_values', 'no_items', 'scalar'])
def test_shapes_that_do_not_fit_are_refused(inputs, told):
  with pytest.raises(ValueError, match=told):
    attend(*inputs)


@pytest.mark.parametrize('query, items, told', [
    ((2, 4, 8), (2, 5, 8), r'query \(2, 4, 8\) has too many axes for items \(2, 5, 8'),
    ((2, 8), (3, 5, 8), r'leading axes of query and items'),
    ((8,), (8,), r'items \[..., n, d\]'),
], ids=['queries', 'rows', 'no_items'])
def test_the_module_refuses_several_queries_in_its_own_terms(query, items, told):
  with pytest.raises(ValueError, match=told):
    SingleHeadAttention(D).init(jax.random.key(0), *_zeros(query, items))


def test_one_query_may_serve_many_rows():
  _, keys, values = _inputs()
  query = _normal(1, 1, D)
  expected, _ = _exact(np.broadcast_to(query, (A, B, D)), keys, values)
  for one in (query, query[0, 0]):
    with jax.numpy_rank_promotion('allow'):
      output, _ = attend(one, keys, values)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def _module_inputs(dtype=np.float32):
  """Returns a query and items."""
  return _normal(A, B, Q, dtype=dtype), _normal(A, B, N, X, dtype=dtype)


def _parameters(module, *inputs):
  """Returns normal weights, of the scale of lecun_normal."""
  shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)['params']
  return jax.tree.map(
      lambda x: _normal(*x.shape, seed=len(x.shape)) / np.float32(x.shape[0] ** 0.5),
      shapes,
  )


def _as_papers_write_it(params, query, items, mask):
  """The module with LayerNorm, a bias of the values and W_O, by all keys and values."""
  keys = items @ params['key_kernel']
  values = items @ params['value_kernel']
  if mask is None:
    mask = np.ones((A, B, N), bool)
  values += params['value_bias'][None, None, None]
  output, weights = attend(query @ params['query_kernel'], keys, values, mask)
  norm = {name: x[None, None] for name, x in params['norm'].items()}
  normalized = standardize(output) * norm['scale'] + norm['bias']
  sown = {'attention_weights': (weights,), 'attention_output': (output,),
          'normalized_output': (normalized,)}
  return normalized @ params['output_kernel'], {'intermediates': sown}


@pytest.mark.parametrize('masked', [False, True], ids=['all', 'masked'])
def test_no_keys_and_values_are_needed_for_values_and_gradients(masked):
  # In float64, where equal to rounding is equal to 1e-10.
  with jax.enable_x64(True):
    query, items = _module_inputs(np.float64)
    mask = _mask() if masked else None
    module = SingleHeadAttention(
        D, 'layer_norm', output_projection=True, value_bias=True)
    params = jax.tree.map(np.float64, _parameters(module, query, items, mask))

    def folded(params, query, items):
      return module.apply(
          {'params': params}, query, items, mask, mutable='intermediates')

    def gradient(function):
      def loss(*inputs):
        output, sown = function(*inputs)
        return jnp.sum(jnp.sin(output)), (output, sown)
      return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(params, query, items)

    one, two = (gradient(f) for f in (
        folded, lambda *inputs: _as_papers_write_it(*inputs, mask)))
    chex.assert_trees_all_close(one, two, rtol=1e-9, atol=1e-10)
    chex.assert_tree_all_finite(one)
    for leaf in jax.tree.leaves(one[0]):
      assert (np.asarray(leaf) != 0).any()


@pytest.fixture(scope='module')
def module_run():
  """A module with norm and W_O, its weights, inputs, output and what it sowed."""
  module = SingleHeadAttention(D, 'standardize', output_projection=True)
  query, items = _module_inputs()
  variables = {'params': _parameters(module, query, items)}
  apply = jax.jit(functools.partial(module.apply, mutable='intermediates'))
  output, sown = apply(variables, query, items)
  sown = {name: x for name, (x,) in sown['intermediates'].items()}
  return module, variables, query, items, output, sown


def test_sown_arrays_have_their_names_and_shapes(module_run):
  *_, sown = module_run
  assert {name: x.shape for name, x in sown.items()} == {
      'attention_weights': (A, B, N),
      'attention_output': (A, B, D),
      'normalized_output': (A, B, D),
  }


def test_the_module_is_attention_of_projected_queries_keys_and_values(module_run):
  _, variables, query, items, _, sown = module_run
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params'])
  query, items = np.asarray(query), np.asarray(items)
  output, weights = _exact(
      query @ p['query_kernel'], items @ p['key_kernel'], items @ p['value_kernel']
  )
  np.testing.assert_allclose(sown['attention_weights'], weights, rtol=1e-4)
  np.testing.assert_allclose(sown['attention_output'], output, rtol=1e-4, atol=1e-6)


def test_the_norm_comes_before_the_output_projection(module_run):
  _, variables, *_, output, sown = module_run
  np.testing.assert_allclose(
      sown['normalized_output'], standardize(sown['attention_output']), rtol=1e-5,
      atol=1e-6,
  )
  np.testing.assert_allclose(
      output,
      np.asarray(sown['normalized_output']) @ variables['params']['output_kernel'],
      rtol=1e-5, atol=1e-6,
  )


def test_width_of_the_items_does_not_enter_the_scale(module_run):
  # The module scales by 1/√d, whatever the width of what it multiplies.
  module, variables, query, items, output, _ = module_run
  wider = jnp.concatenate([items, jnp.zeros((A, B, N, 4))], -1)
  pad = lambda name: jnp.pad(variables['params'][name], ((0, 4), (0, 0)))
  params = variables['params'] | {n: pad(n) for n in ('key_kernel', 'value_kernel')}
  np.testing.assert_allclose(
      module.apply({'params': params}, query, wider), output, rtol=1e-4, atol=1e-5
  )


def test_vmap_over_rows_changes_nothing(module_run):
  module, variables, query, items, output, _ = module_run
  rows = jax.jit(jax.vmap(jax.vmap(functools.partial(module.apply, variables))))
  np.testing.assert_allclose(rows(query, items), output, rtol=1e-4, atol=1e-5)


def test_recomputing_in_the_backward_pass_changes_no_gradient(module_run):
  module, variables, query, items, *_ = module_run
  remat = nn.remat(SingleHeadAttention)(D, 'standardize', output_projection=True)

  def gradient(apply):
    loss = lambda variables, items: jnp.sum(jnp.sin(apply(variables, query, items)))
    return jax.jit(jax.grad(loss, (0, 1)))(variables, items)

  plain = gradient(module.apply)
  assert all((np.asarray(g) != 0).any() for g in jax.tree.leaves(plain))
  for apply in (remat.apply, jax.checkpoint(module.apply)):
    chex.assert_trees_all_close(gradient(apply), plain, rtol=1e-4, atol=1e-5)


def test_rows_may_be_sharded_over_devices(module_run):
  module, variables, query, items, *_ = module_run
  rows = lambda x: jnp.tile(x.reshape(A * B, *x.shape[2:]), (4,) + (1,) * (x.ndim - 2))
  query, items = rows(query), rows(items)
  apply = jax.jit(module.apply)
  expected = apply(variables, query, items)
  placement = NamedSharding(seed_mesh(), PartitionSpec('seed'))
  output = apply(variables, *jax.device_put((query, items), placement))
  assert len(output.sharding.device_set) == 8
  assert output.addressable_shards[0].data.shape == (A * B * 4 // 8, D)
  np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_the_module_works_through_the_nnx_bridge(module_run):
  module, variables, query, items, output, _ = module_run
  bridged = nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0))
  nnx.bridge.lazy_init(bridged, query, items)
  shapes = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(bridged, nnx.Param)))
  assert shapes == jax.tree.map(jnp.shape, variables['params'])
  for name, kernel in variables['params'].items():
    getattr(bridged, name)[...] = kernel
  np.testing.assert_allclose(bridged(query, items), output, rtol=1e-4, atol=1e-5)


def test_compute_dtype_is_a_field_and_parameters_stay_float32(key):
  query, items = _module_inputs()
  module = SingleHeadAttention(D, dtype=jnp.bfloat16)
  init = functools.partial(module.init_with_output, mutable=True)
  output, variables = jax.eval_shape(init, key, query, items)
  assert output.dtype == jnp.bfloat16
  sown = variables['intermediates']['attention_weights']
  assert {x.dtype for x in sown} == {jnp.dtype('float32')}
  kernels = jax.tree.leaves(variables['params'])
  assert {x.dtype for x in kernels} == {jnp.dtype('float32')}


@pytest.mark.slow
def test_output_of_equal_weights_spreads_as_the_inverse_root_of_length():
  # With the query 0 all weights are 1/N: the spread of a mean of i.i.d. items.
  query, items = np.zeros((4093, Q), np.float32), _normal(4093, 64, X)
  module = SingleHeadAttention(D)
  params = _parameters(module, query, items)

  @jax.jit
  def spread(length):
    mask = jnp.broadcast_to(jnp.arange(64)[None] < length, items.shape[:2])
    return module.apply({'params': params}, query, items, mask).std(axis=0)

  for short, long in ((1, 4), (4, 64)):
    ratio = spread(short) / spread(long)
    np.testing.assert_allclose(ratio, (long / short) ** 0.5, rtol=0.06)
