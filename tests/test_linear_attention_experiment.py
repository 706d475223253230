"""Linear attention as a model, its training, and the experiment from end to end."""

import itertools
import json
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import linear_attention as config_file
from experiments.linear_attention import figures, tables
from experiments.linear_attention import run as experiment
from tests.conftest import check_board, lose_rows, ROOT, shown
from vvlen import sharding
from vvlen.models import linear_attention as model_file
from vvlen.reporting import results
from vvlen.reporting.results import Row
from vvlen.theory import linear_attention as theory
from vvlen.training import ensemble

_TARGETS = {'mean': lambda x: sum(x) / len(x), 'length': len, 'sum': sum}


def _params(key, width):
  bits, length = jnp.zeros((1, 3), int), jnp.ones(1, int)
  return model_file.LinearAttention(width).init(key, bits, length)['params']


def _all_strings(n):
  """Returns bits [M, n], lengths and probabilities of all strings of 1..n bits."""
  strings = [x for k in range(1, n + 1) for x in itertools.product((0, 1), repeat=k)]
  bits = np.array([[*x, *[0] * (n - len(x))] for x in strings], np.int32)
  length = np.array([len(x) for x in strings], np.int32)
  return strings, bits, length, 0.5**length / n


@pytest.mark.parametrize('width', [1, 2, 5])
def test_the_model_is_a_loop_over_bits(key, width):
  params = _params(key, width)
  q, k, v = (np.asarray(params[name]['kernel'], float)
             for name in ('query', 'key', 'value'))
  bits = np.random.default_rng(0).integers(0, 2, (40, 7)).astype(np.int32)
  length = np.random.default_rng(1).integers(1, 8, 40).astype(np.int32)
  expected = [
      sum((q[x[m - 1]] @ k[b]) * v[b, 0] for b in x[:m]) / m
      for x, m in zip(bits, length, strict=True)
  ]
  apply = jax.jit(model_file.LinearAttention(width).apply)
  np.testing.assert_allclose(
      apply({'params': params}, bits, length), expected, rtol=1e-5, atol=1e-6)
  # Bits after the last are ignored.
  other = np.where(np.arange(7) < length[:, None], bits, 1 - bits)
  np.testing.assert_array_equal(
      apply({'params': params}, other, length), apply({'params': params}, bits, length))


def test_its_table_says_all_that_it_computes(key):
  params = _params(key, 3)
  table = np.asarray(model_file.table(params), float)
  strings, bits, length, _ = _all_strings(5)
  expected = [np.mean([table[x[-1], b] for b in x]) for x in strings]
  answer = model_file.LinearAttention(3).apply({'params': params}, bits, length)
  np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_any_table_is_that_of_a_model_in_float64_too():
  table = np.array([[0.3, -1.7], [2.2, 0.9]])
  with jax.enable_x64(True):
    params = model_file.from_table(table)
    np.testing.assert_array_equal(model_file.table(params), table)
    answer = model_file.LinearAttention(dtype=jnp.float64).apply(
        {'params': params}, jnp.array([[1, 0, 0]]), jnp.array([3]))
    assert answer.dtype == jnp.float64
    np.testing.assert_allclose(answer, [(2 * 0.3 - 1.7) / 3], rtol=1e-14)
  with pytest.raises(ValueError, match=r'table must be \[2, 2\]: \(4,\)'):
    model_file.from_table(np.zeros(4))


@pytest.mark.parametrize('task', theory.TASKS)
def test_what_is_trained_is_the_loss_over_all_strings(key, task):
  strings, bits, length, weight = _all_strings(6)
  target = np.array([_TARGETS[task](x) for x in strings], np.float32)
  model, params = model_file.LinearAttention(), _params(key, 2)

  def expected(params):
    answer = model.apply({'params': params}, bits, length)
    return (weight.astype(np.float32) * (answer - target) ** 2).sum()

  trained = experiment.problem(config_file.get_config(), task, 6)
  batch = trained.sample(key, 0)
  found = jax.value_and_grad(lambda p: trained.loss(p, batch)[0])(params)
  for one, other in zip(jax.tree.leaves(found),
                        jax.tree.leaves(jax.value_and_grad(expected)(params)),
                        strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('task', theory.TASKS)
def test_gradient_descent_reaches_the_exact_optimum(task):
  config = config_file.get_config()
  problem = experiment.problem(config, task, 10)
  trainer = ensemble.make_trainer(
      problem, steps_per_call=config.train.num_steps,
      mesh=jax.make_mesh((1,), ('seed',), devices=jax.devices()[:1],
                         axis_types=(jax.sharding.AxisType.Auto,)))
  state = ensemble.train(trainer, ensemble.seed_keys(0, 0, 4), config.train.num_steps)
  params = sharding.fetch(state.params)
  tables = np.asarray(jax.vmap(model_file.table)(params), float)
  exact = theory.fit(task, 10)
  # Of the mean, where A00 and A10 are 0, the way there is slow.
  np.testing.assert_allclose(
      tables, np.broadcast_to(exact.table, tables.shape),
      atol=1e-3 if task == 'mean' else 5e-5)
  for table in tables:
    training = np.mean([theory.loss(table, task, k) for k in range(1, 11)])
    assert 0 <= training - exact.train_loss + 1e-12 < 1e-7
    np.testing.assert_allclose(
        theory.loss(table, task, 50), theory.loss(exact.table, task, 50),
        rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('task', ['length', 'sum'])
def test_drawn_strings_have_the_exact_loss(task):
  config = config_file.get_config()
  table = theory.fit(task, 10).table
  for k, mean, error in experiment._sampled_losses(config, task, table):
    expected = theory.loss(table, task, k)
    assert abs(mean - expected) < 5 * error
    assert error < 0.05 * expected


@pytest.mark.parametrize('fields, words', [
    ({'tasks': ('median',)},
     "must be one or more of mean, length, sum, each once: ('median',)"),
    ({'tasks': ()},
     'config.tasks must be one or more of mean, length, sum, each once: ()'),
    ({'train_lengths': (0,)}, 'config.train_lengths must be one or more whole numbers'),
    ({'train_lengths': (5, 5)},
     'train_lengths must be one or more whole numbers from 1 to 2**31-1, each once: ('),
    ({'evaluate.max_length': 20}, 'must be beyond the training lengths: 20, 20'),
    ({'evaluate.sampled_lengths': (51,)}, 'must not exceed max_length: 51, 50'),
    ({'optimizer.learning_rate': 0.0},
     'config.optimizer.learning_rate must be a finite number above 0: 0.0'),
    ({'train.steps_per_call': 300}, 'num_steps 2000 must be a multiple of'),
    ({'num_seeds': 1}, 'config.num_seeds must be a whole number from 2 to 1000000, to'),
    ({'seed': -1}, 'config.seed must be a whole number from 0 to 2**32-1: -1'),
])
def test_a_configuration_that_cannot_run_is_told_before_it_starts(fields, words):
  config = config_file.get_config()
  config.update_from_flattened_dict(fields)
  with pytest.raises(ValueError, match=re.escape(words)):
    experiment.check(config)


def _run(workdir, *arguments):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.linear_attention',
       '--config=configs/linear_attention.py:smoke', f'--workdir={workdir}',
       *arguments],
      cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_bad_input_is_one_line_and_exit_code_2(run_here, tmp_path):
  done = run_here(
      'linear_attention', '--config=configs/linear_attention.py:smoke',
      f'--workdir={tmp_path}/run', "--config.tasks=('median',)")
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  words = "config.tasks must be one or more of mean, length, sum, each once: ('median"
  assert words in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.fixture(scope='module')
def whole(tmp_path_factory, fast_compilation):
  """A whole run of smoke, and what it printed."""
  workdir = tmp_path_factory.mktemp('whole') / 'run'
  done = _run(workdir)
  assert done.returncode == 0, done.stderr
  return workdir, done.stdout


@pytest.mark.slow
def test_a_run_writes_its_numbers_tables_and_figure(whole):
  workdir, out = whole
  assert f'Open {workdir}/index.html for all tables and figures.' in out
  page = (workdir / 'index.md').read_text()
  for number in ('1,909.423831', '488.207155', '1,980.250000', '515.744756',
                 '1,031.489512', '20.250000', '6.447858', '2.133422', '1,985.9'):
    assert f' {number} ' in page, number
  index = results.index(row for row in results.read_rows(workdir / 'results.csv')
                        if row.experiment == 'length_10')
  exact = theory.fit('length', 10)
  assert index['exact', 'training_loss', None] == {0: pytest.approx(exact.train_loss)}
  assert {*index['trained', 'loss', 50]} == {0, 1}
  for seed in (0, 1):
    trained = [index['trained', name, None][seed] for name in tables.ENTRIES]
    np.testing.assert_allclose(trained, exact.table.ravel(), atol=2e-3)
    # Of the model, on strings; of its table, by the theory.
    losses = [index['trained', 'loss', k][seed] for k in range(1, 11)]
    np.testing.assert_allclose(
        index['trained', 'training_loss', None][seed], np.mean(losses), rtol=1e-5)
  made = {path.relative_to(workdir).as_posix() for path in workdir.rglob('*.*')}
  assert {'figures/loss_10.png', 'figures/loss_10.pdf', 'tables/optimum.md',
          'tables/errata.csv', 'tables/sampled.md', 'tables/reparameterization.csv',
          'config.json', 'metrics.jsonl'} <= made
  assert json.loads((workdir / 'config.json').read_text())['sessions'][-1]['finished']
  check_board(workdir)


def test_the_title_says_for_which_tasks_there_is_no_error():
  indices = {task: results.index(
      Row(task, 'exact', 0, n, 'loss', loss) for n in (1, 2))
      for task, loss in (('mean', 0.0), ('length', 0.1), ('sum', 1e-3))}
  # Beyond the training length 1, the losses of the last panel.
  for arm, loss in (('single', 0.1), ('sqrt', 0.11), ('log', 0.12),
                    ('inverse_sqrt', 0.13)):
    indices['length'][arm, 'loss', 2] = {0: loss}
  title = lambda *tasks: figures._headline({task: indices[task] for task in tasks}, 1)
  assert title('mean', 'length', 'sum') == (
      'Exact at all lengths for the mean, not for the number and sum of bits; last '
      'panel: fits to √y, log y, 1/√y have 1.10 to 1.30 × the error of the optimum')
  assert title('mean') == 'Exact at all lengths for the mean of bits'
  assert title('sum') == 'Not exact for the sum of bits'


@pytest.mark.slow
def test_the_report_says_what_it_shows(whole):
  rows = results.read_rows(whole[0] / 'results.csv')
  indices = {
      tables.Setting(task, 10): results.index(
          r for r in rows if r.experiment == f'{task}_10')
      for task in theory.TASKS
  }
  table = tables.errata(indices, 50)
  assert shown(table, '(l + 1)/(2l)·(l − Γ)²')['over all strings'] == '515.744756'
  record, = [r for r in table.records if r['quantity'] == 'loss of Γ at l = n']
  assert record['all_strings'] == pytest.approx(4.5**2)
  sampled = tables.sampled(indices)
  differences = {r['task']: r['difference_in_errors'] for r in sampled.records}
  assert abs(differences['length']) < 5 and abs(differences['sum']) < 5
  assert np.isnan(differences['mean'])  # of 0, rounding
  decoded = [r['loss'] for r in tables.reparameterization(indices, 50).records
             if r['length'] == 50]
  np.testing.assert_allclose(decoded, [1909.4, 1934.0, 1960.4, 1985.9], atol=0.05)
  # A seed that is not finite is named, and does not enter the mean.
  indices[tables.Setting('sum', 10)]['trained', 'training_loss', None][1] = np.nan
  table = tables.optimum(indices, 50)
  assert 'Not finite, and left out: sum_10, seed 1.' in table.note
  record, = [r for r in table.records if (r['task'], r['table']) == ('sum', 'trained')]
  assert record['training_loss'] == pytest.approx(2.1334, abs=1e-3)


@pytest.mark.slow
def test_rows_lost_without_a_list_of_them_are_computed_again_or_named(whole, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(whole[0], workdir)
  (workdir / 'rows.json').unlink()  # as in a folder of an earlier version
  lines = (workdir / 'results.csv').read_text().splitlines(keepends=True)
  (workdir / 'results.csv').write_text(''.join(lines[:-3]))
  done = _run(workdir)
  assert done.returncode == 0, done.stderr
  assert 'has lost rows of sum_10 trained 1; they are computed again' in done.stdout
  assert (workdir / 'results.csv').read_text() == ''.join(lines)
  # Only the seed 0 has exact rows.
  (workdir / 'rows.json').unlink()
  (workdir / 'results.csv').write_text(
      ''.join(line for line in lines if ',exact,0,,table_11,' not in line))
  done = _run(workdir)
  assert (done.returncode, done.stderr.count('\n')) == (2, 1), done.stderr
  assert 'results.csv seems to have lost rows (' in done.stderr
  (workdir / 'results.csv').unlink()  # as it says
  assert _run(workdir).returncode == 0
  assert (workdir / 'results.csv').read_text() == ''.join(lines)


@pytest.mark.slow
def test_a_run_goes_on_and_grows_with_the_same_numbers(whole, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(whole[0], workdir)
  before = (workdir / 'results.csv').read_bytes()
  lose_rows(workdir)
  done = _run(workdir)
  assert done.returncode == 0, done.stderr
  assert (workdir / 'results.csv').read_bytes() == before
  # One task is trained again, two are read from their checkpoints; a seed is new.
  (workdir / 'results.csv').unlink()
  shutil.rmtree(workdir / 'checkpoints' / 'length_10')
  done = _run(workdir, '--config.num_seeds=3')
  assert done.returncode == 0, done.stderr
  rows = results.read_rows(workdir / 'results.csv')
  assert {row.seed for row in rows if row.arm == 'trained'} == {0, 1, 2}
  results.write_rows(tmp_path / 'old.csv', [row for row in rows if row.seed < 2])
  assert (tmp_path / 'old.csv').read_bytes() == before
  done = _run(workdir)
  assert (done.returncode, done.stdout) == (2, '')
  assert 'num_seeds: 3 there, 2 here (may only grow)' in done.stderr
  assert done.stderr.count('\n') == 1
