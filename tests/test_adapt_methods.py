"""Methods of `experiments.adapt`, their loss, and what a step is given."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.adapt import frequencies, methods, programs, run
from experiments.language_model import training
from tests.adapt_cases import config_of, MODEL, prepared, write_text
from tests.cases import mostly_slow
from tests.llamas import llama, save_llama, variables_of
from vvlen.evaluation.perplexity import sliding_sums
from vvlen.models import clex
from vvlen.models.kernels.shifted import Shifted
from vvlen.models.rope import Eabf
from vvlen.objectives import measures, misalignment
from vvlen.objectives.divergences import (
    entropies,
    symmetric_cross_entropy,
    symmetric_kl,
)
from vvlen.training.step import TrainState


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_llama(tmp_path_factory.mktemp('checkpoint'), **MODEL)[0]


@pytest.fixture(scope='module')
def text_file(tmp_path_factory):
  return write_text(tmp_path_factory.mktemp('text'))


def _method(name, model=None, **fields):
  return methods.make(name, model or llama(**MODEL), config_of(**fields))


def test_methods_change_positions_alone(key):
  model = llama(**MODEL)
  variables = variables_of(model)
  tokens = jax.random.randint(key, (2, 16), 0, 256)
  plain = model.apply(variables, tokens)
  for name in set(methods.METHODS) - {'clex'}:
    made = _method(name, model)
    places = made.draw(key, 16)
    found = made.trained.apply(variables, tokens, *places)
    assert (name == 'none') == bool(jnp.allclose(found, plain, atol=1e-5)), name
    # It is measured as it is trained, but for the draw of random positions.
    places = places if name == 'random' else made.of_test(16)
    again = made.measured.apply(variables, tokens, *places)
    np.testing.assert_array_equal(again, found, err_msg=name)
  assert _method('pi').trained.rope.stretched == (4.0,)
  yarn = _method('yarn', **{'positions.factor': 2.0}).measured.rope.stretched
  assert yarn[:2] == (2.0, 8)  # of the 8 tokens of the checkpoint
  longer = _method('yarn', **{'positions.original_length': 6}).measured.rope.stretched
  assert longer[:2] == (4.0, 6)
  positions, length = _method('random').draw(key, 16)
  assert length is None and positions.max() > 16 and (np.diff(positions) > 0).all()
  again = _method('random').draw(jax.random.key(1), 16)[0]
  assert (positions != again).any()
  test = _method('random').of_test(16)[0]
  np.testing.assert_array_equal(test, _method('random').of_test(16)[0])
  assert test.max() > 16 and (np.diff(test) > 0).all()


def test_eabf_may_include_the_first_layers(key):
  model = llama(**MODEL)
  made = lambda **fields: methods.make('eabf', model, config_of('eabf_smoke', **fields))
  assert made().trained.rope.stretched == Eabf(8, 5e5, 2)
  # Without the field too.
  assert _method('eabf').trained.rope.stretched == Eabf(8, 5e5, 2)
  included = made(**{'positions.exempt_layers': 0})
  tokens = jax.random.randint(key, (2, 16), 0, 256)
  logits = {}
  for place, one in (('trained', included.trained), ('measured', included.measured),
                     ('exempt', made().trained)):
    logits[place] = one.apply(variables_of(model), tokens)
  np.testing.assert_array_equal(logits['trained'], logits['measured'])
  # Up to L₀ = 8 tokens no query grows.
  change = jnp.abs(logits['trained'] - logits['exempt']).max((0, 2))
  assert (change[:8] < 1e-5).all() and change[8:].max() > 1e-2


def test_clex_draws_a_length_and_is_measured_at_its_own(key):
  made = _method('clex', **{'positions.largest': 4})
  lengths = [int(made.draw(jax.random.key(i), 16)[1]) for i in range(40)]
  assert {*lengths} == {8, 16, 24, 32}
  assert made.of_test(16) == (None, None)
  assert not made.trained.rope.stretched.log_scale
  assert made.measured.rope.stretched.log_scale


def test_sparse_attention_is_of_training_alone():
  made = _method('pi', **{'positions.groups': 2})
  assert (made.trained.shifted, made.measured.shifted) == (Shifted(8), None)


@pytest.mark.parametrize(('method', 'term'), mostly_slow([
    ('yarn', 'sce'), ('none', 'entropy'), ('none', 'symmetric_kl'), ('clex', 'sce'),
], 1))
def test_the_loss_is_that_of_two_windows_at_the_same_positions(key, method, term):
  config = config_of(**{'arms.yarn.method': method, 'arms.yarn.term': term})
  made = methods.make(method, llama(**MODEL), config)
  variables = variables_of(made.trained, scale=2.0)  # so that positions matter
  streams = jax.random.randint(key, (3, 24), 0, 256)
  arm = config.arms.yarn
  value, told = programs.two_window_loss(
      config, arm, made.trained, made.draw, variables['params'],
      training.Batch(streams, jnp.int32(3), jnp.float32(0.3)), key)
  places = made.draw(jax.random.split(key)[0], 16)
  windows = misalignment.two_windows(streams, 16, 3)
  logits = [made.trained.apply(variables, x, *places) for x in windows]
  divergence = {'sce': symmetric_cross_entropy, 'symmetric_kl': symmetric_kl,
                'entropy': entropies}[term]
  expected, terms = misalignment.two_window_loss(
      *logits, *windows, 3, 0.3, divergence=divergence)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(told['misalignment'], terms['misalignment'], rtol=1e-5)


def test_clex_integrates_its_rates_once_for_both_windows(key, monkeypatch):
  config, solved = config_of(**{'arms.yarn.method': 'clex'}), []
  made = methods.make('clex', llama(**MODEL), config)
  params = variables_of(made.trained, scale=0.2)['params']
  log_rates = clex.log_rates
  monkeypatch.setattr(
      clex, 'log_rates', lambda *x: solved.append(x) or log_rates(*x))
  batch = training.Batch(jnp.ones((2, 24), jnp.int32), jnp.int32(3), jnp.float32(0.1))
  loss = lambda params: programs.two_window_loss(
      config, config.arms.yarn, made.trained, made.draw, params, batch, key)[0]
  gradient = jax.eval_shape(jax.grad(loss), params)
  assert len(solved) == 1 and 'clex_up' in gradient


def test_each_window_may_draw_its_own_positions(key):
  config = config_of(
      'clex_smoke', **{'positions.shared': False, 'positions.largest': 4})
  made = methods.make('clex', llama(**MODEL), config)
  variables = variables_of(made.trained, scale=2.0)
  streams = jax.random.randint(key, (3, 24), 0, 256)
  value, _ = programs.two_window_loss(
      config, config.arms.clex, made.trained, made.draw, variables['params'],
      training.Batch(streams, jnp.int32(3), jnp.float32(0.3)), key)
  places = [made.draw(k, 16) for k in jax.random.split(jax.random.split(key)[0])]
  assert int(places[0].length) != int(places[1].length)
  windows = misalignment.two_windows(streams, 16, 3)
  logits = [made.trained.apply(variables, x, *own)
            for x, own in zip(windows, places, strict=True)]
  expected, _ = misalignment.two_window_loss(*logits, *windows, 3, 0.3)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  logits = [made.trained.apply(variables, x, *places[0]) for x in windows]
  shared, _ = misalignment.two_window_loss(*logits, *windows, 3, 0.3)
  assert abs(shared - expected) > 1e-3 * expected


def test_positions_are_drawn_once_and_dropout_for_each_window(key):
  drawn, seen = [], []

  class Reader:
    """Notes what it is given."""

    tied = True

    def apply(self, variables, x, *places, method, rngs=None):
      if method == 'log_rates':
        return ('rates', int(x))
      positions, length, learned = places
      assert learned == ('rates', int(length))
      seen.append((positions, length, rngs['dropout']))
      return jnp.ones((*x.shape, 3))

  def draw(key, n):
    drawn.append(key)
    return methods.Places(jnp.arange(n) + len(drawn), jnp.int32(7 * len(drawn)))

  config = config_of()
  programs.two_window_loss(
      config, config.arms.yarn, Reader(), draw, {'embedding': jnp.ones((5, 3))},
      training.Batch(jnp.ones((2, 24), jnp.int32), jnp.int32(3), jnp.float32(0.1)), key)
  for positions, length, _ in seen:
    np.testing.assert_array_equal(positions, np.arange(16) + 1)
    assert length == 7
  [of_places] = drawn
  reused = [of_places, *(jax.random.fold_in(of_places, i) for i in range(2))]
  keys = [*(window[2] for window in seen), *reused]
  assert len({str(jax.random.key_data(k)) for k in keys}) == 5
  # Another part of the batch has the same positions, and dropout of its own.
  programs.two_window_loss(
      config, config.arms.yarn, Reader(), draw, {'embedding': jnp.ones((5, 3))},
      training.Batch(jnp.ones((2, 24), jnp.int32), jnp.int32(3), jnp.float32(0.1), 1),
      key)
  assert str(drawn[0]) == str(drawn[1])
  keys += [window[2] for window in seen[2:]]
  assert len({str(jax.random.key_data(k)) for k in keys}) == 7


@pytest.mark.slow
def test_each_part_of_a_batch_is_told_which_it_is(key):
  config = config_of(**{'train.parts': 2})

  def loss(params, batch, key):
    return (params['x'] ** 2).sum(), {
        f'rows_{i}': jnp.where(batch.part == i, batch.streams.mean(), 0.0)
        for i in range(2)}

  params = {'x': jnp.ones(2)}
  state = training.make_optimizer(config, 4).init(params)
  streams = jnp.arange(4)[:, None] * jnp.ones((4, 24), jnp.int32)
  _, told = programs._step(
      config, config.arms.yarn, loss, TrainState(jnp.int32(0), params, state), {},
      (streams, jax.random.key_data(key), jnp.float32(0.1)))
  # Rows 0 and 2 are the first part, 1 and 3 the other; metrics are means over parts.
  assert (float(told['rows_0']), float(told['rows_1'])) == (1 / 2, 2 / 2)


@pytest.mark.slow
def test_rows_that_do_not_count_add_nothing_to_parts_of_a_batch(key):
  config = config_of(**{'train.parts': 2, 'train.batch_size': 4})

  def loss(params, batch, key):
    rows = batch.streams.mean(1)
    mean = rows.mean() if batch.weights is None else (rows * batch.weights).sum()
    return mean * params['x'].sum(), {'mean': mean}

  params = {'x': jnp.ones(2)}
  state = training.make_optimizer(config, 4).init(params)
  streams = jnp.arange(6)[:, None] * jnp.ones((6, 24), jnp.int32)
  told = [
      programs._step(
          config, config.arms.yarn, loss, TrainState(jnp.int32(0), params, state), {},
          (rows, jax.random.key_data(key), jnp.float32(0.1)))[1]
      for rows in (streams[:4], (streams, jnp.arange(6) < 4))]
  assert float(told[0]['mean']) == 1.5
  chex.assert_trees_all_equal(*told)


@pytest.mark.slow
def test_each_step_has_an_offset_and_a_key_of_its_own_the_same_in_all_arms(key):
  config, seen = config_of(**{'train.max_length': 64}), []

  def loss(params, batch, key):
    return (params['x'] ** 2).sum(), {
        'offset': batch.offset * 1.0, 'weight': batch.weight,
        'drawn': jax.random.uniform(key)}

  params = {'x': jnp.ones(2)}
  state = training.make_optimizer(config, 4).init(params)
  for arm in (config.arms.yarn, config.arms.yarn_alpha_0_1):
    for step in range(4):
      batch = (jnp.ones((2, 96), jnp.int32), jax.random.key_data(key),
               jnp.float32(0.25))
      _, told = programs._step(
          config, arm, loss, TrainState(jnp.int32(step), params, state), {}, batch)
      seen.append([float(told[name]) for name in ('offset', 'drawn', 'weight')])
  assert seen[:4] == seen[4:]
  assert len({offset for offset, *_ in seen}) > 1 and len({x for _, x, _ in seen}) == 4
  assert {weight for *_, weight in seen} == {0.25}


@pytest.mark.slow
def test_entropies_and_symmetric_kl_are_the_misalignment_term(key):
  p, q = jax.random.normal(key, (2, 5, 7))
  np.testing.assert_allclose(
      entropies(p, q) + symmetric_kl(p, q), symmetric_cross_entropy(p, q), rtol=1e-5)
  uniform = jnp.zeros((2, 7))
  np.testing.assert_allclose(entropies(uniform, uniform), 2 * math.log(7), rtol=1e-6)


@pytest.mark.slow
def test_sliding_windows_are_those_of_the_library(key):
  config, model = config_of(), llama(**MODEL)
  variables = variables_of(model)
  segments = jax.random.randint(key, (3, 32), 0, 256)
  plain = lambda n: methods.Places()
  found = jax.jit(functools.partial(programs.evaluate, config, 8, model, plain))(
      variables['params'], segments)
  apply = functools.partial(jax.jit(model.apply), variables)
  assert found['sliding'].keys() == {8, 16} and found['nll'].keys() == {8, 16, 32}
  # All scales of misalignment, where a segment has room for both windows.
  for name in measures.Measures._fields:
    assert found[name].keys() == {16}, name
  for length, stride in ((8, 4), (16, 8)):
    sums = [sliding_sums(apply, np.asarray(x), length, stride) for x in segments]
    total, count = (sum(x[i].sum() for x in sums) for i in (0, 1))
    np.testing.assert_allclose(found['sliding'][length], total / count, rtol=1e-5)


def test_counts_of_pairs_predict_by_the_equation():
  # After 0 come 1, 1, 2; after 1 comes 0, twice; nothing comes after 2, the last token.
  train, held_out = [0, 1, 0, 1, 0, 2], [0, 1, 2, 3, 0]
  single = np.array([4, 3, 2, 1]) / 10  # of four tokens, one of which does not occur
  expected = [
      (2 + 2 * single[1]) / (3 + 2),  # 1 after 0, before which two kinds were seen
      (0 + 1 * single[2]) / (2 + 1),  # 2 after 1
      single[3],  # 3 after 2
      single[0],  # 0 after 3
  ]
  assert frequencies.pair_entropy(train, held_out, 4) == pytest.approx(
      -np.log(expected).mean(), rel=1e-12)


def test_counts_of_pairs_are_probabilities():
  rng = np.random.default_rng(0)
  train, size = rng.integers(0, 5, 40), 7
  for first in range(size):
    p = [math.exp(-frequencies.pair_entropy(train, [first, second], size))
         for second in range(size)]
    assert sum(p) == pytest.approx(1, rel=1e-12) and min(p) > 0


def test_pairs_are_counted_in_the_training_text_and_asked_of_the_held_out(
    checkpoint, text_file):
  _, read, *_ = prepared(checkpoint, text_file)
  train = np.concatenate([[*filter(lambda x: x is not None, [read.tokenizer.begin]), *d]
                          for d in read.documents])
  assert run._pair_entropy(read) == pytest.approx(frequencies.pair_entropy(
      train, np.asarray(read.held_out), read.tokenizer.vocab_size), rel=1e-12)
