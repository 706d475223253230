"""Adapters are read back as they were saved, by vvlen and by PEFT."""

import itertools
import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

from tests.cases import mostly_slow
from tests.llamas import llama, save_llama, V, variables_of
from vvlen.models.llama import adapter_base
from vvlen.models.llama.adapters import load_adapters, save_adapters
from vvlen.models.llama.layers import stacked, unstacked
from vvlen.models.llama.lora import (
    add_adapters,
    ATTENTION,
    EMBEDDINGS_AND_NORMS,
    join,
    Lora,
    merged,
    split,
    with_adapters,
)
from vvlen.models.rope import Dynamic, Eabf, Linear, Llama3, LongRope, Ntk, Rope, Yarn
from vvlen.sharding import mesh as partition

pytest.importorskip('qwix', reason="needs qwix: pip install '.[lora]'")

TOKENS = np.arange(14).reshape(2, 7) * 5 % V
KEY = jax.random.key(7)
LORA = Lora(3, 6.0, 0.25)
LONG = Lora(3, 6.0, targets=ATTENTION, also=EMBEDDINGS_AND_NORMS)


def _trained(model, base, lora):
  """Returns parameters with adapters, all that is trained of which has moved."""
  trained, frozen = split(lora, add_adapters(model, lora, base, KEY))
  leaves, treedef = jax.tree.flatten(trained)
  keys = jax.random.split(KEY, len(leaves))
  moved = [x + 0.1 * jax.random.normal(k, x.shape)
           for k, x in zip(keys, leaves, strict=True)]
  return join(jax.tree.unflatten(treedef, moved), frozen)


@pytest.mark.parametrize('lora, tied', mostly_slow([
    (LORA, False), (LONG, True), (LONG, False), (Lora(2, 4.0, quantized='nf4'), True),
    (Lora(2, 4.0, quantized='int8', also=('embedding', 'final_norm')), True),
], 1), ids=['lora', 'long_lora_tied', 'long_lora', 'nf4', 'int8'])
def test_adapters_are_loaded_as_they_were_saved(tmp_path, lora, tied):
  model = llama(tied=tied)
  base = variables_of(model)['params']
  params = _trained(model, base, lora)
  save_adapters(tmp_path, model, lora, params)
  found, loaded = load_adapters(tmp_path, model, base, quantized=lora.quantized)
  assert (found.rank, found.alpha, found.dropout, found.quantized) == (
      lora.rank, lora.alpha, lora.dropout, lora.quantized)
  assert set(found.targets) == set(lora.targets) and set(found.also) == set(lora.also)
  chex.assert_trees_all_equal(loaded, params)
  # Neither does the file depend on the layout, nor the layout on the file.
  deep = model.clone(scan_layers=True)
  _, loaded = load_adapters(tmp_path, deep, stacked(base), quantized=lora.quantized)
  if lora.quantized is None:
    chex.assert_trees_all_equal(unstacked(loaded), params)
  save_adapters(tmp_path / 'deep', deep, lora, loaded)
  for name in ('adapter_config.json', 'base.json', 'adapter_model.safetensors'):
    one, other = ((folder / name).read_bytes() for folder in (
        tmp_path, tmp_path / 'deep'))
    assert one == other, name


def test_files_have_the_names_of_peft(tmp_path):
  model = llama(tied=False)
  params = _trained(model, variables_of(model)['params'], LONG)
  save_adapters(tmp_path, model, LONG, params, base='some/model')
  config = json.loads((tmp_path / 'adapter_config.json').read_text())
  assert config['peft_type'] == 'LORA' and config['r'] == 3
  assert config['base_model_name_or_path'] == 'some/model'
  assert config['target_modules'] == ['q_proj', 'k_proj', 'v_proj', 'o_proj']
  assert config['modules_to_save'] == [
      'embed_tokens', 'input_layernorm', 'norm', 'post_attention_layernorm']
  tensors = safetensors.load_file(tmp_path / 'adapter_model.safetensors')
  layer = 'base_model.model.model.layers.1'
  one = params['layer_1']['key']
  np.testing.assert_array_equal(
      tensors[f'{layer}.self_attn.k_proj.lora_A.weight'], one['kernel_lora_a'].T)
  np.testing.assert_array_equal(
      tensors[f'{layer}.self_attn.k_proj.lora_B.weight'], one['kernel_lora_b'].T)
  np.testing.assert_array_equal(
      tensors['base_model.model.model.embed_tokens.weight'], params['embedding'])
  assert tensors[f'{layer}.input_layernorm.weight'].shape == (12,)
  assert len(tensors) == 2 * (2 * 4 + 2) + 2


def _spoil(folder, model, base, what):
  """Changes files, or the model, so that they do not fit each other."""
  config = folder / 'adapter_config.json'
  fields = json.loads(config.read_text())
  path = folder / 'adapter_model.safetensors'
  tensors = safetensors.load_file(path)
  first = sorted(tensors)[0]
  if what == 'weights':
    base = variables_of(model, seed=1)['params']
  elif what == 'layers':
    model = llama(num_layers=3)
    base = variables_of(model)['params'] | {'embedding': base['embedding']}
  elif what == 'width':
    model = llama(mlp_width=11)
    base = variables_of(model)['params'] | {'embedding': base['embedding']}
  elif what == 'targets':
    fields['target_modules'] = ['q_proj']
  elif what == 'rank':
    fields['r'] = 4
  elif what == 'missing':
    del tensors[first]
  elif what == 'unknown':
    fields['target_modules'].append('lm_head')
  elif what == 'kind':
    fields['peft_type'] = 'IA3'
  elif what == 'dora':
    fields['use_dora'] = True
  elif what == 'number':
    fields['r'] = 'three'
  elif what == 'cut':
    path.write_bytes(path.read_bytes()[:-5])
  config.write_text(json.dumps(fields))
  if what == 'missing':
    safetensors.save_file(tensors, path)
  return model, base


@pytest.mark.slow
@pytest.mark.parametrize('what, message', [
    ('weights', 'another model: its weights differ, first model.embed_tokens.weight'),
    ('layers', r'of another model: it has no base_model.model.model.layers.2'),
    ('width', r'of another model: layer_0/down/kernel_lora_a is \(10, 3\), not \(11'),
    ('targets', 'of another model: it has base_model.model.model.layers.0.mlp.down'),
    ('rank', r'of another model: .* is \(10, 3\), not \(10, 4\)'),
    ('missing', 'of another model: it has no base_model.model.model.layers.0.mlp.down'),
    ('unknown', r'target_modules must be a list of q_proj, .*: \[.*lm_head'),
    ('kind', "peft_type 'IA3' is not supported"),
    ('dora', 'use_dora True is not supported'),
    ('number', "r is not a number: 'three'"),
    ('cut', 'cut short'),
])
def test_adapters_of_another_model_are_refused(tmp_path, what, message):
  model = llama()
  base = variables_of(model)['params']
  save_adapters(tmp_path, model, LORA, _trained(model, base, LORA))
  model, base = _spoil(tmp_path, model, base, what)
  with pytest.raises(ValueError, match=message) as error:
    load_adapters(tmp_path, model, base)
  assert str(tmp_path) in str(error.value) and '\n' not in str(error.value)


def test_fields_that_change_the_computation_are_refused(tmp_path):
  model, lora = llama(), Lora(3, 6.0, targets=('query',))
  base = variables_of(model)['params']
  save_adapters(tmp_path, model, lora, _trained(model, base, lora))
  path = tmp_path / 'adapter_config.json'
  fields = json.loads(path.read_text())
  for name, value in [
      ('init_lora_weights', 'pissa'), ('init_lora_weights', 'pissa_niter_4'),
      ('init_lora_weights', 'olora'), ('init_lora_weights', 'loftq'),
      ('alora_invocation_tokens', [1, 2]), ('use_qalora', True), ('bias', 'lora_only'),
      ('layers_to_transform', 0), ('layers_to_transform', [0]),
      ('rank_pattern', {'q_proj': 4}), ('exclude_modules', 'k_proj'),
      ('of_a_newer_version', {'kind': 'x'})]:
    path.write_text(json.dumps({**fields, name: value}))
    with pytest.raises(ValueError) as error:
      load_adapters(tmp_path, model, base)
    assert str(error.value) == f'{path}: {name} {value!r} is not supported'
  for name, value in [
      ('init_lora_weights', 'gaussian'), ('init_lora_weights', False),
      ('loftq_config', {'loftq_bits': 4}), ('of_a_newer_version', None),
      ('use_dora', False), ('bias', 'none'), ('rank_pattern', {})]:
    path.write_text(json.dumps({**fields, name: value}))
    load_adapters(tmp_path, model, base)


@pytest.mark.parametrize('also', [('embedding',), ('embedding', 'attention_norm')])
def test_another_model_is_refused_where_norms_alone_are_frozen_in_full(tmp_path, also):
  lora = Lora(2, 4.0, quantized='nf4', also=also)
  for scan in (False, True):
    model = llama(scan_layers=scan)  # tied, so that it has no other embedding
    base, other = (variables_of(model, seed=i)['params'] for i in range(2))
    save_adapters(tmp_path, model, lora, _trained(model, base, lora))
    load_adapters(tmp_path, model, base, quantized='nf4')
    with pytest.raises(ValueError, match='of another model: its weights differ'):
      load_adapters(tmp_path, model, other, quantized='nf4')


# Kinds of other models -> the first name of a parameter that differs.
OTHERS = {
    'kernel': 'model.layers.1.mlp.up_proj.weight', 'norm': 'model.norm.weight',
    'last_row': 'model.embed_tokens.weight',
    'merged': 'model.layers.0.mlp.down_proj.weight'}


def _other(what, base, params):
  """Returns the parameters of a model that differs from the base in little."""
  base = jax.tree.map(lambda x: x, base)
  if what == 'kernel':
    layer = base['layer_1']['up']
    layer['kernel'] = 1.1 * layer['kernel']
  elif what == 'norm':
    base['final_norm']['scale'] = base['final_norm']['scale'].at[-1].add(1.0)
  elif what == 'last_row':
    base['embedding'] = base['embedding'].at[-1].add(1.0)
  elif what == 'merged':
    base = merged(LORA, params)
  return base


@pytest.mark.parametrize('quantized', mostly_slow([None, 'nf4'], 0))
@pytest.mark.parametrize('what', mostly_slow([*OTHERS], 0, 3))
@pytest.mark.parametrize('scan', mostly_slow([False, True], 0))
def test_a_model_that_differs_in_one_parameter_is_refused(
    tmp_path, what, scan, quantized):
  model = llama()
  base = variables_of(model)['params']
  params = _trained(model, base, LORA)
  save_adapters(tmp_path, model, LORA, params)
  other = _other(what, base, params)
  if scan:
    model, base, other = model.clone(scan_layers=True), stacked(base), stacked(other)
  load_adapters(tmp_path, model, base, quantized=quantized)
  with pytest.raises(ValueError) as error:
    load_adapters(tmp_path, model, other, quantized=quantized)
  assert str(error.value) == (f'{tmp_path} has adapters of another model: its weights '
                              f'differ, first {OTHERS[what]}')


@pytest.mark.slow
def test_all_weights_of_a_quantized_model_are_compared(tmp_path):
  lora = Lora(2, 4.0, quantized='nf4', also=EMBEDDINGS_AND_NORMS)
  model = llama()
  base = variables_of(model)['params']
  save_adapters(tmp_path, model, lora, _trained(model, base, lora),
                identity=adapter_base.describe(model, base))
  for quantized in ('nf4', 'int8', None):
    load_adapters(tmp_path, model, base, quantized=quantized)
    for what in ('kernel', 'norm', 'last_row'):
      with pytest.raises(ValueError, match=rf'first {re.escape(OTHERS[what])}$'):
        load_adapters(
            tmp_path, model, _other(what, base, None), quantized=quantized)


@pytest.mark.slow
def test_without_its_identity_embeddings_and_norms_of_a_quantized_model_are(tmp_path):
  lora, model = Lora(2, 4.0, quantized='nf4'), llama()
  base = variables_of(model)['params']
  save_adapters(tmp_path, model, lora, _trained(model, base, lora))
  names = json.loads((tmp_path / 'base.json').read_text())['checksums']
  assert [*names] == ['model.embed_tokens.weight', *(
      f'model.layers.{i}.{name}_layernorm.weight' for i in range(2)
      for name in ('input', 'post_attention')), 'model.norm.weight']
  for quantized in ('nf4', 'int8', None):
    load_adapters(tmp_path, model, base, quantized=quantized)
  with pytest.raises(ValueError, match=r'first model\.embed_tokens\.weight$'):
    load_adapters(tmp_path, model, _other('last_row', base, None))


@pytest.mark.slow
def test_few_rows_of_a_large_model_are_gathered(monkeypatch):
  gathered = []

  def gather(x, transposed):
    gathered.append(x.shape)
    return np.asarray(x)

  monkeypatch.setattr(adapter_base, 'gather', gather)
  wide = dict(vocab_size=3001, width=64, mlp_width=200)
  for scan in (False, True):
    model = llama(**wide, scan_layers=scan)
    params = variables_of(model)['params']
    assert len(adapter_base.describe(model, params)['checksums']) == 2 * 9 + 2
    rows = [shape[-2] for shape in gathered if len(shape) == 2 + scan]
    assert max(rows) == 16 and min(rows) > 8
    # Scales of norms are gathered whole.
    assert {shape[-1] for shape in gathered if len(shape) == 1 + scan} == {64}
    gathered.clear()


@pytest.mark.slow
def test_checksums_are_the_same_on_any_mesh():
  mesh = partition.make_mesh(data=1, fsdp=4, tensor=2)
  for scan in (False, True):
    model = llama(width=64, mlp_width=200, vocab_size=1000, scan_layers=scan)
    params = variables_of(model)['params']
    apart = jax.device_put(params, partition.shardings(params, mesh))
    assert not apart['embedding'].is_fully_replicated
    assert adapter_base.describe(model, apart) == adapter_base.describe(model, params)


FACTORS = (1.0, 1.1, 1.5)
POSITIONS = [
    Rope(1e4), Rope(500.0), Rope(1e4, Linear(2.0)), Rope(1e4, Linear(4.0)),
    Rope(1e4, Ntk(2.0)), Rope(1e4, Dynamic(2.0, 8)), Rope(1e4, Dynamic(2.0, 16)),
    Rope(1e4, Yarn(2.0, 8)), Rope(1e4, Yarn(2.0, 16)), Rope(1e4, Llama3(2.0, 8)),
    Rope(1e4, LongRope(FACTORS, FACTORS, 8, 2.0)),
    Rope(1e4, Eabf(8)), Rope(1e4, Eabf(8, exempt_layers=0)), Rope(highest=64),
    Rope(highest=128), Rope(1e4, Linear(2.0), 64), 'alibi', None]


def test_adapters_know_the_positions_that_they_were_trained_with(tmp_path):
  base = variables_of(llama())['params']
  models = [llama(rope=None if x == 'alibi' else x, alibi=x == 'alibi')
            for x in POSITIONS]
  for number, model in enumerate(models):
    path = tmp_path / str(number) / 'base.json'
    path.parent.mkdir()
    path.write_text(json.dumps(adapter_base.describe(model, base)))
    for other, loaded in enumerate(models):
      if other == number:
        adapter_base.check(path, loaded.clone(max_length=99), base)
        continue
      with pytest.raises(ValueError, match='trained with other positions: ') as error:
        adapter_base.check(path, loaded, base)
      assert str(path.parent) in str(error.value) and '\n' not in str(error.value)
  # NTK is another base.
  adapter_base.check(
      tmp_path / '4/base.json', llama(rope=Rope(1e4 * 2.0 ** (6 / 4))), base)


def test_other_positions_are_refused_when_adapters_are_loaded(tmp_path):
  model = llama(rope=Rope(1e4, Linear(4.0)))
  base = variables_of(model)['params']
  save_adapters(tmp_path, model, LORA, _trained(model, base, LORA))
  load_adapters(tmp_path, model, base)
  with pytest.raises(ValueError) as error:
    load_adapters(tmp_path, model.clone(rope=Rope(1e4)), base)
  assert str(error.value) == (
      f'{tmp_path} has adapters that were trained with other positions: rope_scaling '
      "{'rope_type': 'linear', 'factor': 4.0}, and the model has None")


def test_adapters_know_the_norm_after_attention_of_their_training(tmp_path):
  # The first two have the same parameters.
  models = [llama(norm=norm) for norm in ('none', 'standardize', lambda x: x)]
  base = variables_of(models[0])['params']
  names = 'none', 'standardize', None
  for number, model in enumerate(models):
    folder = tmp_path / str(number)
    save_adapters(folder, model, LORA, _trained(model, base, LORA))
    for other, loaded in enumerate(models):
      if other == number:
        load_adapters(folder, loaded, base)
        continue
      with pytest.raises(ValueError) as error:
        load_adapters(folder, loaded, base)
      assert str(error.value) == (
          f'{folder} has adapters that were trained with another norm after attention: '
          f'{names[number]}, and the model has {names[other]}')
  # Older files do not name it.
  path = tmp_path / '0/base.json'
  known = json.loads(path.read_text())
  assert known.pop('norm') == 'none'
  path.write_text(json.dumps(known))
  load_adapters(path.parent, models[0], base)
  with pytest.raises(ValueError, match=r'another norm .*: none, .* has standardize'):
    load_adapters(path.parent, models[1], base)


def test_adapters_know_the_weights_of_the_norm_after_attention(tmp_path):
  model = llama(norm='layer_norm', rope=None)
  base = variables_of(model)['params']
  params = _trained(model, base, LORA)
  save_adapters(tmp_path, model, LORA, params)
  chex.assert_trees_all_equal(load_adapters(tmp_path, model, base)[1], params)
  base['layer_1']['post_attention_norm']['bias'] += 1
  with pytest.raises(ValueError, match=r'first .*\.1\.self_attn\.post_norm\.bias'):
    load_adapters(tmp_path, model, base)


@pytest.mark.parametrize('content', [
    {'checksum': 'a1'}, {'checksums': {}}, {'positions': {}}, {},
    {'checksums': [], 'positions': {}}])
def test_a_file_of_another_format_is_refused(tmp_path, content):
  path = tmp_path / 'base.json'
  path.write_text(json.dumps(content))
  model = llama()
  with pytest.raises(ValueError, match='without this file adapters are') as error:
    adapter_base.check(path, model, variables_of(model)['params'])
  assert str(path) in str(error.value) and '\n' not in str(error.value)


@pytest.mark.slow
def test_a_model_in_another_dtype_is_the_same_model(tmp_path):
  model = llama()
  base = variables_of(model)['params']
  save_adapters(tmp_path, model, LORA, _trained(model, base, LORA))
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), base)
  _, loaded = load_adapters(tmp_path, model, half)
  assert loaded['layer_0']['query']['kernel_lora_a'].dtype == jnp.float32
  assert loaded['layer_0']['query']['kernel'].dtype == jnp.bfloat16


def test_what_is_missing_is_named(tmp_path):
  model = llama()
  base = variables_of(model)['params']
  with pytest.raises(FileNotFoundError, match=r'has no adapter_config\.json'):
    load_adapters(tmp_path, model, base)
  lora = Lora(3, 6.0, also=('mlp_norm', 'gate'))
  params = add_adapters(model, lora, base, KEY)
  with pytest.raises(ValueError, match='gate cannot be saved with adapters'):
    save_adapters(tmp_path, model, lora, params)


def _oracles():
  """Returns torch, transformers and peft, or skips the test."""
  return [pytest.importorskip(
      module, reason=f"compares with {name}: pip install '.[oracle]'")
          for module, name in (('torch', 'PyTorch'), ('transformers', 'transformers'),
                               ('peft', 'PEFT'))]


@pytest.mark.slow
@pytest.mark.parametrize(
    'lora, tied', [*itertools.product([LORA, LONG], [True, False])],
    ids=['lora-tied', 'lora', 'long_lora-tied', 'long_lora'])
def test_peft_computes_the_same(tmp_path, lora, tied):
  torch, transformers, peft = _oracles()
  folder, model, variables = save_llama(tmp_path / 'model', tied=tied)
  params = _trained(model, variables['params'], lora)
  save_adapters(tmp_path / 'adapters', model, lora, params, base=str(folder))
  expected = with_adapters(model, lora).apply({'params': params}, TOKENS)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      folder, dtype=torch.float32)
  plain = theirs(torch.tensor(TOKENS)).logits.detach().numpy()
  adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / 'adapters').eval()
  found = adapted(torch.tensor(TOKENS)).logits.detach().numpy()
  assert abs(found - plain).max() > 0.1
  np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
  # And back: what PEFT writes is loaded.
  adapted.save_pretrained(tmp_path / 'theirs')
  found, loaded = load_adapters(
      tmp_path / 'theirs', model, variables['params'])
  assert set(found.also) == set(lora.also)
  chex.assert_trees_all_equal(loaded, params)


@pytest.mark.slow
@pytest.mark.parametrize('stretched', [Linear(4.0), Ntk(4.0), Yarn(4.0, 8)])
def test_peft_needs_the_positions_that_the_file_names(tmp_path, stretched):
  torch, transformers, peft = _oracles()
  folder, model, variables = save_llama(tmp_path / 'model', rope=Rope(1e4))
  model = model.clone(rope=Rope(1e4, stretched), max_length=32)
  params = _trained(model, variables['params'], LORA)
  save_adapters(tmp_path / 'adapters', model, LORA, params, base=str(folder))
  expected = with_adapters(model, LORA).apply({'params': params}, TOKENS)

  def theirs():
    base = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / 'adapters').eval()
    return adapted(torch.tensor(TOKENS)).logits.detach().numpy()

  assert abs(theirs() - expected).max() > 0.01
  positions = json.loads((tmp_path / 'adapters/base.json').read_text())['positions']
  config = json.loads((folder / 'config.json').read_text())
  (folder / 'config.json').write_text(json.dumps(
      config | positions | {'max_position_embeddings': model.max_length}))
  np.testing.assert_allclose(theirs(), expected, rtol=2e-4, atol=2e-4)
