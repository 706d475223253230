"""Measurements of models at any length, against the same computed by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from vvlen import sharding
from vvlen.evaluation.retriever import distribution, lengths
from vvlen.evaluation.retriever import ensemble as measure
from vvlen.evaluation.retriever.moments import distance, Moments, moments
from vvlen.evaluation.retriever.needed_temperature import metrics_under
from vvlen.models.retriever import Retriever
from vvlen.models.temperature import adaptive_temperature, constant
from vvlen.tasks import retrieval
from vvlen.training import ensemble

_QUERY = np.array([0.5], np.float32)
_MODEL = Retriever(num_classes=3, width=8, norm='layer_norm')
_APPLY = lengths.make_apply(_MODEL)


def _sample(key, num_sequences, length):
  return retrieval.sample(key, batch_size=num_sequences, min_length=length,
                          max_length=length, num_classes=3)


def _variables(key, sharpness=1.0):
  batch = _sample(key, 2, 5)
  params = _MODEL.init(key, batch.query, batch.items)['params']
  params['attention']['query_kernel'] *= sharpness
  return {'params': params}


def _all_sequences(key, num_sequences, length):
  """Draws what `in_chunks` draws, as one batch."""
  size = lengths.chunk_size(num_sequences, length)
  key = jax.random.fold_in(key, length)
  chunks = [_sample(jax.random.fold_in(key, c), size, length)
            for c in range(num_sequences // size)]
  return jax.tree.map(lambda *x: jnp.concatenate(x), *chunks)


@pytest.mark.parametrize(
    'length, num_sequences', mostly_slow([(13, 8), (2**11, 32)], 0))
def test_metrics_are_means_over_all_sequences(key, length, num_sequences):
  # 2**11 items: four chunks of eight sequences.
  variables = _variables(key, sharpness=5.0)
  coefficients = jnp.array([0.0, 0.0, 0.0, 0.5, 1.0])
  rng = np.random.default_rng(0)
  then = Moments(rng.normal(size=8), rng.uniform(0.5, 1.0, 8), None)
  evaluate = jax.jit(functools.partial(
      lengths.evaluate, _APPLY, _sample, length=length, num_sequences=num_sequences,
      fixed_query=_QUERY, reference=then))
  measured = evaluate(variables, key, coefficients)
  batch = _all_sequences(key, num_sequences, length)
  fitted = functools.partial(adaptive_temperature, coefficients=coefficients)
  rows = np.arange(num_sequences)
  for suffix, temperature in (
      ('', None), ('+adaptive', adaptive_temperature), ('+fitted', fitted)):
    logits, sown = _APPLY(variables, batch.query, batch.items, temperature)
    weights = np.asarray(sown['attention_weights'], np.float64)
    output = np.asarray(sown['normalized_output'], np.float64)
    hits = np.asarray(logits).argmax(-1) == np.asarray(batch.target)
    expected = {
        'accuracy': hits.mean(),
        'loss': -np.asarray(jax.nn.log_softmax(logits))[rows, batch.target].mean(),
        'attention_entropy': -(weights * np.log(weights + 1e-9)).sum(-1).mean(),
        'target_weight': weights[rows, batch.target_index].mean(),
        'output_norm': np.linalg.norm(sown['attention_output'], axis=-1).mean(),
        'output_mean': output.mean(),
        'output_variance': output.var(-1).mean(),
    }
    for name, value in expected.items():
      np.testing.assert_allclose(measured[suffix][name], value, rtol=2e-4, atol=2e-6,
                                 err_msg=f'{suffix} {name}')
    if not suffix:
      shift, change = output.mean(0) - then.mean, output.std(0) - then.deviation
      np.testing.assert_allclose(
          measured['']['input_distance'],
          (shift**2 + change**2).sum() / (then.deviation**2).sum(), rtol=1e-4)
  _, sown = _APPLY(variables, jnp.full_like(batch.query, 0.5), batch.items)
  np.testing.assert_allclose(
      measured['']['component_variance'],
      np.asarray(sown['attention_output'], np.float64).var(0, ddof=1).mean(), rtol=1e-3)


@pytest.mark.slow
def test_variance_of_a_component_falls_as_one_over_n_under_uniform_weights(key):
  variables = _variables(key, sharpness=0.0)
  at = lambda n: jax.jit(functools.partial(
      lengths.evaluate, _APPLY, _sample, length=n, num_sequences=4096,
      fixed_query=_QUERY))(variables, key, jnp.zeros(5))['']['component_variance']
  # Relative standard error of a variance of 4,096 sequences: about 2 % a component,
  # and the components share their sequences.
  np.testing.assert_allclose(at(4) / at(64), 16, rtol=0.15)


def test_distance_is_in_units_of_the_variance_then():
  rng = np.random.default_rng(0)
  rows = rng.normal(2.0, 3.0, (512, 8))
  then = moments(rows)
  np.testing.assert_allclose(distance(then, then), 0)
  vanished = jnp.broadcast_to(then.mean[None], rows.shape)
  np.testing.assert_allclose(distance(moments(vanished), then), 1, rtol=1e-5)
  np.testing.assert_allclose(
      distance(moments(rows + rows.std(0)), then), 1, rtol=1e-5)
  np.testing.assert_allclose(  # whatever the unit
      distance(moments(5 * rows / 2), moments(5 * rows)), distance(moments(rows / 2),
                                                                  then), rtol=1e-5)


@pytest.mark.slow
def test_a_model_of_nan_has_no_accuracy(key):
  variables = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), _variables(key))
  measured = lengths.evaluate(_APPLY, _sample, variables, key, jnp.zeros(5), length=16,
                              num_sequences=8, fixed_query=_QUERY)
  for suffix in lengths.ADAPTATIONS:
    assert jnp.isnan(measured[suffix]['accuracy'])


def test_a_sequence_with_a_class_of_nan_has_no_accuracy(key):
  # The first of three sequences, whose largest finite logit is right.
  logits = jnp.array([[0.0, 1.0, jnp.nan], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
  sown = {name: jnp.ones((3, 4)) for name in (
      'attention_weights', 'attention_output', 'normalized_output')}
  batch = retrieval.Batch(
      jnp.zeros((3, 1)), jnp.zeros((3, 4, 1)), None, jnp.ones(3, int),
      jnp.zeros(3, int))
  measured = lambda rows: lengths.evaluate(
      lambda *_: jax.tree.map(lambda x: x[rows], (logits, sown)),
      lambda *_: jax.tree.map(lambda x: x[rows], batch), None, key, jnp.zeros(5),
      length=4, num_sequences=len(logits[rows]), fixed_query=_QUERY)['']['accuracy']
  assert jnp.isnan(measured(slice(3)))
  assert measured(slice(1, 3)) == 0.5


def test_seeds_see_different_test_data():
  seen = lambda key: lengths.in_chunks(
      lambda batch: batch.items, _sample, key, 16, 8)
  one, other = (ensemble.purpose_key(k, ensemble.TEST)
                for k in ensemble.seed_keys(0, 0, 2))
  assert not np.isin(seen(one)[..., 0], seen(other)[..., 0]).any()


def test_test_training_and_validation_data_differ():
  seed = ensemble.seed_keys(0, 0, 1)[0]
  drawn = [np.ravel(_sample(ensemble.purpose_key(seed, purpose), 8, 16).items[..., 0])
           for purpose in (ensemble.TRAIN, ensemble.TEST, ensemble.VALIDATION)]
  assert np.unique(np.concatenate(drawn)).size > 3 * 128 - 3


def test_chunks_differ_from_each_other(key):
  priorities = lengths.in_chunks(
      lambda batch: batch.items[..., 0], _sample, key, 2**13, 8)
  assert np.unique(priorities[:, :3]).size == 24
  np.testing.assert_array_equal(
      priorities, _all_sequences(key, 8, 2**13).items[..., 0])


def test_chunks_divide_the_sequences_and_hold_at_most_2_to_the_14_items():
  assert lengths.chunk_size(100, 1024) == 10
  assert lengths.chunk_size(1024, 24) == 512
  assert lengths.chunk_size(1024, 16) == 1024
  assert lengths.chunk_size(1024, 2**14) == 1
  assert lengths.chunk_size(4, 2**20) == 1


@pytest.mark.slow
def test_best_beta_is_the_one_with_the_most_probable_target(key):
  variables = _variables(key, sharpness=5.0)
  entropy, beta = lengths.best_betas(_APPLY, _sample, variables, key, length=32,
                                     num_sequences=16)
  batch = _all_sequences(key, 16, 32)

  def probability(b):
    cool = lambda logits, mask: jnp.full((*logits.shape[:-1], 1), b)
    logits, sown = _APPLY(variables, batch.query, batch.items, cool)
    picked = np.asarray(jax.nn.log_softmax(logits))[np.arange(16), batch.target]
    return picked, np.asarray(sown['attention_weights'])

  best = probability(np.asarray(beta)[:, None])[0]
  for other in lengths.BETAS:
    assert (best >= probability(other)[0] - 1e-5).all()
  weights = probability(1.0)[1]
  np.testing.assert_allclose(
      entropy, -(weights * np.log(weights + 1e-9)).sum(-1), rtol=1e-4)
  assert (lengths.BETAS[0], lengths.BETAS[-1]) == (1.0, 16.0)
  assert set(np.asarray(beta).tolist()) <= {np.float32(b) for b in lengths.BETAS}


@pytest.mark.slow
def test_bound_of_proposition_1_holds_and_its_constants_are_those_of_the_items(key):
  variables = _variables(key, sharpness=2.0)
  vocabulary = retrieval.vocabulary(3)
  params = variables['params']
  constants = distribution.variance_bound(_APPLY, variables, vocabulary, _QUERY)
  # By hand: plain keys, queries and values of every item.
  plain = {k: np.asarray(v, np.float64) for k, v in params['attention'].items()
           if k != 'norm'}
  dense = lambda x, name: (x @ np.asarray(params[name]['kernel'], np.float64)
                           + np.asarray(params[name]['bias'], np.float64))
  gelu = lambda x: np.asarray(jax.nn.gelu(x), np.float64)
  items = gelu(dense(np.asarray(vocabulary, np.float64), 'item_hidden'))
  items = items @ np.asarray(params['item_output_kernel'], np.float64)
  query = dense(gelu(dense(_QUERY[None], 'query_hidden')), 'query_output')[0]
  logits = items @ plain['key_kernel'] @ (query @ plain['query_kernel']) / np.sqrt(8)
  np.testing.assert_allclose(constants['logit_range'], np.ptp(logits), rtol=1e-3)
  np.testing.assert_allclose(constants['value_variance'],
                             (items @ plain['value_kernel']).var(0).mean(), rtol=1e-3)
  for length in (8, 64):
    measured = lengths.evaluate(
        _APPLY, _sample, variables, key, jnp.zeros(5), length=length, num_sequences=256,
        fixed_query=_QUERY)['']['component_variance']
    bound = np.exp(2 * constants['logit_range']) * constants['value_variance'] / length
    assert measured < bound


def test_the_range_of_logits_is_finite_where_weights_underflow(key):
  constants = jax.jit(lambda variables: distribution.variance_bound(
      _APPLY, variables, retrieval.vocabulary(3), _QUERY))
  ranges = [constants(_variables(key, sharpness))['logit_range']
            for sharpness in (1.0, 1000.0)]
  assert ranges[1] > 200
  np.testing.assert_allclose(ranges[1], 1000 * ranges[0], rtol=1e-2)


def test_components_and_top_weights_are_those_of_the_model(key):
  variables = _variables(key, sharpness=5.0)
  arguments = dict(length=11, num_sequences=8)
  batch = _all_sequences(key, 8, 11)
  _, sown = _APPLY(variables, batch.query, batch.items)
  np.testing.assert_allclose(
      distribution.components(_APPLY, _sample, variables, key, num_components=3,
                              **arguments),
      sown['normalized_output'][:, :3], atol=1e-5)
  weights = np.asarray(sown['attention_weights'])
  priority = np.asarray(batch.items[..., 0])
  order = np.argsort(-priority, axis=1)[:, :4]
  np.testing.assert_allclose(
      distribution.top_weights(
          _APPLY, _sample, variables, key, num_items=4, **arguments,
          order=lambda batch, weights: batch.items[..., 0]),
      np.take_along_axis(weights, order, axis=1), atol=1e-6)


def test_under_each_temperature_is_as_under_it_alone(key):
  variables = _variables(key, sharpness=5.0)
  batch = _all_sequences(key, 8, 11)
  forward = lambda temperature: _APPLY(
      variables, batch.query, batch.items, temperature)
  temperatures = adaptive_temperature, constant(3.0), constant(np.nan)
  logits, sown = lengths.under_each(temperatures, forward)
  found = metrics_under(_APPLY, _sample, variables, key, temperatures, length=11,
                        num_sequences=8)
  for i, temperature in enumerate(temperatures):
    own, own_sown = forward(temperature)
    np.testing.assert_allclose(logits[i], own, atol=1e-5)
    np.testing.assert_allclose(
        sown['attention_weights'][i], own_sown['attention_weights'], atol=1e-6)
    for name, rows in lengths.answers(batch, own).items():
      np.testing.assert_allclose(found[name][i], rows.mean(), atol=1e-5)
  assert np.isnan(found['loss']).tolist() == [False, False, True]
  weights = sown['attention_weights']
  assert abs(weights[0] - weights[1]).max() > 1e-3


def test_a_block_is_measured_as_its_seeds_are(monkeypatch):
  mesh = sharding.seed_mesh()
  keys = ensemble.seed_keys(0, 0, mesh.size)
  variables = jax.vmap(_variables)(keys)
  fitted_to = []

  def fit(entropy, beta):
    """Returns the polynomial 2 for the first seed, 3 for the second, and so on."""
    fitted_to.append((entropy, beta))
    return np.array([0.0, 0.0, 0.0, 0.0, 1.0 + len(fitted_to)])

  monkeypatch.setattr(measure.temperature, 'fit', fit)
  function = measure.make_measure(
      _APPLY, _sample, lengths=(16, 32), num_sequences=16, fit_lengths=(8, 16),
      fit_sequences=32, trained_up_to=16, fixed_query=_QUERY,
      vocabulary=retrieval.vocabulary(3), mesh=mesh)
  other_keys = ensemble.seed_keys(1, 0, mesh.size)
  evaluate = jax.jit(lambda variables, key, coefficients, other_key: lengths.evaluate(
      _APPLY, _sample, variables, key, coefficients, length=32, num_sequences=16,
      fixed_query=_QUERY, reference=distribution.moments_at(
          _APPLY, _sample, variables, other_key, length=16, num_sequences=16)))
  bound = jax.jit(lambda variables: distribution.variance_bound(
      _APPLY, variables, retrieval.vocabulary(3), _QUERY))
  best_betas = [jax.jit(functools.partial(
      lengths.best_betas, _APPLY, _sample, length=n, num_sequences=32))
                for n in (8, 16)]
  measured = function(*(sharding.put(x, mesh) for x in (variables, keys, other_keys)))
  for seed in (0, mesh.size - 1):
    own = jax.tree.map(lambda x, seed=seed: x[seed], variables)
    alone = evaluate(own, keys[seed], jnp.array([0.0, 0.0, 0.0, 0.0, 2.0 + seed]),
                     other_keys[seed])
    for suffix in lengths.ADAPTATIONS:
      for name, value in alone[suffix].items():
        np.testing.assert_allclose(measured[suffix, name, 32][seed], value, rtol=1e-4,
                                   atol=1e-6)
    for name, value in bound(own).items():
      np.testing.assert_allclose(measured['', name, None][seed], value, rtol=1e-3)
    # Fitted to the validation data of all lengths, and of this seed alone.
    entropies = [best(own, other_keys[seed])[0] for best in best_betas]
    np.testing.assert_allclose(
        fitted_to[seed][0], np.concatenate(entropies), rtol=1e-4)
    assert set(fitted_to[seed][1]) <= {np.float32(b) for b in lengths.BETAS}
  assert {n for _, _, n in measured} == {16, 32, None}
