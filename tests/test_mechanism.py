"""Interventions on trained models, and the tables of their results."""

import functools
import itertools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

from configs import lookup as lookup_file
from configs import mechanism as config_file
from experiments.length_generalization.setting import Setting
from experiments.mechanism import figures as mechanism_figure
from experiments.mechanism import parts, tables
from experiments.mechanism import report as mechanism
from experiments.mechanism import run as experiment
from experiments.mechanism.answer import headline
from tests.conftest import lose_rows, ROOT, shown
from vvlen.evaluation.retriever import intervention, lengths, reader
from vvlen.evaluation.retriever.moments import Moments
from vvlen.models.retriever import Retriever
from vvlen.reporting import plots, results
from vvlen.reporting.endpoints import compare
from vvlen.statistics import adjusted_test, detectable, holm
from vvlen.tasks import retrieval


def _sample(key, num_sequences, length):
  return retrieval.sample(key, batch_size=num_sequences, min_length=length,
                          max_length=length, num_classes=3)


@functools.cache
def _model(norm):
  model = Retriever(num_classes=3, width=8, norm=norm)
  batch = _sample(jax.random.key(0), 2, 5)
  params = model.init(jax.random.key(1), batch.query, batch.items)['params']
  # Sharp enough for weights to differ, and a bias that the mean shows.
  params['attention']['query_kernel'] *= 5
  params['item_output_bias'] += 1.0
  return lengths.make_apply(model), {'params': params}


def _intervene(norm, length, trained_up_to=16, **sizes):
  apply, variables = _model(norm)
  sizes = dict(
      num_sequences=64, moment_sequences=32, select_sequences=16) | sizes
  return jax.jit(lambda variables: intervention.intervene(
      apply, _sample, variables, jax.random.key(2), jax.random.key(3), length=length,
      trained_up_to=trained_up_to, item_class=_item_class, **sizes))(variables)


def _item_class(batch):
  return batch.items[..., 1:].argmax(-1)


def _output(count=16):
  return jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, (count, 8)), jnp.float32)


def _moments(output):
  return Moments(
      output.mean(0), output.std(0), jnp.linalg.norm(output, axis=-1).mean())


def test_interventions_to_its_own_moments_are_identities():
  output = _output()
  own = _moments(output)
  norms = jnp.linalg.norm(output, axis=-1, keepdims=True)
  np.testing.assert_array_equal(intervention.rescale(output, norms), output)
  np.testing.assert_array_equal(intervention.recentre(output, own, own), output)
  np.testing.assert_array_equal(intervention.match(output, own, own), output)
  np.testing.assert_array_equal(
      intervention.reweight(output, output[:, 0], output + 1, jnp.float32(0)), output)


def test_interventions_bring_the_moments_they_promise():
  output = _output()
  now, then = _moments(output), _moments(3 * _output(9) - 1)
  rescaled = intervention.rescale(output, then.norm)
  np.testing.assert_allclose(jnp.linalg.norm(rescaled, axis=-1), then.norm, rtol=1e-5)
  np.testing.assert_allclose(  # the direction stays
      rescaled / then.norm,
      output / jnp.linalg.norm(output, axis=-1, keepdims=True), rtol=1e-5)
  recentred = intervention.recentre(output, now, then)
  np.testing.assert_allclose(recentred.mean(0), then.mean, rtol=1e-4)
  np.testing.assert_allclose(recentred.std(0), now.deviation, rtol=1e-4)
  matched = intervention.match(output, now, then)
  np.testing.assert_allclose(matched.mean(0), then.mean, rtol=1e-4)
  np.testing.assert_allclose(matched.std(0), then.deviation, rtol=1e-4)


def test_reweighting_adds_to_the_logit_of_one_item():
  rng = np.random.default_rng(1)
  logits, values = rng.normal(0, 2, (5, 12)), rng.normal(0, 1, (5, 12, 8))
  target, rows = rng.integers(0, 12, 5), np.arange(5)

  def attend(logits):
    weights = np.asarray(jax.nn.softmax(jnp.asarray(logits, jnp.float32)))
    return weights[rows, target], np.einsum('sn,snd->sd', weights, values)

  weight, output = attend(logits)
  for shift in (-1.5, 0.0, 3.0):
    more = logits.copy()
    more[rows, target] += shift
    weight_then, expected = attend(more)
    np.testing.assert_allclose(
        intervention.reweight(output, weight, values[rows, target], jnp.float32(shift)),
        expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        intervention.log_odds(weight_then), intervention.log_odds(weight) + shift,
        rtol=1e-4, atol=1e-5)
  ends = intervention.log_odds(jnp.array([0.0, 1.0]))
  assert np.isfinite(ends).all()


def test_changed_outputs_are_read_without_attending_again():
  apply, variables = _model('layer_norm')
  batch = _sample(jax.random.key(0), 4, 512)
  changes = {str(i): lambda output, i=i: output + i for i in range(5)}

  def count(f, *args):
    return jax.jit(f).lower(variables, *args).compile().cost_analysis()['flops']

  attend = lambda variables: apply(variables, batch.query, batch.items)
  change = lambda variables, output: intervention._changed(
      apply, variables, batch, output, changes)
  assert count(change, _output(4)) < count(attend) / 10


@pytest.mark.slow
def test_a_single_item_is_the_target_alone():
  measured = _intervene('none', 1)
  for metric in ('accuracy', 'loss'):
    assert measured['+one_hot'][metric] == measured[''][metric]


@pytest.mark.slow
def test_a_row_of_zeros_and_a_constant_component_stay_finite():
  zeros = jnp.zeros((4, 8))
  np.testing.assert_array_equal(intervention.rescale(zeros, jnp.ones(())), zeros)
  then = _moments(_output())
  matched = intervention.match(zeros + 1, _moments(zeros + 1), then)
  np.testing.assert_allclose(
      matched, jnp.broadcast_to(then.mean[None], (4, 8)), rtol=1e-5)


def test_at_the_training_length_moments_change_nothing():
  measured = _intervene('none', 16)
  for name in ('recentred', 'standardized', 'covariance', 'reweighted',
               *mechanism_figure.IMPOSED):
    np.testing.assert_allclose(measured[f'+{name}']['loss'], measured['']['loss'],
                               rtol=1e-4)
    assert measured[f'+{name}']['accuracy'] == measured['']['accuracy']


@pytest.mark.slow
def test_layer_norm_undoes_rescaling():
  measured = _intervene('layer_norm', 64)
  np.testing.assert_allclose(measured['+rescaled']['loss'], measured['']['loss'],
                             rtol=1e-3)
  baseline = _intervene('none', 64)
  assert abs(baseline['+rescaled']['loss'] - baseline['']['loss']) > 1e-3


@pytest.mark.slow
def test_measurements_are_those_by_hand():
  apply, variables = _model('none')
  params = variables['params']
  # Of two items the target has a weight that differs most from that of 64.
  measured = _intervene('none', 64, trained_up_to=2, num_sequences=32,
                        moment_sequences=48)
  draw = lambda key, count, n: jax.tree.map(  # as `in_chunks`, in one chunk
      np.asarray, _sample(jax.random.fold_in(jax.random.fold_in(key, n), 0), count, n))
  sown = lambda batch: apply(variables, batch.query, batch.items)[1]
  output = lambda batch: np.asarray(sown(batch)['attention_output'])
  weight = lambda batch: np.asarray(sown(batch)['attention_weights'], np.float64)[
      np.arange(len(batch.target)), batch.target_index]
  odds = lambda batch: np.median(np.log(weight(batch) / (1 - weight(batch))))
  then, now = (_moments(output(draw(jax.random.key(3), 48, n))) for n in (2, 64))
  batch = draw(jax.random.key(2), 32, 64)
  short = draw(jax.random.key(2), 32, 2)
  o, rows = output(batch), np.arange(32)
  values = output(batch._replace(items=batch.items[rows, batch.target_index][:, None]))
  more = np.expm1(odds(draw(jax.random.key(3), 48, 2))
                  - odds(draw(jax.random.key(3), 48, 64)))
  more *= weight(batch)[:, None]
  changed = {
      '+reweighted': (o + more * values) / (1 + more),
      '': o, '+recentred': o - now.mean + then.mean,
      '+rescaled': o * then.norm / np.linalg.norm(o, axis=1, keepdims=True),
      '+standardized': (o - now.mean) / now.deviation * then.deviation + then.mean,
      '+one_hot': values,
      '+shifted': output(short) - then.mean + now.mean,
      '+shrunk':
          (output(short) - then.mean) / then.deviation * now.deviation + then.mean,
      '+vanished':
          (output(short) - then.mean) / then.deviation * now.deviation + now.mean,
  }
  whole = [output(draw(jax.random.key(3), 48, n)) for n in (64, 2)]
  root_now, root_then = (
      linalg.sqrtm(np.cov(x.astype(float).T, ddof=0)).real for x in whole)
  changed['+covariance'] = (
      (o - now.mean) @ linalg.inv(root_now) @ root_then + then.mean
  ).astype(np.float32)
  dense = lambda x, name: x @ params[name]['kernel'] + params[name]['bias'][None]
  fit = draw(jax.random.key(3), 48, 64)
  select = draw(jax.random.fold_in(jax.random.key(3), 1), 16, 64)
  weights = np.asarray(sown(batch)['attention_weights'])
  votes = np.array([
      np.bincount(classes, w, minlength=3)
      for classes, w in zip(_item_class(batch), weights, strict=True)])
  read = {'+attended_class': np.log(votes)}
  for suffix, weakest in (('+refit', 1e-5), ('+refit_strong', 1e-2)):
    fitted = reader.refit(
        output(fit), fit.target, output(select), select.target, 3, weakest)
    read[suffix] = reader.read(fitted, o)
  for suffix, logits in read.items():
    loss = -jax.nn.log_softmax(logits)[rows, batch.target].mean()
    np.testing.assert_allclose(measured[suffix]['loss'], loss, rtol=1e-2)
    assert measured[suffix]['accuracy'] == (logits.argmax(1) == batch.target).mean()
    assert measured[suffix]['total_variance'] == measured['']['total_variance']
  for suffix, x in changed.items():
    logits = dense(jax.nn.gelu(dense(x, 'head_hidden')), 'head_output')
    target = (short if suffix[1:] in mechanism_figure.IMPOSED else batch).target
    loss = -jax.nn.log_softmax(logits)[rows, target].mean()
    np.testing.assert_allclose(measured[suffix]['loss'], loss, rtol=1e-4)
    assert measured[suffix]['accuracy'] == (logits.argmax(1) == target).mean()
    np.testing.assert_allclose(
        measured[suffix]['total_variance'], x.var(axis=0).sum(), rtol=1e-4)
  assert measured.keys() == changed.keys() | read.keys()


def test_table_and_figure_say_what_is_restored():
  rng = np.random.default_rng(0)
  restored = {'': 0.0, '+rescaled': 0.0, '+recentred': 0.1, '+standardized': 0.1,
              '+reweighted': 0.3, '+one_hot': 0.4, '+vanished': 0.2}
  rows = []
  for suffix, more in restored.items():
    for seed in range(6):
      for length, base in ((16, 0.9), (64, 0.5)):
        rows.append(results.Row('retrieval', 'none' + suffix, seed, length, 'accuracy',
                                base + more * (length > 16) + rng.normal(0, 0.001)))
        variance = 8.0 + 4 * (suffix != '') if length == 16 else 2 + 20 * more
        rows.append(results.Row('retrieval', 'none' + suffix, seed, length,
                                'total_variance', variance * (seed + 1)))
  index = results.index(rows)
  table = tables.table(index, 16)
  shares = [r['restored_percent'] for r in table.records]
  np.testing.assert_allclose(shares, [0, 25, 25, 75, 100, 50], atol=1)
  # Relative to what it was, whatever the scale of a seed.
  np.testing.assert_allclose(
      [(r['variance_control'], r['variance_treated']) for r in table.records],
      [(0.25, x) for x in (0.25, 0.5, 0.5, 1, 1.25, 0.75)])
  compared = [compare(index, f'none{suffix}', 'none', trained_up_to=16).primary
              for suffix in list(restored)[1:]]
  np.testing.assert_allclose(
      [r['p_holm'] for r in table.records], holm([test.p for test in compared]))
  np.testing.assert_allclose([r['smallest_detectable'] for r in table.records],
                             [detectable(test, 0.05 / 6) for test in compared])
  row = shown(table, 'mean as in training')
  assert (row['unchanged'], row['changed'], row['restored %'], row['variance'],
          row['p Holm'], row['pairs']) == (
              '50.0', '60.0', '25.0', '0.25 → 0.50', '< .001', '6')
  by_length = tables.length_table(index, 16).records
  assert [r['length'] for r in by_length] == [16, 64] * 6
  np.testing.assert_allclose(
      [r['difference'] for r in by_length], [0, 0, 0, 10, 0, 10, 0, 30, 0, 40, 0, 20],
      atol=0.3)
  with plots.style():
    *panels, variance = mechanism_figure.figure(index, Setting()).axes
  for panel, expected in zip(
      panels, ([50, 60, 60, 50], [80, 90, 50], [70, 50]), strict=True):
    np.testing.assert_allclose(
        [line.get_ydata()[1] for line in panel.lines], expected, atol=0.3)
  np.testing.assert_allclose(variance.lines[0].get_ydata(), [1, 0.25])
  assert 'Not learned' not in table.note
  halved = results.index(r._replace(value=r.value / 2) for r in rows)
  assert tables.table(halved, 16).note.endswith(
      'Not learned at the shortest length, so that nothing there is about length: '
      'Baseline.')


def test_variances_are_geometric_means_of_what_each_seed_had():
  variances = {(0, ''): (2, 32, 2), (1, ''): (8, 8, 0.5),
               (0, '+one_hot'): (9, 64, 4), (1, '+one_hot'): (9, 16, 1)}
  index = results.index(
      results.Row('retrieval', 'none' + suffix, seed, n, metric, value)
      for (seed, suffix), values in variances.items()
      for n, value in zip((16, 64, 256), values, strict=True)
      for metric, value in (('total_variance', value), ('accuracy', 0.5 + value / 1e3)))
  record, = tables.table(index, 16).records
  # Shares of 16, 1, 1 and 1/16, and twice as much.
  assert (record['variance_control'], record['variance_treated']) == pytest.approx(
      (1, 2))
  with plots.style():
    *_, axes = mechanism_figure.figure(index, Setting()).axes
  np.testing.assert_allclose(axes.lines[0].get_ydata(), [1, 4, 0.25])


def test_gain_is_told_unchanged_and_under_interventions():
  rng = np.random.default_rng(0)
  left = {'': 0.05, '+rescaled': 0.05, '+recentred': 0.02, '+standardized': 0.0,
          '+reweighted': -0.03, '+one_hot': 0.0, '+vanished': 0.04}
  rows = [
      results.Row('retrieval', arm + suffix, seed, length, 'accuracy',
                  0.6 + gain * (suffix == '+recentred') + rng.normal(0, 0.001)
                  + gain * (arm != 'none') * (length > 16))
      for suffix, gain in left.items() for arm in ('none', 'layer_norm')
      for seed in range(8) for length in (16, 64, 128)
  ]
  table = tables.gain_table(results.index(rows), 16)
  records = table.records
  row = shown(table, 'unchanged')
  assert (row['Baseline'], row['treated']) == ('60.0', '65.0')
  assert [r['arm'] for r in records] == ['LN'] * 7
  np.testing.assert_allclose(
      [r['difference'] for r in records], [5, 5, 2, 0, -3, 0, 4], atol=0.2)
  np.testing.assert_allclose(
      [r['change_difference'] for r in records], [np.nan, 0, -3, -5, -8, -5, -1],
      atol=0.3)
  found = [r['change_p_holm'] < 0.001 for r in records]
  assert found == [False, False, True, True, True, True, True]
  before, after = (
      compare(results.index(rows), 'layer_norm' + suffix, 'none' + suffix,
              trained_up_to=16).primary_differences.values()
      for suffix in ('', '+recentred'))
  equal = adjusted_test(list(after), list(before))
  assert (records[2]['equal_difference'], records[2]['equal_p']) == (
      equal.mean_difference, equal.p)
  assert np.isnan(records[0]['equal_difference'])


def test_a_damaged_folder_is_named(tmp_path):
  config = {'config': {'trained_config': {'train': {'max_length': 16}},
                       'trained_step': 20}}
  row = results.Row('retrieval', 'other', 0, 16, 'accuracy', 0.5)
  results.write_rows(tmp_path / 'results.csv', [row])
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError, match='a row of another kind of run'):
    mechanism.write(tmp_path)
  results.write_rows(tmp_path / 'results.csv', [row._replace(arm='none')])
  del config['config']['trained_step']
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError, match=r'config.json is not the config.json of a run'):
    mechanism.write(tmp_path)


def _run(module, *arguments):
  return subprocess.run([sys.executable, '-m', f'experiments.{module}', *arguments],
                        cwd=ROOT, capture_output=True, text=True, timeout=300,
                        check=False)


def _parts_written(folder, suffixes, num_seeds=4):
  """Returns {name: table} that the report of a run with these changes writes."""
  rng = np.random.default_rng(0)
  # Accuracy at the training length and at one beyond it.
  accuracy = {'': (0.9, 0.4), '+refit': (0.95, 0.65), '+standardized': (0.9, 0.5),
              '+covariance': (0.9, 0.55), '+attended_class': (0.9, 0.45)}
  results.write_rows(folder / 'results.csv', [
      results.Row('lookup', arm + suffix, seed, n, 'accuracy',
                  x - 0.1 * (arm == 'layer_norm') * (n > 16) + rng.normal(0, 0.01))
      for suffix in suffixes for n, x in zip((16, 32), accuracy[suffix], strict=True)
      for arm in ('none', 'layer_norm') for seed in range(num_seeds)])
  trained = {'task': {'num_classes': 10}, 'train': {'max_length': 16}, 'num_seeds': 4}
  (folder / 'config.json').write_text(json.dumps(
      {'config': {'trained_config': trained, 'trained_step': 100}, 'sessions': []}))
  return {table.name: table for table in mechanism.write(folder).tables}


def test_a_run_says_where_its_accuracy_is_lost(tmp_path, monkeypatch):
  monkeypatch.setattr(mechanism, 'figure', lambda *_: None)
  monkeypatch.setattr(mechanism.plots, 'save', lambda *_: [])
  every = ['', '+refit', '+standardized', '+covariance', '+attended_class']
  index = lambda: results.index(results.read_rows(tmp_path / 'results.csv'))
  made = _parts_written(tmp_path, every)
  found = {arm: parts.parts(index(), arm, 16) for arm in ('none', 'layer_norm')}
  for record, own in zip(made['parts'].records, found.values(), strict=True):
    for name in parts.NAMES:
      assert record[f'{name}_difference'] == pytest.approx(getattr(own, name).mean())
  # Both arms have about the same reader's part, 20 points; LN's weights lose 10 more.
  gain, = made['parts_gain'].records
  assert gain['weights_difference'] == pytest.approx(10, abs=1.5)
  test = parts.difference(found['layer_norm'], found['none'], 'readers')
  assert (gain['readers_difference'], gain['readers_p']) == pytest.approx(
      (test.mean_difference, test.p))
  assert made['parts_gain'].note.endswith('uncorrected.')
  assert 'cell' not in {**made['parts'].columns, **made['parts_gain'].columns}
  # No p before the run is finished, and no parts without a reader.
  gain, = _parts_written(tmp_path, every, num_seeds=3)['parts_gain'].records
  assert np.isnan(gain['readers_p']) and np.isfinite(gain['readers_difference'])
  assert not {'parts', 'parts_gain'} & {
      *_parts_written(tmp_path, ['', '+standardized'])}


@pytest.mark.parametrize('arguments, words', [
    ((), "config.trained must be the folder of a trained run: ''"),
    (('--config.trained=/nowhere',), "run: '/nowhere'"),
    (('--config=configs/mechanism.py:fast',), "without a variant it is full: 'fast'"),
    (('--config=configs/lookup.py:smoke',),
     'config has no trained, lengths, num_sequences, moment_sequences, select_seq'),
])
def test_bad_input_is_one_line_and_exit_code_2(run_here, tmp_path, arguments, words):
  done = run_here('mechanism', f'--workdir={tmp_path}/run',
                  '--config=configs/mechanism.py', *arguments)
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  assert words in done.stderr
  assert not (tmp_path / 'run').exists()


def test_models_that_are_not_equally_trained_are_named(monkeypatch):
  steps = iter((20, 10))
  monkeypatch.setattr(experiment.checkpoint, 'last_step', lambda _: next(steps))
  config, trained = config_file.get_config('smoke'), lookup_file.get_config('smoke')
  config.update(trained='runs/x', arms=('none', 'layer_norm'))
  words = r'same step: \S+none/seeds_0_1 at 20, \S+ at 10'
  with pytest.raises(ValueError, match=words):
    experiment._trained_step(config, trained)


@pytest.mark.parametrize('change, words', [
    (lambda facts: facts['train'].pop('seeds_at_once'), 'lacks a field: .*seeds_at'),
    (lambda facts: facts['model'].update(depth=2), 'has no field model.depth'),
])
def test_models_whose_configuration_cannot_run_are_named(tmp_path, change, words):
  facts = lookup_file.get_config('smoke').to_dict()
  change(facts)
  (tmp_path / 'config.json').write_text(json.dumps({'config': facts}))
  config = config_file.get_config('smoke')
  config.trained = str(tmp_path)
  with pytest.raises(ValueError, match=f'{tmp_path}/config.json: config.*{words}'):
    experiment._read_trained(config)


def test_the_title_says_what_comes_back_without_the_target():
  record = lambda arm, name, percent: {
      'arm': arm, 'intervention': mechanism_figure.INTERVENTIONS[name][0],
      'restored_percent': percent}
  records = [record('LN', 'rescaled', 3.0), record('LN', 'standardized', 12.4),
             record('LN', 'covariance', float('nan')), record('LN', 'one_hot', 99.0),
             record('LN', 'shifted', 80.0), record('Baseline', 'recentred', 40.0)]
  learned = {'LN': 99.0, 'Baseline': 50.0}
  assert headline(records, learned) == (
      'With mean and variance as in training, 12 % of the accuracy lost over all '
      'lengths comes back')
  # The best change of each arm, and the largest share at one length where 5 points or
  # more are lost.
  both = dict.fromkeys(learned, 99.0)
  row = lambda name, control, treated: {
      'arm': 'LN', 'intervention': mechanism_figure.INTERVENTIONS[name][0],
      'control': control, 'treated': treated}
  # Of other changes than that of the title, nothing is said at one length.
  by_length = [row('standardized', 79.0, 84.0), row('recentred', 59.0, 79.0),
               row('one_hot', 50.0, 99.0), row('standardized', 95.0, 98.0)]
  assert headline(records, both, by_length) == (
      'With mean and variance as in training (LN) or mean as in training (Baseline), '
      '12 to 40 % of the accuracy lost over all lengths comes back (up to 25 % at one '
      'length)')
  assert 'lost' not in headline(records, dict.fromkeys(learned, 50.0))


_ARMS = "--config.arms=('none','layer_norm')"


@pytest.mark.long
@pytest.mark.slow
def test_a_trained_run_is_measured_as_it_is(tmp_path, fast_compilation):
  trained, workdir = tmp_path / 'trained', tmp_path / 'mechanism'
  done = _run('length_generalization', '--config=configs/lookup.py:smoke',
              _ARMS, '--config.model.width=8', '--config.num_seeds=4',
              '--config.evaluate.lengths=(16,32)', '--config.evaluate.fit_lengths=()',
              '--config.evaluate.histogram_lengths=(16,)', f'--workdir={trained}')
  assert done.returncode == 0, done.stderr
  before = {p: p.read_bytes() for p in trained.rglob('*') if p.is_file()}
  command = ('mechanism', '--config=configs/mechanism.py:smoke',
             f'--config.trained={trained}/', _ARMS, '--config.lengths=(16,32)',
             f'--workdir={workdir}')
  done = _run(*command)
  assert done.returncode == 0, done.stderr
  assert '| all weight on the target ' in done.stdout
  # Progress is by length: a job of 16 + 32 items is a quarter of the work.
  assert ' 8%  none, seeds from 0, N = 16' in done.stdout
  assert {p: p.read_bytes() for p in trained.rglob('*') if p.is_file()} == before
  measured = (workdir / 'results.csv').read_bytes()
  lose_rows(workdir)
  done = _run(*command)
  assert done.returncode == 0, done.stderr
  assert (workdir / 'results.csv').read_bytes() == measured
  assert {p: p.read_bytes() for p in trained.rglob('*') if p.is_file()} == before
  plain = results.index(results.read_rows(trained / 'results.csv'))
  index = results.index(results.read_rows(workdir / 'results.csv'))
  # The same models on the same sequences, in two blocks of each arm.
  for arm, length in itertools.product(('none', 'layer_norm'), (16, 32)):
    expected = plain[arm, 'accuracy', length]
    assert expected.keys() == {0, 1, 2, 3}
    assert index[arm, 'accuracy', length] == pytest.approx(expected, abs=1e-6)
  assert 'after 20 training steps' in done.stdout
  claimed = json.loads((workdir / 'config.json').read_text())['config']
  assert claimed['trained'] == str(trained)
  other = str(tmp_path / 'other')
  for place, folder, fields, words in (
      (trained, other, {'arms': ('standardize',)}, 'must be one or more of .*none'),
      (trained, other, {'arms': ('none', 'none')}, 'config.arms must be .*each once'),
      (trained, other, {'lengths': (32, 128)}, 'must not exceed 64, the most items'),
      (trained, other, {'lengths': (16,)}, 'lengths must go beyond 16'),
      (trained, trained, {}, 'holds the trained models'),
      (workdir, other, {}, 'mechanism/config.json: config has no field lengths'),
  ):
    config = config_file.get_config('smoke')
    config.update(trained=str(place), **fields)
    with pytest.raises(ValueError, match=words):
      experiment.main(config, str(folder))
  assert not (tmp_path / 'other').exists()
  (trained / 'checkpoints').rename(tmp_path / 'away')
  done = _run(*command[:-1], f'--workdir={tmp_path}/third')
  assert (done.returncode, done.stdout) == (2, '')
  assert 'holds no checkpoints' in done.stderr
