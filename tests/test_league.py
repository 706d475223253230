"""The league of fixes: its arms, its tuning, its family, and a run."""

import contextlib
import json
import subprocess
import sys
import time
import types
from typing import NamedTuple

import chex
from etils import epath
from flax import linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np
import pytest
from scipy import optimize, stats

from configs import league as config_file
from docs.examples.my_attention import attend
from experiments.harness import seed_blocks
from experiments.league import arms, effects, family, rates, run, training
from experiments.league.names import AT_INFERENCE, KINDS, name_of, NAMES
from experiments.league.tasks import make_task
from experiments.length_generalization.training import problem
from tests.conftest import ROOT
from vvlen.models.attention import SingleHeadAttention
from vvlen.models.fixes.check import check_weights
from vvlen.models.fixes.learned import learned
from vvlen.reporting import endpoints, results
from vvlen.reporting.family import digest_of
from vvlen.training import checkpoint, ensemble
from vvlen.training.step import init_state, train_step


@pytest.fixture
def config():
  return config_file.get_config('smoke')


def test_every_arm_has_a_name_and_a_kind():
  assert tuple(arms.built_in(16)) == tuple(NAMES)
  assert set(config_file.ARMS) == set(NAMES) and len(config_file.ARMS) == 23
  assert all(name.kind in KINDS for name in NAMES.values())
  assert len({name.label for name in NAMES.values()}) == len(NAMES)
  assert name_of('mine') == ('mine', 'own')


def test_names_of_arms_are_these():
  assert {name: own.label for name, own in NAMES.items() if own.kind != 'both'} == {
      'softmax': 'softmax', 'layer_norm': 'LN', 'standardize': 'standardized',
      'rms_norm': 'RMSNorm', 'ssmax': 'SSMax', 'log_n': 'log n',
      'sqrt_log_n': '√log n', 'power': 'n^p', 'linear': 'β ∝ n',
      'adaptive': 'trained adaptive', 'l2_softmax': 'L2 softmax',
      'entmax': 'entmax-1.5',
      'sigmoid': 'sigmoid', 'sink': 'sink', 'qk_norm': 'QK-norm',
      'qk_norm_log_n': 'QK-norm × log n', 'gated': 'gated'}
  of_kind = lambda kind: {name for name, own in NAMES.items() if own.kind == kind}
  # Laws of temperature are compared with each other.
  laws = {'ssmax', 'log_n', 'sqrt_log_n', 'power', 'linear', 'adaptive'}
  assert of_kind('temperature') == laws
  assert of_kind('both') == {f'{law}_layer_norm' for law in laws}
  assert all(NAMES[f'{law}_layer_norm'].label == f'{NAMES[law].label} + LN'
             for law in laws)
  assert of_kind('norm') == {'layer_norm', 'standardize', 'rms_norm'}
  assert of_kind('weights') == {'l2_softmax', 'entmax', 'sigmoid', 'sink'}
  assert of_kind('other') == {'qk_norm', 'qk_norm_log_n', 'gated'}


def test_a_league_is_a_fair_contest():
  paper, cpu, quick = map(config_file.get_config, ('paper', 'cpu', 'quick'))
  for config in (paper, cpu):
    assert config.num_seeds >= 32 and config.tune.num_seeds == 8
    assert config.tune.rates == (3e-4, 1e-3, 3e-3, 1e-2)
    assert len(family.sources(config)) == 23 and config.base.optimizer.l2 == 0
    assert {*config.tasks} == {
        'retrieval', 'lookup', 'associative_recall', 'set_complement'}
    # Sets have fewer items than there are symbols.
    own = config.tasks.set_complement
    assert max(own.evaluate.lengths) < own.task.num_classes == 64
  assert (paper.num_seeds, paper.base.train.num_steps) == (100, 20_000)
  assert (cpu.num_seeds, cpu.base.train.num_steps) == (32, 4_000)
  assert [*family.sources(quick)] == [
      'softmax', 'layer_norm', 'log_n', 'power', 'linear', 'entmax']
  assert (quick.num_seeds, quick.base.train.num_steps) == (8, 2_000)
  assert [*quick.tasks] == ['retrieval']
  assert {config.seed for config in (paper, cpu, quick)} == {2}


def test_the_docstring_has_a_row_for_each_arm_but_those_of_two():
  lines = [line for line in arms.__doc__.splitlines() if line.startswith('  ')]
  rows = [line.split()[0] for line in lines]
  assert rows[0] == 'arm'
  assert rows[1:] == [n for n in NAMES if NAMES[n].kind != 'both']


def test_arms_learn_what_their_table_says():
  scalars = {name: learned(fields['weights']) if 'weights' in fields else {}
             for name, fields in arms.built_in(16).items()}
  start = 1 / np.log(16)
  assert {name: x for name, x in scalars.items() if x} == {
      'ssmax': {'s': pytest.approx(start)},
      'sqrt_log_n': {'s': pytest.approx((start / 2) ** 0.5)}, 'power': {'p': 0.0},
      'sigmoid': {'b': 0.0}, 'sink': {'s': 0.0},
      'ssmax_layer_norm': {'s': pytest.approx(start)},
      'sqrt_log_n_layer_norm': {'s': pytest.approx((start / 2) ** 0.5)},
      'power_layer_norm': {'p': 0.0}}
  assert {name: x['qk_norm'] for name, x in arms.built_in(16).items()
          if 'qk_norm' in x} == dict.fromkeys(
              ('qk_norm', 'qk_norm_log_n'), pytest.approx(np.log2(240)))


@pytest.mark.parametrize('arm, beta', [
    ('log_n', np.log(3) / np.log(16)), ('linear', 3 / 16), ('power', 1.0),
    ('ssmax', np.log(3) / np.log(16)), ('sqrt_log_n', (np.log(3) / np.log(16)) ** 0.5)])
def test_a_law_is_that_of_its_equation_at_the_first_step(arm, beta):
  logits = np.float32([0.3, -1.0, 2.0])
  expected = np.exp(beta * logits) / np.exp(beta * logits).sum()
  for name in (arm, f'{arm}_layer_norm'):
    fields = arms.built_in(16)[name]
    np.testing.assert_allclose(fields['weights'](logits), expected, rtol=1e-5)
    assert fields.get('norm', 'none') == ('none' if name == arm else 'layer_norm')


def _softmax(z):
  return np.exp(z) / np.exp(z).sum()


def _adaptive(z):
  weights = _softmax(z)
  entropy = -(weights * np.log(weights + 1e-9)).sum()
  return max(np.polyval((-0.037, 0.481, -2.3, 4.917, -1.791), entropy), 1.0)


def _entmax(z):
  tau = optimize.brentq(
      lambda t: (np.maximum(z / 2 - t, 0) ** 2).sum() - 1, z.max() / 2 - 1, z.max() / 2)
  return np.maximum(z / 2 - tau, 0) ** 2


# β of logits z and learned scalars, with n₀ = 16.
_BETAS = {
    'ssmax': lambda z, s: s * np.log(len(z)),
    'log_n': lambda z: np.log(len(z)) / np.log(16),
    'sqrt_log_n': lambda z, s: s * np.sqrt(2 * np.log(len(z))),
    'power': lambda z, p: (len(z) / 16) ** p,
    'linear': lambda z: len(z) / 16,
    'adaptive': _adaptive,
    'qk_norm_log_n': lambda z: np.log(len(z)) / np.log(16),
}
_WEIGHTS = {
    'l2_softmax': lambda z: np.exp(z) / np.linalg.norm(np.exp(z)),
    'entmax': _entmax,
    'sigmoid': lambda z, b: 1 / (1 + np.exp(-(z + b - np.log(len(z))))),
    'sink': lambda z, s: np.exp(z) / (np.exp(s) + np.exp(z).sum()),
}


def _output(arm, p, query, items):
  """Returns what the equation of an arm gives for one query [q] and items [n, x]."""
  q, k = query @ p['query_kernel'], items @ p['key_kernel']
  z = k @ q / len(q) ** 0.5
  if arm.startswith('qk_norm'):
    z = p['qk_norm']['g'] * (k @ q) / np.linalg.norm(q) / np.linalg.norm(k, axis=-1)
  law, scalars = arm.removesuffix('_layer_norm'), p.get('weights', {})
  if law in _BETAS:
    weights = _softmax(_BETAS[law](z, **scalars) * z)
  else:
    weights = _WEIGHTS.get(law, _softmax)(z, **scalars)
  o = weights @ (items @ p['value_kernel'])
  if arm == 'rms_norm':
    o = p['norm']['scale'] * o / np.sqrt((o**2).mean() + 1e-5)
  elif arm == 'standardize' or arm.endswith('layer_norm'):
    o = (o - o.mean()) / np.sqrt(o.var() + 1e-5)
  if arm.endswith('layer_norm'):
    o = p['norm']['scale'] * o + p['norm']['bias']
  return o / (1 + np.exp(-query @ p['gate']['kernel'])) if arm == 'gated' else o


@pytest.mark.parametrize('arm', NAMES)
@pytest.mark.parametrize('mask', [None, [True, False, True, True, False], [
    False, False, False, True, False]])
def test_an_arm_is_its_equation(arm, mask):
  rng = np.random.default_rng(0)
  query, items = 3 * rng.normal(size=3), rng.normal(size=(5, 7)) + 1
  with jax.enable_x64(True), jax.numpy_rank_promotion('allow'):  # of nn.RMSNorm
    head = SingleHeadAttention(11, param_dtype=jnp.float64, **arms.built_in(16)[arm])
    shapes = jax.eval_shape(head.init, jax.random.key(0), query, items)['params']
    params = jax.tree.map(lambda x: rng.normal(size=x.shape), shapes)
    found = head.apply(
        {'params': params}, query, items, None if mask is None else jnp.asarray(mask))
  if mask is not None:  # as if other items were not there
    items = items[np.array(mask)]
  np.testing.assert_allclose(found, _output(arm, params, query, items), rtol=1e-10)


def _first_step(config, task, arm):
  """Returns the weights of an arm before and after its first step, and losses."""
  cell = family.task_configs(config)[task]
  fields = arms.built_in(cell.train.max_length)[arm]
  made = problem(cell, arm, training.changed_task(make_task(cell), fields, task))
  state = init_state(made, jax.random.key(0))
  batch = made.sample(jax.random.key(1), 0)
  after, metrics = train_step(made, state, batch)
  again, _ = made.loss(after.params, batch)
  return state.params, float(metrics['loss']), float(again)


@pytest.fixture(scope='module')
def plain():
  config = config_file.get_config('cpu')
  config.base.model.width = 8
  config.tasks.lookup.task.num_keys = 64
  config.base.evaluate.lengths = (16, 64)
  config.tune.rates = (1e-2, 3e-2)
  return config, {task: _first_step(config, task, 'softmax')
                  for task in ('retrieval', 'lookup')}


@pytest.mark.slow
@pytest.mark.parametrize('arm', [*NAMES][1:])
def test_an_arm_starts_as_softmax_and_learns(arm, plain):
  config, softmax = plain
  task = 'retrieval' if NAMES[arm].kind == 'both' else 'lookup'
  with jax.numpy_rank_promotion('allow'):  # of nn.RMSNorm
    params, loss, after = _first_step(config, task, arm)
  ours, theirs = (
      {jax.tree_util.keystr(path): leaf
       for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
      for tree in (params, softmax[task][0]))
  assert theirs.keys() <= ours.keys()
  chex.assert_trees_all_equal({name: ours[name] for name in theirs}, theirs)
  # Nothing but the arm's own parameters is added.
  assert all(any(f"['{own}']" in name for own in ('weights', 'qk_norm', 'gate', 'norm'))
             for name in ours.keys() - theirs.keys())
  assert np.isfinite(loss) and after < loss
  if arm not in ('power',):  # β = 1 at every n, to begin with
    assert loss != softmax[task][1]


def _losses(table):
  return {rate: dict(enumerate(values)) for rate, values in table.items()}


def test_the_rate_of_least_training_loss_is_chosen():
  chosen = rates.choose(_losses({1e-3: [0.5, 0.4], 3e-3: [0.1, 0.5], 1e-2: [0.3, 0.6]}))
  assert (chosen.rate, chosen.notes) == (3e-3, (rates.CLOSE,))
  assert chosen.losses == pytest.approx({1e-3: 0.45, 3e-3: 0.3, 1e-2: 0.45})


def test_ties_edges_and_losses_that_are_not_finite_are_noted():
  inf, nan = float('inf'), float('nan')
  chosen = rates.choose(_losses({1e-3: [0.5], 3e-3: [0.5], 1e-2: [0.6]}))
  assert (chosen.rate, chosen.notes) == (1e-3, (rates.EDGE, rates.TIE))
  # The mean of the finite seed would be the least.
  chosen = rates.choose(_losses({1e-3: [0.5, 0.5], 3e-3: [0.4, 0.5], 1e-2: [0.0, nan]}))
  assert (chosen.rate, chosen.notes) == (3e-3, (rates.CLOSE, rates.FAILED))
  assert np.isnan(chosen.losses[1e-2])
  chosen = rates.choose(_losses({1e-3: [0.5], 3e-3: [0.4], 1e-2: [0.3]}))
  assert (chosen.rate, chosen.notes) == (1e-2, (rates.EDGE,))
  chosen = rates.choose(_losses({1e-3: [inf], 3e-3: [nan]}))
  assert (chosen.rate, chosen.notes) == (1e-3, (rates.EDGE, rates.FAILED))


def test_the_distance_to_the_second_best_rate_is_paired_by_seed():
  nan = float('nan')
  chosen = rates.choose(_losses({
      1e-3: [0.5, 0.7, 0.9], 3e-3: [0.1, 0.2, 0.6], 1e-2: [0.2, 0.5, 0.8],
      3e-2: [0.0, 0.0, nan]}))
  changes = np.array([0.1, 0.3, 0.2])
  wide = stats.ttest_1samp(changes, 0).confidence_interval()
  assert chosen.rate == 3e-3 and chosen.second.mean_difference == pytest.approx(0.2)
  np.testing.assert_allclose(
      (chosen.second.ci_low, chosen.second.ci_high), (wide.low, wide.high))
  assert wide.low < 0 and chosen.notes == (rates.CLOSE, rates.FAILED)
  # Without the one rate that fails, and with more distance.
  far = rates.choose(_losses({1e-3: [0.9, 0.8], 3e-3: [0.1, 0.01], 1e-2: [0.9, 0.9]}))
  assert far.notes == () and far.second.ci_low > 0
  one = rates.choose(_losses({1e-3: [0.5], 3e-3: [0.25]}))
  assert one.rate == 3e-3 and one.second is None and one.notes == (rates.EDGE,)
  assert rates.choose(_losses({1e-3: [0.5], 3e-3: [nan]})).second is None


def test_the_rule_of_the_verdict_is_that_of_the_committed_family():
  # What experiments/results/league/README.md fixes; config.json does not hold it.
  assert (effects.MOST_BELOW, endpoints.LEARNED) == (0.1, 0.9)
  readme = (ROOT / 'experiments/results/league/README.md').read_text()
  assert '(`MOST_BELOW` = 0.1, ' in readme and '(`LEARNED`)' in readme


class _Trainer(NamedTuple):
  start: str


class _Curves(NamedTuple):
  """Of which the end is known: loss 0.1, accuracy 0.2, more by arm, seed and rate."""

  rate: float

  def late_mean(self, arm, first, metric):
    more = {'softmax': 1, 'power': 2}[arm] + np.arange(first, first + 2) + self.rate
    return {'loss': 0.1, 'accuracy': 0.2}[metric] + more


def test_rows_are_of_the_seeds_arms_and_rates_that_were_trained(monkeypatch, tmp_path):
  config = ConfigDict(dict(
      seed=2, num_seeds=3, train=dict(seeds_at_once=2, num_steps=20, group_size=1,
                                      save_every_seconds=0.0)))
  called = []

  def train_block(trainers, keys, num_steps, **fields):
    called.append(([x.start for x in trainers], jax.random.key_data(keys).tolist(),
                   num_steps, fields['first']))
    params = {'attention': {'p': jnp.array([0.5, 0.7]), 'kernel': jnp.ones((2, 3))}}
    return [types.SimpleNamespace(params={'params': params})]

  monkeypatch.setattr(training, 'train_block', train_block)
  monkeypatch.setattr(seed_blocks, 'measuring_keys', lambda *_: ('test', 'validation'))
  measured = {('', 'accuracy', 16): np.array([0.6, 0.8]),
              ('+power', 'accuracy', 16): np.array([0.65, 0.85])}
  trainers = {1e-3: _Trainer('slow'), 1.0: _Trainer('fast')}
  player = training.Player(
      config, 'retrieval', 'power', None, trainers,
      lambda params, *keys: measured if keys == ('test', 'validation') else {})
  progress = types.SimpleNamespace(measuring=lambda _: contextlib.nullcontext())
  place = lambda rate: seed_blocks.Place(
      'retrieval', epath.Path(tmp_path), _Curves(rate))
  # The block of seeds 2 and 3, of which the latter is one too many.
  rows = training.play(player, place(1.0), 1.0, 2, progress)
  assert {row[:5]: row.value for row in rows} == pytest.approx({
      ('retrieval', arm, 2, length, metric): value for arm, length, metric, value in (
          ('power', 16, 'accuracy', 0.6), ('power+power', 16, 'accuracy', 0.65),
          ('power', None, 'training_loss', 5.1),
          ('power', None, 'training_accuracy', 5.2),
          ('power', None, 'learned_p', 0.5))})
  assert {row.learning_rate for row in rows} == {1.0}
  of_seeds = lambda seed, first: jax.random.key_data(
      ensemble.seed_keys(seed, first, 2)).tolist()
  assert called == [(['fast'], of_seeds(2, 2), 20, 2)]
  rows = training.tune(player, {1e-3: place(1e-3), 1.0: place(1.0)}, 3, 2, progress)
  assert called[1:] == [(['slow', 'fast'], of_seeds(3, 0), 20, 0)]
  assert {(r.learning_rate, r.seed, r.metric): r.value for r in rows} == pytest.approx({
      (rate, seed, f'training_{metric}'): 2 + seed + rate + least
      for rate in (1e-3, 1.0) for seed in (0, 1)
      for metric, least in (('loss', 0.1), ('accuracy', 0.2))})
  assert {r[:2] for r in rows} == {('retrieval', 'power')}


def test_test_lengths_have_no_part_in_the_choice():
  row = lambda rate, metric, value, **more: results.Row(
      'retrieval', 'power', 0, more.get('length'), metric, value, learning_rate=rate)
  rows = []
  # At the test lengths, 3e-3 would be the best by far, by loss and by accuracy.
  for rate, loss, beyond in ((1e-3, 0.2, 5.0), (3e-3, 0.3, 0.1), (1e-2, 0.4, 5.0)):
    rows += [row(rate, 'training_loss', loss), row(rate, 'loss', beyond, length=64),
             row(rate, 'accuracy', 1 / (1 + beyond), length=64),
             row(rate, 'training_accuracy', 1 - loss)]
  other = [row(1e-2, 'training_loss', 0.0)._replace(arm='softmax', seed=seed)
           for seed in range(2)]
  losses = rates.read_losses(rows + other, 'retrieval', 'power')
  assert rates.choose(losses).rate == 1e-3


@pytest.mark.parametrize('change, says', [
    (lambda c: c.tune.update(seed=c.seed), 'tune.seed must differ from config.seed'),
    (lambda c: c.tune.update(rates=(1e-2, 1e-3)), 'tune.rates must be 2 or more ris'),
    (lambda c: c.update(run_arms=('softmx',)), 'config.run_arms must be one or more'),
    (lambda c: c.update(run_tasks=('x',)), 'config.run_tasks must be one or more of'),
    (lambda c: c.base.evaluate.update(lengths=(8,)), 'task retrieval: config.evaluate'),
    (lambda c: c.base.train.update(max_length=1, min_length=1), 'divide by its logari'),
    (lambda c: c.arms.update(softmax=''), 'config.arms must have softmax and another'),
    (lambda c: c.update(num_seeds=3), 'num_seeds 3 must be a multiple of'),
    (lambda c: c.claim.update(correction='none'), 'correction must be one of holm'),
    (lambda c: c.claim.update(level=0.2), 'config.claim.level must be 0.05: 0.2'),
    (lambda c: c.tasks.retrieval.update(train=5), 'task retrieval: '),
    (lambda c: c.tasks.update(retrieval=dict(task=dict(
        name='associative_recall', num_classes=4, num_keys=99, num_queries=6))),
     'num_queries must not exceed train.min_length and the shortest test length, 5: 6'),
    (lambda c: (c.tasks.update(retrieval=dict(task=dict(
        name='associative_recall', num_classes=4, num_keys=99, num_queries=3))),
                c.base.evaluate.update(lengths=(2, 32))),
     'the shortest test length, 2: 3'),
])
def test_what_cannot_be_run_is_refused(config, change, says):
  with config.unlocked():
    change(config)
  with pytest.raises(ValueError, match=says):
    family.task_configs(config)


def test_the_family_is_all_but_what_is_run_now_and_the_machine(config):
  known = digest_of(family.facts(config))
  config.run_arms, config.run_tasks = ('softmax', 'power'), ('retrieval',)
  config.base.train.update(group_size=2, save_every_seconds=1.0)
  assert digest_of(family.facts(config)) == known
  # Curves have a point a call, and the rate is chosen by the end of the curves.
  config.base.train.steps_per_call = 10
  assert digest_of(family.facts(config)) != known
  for change in (lambda c: c.update(num_seeds=4), lambda c: c.tune.update(num_seeds=2),
                 lambda c: c.claim.update(level=0.1), lambda c: c.arms.update(power=''),
                 lambda c: c.base.train.update(num_steps=40)):
    other = config_file.get_config('smoke')
    change(other)
    assert digest_of(family.facts(other)) != known


def test_an_arm_of_the_user_is_identified_by_its_file(config, tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text((ROOT / 'docs/examples/my_attention.py').read_text())
  config.arms.mine = f'{path}:attend'
  first = family.facts(config)['arms']['mine']
  assert first['source'] == f'{path}:attend' and len(first['sha256']) == 64
  path.write_text(path.read_text() + '\n')
  assert family.facts(config)['arms']['mine']['sha256'] != first['sha256']


@pytest.mark.slow
def test_the_example_of_an_arm_is_a_distribution_over_keys():
  check_weights(attend)
  logits, mask = np.float32([[1, -3, 0, 5]]), np.array([[True, True, True, False]])
  np.testing.assert_allclose(attend(logits, mask), [[0.8, 0, 0.2, 0]], atol=1e-5)
  assert learned(attend) == {'b': 1.0}
  lines = (ROOT / 'docs/examples/my_attention.py').read_text().splitlines()
  assert len(lines[lines.index('def attend(logits, mask=None, b=1.0):'):]) <= 15


@pytest.mark.parametrize('body, says', [
    ('logits[..., :-1]', r'mine\.py: weights attend: axis -1, the keys, has size 4'),
    ('logits.sum(-1)', 'weights attend: 2 axes with a mask, must be the 3'),
    ('logits / logits.sum((0, 2), keepdims=True)',
     'weights attend: weights not finite for equal logits'),
    ('logits +', 'mine.py cannot be run: SyntaxError'),
    ('logits\nraise SystemExit(3)', 'mine.py cannot be run: SystemExit: 3'),
])
def test_an_arm_that_breaks_shapes_is_refused_in_one_line(body, says, tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(f'def attend(logits, mask=None):\n  return {body}\n')
  with pytest.raises(ValueError, match=says) as error:
    arms.fields_of('mine', f'{path}:attend', 16)
  message = str(error.value)
  assert message.startswith(f'config.arms.mine: {path}') and '\n' not in message


@pytest.mark.parametrize('name, source, says', [
    ('mine', 'nowhere.py:attend', 'must be FILE.py:FUNCTION, where the file exists'),
    ('mine', arms.BUILT_IN, 'must be FILE.py:FUNCTION; built in are softmax, layer_no'),
    ('power', 'docs/examples/my_attention.py:attend', "must be 'built in'"),
    ('mine', 'docs/examples/my_attention.py:atend', "has no function 'atend'"),
])
def test_an_unknown_arm_is_refused(name, source, says, monkeypatch):
  monkeypatch.chdir(ROOT)
  with pytest.raises(ValueError, match=says):
    arms.fields_of(name, source, 16)


def test_a_model_without_the_fields_of_an_arm_is_refused(config):
  own = make_task(family.task_configs(config)['retrieval'])
  other = own._replace(model=lambda norm: nn.Dense(3))
  with pytest.raises(ValueError, match=r"^task retrieval: its model .* 'gated'$"):
    training.changed_task(other, {'gated': True}, 'retrieval')


@pytest.mark.slow
def test_the_command_refuses_a_broken_arm_in_one_line(run_here, tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text('def attend(logits, mask=None):\n  return logits[..., :3]\n')
  done = run_here('league', '--config=configs/league.py:smoke',
                  f'--workdir={tmp_path}/run', f'--config.arms.mine={path}:attend')
  assert done.returncode == 2 and not (tmp_path / 'run').exists()
  assert len(done.stderr.splitlines()) == 1
  assert f'{path}: weights attend: axis -1, the keys, has size 3' in done.stderr


_SMALL = ('--config=configs/league.py:smoke', '--config.base.model.width=8',
          '--config.base.train.save_every_seconds=0',
          '--config.arms.mine=docs/examples/my_attention.py:attend')
_BOTH = "--config.run_arms=('softmax','mine')"


def _run(*arguments):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.league', *_SMALL, *arguments], cwd=ROOT,
      capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.long
@pytest.mark.slow
def test_a_league_runs_and_resumes_to_the_same_results(tmp_path, fast_compilation):
  done = _run(f'--workdir={tmp_path}/whole', _BOTH)
  assert done.returncode == 0, done.stderr
  assert 'Retrieval: no verdict' in done.stdout
  whole, folder = tmp_path / 'whole', tmp_path / 'run'
  assert not list(whole.rglob('checkpoints/*/*')) and (whole / 'index.html').exists()
  rows = results.read_rows(whole / 'results.csv')
  assert {(r.arm, r.seed) for r in rows} == {
      (arm, seed)
      for arm in ('softmax', *(f'softmax+{law}' for law in AT_INFERENCE), 'mine')
      for seed in range(2)}
  assert {r.metric for r in rows if r.arm == 'mine'} == {
      'accuracy', 'loss', 'target_first', 'target_weight', 'training_accuracy',
      'training_loss', 'learned_b'}
  tuning = results.read_rows(whole / 'tuning/results.csv')
  assert {r.learning_rate for r in tuning} == {1e-3, 3e-3}
  assert {r.length for r in tuning} == {None}
  for arm in ('softmax', 'mine'):  # trained at the rate that was chosen
    chosen = rates.choose(rates.read_losses(tuning, 'retrieval', arm)).rate
    assert {r.learning_rate for r in rows if r.arm == arm} == {chosen}
  # Seeds of the tuning are not those of the contest.
  loss = {r.learning_rate: r.value for r in tuning
          if (r.arm, r.metric) == ('softmax', 'training_loss')}
  assert all(r.value not in loss.values() for r in rows if r.metric == 'training_loss')

  # Stopped while softmax is tuned, and again later, it ends as the unbroken run.
  process = subprocess.Popen(
      [sys.executable, '-m', 'experiments.league', *_SMALL, _BOTH,
       f'--workdir={folder}'],
      cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
  try:
    while not (folder / 'tuning/retrieval/softmax/rate_0.003/checkpoints').exists():
      assert process.poll() is None, process.stdout.read()
      time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=300) == 143, process.stdout.read()
  finally:
    process.kill()
  assert not (folder / 'results.csv').exists()
  done = _run(f'--workdir={folder}', '--config.run_arms=("softmax",)')
  assert done.returncode == 0, done.stderr
  assert ('finished: 3 of 4 arms on retrieval (LN, n^p, mine).'
          in ' '.join(done.stdout.split()))
  done = _run(f'--workdir={folder}', _BOTH)
  assert done.returncode == 0, done.stderr
  for name in ('results.csv', 'tuning/results.csv'):
    assert (folder / name).read_bytes() == (whole / name).read_bytes()

  # Another family is refused, naming the field, and nothing is overwritten.
  for flag, field in (('--config.tune.num_seeds=2', 'tune.num_seeds: 1 there, 2 here'),
                      ('--config.arms.power=', 'arms.power.source: built in there')):
    done = _run(f'--workdir={folder}', flag, '--config.run_arms=("softmax",)')
    assert (done.returncode, done.stdout) == (2, '')
    assert len(done.stderr.splitlines()) == 1 and field in done.stderr
  stored = json.loads((folder / 'config.json').read_text())
  assert stored['study'] == 'league' and len(stored['sessions']) == 3


@pytest.mark.slow
def test_checkpoints_ahead_of_others_are_removed(tmp_path):
  # As a kill between two saves of an ensemble leaves them.
  folders = [epath.Path(tmp_path / name) for name in 'abc']
  for folder, steps in zip(folders, ((10, 20), (10,), (10, 20)), strict=True):
    for step in steps:
      checkpoint.save(folder, step, {'x': jnp.full(2, step)})
  run.level(folders)
  like = {'x': jax.ShapeDtypeStruct((2,), jnp.int32)}
  for folder in folders:
    step, state = checkpoint.restore(folder, like)
    assert step == 10 and state['x'].tolist() == [10, 10]
  folders[1].rmtree()
  run.level(folders)
  assert [checkpoint.last_step(folder) for folder in folders] == [0, 0, 0]


def test_the_costs_of_arms_are_those_of_the_committed_benchmark():
  at = ROOT / 'experiments/results/benchmarks/league_arms.json'
  ratios = json.loads(at.read_text())['time_ratios']
  assert [*ratios] == [*config_file.ARMS]
  rounded = {arm: round(ratio, 1) for arm, ratio in ratios.items()}
  dear = {arm for arm in rounded if 'qk_norm' in arm}
  assert {rounded[arm] for arm in dear} == {1.8}
  assert {rounded[arm] for arm in rounded.keys() - dear} == {0.9, 1.0, 1.1}
  other = {}
  for task in ('lookup', 'set_complement', 'associative_recall'):
    found = json.loads(at.with_stem(f'league_arms_{task}').read_text())
    assert found['task'] == task and found['quiet_rounds'] >= 7
    own = {arm: round(ratio, 1) for arm, ratio in found['time_ratios'].items()}
    assert [*own] == [x for x in config_file.ARMS if not x.endswith('_layer_norm')]
    assert {own[arm] for arm in own if 'qk_norm' not in arm} == {1.0, 1.1}
    other[task] = sorted({own[arm] for arm in own if 'qk_norm' in arm})
  assert other == {
      'lookup': [1.4], 'set_complement': [1.6], 'associative_recall': [1.1, 1.2]}
  for words in (arms.__doc__, (ROOT / 'docs/league.md').read_text()):
    assert 'takes 0.9 to 1.1 times as long as softmax\'s, but 1.8 times with' in (
        ' '.join(words.split()))
