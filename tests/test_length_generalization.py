"""The experiment from the command line: end to end, killed, grown, misused."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import lookup
from configs.retrieval import get_config
from experiments.harness import seed_blocks
from experiments.harness.progress import Progress
from experiments.length_generalization import training
from experiments.length_generalization.check import check
from tests.conftest import check_board, lose_rows, ROOT
from vvlen.evaluation.retriever import distribution, lengths
from vvlen.evaluation.retriever import ensemble as of_block
from vvlen.models.retriever import Retriever
from vvlen.reporting import results
from vvlen.reporting.curves import Curves
from vvlen.tasks import retrieval
from vvlen.training import ensemble


def _of_runs(test):
  """Marks a test that trains and measures models by the command."""
  return pytest.mark.slow(pytest.mark.usefixtures('fast_compilation')(test))


# A run of seconds that saves after every call of the trainer.
_SMALL = (
    '--config=configs/retrieval.py:smoke', '--config.model.width=8',
    '--config.train.batch_size=8', '--config.train.num_steps=24',
    '--config.train.steps_per_call=4', '--config.train.save_every_seconds=0.0',
    "--config.arms=('none','layer_norm')", '--config.evaluate.lengths=(16,32)',
    '--config.evaluate.histogram_lengths=(16,)',
)
_INTERRUPTED = 'Interrupted. The same command resumes the run.\n'


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


@pytest.fixture(scope='module')
def whole(tmp_path_factory, fast_compilation):
  """The folder of a small run of four seeds that nothing disturbed."""
  folder = tmp_path_factory.mktemp('whole') / 'run'
  code, _, log = _run(_command(folder, *_SMALL, '--config.num_seeds=4'),
                      env={**os.environ, 'JAX_LOG_COMPILES': '1'})
  assert code == 0, log
  (folder.parent / 'log').write_text(log)
  return folder


def _contents(folder):
  names = ('results.csv', 'metrics.jsonl', 'tables/table_1.md')
  return {name: (folder / name).read_text() for name in names}


@_of_runs
def test_killed_in_mid_save_then_resumed(whole, tmp_path):
  command = _command(tmp_path / 'run', *_SMALL, '--config.num_seeds=4')
  curves, checkpoints = tmp_path / 'run/metrics.jsonl', tmp_path / 'run/checkpoints'
  unfinished = lambda: list(checkpoints.glob('*/*/*orbax-checkpoint-tmp*'))
  for _ in range(10):
    process = _start(command)
    # In the second block of seeds, and in mid-training.
    _wait(process, lambda: curves.exists() and re.search(
        r'"none", "step": (8|12), "first_seed": 2', curves.read_text()))
    _wait(process, unfinished, pause=0.0)
    process.kill()
    process.communicate()
    if unfinished():
      break
  assert unfinished(), 'no kill fell into a save'
  assert not (tmp_path / 'run/tables').exists()
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


@_of_runs
def test_interrupted_by_hand_says_how_to_go_on(tmp_path):
  # A shell's background jobs ignore SIGINT, and so would what they start.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    process = _start(_command(tmp_path / 'run', *_SMALL))
  finally:
    signal.signal(signal.SIGINT, before)
  _wait(process, (tmp_path / 'run/metrics.jsonl').exists)
  process.send_signal(signal.SIGINT)
  _, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (130, _INTERRUPTED)


@pytest.mark.slow
def test_an_interrupt_in_a_destructor_is_not_lost(tmp_path):
  script = tmp_path / 'script.py'
  script.write_text('''
import sys, time
from experiments.harness import command_line

class Interrupted:
  def __del__(self):
    raise KeyboardInterrupt

def main(config, workdir):
  Interrupted()  # as Ctrl-C would be, if it came while an array is deleted
  time.sleep(60)

command_line.run(main, needs=())
''')
  command = [sys.executable, str(script), '--config=configs/retrieval.py:smoke',
             f'--workdir={tmp_path}']
  code, _, err = _run(command, env={**os.environ, 'PYTHONPATH': str(ROOT)})
  assert (code, err) == (130, _INTERRUPTED)


_WAITING = '''
import time
from experiments.harness import command_line, locks

def main(config, workdir):
  locks.lock(workdir)
  print('at work', flush=True)
  time.sleep(60)

command_line.run(main, needs=())
'''


@pytest.mark.parametrize('ignored', [False, True])
def test_a_closed_terminal_stops_a_run_as_sigterm_does(tmp_path, ignored):
  script, folder = tmp_path / 'script.py', tmp_path / 'run'
  script.write_text(_WAITING)
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
  try:
    process = _start(
        [sys.executable, str(script), '--config=configs/retrieval.py:smoke',
         f'--workdir={folder}'], env={**os.environ, 'PYTHONPATH': str(ROOT)})
  finally:
    signal.signal(signal.SIGHUP, before)
  assert process.stdout.readline() == 'at work\n'
  assert (folder / '.vvlen.lock').exists()
  process.send_signal(signal.SIGHUP)
  if ignored:  # as nohup does
    with pytest.raises(subprocess.TimeoutExpired):
      process.wait(timeout=1)
    process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (
      143, 'Told to stop. The same command resumes the run.\n')
  assert not folder.exists()


def test_a_second_process_is_kept_out_of_the_folder(run_here, tmp_path):
  script, folder = tmp_path / 'script.py', tmp_path / 'run'
  script.write_text(_WAITING)
  first = _start([sys.executable, str(script), '--config=configs/retrieval.py:smoke',
                  f'--workdir={folder}'], env={**os.environ, 'PYTHONPATH': str(ROOT)})
  try:
    assert first.stdout.readline() == 'at work\n'
    done = run_here('length_generalization', f'--workdir={folder}', *_SMALL)
    assert (done.returncode, done.stderr) == (
        2, f'Error: another process is at work in {folder}\n')
    assert first.poll() is None
    assert [path.name for path in folder.iterdir()] == ['.vvlen.lock']
  finally:
    first.kill()
    first.communicate()


@pytest.mark.long
@_of_runs
def test_adding_seeds_changes_nothing_and_compiles_nothing_twice(whole, tmp_path):
  grown = tmp_path / 'run'
  environment = {**os.environ, 'JAX_LOG_COMPILES': '1'}
  code, _, log = _run(_command(grown, *_SMALL, '--config.num_seeds=2'), env=environment)
  assert code == 0
  compiled = log.count('Compiling jit(')
  two = {name: text.splitlines() for name, text in _contents(grown).items()}
  code, out, log = _run(_command(grown, *_SMALL, '--config.num_seeds=4'))
  assert code == 0, log
  assert 'Seeds are added to results: p-values are valid only' in out
  assert _contents(grown) == _contents(whole)
  four = {name: text.splitlines() for name, text in _contents(grown).items()}
  assert set(two['results.csv']) < set(four['results.csv'])
  assert set(two['metrics.jsonl']) < set(four['metrics.jsonl'])
  # Two blocks of seeds in one run compile no more programs than one block.
  both = (whole.parent / 'log').read_text()
  assert 20 < compiled == both.count('Compiling jit(')


@_of_runs
def test_arms_start_equal_and_see_the_same_data(tmp_path):
  # Without training, LN is still the standardization of its initialization.
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


@_of_runs
def test_another_configuration_is_refused(run_here, whole):
  before = {p: p.read_bytes() for p in whole.rglob('*') if p.is_file()}
  done = run_here('length_generalization', f'--workdir={whole}', *_SMALL,
                  '--config.num_seeds=4', '--config.optimizer.learning_rate=0.5')
  assert (done.returncode, done.stdout) == (2, '')
  assert re.fullmatch(r'Error: \S+ holds another run \(optimizer.learning_rate: 0.001 '
                      r'there, 0.5 here\). Choose another --workdir.\n', done.stderr)
  assert {p: p.read_bytes() for p in whole.rglob('*') if p.is_file()} == before


@_of_runs
def test_a_run_that_is_complete_only_writes_its_report_again(whole):
  before = _contents(whole)
  code, out, err = _run(_command(whole, *_SMALL, '--config.num_seeds=4'))
  assert code == 0, err
  assert 'Primary endpoint. ' in out
  check_board(whole)
  assert _contents(whole) == before


@pytest.mark.long
@_of_runs
def test_quick_deletes_the_checkpoints_of_seeds_that_are_finished(whole, tmp_path):
  small = [word.replace(':smoke', ':quick') for word in _SMALL]
  command = _command(
      tmp_path / 'run', *small, '--config.num_seeds=4',
      '--config.train.seeds_at_once=2',
      '--config.evaluate.num_sequences=64', '--config.evaluate.fit_lengths=(16,32)',
      '--config.evaluate.fit_sequences=32', '--config.evaluate.histogram_sequences=64')
  code, _, err = _run(command)
  assert code == 0, err
  assert _contents(tmp_path / 'run') == _contents(whole)
  left = [path for path in (tmp_path / 'run/checkpoints').rglob('*') if path.is_file()]
  assert not left and any((whole / 'checkpoints').rglob('checksums'))
  # They may be asked for later; what is finished stays as it is.
  code, out, err = _run([*command, '--config.train.keep_checkpoints=True'])
  assert code == 0, err
  assert out.startswith('All seeds are already trained and measured.')
  lose_rows(tmp_path / 'run')
  code, _, err = _run([*command, '--config.train.keep_checkpoints=True'])
  assert code == 0, err
  assert _contents(tmp_path / 'run') == _contents(whole)
  [arm] = (tmp_path / 'run/checkpoints/none').iterdir()
  assert any(arm.iterdir())


@_of_runs
def test_lost_rows_are_measured_again_from_checkpoints_and_compressed_results(
    whole, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(whole, folder)
  saved = {p: p.read_bytes() for p in folder.glob('checkpoints/**/*') if p.is_file()}
  lose_rows(folder)
  results.compress(folder / 'results.csv')
  code, out, err = _run(_command(folder, *_SMALL, '--config.num_seeds=4'))
  assert code == 0, err
  assert 'results.csv has lost rows of none 3 and 1 more; they are computed' in out
  assert _contents(folder) == _contents(whole)
  assert not (folder / 'results.csv.xz').exists()
  assert {p: p.read_bytes() for p in saved} == saved


@_of_runs
@pytest.mark.parametrize('damage, words', [
    ('checkpoint', 'Damaged checkpoint'), ('results', 'results.csv is cut short'),
    ('arm', 'results.csv has a row that is not of this run. Delete its line: retrieval,'
            'nine,0,16,accuracy,'),
    ('config', 'is not the config.json of a run'),
])
def test_damaged_files_are_named(whole, tmp_path, damage, words):
  folder = tmp_path / 'run'
  subprocess.run(['cp', '-r', whole, folder], check=True)
  if damage == 'checkpoint':
    (folder / 'results.csv').unlink()
    for path in folder.glob('checkpoints/none/*/*/default/**/d/*'):  # of all steps
      path.write_bytes(path.read_bytes()[:100])
  elif damage == 'results':
    text = (folder / 'results.csv').read_text()
    (folder / 'results.csv').write_text(text[:-20])
  elif damage == 'arm':
    text = (folder / 'results.csv').read_text()
    assert ',none,0,16,accuracy,' in text
    (folder / 'results.csv').write_text(
        text.replace(',none,0,16,accuracy,', ',nine,0,16,accuracy,'))
  else:
    (folder / 'config.json').write_text('{')
  code, _, err = _run(_command(folder, *_SMALL, '--config.num_seeds=4'))
  assert code == 2
  assert err.startswith('Error: ') and err.count('\n') == 1 and words in err


@_of_runs
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
  # The file was complete: it had all rows of an arm or none.
  for arm in ('none', 'layer_norm'):
    mine = [[r for r in rows if r.arm.split('+')[0] == arm] for rows in (before, after)]
    assert mine[0] in ([], mine[1])
  assert len(before) < len(after)


@pytest.mark.parametrize('arguments, words', [
    (['--config.train.num_steps=-20'],
     'config.train.num_steps must be a whole number from 1 to 2**31-1: -20'),
    (['--config.train.num_stepz=20'], 'num_stepz'),
    (['--config.train.num_steps=many'], 'many'),
    (['--config.train.num_steps=21'],
     '21 must be a multiple of config.train.steps_per_call 5'),
    (['--config=configs/retrieval.py:huge'], "without a variant it is paper: 'huge'"),
    (['--config=configs/absent.py'], 'absent.py'),
    (['--speed=11'], 'speed'),
    (['quick'], "unknown argument 'quick'"),
    (['--config=configs/mechanism.py'], 'config has no task, model, train, optimizer'),
    (['--workdir=/dev/null/run'], '/dev/null/run'),
])
def test_bad_input_is_one_line_and_exit_code_2(run_here, tmp_path, arguments, words):
  done = run_here('length_generalization', f'--workdir={tmp_path}/run',
                  '--config=configs/retrieval.py:smoke', *arguments)
  assert (done.returncode, done.stdout) == (2, '')
  err = done.stderr
  assert err.startswith('Error: ') and err.count('\n') == 1, err
  assert words in err
  assert not (tmp_path / 'run').exists()


def test_missing_flags_are_named(run_here):
  done = run_here('length_generalization', '--config=configs/retrieval.py:smoke')
  assert (done.returncode, done.stderr) == (2, 'Error: --workdir is missing\n')


def _config(**fields):
  """Returns the smoke configuration with fields, 'group__name', set."""
  config = get_config('smoke')
  for name, value in fields.items():
    *groups, name = name.split('__')
    group = config[groups[0]] if groups else config
    with group.ignore_type():
      group[name] = value
  return config


@pytest.mark.parametrize('fields, words', [
    (dict(num_seeds=1),
     'config.num_seeds must be a whole number from 2 to 1000000, to test a diff'),
    (dict(seed=-1), 'config.seed must be a whole number from 0 to 2**32-1: -1'),
    (dict(optimizer__l2=float('nan')),
     'config.optimizer.l2 must be a finite number of at least 0: nan'),
    (dict(train__min_length=17), 'must not exceed max_length: 17 > 16'),
    (dict(evaluate__lengths=()),
     'must be one or more whole numbers from 1 to 2**24, each once: ()'),
    (dict(evaluate__lengths=(8, 16)), 'must go beyond config.train.max_length'),
    (dict(evaluate__lengths=(32, 32)), 'from 1 to 2**24, each once: (32, 32)'),
    (dict(evaluate__fit_lengths=(2**24 + 1,)), 'whole numbers from 1 to 2**24: (1677'),
    (dict(evaluate__histogram_lengths=(2**24 + 1,)), 'to 2**24, each once: (167'),
    (dict(train__seeds_at_once=10**6 + 1), 'a whole number from 1 to 1000000: 1000001'),
    (dict(train__save_every_seconds=float('nan')),
     'save_every_seconds must be a finite number of at least 0: nan'),
    (dict(arms=('none', 'batch_norm')),
     'config.arms must be one or more of none, standardize, layer_norm, each once'),
    (dict(model__item_encoder='cnn'), "item_encoder must be one of mlp, linear: 'cnn'"),
    (dict(task__num_classes=1),
     'task.num_classes must be a whole number from 2 to 2**31-1: 1'),
    (dict(model__width=0),
     'config.model.width must be a whole number from 1 to 2**24: 0'),
    (dict(optimizer__learning_rate=0.0),
     'config.optimizer.learning_rate must be a finite number above 0: 0.0'),
    (dict(optimizer__learning_rate=float('inf')),
     'config.optimizer.learning_rate must be a finite number above 0: inf'),
    (dict(optimizer__l2=-1.0), 'l2 must be a finite number of at least 0: -1.0'),
    (dict(task__name='lookup', task__num_keys=64, evaluate__fit_lengths=(128,)),
     'go up to 128, but a sequence of this task has at most 64 items: task.num_keys'),
    (dict(evaluate__weight_sequences=0), 'weight_sequences must be a whole number'),
    (dict(seed=2**32), 'seed must be a whole number from 0 to 2**32-1: 4294967296'),
    (dict(task__name='sorting'), 'must be retrieval, lookup, or FILE.py:'),
    (dict(task__name='lookup', task__num_keys=63), 'go up to 64, but a sequence of'),
    (dict(task__name='lookup'), 'config lacks a field: task.num_keys, which must be a'),
    (dict(task__num_keys=64), 'config has no field task.num_keys'),
    (dict(task__name='lookup', task__num_keys=64, task__informative_query=True),
     'task.informative_query must be False, as only retrieval supports it: True'),
    (dict(train__first_max_length=17), 'must lie in min_length..max_length: 5, 17, 16'),
    (dict(evaluate__fit_lengths=(0, 16)), 'fit_lengths must be whole numbers from 1'),
    (dict(evaluate__histogram_lengths=(1.5,)),
     'whole numbers from 1 to 2**24, each once: (1.5,)'),
    (dict(arms=()),
     'config.arms must be one or more of none, standardize, layer_norm, each once: ()'),
    (dict(arms=('none', 'none')),
     "arms must be one or more of none, standardize, layer_norm, each once: ('none',"),
    (dict(model__depth=2), 'config has no field model.depth'),
    (dict(model__width='wide'),
     "model.width must be a whole number from 1 to 2**24: 'wide'"),
    (dict(train__max_length=16.0),
     'train.max_length must be a whole number from 1 to 2**31-1: 16.0'),
    (dict(optimizer__l2='x'), "l2 must be a finite number of at least 0: 'x'"),
    (dict(task__num_classes=None),
     'task.num_classes must be a whole number from 2 to 2**31-1: None'),
    # This is found before anything is trained.
    (dict(evaluate__lengths=(16, 2**31)),
     'whole numbers from 1 to 2**24, each once: (16, 2147483648)'),
    (dict(train__batch_size=True),
     'train.batch_size must be a whole number from 1 to 2**31-1: True'),
    (dict(train__num_step=5), 'no field train.num_step: is it train.num_steps?'),
    (dict(train=3), 'config.train must have fields, such as train.num_steps: 3'),
])
def test_a_configuration_that_cannot_run_is_named(fields, words):
  check(_config())
  config = _config(**fields)
  with pytest.raises(ValueError, match=re.escape(words)):
    check(config)


@pytest.mark.parametrize('field', [
    'task.name', 'model.width', 'optimizer.l2', 'evaluate.weight_sequences',
    'train.group_size', 'train', 'seed',
])
def test_a_configuration_that_lacks_a_field_is_named(field):
  config = _config()
  *groups, name = field.split('.')
  del (config[groups[0]] if groups else config)[name]
  with pytest.raises(ValueError, match=f'config lacks a field: .*{name}'):
    check(config)


def test_what_a_task_of_ones_own_reads_is_its_own():
  config = _config(task__name=f'{ROOT}/docs/examples/second_largest.py:make_task')
  with config.unlocked():
    config.task.noise = 'a little'
  check(config)
  config.train.batch_size = 0
  with pytest.raises(ValueError, match=r'config\.train\.batch_size must be a whole'):
    check(config)


def test_rows_stand_in_the_order_of_arms_and_the_new_replace_the_old():
  config = _config(arms=('standardize', 'none'))
  rows = [
      results.Row('retrieval', arm, seed, length, metric, 0.5)
      for arm in ('standardize', 'standardize+fitted', 'none')
      for seed in (2, 10)
      for length, metric in ((None, 'loss'), (16, 'accuracy'), (16, 'loss'),
                             (128, 'accuracy'))
  ]
  shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
  old = [row._replace(value=0.1) for row in shuffled[3:]]
  assert seed_blocks.merge(config.arms, old, shuffled[:9]) == [
      row if row in shuffled[:9] else row._replace(value=0.1) for row in rows
  ]


def _small_problem(**fields):
  config = _config(
      train__batch_size=64, task__num_classes=3, model__width=4, **fields)
  return training.problem(config, 'none')


@pytest.mark.slow
def test_decay_is_of_the_kernels_of_both_models_alone():
  decayed = set()
  for config in (_config(), lookup.get_config('smoke')):
    config.optimizer.update(l2=0.5, learning_rate=0.25)
    problem = training.problem(config, 'layer_norm')
    params = jax.tree.map(
        lambda x: jnp.ones(x.shape), jax.eval_shape(problem.init, jax.random.key(0)))
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates, _ = problem.optimizer.update(
        nothing, problem.optimizer.init(params), params)
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
      is_kernel = path[-1].key.endswith('kernel')
      assert (np.asarray(update) != 0).all() == is_kernel, path
      decayed.add((path[-1].key, is_kernel))
  assert {('key_embedding', False), ('value_embedding', False), ('kernel', True),
          ('query_kernel', True), ('scale', False), ('bias', False)} <= decayed


def test_l2_is_of_the_kernels_alone_and_added_before_adam():
  problem = _small_problem(optimizer__l2=0.5, optimizer__learning_rate=0.25)
  params = {'kernel': 2 * jnp.ones((2, 3)), 'bias': 2 * jnp.ones(3)}
  state = problem.optimizer.init(params)
  # Adam's first step is the learning rate times the sign of the gradient.
  for gradient, kernel, bias in ((0.0, -0.25, 0.0), (-0.9, -0.25, 0.25),
                                 (-1.1, 0.25, 0.25)):
    gradients = jax.tree.map(lambda x, g=gradient: jnp.full_like(x, g), params)
    updates, _ = problem.optimizer.update(gradients, state, params)
    np.testing.assert_allclose(updates['kernel'], kernel, rtol=1e-4)
    np.testing.assert_allclose(updates['bias'], bias, rtol=1e-4)


def _with_decay_of_all():
  config = _config(optimizer__l2=0.3, optimizer__learning_rate=0.01)
  with config.unlocked():
    config.optimizer.l2_on = 'all'
  return training.problem(config, 'layer_norm')


def test_l2_on_all_is_of_every_parameter():
  problem = _with_decay_of_all()
  params = jax.tree.map(
      lambda x: jnp.ones(x.shape), jax.eval_shape(problem.init, jax.random.key(0)))
  nothing = jax.tree.map(jnp.zeros_like, params)
  updates, _ = problem.optimizer.update(nothing, problem.optimizer.init(params), params)
  for path, update in jax.tree_util.tree_leaves_with_path(updates):
    assert (np.asarray(update) < 0).all(), path


def _adam(params, gradients, rate, decay):
  """Returns parameters after steps of Adam, decay times each added to its gradient."""
  params, first, second = dict(params), {}, {}
  for t, step in enumerate(gradients, 1):
    for name, g in step.items():
      g = g + decay * params[name]
      first[name] = 0.9 * first.get(name, 0) + 0.1 * g
      second[name] = 0.999 * second.get(name, 0) + 0.001 * g**2
      mean, square = first[name] / (1 - 0.9**t), second[name] / (1 - 0.999**t)
      params[name] = params[name] - rate * mean / (np.sqrt(square) + 1e-8)
  return params


def _adam_of_torch(params, gradients, rate, decay):
  torch = pytest.importorskip(
      'torch', reason="compares with PyTorch: pip install '.[oracle]'")
  theirs = {name: torch.tensor(x, requires_grad=True) for name, x in params.items()}
  adam = torch.optim.Adam(theirs.values(), lr=rate, weight_decay=decay)
  for step in gradients:
    for name, x in theirs.items():
      x.grad = torch.tensor(step[name])
    adam.step()
  return {name: x.detach().numpy() for name, x in theirs.items()}


@pytest.mark.slow
@pytest.mark.parametrize('oracle', [_adam, _adam_of_torch])
def test_l2_on_all_is_weight_decay_within_adam(oracle):
  rng = np.random.default_rng(0)
  shapes = {'kernel': (3, 4), 'bias': (4,), 'scale': (4,), 'embedding': (5, 2)}
  draw = lambda: {name: rng.normal(size=x).astype(np.float32)
                  for name, x in shapes.items()}
  params, gradients = draw(), [draw() for _ in range(20)]
  expected = oracle(params, gradients, 0.01, 0.3)
  optimizer = _with_decay_of_all().optimizer
  state = optimizer.init(params)
  for step in gradients:
    updates, state = optimizer.update(step, state, params)
    params = jax.tree.map(lambda x, u: x + u, params, updates)
  for name, x in expected.items():
    np.testing.assert_allclose(params[name], x, rtol=1e-4, atol=1e-5)


def test_decoupled_decay_is_of_the_kernels_and_does_not_meet_adam():
  config = _config(optimizer__l2=0.5, optimizer__learning_rate=0.25)
  with config.unlocked():
    config.optimizer.decoupled = True
  optimizer = training.problem(config, 'none').optimizer
  params = {'kernel': 2 * jnp.ones((2, 3)), 'bias': 2 * jnp.ones(3)}
  for gradient, kernel, bias in ((0.0, -0.25, 0.0), (-0.9, 0.0, 0.25)):
    gradients = jax.tree.map(lambda x, g=gradient: jnp.full_like(x, g), params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    # The rate times (the sign of the gradient + 0.5 of the kernel).
    np.testing.assert_allclose(updates['kernel'], kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(updates['bias'], bias, rtol=1e-4)


def test_a_rate_that_decays_is_zero_at_its_last_step():
  config = _config(optimizer__learning_rate=0.25, optimizer__l2=0.0)
  with config.unlocked():
    config.optimizer.decay_steps = 4
  optimizer = training.problem(config, 'none').optimizer
  params, steps = {'kernel': jnp.ones((2, 3))}, []
  state = optimizer.init(params)
  for _ in range(5):
    updates, state = optimizer.update(params, state, params)
    steps.append(-float(updates['kernel'][0, 0]))
  # Adam's step on a gradient that stays is the rate.
  np.testing.assert_allclose(steps, [0.25, 0.1875, 0.125, 0.0625, 0.0], rtol=1e-4)


@pytest.mark.slow
def test_initial_kernels_are_those_of_their_name():
  for name, largest in (('lecun_normal', None), ('uniform', 1 / 128**0.5)):
    config = _config()
    with config.unlocked():
      config.model.kernel_init = name
    problem = training.problem(config, 'none')
    kernel = np.asarray(problem.init(jax.random.key(0))['attention']['value_kernel'])
    deviation = 128**-0.5 / (1 if largest is None else 3**0.5)
    np.testing.assert_allclose(kernel.std(), deviation, rtol=0.05)
    if largest is not None:
      assert 0.99 * largest < np.abs(kernel).max() <= largest


@pytest.mark.slow
def test_training_draws_all_its_lengths_and_padding_does_not_count(key):
  problem = _small_problem(train__min_length=5, train__max_length=8)
  batch = problem.sample(key, 0)
  assert batch.items.shape == (64, 8, 4)
  assert set(np.asarray(batch.mask.sum(1)).tolist()) == {5, 6, 7, 8}
  params = problem.init(key)
  other = batch._replace(items=jnp.where(batch.mask[..., None], batch.items, 9.0))
  loss, metrics = problem.loss(params, batch)
  np.testing.assert_allclose(problem.loss(params, other)[0], loss, rtol=1e-5)
  assert 0 < metrics['accuracy'] < 1
  broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
  assert jnp.isnan(problem.loss(broken, batch)[1]['accuracy'])


@_of_runs
@pytest.mark.parametrize('name, table', [('retrieval', 4), ('lookup', 5)])
def test_growing_lengths_make_tables_4_and_5(tmp_path, name, table):
  folder = tmp_path / 'run'
  # Given twice, a tuple of a config would have the entries of both.
  small = [word for word in _SMALL[1:] if '--config.evaluate.' not in word]
  code, _, err = _run(_command(
      folder, f'--config=configs/{name}.py:smoke_growing', *small,
      '--config.evaluate.lengths=(32,64)', '--config.evaluate.fit_lengths=()',
      '--config.evaluate.histogram_lengths=(16,)'))
  assert code == 0, err
  page = (folder / 'index.md').read_text()
  assert f'**Table {table}. Accuracy by length' in page
  assert 'Mean accuracy over N = 64 to 64' in page
  assert (folder / f'tables/table_{table}.csv').exists()
  assert not (folder / 'tables/table_3.md').exists()


@pytest.mark.slow
def test_a_block_is_the_seeds_that_it_says(tmp_path, monkeypatch):
  # Seeds 0 and 1, then 2 and 3, of which 3 is not asked for.
  config = _config(
      seed=7, num_seeds=3, model__width=4, train__batch_size=8, train__num_steps=4,
      train__steps_per_call=2, evaluate__lengths=(32,), evaluate__fit_lengths=(16,),
      evaluate__num_sequences=16, evaluate__histogram_lengths=(16,))
  mesh = jax.make_mesh((1,), ('seed',), devices=jax.devices()[:1],
                       axis_types=(jax.sharding.AxisType.Auto,))
  entropies = []

  def fit(entropy, beta):
    entropies.append(entropy)
    return np.eye(5)[4]

  monkeypatch.setattr(of_block.temperature, 'fit', fit)
  arm = training.make_arm([config], 'layer_norm', mesh)
  place = seed_blocks.Place(
      'retrieval', tmp_path, Curves(tmp_path / 'metrics.jsonl'))
  rows = []
  with Progress(16, 'seed-steps') as progress:
    for first in (0, 2):
      rows += training.run_block(arm, [place], first, 4, progress)
  index = results.index(rows)
  assert {arm for arm, _, _ in index} == {
      'layer_norm', 'layer_norm+adaptive', 'layer_norm+fitted'}
  assert {tuple(values) for values in index.values()} == {(0, 1, 2)}

  # The same by hand.
  model = Retriever(num_classes=10, norm='layer_norm', **config.model)
  problem = training.problem(config, 'layer_norm')
  trainer = ensemble.make_trainer(problem, steps_per_call=2, mesh=mesh)
  apply = lengths.make_apply(model)
  sample = lambda key, num_sequences, length: retrieval.sample(
      key, batch_size=num_sequences, min_length=length, max_length=length)
  evaluate = jax.jit(lambda params, key: lengths.evaluate(
      apply, sample, params, key, np.eye(5)[4].astype(np.float32), length=32,
      num_sequences=16, fixed_query=np.array([0.5], np.float32))[''])
  best_betas = jax.jit(lambda params, key: lengths.best_betas(
      apply, sample, params, key, length=16, num_sequences=32))
  late = []
  for seed in range(3):
    keys = ensemble.seed_keys(7, seed, 1)
    state = ensemble.train(trainer, keys, 4, on_progress=lambda _, m: late.append(m))
    params = {'params': jax.tree.map(lambda x: x[0], state.params)}
    test, validation = (ensemble.purpose_key(keys[0], purpose)
                        for purpose in (ensemble.TEST, ensemble.VALIDATION))
    measured = evaluate(params, test)
    absent = {m for _, m, n in index if n == 32} - measured.keys()
    assert absent == {'input_distance'}  # tested with `make_measure`
    for name, value in measured.items():
      assert index['layer_norm', name, 32][seed] == pytest.approx(
          float(value), rel=1e-4, abs=1e-6)
    for name, values in late[-1].items():
      assert index['layer_norm', f'training_{name}', None][seed] == pytest.approx(
          values[0], rel=1e-5)
    np.testing.assert_allclose(
        entropies[seed], best_betas(params, validation)[0], rtol=1e-4)
    if seed == 0:
      shown = distribution.top_weights(
          apply, sample, params, test, length=32, num_sequences=32, num_items=16,
          order=lambda batch, weights: batch.items[..., 0])
      samples = results.read_samples(tmp_path / 'samples')['layer_norm']
      np.testing.assert_allclose(samples['weights_32'], shown, rtol=1e-4, atol=1e-6)


_SIGNALLED = """
import signal, sys, time
from experiments.harness import command_line
from vvlen.training.preemption import Preempted

sys.unraisablehook = command_line._interrupt_again
signal.signal(signal.SIGTERM, command_line._stop)

class Dying:
  def __del__(self):
    signal.raise_signal(signal.{})

try:
  try:
    Dying()
    time.sleep(9)
  except Exception:
    print('lost in a library')
except (KeyboardInterrupt, Preempted) as told:
  print(type(told).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize('name,raised', [
    ('SIGTERM', 'Preempted'), ('SIGINT', 'KeyboardInterrupt')])
def test_a_signal_is_not_lost_where_exceptions_are(name, raised):
  out = subprocess.run([sys.executable, '-c', _SIGNALLED.format(name)], cwd=ROOT,
                       capture_output=True, text=True, timeout=100)
  assert out.stdout == f'{raised}\n', out.stderr
