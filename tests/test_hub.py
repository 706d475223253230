"""Checkpoints that are named as on the Hugging Face Hub."""

import fnmatch
import shutil
import sys
import types

from etils import epath
import jax
import pytest

from tests.llamas import save_llama
from vvlen.models.llama import load_checkpoint, read_model
from vvlen.models.llama.hub import local_folder

_FILES = ('config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer.model',
          'pytorch_model.bin', 'consolidated.safetensors', 'modeling_llama.py',
          'original/consolidated.00.pth', 'original/params.json', 'README.md')


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """A hub with one model, in place of the library; returns its calls."""
  calls = []
  save_llama(tmp_path / 'there')
  for name in _FILES:
    path = tmp_path / 'there' / name
    path.parent.mkdir(exist_ok=True)
    path.touch()

  def snapshot_download(repo_id, allow_patterns, ignore_patterns):
    calls.append(repo_id)
    if repo_id != 'org/small.llama':
      raise OSError(f'404: no {repo_id}\n\nRequest ID: 1')
    here = tmp_path / 'cache/models--org--small.llama/snapshots/5f0b02c7'
    for name in _FILES:  # as huggingface_hub.utils.filter_repo_objects
      if (any(fnmatch.fnmatch(name, x) for x in allow_patterns)
          and not any(fnmatch.fnmatch(name, x) for x in ignore_patterns)):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / 'there' / name, here / name)
    return str(here)

  monkeypatch.setitem(sys.modules, 'huggingface_hub', types.SimpleNamespace(
      snapshot_download=snapshot_download))
  monkeypatch.chdir(tmp_path)
  return calls


@pytest.mark.slow
def test_a_model_of_the_hub_is_downloaded_and_loaded(hub, tmp_path):
  model, variables = load_checkpoint('org/small.llama')
  expected, right = load_checkpoint(tmp_path / 'there')
  assert model == expected == read_model('org/small.llama')
  assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), variables, right))
  assert set(hub) == {'org/small.llama'}


@pytest.mark.slow
def test_no_file_is_downloaded_that_is_not_read(hub):
  found = local_folder('org/small.llama')
  assert sorted(path.name for path in found.iterdir()) == [
      'config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer.model']


@pytest.mark.parametrize('path', [
    'there', './there', 'runs/there', 'gs://bucket/model', 'absent', 'a/b/c', '/absent',
    './absent', '../absent', '', 'org/na me', 'org/'])
def test_folders_and_what_is_no_name_are_left_as_they_are(hub, tmp_path, path):
  (tmp_path / 'runs/there').mkdir(parents=True)
  assert local_folder(path) == epath.Path(path)
  assert not hub


def test_the_home_folder_is_written_out(hub, tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  assert local_folder('~/there') == epath.Path(tmp_path / 'there')


def test_a_path_in_a_folder_that_exists_is_not_looked_for_on_the_hub(
    tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  (tmp_path / 'runs').mkdir()
  assert local_folder('runs/misspelt') == epath.Path('runs/misspelt')
  with pytest.raises(ValueError, match='needs a library: pip install huggingface_hub'):
    local_folder('organization/model')


def test_what_cannot_be_downloaded_is_one_line(hub, run_here):
  arguments = ('measure', '--checkpoint=org/other', '--workdir=runs/measure')
  done = run_here(*arguments)
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == ('Error: org/other is not a folder, and could not be '
                         'downloaded from the hub: 404: no org/other\n')
  assert hub == ['org/other']


def test_the_reason_of_a_failed_download_begins_without_got(hub, monkeypatch):
  def snapshot_download(*_, **__):
    raise OSError('Got: ConnectError: no route\nAn error happened')

  monkeypatch.setattr(sys.modules['huggingface_hub'], 'snapshot_download',
                      snapshot_download)
  with pytest.raises(ValueError, match=r'from the hub: ConnectError: no route$'):
    local_folder('org/other')


@pytest.mark.parametrize('arguments', [
    ('measure', '--checkpoint=org/other'),
    ('language_model', '--config=configs/language_model.py:finetune',
     '--config.checkpoint=org/other'),
])
def test_without_the_library_it_is_said_how_to_install_it(
    run_here, monkeypatch, arguments, tmp_path):
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  done = run_here(*arguments, f'--workdir={tmp_path}/run')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == (
      'Error: org/other is not a folder, and downloading it from the hub needs a '
      'library: pip install huggingface_hub. Or give a folder\n')
  assert not (tmp_path / 'run').exists()
