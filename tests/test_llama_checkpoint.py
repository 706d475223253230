"""Checkpoints in hub layout: what is saved is loaded, and goes to its devices."""

import contextlib
import functools
import json
import re
import weakref

import chex
from etils import epath
from etils.epath import testing
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from tests.cases import mostly_slow
from tests.llamas import edit, llama, ROPES, save_llama, V, variables_of
from vvlen.models.llama import (
  ends_of,
  fingerprint,
  load_checkpoint,
  read_model,
  save_checkpoint,
)
from vvlen.models.llama import safetensors as safetensors_file
from vvlen.models.llama import saving as llama_saving
from vvlen.models.rope import Dynamic, Rope
from vvlen.sharding import mesh as partition

TOKENS = jnp.arange(14).reshape(2, 7)


@pytest.fixture
def saved(tmp_path):
  """A checkpoint of one file, its model and variables."""
  return save_llama(tmp_path / 'one', tied=False)


@pytest.fixture
def sharded(tmp_path, monkeypatch):
  """A checkpoint of several files."""
  monkeypatch.setattr(llama_saving, '_FILE_BYTES', 2000)
  return save_llama(tmp_path / 'several', tied=False)


@pytest.mark.parametrize('fields', mostly_slow([
    {}, {'tied': False}, {'attention_bias': True, 'output_bias': True},
    {'attention_bias': True}, {'mlp_bias': True}, {'head_width': None, 'width': 16},
    *({'rope': rope} for rope in ROPES.values()),
], *range(5), 7), ids=lambda x: '-'.join(map(str, x)))
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
  monkeypatch.setattr(llama_saving, '_FILE_BYTES', 2**31)
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


@pytest.mark.parametrize('sizes', mostly_slow(
    [[2000, 2**31], [2**31, 2000], [2000, 2000]], 2))
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
    monkeypatch.setattr(llama_saving, '_FILE_BYTES', size)
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
  # Files left by the killed process do no harm.
  whole = {path.name for path in folder.iterdir()}
  folder = tmp_path / str(met.index('none') - 1)
  assert list(folder.glob('.*'))
  save(folder, 'new', sizes[1])
  assert {path.name for path in folder.iterdir()} == whole
  assert state_of(folder) == 'new'


def test_only_what_was_written_is_deleted_and_no_link_is_followed(saved, tmp_path):
  folder, model, variables = saved
  others = 'model_ema.safetensors', 'model-best.safetensors', '.notes.part', 'tokens'
  for name in others:
    (folder / name).write_text('mine')
  outside = tmp_path / 'outside'
  outside.write_text('mine')
  for name in ('.model.safetensors.part', '.config.json.part', 'tokenizer.json'):
    (folder / name).symlink_to(outside)
  (folder / 'model-00001-of-00002.safetensors').write_text('of a larger one')
  save_checkpoint(folder, model, variables)
  assert outside.read_text() == 'mine'
  assert all((folder / name).read_text() == 'mine' for name in others)
  assert not (folder / 'model-00001-of-00002.safetensors').exists()
  chex.assert_trees_all_equal(load_checkpoint(folder)[1], variables)


def test_only_files_of_a_tokenizer_are_copied_and_none_through_links_to_elsewhere(
    saved, tmp_path
):
  folder, model, variables = saved
  secret = tmp_path / 'secret'
  secret.write_text('mine')
  for name in ('hf_token', 'tokens.bin', 'my_tokenizer.py'):
    (folder / name).write_text('mine')
  (folder / 'vocab.json').write_text('{}')
  save_checkpoint(tmp_path / 'next', model, variables, like=folder)
  assert {path.name for path in (tmp_path / 'next').iterdir()} == {
      'config.json', 'model.safetensors', 'vocab.json'}
  (folder / 'tokenizer.json').symlink_to(secret)
  with pytest.raises(ValueError, match=r'tokenizer\.json is a link to a place outside'):
    save_checkpoint(tmp_path / 'other', model, variables, like=folder)
  assert not (tmp_path / 'other').exists()


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
  assert kernel.addressable_shards[0].data.shape == (16 // axes[1], 24 // axes[2])


def test_a_folder_at_home_is_found(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  _, model, variables = save_llama(tmp_path / 'llama')
  found, loaded = load_checkpoint('~/llama')
  assert found == model
  chex.assert_trees_all_equal(loaded, variables)


_FILES = {'config.json': '{}', 'model-00001-of-00002.safetensors': 'abc',
          'model-00002-of-00002.safetensors': 'd', 'tokenizer.json': 'e'}


@pytest.mark.parametrize('change', [
    {'config.json': '{"rope_theta": 1}'}, {'tokenizer.json': 'f'},
    # The same bytes one after the other, divided elsewhere, or in files of other names.
    {'model-00001-of-00002.safetensors': 'ab',
     'model-00002-of-00002.safetensors': 'cd'},
    {'tokenizer.json': None, 'tokenizer_config.json': 'e'},
    {'model-00001-of-00002.safetensors': 'abcmodel-00002-of-00002.safetensors\nd',
     'model-00002-of-00002.safetensors': None},
    {'model-00002-of-00002.safetensors': None, 'tokenizer.json': 'de'},
    {'model-00002-of-00002.safetensors': 'D'}, {'tokenizer_config.json': ''}])
def test_each_checkpoint_has_a_hash_of_its_own(change, tmp_path):
  def hash_of(name, files):
    folder = tmp_path / name
    folder.mkdir()
    for file, text in files.items():
      if text is not None:
        (folder / file).write_text(text)
    return fingerprint(folder)

  first = hash_of('first', _FILES)
  assert re.fullmatch('[0-9a-f]{64}', first)
  # Neither the folder nor files of no effect are in it.
  assert hash_of('same', _FILES | {'notes.txt': 'mine', 'vocab.json': '{}'}) == first
  assert hash_of('other', _FILES | change) != first


@pytest.mark.parametrize('name', [
    'config.json', 'model-00002-of-00002.safetensors', 'tokenizer.json', 'vocab.json'])
def test_no_hash_is_made_of_a_file_outside_the_folder(name, tmp_path):
  folder, secret = tmp_path / 'checkpoint', tmp_path / 'secret'
  folder.mkdir()
  secret.write_text('mine')
  for file, text in _FILES.items():
    (folder / file).write_text(text)
  (folder / name).unlink(missing_ok=True)
  (folder / name).symlink_to(secret)
  with pytest.raises(ValueError, match=rf'{name} is a link to a place outside its fol'):
    fingerprint(folder)


def test_tokens_that_end_a_text_are_those_of_the_checkpoint(tmp_path):
  folder = epath.Path(tmp_path)
  assert ends_of(folder) == ()
  (folder / 'config.json').write_text('{}')
  assert ends_of(folder) == ()
  (folder / 'config.json').write_text('{"eos_token_id": 2}')
  assert ends_of(str(folder)) == (2,)
  (folder / 'generation_config.json').write_text('{"eos_token_id": null}')
  assert ends_of(folder) == (2,)
  (folder / 'generation_config.json').write_text('{"eos_token_id": [7, 2]}')
  assert ends_of(folder) == (7, 2)
  for wrong in ('"</s>"', '[2, "</s>"]', 'true'):
    (folder / 'generation_config.json').write_text(f'{{"eos_token_id": {wrong}}}')
    with pytest.raises(ValueError, match=r'generation_config.json: eos_token_id must'):
      ends_of(folder)


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
  with pytest.raises(ValueError, match='not match the parameters: embedding'):
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
  rows, outputs, whole = (NamedSharding(mesh, PartitionSpec(*axes))
                          for axes in (['rows'], [None, 'rows'], []))

  def place(path, x):
    if path[-1].key == 'kernel':  # whose outputs are the rows of the file
      return outputs if x.shape[1] % 8 == 0 else whole
    return rows if x.shape[0] % 8 == 0 else whole

  shardings = jax.tree_util.tree_map_with_path(place, variables['params'])
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


class _AsTensorFlow:
  """A file that has only the methods of TensorFlow's files."""

  def __init__(self, file):
    self._file = file
    self.read, self.seek, self.write = file.read, file.seek, file.write

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._file.close()


def test_a_checkpoint_of_a_bucket(sharded, tmp_path, monkeypatch):
  folder, model, variables = sharded
  there = lambda x: str(x).replace('gs://bucket', str(tmp_path))
  back = lambda x: str(x).replace(str(tmp_path), 'gs://bucket')

  def mapped(function, *paths, **fields):
    # One that was mapped comes again where a function calls another.
    assert str(paths[0]).startswith(('gs://bucket', str(tmp_path)))
    return function(*map(there, paths), **fields)

  def opened(function, path, *rest):
    file = mapped(function, path, *rest)
    return _AsTensorFlow(file) if rest[:1] == ('rb',) else file

  names = ('exists', 'isdir', 'listdir', 'makedirs', 'mkdir', 'remove', 'stat',
           'replace', 'rename')
  with testing.mock_epath(
      open=opened, glob=lambda function, *x: [*map(back, mapped(function, *x))],
      **dict.fromkeys(names, mapped)):
    monkeypatch.setattr(safetensors_file, '_PIECE', 100)
    found, loaded = load_checkpoint(f'gs://bucket/{folder.name}')
    assert found == model
    chex.assert_trees_all_equal(loaded, variables)
    like = f'gs://bucket/{folder.name}'
    save_checkpoint('gs://bucket/saved', model, loaded, like=like)
    chex.assert_trees_all_equal(load_checkpoint('gs://bucket/saved')[1], variables)
  assert not list((tmp_path / 'saved').glob('.*'))


@pytest.mark.parametrize('arguments,says', [
    ({'dtype': 'int8'}, 'dtype must be a floating-point dtype: int8'),
    ({'dtype': 'floaty'}, "unknown dtype: 'floaty'"),
    ({'dtype': 'float64'}, 'float64 needs jax_enable_x64'),
    ({'shardings': jax.devices()}, 'shardings must have the structure .*: .*list'),
])
def test_what_parameters_cannot_be_is_told(saved, arguments, says):
  with pytest.raises(ValueError, match=says):
    load_checkpoint(saved[0], **arguments)


def test_fields_and_tokenizer_of_another_checkpoint_come_along(saved, tmp_path):
  folder, model, variables = saved
  edit(folder, bos_token_id=7, rope_parameters={'rope_theta': 3.0}, dtype='float16')
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


@pytest.mark.parametrize('fields, says', [
    ({'norm': lambda x: x}, 'norm must be one of none, '),
    ({'rope': Rope(1e4, Dynamic(2.0, 5))}, 'original_length of dynamic positions'),
])
def test_what_config_json_cannot_say_is_not_saved(tmp_path, fields, says):
  model = llama(**fields)
  with pytest.raises(ValueError, match=says):
    save_checkpoint(tmp_path / 'x', model, variables_of(model))
  assert not (tmp_path / 'x').exists()


def test_parameters_of_several_dtypes_are_not_saved(tmp_path):
  model = llama()
  variables = variables_of(model)
  params = variables['params']
  params['embedding'] = params['embedding'].astype(jnp.float16)
  with pytest.raises(ValueError, match=r"the same float dtype: .'float16', 'float32'."):
    save_checkpoint(tmp_path / 'x', model, variables)
