"""Paths and addresses of a command line: home folders, buckets, other processes."""

import importlib.util
import os
import re

import ml_collections
import pytest

from experiments.harness import command_line, paths, processes


@pytest.fixture
def home(monkeypatch):
  monkeypatch.setenv('HOME', '/home/someone')


@pytest.fixture
def no_buckets(monkeypatch):
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name, *rest: (
      None if name in ('gcsfs', 's3fs') else find(name, *rest)))


def test_the_home_folder_is_written_out(home):
  assert paths.usable('~/run', '--workdir') == '/home/someone/run'
  assert paths.usable('~', '--workdir') == '/home/someone'
  for plain in ('', '/run~/x', 'run/~', '../run', 'a: b'):
    assert paths.usable(plain, '--workdir') == plain


def test_paths_among_the_fields_of_a_config_are_written_out(home):
  config = ml_collections.ConfigDict(
      {'text': {'path': '~/a.txt', 'held_out': 0.1}, 'trained': '~/run', 'seed': 0,
       'arms': ('~',)})
  config.lock()
  paths.make_usable(config)
  assert config.to_dict() == {
      'text': {'path': '/home/someone/a.txt', 'held_out': 0.1},
      'trained': '/home/someone/run', 'seed': 0, 'arms': ('~',)}


@pytest.mark.parametrize('path, words', [
    ('gs://bucket/run', 'gs://bucket/run\' needs the extra gcs, as in: pip install'),
    ('s3://bucket/run', 's3://bucket/run\' needs a library: pip install s3fs'),
    ('http://host/run', "must be local or begin with gs://: 'http://host/run'"),
    ('~nobody-of-this-name/run', ": the home folder does not exist: '~nobody-of-"),
])
def test_a_path_that_cannot_be_opened_is_named_with_its_field(no_buckets, path, words):
  with pytest.raises(ValueError, match='^--workdir.*' + re.escape(words)):
    paths.usable(path, '--workdir')
  config = ml_collections.ConfigDict({'text': {'path': path}})
  with pytest.raises(ValueError, match=r'^config\.text\.path.*' + re.escape(words)):
    paths.make_usable(config)


@pytest.mark.parametrize('name', ['a[1]', 'a*', 'a?', 'a\\b', ']'])
def test_folders_in_which_orbax_finds_no_checkpoints_are_refused(
    run_here, tmp_path, monkeypatch, name
):
  done = run_here('length_generalization', '--config=configs/retrieval.py:smoke',
                  f'--workdir={tmp_path}/{name}/run')
  assert (done.returncode, done.stdout) == (2, '')
  assert re.fullmatch(
      r"Error: --workdir must not contain [][*?\\ ]+: Orbax finds no checkpoints in "
      r"such a path: '.*/run'\n", done.stderr), done.stderr
  assert list(tmp_path.iterdir()) == []
  # Nor where the run's path is relative, as Orbax makes it absolute.
  (tmp_path / name).mkdir()
  monkeypatch.chdir(tmp_path / name)
  with pytest.raises(ValueError, match=r'config\.trained must not contain .*: Orbax'):
    paths.check_folder('run', 'config.trained')


@pytest.mark.parametrize('arguments, words', [
    (['--workdir={}/file'], "--workdir must be a folder, and is a file: '{}/file'"),
    (['--workdir={}/file/run'],
     "the folder '{}/file/run' cannot be made: Not a directory"),
    (['--config=configs/no.py'], "config: No such file or directory: 'configs/no.py'"),
    (['--config=configs'], "config: Is a directory: 'configs'"),
    (['--config.num_seed=3'], "--config.num_seed: config has no field 'num_seed'; "
                              "did you mean 'num_seeds'?"),
    (['--config.num_seeds=3.0'], 'flag --config.num_seeds=3.0: not a whole number: '
                                 "'3.0'"),
    (['--config.optimizer.learning_rate=high'],
     "flag --config.optimizer.learning_rate=high: not a number: 'high'"),
])
def test_a_wrong_argument_is_named_in_plain_words(run_here, tmp_path, arguments, words):
  (tmp_path / 'file').write_text('kept')
  done = run_here('length_generalization', '--config=configs/retrieval.py:smoke',
                  f'--workdir={tmp_path}/run',
                  *(argument.format(tmp_path) for argument in arguments))
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == f'Error: {words.format(tmp_path)}\n'
  assert (tmp_path / 'file').read_text() == 'kept'
  assert [*tmp_path.iterdir()] == [tmp_path / 'file']


def test_config_may_come_after_its_fields(run_here, tmp_path):
  done = run_here('length_generalization', '--config.num_seeds=1', '--workdir',
                  f'{tmp_path}/run', '--config=configs/retrieval.py:smoke')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('Error: config.num_seeds must be a whole number from 2')


def test_a_bucket_is_taken_where_its_library_is_there(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  assert paths.usable('gs://bucket/run', '--workdir') == 'gs://bucket/run'


@pytest.mark.parametrize('given, words', [
    (('nonsense', '2', '0'), "ADDRESS must be a host and a port .*: 'nonsense'"),
    (('', '2', '0'), "ADDRESS must be a host and a port .*: ''"),
    (('host:', '2', '0'), "ADDRESS must be a host and a port .*: 'host:'"),
    (('host:70000', '2', '0'), "ADDRESS must be a host and a port .*: 'host:70000'"),
    (('host:0', '2', '0'), "ADDRESS must be a host and a port .*: 'host:0'"),
    (('http://host:80', '2', '0'), 'ADDRESS must be a host and a port .*http'),
    (('host:80', '0', '0'), "JAX_NUM_PROCESSES must be a number of at least 1: '0'"),
    (('host:80', '²', '0'), 'JAX_NUM_PROCESSES must be a number of at least 1'),
    (('host:80', '2', '2'), "ID must be a number below JAX_NUM_PROCESSES, 2: '2'"),
    (('host:80', '2', '-1'), "ID must be a number below JAX_NUM_PROCESSES, 2: '-1'"),
])
def test_variables_of_several_processes_are_refused_by_name(monkeypatch, given, words):
  names = 'JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID'
  for name, value in zip(names, given, strict=True):
    monkeypatch.setitem(os.environ, name, value)
  reached = []
  monkeypatch.setattr(processes.jax.distributed, 'initialize',
                      lambda *arguments: reached.append(arguments))
  with pytest.raises(ValueError, match=words):
    processes.join_processes()
  assert not reached


def test_a_process_outside_of_any_cluster_is_told_what_to_set(monkeypatch):
  for name in ('JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID'):
    monkeypatch.delenv(name, raising=False)

  def initialize():
    raise ValueError('coordinator_address should be defined.')  # JAX's words

  monkeypatch.setattr(processes.jax.distributed, 'initialize', initialize)
  with pytest.raises(ValueError, match=r'no cluster was found .* Set JAX_COORD'):
    processes.join_processes()


@pytest.mark.parametrize('address', ['10.0.0.2:8476', 'host-1.zone:1', '[::1]:65535'])
def test_an_address_that_can_be_is_taken(address):
  processes._check(address, '2', '1')


def test_the_home_folder_of_a_config_is_written_out(monkeypatch):
  monkeypatch.setenv('HOME', '/home/someone')
  known = {'--config=~/x.py:quick': '--config=/home/someone/x.py:quick',
           '--config=x.py': '--config=x.py', '--workdir=~': '--workdir=~',
           '--config.text=~': '--config.text=~'}
  for given, expected in known.items():
    assert command_line._with_home(given) == expected
