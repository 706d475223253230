"""The experiment of counting: training, measuring, tables, and the command itself."""

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

from etils import epath
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from scipy import stats

from configs import counting as config_file
from experiments.counting import figures as counting_figures
from experiments.counting import report, tables, training
from experiments.counting import run as experiment
from experiments.counting.cells import all_cells, FigureSetups, read_figures, Setup
from tests.conftest import check_board, ROOT, shown
from vvlen import sharding
from vvlen.reporting import results
from vvlen.tasks import counting
from vvlen.training import ensemble
from vvlen.training.step import init_state, train_steps

_CELL = Setup('sum', 'fair', 5, 'none', 'inverse_sqrt')


def _config(**fields):
  config = config_file.get_config('smoke')
  config.update_from_flattened_dict(fields)
  return config


def test_figures_are_cells_that_differ_in_one_thing():
  config = config_file.get_config()
  figures = read_figures(config.figures.to_dict())
  assert list(figures) == ['figure_1a', 'figure_1b', 'figure_1c', 'figure_4_length',
                           'figure_4_sum', 'figure_5', 'figure_6']
  for figure in figures.values():
    for field in Setup._fields:
      values = {getattr(cell, field) for cell in figure.cells}
      assert len(values) == (4 if field == figure.varied else 1)
  assert len(all_cells(figures)) == 4 + 4 + 3 + 3 + 4 + 3 + 4  # shared ones once
  controls = {name: f.control and f.control.arm for name, f in figures.items()}
  assert controls['figure_4_sum'] is None
  assert {*controls.values()} == {None, 'none'}


@pytest.mark.slow
def test_a_loss_is_that_of_the_reparameterized_target(key):
  config = _config()
  problem = training.problem(config, _CELL)
  params, batch = problem.init(key), problem.sample(key, 0)
  model = training.make_model(config, _CELL)
  output = jax.jit(model.apply)({'params': params}, batch.tokens, batch.read_at,
                                batch.positions, batch.mask)
  expected = np.mean((np.asarray(output) - (batch.target + 1) ** -0.5) ** 2)
  np.testing.assert_allclose(problem.loss(params, batch)[0], expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('positions', ['none', 'learned'])
def test_answers_for_prefixes_are_decoded_answers_for_strings(key, positions):
  config, cell = _config(), _CELL._replace(positions=positions)
  params = jax.jit(training.problem(config, cell).init)(key)
  # Answers of 1/√(y + 1) that are all positive, or they would be decoded alike.
  params['head_output']['bias'] += 2.0
  model, function = training.make_model(config, cell), training.reparameterization(cell)
  bits = jax.random.randint(key, (7, 6), 0, 2)
  found = jax.jit(lambda p, b: training.answer_prefixes(model, function, p, b))(
      params, bits)
  apply = jax.jit(model.apply)
  for length in range(1, 7):
    batch = counting.make_batch(bits, jnp.full(7, length), 'sum')
    output = apply({'params': params}, batch.tokens, batch.end[:, None])[:, 0]
    assert (output > 0.1).all()
    np.testing.assert_allclose(found[:, length - 1], output**-2 - 1, rtol=1e-4)
  # Longer prefixes have other answers, and so have other strings.
  assert np.ptp(found, axis=1).min() > 1e-3 and np.ptp(found, axis=0).min() > 1e-3


@pytest.mark.parametrize('task, counts', [
    ('sum', 'fair'), ('sum', 'uniform'), ('mean', 'uniform'), ('length', 'fair'),
])
def test_errors_are_those_of_all_strings_one_by_one(key, task, counts, monkeypatch):
  # A model that answers by first bit and length: its errors are known.
  answer = lambda x: 0.5 + 0.3 * x[:, :1] + 0.1 * jnp.arange(x.shape[1])[None]
  monkeypatch.setattr(
      training, 'answer_prefixes', lambda model, function, params, bits: answer(bits))
  config = _config(**{'evaluate.num_sequences': 4000})
  cell = Setup(task, counts, 5, 'none', 'identity')
  mesh = sharding.seed_mesh()
  keys = sharding.put(jax.random.split(key, mesh.size), mesh)
  measured = training.make_measure(config, cell, mesh)(keys, keys)

  def errors(length):
    strings = np.array([*itertools.product((0, 1), repeat=length)])
    answers = 0.4 + 0.1 * length + 0.3 * strings[:, 0]
    target = {'sum': strings.sum(axis=1), 'mean': strings.mean(axis=1),
              'length': length}[task]
    return counting.string_probability(strings, counts), (answers - target) ** 2

  for length in (1, 3, 10):
    chance, squared = errors(length)
    np.testing.assert_allclose(
        measured['squared_error', length], chance @ squared, rtol=1e-5)
    assert ('accuracy', length) in measured or task == 'mean'
    if task != 'mean':
      np.testing.assert_allclose(
          measured['accuracy', length], chance @ (squared < 0.25), rtol=1e-5)
    # Half of the chance lies at or below the median.
    median = measured['median_squared_error', length][0]
    assert chance[squared <= median + 1e-6].sum() >= 0.5 - 1e-9
    assert chance[squared < median - 1e-6].sum() < 0.5
  # Beyond ten bits, over strings that are drawn.
  error, (chance, squared) = measured['squared_error', 12], errors(12)
  deviation = np.sqrt(chance @ squared**2 - (chance @ squared) ** 2)
  np.testing.assert_allclose(error, chance @ squared, atol=5 * deviation / 4000**0.5)
  # Seeds have strings of their own.
  assert len({*error}) > (1 if task == 'length' else mesh.size - 1)


@pytest.mark.parametrize('counts', ['fair', 'uniform'])
def test_a_cell_is_trained_on_its_own_strings(key, counts):
  cell = Setup('sum', counts, 7, 'alibi', 'sqrt')
  config = _config(**{'model.norm': 'layer_norm'})
  expected = counting.sample_packed(key, num_rows=4, min_length=1, max_length=7,
                                    task='sum', counts=counts)
  batch = training.problem(config, cell).sample(key, 0)
  for x, y in zip(batch, expected, strict=True):
    np.testing.assert_array_equal(x, y)
  decoder = training.make_model(config, cell).decoder
  assert decoder.positions == 'alibi' and decoder.max_positions == 14
  for name, value in config.model.items():
    assert getattr(decoder, name) == value


def test_models_are_measured_on_strings_of_their_own(monkeypatch, tmp_path):
  measured_with = []
  mesh = sharding.seed_mesh()
  monkeypatch.setattr(training.ensemble, 'make_trainer',
                      lambda *_, **__: SimpleNamespace(mesh=mesh))
  monkeypatch.setattr(training, 'train_block',
                      lambda *_, **__: [SimpleNamespace(params='trained')])
  monkeypatch.setattr(training, 'make_measure', lambda *_: (
      lambda params, keys: measured_with.append((params, keys)) or {}))
  curves = SimpleNamespace(late_mean=lambda *_: np.zeros(8))
  progress = SimpleNamespace(
      skip=lambda _: None, measuring=lambda _: contextlib.nullcontext())
  config = _config(**{'train.seeds_at_once': 8, 'evaluate.temperature_lengths': None})
  programs = training.make_programs(config, _CELL, mesh)
  of_heads = lambda params, keys: {('largest_weight', 3, 1, 5): np.arange(8.0)}
  rows = training.run_block(
      config, _CELL, programs._replace(heads=of_heads), 0, epath.Path(tmp_path), curves,
      progress)
  assert [(r.layer, r.head, r.length, r.seed, r.value) for r in rows
          if r.metric == 'largest_weight'] == [(3, 1, 5, s, s) for s in range(2)]
  [(params, keys)] = measured_with
  assert params == 'trained'
  seeds = ensemble.seed_keys(0, 0, 8)
  own = [ensemble.purpose_key(seed, ensemble.TEST) for seed in seeds]
  np.testing.assert_array_equal(
      jax.random.key_data(keys), jax.random.key_data(jnp.stack(own)))


def _indices(errors):
  """Returns results in which an arm has these errors [seeds], within training 1e-6."""
  rows = [
      results.Row('length_10', arm, seed, length, metric, value)
      for arm, values in errors.items() for seed, error in enumerate(values)
      for length in (5, 10, 11, 12)
      for metric, value in (
          ('squared_error', error if length > 10 else 1e-6),
          ('median_squared_error', error),
          ('accuracy', 0.96 if length < 11 else 0.9),
      )
  ]
  return {'length_10': results.index(rows)}


def test_errors_beyond_training_are_averaged_by_their_logarithms():
  errors = {10: 1.0, 11: 1e-6, 12: 1e-2, 13: 1e-1}
  rows = [results.Row('length_10', 'none', 3, n, 'squared_error', error)
          for n, error in errors.items()]
  indices = {'length_10': results.index(rows)}
  cell = Setup('length', 'fair', 10, 'none', 'identity')
  assert tables.endpoint(indices, cell) == pytest.approx({3: -(6 + 2 + 1) / 3})


def test_a_figure_whose_only_line_another_one_has_too_is_left_out():
  one, two = (Setup('length', 'fair', 10, 'none', target)
              for target in ('identity', 'sqrt'))
  alone, both, empty = (FigureSetups('reparameterization', cells)
                        for cells in ((one,), (one, two), ()))
  drop = report._with_something_of_their_own
  assert drop({'a': alone, 'b': both, 'c': empty, 'd': alone}) == {'b': both}
  assert drop({'a': alone, 'c': empty, 'd': alone}) == {'d': alone}
  assert drop({'a': alone, 'b': FigureSetups('', (two,))}).keys() == {'a', 'b'}


def test_a_column_of_errors_has_one_notation():
  figure = read_figures(dict(f=dict(
      task='length', counts='fair', positions=('none', 'rope'),
      train_lengths=(10,), reparameterizations=('identity',))))['f']
  table = tables.table('f', figure, _indices(
      {'none': [1e-4, 1e-4, 1e-4, 1e-4], 'rope': [1e-2, 1e-2, 1e-2, 1e-2]}), 12)
  [plain, rope] = (shown(table, r['model']) for r in table.records)
  assert plain['l = 12'].startswith('1.0e−04') and rope['l = 12'].startswith('1.0e−02')
  assert plain['median, l = 12'] == '1.0e−04'
  assert rope['median, l = 12'] == '1.0e−02'


def test_factors_and_their_tests():
  figure = read_figures(dict(f=dict(
      task='length', counts='fair', positions=('none', 'rope', 'alibi'),
      train_lengths=(10,), reparameterizations=('identity',))))['f']
  indices = _indices({
      'none': [1e-4, 1e-3, 1e-2, 1e-3], 'rope': [1e-2, 1e-1, 10, 1e-1],
      'alibi': [1e-4, 1e-2, 1e-2, 1e-2],
  })
  row = shown(tables.table('f', figure, indices, 12), 'RoPE')
  # Ten to the mean of 2, 2, 3 and 2, with t = 9 on three degrees of freedom, ± 4.177
  # standard errors of ¼: of two tests, the smaller is at 5 % / 2.
  assert row['factor beyond training [95 %]'] == '178 [16, 1,968]'
  assert row['p Holm'] == '.006'  # twice .0029, the smaller of two
  # Of 0, 1, 0 and 1: t = √3.
  assert shown(tables.table('f', figure, indices, 12), 'ALiBi')['p Holm'] == '.182'
  # Of −2, −1, 1 and −1: 10 to the mean −3/4, ± 3.18 standard errors of .629.
  assert row['l = 10'].startswith('1.0e−06')
  assert row['l = 12'] == '1.8e−01 [1.8e−03, 1.8e+01]'  # as no positions need it
  assert row['median, l = 12'] == '0.18'
  # 4.03 standard deviations of ½ over √4: power .8 at level .05 / 2.
  level = stats.t.ppf(1 - 0.05 / 4, 3)
  record, = (r for r in tables.table('f', figure, indices, 12).records
             if r['model'] == 'RoPE')
  shift = np.log10(record['smallest_detectable']) / 0.25
  assert stats.nct.sf(level, 3, shift) + stats.nct.cdf(-level, 3, shift) == (
      pytest.approx(0.8, abs=1e-3))
  assert row['right up to'] == '10'
  plain = shown(tables.table('f', figure, indices, 12), 'no positions')
  assert plain['factor beyond training [95 %]'] == plain['p Holm'] == ''
  indices['length_10']['rope', 'squared_error', 11][2] = np.nan
  table = tables.table('f', figure, indices, 12)
  assert 'Not finite, and left out: RoPE, seed 2.' in table.note
  # One seed without an answer does not undo the others.
  for length in (5, 10, 11, 12):
    indices['length_10']['alibi', 'accuracy', length][0] = np.nan
  indices['length_10']['alibi', 'squared_error', 5][0] = np.nan
  table = tables.table('f', figure, indices, 12)
  assert shown(table, 'ALiBi')['right up to'] == '10'
  assert 'ALiBi, seed 0.' in table.note


@pytest.mark.parametrize('lost, told', [
    ((), []), (('rope',), ['RoPE']), (('none',), ['no positions', 'RoPE', 'ALiBi'])])
def test_models_that_have_not_learned_have_no_test_to_show(lost, told):
  figure = read_figures(dict(f=dict(
      task='length', counts='fair', positions=('none', 'rope', 'alibi'),
      train_lengths=(10,), reparameterizations=('identity',))))['f']
  indices = _indices({
      'none': [1e-4, 1e-3, 1e-2, 1e-3], 'rope': [1e-2, 1e-1, 10, 1e-1],
      'alibi': [1e-4, 1e-2, 1e-2, 1e-2]})
  for arm in lost:
    indices['length_10'][arm, 'squared_error', 10] = dict.fromkeys(range(4), 9.0)
  table = tables.table('f', figure, indices, 12)
  for name in ('RoPE', 'ALiBi'):
    row = shown(table, name)
    own = name in told
    assert (row['p Holm'] == 'not learned', row['smallest detectable'] == '',
            '[' not in row['factor beyond training [95 %]']) == (own, own, own)
    assert row['factor beyond training [95 %]'] != ''


@pytest.mark.slow
def test_training_learns_the_mean_and_decays_kernels_alone(key):
  config = config_file.get_config('cpu')
  config.model.update(width=16, num_layers=1)
  config.train.num_steps = 400
  cell = Setup('mean', 'fair', 5, 'none', 'identity')
  problem = training.problem(config, cell)
  state = init_state(problem, key)
  state, metrics = jax.jit(lambda s: train_steps(problem, s, key, 400))(state)
  batch = problem.sample(jax.random.key(7), 0)
  loss, _ = problem.loss(state.params, batch)
  # To answer 1/2 always is an error of .114.
  assert loss < 0.01 < metrics['loss']
  # Without gradient an update is the decay alone, rate × 0.01 × kernel; the rate comes
  # down to 0 along a cosine.
  params = init_state(problem, key).params
  zeros = jax.tree.map(jnp.zeros_like, params)
  update = lambda opt_state, _: problem.optimizer.update(zeros, opt_state, params)[::-1]
  _, updates = jax.lax.scan(update, problem.optimizer.init(params), length=401)
  rate = 1e-3 * (1 + np.cos(np.pi * np.arange(401) / 400)) / 2
  for (path, update), weights in zip(
      jax.tree_util.tree_leaves_with_path(updates), jax.tree.leaves(params),
      strict=True):
    expected = -np.multiply.outer(0.01 * rate, weights)
    np.testing.assert_allclose(
        update, expected if path[-1].key == 'kernel' else 0 * expected, atol=1e-10,
        rtol=1e-4)


@pytest.mark.parametrize('fields, words', [
    ({'figures.figure_1a.task': 'median'},
     "config.figures.figure_1a.task must be one of mean, length, sum: 'median'"),
    ({'figures.figure_1a.positions': ('none', 'fourier')}, "none, learned, sinusoidal"),
    ({'figures.figure_1a.positions': ('none', 'none')},
     "rope, each once: ('none',"),
    ({'figures.figure_1a.train_lengths': (5, 10)}, 'figure_1a must vary only one'),
    ({'figures.figure_4_length.train_lengths': (0, 5)},
     'figure_4_length.train_lengths must be one or more whole numbers from 1 to'),
    ({'figures.figure_5.reparameterizations': ('cube',)}, 'of identity, sqrt, log'),
    ({'figures.figure_4_length.train_lengths': (1, 2, 3, 4, 5, 6, 7, 8, 9)},
     'more than 8 lines: 9'),
    ({'evaluate.max_length': 10, 'evaluate.temperature_lengths': None},
     'must be beyond the training lengths: 10, 10'),
    ({'evaluate.temperature_lengths': (5, 13)}, 'max_length or before: 13, 12'),
    ({'evaluate.temperature_lengths': (5, 5)}, 'rising whole numbers from 1 to'),
    ({'model.num_heads': 3}, 'config.model.width 16 must be a multiple of'),
    ({'model.width': 15, 'model.num_heads': 1,
      'figures.figure_1a.positions': ('none', 'sinusoidal')}, 'need an even width: 15'),
    ({'figures.figure_4_length.train_lengths': (True, 5)},
     'figure_4_length.train_lengths must be one or more whole numbers from 1 to 2**31-1'
     ', each once: (True, 5)'),
    ({'train.batch_size': 7}, 'config.train.batch_size must be even'),
    ({'model.norm': 'batch'}, 'config.model.norm must be one of none, standardize'),
    ({'optimizer.learning_rate': 0.0}, 'learning_rate must be a finite number above 0'),
    ({'num_seeds': 1}, 'config.num_seeds must be a whole number from 2 to 1000000, to'),
    ({'seed': -1}, 'config.seed must be a whole number from 0 to 2**32-1: -1'),
    ({'figures': ml_collections.ConfigDict()}, 'config.figures is empty'),
])
def test_a_configuration_that_cannot_run_is_told_before_it_starts(fields, words):
  with pytest.raises(ValueError, match=re.escape(words)):
    experiment.check(_config(**fields))


@pytest.mark.filterwarnings('error')
def test_arms_without_a_finite_error_leave_the_others_their_figure():
  figure = read_figures(dict(f=dict(
      task='length', counts='fair', positions=('none', 'rope'), train_lengths=(10,),
      reparameterizations=('identity',))))['f']
  for control, other in ((np.nan, 1e-2), (1e-2, np.nan), (np.nan, np.nan)):
    indices = _indices({'none': [control, control], 'rope': [other, other]})
    for length in (1, 5, 10):  # nowhere finite
      for arm in ('none', 'rope'):
        error = indices['length_10'][arm, 'squared_error', 12]
        indices['length_10'][arm, 'squared_error', length] = error
    table = tables.table('f', figure, indices, 12)
    assert [shown(table, arm)['l = 12'] == 'undefined'
            for arm in ('no positions', 'RoPE')] == [*np.isnan([control, other])]
    drawn = counting_figures.errors(figure, indices, 12)
    assert [line.get_label() for line in drawn.axes[0].lines] == [
        'no positions', 'RoPE', 'answering 5.5 always']


@pytest.mark.parametrize('counts', ['fair', 'uniform'])
def test_the_dashed_line_is_the_error_of_one_half(counts):
  figure = read_figures(dict(f=dict(
      task='mean', counts=counts, positions=('none',), train_lengths=(5,),
      reparameterizations=('identity',))))['f']
  cell, = figure.cells
  rows = [results.Row(cell.experiment, 'none', seed, 1, 'squared_error', 0.1)
          for seed in (0, 1)]
  drawn = counting_figures.errors(figure, {cell.experiment: results.index(rows)}, 8)
  lengths, errors = drawn.axes[0].lines[-1].get_data()
  for length, error in zip(lengths, errors, strict=True):
    strings = counting.all_strings(length)
    expected = counting.string_probability(strings, counts) @ (
        strings.mean(axis=1) - 0.5) ** 2
    assert error == pytest.approx(expected)


def test_what_is_said_goes_by_the_cells_not_by_the_name():
  fields = dict(task='sum', counts='fair', positions=('none',), train_lengths=(10,),
                reparameterizations=('identity', 'sqrt', 'log', 'inverse_sqrt'))
  of_sum = read_figures(dict(figure_1a=fields))['figure_1a']
  names = [counting_figures.label(of_sum.varied, cell) for cell in of_sum.cells]
  # What a sum is trained on.
  assert names == ['identity', '√(y + 1)', 'log (y + 1)', '1/√(y + 1)']
  assert counting_figures.label(of_sum.varied, of_sum.cells[3], False) == (
      '$1/\\sqrt{y + 1}$')
  assert tables._published(of_sum, 50) == tables._trivial(of_sum, 50) == []
  fields.update(task='length')
  [of_length] = read_figures(dict(f=fields)).values()
  assert counting_figures.label(of_length.varied, of_length.cells[3]) == '1/√y'
  assert tables._published(of_length, 50) == [
      'The paper: 1/√y is nearly perfect up to 35.']
  fields.update(task='mean', reparameterizations=('identity',))
  [of_mean] = read_figures(dict(f=fields)).values()
  assert tables._published(of_mean, 50) == [
      'The paper: about 1e-5 at 50 without positions.']
  assert tables._published(of_mean, 20) == []
  assert tables._trivial(of_mean, 50)[0].endswith('1/(4l), 0.0050 at 50.')
  assert tables._trivial(of_mean, 20) == [
      'To answer 1/2 always is an error of 1/(4l), 0.013 at 20.']


@pytest.mark.parametrize('name, figures, seeds', [
    ('paper', 7, 100), ('cpu', 7, 8), ('length', 3, 100), ('cpu_sum', 2, 8),
    ('quick', 1, 4), ('smoke_sum', 1, 2),
])
def test_variants(name, figures, seeds):
  config = config_file.get_config(name)
  assert (len(config.figures), config.num_seeds) == (figures, seeds)
  experiment.check(config)


@pytest.mark.parametrize('name', ['fast', 'quick_length', 'cpu_median'])
def test_unknown_variants(name):
  with pytest.raises(ValueError):
    config_file.get_config(name)


def _run(workdir, *arguments):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.counting',
       '--config=configs/counting.py:smoke', '--config.model.num_layers=1',
       f'--workdir={workdir}', *arguments],
      cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.parametrize('argument, words', [
    ("--config.figures.figure_4_length.reparameterizations=('identity', 'log')",
     'must vary only one field'),
    ("--config.figures.figure_1a.reparameterizations=('inverse_sqrt',)",
     'mean, none+inverse_sqrt: a target of 0 is reparameterized to inf: shift it'),
])
def test_bad_input_is_one_line_and_exit_code_2(run_here, tmp_path, argument, words):
  done = run_here('counting', '--config=configs/counting.py:smoke',
                  f'--workdir={tmp_path}/run', argument)
  assert (done.returncode, done.stdout) == (2, ''), done.stdout
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
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
def test_a_run_writes_its_numbers_tables_and_figures(whole):
  workdir, out = whole
  assert 'No verdict: in none of 3 figures' in out
  page = (workdir / 'index.md').read_text()
  for title in ('Figure 1a. ', 'Figure 4, length. ', 'Figure 5. '):
    assert f'\n{title}Mean squared error of the ' in page
  rows = results.read_rows(workdir / 'results.csv')
  by_arm = {(row.experiment, row.arm) for row in rows}
  assert by_arm == {
      *(('mean_10', arm) for arm in config_file.POSITIONS), ('length_5', 'none'),
      ('length_10', 'none'), ('sum_10', 'none'), ('sum_10', 'none+inverse_sqrt'),
  }
  index = results.index(row for row in rows if row.experiment == 'mean_10')
  for arm in config_file.POSITIONS:
    assert {*index[arm, 'squared_error', 12]} == {0, 1}
    assert all(x > 0 for x in index[arm, 'squared_error', 12].values())
  made = {path.relative_to(workdir).as_posix() for path in workdir.rglob('*.*')}
  for name in ('figure_1a', 'figure_4_length', 'figure_5'):
    assert {f'figures/{name}.png', f'figures/{name}.pdf', f'tables/{name}.md',
            f'tables/{name}.csv'} <= made
  assert json.loads((workdir / 'config.json').read_text())['sessions'][-1]['finished']
  check_board(workdir)


@pytest.mark.slow
def test_a_run_goes_on_and_grows_with_the_same_numbers(whole, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(whole[0], workdir)
  rows = results.read_rows(workdir / 'results.csv')
  # The first models are kept; of the others two seeds are read, one block is new.
  results.write_rows(workdir / 'results.csv',
                     [row for row in rows if row.experiment == 'mean_10'])
  done = _run(workdir, '--config.num_seeds=3')
  assert done.returncode == 0, done.stderr
  grown = results.read_rows(workdir / 'results.csv')
  assert {row.seed for row in grown} == {0, 1, 2}
  # As text, in which nan equals nan.
  assert [str(row) for row in grown if row.seed < 2] == [str(row) for row in rows]
  done = _run(workdir, '--config.model.width=32')
  assert (done.returncode, done.stdout) == (2, '')
  assert 'model.width: 16 there, 32 here' in done.stderr
