"""Associative recall and set complement: samples, scores, and training on them."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from configs import league as config_file
from experiments.league import arms, family, training
from experiments.league.effects import family_of
from experiments.league.names import AT_INFERENCE, NAMES
from experiments.league.tasks import make_task
from experiments.length_generalization.training import problem
from vvlen import sharding
from vvlen.evaluation.retriever.lengths import answers, make_apply
from vvlen.models.dictionary import DictionaryRetriever
from vvlen.objectives.targets import score
from vvlen.tasks import associative_recall, lookup, set_complement
from vvlen.training import ensemble
from vvlen.training.step import init_state, train_step


@pytest.mark.slow
def test_several_keys_of_a_dictionary_are_asked_for(key):
  batch = associative_recall.sample(
      key, batch_size=64, min_length=4, max_length=7, num_queries=3, num_keys=40,
      num_values=5)
  items, mask = np.asarray(batch.items[:, 0]), np.asarray(batch.mask[:, 0])
  assert items.shape == (64, 7, 2) and batch.query.shape == (64, 3)
  assert set(mask.sum(-1)) == {4, 5, 6, 7}
  for row in range(64):
    places = np.asarray(batch.target_index[row])
    assert len(set(places.tolist())) == 3 and mask[row][places].all()
    assert (items[row, places, 0] == batch.query[row]).all()
    assert (items[row, places, 1] == batch.target[row]).all()
    assert len(set(items[row, :, 0].tolist())) == 7
  # Every item is asked for equally often, and at any place among the queries.
  many = associative_recall.sample(
      key, batch_size=4000, min_length=4, max_length=4, num_queries=2, num_keys=40)
  counts = np.stack([np.bincount(many.target_index[:, i], minlength=4)
                     for i in range(2)])
  np.testing.assert_allclose(counts / 4000, 1 / 4, atol=0.03)


@pytest.mark.parametrize('queries, says', [(0, 'num_queries'), (5, 'num_queries')])
def test_no_more_queries_than_items(key, queries, says):
  with pytest.raises(ValueError, match=says):
    associative_recall.sample(
        key, batch_size=2, min_length=4, max_length=8, num_queries=queries)


def test_the_target_of_a_set_is_uniform_over_what_is_absent(key):
  batch = set_complement.sample(
      key, batch_size=64, min_length=2, max_length=6, num_symbols=8)
  chex.assert_shape(batch.items, (64, 6, 8))
  assert set(np.asarray(batch.mask.sum(-1))) == {2, 3, 4, 5, 6}
  for items, mask, target in zip(batch.items, batch.mask, batch.target, strict=True):
    symbols = np.asarray(items).argmax(-1)
    assert len(set(symbols.tolist())) == 6
    present = symbols[np.asarray(mask)]
    expected = np.full(8, 1 / (8 - len(present)))
    expected[present] = 0
    np.testing.assert_allclose(target, expected, rtol=1e-6)
  for sizes in ((3, 2), (0, 4), (2, 8)):
    with pytest.raises(ValueError, match='max_length < num_symbols'):
      set_complement.sample(key, batch_size=2, min_length=sizes[0],
                            max_length=sizes[1], num_symbols=8)


def test_to_ignore_the_set_has_the_accuracy_that_the_answer_gives(key):
  batch = set_complement.sample(key, batch_size=20_000, min_length=5, max_length=16)
  _, accuracy = score(jnp.zeros(batch.target.shape), batch.target)
  known = family_of(family.facts(config_file.get_config('cpu')))
  assert 100 * accuracy.mean() == pytest.approx(83.6, abs=0.1)
  chance = known.chance['set_complement']
  assert float(100 * accuracy.mean()) == pytest.approx(chance.at(10.5), abs=0.1)
  assert str(chance).endswith(' 83.6 % if the set is ignored')


@pytest.mark.slow
def test_lengths_may_grow(key):
  for module, more in ((associative_recall, {}), (set_complement, {})):
    batch = module.sample(
        key, batch_size=64, min_length=4, max_length=9, longest=jnp.int32(5), **more)
    assert batch.mask.sum(-1).max() == 5 and batch.mask.shape[-1] == 9


@pytest.mark.slow
def test_the_score_of_a_distribution_is_its_divergence_and_total_variation():
  logits = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
  target = np.float32([[0.5, 0.5, 0, 0, 0], [0.2] * 5, [0, 0, 1, 0, 0]])
  q = special.softmax(logits.astype(float), axis=-1)
  loss, right = score(logits, jnp.asarray(target))
  np.testing.assert_allclose(loss, special.rel_entr(target, q).sum(-1), rtol=1e-5)
  np.testing.assert_allclose(right, np.minimum(target, q).sum(-1), rtol=1e-5)
  exact = score(jnp.log(jnp.asarray(target) + 1e-30), jnp.asarray(target))
  np.testing.assert_allclose(exact, [[0] * 3, [1] * 3], atol=1e-6)
  # The uniform distribution over C symbols, for a set of N: 1 − N / C.
  absent = np.float32([[0.25, 0.25, 0.25, 0.25, 0, 0]])
  assert score(jnp.zeros((1, 6)), jnp.asarray(absent))[1] == pytest.approx(4 / 6)


def test_a_class_and_a_distribution_on_it_have_the_same_loss():
  logits = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
  classes = np.array([0, 4, 2, 1])
  plain, right = score(logits, jnp.asarray(classes))
  other, share = score(logits, jax.nn.one_hot(classes, 5))
  np.testing.assert_allclose(plain, other, rtol=1e-5)
  np.testing.assert_array_equal(right, logits.argmax(-1) == classes)
  np.testing.assert_allclose(share, np.exp(-np.asarray(plain)), rtol=1e-5)


def test_answers_are_means_over_queries():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(rng.normal(size=(4, 3, 5)), jnp.float32)
  target = jnp.asarray(rng.integers(5, size=(4, 3)), jnp.int32)
  batch = associative_recall.Batch(target, target, target, target, target)
  found = answers(batch, logits)
  each = [answers(batch._replace(target=target[:, i]), logits[:, i]) for i in range(3)]
  for name in ('accuracy', 'loss'):
    chex.assert_shape(found[name], (4,))
    np.testing.assert_allclose(
        found[name], np.mean([x[name] for x in each], axis=0), rtol=1e-5)
  bad = answers(batch, logits.at[1, 2, 0].set(jnp.nan))['accuracy']
  assert np.isnan(bad).tolist() == [False, True, False, False]


@pytest.mark.slow
def test_queries_that_share_items_are_answered_as_if_alone(key):
  batch = associative_recall.sample(
      key, batch_size=3, min_length=4, max_length=6, num_queries=4, num_keys=16,
      num_values=5)
  model = DictionaryRetriever(num_keys=16, num_classes=5, width=8, embedding_width=4)
  params = model.init(key, batch.query, batch.items, batch.mask)
  together = model.apply(params, batch.query, batch.items, batch.mask)
  for i in range(4):
    alone = model.apply(params, batch.query[:, i], batch.items[:, 0], batch.mask[:, 0])
    np.testing.assert_allclose(together[:, i], alone, atol=1e-5)


@pytest.fixture(scope='module')
def cells():
  config = config_file.get_config('cpu')
  config.base.model.width = 8
  config.base.train.batch_size = 16
  config.base.evaluate.update(lengths=(16, 24), num_sequences=8)
  config.tasks.set_complement.evaluate.lengths = (16, 24)
  config.tasks.lookup.task.num_keys = 64
  config.tasks.associative_recall.task.update(num_keys=64, num_classes=5)
  config.tune.rates = (1e-2, 3e-2)
  return family.task_configs(config)


_MEASURED = {('associative_recall', 'softmax'), ('associative_recall', 'entmax'),
             ('set_complement', 'entmax')}


@pytest.mark.slow
@pytest.mark.parametrize('arm', NAMES)
def test_every_arm_can_take_a_step_on_every_task(cells, arm):
  for task, cell in cells.items():
    fields = arms.built_in(16)[arm]
    made = problem(cell, arm, training.changed_task(make_task(cell), fields, task))

    def step(key, made=made):
      return train_step(made, init_state(made, key), made.sample(key, 0))

    with jax.numpy_rank_promotion('allow'):  # of nn.RMSNorm
      _, metrics = jax.eval_shape(step, jax.random.key(0))
    assert {name: x.shape for name, x in metrics.items()} == {
        'loss': (), 'accuracy': ()}


@pytest.mark.slow
@pytest.mark.parametrize('task, arm', [
    *itertools.product(['associative_recall', 'set_complement'],
                       ['softmax', 'entmax', 'qk_norm_log_n'])])
def test_arms_learn_them_and_are_measured(cells, task, arm):
  cell = cells[task]
  own = make_task(cell)
  assert own.name == task
  fields = arms.built_in(16)[arm]
  made = problem(cell, arm, training.changed_task(own, fields, task))
  state = init_state(made, jax.random.key(0))
  batch = made.sample(jax.random.key(1), 0)
  after, metrics = train_step(made, state, batch)
  assert made.loss(after.params, batch)[0] < metrics['loss']
  if (task, arm) not in _MEASURED:
    return
  mesh = sharding.seed_mesh(jax.devices()[:1])
  player = training.make_player(cell, task, arm, fields, (1e-2, 3e-2), mesh)
  keys = sharding.put(jax.random.split(jax.random.key(2), 2), mesh)
  params = jax.tree.map(lambda x: jnp.stack([x, x]), after.params)
  measured = player.measure(sharding.put(params, mesh), keys, keys)
  names = {'accuracy', 'loss'}
  if task == 'associative_recall':
    names |= {'target_weight', 'target_first'}
  own = {key: x for key, x in measured.items() if 'needed' not in key[1]}
  expected = {('', name, n) for name in names for n in (16, 24)}
  if (task, arm) == ('associative_recall', 'softmax'):  # it asks for single items
    expected |= {(f'+{law}', name, n) for law in AT_INFERENCE for n in (16, 24)
                 for name in ('accuracy', 'loss')}
    expected |= {('', 'found', n) for n in (5, 9, 16, 24)}
    assert len(measured) > len(own)
  else:
    assert measured == own
  assert own.keys() == expected
  assert all(x.shape == (2,) for x in measured.values())
  assert all(np.isfinite(x).all() for (law, *_), x in own.items() if not law)


def test_lengths_beyond_the_symbols_are_refused():
  config = config_file.get_config('cpu')
  config.tasks.set_complement.evaluate.lengths = (16, 64)
  with pytest.raises(ValueError, match=r'task set_complement: .* at most 63 items'):
    family.task_configs(config)
  config = config_file.get_config('cpu')
  config.tasks.associative_recall.task.num_queries = 0
  with pytest.raises(ValueError, match='num_queries must be a whole number'):
    family.task_configs(config)


def test_the_items_are_those_of_lookup(key):
  sizes = dict(batch_size=3, min_length=4, max_length=6, num_keys=40, num_values=64)
  batch = associative_recall.sample(key, **sizes)
  pairs = lookup.sample(jax.random.split(key)[0], **sizes)
  chex.assert_trees_all_equal(batch.items[:, 0], pairs.items)


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize('arm, rate, power', [
    ('softmax', 3e-3, 0), ('l2_softmax', 3e-3, 0.5), ('sigmoid', 1e-3, 1)])
def test_weights_of_a_set_are_even_and_sum_to_a_power_of_its_size(arm, rate, power):
  """As docs/league.md says of set complement; sigmoid adds the items up."""
  cell = family.task_configs(config_file.get_config('cpu'))['set_complement']
  cell = cell.copy_and_resolve_references()
  cell.optimizer.learning_rate = rate
  task = training.changed_task(make_task(cell), arms.built_in(16)[arm], arm)
  trainer = ensemble.make_trainer(problem(cell, arm, task), steps_per_call=200)
  state = ensemble.train(trainer, ensemble.seed_keys(7, 0, 1), num_steps=1000)
  variables = task.prepare(jax.tree.map(lambda x: x[0], state.params))
  for length in 5, 16, 60:
    batch = task.sample_at(jax.random.key(1), 64, length)
    logits, sown = make_apply(task.model(arm))(variables, batch.query, batch.items)
    weights = np.asarray(sown['attention_weights']).reshape(64, length)
    np.testing.assert_allclose(weights.sum(axis=1), length**power, rtol=0.01)
    # The share of the items that, with equal weights, would spread as much.
    shares = weights.sum(axis=1)**2 / (length * (weights**2).sum(axis=1))
    assert shares.mean() > 0.85 and weights.max() < 5 * weights.min()
    if arm == 'sigmoid':
      assert 0.999 < weights.min() and weights.max() <= 1
    if length <= 16:  # it has learned them
      assert answers(batch, logits)['accuracy'].mean() > 0.94


@pytest.mark.parametrize('weights, first, own', [
    ([[0.2, 0.7, 0.1]], 1, 0.7), ([[0.5, 0.5, 0.0]], 0, 0.5),
    ([[0.6, 0.4, 0.0]], 0, 0.4), ([[0.0, 0.0, 0.0]], 0, 0.0)])
def test_the_item_asked_for_is_first_if_no_other_has_as_much(weights, first, own):
  found = training.of_targets(jnp.array(weights), jnp.array([1]))
  assert {name: x.tolist() for name, x in found.items()} == {
      'target_first': [first], 'target_weight': [pytest.approx(own)]}


def test_nothing_is_first_in_a_model_that_has_diverged():
  found = training.of_targets(jnp.full((1, 3), jnp.nan), jnp.array([1]))
  assert all(np.isnan(x).all() for x in found.values())


def test_how_items_are_attended_is_a_mean_over_queries():
  weights = jnp.array([[[0.6, 0.4], [0.6, 0.4]], [[0.1, 0.9], [0.8, 0.2]]])
  found = training.of_targets(weights, jnp.array([[0, 1], [1, 0]]))
  assert found['target_first'].tolist() == [0.5, 1]
  np.testing.assert_allclose(found['target_weight'], [0.5, 0.85], rtol=1e-6)
