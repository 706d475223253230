"""What language models are measured on, and over what the measures are means.

The models here cost nothing; `test_language_model.py` trains and measures real ones.
"""

import functools
from types import SimpleNamespace

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness import run_loop
from experiments.language_model import (
    measuring,
    seed_reports,
    sharded,
    together,
    training,
)
from tests.test_language_model import _config
from vvlen import sharding
from vvlen.objectives.misalignment import measures
from vvlen.reporting.curves import read_curves
from vvlen.training import ensemble
from vvlen.training.step import TrainState


class _Progress:
  """Progress that nobody watches."""

  def measuring(self, _):
    return self

  def __enter__(self):
    pass

  def __exit__(self, *_):
    pass

  def skip(self, amount):
    pass

  show = __call__ = lambda self, *_: None


def test_measures_are_means_over_blocks_offsets_and_the_segments_that_count(key):
  config = _config(**{'evaluate.lengths': (1, 2), 'evaluate.offsets': (0.25, 0.375)})
  words, width = 5, 3
  embedding, table = (jax.random.normal(k, (words, width))
                      for k in jax.random.split(key))
  # The state after a token depends on all tokens before it.
  read = lambda x: 2 * jnp.cumsum(embedding[x], axis=1) / jnp.arange(
      1, x.shape[1] + 1)[None, :, None]
  segments = jax.random.randint(key, (3, 20), 0, words)
  found = jax.jit(functools.partial(measuring.evaluate_hidden, config, read))(
      table, segments, counts=jnp.array([True, False, True]))
  kept = np.asarray(segments)[[0, 2]]
  logits = jax.jit(lambda x: read(jnp.asarray(x)) @ table.T)
  for length in (8, 16):
    blocks = kept[:, :16].reshape(-1, length)
    log_p = np.asarray(jax.nn.log_softmax(logits(blocks)))[:, :-1]
    nll = -np.take_along_axis(log_p, blocks[:, 1:, None], axis=2)
    np.testing.assert_allclose(found['nll'][length], nll.mean(), rtol=1e-5)
  # A second window of 16 tokens fits with offset 4, and not with 6.
  assert found['sce'].keys() == {8}
  of_windows = jax.jit(measures, static_argnums=2)
  several = [of_windows(logits(kept[:, :8]), logits(kept[:, e:8 + e]), e)
             for e in (2, 3)]
  for name in measuring.MEASURES:
    expected = np.mean([getattr(x, name) for x in several])
    np.testing.assert_allclose(found[name][8], expected, rtol=1e-4)


def test_segments_begin_anywhere_in_the_held_out_text(key):
  config = _config(**{'evaluate.num_segments': 60, 'evaluate.lengths': (1, 2)})
  text = jnp.arange(100, 118)  # segments of 16 tokens begin in three places
  segments = np.asarray(measuring.draw_segments(config, key, text))
  assert segments.shape == (60, 16) and {*segments[:, 0]} == {100, 101, 102}
  np.testing.assert_array_equal(np.diff(segments, axis=1), 1)


def test_streams_begin_anywhere_in_the_text_and_offsets_are_of_the_range(key):
  config = _config(**{'train.batch_size': 60})
  text = jnp.arange(100, 100 + training.stream_length(config) + 2)
  for arm, offsets in (('alpha_0', {1, 2, 3}), ('offsets_whole', {*range(1, 8)})):
    problem = training.problem(config, config.arms[arm], None, 8)
    draws = [problem.sample(jax.random.fold_in(key, i), i, (text, 0.3))
             for i in range(30)]
    streams = np.asarray(draws[0].streams)
    assert {*streams[:, 0]} == {100, 101, 102} and draws[0].weight == 0.3
    np.testing.assert_array_equal(np.diff(streams, axis=1), 1)
    assert {int(x.offset) for x in draws} == offsets


def test_seeds_together_are_measured_on_all_their_segments(key, monkeypatch):
  config = _config(**{'evaluate.num_segments': 16, 'evaluate.lengths': (1,)})
  parts = []

  def evaluate(config, model, params, segments, measures):
    assert measures == ('sce',)
    parts.append(segments.shape)
    return {'nll': {8: params + segments.astype(float).mean()}}

  monkeypatch.setattr(measuring, 'evaluate', evaluate)
  mesh = sharding.seed_mesh(jax.devices()[:1])
  keys, text = jax.random.split(key, 2), jnp.arange(300)
  found = together._measure(config, None, mesh, ('sce',))(
      text, jnp.array([1000.0, 2000.0]), keys)
  assert {*parts} == {(8, 8)}
  for seed in (0, 1):
    own = measuring.draw_segments(config, keys[seed], text)
    np.testing.assert_allclose(
        found['nll'][8][seed], 1000 * (seed + 1) + own.mean(), rtol=1e-6)


def test_a_block_has_the_values_of_each_of_its_seeds(tmp_path, monkeypatch):
  """Seeds 2 and 3 of a run of three, measured at steps 3, 6 and 7."""
  config = _config(**{
      'num_seeds': 3, 'train.seeds_at_once': 2, 'train.num_steps': 7,
      'train.steps_per_call': 1, 'evaluate.every_steps': 3})
  trained = []

  def train_block(trainers, keys, stop, *, curves, arm, first, **_):
    trained.append(stop)
    curves[0].add(arm, stop, first, {
        name: np.array([start + stop, start + stop + 0.5])
        for name, start in (
            ('loss', 10.0), ('cross_entropy', 20.0), ('misalignment', 30.0))})
    return [SimpleNamespace(params=stop)]

  monkeypatch.setattr(together, 'train_block', train_block)
  monkeypatch.setattr(together, 'curves_of', lambda folder, name='metrics': (
      run_loop.Curves(folder / f'{name}.jsonl')))
  mesh = sharding.seed_mesh(jax.devices()[:1])
  programs = together.Programs(
      SimpleNamespace(mesh=mesh),
      lambda params, keys: {'nll': {8: jnp.array([1.0, 2.0]) * params}})
  found = together.train_and_measure(
      config, 'alpha_0', programs, 2, epath.Path(tmp_path), _Progress())
  assert trained == [3, 6, 7]
  assert found.measured == {2: {
      'nll': {8: 7.0}, 'training_loss': {None: 17.0},
      'training_cross_entropy': {None: 27.0}, 'training_misalignment': {None: 37.0}}}
  lines = read_curves(tmp_path / 'evaluations.jsonl')
  assert [(x['step'], x['first_seed'], x['nll_8']) for x in lines] == [
      (3, 2, [3.0, 6.0]), (6, 2, [6.0, 12.0]), (7, 2, [7.0, 14.0])]
  both = _config(**{'num_seeds': 4, 'train.seeds_at_once': 2, 'train.num_steps': 7,
                    'train.steps_per_call': 1, 'evaluate.every_steps': 3})
  found = together.train_and_measure(
      both, 'alpha_0_1', programs, 2, epath.Path(tmp_path), _Progress()).measured
  assert (found[3]['nll'], found[3]['training_loss']) == ({8: 14.0}, {None: 17.5})


def test_a_seed_alone_reports_its_last_evaluation_and_the_end_of_training(
    tmp_path, monkeypatch):
  monkeypatch.setattr(seed_reports, 'curves_of', lambda folder, name='metrics': (
      run_loop.Curves(folder / f'{name}.jsonl')))
  reports = seed_reports.SeedReports(
      epath.Path(tmp_path), 'a', 5, 1, _Progress(),
      lambda params: {'nll': {8: params}})
  for step in (1, 2):
    reports.on_metrics(step, {
        'loss': 1.0 + step, 'cross_entropy': 10.0 + step, 'misalignment': 20.0 + step})
    reports.evaluate(step, SimpleNamespace(params=0.5 * step))
  assert {(row.arm, row.seed, row.length, row.metric, row.value)
          for row in reports.rows('study')} == {
      ('a', 5, 8, 'nll', 1.0), ('a', 5, None, 'training_loss', 3.0),
      ('a', 5, None, 'training_cross_entropy', 12.0),
      ('a', 5, None, 'training_misalignment', 22.0)}
  lines = read_curves(tmp_path / 'evaluations.jsonl')
  assert [(x['step'], x['first_seed'], x['nll_8']) for x in lines] == [
      (1, 5, [0.5]), (2, 5, [1.0])]


@pytest.mark.parametrize('size, ways', [(5, 2), (6, 2), (4, 4)])
def test_a_seed_alone_is_measured_on_each_segment_once(key, monkeypatch, size, ways):
  config = _config(**{'evaluate.num_segments': size, 'evaluate.lengths': (1,)})
  held_out = np.arange(200)
  text = SimpleNamespace(held_out=held_out)

  def evaluate(params, segments, counts=None):
    means = segments.mean(1)
    return {'nll': {8: params + np.average(means, weights=counts)}}

  monkeypatch.setattr(sharded.partition, 'row_ways', lambda mesh: ways)
  measure = sharded._measure(
      config, SimpleNamespace(evaluate=evaluate), key, text, lambda x: x, None)
  segments = measuring.draw_segments(
      config, ensemble.purpose_key(key, ensemble.TEST), jnp.asarray(held_out))
  np.testing.assert_allclose(
      measure(1000.0)['nll'][8], 1000 + segments.mean(), rtol=1e-6)


def test_rows_that_fill_a_batch_change_nothing_and_steps_have_offsets_of_their_own(key):
  config = _config(**{'train.batch_size': 6, 'train.parts': 2})
  arm = config.arms.offsets_whole

  def loss(params, batch, _):
    each = jnp.square(batch.streams @ params['w']) * batch.weight
    weights = batch.weights
    mean = each.mean() if weights is None else (weights * each).sum()
    return mean, {'offset': batch.offset.astype(float)}

  params = {'w': jnp.array([1.0, -0.5])}
  state = TrainState(jnp.int32(0), params, training.make_optimizer(
      config, 8).init(params))
  streams = jax.random.normal(key, (8, 2))
  counts = np.arange(8) < 6
  update = jax.jit(lambda rows, state: sharded.update(
      config, arm, loss, state, (rows, jax.random.key_data(key), jnp.float32(0.3))))
  plain, metrics = update(streams[:6], state)
  filled, of_filled = update((streams, counts), state)
  expected = 0.3 * np.square(streams[:6] @ params['w']).mean()
  np.testing.assert_allclose([metrics['loss'], of_filled['loss']], expected, rtol=1e-5)
  np.testing.assert_allclose(
      metrics['gradient_norm'], of_filled['gradient_norm'], rtol=1e-5)
  np.testing.assert_allclose(plain.params['w'], filled.params['w'], rtol=1e-6)
  found = set()
  for step in range(12):
    _, metrics = update(streams[:6], state._replace(step=jnp.int32(step)))
    found.add(float(metrics['offset']))
  assert len(found) > 3
