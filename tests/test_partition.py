"""One rule for every parameter, and the same numbers on every mesh."""

import functools
import itertools
import os

import chex
import jax
from jax.experimental import topologies
import jax.numpy as jnp
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec,
)
import numpy as np
import optax
import pytest

from experiments.compile import measure
from tests.llamas import llama, OWN_ROPES, variables_of
from vvlen.models.decoder import Decoder
from vvlen.models.kernels.causal import causal_attention
from vvlen.models.kernels.shifted import Shifted
from vvlen.models.language_model import LanguageModel
from vvlen.models.llama import abstract_params
from vvlen.objectives.chunked import chunked_two_window_loss
from vvlen.objectives.windows import two_windows
from vvlen.sharding import mesh as partition
from vvlen.training.step import TrainState

# Of sizes that eight devices divide.
EVEN = dict(vocab_size=24, width=16, mlp_width=24, num_heads=8, num_key_heads=8,
            head_width=4)


def _paths(params):
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {'/'.join(key.key for key in path): x for path, x in leaves}


def _language_model(positions):
  model = LanguageModel(Decoder(24, width=16, num_heads=2, positions=positions,
                                norm='layer_norm'))
  tokens = jax.ShapeDtypeStruct((1, 4), jnp.int32)
  return jax.eval_shape(model.init, jax.random.key(0), tokens)['params']


def test_rows_are_filled_up_to_what_data_and_fsdp_divide():
  mesh = partition.make_mesh(data=2, fsdp=2, tensor=2)
  assert partition.row_ways(mesh) == 4
  assert [partition.filled(n, mesh) for n in (1, 4, 5, 8)] == [4, 4, 8, 8]
  no_mesh = jax.sharding.get_abstract_mesh()
  assert (partition.row_ways(no_mesh), partition.filled(5, no_mesh)) == (1, 5)


def test_the_axis_data_goes_over_slices():
  pytest.importorskip(
      'libtpu', reason="needs the compiler of TPUs: pip install '.[compile]'")
  for name, value in measure._ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  devices = topologies.get_topology_desc(
      platform='tpu', topology_name='v5e:2x2', num_slices=2).devices
  mesh = partition.mesh_of(devices, (2, 2, 2))
  slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
  assert (slices == np.arange(2)[:, None, None]).all()
  assert mesh.axis_names == partition.AXES
  with pytest.raises(ValueError, match=r'data 1 is not a multiple of the 2 slices'):
    partition.mesh_of(devices, (1, 4, 2))


@pytest.mark.parametrize('params', [
    abstract_params(llama(tied=False, attention_bias=True, output_bias=True,
                          mlp_bias=True, norm='layer_norm')),
    abstract_params(llama(rope=OWN_ROPES['clex'])),
    _language_model('learned'), _language_model('rope'),
], ids=['llama', 'clex', 'decoder-learned', 'decoder-rope'])
def test_every_parameter_has_a_rule_and_every_matrix_is_cut(params):
  for path, x in _paths(params).items():
    axes = partition.rule_of(path)
    assert len(axes) <= x.ndim, path
    if x.ndim == 2 and 'position' not in path and 'clex' not in path:
      assert sorted(axes) == ['fsdp', 'tensor'], path
    elif x.ndim == 1:
      assert axes == (), path


def test_heads_and_hidden_features_go_over_tensor():
  # A tensor axis needs one sum over devices for attention and one for the MLP: what
  # leads out of the stream is cut by its outputs, what leads back by its inputs.
  for name in ('query', 'key', 'value', 'gate', 'up'):
    assert partition.rule_of(f'layer_3/{name}/kernel')[1] == 'tensor'
  for name in ('output', 'down'):
    assert partition.rule_of(f'layer_3/{name}/kernel')[0] == 'tensor'
  for name in ('query', 'key', 'value', 'mlp_hidden'):
    assert partition.rule_of(f'decoder/layer_3/{name}/kernel')[1] == 'tensor'
  for name in ('output', 'mlp_output'):
    assert partition.rule_of(f'decoder/layer_3/{name}/kernel')[0] == 'tensor'


def test_a_parameter_without_a_rule_is_named():
  with pytest.raises(ValueError, match="'layer_0/extra/kernel'"):
    partition.rule_of('layer_0/extra/kernel')
  with pytest.raises(ValueError, match="'embeddings'"):
    partition.rule_of('embeddings')


@pytest.mark.parametrize('sizes', [(8, 1, 1), (-1, 2, 2), (1, 8, 1), (2, -1, 1)])
def test_a_mesh_is_of_all_devices(sizes):
  mesh = partition.make_mesh(*sizes)
  assert mesh.axis_names == ('data', 'fsdp', 'tensor') and mesh.size == 8
  for size, axis in zip(sizes, mesh.axis_names, strict=True):
    assert size in (-1, mesh.shape[axis])


@pytest.mark.parametrize('sizes', [(1, 1, 1), (3, 1, 1), (-1, 3, 1), (-1, -1, 1),
                                   (0, 8, 1), (-1, 16, 1), (-8, -1, 1)])
def test_a_mesh_that_is_not_is_refused(sizes):
  with pytest.raises(ValueError, match='does not fit the number of devices, 8'):
    partition.make_mesh(*sizes)


@pytest.mark.parametrize('outputs, cut', [(16, ('tensor', 'fsdp')), (6, 'tensor')])
def test_what_both_axes_do_not_divide_is_cut_by_the_first(outputs, cut):
  mesh = partition.make_mesh(1, 4, 2)
  params = {'layer_0': {'up': {
      'kernel_lora_b': jax.ShapeDtypeStruct((3, outputs), jnp.float32)}}}
  [found] = jax.tree.leaves(partition.shardings(params, mesh))
  assert found.spec == PartitionSpec(None, cut)
  params['layer_0']['up']['kernel_lora_b'] = jax.ShapeDtypeStruct((3, 5), jnp.float32)
  with pytest.raises(ValueError, match=r'tensor of 2 .* layer_0/up/kernel_lora_b'):
    partition.shardings(params, mesh)


def test_a_mesh_that_does_not_divide_a_parameter_names_it():
  with pytest.raises(ValueError, match=r'tensor of 2 .* embedding \(23, 12\)'):
    partition.shardings(abstract_params(llama()), partition.make_mesh(4, 1, 2))


def test_moments_of_an_optimizer_are_cut_as_their_parameters():
  params = abstract_params(llama(**EVEN))
  mesh = partition.make_mesh(2, 2, 2)
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
  state = jax.eval_shape(lambda p: TrainState(
      jnp.zeros((), jnp.int32), p, optimizer.init(p)), params)
  found = partition.shardings_of_state(state, params, mesh)
  rules = partition.shardings(params, mesh)
  assert found.params == rules
  adam = found.opt_state[1][0]
  assert adam.mu == rules and adam.nu == rules
  whole = NamedSharding(mesh, PartitionSpec())
  assert found.step == whole and adam.count == whole


@pytest.mark.slow
@pytest.mark.parametrize('implementation, axes, fields', [
    *itertools.product(('plain', 'chunked'),
                       [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)], [{}]),
    ('splash', (2, 2, 2), {}),
    ('plain', (2, 2, 2), {'rope': None, 'alibi': True}),
    ('plain', (2, 2, 2), {'rope': OWN_ROPES['clex']}),
], ids=lambda x: '-'.join(map(str, x)) if isinstance(x, dict) else None)
def test_a_step_is_the_same_on_every_mesh(key, axes, implementation, fields):
  model = llama(**EVEN, implementation=implementation, **fields)
  params = variables_of(model)['params']
  stream = jax.random.randint(key, (8, 14), 0, 24)

  def loss(params, stream):
    windows = two_windows(stream, 10, 3)
    hidden = [model.apply({'params': params}, x, method='hidden') for x in windows]
    return chunked_two_window_loss(
        *hidden, params['embedding'], *windows, 3, 0.3, chunk_size=4)[0]

  step = jax.jit(jax.value_and_grad(loss))
  expected = step(params, stream)
  mesh = partition.make_mesh(*axes)
  shardings = partition.shardings(params, mesh)
  with jax.set_mesh(mesh):
    placed = jax.device_put(params, shardings)
    rows = jax.device_put(stream, NamedSharding(mesh, partition.ROWS))
    value, gradient = jax.jit(
        jax.value_and_grad(loss), out_shardings=(None, shardings))(placed, rows)
  np.testing.assert_allclose(value, expected[0], rtol=1e-5)
  chex.assert_trees_all_close(
      jax.device_get(gradient), jax.device_get(expected[1]), rtol=2e-4, atol=2e-5)


def test_rows_stay_on_their_devices():
  mesh = partition.make_mesh(2, 2, 2)
  with jax.set_mesh(mesh):
    kept = jax.jit(partition.over_batch)(jnp.ones((8, 3)))
  assert kept.sharding.spec == PartitionSpec(('data', 'fsdp'))
  x = jnp.ones((3, 5))
  assert partition.over_batch(x) is x  # no mesh, nothing to do


@pytest.mark.parametrize('rows, key_heads, apart', [
    (4, 2, (2, 1)),  # each device its rows and heads
    (3, 2, (3, 2)), (4, 1, (4, 1)),  # what the mesh does not divide
])
def test_devices_attend_by_their_own_rows_and_heads(rows, key_heads, apart):
  seen = []

  def attend(queries, keys, values):
    seen.append((keys.shape[0], keys.shape[2]))
    return causal_attention(queries, keys, values)

  shapes = (rows, 6, 4, 3), (rows, 6, key_heads, 3), (rows, 6, key_heads, 3)
  inputs = [jax.random.normal(jax.random.key(i), x) for i, x in enumerate(shapes)]
  mesh = jax.make_mesh((2, 1, 2), partition.AXES, axis_types=(AxisType.Auto,) * 3,
                       devices=jax.devices()[:4])
  with jax.set_mesh(mesh):
    found = jax.jit(functools.partial(partition.over_heads, attend))(*inputs)
  assert seen == [apart]
  np.testing.assert_allclose(found, causal_attention(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('by_row', [False, True])
def test_devices_have_the_slopes_and_positions_of_their_own_heads_and_rows(by_row):
  seen = []

  def attend(queries, keys, values, slopes, positions):
    seen.append((slopes.shape, positions.shape))
    return causal_attention(queries, keys, values, slopes=slopes, positions=positions)

  inputs = [jax.random.normal(jax.random.key(i), (4, 6, 4, 3)) for i in range(3)]
  slopes = jnp.array([1.0, 0.5, 0.25, 0.125])
  positions = np.array([0, 1, 3, 6, 10, 15])
  if by_row:
    positions = positions * np.arange(1, 5)[:, None]
  mesh = jax.make_mesh((2, 1, 2), partition.AXES, axis_types=(AxisType.Auto,) * 3,
                       devices=jax.devices()[:4])
  with jax.set_mesh(mesh):
    found = jax.jit(functools.partial(partition.over_heads, attend))(
        *inputs, slopes=slopes, positions=positions)
  assert seen == [((2,), (2, 6) if by_row else (6,))]
  expected = causal_attention(*inputs, slopes=slopes, positions=positions)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('length, shifted', [(600, None), (1200, Shifted(600))])
def test_a_model_on_several_tpus_attends_by_their_kernel(length, shifted):
  model = llama(**EVEN | {'head_width': 64}, dtype=jnp.bfloat16, shifted=shifted)
  mesh = AbstractMesh((2, 2, 2), partition.AXES, (AxisType.Auto,) * 3,
                      abstract_device=AbstractDevice('TPU v5 lite', 1, 'tpu'))
  params = abstract_params(model)
  placed = jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=where), params, partition.shardings(params, mesh))
  tokens = jax.ShapeDtypeStruct(
      (4, length), jnp.int32, sharding=NamedSharding(mesh, partition.ROWS))
  loss = lambda params, x: model.apply({'params': params}, x).sum()
  with jax.sharding.use_abstract_mesh(mesh):
    exported = jax.export.export(
        jax.jit(jax.grad(loss)), platforms=['tpu'])(placed, tokens)
  assert exported.mlir_module().count('tpu_custom_call') >= 3
