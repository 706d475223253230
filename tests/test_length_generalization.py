"""The experiment from the command line: end to end, killed, grown, misused."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT
from vvlen import results

pytestmark = pytest.mark.slow

# A run of seconds that saves after every call of the trainer.
_SMALL = (
    '--config=configs/retrieval.py:smoke', '--config.model.width=8',
    '--config.train.batch_size=8', '--config.train.num_steps=24',
    '--config.train.steps_per_call=4', '--config.train.save_every_seconds=0.0',
    "--config.arms=('none','layer_norm')", '--config.evaluate.lengths=(16,32)',
    '--config.evaluate.histogram_lengths=(16,)',
)


def _command(workdir, *arguments):
  return [sys.executable, '-m', 'experiments.length_generalization',
          f'--workdir={workdir}', *arguments]


def _start(command, **options):
  return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, **options)


def _run(command, **options):
  process = _start(command, **options)
  out, err = process.communicate(timeout=300)
  return process.returncode, out, err


@pytest.fixture(scope='module', autouse=True)
def compilation_cache(tmp_path_factory):
  """Lets the runs of this file share what they compile, with no one else."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('JAX_COMPILATION_CACHE_DIR', str(tmp_path_factory.mktemp('cache')))
    patch.delenv('XLA_FLAGS', raising=False)
    yield


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The folder of a small run of four seeds that nothing disturbed."""
  folder = tmp_path_factory.mktemp('whole') / 'run'
  code, _, err = _run(_command(folder, *_SMALL, '--config.num_seeds=4'))
  assert code == 0, err
  return folder


def _contents(folder):
  names = ('results.csv', 'metrics.jsonl', 'tables/table_1.md')
  return {name: (folder / name).read_text() for name in names}


def test_killed_in_mid_run_then_resumed(whole, tmp_path):
  command = _command(tmp_path / 'run', *_SMALL, '--config.num_seeds=4')
  process = _start(command)
  curves = tmp_path / 'run/metrics.jsonl'
  # In the second block of seeds, and in mid-training.
  _wait(process, lambda: curves.exists() and re.search(
      r'"none", "step": (8|12), "first_seed": 2', curves.read_text()))
  process.kill()
  process.communicate()
  assert not (tmp_path / 'run/tables').exists()
  code, _, err = _run(command)
  assert code == 0, err
  assert _contents(tmp_path / 'run') == _contents(whole)


def test_killed_in_mid_save_then_resumed(whole, tmp_path):
  command = _command(tmp_path / 'run', *_SMALL, '--config.num_seeds=4')
  checkpoints = tmp_path / 'run/checkpoints'
  unfinished = lambda: list(checkpoints.glob('*/*/*orbax-checkpoint-tmp*'))
  for _ in range(10):
    process = _start(command)
    _wait(process, unfinished, pause=0.0)
    process.kill()
    process.communicate()
    if unfinished():
      break
  assert unfinished(), 'no kill fell into a save'
  code, _, err = _run(command)
  assert code == 0, err
  assert not unfinished()
  assert _contents(tmp_path / 'run') == _contents(whole)


def _wait(process, condition, pause=0.01):
  """Waits until something holds of a process that runs."""
  deadline = time.monotonic() + 120
  while not condition():
    assert process.poll() is None, process.communicate()
    assert time.monotonic() < deadline
    time.sleep(pause)


def test_interrupted_by_hand_says_how_to_go_on(tmp_path):
  process = _start(_command(tmp_path / 'run', *_SMALL))
  _wait(process, (tmp_path / 'run/metrics.jsonl').exists)
  process.send_signal(signal.SIGINT)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 130
  assert err == 'Interrupted. The same command resumes the run.\n'


def test_adding_seeds_changes_nothing_and_compiles_nothing_twice(whole, tmp_path):
  grown = tmp_path / 'run'
  environment = {**os.environ, 'JAX_LOG_COMPILES': '1'}
  code, _, log = _run(_command(grown, *_SMALL, '--config.num_seeds=2'), env=environment)
  assert code == 0
  compiled = log.count('Compiling jit(')
  two = {name: text.splitlines() for name, text in _contents(grown).items()}
  code, _, log = _run(_command(grown, *_SMALL, '--config.num_seeds=4'))
  assert code == 0, log
  assert _contents(grown) == _contents(whole)
  four = {name: text.splitlines() for name, text in _contents(grown).items()}
  assert set(two['results.csv']) < set(four['results.csv'])
  assert set(two['metrics.jsonl']) < set(four['metrics.jsonl'])
  # Two blocks of seeds at one go compile what one block does.
  code, _, log = _run(_command(tmp_path / 'both', *_SMALL, '--config.num_seeds=4'),
                      env=environment)
  assert code == 0
  assert 20 < compiled == log.count('Compiling jit(')
  assert _contents(tmp_path / 'both') == _contents(whole)


def test_arms_start_equal_and_see_the_same_data(tmp_path):
  # Without learning, LN is the standardization that it starts as.
  small = [word for word in _SMALL if not word.startswith('--config.arms')]
  code, _, err = _run(_command(
      tmp_path / 'run', *small, '--config.optimizer.learning_rate=1e-30',
      "--config.arms=('standardize','layer_norm')"))
  assert code == 0, err
  rows = results.index(results.read_rows(tmp_path / 'run/results.csv'))
  for (arm, metric, length), values in rows.items():
    if arm.startswith('standardize'):
      twin = rows[arm.replace('standardize', 'layer_norm'), metric, length]
      assert twin == pytest.approx(values, rel=1e-4, abs=1e-6), (metric, length)
  # Seeds do differ.
  loss = rows['layer_norm', 'loss', 32]
  assert abs(loss[0] - loss[1]) > 1e-4


def test_another_configuration_is_refused(whole):
  before = {p: p.read_bytes() for p in whole.rglob('*') if p.is_file()}
  code, out, err = _run(_command(whole, *_SMALL, '--config.num_seeds=4',
                                 '--config.optimizer.learning_rate=0.5'))
  assert (code, out) == (2, '')
  assert re.fullmatch(r'Error: \S+ holds another run \(optimizer.learning_rate: 0.001 '
                      r'there, 0.5 here\). Choose another --workdir.\n', err)
  assert {p: p.read_bytes() for p in whole.rglob('*') if p.is_file()} == before


def test_a_run_that_is_complete_only_writes_its_report_again(whole):
  before = _contents(whole)
  code, out, err = _run(_command(whole, *_SMALL, '--config.num_seeds=4'))
  assert code == 0, err
  assert '**Table 1.' in out
  assert _contents(whole) == before


@pytest.mark.parametrize('damage, words', [
    ('checkpoint', 'Damaged checkpoint'), ('results', 'results.csv is cut short'),
    ('config', 'is not the config.json of a run'),
])
def test_damaged_files_are_named(whole, tmp_path, damage, words):
  folder = tmp_path / 'run'
  subprocess.run(['cp', '-r', whole, folder], check=True)
  if damage == 'checkpoint':
    (folder / 'results.csv').unlink()
    for path in folder.glob('checkpoints/none/*/24/default/**/d/*'):
      path.write_bytes(path.read_bytes()[:100])
  elif damage == 'results':
    text = (folder / 'results.csv').read_text()
    (folder / 'results.csv').write_text(text[:-20])
  else:
    (folder / 'config.json').write_text('{')
  code, _, err = _run(_command(folder, *_SMALL, '--config.num_seeds=4'))
  assert code == 2
  assert err.startswith('Error: ') and err.count('\n') == 1 and words in err


def test_a_full_disk_is_one_line_and_nothing_half_written(tmp_path):
  # No file may grow beyond 6 kB, as results.csv does when the second arm comes.
  limit = ['bash', '-c', 'ulimit -f 6; exec "$@"', 'bash']
  environment = {**os.environ, 'JAX_ENABLE_COMPILATION_CACHE': 'false'}
  command = _command(tmp_path / 'run', *_SMALL)
  code, _, err = _run([*limit, *command], env=environment)
  assert code == 2
  assert err.startswith('Error: ') and err.count('\n') == 1, err
  before = results.read_rows(tmp_path / 'run/results.csv')
  assert not list((tmp_path / 'run').glob('.*.tmp'))
  code, _, err = _run(command)
  assert code == 0, err
  after = results.read_rows(tmp_path / 'run/results.csv')
  # What was there was whole: all rows of an arm or none.
  for arm in ('none', 'layer_norm'):
    mine = [[r for r in rows if r.arm.split('+')[0] == arm] for rows in (before, after)]
    assert mine[0] in ([], mine[1])
  assert len(before) < len(after)


@pytest.mark.parametrize('arguments, words', [
    (['--config.num_seeds=1'], 'num_seeds must be at least 2'),
    (['--config.train.num_steps=-20'], 'num_steps must be positive: -20'),
    (['--config.train.num_stepz=20'], 'num_stepz'),
    (['--config.train.num_steps=many'], 'many'),
    (['--config.train.num_steps=21'], '21 must be a multiple of steps_per_call 5'),
    (['--config.seed=-1'], 'config.seed must lie in 0'),
    (['--config.optimizer.l2=nan'], 'config.optimizer.l2 must be finite'),
    (['--config.train.min_length=17'], 'must not exceed max_length: 17 > 16'),
    (['--config.train.group_size=4'], 'seeds_at_once 2 must be a multiple'),
    (['--config.evaluate.lengths=()'], 'lengths must be positive integers'),
    (['--config.evaluate.lengths=(8,16)'], 'must go beyond config.train.max_length'),
    (['--config.evaluate.lengths=(16,1024)', '--config.evaluate.num_sequences=100'],
     '100 sequences of 1024 items'),
    (["--config.arms=('none','batch_norm')"], 'config.arms must be distinct'),
    (['--config.model.item_encoder=cnn'], "item_encoder must be of mlp, linear: 'cnn'"),
    (['--config=configs/retrieval.py:huge'], "not 'huge'"),
    (['--config=configs/absent.py'], 'absent.py'),
    (['--speed=11'], 'speed'),
    (['quick'], "unknown argument 'quick'"),
    (['--workdir=/dev/null/run'], '/dev/null/run'),
])
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, arguments, words):
  config = '--config=configs/retrieval.py:smoke'
  code, out, err = _run(_command(tmp_path / 'run', config, *arguments))
  assert (code, out) == (2, '')
  assert err.startswith('Error: ') and err.count('\n') == 1, err
  assert words in err
  assert not (tmp_path / 'run').exists()


def test_missing_flags_are_named():
  code, _, err = _run(_command('', '--config=configs/retrieval.py:smoke'))
  assert (code, err) == (2, 'Error: --workdir is missing\n')
