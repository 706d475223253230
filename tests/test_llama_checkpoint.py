"""Checkpoints in hub layout: what is saved is loaded, and what is wrong is told."""

import contextlib
import functools
import json
import weakref

import chex
from etils import epath
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from tests.llamas import llama, ROPES, V, variables_of
from vvlen import partition
from vvlen.models import llama as checkpoints
from vvlen.models import safetensors_file
from vvlen.models.llama import load_checkpoint, read_model, save_checkpoint
from vvlen.models.llama_config import config_of, model_of
from vvlen.models.llama_model import check_model
from vvlen.models.rope import Dynamic, Linear, Llama3, Rope, Yarn

TOKENS = jnp.arange(14).reshape(2, 7)
_DEEP = '[' * 100_000


@pytest.fixture
def saved(tmp_path):
  """A checkpoint of one file, its model and variables."""
  model = llama(tied=False)
  variables = variables_of(model)
  save_checkpoint(tmp_path / 'one', model, variables)
  return tmp_path / 'one', model, variables


@pytest.fixture
def sharded(tmp_path, monkeypatch):
  """A checkpoint of several files."""
  monkeypatch.setattr(checkpoints, '_SAVED_FILE_BYTES', 2000)
  model = llama(tied=False)
  variables = variables_of(model)
  save_checkpoint(tmp_path / 'several', model, variables)
  return tmp_path / 'several', model, variables


def _edit(folder, **fields):
  path = folder / 'config.json'
  config = {**json.loads(path.read_text()), **fields}
  path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def _edit_tensors(folder, change):
  path = folder / 'model.safetensors'
  tensors = safetensors.load_file(path)
  change(tensors)
  safetensors.save_file(tensors, path)


@pytest.mark.parametrize('fields', [
    {}, {'tied': False}, {'attention_bias': True, 'output_bias': True},
    {'attention_bias': True}, {'mlp_bias': True}, {'head_width': None, 'width': 16},
    *({'rope': rope} for rope in ROPES.values()),
], ids=lambda x: '-'.join(map(str, x)))
def test_what_is_saved_is_loaded(tmp_path, fields):
  model = llama(**fields)
  variables = variables_of(model)
  save_checkpoint(tmp_path, model, variables)
  found, loaded = load_checkpoint(tmp_path)
  assert found == model.clone(head_width=model.head_width or 4)
  chex.assert_trees_all_equal(loaded, variables)
  logits = found.apply(loaded, TOKENS)
  chex.assert_trees_all_equal(logits, model.apply(variables, TOKENS))


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dtypes_are_kept(tmp_path, dtype):
  model = llama()
  variables = variables_of(model, dtype=dtype)
  save_checkpoint(tmp_path, model, variables)
  _, loaded = load_checkpoint(tmp_path)
  chex.assert_trees_all_equal_shapes_and_dtypes(loaded, variables)
  chex.assert_trees_all_equal(loaded, variables)
  _, cast = load_checkpoint(tmp_path, dtype=jnp.float32)
  exact = jax.tree.map(lambda x: x.astype(jnp.float32), variables)
  chex.assert_trees_all_equal_dtypes(cast, exact)
  chex.assert_trees_all_equal(cast, exact)


def test_several_files_are_as_good_as_one(saved, sharded):
  one, several = saved[0], sharded[0]
  assert len(list(several.glob('*.safetensors'))) > 2
  assert not (several / 'model.safetensors').exists()
  chex.assert_trees_all_equal(load_checkpoint(one)[1], load_checkpoint(several)[1])


def test_a_checkpoint_that_is_replaced_leaves_nothing_behind(sharded, monkeypatch):
  folder, model, variables = sharded
  monkeypatch.setattr(checkpoints, '_SAVED_FILE_BYTES', 2**31)
  doubled = jax.tree.map(lambda x: 2 * x, variables)
  save_checkpoint(folder, model, doubled)
  names = {path.name for path in folder.iterdir()}
  assert names == {'config.json', 'model.safetensors'}
  chex.assert_trees_all_equal(load_checkpoint(folder)[1], doubled)


class _Killed(Exception):
  """Stands for the end of a process."""


def _kill_after(patch, steps):
  """Lets a process end in its next change of the disk after so many, half done."""
  paths, left = type(epath.Path()), [steps]

  def count(name):
    real = getattr(paths, name)

    def counted(path, *arguments, **keywords):
      left[0] -= 1
      if left[0] < 0:
        if name.startswith('write'):
          real(path, arguments[0][:len(arguments[0]) // 2])
        raise _Killed
      return real(path, *arguments, **keywords)

    return counted

  for name in ('write_bytes', 'write_text', 'unlink', 'replace'):
    patch.setattr(paths, name, count(name))


@pytest.mark.parametrize('sizes', [(2000, 2**31), (2**31, 2000), (2000, 2000)])
def test_saving_that_is_cut_off_leaves_one_checkpoint_or_none(
    saved, tmp_path, monkeypatch, sizes
):
  like = saved[0]
  (like / 'tokenizer.json').write_text('{}')
  model = llama(num_layers=1)
  new_model = model.clone(epsilon=0.5)
  states = {'old': (model, variables_of(model)),
            'new': (new_model, variables_of(new_model, seed=1))}

  def save(folder, name, size):
    monkeypatch.setattr(checkpoints, '_SAVED_FILE_BYTES', size)
    save_checkpoint(folder, *states[name], like=like)

  def state_of(folder):
    try:
      model, variables = load_checkpoint(folder)
    except (FileNotFoundError, ValueError) as error:
      assert '\n' not in str(error)
      return 'none'
    found = [name for name, (known, values) in states.items() if known == model and all(
        jax.tree.leaves(jax.tree.map(np.array_equal, variables, values)))]
    return found[0] if found else 'parts of both'

  met = []
  while met[-1:] != ['new'] and len(met) < 100:
    folder = tmp_path / str(len(met))
    save(folder, 'old', sizes[0])
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(_Killed):
      _kill_after(patch, len(met))
      save(folder, 'new', sizes[1])
    met.append(state_of(folder))
  order = {'old': 0, 'none': 1, 'new': 2}
  assert set(met) == set(order) and met == sorted(met, key=order.__getitem__)
  # What was left is not in the way.
  whole = {path.name for path in folder.iterdir()}
  folder = tmp_path / str(met.index('none') - 1)
  assert list(folder.glob('.*'))
  save(folder, 'new', sizes[1])
  assert {path.name for path in folder.iterdir()} == whole
  assert state_of(folder) == 'new'


def test_processes_but_the_first_write_nothing_and_wait(tmp_path, monkeypatch):
  waited = []
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(multihost_utils, 'sync_global_devices', waited.append)
  model = llama()
  save_checkpoint(tmp_path / 'x', model, variables_of(model))
  assert waited == ['save_checkpoint'] and not (tmp_path / 'x').exists()


@pytest.mark.parametrize('axes', [(8, 1, 1), (2, 2, 2), (1, 4, 2), (1, 1, 8)])
def test_every_device_gets_its_part(tmp_path, axes):
  model = llama(vocab_size=24, width=16, mlp_width=24, num_heads=4, head_width=8)
  variables = variables_of(model)
  save_checkpoint(tmp_path, model, variables)
  mesh = partition.make_mesh(*axes)
  place = functools.partial(partition.shardings, mesh=mesh)
  _, loaded = load_checkpoint(tmp_path, place)
  chex.assert_trees_all_equal(loaded, variables)
  assert jax.tree.map(lambda x: x.sharding, loaded['params']) == place(loaded['params'])
  kernel = loaded['params']['layer_0']['gate']['kernel']
  assert kernel.addressable_shards[0].data.shape == (24 // axes[2], 16 // axes[1])


def test_shardings_may_be_one_or_a_tree(saved):
  folder, _, variables = saved
  one = NamedSharding(partition.make_mesh(8), PartitionSpec())
  _, loaded = load_checkpoint(folder, one)
  chex.assert_trees_all_equal(loaded, variables)
  assert {x.sharding for x in jax.tree.leaves(loaded)} == {one}
  tree = jax.tree.map(lambda _: one, variables)
  for shardings in (tree, tree['params']):
    _, loaded = load_checkpoint(folder, shardings)
    assert {x.sharding for x in jax.tree.leaves(loaded)} == {one}
  del tree['params']['embedding']
  with pytest.raises(ValueError, match=r'shardings .* of the parameters: embedding'):
    load_checkpoint(folder, tree)


def test_rows_are_read_for_the_devices_that_hold_them(saved, monkeypatch):
  folder, _, variables = saved
  read = []
  real = safetensors_file.read_rows

  def count(tensor, first, rows):
    read.append((tensor.name, first, rows))
    return real(tensor, first, rows)

  monkeypatch.setattr(safetensors_file, 'read_rows', count)
  mesh = jax.make_mesh((8,), ('rows',), axis_types=(jax.sharding.AxisType.Auto,))
  rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (['rows'], []))
  shardings = jax.tree.map(
      lambda x: rows if x.shape[0] % 8 == 0 else whole, variables['params'])
  _, loaded = load_checkpoint(folder, shardings)
  chex.assert_trees_all_equal(loaded, variables)
  # 24 query rows by three; each tensor that is whole on all devices is read once.
  queries = [x[1:] for x in read if x[0] == 'model.layers.1.self_attn.q_proj.weight']
  assert sorted(queries) == [(3 * i, 3) for i in range(8)]
  assert [x[1:] for x in read if x[0] == 'lm_head.weight'] == [(0, V)]


def test_at_most_one_tensor_is_on_the_host(sharded, monkeypatch):
  folder, *_ = sharded
  alive, most = {}, []
  real = safetensors_file.read_rows

  def track(tensor, first, rows):
    array = real(tensor, first, rows)
    alive[id(array)] = array.nbytes
    weakref.finalize(array, alive.pop, id(array))
    most.append(sum(alive.values()))
    return array

  monkeypatch.setattr(safetensors_file, 'read_rows', track)
  # To another dtype, so that no array of the file becomes the parameter itself.
  _, loaded = load_checkpoint(folder, dtype=jnp.bfloat16)
  sizes = sorted(4 * x.size for x in jax.tree.leaves(loaded))
  assert max(most) <= sizes[-1]


@pytest.mark.parametrize('style', ['older', 'newer'])
@pytest.mark.parametrize('kind', ROPES)
def test_both_styles_of_config_say_the_same(style, kind):
  rope = ROPES[kind]
  model = llama(rope=rope)
  config = json.loads(json.dumps(config_of(model, 'float32')))
  if style == 'newer':
    scaling = config.pop('rope_scaling') or {'rope_type': 'default'}
    config['rope_parameters'] = {'rope_theta': config.pop('rope_theta'), **scaling}
    config['dtype'] = config.pop('torch_dtype')
  assert model_of(config) == model


def test_what_a_config_leaves_out_is_that_of_its_family():
  least = {'vocab_size': 5, 'hidden_size': 12, 'intermediate_size': 7,
           'num_hidden_layers': 2, 'num_attention_heads': 3, 'model_type': 'llama'}
  model = model_of(least)
  assert model.num_key_heads == 3 and model.epsilon == 1e-6 and not model.tied
  assert model.rope == Rope(1e4) and model.head_width is None
  assert not (model.attention_bias or model.output_bias or model.mlp_bias)
  with_bias = model_of({**least, 'attention_bias': True})
  assert with_bias.attention_bias and with_bias.output_bias
  qwen = model_of({**least, 'model_type': 'qwen2', 'num_key_value_heads': 1,
                   'sliding_window': 4096})
  assert qwen.attention_bias and not qwen.output_bias
  for family in ('llama', 'qwen2', 'mistral'):
    null = model_of({**least, 'model_type': family, 'num_key_value_heads': None,
                     'sliding_window': None})
    assert null.num_key_heads == 3
  older = {'type': 'linear', 'factor': 4}
  assert model_of({**least, 'rope_scaling': older}).rope == Rope(1e4, Linear(4.0))


def test_published_rope_scalings_are_read():
  least = {'vocab_size': 5, 'hidden_size': 128, 'intermediate_size': 7, 'model_type':
           'llama', 'num_hidden_layers': 2, 'num_attention_heads': 1,
           'max_position_embeddings': 131072}
  read = lambda **fields: model_of({**least, **fields}).rope
  # Llama 3.2 1B
  assert read(rope_theta=500000.0, rope_scaling={
      'factor': 32.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0,
      'original_max_position_embeddings': 8192, 'rope_type': 'llama3'
  }) == Rope(5e5, Llama3(32.0, 8192, 1.0, 4.0))
  # Yarn-Llama-2-7b-128k
  assert read(rope_scaling={
      'factor': 32.0, 'original_max_position_embeddings': 4096, 'type': 'yarn',
      'finetuned': True}) == Rope(1e4, Yarn(32.0, 4096))
  assert read(rope_scaling={'type': 'dynamic', 'factor': 2.0}) == Rope(
      1e4, Dynamic(2.0, 131072))


@pytest.mark.parametrize('fields,says', [
    ({'model_type': 'gpt2', 'architectures': ['GPT2LMHeadModel']},
     "model_type 'gpt2' .*'GPT2LMHeadModel'.* is not supported: must be of llama"),
    ({'model_type': ...}, 'model_type None .* is not supported'),
    ({'hidden_size': ...}, 'config.json: hidden_size is missing'),
    ({'hidden_size': '12'}, "hidden_size must be a number of type int: '12'"),
    ({'hidden_size': True}, 'hidden_size must be a number of type int: True'),
    ({'tie_word_embeddings': 1}, 'tie_word_embeddings must be true or false: 1'),
    ({'hidden_act': 'gelu'}, "hidden_act 'gelu' is not supported"),
    ({'quantization_config': {'bits': 4}}, 'quantization_config .* is not supported'),
    ({'num_key_value_heads': 3}, '3 heads of keys do not divide 4'),
    ({'num_hidden_layers': 0}, 'num_hidden_layers must be positive .*: 0'),
    ({'vocab_size': 2**31}, 'vocab_size must be positive and at most .*: 2147483648'),
    ({'head_dim': 0}, 'head_dim must be positive .*: 0'),
    ({'num_key_value_heads': 0}, 'num_key_value_heads must be positive .*: 0'),
    ({'rms_norm_eps': float('nan')}, 'rms_norm_eps must be positive and finite: nan'),
    ({'rms_norm_eps': float('inf')}, 'rms_norm_eps must be positive and finite: inf'),
    ({'rms_norm_eps': -1e-6}, 'rms_norm_eps must be positive and finite: -1e-06'),
    ({'rms_norm_eps': 10**400}, 'rms_norm_eps must be positive and finite: 1000'),
    ({'model_type': ['llama']}, r"model_type \['llama'\] .* is not supported"),
    ({'model_type': 'x', 'architectures': {'a': 1}}, r"\(architecture {'a': 1}\) is"),
    ({'model_type': 'x', 'architectures': 7}, r'\(architecture 7\) is not supported'),
    ({'model_type': 'x', 'architectures': 'Gpt'}, r"\(architecture 'Gpt'\) is not"),
    ({'layer_types': 5}, 'layer_types 5 is not supported'),
    ({'layer_types': [['a']]}, r"layer_types \[\['a'\]\] is not supported"),
    ({'layer_types': ['sliding_attention']}, 'layer_types .* is not supported'),
    ({'rope_theta': -1.0}, 'rope_theta must be positive and finite: -1.0'),
    ({'rope_theta': 1.0, 'rope_scaling': {'rope_type': 'yarn', 'factor': 2.0}},
     'config.json: base of yarn positions must be more than 1: 1.0'),
    ({'rope_scaling': {'rope_type': 'yarn', 'original_max_position_embeddings': 0}},
     'original_max_position_embeddings must be positive .*: 0'),
    ({'rope_scaling': {'rope_type': 'yarn', 'factor': 0}}, 'factor must be pos.*: 0'),
    ({'rope_scaling': {'rope_type': 'yarn', 'beta_fast': 0}}, 'beta_fast must be pos'),
    ({'rope_scaling': {'rope_type': 'longrope'}}, "rope type 'longrope' is not supp"),
    ({'rope_scaling': {'rope_type': 'linear'}}, 'factor is missing'),
    ({'rope_scaling': {'rope_type': 'linear', 'factor': -1.0}}, 'finite: -1.0'),
    ({'rope_scaling': 3}, 'is no object: 3'),
    ({'model_type': 'mistral', 'sliding_window': 4},
     'sliding_window 4 is not supported: .* set it to null in config.json'),
    ({'model_type': 'mistral', 'sliding_window': 4096}, 'window 4096 is not supported'),
    ({'model_type': 'mistral', 'sliding_window': '4'}, "window '4' is not supported"),
    ({'model_type': 'mistral'}, 'window 4096, as it is where it is missing, is not'),
    ({'hidden_size': 16}, r'embed_tokens.weight is \(23, 12\), but .* \(23, 16\)'),
    ({'intermediate_size': 11}, r'\(12, 10\), but config.json makes it \(12, 11\)'),
    ({'num_hidden_layers': 3}, 'has no model.layers.2.* asks for'),
    ({'num_hidden_layers': 2**30}, '21 tensors, too few for the 1073741824 layers'),
    ({'vocab_size': 2**31 - 1, 'hidden_size': 2**31 - 2},
     r'embed_tokens.weight is \(23, 12\), but config.json'),
    ({'num_hidden_layers': 1}, 'has model.layers.1.*, which is not of the model'),
    ({'vocab_size': 24}, r'\(23, 12\), but config.json makes it \(24, 12\)'),
    ({'mlp_bias': True}, 'has no model.layers.0.mlp.*bias'),
])
def test_what_config_json_has_wrong_is_told_in_one_line(saved, fields, says):
  _edit(saved[0], **fields)
  with pytest.raises(ValueError, match=says) as raised:
    load_checkpoint(saved[0])
  assert '\n' not in str(raised.value) and str(saved[0]) in str(raised.value)


@pytest.mark.parametrize('fields,says', [
    ({'head_width': 0}, 'head_width must be positive: 0'),
    ({'epsilon': 0.0}, 'epsilon must be positive and finite: 0.0'),
    ({'epsilon': float('nan')}, 'epsilon must be positive and finite: nan'),
    ({'epsilon': float('inf')}, 'epsilon must be positive and finite: inf'),
])
def test_numbers_that_make_no_model_are_refused(fields, says):
  with pytest.raises(ValueError, match=says):
    check_model(llama(**fields))


def _cut(path, count):
  path.write_bytes(path.read_bytes()[:count])


def _flip_header(path):
  content = bytearray(path.read_bytes())
  content[30] ^= 255
  path.write_bytes(content)


@pytest.mark.parametrize('damage,error,says', [
    (lambda f: (f / 'config.json').unlink(), FileNotFoundError, 'has no config.json'),
    (lambda f: (f / 'config.json').write_text('{'), ValueError, 'is not JSON'),
    (lambda f: (f / 'config.json').write_text('[]'), ValueError, 'not a JSON object'),
    (lambda f: (f / 'config.json').write_text(_DEEP), ValueError,
     'config.json is nested too deeply'),
    (lambda f: (f / 'model.safetensors.index.json').write_text(_DEEP), ValueError,
     'index.json is nested too deeply'),
    (lambda f: (f / 'model.safetensors').unlink(), FileNotFoundError, 'has neither'),
    (lambda f: _cut(f / 'model.safetensors', 0), ValueError, 'not a safetensors file'),
    (lambda f: _cut(f / 'model.safetensors', 100), ValueError, 'is cut short'),
    (lambda f: _cut(f / 'model.safetensors', -1), ValueError, 'is cut short'),
    (lambda f: _flip_header(f / 'model.safetensors'), ValueError, 'damaged header'),
    (lambda f: (f / 'model.safetensors').write_bytes(b'\x80\x04' * 99), ValueError,
     'not a safetensors file'),
])
def test_damage_is_told_in_one_line(saved, damage, error, says):
  damage(saved[0])
  with pytest.raises(error, match=says) as raised:
    load_checkpoint(saved[0])
  assert '\n' not in str(raised.value)


_MISNAMED = [
    ('../x.safetensors', "'../x.safetensors'"), ('/x.safetensors', "'/x.safetensors'"),
    ('..', "'..'"), ('', "''"), ('config.json', "'config.json'"), (None, 'None'),
    (7, '7'), (['x.safetensors'], r"\['x.safetensors'\]"),
    ('a\0.safetensors', r"'a\\x00.safetensors'"),
]


def test_files_that_an_index_misnames_are_told(sharded):
  folder, *_ = sharded
  index = folder / 'model.safetensors.index.json'
  good = json.loads(index.read_text())
  files = sorted(set(good['weight_map'].values()))
  for change, error, says in [
      (lambda m: m.update(extra=files[0]), ValueError, f'{files[0]} has no extra'),
      *((lambda m, name=name: m.update(extra=name), ValueError, f'not beside.*: {says}')
        for name, says in _MISNAMED),
      (lambda m: m.clear(), ValueError, 'has no weight_map'),
      (lambda m: m.update({k: files[0] for k in m}), ValueError, f'{files[0]} has no '),
  ]:
    weight_map = dict(good['weight_map'])
    change(weight_map)
    index.write_text(json.dumps({**good, 'weight_map': weight_map}))
    with pytest.raises(error, match=says):
      load_checkpoint(folder)
  index.write_text(json.dumps(good))
  (folder / files[1]).unlink()
  with pytest.raises(FileNotFoundError, match=f'has no {files[1]}'):
    load_checkpoint(folder)


def test_a_tensor_that_is_in_two_files_is_told(sharded):
  folder, *_ = sharded
  first, second, *_ = sorted(folder.glob('*.safetensors'))
  later = safetensors.load_file(second)
  name = next(iter(later))
  safetensors.save_file({**safetensors.load_file(first), name: 2 * later[name]}, first)
  with pytest.raises(ValueError, match=f'{name} in .*{first.name} .*{second.name}'):
    load_checkpoint(folder)


def test_tensors_of_several_dtypes_need_a_word(saved):
  folder = saved[0]

  def narrow(tensors):
    name = 'model.norm.weight'
    tensors[name] = tensors[name].astype(ml_dtypes.bfloat16)

  _edit_tensors(folder, narrow)
  with pytest.raises(ValueError, match=r'is F32, model.norm.weight is BF16; say of'):
    load_checkpoint(folder)
  _, loaded = load_checkpoint(folder, dtype=jnp.float32)
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {jnp.dtype(jnp.float32)}


def test_integers_are_no_parameters(saved):
  def quantize(tensors):
    name = 'lm_head.weight'
    tensors[name] = tensors[name].astype(np.int8)

  _edit_tensors(saved[0], quantize)
  with pytest.raises(ValueError, match=r'lm_head.weight is I8, which is not supported'):
    load_checkpoint(saved[0])


def test_tensors_that_change_nothing_are_passed_over(saved):
  folder, _, variables = saved

  def add(tensors):
    tensors['model.layers.0.self_attn.rotary_emb.inv_freq'] = np.ones(3, np.float32)

  _edit_tensors(folder, add)
  chex.assert_trees_all_equal(load_checkpoint(folder)[1], variables)


def test_an_output_embedding_of_a_tied_model_must_be_that_of_the_input(
    tmp_path, monkeypatch
):
  monkeypatch.setattr(safetensors_file, '_COMPARED', 100)  # two rows
  model = llama()
  variables = variables_of(model)
  save_checkpoint(tmp_path, model, variables)
  table = np.asarray(variables['params']['embedding'])

  def load_with(output):
    _edit_tensors(tmp_path, lambda x: x.update({'lm_head.weight': output}))
    return load_checkpoint(tmp_path)[1]

  chex.assert_trees_all_equal(load_with(table), variables)
  last = table.copy()
  last[-1, -1] += 1
  for other in (last, table[:-1], table.astype(np.float16), table.astype(np.int8)):
    with pytest.raises(ValueError, match=(
        r'model.safetensors: lm_head.weight differs from model.embed_tokens.weight, '
    )):
      load_with(other)


def test_fields_and_tokenizer_of_another_checkpoint_come_along(saved, tmp_path):
  folder, model, variables = saved
  _edit(folder, bos_token_id=7, rope_parameters={'rope_theta': 3.0}, dtype='float16')
  (folder / 'tokenizer.json').write_text('{}')
  (folder / 'generation_config.json').write_text('{}')
  (folder / 'notes.txt').write_text('')
  wider = model.clone(rope=ROPES['yarn'])
  save_checkpoint(tmp_path / 'next', wider, variables, like=folder)
  assert {path.name for path in (tmp_path / 'next').iterdir()} == {
      'config.json', 'model.safetensors', 'tokenizer.json', 'generation_config.json'}
  config = json.loads((tmp_path / 'next' / 'config.json').read_text())
  assert config['bos_token_id'] == 7 and config['torch_dtype'] == 'float32'
  assert read_model(tmp_path / 'next') == wider


@pytest.mark.parametrize('fields', [
    {'norm': 'layer_norm'}, {'rope': None}, {'output_bias': True},
    {'attention_bias': True, 'mlp_bias': True},
    {'rope': Rope(1e4, Dynamic(2.0, 5))},
])
def test_what_is_none_of_the_family_is_not_saved(tmp_path, fields):
  model = llama(**fields)
  with pytest.raises(ValueError, match='famil'):
    save_checkpoint(tmp_path / 'x', model, variables_of(model))
  assert not (tmp_path / 'x').exists()


def test_parameters_of_several_dtypes_are_not_saved(tmp_path):
  model = llama()
  variables = variables_of(model)
  params = variables['params']
  params['embedding'] = params['embedding'].astype(jnp.float16)
  with pytest.raises(ValueError, match=r"one float dtype: .'float16', 'float32'."):
    save_checkpoint(tmp_path / 'x', model, variables)
