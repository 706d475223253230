"""The one command for a lent accelerator, on a CPU at the smallest sizes."""

import json
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments.benchmarks import accelerator, device_agreement
from tests.conftest import ROOT


def _main(module, monkeypatch, *arguments):
  monkeypatch.setattr(sys, 'argv', ['command', *arguments])
  return module.main()


def test_an_error_is_the_largest_relative_one():
  found = {'a': np.array([3.0, 4.5]), 'b': np.array([1.0])}
  expected = {'a': np.array([3.0, 4.0]), 'b': np.array([1.0])}
  assert device_agreement.error(found, expected) == pytest.approx(0.1)
  assert np.isnan(device_agreement.error({'a': np.array([np.nan])}, {'a': np.ones(1)}))


@pytest.mark.parametrize('value, code', [(0.5, 0), (1.5, 1), (float('nan'), 1)])
def test_a_device_that_disagrees_ends_with_1(value, code, monkeypatch, capsys):
  monkeypatch.setattr(device_agreement.machine, 'use_devices', lambda: None)
  monkeypatch.setattr(device_agreement, 'checks', lambda _: {
      'one': (lambda key, tiny: 0.0, 1.0), 'two': (lambda key, tiny: value, 1.0)})
  assert _main(device_agreement, monkeypatch) == code
  told = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert told['agrees'] == (code == 0)
  assert told['checks']['two']['agrees'] == (code == 0)


@pytest.mark.slow
def test_attention_that_differs_is_seen(monkeypatch, key):
  """A kernel that forgets the mask."""
  causal = device_agreement.causal_attention
  flipped = lambda q, k, v, implementation: causal(
      *((x[:, ::-1] for x in (q, k, v)) if implementation == 'chunked' else (q, k, v)),
      implementation=implementation)
  assert device_agreement.attention(key, True, 'chunked', jax.numpy.float32) < 1e-4
  monkeypatch.setattr(device_agreement, 'causal_attention', flipped)
  assert device_agreement.attention(key, True, 'chunked', jax.numpy.float32) > 0.1


@pytest.mark.slow
def test_without_an_accelerator_nothing_is_measured(monkeypatch, capsys):
  with pytest.raises(SystemExit, match='2'):
    _main(accelerator, monkeypatch)
  assert 'no accelerator, only a CPU' in capsys.readouterr().err
  with pytest.raises(SystemExit, match='2'):
    _main(accelerator, monkeypatch, '--only=nonsense')
  assert "no row 'nonsense'" in capsys.readouterr().err


def test_rows_are_kept_as_they_end_and_only_what_is_left_is_run(
    monkeypatch, tmp_path, capsys):
  states = {'agreement': 'done', 'retrieval': 'out of time', 'lookup': 'failed'}
  ran = []

  def run(row, tiny, workdir, limit):
    name = next(x for x, r in accelerator.ROWS.items() if r is row)
    ran.append(name)
    assert tiny and 0 < limit <= row.seconds
    return {'state': states[name], 'seconds': 1.0}

  monkeypatch.setattr(accelerator, 'run', run)
  command = f'--workdir={tmp_path}', '--tiny', f'--only={",".join(states)}'
  _main(accelerator, monkeypatch, *command)
  assert ran == list(states)
  [path] = tmp_path.glob('accelerator_*.json')
  kept = json.loads(path.read_text())
  assert {name: row['state'] for name, row in kept['rows'].items()} == states
  assert kept['device'].endswith('cpu') and kept['tiny']
  ran.clear()
  states['lookup'] = 'done'
  _main(accelerator, monkeypatch, *command)
  assert ran == ['retrieval', 'lookup']
  told = json.loads(capsys.readouterr().out.splitlines()[-1])['rows']
  assert (told['lookup'], told['table_1']) == ('done', 'not run')
  ran.clear()
  _main(accelerator, monkeypatch, *command, '--minutes=0.1')
  assert ran == []
  path.write_text(path.read_text().replace('x cpu', 'x another'))
  with pytest.raises(SystemExit, match='2'):
    _main(accelerator, monkeypatch, *command)
  assert 'move it away' in capsys.readouterr().err


@pytest.mark.slow
def test_a_row_that_takes_too_long_is_ended():
  row = accelerator.ROWS['agreement']
  found = accelerator.run(row, True, '', 0.2)
  assert (found['state'], found['result']) == ('out of time', None)
  assert found['seconds'] < 30
  wrong = row._replace(tiny=['--nonsense'])
  found = accelerator.run(wrong, True, '', 100)
  assert found['state'] == 'failed' and 'nonsense' in found['said'][-1]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('name', accelerator.ROWS)
def test_every_row_runs(name, tmp_path, fast_compilation):
  if name == 'generation':
    pytest.importorskip(
        'transformers', reason="compares with transformers: pip install '.[oracle]'")
    pytest.importorskip(
        'torch', reason="compares with PyTorch: pip install '.[oracle]'")
  row = accelerator.ROWS[name]
  # Sizes differ, not what is run.
  assert row.module in ('benchmarks.device_agreement', 'length_generalization') or {
      x for x in row.arguments if '=' not in x} <= {*row.tiny}
  found = accelerator.run(row, True, str(tmp_path), 900)
  assert found['state'] == 'done', found
  if row.module.startswith('benchmarks'):
    assert found['result'] is not None and 'not_run' not in found['result']
  else:
    assert next(tmp_path.rglob('results.csv')).stat().st_size > 0


def test_on_a_tpu_no_row_has_several_processes(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(accelerator.subprocess, 'check_output', lambda *_, **__: (
      '[1, "TPU v5e", "tpu", "0"]'))
  ran = []
  monkeypatch.setattr(accelerator, 'run', lambda row, *_: ran.append(row) or {
      'state': 'done', 'seconds': 1.0})
  _main(accelerator, monkeypatch, f'--output={tmp_path}')
  left_out = {'retrieval', 'lookup', 'recency', 'generation', 'attention'}
  assert ran == [row for name, row in accelerator.ROWS.items() if name not in left_out]
  told = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert {x for x, state in told['rows'].items() if state == 'not run'} == left_out
  kept = json.loads((tmp_path / 'accelerator_tpu_v5e.json').read_text())
  assert kept['device'] == '1 x TPU v5e' and set(kept['rows']).isdisjoint(left_out)


@pytest.mark.slow
def test_a_command_that_is_ended_ends_its_row(tmp_path):
  process = subprocess.Popen(
      [sys.executable, '-m', 'experiments.benchmarks.accelerator', '--tiny',
       '--only=retrieval', f'--workdir={tmp_path}'],
      cwd=ROOT, stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline().startswith('retrieval')
  children = lambda: pathlib.Path(
      f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()
  until = time.monotonic() + 60
  while not (found := children()):
    assert time.monotonic() < until
  process.terminate()
  assert process.wait(timeout=60) == 143
  assert not any(pathlib.Path('/proc', x, 'cmdline').exists() and
                 b'retrieval' in pathlib.Path('/proc', x, 'cmdline').read_bytes()
                 for x in found)
