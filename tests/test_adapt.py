"""The command of `experiments.adapt`, and whole runs of it."""

import json
import math
import os
import subprocess
import sys

import pytest

from experiments.adapt import report, run
from experiments.language_model import sharded
from tests.adapt_cases import config_of, MODEL, write_text
from tests.conftest import check_board, lose_rows, ROOT
from tests.llamas import save_llama
from vvlen.reporting import results
from vvlen.reporting.curves import read_curves


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_llama(tmp_path_factory.mktemp('checkpoint'), **MODEL)[0]


@pytest.fixture(scope='module')
def text_file(tmp_path_factory):
  return write_text(tmp_path_factory.mktemp('text'))


def test_what_does_not_fit_the_checkpoint_is_said_before_anything_is_written(
    run_here, checkpoint, text_file, tmp_path):
  done = run_here('adapt', *_command(
      checkpoint, text_file, tmp_path, '--config.adapters.rank=2',
      '--config.adapters.also=("output_embedding",)'))
  assert done.returncode == 2 and "no parameter is named 'output_" in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1, done.stderr
  assert not (tmp_path / 'run').exists()


def test_a_run_has_each_arm_measured_after_its_own_steps(
    checkpoint, text_file, tmp_path, monkeypatch):
  seen = {}

  def run_seed(config, name, *_, measure_after, **others):
    seen[name] = [*measure_after]

  monkeypatch.setattr(run.machine, 'use_devices', lambda: None)
  monkeypatch.setattr(sharded, 'run_seed', run_seed)
  monkeypatch.setattr(run, 'Programs', lambda *_: None)
  monkeypatch.setattr(run, 'run_jobs', lambda folder, jobs, *_: [
      job.rows(None) for job in jobs])
  config = config_of(checkpoint=str(checkpoint), **{
      'text.path': str(text_file), 'train.batch_size': 8, 'evaluate.num_segments': 8,
      'arms.yarn_alpha_0_1.steps': 0.75})
  run.main(config, str(tmp_path / 'run'))
  assert seen == {'none': [2, 4], 'yarn': [2, 4], 'yarn_alpha_0_1': [1, 3]}


def _command(checkpoint, text_file, tmp_path, *flags):
  return ('--config=configs/adapt.py:pi_smoke', f'--workdir={tmp_path}/run',
          f'--config.checkpoint={checkpoint}', f'--config.text.path={text_file}',
          *flags)


@pytest.mark.slow
def test_the_command_runs_and_measures_lost_rows_again(
    run_here, checkpoint, text_file, tmp_path):
  command = _command(
      checkpoint, text_file, tmp_path, '--config.positions.factor=0')
  done = run_here('adapt', *command)
  assert done.returncode == 0, done.stderr
  assert ('Factor of pi: 2. L is 16 tokens, the checkpoint has 8.\n'
          '3 of 3 training') in done.stdout
  assert '3 of 3 training runs to do' in done.stdout
  folder = tmp_path / 'run'
  rows = results.read_run(folder, report.EXPERIMENT, ('none', 'pi', 'pi_alpha_0_1'))
  metrics = {row.metric for row in rows}
  assert {'nll', 'sliding', 'sce', 'symmetric_kl', 'training_loss'} <= metrics
  assert {row.length for row in rows if row.metric == 'nll'} == {8, 16, 32}
  for name in ('methods', 'pi', 'pi_by_length', 'sliding', 'steps', 'term'):
    assert (folder / f'tables/{name}.md').exists()
  assert (folder / 'figures/methods.png').exists() and (folder / 'index.html').exists()
  # Of each method, the control alone is measured before training.
  before = {line['arm']: {k: v for k, v in line.items() if k.startswith('nll')}
            for line in read_curves(folder / 'evaluations.jsonl') if not line['step']}
  assert [*before] == ['none', 'pi'] and before['pi'] != before['none']
  inputs = json.loads((folder / 'config.json').read_text())['config']['inputs']
  assert 1 < inputs['pair_nats'] < math.log(256) and inputs['original_length'] == 8
  assert inputs['factor'] == 2
  check_board(folder)
  whole = (folder / 'results.csv').read_bytes()
  lose_rows(folder)
  done = run_here('adapt', *command)
  assert '2 of 3 training runs to do' in done.stdout
  assert (folder / 'results.csv').read_bytes() == whole


@pytest.mark.slow
def test_arms_of_two_folders_are_joined_to_the_run_of_one(
    run_here, checkpoint, text_file, tmp_path):
  run = lambda name, *flags: run_here(
      'adapt', *_command(checkpoint, text_file, tmp_path / name, *flags))
  whole = run('whole', '--config.num_seeds=2')
  assert whole.returncode == 0, whole.stderr
  first = run('a', "--config.run_arms=('none',)", '--config.num_seeds=2')
  assert '2 of 2 training runs to do' in first.stdout, first.stderr
  moved = tmp_path / 'moved.txt'
  moved.write_bytes(text_file.read_bytes())
  for seeds, due in (1, 2), (2, 2):
    second = run('b', "--config.run_arms=('pi','pi_alpha_0_1')",
                 f'--config.num_seeds={seeds}', f'--config.text.path={moved}')
    assert f'{due} of {2 * seeds} training runs to do' in second.stdout, second.stderr
  parts = [f'{tmp_path}/{name}/run' for name in 'ab']
  joined = run_here('join', f'--workdir={tmp_path}/all/run', *parts)
  assert joined.returncode == 0, joined.stderr
  last = run('all', '--config.num_seeds=2')
  assert '0 of 6 training runs to do' in last.stdout, last.stderr
  for name in ('results.csv', 'tables/methods.md', 'tables/term.md'):
    expected = (tmp_path / 'whole/run' / name).read_bytes()
    assert (tmp_path / 'all/run' / name).read_bytes() == expected, name
  by_arm = lambda folder: {
      (line['arm'], line['first_seed'], line['step']): line
      for line in read_curves(tmp_path / folder / 'run/evaluations.jsonl')}
  assert by_arm('all') == by_arm('whole')
  wrong = run('wrong', "--config.run_arms=('ntk',)")
  assert (wrong.returncode, wrong.stderr) == (
      2, 'Error: config.run_arms must be one or more of none, pi, pi_alpha_0_1: ntk\n')


@pytest.mark.slow
def test_an_arm_may_have_another_weight(run_here, checkpoint, text_file, tmp_path):
  command = _command(checkpoint, text_file, tmp_path)[1:]
  done = run_here('adapt', '--config=configs/adapt.py:yarn_smoke', *command,
                  '--config.arms.yarn_alpha_0_1.weight=0.3')
  assert done.returncode == 0, done.stderr
  table = (tmp_path / 'run/tables/yarn.md').read_text()
  assert 'α = 0.3' in table and 'α = 0.1' not in table


@pytest.mark.long
@pytest.mark.slow
def test_devices_that_do_not_divide_the_batch_train_as_one(
    checkpoint, text_file, tmp_path, fast_compilation):
  found = {}
  for number in (1, 3, 32):
    done = subprocess.run(
        [sys.executable, '-m', 'experiments.adapt',
         *_command(checkpoint, text_file, tmp_path / str(number),
                   '--config.evaluate.offsets=(0.25,)')], cwd=ROOT,
        env={**os.environ, 'JAX_NUM_CPU_DEVICES': str(number)}, capture_output=True,
        text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert (f'rows on {number} devices' in done.stdout) == (number > 1)
    found[number] = {row.key: row.value for row in results.read_rows(
        tmp_path / str(number) / 'run/results.csv')}
  for number in (3, 32):
    assert found[number] == pytest.approx(found[1], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(('flags', 'message'), [
    ((), 'config.checkpoint is missing'),
    (('--config.checkpoint=nothing',), 'nothing is not a checkpoint'),
    (('--config.checkpoint=nothing', '--config.positions.factor=0.5'),
     'config.positions.factor must be a finite number of at least 1, or 0: 0.5'),
])
def test_bad_input_is_one_line(run_here, tmp_path, flags, message):
  done = run_here('adapt', '--config=configs/adapt.py:pi_smoke',
                  f'--workdir={tmp_path}/run', *flags)
  assert done.returncode == 2 and message in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1, done.stderr
  assert not (tmp_path / 'run').exists()
