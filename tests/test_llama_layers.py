"""Llamas whose layers are stacked and run in a loop, beside those with a list."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import pytest

from tests.llamas import llama, OWN_ROPES, ROPES, save_llama, V, variables_of
from vvlen.models.llama import abstract_params, load_checkpoint, save_checkpoint
from vvlen.models.llama.layers import stacked, unstacked
from vvlen.sharding import mesh as partition
from vvlen.training import optimizer


@pytest.fixture
def tokens(key):
  return jax.random.randint(key, (2, 13), 0, V)


def _both(**fields):
  """Returns a model with a list of layers and one with a loop, and their variables."""
  model = llama(**{'num_layers': 3, **fields})
  variables = variables_of(model)
  looped = {'params': stacked(variables['params'])}
  return (model, variables), (model.clone(scan_layers=True), looped)


def _gradient(model, variables, tokens):
  loss = lambda v: jnp.square(model.apply(v, tokens)).mean()
  return jax.jit(jax.grad(loss))(variables)['params']


@pytest.mark.slow
@pytest.mark.parametrize('fields', [
    {}, {'attention_bias': True, 'tied': False, 'norm': 'layer_norm'},
    {'rope': ROPES['dynamic']}, {'rope': None}, {'rope': OWN_ROPES['eabf']},
    {'rope': OWN_ROPES['clex']}, {'rope': None, 'alibi': True},
], ids=lambda x: '-'.join(map(str, x)))
def test_outputs_and_gradients_are_those_of_a_list_of_layers(tokens, fields):
  (model, variables), (looped, own) = _both(**fields)
  np.testing.assert_allclose(
      looped.apply(own, tokens), model.apply(variables, tokens), rtol=1e-5, atol=1e-4)
  expected = stacked(_gradient(model, variables, tokens))
  chex.assert_trees_all_close(
      _gradient(looped, own, tokens), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize('keeps', ['nothing', 'products'])
def test_computing_again_changes_no_gradient(tokens, keeps):
  _, (looped, own) = _both()
  again = looped.clone(remat=True, remat_keeps=keeps)
  chex.assert_trees_all_close(
      _gradient(again, own, tokens), _gradient(looped, own, tokens), rtol=1e-4,
      atol=1e-3)


def _temporaries(model, batch):
  variables = {'params': abstract_params(model)}
  loss = lambda v, x: model.apply(v, x, method='hidden').sum()
  tokens = jax.ShapeDtypeStruct(batch, jnp.int32)
  compiled = jax.jit(jax.grad(loss)).lower(variables, tokens).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_what_is_kept_is_in_this_order():
  model = llama(num_layers=16, scan_layers=True, width=32, mlp_width=96)
  remat = model.clone(remat=True)
  sizes = [_temporaries(m, (4, 64)) for m in (
      remat, remat.clone(remat_keeps='products'), model)]
  assert sizes == sorted(set(sizes))


@pytest.mark.parametrize('dtype, kept', [(None, 'f32'), (jnp.bfloat16, 'bf16')])
def test_the_stream_is_kept_in_its_dtype(dtype, kept):
  model = llama(num_layers=5, scan_layers=True, remat=True, stream_dtype=dtype)
  loss = lambda v, x: model.apply(v, x, method='hidden').sum()
  tokens = jax.ShapeDtypeStruct((3, 7), jnp.int32)
  variables = {'params': abstract_params(model)}
  jaxpr = str(jax.make_jaxpr(jax.grad(loss))(variables, tokens))
  # One array of all 5 layers, 3 sequences, 7 tokens and 12 features.
  assert set(re.findall(r'(\w+)\[5,3,7,12\]', jaxpr)) == {kept}


def test_a_stream_in_bfloat16_is_rounded_between_layers_only(tokens):
  _, (looped, own) = _both()
  exact = looped.apply(own, tokens)
  found = looped.clone(stream_dtype=jnp.bfloat16).apply(own, tokens)
  assert found.dtype == jnp.float32
  error = jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact)
  assert 1e-4 < error < 2e-2


@pytest.mark.slow
def test_a_cache_is_that_of_a_list_of_layers(tokens):
  (model, variables), (looped, own) = _both()
  lengths = jnp.array([9, 13])
  states = []
  for m, v in ((model, variables), (looped, own)):
    last, cache = m.apply(v, tokens, lengths, 16, method='prefill')
    states.append((last, m.apply(v, tokens[:, 0], cache, method='step')))
  chex.assert_trees_all_close(*states, rtol=1e-5, atol=1e-5)


def test_sown_values_have_an_axis_of_layers(tokens):
  (model, variables), (looped, own) = _both()
  sown = [m.apply(v, tokens, mutable='intermediates')[1]['intermediates']
          for m, v in ((model, variables), (looped, own))]
  for name in ('queries', 'keys', 'attention_output'):
    [expected] = zip(*(sown[0][f'layer_{i}'][name] for i in range(3)), strict=True)
    np.testing.assert_allclose(
        sown[1]['layers'][name][0], jnp.stack(expected), rtol=1e-4, atol=1e-4)


def test_the_program_has_one_layer():
  tokens = jax.ShapeDtypeStruct((2, 13), jnp.int32)
  sizes = []
  for layers in (2, 8):
    model = llama(num_layers=layers, scan_layers=True, remat=True)
    loss = lambda v, x, m=model: m.apply(v, x, method='hidden').sum()
    lowered = jax.jit(jax.grad(loss)).lower({'params': abstract_params(model)}, tokens)
    sizes.append(len(re.findall('dot_general', lowered.as_text())))
  assert sizes[0] == sizes[1] > 0


@pytest.mark.slow
def test_stacking_is_undone_and_shapes_are_known():
  (_, variables), (looped, own) = _both(attention_bias=True)
  chex.assert_trees_all_equal(unstacked(own['params']), variables['params'])
  chex.assert_trees_all_equal_shapes(own['params'], abstract_params(looped))
  drawn = looped.init(jax.random.key(1), jnp.zeros((1, 2), jnp.int32))['params']
  chex.assert_trees_all_equal_shapes(own['params'], drawn)
  kernels = drawn['layers']['query']['kernel']
  assert not np.allclose(kernels[0], kernels[1])  # layers are drawn apart


@pytest.mark.slow
@pytest.mark.parametrize('axes', [(2, 2, 2), (1, 4, 1)])
def test_a_checkpoint_is_read_and_written_to_shards(tmp_path, axes):
  folder, model, variables = save_llama(
      tmp_path / 'one', num_layers=3, vocab_size=24, width=16, mlp_width=8,
      attention_bias=True)
  mesh = jax.make_mesh(axes, partition.AXES, axis_types=(AxisType.Auto,) * 3,
                       devices=jax.devices()[:np.prod(axes)])
  looped, loaded = load_checkpoint(
      folder, functools.partial(partition.shardings, mesh=mesh), scan_layers=True)
  assert looped == model.clone(scan_layers=True)
  expected = stacked(variables['params'])
  chex.assert_trees_all_equal(loaded['params'], expected)
  kernel = loaded['params']['layers']['down']['kernel']
  assert kernel.sharding == NamedSharding(mesh, PartitionSpec(None, 'tensor', 'fsdp'))
  assert kernel.addressable_shards[0].data.shape == (3, 8 // axes[2], 16 // axes[1])
  save_checkpoint(tmp_path / 'two', looped, loaded)
  for name in ('model.safetensors', 'config.json'):
    assert (tmp_path / 'two' / name).read_bytes() == (folder / name).read_bytes()
  with jax.set_mesh(mesh):
    again = load_checkpoint(
        folder, functools.partial(partition.shardings, mesh=mesh), scan_layers=True)
  chex.assert_trees_all_equal(again[1], loaded)
  one = load_checkpoint(folder, scan_layers=True)[1]
  chex.assert_trees_all_equal(one['params'], expected)


@pytest.mark.parametrize('tokens, spec', [
    (6, PartitionSpec(('data', 'fsdp'), 'tensor')),
    (7, PartitionSpec(('data', 'fsdp'))),
])
def test_the_stream_is_sharded_by_tokens_where_they_divide(tokens, spec):
  mesh = partition.make_mesh(2, 2, 2)
  with jax.set_mesh(mesh):
    x = jax.jit(partition.over_tokens)(jnp.zeros((4, tokens, 3)))
  assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), 3)
  x = jnp.zeros((4, 6, 3))
  assert partition.over_tokens(x) is x


def test_layers_that_are_sharded_over_devices_are_refused(tmp_path):
  folder, _, _ = save_llama(tmp_path)
  mesh = partition.make_mesh(8)
  where = NamedSharding(mesh, PartitionSpec('fsdp'))
  with pytest.raises(ValueError, match='must not be sharded over devices'):
    load_checkpoint(folder, where, scan_layers=True)


@pytest.mark.slow
def test_a_step_is_the_same_on_every_mesh(key):
  model = llama(vocab_size=24, width=16, mlp_width=8, num_layers=3, scan_layers=True,
                remat=True)
  variables = variables_of(model, scale=0.2)
  tokens = jax.random.randint(key, (8, 14), 0, 24)

  def gradient(mesh, tokens):
    placed = jax.device_put(variables['params'], partition.shardings(
        variables['params'], mesh))
    with jax.set_mesh(mesh):
      loss = lambda p, x: jnp.square(model.apply({'params': p}, x)).mean()
      rows = jax.device_put(tokens, NamedSharding(mesh, partition.ROWS))
      return jax.jit(jax.value_and_grad(loss))(placed, rows)

  expected = gradient(jax.make_mesh(
      (1, 1, 1), partition.AXES, axis_types=(AxisType.Auto,) * 3,
      devices=jax.devices()[:1]), tokens)
  chex.assert_trees_all_close(
      gradient(partition.make_mesh(2, 2, 2), tokens), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_vectors_of_stacked_layers_do_not_decay():
  params = variables_of(llama(scan_layers=True, attention_bias=True))['params']
  update = optimizer.adamw(0.1, 10, weight_decay=0.5)
  zero = jax.tree.map(jnp.zeros_like, params)
  change = jax.jit(lambda zero: update.update(zero, update.init(params), params)[0])
  decayed = jax.tree.map(lambda x: bool(np.any(x)), change(zero))
  leaves = jax.tree_util.tree_leaves_with_path(decayed)
  for path, x in leaves:
    assert x == (path[-1].key in ('kernel', 'embedding'))


@pytest.mark.parametrize('fields, says', [
    ({'remat_keeps': 'all'}, "remat_keeps must be one of nothing, products: 'all'"),
    ({'stream_dtype': jnp.bfloat16, 'scan_layers': False}, 'need scan_layers'),
    ({'remat_keeps': 'products', 'scan_layers': False}, 'need scan_layers'),
])
def test_fields_that_do_not_fit_are_refused(tokens, fields, says):
  model = llama(**{'scan_layers': True, **fields})
  with pytest.raises(ValueError, match=says):
    model.init(jax.random.key(0), tokens)
