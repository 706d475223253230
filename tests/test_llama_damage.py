"""Checkpoints whose files are damaged, missing, or not those of their config.json."""

import json
import tracemalloc

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from tests.llamas import DEEP, edit_tensors, llama, save_llama, variables_of
from vvlen.models.llama import load_checkpoint, save_checkpoint
from vvlen.models.llama import safetensors as safetensors_file
from vvlen.models.llama import saving as llama_saving


@pytest.fixture
def saved(tmp_path):
  """A checkpoint of one file, its model and variables."""
  return save_llama(tmp_path / 'one', tied=False)


@pytest.fixture
def sharded(tmp_path, monkeypatch):
  """A checkpoint of several files."""
  monkeypatch.setattr(llama_saving, '_FILE_BYTES', 2000)
  return save_llama(tmp_path / 'several', tied=False)


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
    (lambda f: (f / 'config.json').write_text(DEEP), ValueError,
     'config.json is nested too deeply'),
    (lambda f: (f / 'model.safetensors.index.json').write_text(DEEP), ValueError,
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


@pytest.mark.parametrize('name', ['config.json', 'model.safetensors'])
def test_a_link_that_leaves_the_folder_is_refused(saved, tmp_path, name):
  folder, outside = saved[0], tmp_path / 'outside'
  (folder / name).rename(outside)
  (folder / name).symlink_to(outside)
  with pytest.raises(ValueError, match=rf'{name} is a link to a place outside its fol'):
    load_checkpoint(folder)
  # Within the folder, to the whole folder, and in the cache of the hub, links are fine.
  (folder / name).unlink()
  outside.rename(folder / 'real')
  (folder / name).symlink_to('real')
  load_checkpoint(folder)
  (tmp_path / 'link').symlink_to(folder)
  load_checkpoint(tmp_path / 'link')
  cache = tmp_path / 'models--a--b'
  (cache / 'blobs').mkdir(parents=True)
  (folder / 'real').rename(cache / 'blobs/abc')
  (cache / 'snapshots').mkdir()
  folder.rename(cache / 'snapshots/rev')
  (cache / 'snapshots/rev' / name).unlink()
  (cache / 'snapshots/rev' / name).symlink_to('../../blobs/abc')
  load_checkpoint(cache / 'snapshots/rev')


def test_a_header_longer_than_its_file_takes_no_memory(saved):
  path = saved[0] / 'model.safetensors'
  path.write_bytes((99_000_000).to_bytes(8, 'little') + b'{}')
  tracemalloc.start()
  with pytest.raises(ValueError, match=r'model\.safetensors is cut short, or not a'):
    load_checkpoint(saved[0])
  assert tracemalloc.get_traced_memory()[1] < 10_000_000
  tracemalloc.stop()


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
      *((lambda m, name=name: m.update(extra=name), ValueError, f'not a.*: {says}')
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

  edit_tensors(folder, narrow)
  with pytest.raises(ValueError, match=r'is F32, model.norm.weight is BF16; choose'):
    load_checkpoint(folder)
  _, loaded = load_checkpoint(folder, dtype=jnp.float32)
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {jnp.dtype(jnp.float32)}


def test_integers_are_no_parameters(saved):
  def quantize(tensors):
    name = 'lm_head.weight'
    tensors[name] = tensors[name].astype(np.int8)

  edit_tensors(saved[0], quantize)
  with pytest.raises(ValueError, match=r'lm_head.weight is I8, which is not supported'):
    load_checkpoint(saved[0])


def test_tensors_that_change_nothing_are_passed_over(saved):
  folder, _, variables = saved

  def add(tensors):
    tensors['model.layers.0.self_attn.rotary_emb.inv_freq'] = np.ones(3, np.float32)

  edit_tensors(folder, add)
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
    edit_tensors(tmp_path, lambda x: x.update({'lm_head.weight': output}))
    return load_checkpoint(tmp_path)[1]

  chex.assert_trees_all_equal(load_with(table), variables)
  last = table.copy()
  last[-1, -1] += 1
  for other in (last, table[:-1], table.astype(np.float16), table.astype(np.int8)):
    with pytest.raises(ValueError, match=(
        r'model.safetensors: lm_head.weight differs from model.embed_tokens.weight, '
    )):
      load_with(other)
