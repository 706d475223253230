"""Adapters change what they should, and nothing else."""

import functools
import sys

import chex
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np
import optax
import pytest

from tests.llamas import llama, V, variables_of
from vvlen.models.generation import generate
from vvlen.models.llama import abstract_params
from vvlen.models.llama.layers import stacked
from vvlen.models.llama.lora import (
    add_adapters,
    ATTENTION,
    EMBEDDINGS_AND_NORMS,
    join,
    LINEAR,
    LONG_LORA,
    LONG_QLORA,
    Lora,
    merged,
    split,
    with_adapters,
)
from vvlen.models.llama.model import Llama
from vvlen.sharding import mesh as partition
from vvlen.training import checkpoint
from vvlen.training.optimizer import adamw
from vvlen.training.step import init_state, Problem, train_step, TrainState

qwix = pytest.importorskip('qwix', reason="needs qwix: pip install '.[lora]'")

TOKENS = np.arange(14).reshape(2, 7) * 5 % V
KEY = jax.random.key(7)
LORA = Lora(3, 6.0)


def _model(**fields):
  """Returns a model and its parameters, the same in both layouts."""
  model = llama(width=64, **fields)
  params = variables_of(llama(width=64), scale=0.1)['params']
  return model, stacked(params) if model.scan_layers else params


def _adapted(lora, **fields):
  """Returns a model with adapters, its parameters, and their two parts.

  B is not 0, so that A has gradients.
  """
  model, base = _model(**fields)
  params = add_adapters(model, lora, base, KEY)
  trained, frozen = split(lora, params)
  moved = jax.tree_util.tree_map_with_path(
      lambda path, x: x + 0.2 * jnp.sin(jnp.arange(x.size).reshape(x.shape))
      if path[-1].key.endswith('lora_b') else x, trained)
  return with_adapters(model, lora), join(moved, frozen), moved, frozen


@pytest.mark.slow
@pytest.mark.parametrize('fields', [
    {}, {'remat': True}, {'scan_layers': True}, {'scan_layers': True, 'remat': True},
    {'dtype': jnp.bfloat16}, {'scan_layers': True, 'dtype': jnp.bfloat16},
], ids=str)
def test_adapters_begin_as_the_model(fields):
  model, base = _model(**fields)
  params = add_adapters(model, LORA, base, KEY)
  adapted = with_adapters(model, LORA, training=True)
  apply = lambda model, params: jax.jit(functools.partial(
      model.apply, method='hidden'))({'params': params}, TOKENS)
  found = apply(adapted, params)
  np.testing.assert_array_equal(found, apply(model, base))
  assert found.dtype == fields.get('dtype', jnp.float32)
  chex.assert_trees_all_equal(merged(LORA, params), base)


@pytest.mark.slow
@pytest.mark.parametrize('quantized, fields', [
    (None, {}), (None, {'scan_layers': True, 'remat': True}), ('nf4', {'remat': True}),
    ('nf4', {'scan_layers': True}), ('int8', {}), ('int8', {'scan_layers': True}),
], ids=str)
def test_merged_weights_do_the_same(quantized, fields):
  lora = Lora(3, 6.0, quantized=quantized)
  adapted, params, _, _ = _adapted(lora, **fields)
  plain, base = _model(**fields)
  own = {'params': merged(lora, params)}
  expected = jax.jit(plain.apply)(own, TOKENS)
  found = jax.jit(adapted.apply)({'params': params}, TOKENS)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  before = jax.jit(plain.apply)({'params': base}, TOKENS)
  assert abs(found - before).max() > 0.05  # adapters do something
  if quantized == 'nf4' and plain.scan_layers:
    after = generate(adapted, {'params': params}, TOKENS, 3)
    np.testing.assert_array_equal(after, generate(plain, own, TOKENS, 3))


def test_a_key_gives_the_same_adapters_in_both_layouts():
  one = add_adapters(*_with(LORA, {}), KEY)
  other = add_adapters(*_with(LORA, {'scan_layers': True}), KEY)
  chex.assert_trees_all_equal(stacked(one), other)
  a = one['layer_1']['down']['kernel_lora_a']
  assert a.shape == (10, 3) and 0.2 < abs(a).max() < 10**-0.5
  assert not np.array_equal(a, one['layer_0']['down']['kernel_lora_a'])


def _with(lora, fields):
  model, base = _model(**fields)
  return model, lora, base


@pytest.mark.slow
@pytest.mark.parametrize(
    'lora', [LORA, Lora(3, 6.0, targets=ATTENTION)], ids=['linear', 'attention'])
def test_gradients_are_those_of_the_formula(lora):
  adapted, _, trained, frozen = _adapted(lora)
  plain = _model()[0]

  def by_hand(trained):
    flat = flatten_dict(join(trained, frozen), sep='/')
    for path in [path for path in flat if path.endswith('kernel_lora_a')]:
      a, b = flat.pop(path), flat.pop(path.replace('lora_a', 'lora_b'))
      flat[path.removesuffix('_lora_a')] += 2.0 * a @ b  # alpha / rank
    tree = {}
    for path, x in flat.items():
      *parents, last = path.split('/')
      functools.reduce(lambda d, k: d.setdefault(k, {}), parents, tree)[last] = x
    return jnp.sin(plain.apply({'params': tree}, TOKENS)).sum()

  loss = lambda trained: jnp.sin(
      adapted.apply({'params': join(trained, frozen)}, TOKENS)).sum()
  found, expected = (jax.jit(jax.grad(x))(trained) for x in (loss, by_hand))
  assert len(flatten_dict(found)) == 2 * 2 * len(lora.targets)
  chex.assert_trees_all_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('quantized, bound, fields', [
    ('nf4', 0.028, {}), ('int8', 0.003, {}), ('nf4', 0.028, {'scan_layers': True}),
    ('int8', 0.003, {'scan_layers': True}),
], ids=str)
def test_quantized_weights_are_close_and_all_adapters_learn(fields, quantized, bound):
  lora = Lora(3, 6.0, quantized=quantized)
  model, base = _model(**fields)
  params = add_adapters(model, lora, base, KEY)
  adapted = with_adapters(model, lora)
  expected = model.apply({'params': base}, TOKENS)
  found = jax.jit(adapted.apply)({'params': params}, TOKENS)
  assert 0 < abs(found - expected).max() < bound < abs(expected).max() / 10
  _, _, trained, frozen = _adapted(lora, **fields)
  loss = lambda x: jnp.sin(
      adapted.apply({'params': join(x, frozen)}, TOKENS)).sum()
  for path, x in flatten_dict(jax.jit(jax.grad(loss))(trained), sep='/').items():
    assert np.isfinite(x).all() and np.any(x), path


@pytest.mark.slow
def test_a_kernel_of_nf4_has_a_scale_for_64_inputs_and_of_int8_for_an_output():
  for quantized, rows in (('nf4', 2), ('int8', 1)):
    lora = Lora(2, 4.0, targets=('query',), quantized=quantized)
    model = llama(width=128)
    params = add_adapters(model, lora, variables_of(model)['params'], KEY)
    # All projections are quantized, not only those with adapters.
    scales = {'query': (rows, 24), 'gate': (rows, 10), 'down': (1, 128)}
    for name, shape in scales.items():
      array = params['layer_0'][name]['kernel'].array
      assert array.scale.shape == shape, name
    assert str(array.qvalue.dtype) == {'nf4': 'uint4', 'int8': 'int8'}[quantized]
  kernel = jnp.array(variables_of(model)['params']['layer_0']['query']['kernel'])
  expected = jnp.abs(kernel).max(0, keepdims=True) / 127.5
  np.testing.assert_allclose(
      params['layer_0']['query']['kernel'].array.scale, expected, rtol=0.01)


def test_only_adapters_and_what_is_named_is_trained():
  size = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
  model, base = _model()
  sizes = {'query': 64 + 24, 'key': 64 + 12, 'value': 64 + 12, 'output': 24 + 64}
  attention = 2 * 3 * sum(sizes.values())
  for targets, expected in ((ATTENTION, attention), (LINEAR, attention + 2 * 3 * 222)):
    lora = Lora(3, 6.0, targets=targets)
    params = add_adapters(model, lora, base, KEY)
    trained, frozen = split(lora, params)
    assert size(trained) == expected
    chex.assert_trees_all_equal(frozen, base)
    chex.assert_trees_all_equal(join(trained, frozen), params)
  lora = Lora(3, 6.0, targets=ATTENTION, also=EMBEDDINGS_AND_NORMS)
  trained, frozen = split(lora, add_adapters(model, lora, base, KEY))
  assert size(trained) == attention + 64 * (V + 5)
  assert all(path[-1] == 'kernel' for path in flatten_dict(frozen))


@pytest.mark.slow
def test_training_leaves_every_frozen_byte_as_it_was(tmp_path):
  lora = Lora(3, 6.0, 0.1, targets=ATTENTION, quantized='nf4', also=('mlp_norm',))
  model, base = _model(scan_layers=True)
  params = add_adapters(model, lora, base, KEY)
  start, frozen = split(lora, params)
  before = [np.asarray(x).tobytes() for x in jax.tree.leaves(frozen)]
  adapted = with_adapters(model, lora, training=True)

  def loss(trained, key):
    logits = adapted.apply(
        {'params': join(trained, frozen)}, TOKENS, rngs={'dropout': key})
    return optax.softmax_cross_entropy_with_integer_labels(
        logits[:, :-1], TOKENS[:, 1:]).mean(), {}

  problem = Problem(init=lambda key: start, sample=lambda key, step: key, loss=loss,
                    optimizer=adamw(0.01, 6))
  step = jax.jit(functools.partial(train_step, problem))
  state, losses = init_state(problem, KEY), []
  moments = sum(x.size for x in jax.tree.leaves(state.opt_state) if x.ndim)
  assert moments == 2 * sum(x.size for x in jax.tree.leaves(start))
  for number in range(6):
    if number == 3:
      checkpoint.save(tmp_path, 3, state)
    state, metrics = step(state, jax.random.key(number))
    losses.append(float(metrics['loss']))
  assert losses[-1] < losses[0] - 0.01
  assert all(np.any(x != y) for x, y in zip(
      jax.tree.leaves(start), jax.tree.leaves(state.params), strict=True))
  assert before == [np.asarray(x).tobytes() for x in jax.tree.leaves(frozen)]
  like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=x.sharding), state)
  _, resumed = checkpoint.restore(tmp_path, like)
  resumed = TrainState(*resumed)
  for number in range(3, 6):
    resumed, _ = step(resumed, jax.random.key(number))
  chex.assert_trees_all_equal(resumed, state)


@pytest.mark.slow
def test_dropout_is_of_training_alone():
  lora = Lora(3, 6.0, dropout=0.5)
  _, params, _, _ = _adapted(lora, scan_layers=True)
  model = _model(scan_layers=True)[0]
  adapted = with_adapters(model, lora, training=True)
  draw = jax.jit(lambda key: adapted.apply(
      {'params': params}, TOKENS, rngs={'dropout': key}))
  apply = lambda i: draw(jax.random.key(i))
  assert abs(apply(0) - apply(1)).max() > 0.01
  np.testing.assert_array_equal(apply(0), apply(0))
  expected = with_adapters(model, lora).apply({'params': params}, TOKENS)
  # The mean over masks is the model without dropout, to first order.
  mean = sum(apply(i) for i in range(40)) / 40
  assert abs(mean - expected).mean() < 0.3 * abs(apply(0) - expected).mean()


@pytest.mark.slow
@pytest.mark.parametrize('quantized, fields', [
    (None, {}), ('nf4', {'scan_layers': True, 'remat': True})], ids=str)
def test_adapters_are_the_same_on_a_mesh(quantized, fields):
  even = dict(vocab_size=24, width=16, mlp_width=24, num_heads=8, num_key_heads=8,
              head_width=4)
  lora = Lora(3, 6.0, quantized=quantized)
  model = llama(**even, **fields)
  params = variables_of(llama(**even), scale=0.3)['params']
  base = stacked(params) if model.scan_layers else params
  tokens = jax.random.randint(KEY, (8, 7), 0, 24)
  adapted = with_adapters(model, lora)

  def gradient(trained, frozen, tokens):
    return jax.grad(lambda x: jnp.sin(adapted.apply(
        {'params': join(x, frozen)}, tokens)).sum())(trained)

  params = add_adapters(model, lora, base, KEY)
  expected = jax.jit(gradient)(*split(lora, params), tokens)
  mesh = partition.make_mesh(2, 2, 2)
  with jax.set_mesh(mesh):
    placed = jax.device_put(base, partition.shardings(base, mesh))
    params = add_adapters(
        model, lora, placed, KEY, functools.partial(partition.shardings, mesh=mesh))
    rows = jax.device_put(tokens, NamedSharding(mesh, partition.ROWS))
    found = jax.jit(gradient)(*split(lora, params), rows)
  chex.assert_trees_all_close(
      jax.device_get(found), jax.device_get(expected), rtol=1e-3, atol=1e-4)
  layer = params['layers'] if model.scan_layers else params['layer_1']
  axes = lambda x: x.sharding.spec[-2:]
  for name, kernel in (('up', ('fsdp', 'tensor')), ('down', ('tensor', 'fsdp'))):
    assert axes(layer[name]['kernel_lora_a']) == (kernel, None)
    assert axes(layer[name]['kernel_lora_b']) == (None, kernel[::-1])
    own = layer[name]['kernel']
    assert axes(own.array.qvalue if quantized else own) == kernel
    if quantized:
      assert axes(own.array.scale) == (None, kernel[::-1])
  # Of the four devices of fsdp and tensor, each has a quarter of all adapters.
  for path, x in flatten_dict(split(lora, params)[0]).items():
    assert 4 * x.addressable_shards[0].data.size == x.size, path


@pytest.mark.parametrize('fields, message', [
    ({'targets': ()}, r'targets must name one or more of query.*: \(\)'),
    ({'targets': ('q_proj',)}, r"targets must name .*: \('q_proj',\)"),
    ({'rank': 0}, 'rank must be positive'),
    ({'rank': 10}, 'less than 10, .* of gate: 10'),
    ({'alpha': 0.0}, 'alpha must be positive'),
    ({'dropout': 1.0}, r'dropout must be in \[0, 1\)'),
    ({'quantized': 'nf3'}, "quantized must be None, nf4 or int8: 'nf3'"),
])
def test_adapters_that_cannot_be_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    with_adapters(llama(), Lora(**{'rank': 2, 'alpha': 4.0, **fields}))


@pytest.mark.slow
def test_what_cannot_be_trained_is_refused():
  model, base = _model()
  params = add_adapters(model, LORA, base, KEY)
  with pytest.raises(ValueError, match="no parameter is named 'clex'"):
    split(Lora(3, 6.0, also=('clex',)), params)
  quantized = Lora(3, 6.0, quantized='int8', also=('gate',))
  with pytest.raises(ValueError, match='layer_0/gate/kernel is quantized'):
    split(quantized, add_adapters(model, quantized, base, KEY))
  with pytest.raises(ValueError, match='are not of the model: embedding'):
    add_adapters(model, LORA, {**base, 'embedding': base['embedding'][1:]}, KEY)
  with pytest.raises(ValueError, match='are not of the model: layer_1'):
    add_adapters(
        model, LORA, {k: x for k, x in base.items() if k != 'layer_1'}, KEY)


def test_a_pattern_that_matches_nothing_is_refused(monkeypatch):
  # qwix itself gives no error then, and makes no adapters.
  rule = qwix.LoraRule
  monkeypatch.setattr(qwix, 'LoraRule', lambda module_path, **fields: rule(
      module_path=module_path.replace('down', 'downward'), **fields))
  model, base = _model()
  with pytest.raises(ValueError, match=r'^qwix made 12 adapters, not 14$'):
    add_adapters(model, LORA, base, KEY)
  monkeypatch.setattr(qwix, 'LoraRule', lambda module_path, **fields: rule(
      module_path='nothing', **fields))
  with pytest.raises(ValueError, match=r'^qwix made 0 adapters, not 14$'):
    add_adapters(model, LORA, base, KEY)


def test_without_qwix_a_line_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, 'qwix', None)
  for lora in (LORA, Lora(3, 6.0, quantized='nf4')):
    with pytest.raises(ValueError, match=r"pip install 'vvlen\[lora\]'"):
      with_adapters(llama(), lora)


@pytest.mark.slow
def test_recipes_are_those_of_the_papers():
  assert (LONG_QLORA.rank, LONG_QLORA.alpha, LONG_QLORA.dropout) == (64, 16, 0.05)
  assert (LONG_QLORA.targets, LONG_QLORA.quantized) == (LINEAR, 'nf4')
  assert (LONG_LORA.rank, LONG_LORA.alpha, LONG_LORA.dropout) == (8, 16, 0)
  assert LONG_LORA.targets == ('query', 'key', 'value', 'output')
  assert LONG_LORA.also == EMBEDDINGS_AND_NORMS
  model = Llama(vocab_size=32_000, width=4096, mlp_width=11_008, num_layers=32,
                num_heads=32, num_key_heads=32, tied=False, scan_layers=True)
  params = abstract_params(with_adapters(model, LONG_QLORA))
  trained, frozen = split(LONG_QLORA, params)
  # As PEFT counts for Llama-2-7B.
  assert sum(x.size for x in jax.tree.leaves(trained)) == 159_907_840
  assert frozen['layers']['down']['kernel'].array.scale.shape == (32, 172, 4096)
