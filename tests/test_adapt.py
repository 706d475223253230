"""Fine-tuning that extends the context: methods, loss, measuring, report, command."""

import functools
import json
import math
import os
import subprocess
import sys

import chex
from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import adapt as config_file
from experiments.adapt import (
    check,
    figures,
    frequencies,
    methods,
    misalignment_table,
    paper_table,
    primary,
    programs,
    report,
    run,
    steps_table,
    tables,
    term_figure,
)
from experiments.adapt.answer import answer, weak_methods, without_extension
from experiments.harness.progress import Progress
from experiments.language_model import measuring, paper, sharded, training
from experiments.language_model.arms import Arm, Family, Run
from tests.artists import bands, lines, shades
from tests.cases import mostly_slow
from tests.cells import cells, interval, paired, text, wide
from tests.conftest import check_board, lose_rows, ROOT
from tests.llamas import llama, save_llama, variables_of
from vvlen.evaluation.perplexity import sliding_sums
from vvlen.models import clex
from vvlen.models.clex import Clex
from vvlen.models.kernels.shifted import Shifted
from vvlen.models.llama import adapter_base, load_checkpoint
from vvlen.models.llama import lora as adapters
from vvlen.models.positions import random_positions
from vvlen.models.rope import Eabf, Rope
from vvlen.objectives import measures, misalignment
from vvlen.objectives.cross_entropy import next_token_cross_entropy
from vvlen.objectives.divergences import (
    entropies,
    symmetric_cross_entropy,
    symmetric_kl,
)
from vvlen.reporting import plots, results
from vvlen.reporting.curves import read_curves
from vvlen.reporting.numbers import interval_words, p_words
from vvlen.reporting.tables import to_csv
from vvlen.reporting.titles import setup_of, title_of
from vvlen.sharding import mesh as partition
from vvlen.statistics import at_level, detectable, holm, mean_interval, paired_t_test
from vvlen.training import ensemble
from vvlen.training.step import TrainState

# A checkpoint of 8 tokens that reads bytes.
MODEL = dict(vocab_size=264, width=16, mlp_width=12, head_width=8)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  folder = tmp_path_factory.mktemp('adapt') / 'checkpoint'
  save_llama(folder, **MODEL)
  return folder


@pytest.fixture(scope='module')
def text_file(tmp_path_factory):
  path = tmp_path_factory.mktemp('text') / 'text.txt'
  path.write_text('\n'.join(f'{i} {"It was the best of times"[i % 20:]}'
                            for i in range(300)))
  return path


def _config(variant='yarn_smoke', **fields):
  config = config_file.get_config(variant)
  config.update_from_flattened_dict(fields)
  return config


def _ready(checkpoint, text_file, variant='yarn_smoke', **fields):
  config = _config(variant, checkpoint=str(checkpoint), **{
      'text.path': str(text_file), 'train.batch_size': 8,
      'evaluate.num_segments': 8, **fields})
  check.check(config)
  read = training.read_text(config)
  model = training.make_model(config, read.tokenizer)
  check.check_model(config, model)
  # One device, for which programs compile sooner.
  mesh = partition.mesh_of(jax.devices()[:1], (1, 1, 1))
  return config, read, model, mesh


VARIANTS = [f'{name}_{size}'.rstrip('_')
            for name in (*config_file._METHODS, *config_file._ADAPTERS)
            for size in config_file.SIZES]


def test_segments_have_room_for_two_windows_of_the_longest_length():
  """Sliding windows and misalignment are measured at all lengths.

  Perplexity in blocks is measured on the same text at each.
  """
  for name in (*VARIANTS, 'study', 'study_pilot'):
    fields = _config(name).evaluate
    room = fields.lengths[-1] * (1 + max(0.5, *fields.offsets))
    assert fields.segment >= room, name
    assert all(fields.segment % multiple == 0 for multiple in fields.lengths), name


@pytest.mark.slow
def test_every_variant_is_a_config_that_can_be_run(checkpoint):
  for name in VARIANTS:
    check.check(_config(name, checkpoint=str(checkpoint)))
  config = _config('study', checkpoint=str(checkpoint))
  check.check(config)
  assert len(config.arms) == 28 and config.num_seeds == 12
  # The pilot has the arms of the primary endpoint, in other seeds and on the same text.
  pilot = _config('study_pilot', checkpoint=str(checkpoint))
  check.check(pilot)
  assert [*pilot.arms] == [name for method in ('clex', 'none', 'pi', 'yarn')
                           for name in (method, f'{method}_alpha_0_1')]
  assert all(pilot.arms[name] == arm for name, arm in config.arms.items()
             if name in pilot.arms)
  assert pilot.seed >= config.seed + 100 and pilot.train == config.train
  with pytest.raises(ValueError, match="study or study_pilot, or one of none, pi"):
    config_file.get_config('x')


@pytest.mark.parametrize('name', ['paper', ''])
def test_recipes_are_those_of_the_papers(name):
  variant = f'longqlora_{name}'.rstrip('_')
  config = _config(variant)
  assert programs.lora_of(config, 'pi') == adapters.LONG_QLORA
  assert config.positions.groups == 4
  rates = lambda optimizer: (
      optimizer.learning_rate, optimizer.warmup_steps, optimizer.clip_norm,
      optimizer.final_rate, optimizer.weight_decay)
  assert rates(config.optimizer) == (2e-4, 20, 0.3, 1.0, 0.0)
  longlora = _config(f'longlora_{name}'.rstrip('_'))
  assert programs.lora_of(longlora, 'pi') == adapters.LONG_LORA
  # fine-tune.py of dvlab-research/LongLoRA with the options of its README.
  assert rates(longlora.optimizer) == (2e-5, 20, 1.0, 1.0, 0.0)
  assert programs.lora_of(_config('clex'), 'clex') is None
  paper = {n: _config(f'{n}_paper').train for n in ('clex', 'eabf', 'longqlora')}
  assert {n: (t.max_length, t.batch_size, t.num_steps) for n, t in paper.items()} == {
      'clex': (4096, 64, 200), 'eabf': (8192, 64, 200), 'longqlora': (8192, 64, 200)}


def test_the_paper_and_the_study_have_their_settings():
  for name in ('clex', 'eabf'):
    config = _config(f'{name}_paper')
    # AdamW, 2e-5, cosine, 3 % of 200 steps of warm-up, of CLEX; measured at 2 L.
    assert (config.optimizer.learning_rate, config.optimizer.warmup_steps,
            config.optimizer.final_rate, config.optimizer.weight_decay) == (
                2e-5, 0.03 * 200, 0.0, 0.0)
    assert (config.evaluate.lengths, config.evaluate.every_steps) == ((1, 2), 50)
    assert config.positions.largest == 16 and config.adapters.rank == 0
  # That of the published code in the recipes and at the size of the paper.
  b2 = {name: _config(name).optimizer.get('b2') for name in (
      'longqlora', 'longlora_paper', 'clex_paper', 'eabf_paper', 'clex', 'eabf_quick',
      'study', 'study_pilot')}
  assert [*b2.values()] == 4 * [0.999] + 4 * [None]
  study = _config('study')
  assert study.num_seeds == 12 and study.evaluate.lengths == (1, 2, 4, 8)
  assert (study.train.max_length, study.train.num_steps) == (512, 200)
  assert study.positions.largest == 8 and study.positions.factor == 4
  arms = {name: (arm.weight, arm.steps, arm.term) for name, arm in study.arms.items()
          if arm.method == 'yarn'}
  assert arms == {
      'yarn': (0, 1, 'sce'), 'yarn_alpha_0_03': (0.03, 1, 'sce'),
      'yarn_alpha_0_1': (0.1, 1, 'sce'), 'yarn_alpha_0_3': (0.3, 1, 'sce'),
      'yarn_entropy': (0.1, 1, 'entropy'),
      'yarn_symmetric_kl': (0.1, 1, 'symmetric_kl'),
      'yarn_more_steps': (0, 1.05, 'sce')}
  assert {arm.method for arm in study.arms.values()} == {'none', 'pi', 'yarn', 'clex'}


def test_random_positions_of_a_quick_run_are_from_twice_the_longest_test():
  config = _config('random_quick')
  longest = config.evaluate.lengths[-1] * config.train.max_length
  assert config.positions.highest == 2 * longest == 2048
  assert {_config(name).positions.highest for name in (
      'random', 'random_paper', 'study', 'study_pilot')} == {2**16}


@pytest.mark.parametrize('name', ['longqlora', 'longlora'])
def test_recipes_stretch_positions_by_l_over_the_original_length(name):
  # ⌈L / L₀⌉, also where L₀ is not that of the checkpoint, 4,096 tokens.
  factor = lambda size, max_length, **fields: methods.make(
      'pi', llama(max_length=max_length), _config(f'{name}{size}', **fields)
  ).measured.rope.stretched.factor
  assert factor('_paper', 4096) == 2 and factor('_paper', 3000) == 3
  assert factor('', 512) == 8 and factor('', 4096) == 1
  assert factor('', 4096, **{'positions.original_length': 512}) == 8
  assert factor('', 512, **{'positions.factor': 4.0}) == 4
  # The others name it.
  others = {n: _config(f'{n}_paper').positions.factor for n in ('pi', 'yarn', 'ntk')}
  assert {*others.values()} == {2.0}
  assert _config('study').positions.factor == 4


@pytest.mark.parametrize('name, weights, offsets', [
    ('clex', [0, 0.1, 0.3, 0.5, 1], []), ('eabf', [0, 0.1, 0.5], []),
    ('longqlora', [0, 0.1, 0.5], [(0, 0.25), (0, 1), (0.25, 0.5)])])
def test_the_papers_tables_have_their_arms(checkpoint, name, weights, offsets):
  # Tables 2, 3 and 6; 7; 9 and 10.
  config = _config(f'{name}_paper', checkpoint=str(checkpoint))
  method = 'pi' if name == 'longqlora' else name
  arms = [arm for arm in config.arms.values() if arm.method == method]
  plain = [arm for arm in arms if arm.steps == 1 and tuple(arm.offsets) == (0, 0.5)]
  assert sorted(arm.weight for arm in plain) == weights
  others = [arm for arm in arms if arm.weight == 0.1 and arm not in plain]
  assert sorted(tuple(arm.offsets) for arm in others if arm.steps == 1) == offsets
  assert [arm.steps * config.train.num_steps for arm in others if arm.steps != 1] == (
      [190])
  assert len(arms) == len(plain) + len(others) and {x.term for x in arms} == {'sce'}
  check.check(config)


def test_the_decay_of_squares_is_that_of_the_config():
  params = {'x': jnp.ones(2)}
  second = {}
  for name in ('clex_smoke', 'clex_paper'):
    made = training.make_optimizer(_config(name), 200)
    _, state = made.update({'x': jnp.full(2, 0.5)}, made.init(params), params)
    second[name] = optax.tree_utils.tree_get(state, 'nu')['x']
  for name, b2 in (('clex_smoke', 0.95), ('clex_paper', 0.999)):
    np.testing.assert_allclose(second[name], (1 - b2) * 0.5**2, rtol=1e-4)


def test_arms_are_measured_after_the_same_shares_of_their_steps(checkpoint):
  # Tables 9 and 10: 190 steps beside 200.
  config = _config('eabf_paper', checkpoint=str(checkpoint))
  shares = {name: arm.steps for name, arm in config.arms.items()}
  for name, share in shares.items():
    steps = [47, 95, 142, 190] if name == 'eabf_equal_time' else [50, 100, 150, 200]
    found = steps_table.measured_steps(config, share)
    assert [*found] == [50, 100, 150, 200] and [*found.values()] == steps
    assert steps[-1] == training.num_steps(config, config.arms[name])
  # Those of the study once, at their end.
  config = _config('study')
  found = {steps_table.measured_steps(config.to_dict(), arm.steps)[200]
           for arm in config.arms.values()}
  assert found == {200, 210}
  config = _config(**{'evaluate.every_steps': 100, 'train.num_steps': 250})
  assert steps_table.measured_steps(config, 0.29) == {100: 29, 200: 58, 250: 72}
  for share in np.linspace(0.01, 3, 50):
    config.arms.yarn.steps = float(share)
    *_, last = steps_table.measured_steps(config, float(share)).values()
    assert last == training.num_steps(config, config.arms.yarn)


@pytest.mark.parametrize(('fields', 'message'), [
    ({'positions.factor': 0.5}, 'config.positions.factor must be a finite number of at '
     'least 1, or 0: 0.5'),
    ({'checkpoint': ''}, 'config.checkpoint is missing'),
    ({'positions.exempt_layers': -1}, 'config.positions.exempt_layers must be a whole'),
    ({'positions.groups': 3}, 'config.positions.groups must divide half of'),
    ({'positions.original_length': 17}, 'config.positions.original_length must be at '
     'most config.train.max_length, 16: 17'),
    ({'adapters.quantized': 'nf4'}, 'config.adapters.quantized needs adapters'),
    ({'arms.none.weight': 0.2}, 'config.arms: method none needs one arm with weight 0'),
    ({'arms.yarn.term': 'x'}, "config.arms.yarn.term must be one of"),
    ({'arms.yarn.method': 'random', 'arms.yarn_alpha_0_1.method': 'random',
      'positions.highest': 31}, 'config.positions.highest must be at least the long'),
    ({'adapters.rank': 2, 'adapters.also': ('query',)}, 'config.adapters.also must'),
    ({'evaluate.offsets': (0.6,)}, 'config.evaluate.offsets times the length'),
    ({'evaluate.segment': 1}, 'config.evaluate.segment must be 0 or at least'),
    ({'optimizer.b2': 1.0}, 'config.optimizer.b2 must be a number in'),
    ({'optimizer.warmup_steps': 4}, 'config.optimizer.warmup_steps must be less than'),
])
def test_a_config_that_cannot_be_run_is_refused(checkpoint, fields, message):
  with pytest.raises(ValueError, match=message):
    check.check(_config(**{'checkpoint': str(checkpoint), **fields}))


@pytest.mark.parametrize(('fields', 'model', 'message'), [
    ({}, llama(max_length=17), 'config.train.max_length is 16, shorter than the 17'),
    ({}, llama(rope=None), 'config: method yarn: yarn needs a model with rotary'),
    ({}, llama(rope=Rope(highest=64)),
     'config: method none: none does not support a model with random positions'),
    ({'adapters.rank': 12}, llama(), 'config: method none: rank must be positive and'),
    ({'adapters.rank': 2, 'adapters.also': ('output_embedding',)}, llama(),
     "config: method none: no parameter is named 'output_embedding'"),
    ({'positions.groups': 2}, llama(num_heads=3, num_key_heads=1),
     'config: method none: shifted attention needs an even number of heads'),
])
def test_a_config_that_does_not_fit_the_checkpoint_is_refused(fields, model, message):
  with pytest.raises(ValueError, match=message):
    check.check_model(_config(**fields), model)


def test_adapters_without_their_library_are_refused(monkeypatch):
  monkeypatch.setitem(sys.modules, 'qwix', None)
  with pytest.raises(ValueError, match='config: method none: adapters and quantized'):
    check.check_model(_config(**{'adapters.rank': 2}), llama())
  check.check_model(_config(), llama())


def _method(name, model=None, **fields):
  return methods.make(name, model or llama(**MODEL), _config(**fields))


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
  made = lambda **fields: methods.make('eabf', model, _config('eabf_smoke', **fields))
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
  config = _config(**{'arms.yarn.method': method, 'arms.yarn.term': term})
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
  config, solved = _config(**{'arms.yarn.method': 'clex'}), []
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
  config = _config('clex_smoke', **{'positions.shared': False, 'positions.largest': 4})
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

  config = _config()
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
  config = _config(**{'train.parts': 2})

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
  config = _config(**{'train.parts': 2, 'train.batch_size': 4})

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
  config, seen = _config(**{'train.max_length': 64}), []

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
  config, model = _config(), llama(**MODEL)
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


def _train(ready, tmp_path, name, num_steps=None, measure_after=None):
  config, read, model, mesh = ready
  if num_steps:
    config.train.num_steps = num_steps
  made = programs.Programs(config, config.arms[name].method, model, mesh)
  with Progress(config.train.num_steps, 'steps') as progress:
    rows = sharded.run_seed(config, name, 0, read, mesh, made, epath.Path(tmp_path),
                            progress, report.EXPERIMENT, measure_after=measure_after)
  return made, rows


# As on accelerators.
BFLOAT16 = {'train.dtype': 'bfloat16', 'train.remat': True, 'train.scan_layers': True,
            'train.stream_dtype': 'bfloat16'}


@pytest.mark.slow
@pytest.mark.parametrize(('variant', 'fields'), [
    *((name, {}) for name in ('pi', 'ntk', 'yarn', 'eabf', 'alibi', 'random')),
    # The matrices of CLEX move far enough to be seen in the loss.
    *(('clex', {'optimizer.learning_rate': 0.02, **x}) for x in (
        {}, {'adapters.rank': 2})),
    *((name, {'adapters.rank': 2}) for name in ('alibi', 'random')),
    ('longqlora', {}), ('longlora', BFLOAT16)])
def test_a_trained_model_is_saved_and_read_again(
    checkpoint, text_file, tmp_path, variant, fields):
  ready = _ready(checkpoint, text_file, f'{variant}_smoke', **fields)
  config, read, _, _ = ready
  _, rows = _train(ready, tmp_path, variant)
  folder = tmp_path / f'models/{variant}/seed_0'
  model, variables = load_checkpoint(folder)
  segments = _segments(config, read)
  expected = {row.length: row.value for row in rows if row.metric == 'nll'}
  for length in (16, 32):
    blocks, places = segments.reshape(-1, length), None
    if variant == 'random':
      places = random_positions(jax.random.key(0), length, 64)
      with pytest.raises(ValueError, match=r'RandomPos.*\(key, num_tokens, 64\)'):
        model.apply(variables, blocks)
    logits = jax.jit(model.apply)(variables, blocks, places)
    np.testing.assert_allclose(
        next_token_cross_entropy(logits, blocks), expected[length],
        rtol=1e-2 if fields is BFLOAT16 else 1e-4)
  # Of 8 tokens, trained with 16; YaRN's factor is 4.
  assert model.max_length == (32 if variant == 'yarn' else 16)
  before, = [line for line in read_curves(tmp_path / 'evaluations.jsonl')
             if line['step'] == 0]
  assert before['nll_16'][0] != expected[16]
  if 'long' in variant:
    assert (folder / 'adapters/adapter_model.safetensors').exists()
    base, weights = load_checkpoint(checkpoint)
    identity = adapter_base.describe(base, weights['params'])
    saved = json.loads((folder / 'adapters/base.json').read_text())
    assert saved['checksums'] == identity['checksums']
    assert 'model.layers.0.mlp.up_proj.weight' in identity['checksums']


@pytest.mark.slow
def test_a_norm_after_attention_and_no_positions_are_kept(text_file, tmp_path):
  folder, start, _ = save_llama(
      tmp_path / 'start', **MODEL, norm='layer_norm', rope=None)
  ready = _ready(folder, text_file, 'none_smoke', **{'adapters.rank': 2})
  _, rows = _train(ready, tmp_path, 'none')
  model, variables = load_checkpoint(tmp_path / 'models/none/seed_0')
  assert model == start.clone(max_length=16)
  blocks = _segments(*ready[:2]).reshape(-1, 16)
  expected, = [x.value for x in rows if x.metric == 'nll' and x.length == 16]
  np.testing.assert_allclose(next_token_cross_entropy(
      model.apply(variables, blocks), blocks), expected, rtol=1e-4)


def _segments(config, read):
  [key] = ensemble.seed_keys(config.seed, 0, 1)
  key = ensemble.purpose_key(key, ensemble.TEST)
  starts = np.asarray(measuring.draw_starts(config, key, len(read.held_out)))
  longest = measuring.longest_segment(config)
  return jnp.stack([jnp.asarray(read.held_out[x:x + longest]) for x in starts.tolist()])


@pytest.mark.slow
@pytest.mark.parametrize(('variant', 'fields'), [
    # CLEX and random positions are drawn at each step, and so is dropout.
    ('clex', {'adapters.rank': 2}), *((name, {}) for name in (
        'none', 'pi', 'ntk', 'yarn', 'eabf', 'clex', 'random', 'alibi', 'longlora',
        'longqlora'))])
def test_a_run_that_stopped_goes_on_as_if_it_had_not(
    checkpoint, text_file, tmp_path, variant, fields):
  # The rate stays constant, so that 2 of 4 steps are those of a run of 2.
  fields, name = {'optimizer.final_rate': 1.0, **fields}, f'{variant}_alpha_0_1'
  fresh = lambda: _ready(checkpoint, text_file, f'{variant}_smoke', **fields)
  _, whole = _train(fresh(), tmp_path / 'whole', name)
  _train(fresh(), tmp_path / 'parts', name, 2)
  _, parts = _train(fresh(), tmp_path / 'parts', name)
  assert parts == whole
  folders = [tmp_path / part / f'models/{name}/seed_0' for part in ('whole', 'parts')]
  one, other = (load_checkpoint(folder) for folder in folders)
  assert one[0] == other[0] and one[0].max_length > 8
  chex.assert_trees_all_equal(one[1], other[1])


@pytest.mark.parametrize(('variant', 'method', 'fields'), mostly_slow([
    ('longlora', 'pi', {}), ('longlora', 'pi', BFLOAT16),
    ('clex', 'clex', {'adapters.rank': 2})]))
def test_what_is_frozen_stays_and_is_no_part_of_the_state(
    checkpoint, text_file, key, variant, method, fields):
  config, read, model, mesh = _ready(
      checkpoint, text_file, f'{variant}_smoke', **fields)
  made = programs.Programs(config, method, model, mesh)
  shapes = lambda *x: jax.tree.map(lambda x: (x.shape, x.dtype), x)
  expected = shapes(made.state, made.frozen)
  with jax.set_mesh(mesh):
    state = made.start(key)
    assert shapes(state, made.frozen) == expected  # as experiments.compile has them
    before = jax.device_get(made.frozen)
    sizes = [x.size for x in jax.tree.leaves(state.opt_state) if x.ndim]
    trained = sum(x.size for x in jax.tree.leaves(state.params))
    assert sum(sizes) == 2 * trained
    streams = next(sharded._batches(config, 0, read))
    data = np.asarray(jax.random.key_data(key))
    start = jax.device_get(state.params)
    for _ in range(2):
      state, _ = made.step(config.arms[variant])(
          state, (streams, data, np.float32(0.1)))
  chex.assert_trees_all_equal(jax.device_get(made.frozen), before)
  changed = jax.tree.map(lambda x, y: bool((x != y).any()), start,
                         jax.device_get(state.params))
  assert all(jax.tree.leaves(changed)), changed
  assert ('clex_down' in state.params) == (method == 'clex')
  assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype('float32')}


@pytest.mark.slow
def test_a_checkpoint_of_clex_keeps_its_rates_without_another_method(
    text_file, tmp_path, key):
  rope = Rope(1e4, Clex(8, largest=3))
  folder, _, variables = save_llama(tmp_path / 'clex', **MODEL, rope=rope)
  config, _, model, mesh = _ready(folder, text_file, 'none_smoke')
  with jax.set_mesh(mesh):
    state = programs.Programs(config, 'none', model, mesh).start(key)
  chex.assert_trees_all_equal(state.params, variables['params'])


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
  _, read, *_ = _ready(checkpoint, text_file)
  train = np.concatenate([[*filter(lambda x: x is not None, [read.tokenizer.begin]), *d]
                          for d in read.documents])
  assert run._pair_entropy(read) == pytest.approx(frequencies.pair_entropy(
      train, np.asarray(read.held_out), read.tokenizer.vocab_size), rel=1e-12)


# Tables, of made-up numbers that are all different.

ARMS = {name: Arm(name, weight, (0.0, 0.5), steps, term) for name, weight, steps, term
        in (('none', 0.0, 1.0, 'sce'), ('yarn', 0.0, 1.0, 'sce'),
            ('yarn_alpha', 0.1, 1.0, 'sce'), ('yarn_entropy', 0.1, 1.0, 'entropy'),
            ('yarn_kl', 0.1, 1.0, 'symmetric_kl'), ('yarn_more', 0.0, 1.05, 'sce'),
            ('none_alpha', 0.1, 1.0, 'sce'))}
RUN = Run(ARMS, '', 16, (1, 2), 3, '4 steps of 8 streams', 2)
FAMILIES = [
    Family('none', 'fine-tuning alone', ARMS['none'], (ARMS['none_alpha'],),
           'none_alpha'),
    Family('yarn', 'YaRN', ARMS['yarn'], tuple(
        ARMS[n] for n in ('yarn_entropy', 'yarn_alpha', 'yarn_kl', 'yarn_more')),
           'yarn_alpha'),
]


@pytest.fixture
def index():
  rng = np.random.default_rng(2)
  return {
      (name, metric, length): dict(enumerate(
          1.5 + place / 10 + rng.normal(0, 0.02, 3) + length / 100))
      for place, name in enumerate(ARMS) for metric in ('nll', 'sliding')
      for length in (8, 16, 32) if (metric, length) != ('sliding', 32)}


def _difference(test, form='.4f'):
  return (f'{text(test.mean_difference, "+" + form)} '
          f'[{text(test.ci_low, "+" + form)}, {text(test.ci_high, "+" + form)}]')


def _compare(index, one, other, length=32):
  return paired_t_test([*index[one, 'nll', length].values()],
                       [*index[other, 'nll', length].values()])


def _by_holm(index, *pairs, length=32):
  """Returns the cells of differences (one, other), at levels by Holm over them all."""
  tests = [paired([*index[one, 'nll', length].values()],
                  [*index[other, 'nll', length].values()]) for one, other in pairs]
  return [interval(*ends, '+.4f') for ends in wide(tests)]


def _perplexity(values):
  from scipy import stats

  low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
  return (f'{text(math.exp(np.mean(values)), ".2f")} '
          f'[{text(math.exp(low), ".2f")}, {text(math.exp(high), ".2f")}]')


def test_every_cell_of_methods(index):
  # A fourth seed is still being trained.
  lines = [{'arm': name, 'step': step, 'first_seed': seed,
            **{f'nll_{n}': [step + seed / 10 + n / 7 + place] for n in (8, 16, 32)}}
           for place, name in enumerate(('none', 'yarn')) for step in (0, 4)
           for seed in range(4)]
  found = cells(tables.methods(FAMILIES, ARMS['none'], RUN, index, lines, 8))
  test = _compare(index, 'yarn', 'none')
  expected = []
  for place, (name, words) in enumerate(
      (('none', 'fine-tuning alone'), ('yarn', 'YaRN'))):
    row = {'method': words}
    for at, n in (('8 tokens', 8), ('L', 16), ('2 L', 32)):
      row[f'{at}: before'] = text(math.exp(0.1 + n / 7 + place), '.2f')
      row[f'{at}: after [95 %]'] = _perplexity([*index[name, 'nll', n].values()])
    row['Δ log perplexity at 2 L [95 %]'] = _difference(test) if place else ''
    row['p Holm'] = tables.p_value(test.p) if place else ''
    expected.append(row)
  assert found == expected


def test_what_was_not_finite_before_training_is_left_out(index):
  lines = [{'arm': 'none', 'step': 0, 'first_seed': seed, 'nll_16': [x]}
           for seed, x in enumerate((None, 2.0, 2.0))]
  found = cells(tables.methods(FAMILIES, ARMS['none'], RUN, index, lines, 8))
  assert found[0]['L: before'] == text(math.exp(2), '.2f')


@pytest.mark.parametrize('weak', ['YaRN', 'fine-tuning alone'])
def test_a_method_that_did_not_learn_has_no_interval_in_the_table_of_methods(
    index, weak):
  """Nor has one that is compared with such a method, as in the figure."""
  make = lambda *weak: tables.methods(FAMILIES, ARMS['none'], RUN, index, [], 8, *weak)
  whole, found = cells(make()), cells(make([weak]))
  difference, p = 'Δ log perplexity at 2 L [95 %]', 'p Holm'
  test = _compare(index, 'yarn', 'none')
  assert whole[1][difference] == _difference(test) and whole[1][p]
  assert found == [whole[0], whole[1] | {
      difference: text(test.mean_difference, '+.4f'), p: ''}]
  assert make([weak]).note.endswith(
      f'by Holm over methods. Not learned, so that no test is shown: {weak}.')


def test_every_cell_of_the_term(index):
  table = tables.term(FAMILIES, RUN, index)
  found = cells(table)
  # Also where the first method has not the controls of the second.
  assert len(to_csv(table).splitlines()) == 3
  tests = [_compare(index, f'{name}_alpha', name) for name in ('none', 'yarn')]
  p_holm = holm([test.p for test in tests])
  intervals = _by_holm(index, ('none_alpha', 'none'), ('yarn_alpha', 'yarn'))
  for row, test, ends, p, words in zip(
      found, tests, intervals, p_holm, ('fine-tuning alone', 'YaRN'), strict=True):
    assert row['method'] == words
    assert row['misalignment term [95 %]'] == ends
    assert row['p Holm'] == tables.p_value(float(p))
    # Of two tests: at 2.5 %, at which Holm's method finds it whatever the other is.
    assert row['smallest detectable'] == text(detectable(test, 0.025), '.4f')
  for header, name in (('entropy alone', 'entropy'), ('symmetric KL alone', 'kl'),
                       ('more steps', 'more')):
    assert found[0][f'{header} [95 %]'] == ''
    assert found[1][f'{header} [95 %]'] == _difference(
        _compare(index, f'yarn_{name}', 'yarn'))
  assert not any('minus α' in header for header in table.columns)
  # The comparison in equal time, and what the term does besides lowering entropy.
  for header, name in (('more steps', 'more'), ('entropy alone', 'entropy')):
    assert [row[f'term minus {header} [95 %]'] for row in found] == [
        '', _difference(_compare(index, 'yarn_alpha', f'yarn_{name}'))]


def test_other_weights_are_compared_with_the_primary_arm(index):
  """By pairs: intervals of two arms against the same control decide nothing."""
  rng = np.random.default_rng(7)
  more = {f'yarn_{weight}': Arm(f'yarn_{weight}', weight, (0.0, 0.5), 1.0)
          for weight in (0.3, 0.03)}
  index |= {(name, 'nll', n): dict(enumerate(rng.normal(2, 0.02, 3)))
            for name in more for n in (16, 32)}
  # Not those that differ in more than α.
  apart = [more['yarn_0.3']._replace(offsets=(0.0, 1.0)),
           more['yarn_0.3']._replace(steps=0.95),
           ARMS['yarn_entropy']._replace(weight=0.5)]
  yarn = FAMILIES[1]._replace(
      others=(*FAMILIES[1].others, *apart, *more.values()))
  assert primary.other_weights(yarn) == [*more.values()]
  table = tables.term([FAMILIES[0], yarn], RUN, index)
  headers = {weight: f'α = {weight} minus α = 0.1 [95 %]' for weight in (0.03, 0.3)}
  assert [*table.columns][-2:] == [*headers.values()] and len(table.columns) <= 12
  alone, found = cells(table)
  for weight, header in headers.items():
    test = _compare(index, f'yarn_{weight}', 'yarn_alpha')
    assert (alone[header], found[header]) == ('', _difference(test))
    record = table.records[1]
    prefix = f'weight_{weight}'.replace('.', '_')
    assert record[f'{prefix}_difference'] == pytest.approx(test.mean_difference)
  assert 'Another α minus α = 0.1: whether less of the term does less' in table.more
  _, weak = cells(tables.term([FAMILIES[0], yarn], RUN, index, ['YaRN']))
  assert weak[headers[0.3]] == found[headers[0.3]].partition(' [')[0]
  # The other rows and columns are as without them.
  plain = cells(tables.term(FAMILIES, RUN, index))
  assert [{k: x for k, x in row.items() if 'minus α' not in k}
          for row in (alone, found)] == plain


def test_the_study_compares_its_weights_in_the_table_of_the_term():
  config = _config('study').to_dict()
  for family in report.families(report.read_run(config), config):
    assert [arm.weight for arm in primary.other_weights(family)] == [0.03, 0.3]


def test_the_cost_of_the_term_is_that_of_the_committed_benchmark():
  found = json.loads((
      ROOT / 'experiments/results/benchmarks/regularizer_cost_study.json').read_text())
  median, mean = found['percent_more'], found['percent_more_mean_and_interval']
  middle, low, high = (text(x, '+.2f') for x in mean)
  page = (ROOT / 'experiments/results/adapt/README.md').read_text()
  assert (f'{text(median, "+.2f")} % (median of 40; mean {middle} % [{low}, {high}])'
          ) in ' '.join(page.split())
  config = _config('study')
  assert (found['length'], found['batch'], found['rounds_made']) == (
      config.train.max_length, config.train.batch_size, 40)


def test_p_of_the_term_are_corrected_over_methods(index):
  rng = np.random.default_rng(4)
  for name in ('none', 'yarn'):
    index[f'{name}_alpha', 'nll', 32] = {
        seed: x + 0.04 + rng.normal(0, 0.02)
        for seed, x in index[name, 'nll', 32].items()}
  # A seed of one arm alone is in no pair.
  index['yarn', 'nll', 32][3] = 9.0
  tests = [paired_t_test([index[f'{name}_alpha', 'nll', 32][i] for i in range(3)],
                         [index[name, 'nll', 32][i] for i in range(3)])
           for name in ('none', 'yarn')]
  p = [test.p for test in tests]
  corrected = [float(x) for x in holm(p)]
  table = tables.term(FAMILIES, RUN._replace(num_seeds=4), index)
  assert [row['p Holm'] for row in cells(table)] == [
      tables.p_value(x) for x in corrected]
  assert {tables.p_value(x) for x in corrected} != {tables.p_value(x) for x in p}
  assert [record['seeds'] for record in table.records] == [3, 3]
  assert 'at 2 L, 32 tokens, minus the same method with α = 0' in table.note
  said = answer(FAMILIES, RUN, index, 4.0)[0]
  for test, x, words in zip(
      tests, corrected, ('fine-tuning alone', 'YaRN'), strict=True):
    wider = at_level(test, 0.025)  # in neither is a difference found
    ends = interval_words(wider.ci_low, wider.ci_high, '+.4f')
    assert f'{ends}, {p_words(x)} ({words})' in said
  assert 'p and intervals by Holm over methods' in said
  assert said.startswith(
      'At 2 L, 32 tokens, the misalignment term with α = 0.1 was not found to change '
      'predictions with fine-tuning alone, YaRN: log perplexity changes by ')
  assert min(corrected) >= 0.05
  # Far apart: a difference is found, and which way it goes.
  for change, words in ((1, 'worsens'), (-1, 'improves')):
    index['none_alpha', 'nll', 32] = {
        seed: x + change + seed / 1000
        for seed, x in index['none', 'nll', 32].items()}
    assert (f' {words} predictions with fine-tuning alone, and was not found to change '
            'predictions with YaRN: ') in answer(FAMILIES, RUN, index, 4.0)[0]


def test_what_the_paper_prints_is_a_table():
  # Copied by hand from Tables 2, 3, 6, 9 and 10.
  found = {row['setting']: [*row.values()][1:]
           for row in cells(paper_table.published())}
  assert found == {
      'CLEX on RedPajama-Book': ['6.12', '5.88', '−0.0400', '5.91', '−0.0349'],
      'CLEX on PG19': ['7.45', '7.35', '−0.0135', '7.39', '−0.0081'],
      'LongQLoRA': ['5.82', '5.77', '−0.0086', '5.74', '−0.0138'],
      'EABF': ['6.01', '5.91', '−0.0168', '5.86', '−0.0253']}


def test_perplexities_of_the_paper_are_as_it_prints_them():
  # After 50, 100 and 200 steps, copied by hand from Tables 2, 3 and 6.
  numbers = lambda text: tuple(map(float, text.split('/')))
  by_alpha = lambda *rows: dict(zip(
      ('0', '0.1', *(('0.3', '0.5', '1') if len(rows) == 5 else ('0.5',))),
      map(numbers, rows), strict=True))
  assert paper.ALPHA == {
      'CLEX on RedPajama-Book': by_alpha(
          '7.21/6.56/6.12', '6.89/6.24/5.88', '6.95/6.35/5.98', '7.44/7.01/6.54',
          '16.21/14.12/12.92'),
      'CLEX on PG19': by_alpha('8.92/7.89/7.45', '8.95/7.92/7.35', '9.42/8.59/8.21'),
      'LongQLoRA': by_alpha('6.82/6.41/5.82', '6.72/6.39/5.77', '7.07/6.62/5.92'),
      'EABF': by_alpha('6.89/6.52/6.01', '6.92/6.43/5.91', '7.14/6.78/6.34')}
  # Table 7.
  assert [*paper.OFFSETS.values()] == [*map(numbers, (
      '6.72/6.39/5.77', '6.77/6.29/5.81', '6.82/6.47/5.94', '15.65/13.59/12.52'))]
  assert [*paper.OFFSETS] == ['e up to L/2', 'up to L/4', 'L/4 to L/2', 'up to L']
  # Tables 9 and 10.
  assert paper.EQUAL_TIME == {
      'CLEX on RedPajama-Book': numbers('6.92/6.27/5.91'),
      'CLEX on PG19': numbers('9.02/8.01/7.39'), 'LongQLoRA': numbers('6.79/6.42/5.74'),
      'EABF': numbers('7.01/6.48/5.86')}


def test_every_cell_of_sliding_windows(index):
  table = tables.sliding(FAMILIES, RUN, index, 8, 3)
  assert 'over segments of 3 L' in table.note
  found = cells(table)
  labels = {
      'none': 'fine-tuning alone, α = 0', 'none_alpha': 'fine-tuning alone, α = 0.1',
      'yarn': 'YaRN, α = 0', 'yarn_entropy': 'YaRN, α = 0.1 of entropy',
      'yarn_alpha': 'YaRN, α = 0.1', 'yarn_kl': 'YaRN, α = 0.1 of symmetric KL',
      'yarn_more': 'YaRN, α = 0, 1.05 of the steps'}
  for row, (name, words) in zip(found, labels.items(), strict=True):
    assert row.pop('arm') == words
    assert row == {
        '8 tokens [95 %]': _perplexity([*index[name, 'sliding', 8].values()]),
        'L [95 %]': _perplexity([*index[name, 'sliding', 16].values()])}


def _lines(index, steps):
  """Returns evaluations of arms after steps, {arm: steps}, and a fourth seed's."""
  rng = np.random.default_rng(6)
  return [{'arm': name, 'step': step, 'first_seed': seed, 'nll_8': [9.0],
           **{f'nll_{n}': [float(rng.normal(2, 0.1))] for n in (16, 32)}}
          for name, own in steps.items() for seed in range(4) for step in (0, *own)]


def test_every_cell_of_steps(index):
  config = _config(**{'train.num_steps': 40, 'evaluate.every_steps': 15}).to_dict()
  # 1.05 of the steps are 15.75 and 31.5, rounded down, and 42.
  steps = {name: (15, 30, 40) for name in ARMS} | {'yarn_more': (15, 31, 42)}
  measured = _lines(index, steps)
  # Of one arm nothing was kept but the end; one seed of another was not finite.
  measured = [x for x in measured
              if x['arm'] != 'yarn_kl' or x['step'] == 40]
  bad, = [x for x in measured if (x['arm'], x['first_seed'], x['step']) == (
      'yarn_alpha', 1, 30)]
  bad['nll_32'] = [None]
  other, short = [x for x in measured if (x['arm'], x['first_seed'], x['step']) in (
      ('none', 2, 15), ('yarn', 0, 15))]
  other['nll_16'] = [None]
  del short['nll_16']
  del index['none_alpha', 'nll', 32][2]  # of a seed that is not finished at 2 L
  table = steps_table.steps(FAMILIES, RUN, index, config, measured)
  arms = [arm for family in FAMILIES for arm in (family.control, *family.others)]
  places = [(n, arm) for n in (16, 32) for arm in arms]
  for (n, arm), row, record in zip(places, cells(table), table.records, strict=True):
    expected = {'length': {16: 'L', 32: '2 L'}[n]}
    assert (record['length'], record['arm']) == (n, arm.name)
    for place, step in enumerate((15, 30, 40)):
      made = steps[arm.name][place]
      assert record[f'steps_{step}'] == made
      values = [x[f'nll_{n}'][0] for x in measured if (x['arm'], x['step']) == (
          arm.name, made) and x['first_seed'] in index[arm.name, 'nll', n]
                and f'nll_{n}' in x]  # the fourth is not finished
      ends = [math.exp(x) for x in mean_interval([
          x for x in values if x is not None])] if values else []
      expected[f'{step} steps [95 %]'] = interval(*ends, '.2f') if values else ''
    assert row == {'arm': row['arm'], **expected}
  assert cells(table)[6]['arm'] == 'YaRN, α = 0, 1.05 of the steps'
  assert table.note == (
      '3 seeds [95 %]; L = 16 tokens. Perplexity in blocks of each length, after these '
      'steps of fine-tuning; 1.05 of the steps: 15, 31, 42. Not finite, and left out: '
      'fine-tuning alone, α = 0, seed 2; YaRN, α = 0.1, seed 1.')
  assert len(to_csv(table).splitlines()) == 15


def test_no_table_of_steps_where_arms_were_measured_once(index):
  config = _config(**{'train.num_steps': 200, 'evaluate.every_steps': 200}).to_dict()
  steps = {name: (200,) for name in ARMS} | {'yarn_more': (200, 210)}
  make = lambda steps: steps_table.steps(
      FAMILIES, RUN, index, config, _lines(index, steps))
  # An arm of 1.05 of the steps is compared at its end alone.
  assert make(steps) is None and make({}) is None
  config['evaluate']['every_steps'] = 100
  assert make(steps) is None
  assert [*make(steps | {'none': (100, 200)}).columns] == [
      'length', 'arm', '100 steps [95 %]', '200 steps [95 %]']


def test_every_cell_of_misalignment(index):
  rng = np.random.default_rng(5)
  words = {'sce': 'SCE', 'symmetric_kl': 'symmetric KL',
           'kl_first_second': 'KL(long‖short)', 'kl_second_first': 'KL(short‖long)',
           'js': 'Jensen–Shannon', 'entropy_first': 'entropy, long',
           'entropy_second': 'entropy, short', 'top1_agreement': 'top-1 agreement'}
  assert {*words} | {'half_sce'} == {*measures.Measures._fields}
  for name in ARMS:
    index |= {(name, scale, n): dict(enumerate(rng.uniform(0, 1, 3)))
              for scale in words for n in (16, 32)}
  del index['yarn_kl', 'js', 32]
  table = misalignment_table.misalignment(FAMILIES, RUN, index)
  arms = [arm for family in FAMILIES for arm in (family.control, *family.others)]
  for arm, row in zip(arms, cells(table), strict=True):
    expected = {}
    for scale, header in words.items():
      values = [*index.get((arm.name, scale, 32), {}).values()]
      ends = [float(x) for x in mean_interval(values)] if values else []
      expected[f'{header} [95 %]'] = interval(*ends, '.4f') if values else ''
    assert row == {'arm': row['arm'], **expected}
  assert cells(table)[3]['arm'] == 'YaRN, α = 0.1 of entropy'
  assert table.note.startswith('3 seeds [95 %]. Two windows of 2 L, 32 tokens,')


def test_a_method_that_did_not_learn_has_no_verdict(index):
  # They have 1.66 and 1.76 nats at L, give or take 0.02.
  found = answer(FAMILIES, RUN, index, 1.71)
  p = holm([_compare(index, f'{name}_alpha', name).p for name in ('none', 'yarn')])
  assert '(fine-tuning alone)' in found[0] and '(YaRN)' not in found[0]
  assert p_words(float(p[0])) in found[0]  # as in table term
  assert found[1] == (
      'No verdict on YaRN: it predicts no better than counts of pairs of tokens.')
  assert '; that of counts of pairs of tokens is 5.53, and less counts as' in found[2]
  weak = weak_methods(FAMILIES, RUN, index, 1.71)
  alone, yarn = cells(tables.term(FAMILIES, RUN, index, weak))
  whole, all_of_yarn = cells(tables.term(FAMILIES, RUN, index))
  assert alone == whole
  for name, cell in yarn.items():
    # Differences without their intervals, and no test.
    of_test = name.startswith('p') or name == 'smallest detectable'
    assert cell == ('' if of_test else all_of_yarn[name].partition(' [')[0]), name
  table = tables.term(FAMILIES, RUN, index, weak)
  assert table.note.endswith('Not learned, so that no test is shown: YaRN.')


def test_the_answer_in_whole_sentences(index):
  # In no arm a difference, of which p is between 5 % and 10 % at least once.
  index['none_alpha', 'nll', 32] = {
      seed: index['none', 'nll', 32][seed] + 0.04 + 0.016 * seed for seed in range(3)}
  index['none_alpha', 'nll', 32][1] -= 0.02
  index['yarn_alpha', 'nll', 32] = {
      seed: index['yarn', 'nll', 32][seed] - 0.02 * (-1) ** seed for seed in range(3)}
  tests = [_compare(index, f'{name}_alpha', name) for name in ('none', 'yarn')]
  p = [float(x) for x in holm([test.p for test in tests])]
  assert 0.05 < p[0] < 0.1 < p[1]
  part = lambda ends, p, words: (
      f'{text(ends[0], "+.4f")} nats '
      f'{interval_words(*ends[1:], "+.4f")}, {p_words(p)} ({words})')
  # At 2.5 %, since in neither is a difference found.
  ends = [(test.mean_difference, test.ci_low, test.ci_high) for test in (
      at_level(test, 0.025) for test in tests)]
  alone, yarn = part(ends[0], p[0], 'fine-tuning alone'), part(ends[1], p[1], 'YaRN')
  perplexity = lambda length: ', '.join(
      f'{math.exp(np.mean([*index[name, "nll", length].values()])):.3g} ({words})'
      for name, words in (('none', 'fine-tuning alone'), ('yarn', 'YaRN')))
  assert answer(FAMILIES, RUN, index, 3.0) == [
      'At 2 L, 32 tokens, the misalignment term with α = 0.1 was not found to change '
      f'predictions with fine-tuning alone, YaRN: log perplexity changes by {alone}; '
      f'{yarn}. 3 pairs of seeds, p and intervals by Holm over methods.',
      f'Perplexity at the training length, 16 tokens: {perplexity(16)}; that of counts '
      f'of pairs of tokens is 20.1, and less counts as learned. At 2 L, 32 tokens: '
      f'{perplexity(32)}.']
  # A third method, of which nothing is known yet but that it has not learned.
  more = [*FAMILIES, *(Family(name, words, Arm(name, 0.0, (0.0, 0.5), 1.0), ())
                       for name, words in (('pi', 'PI'), ('clex', 'CLEX')))]
  for name in ('pi', 'clex'):
    index |= {(name, 'nll', n): dict.fromkeys(range(3), 3.5) for n in (8, 16, 32)}
  found = answer(more, RUN, index, 3.0)
  assert found[1] == (
      'No verdict on PI, CLEX: they predict no better than counts of pairs of tokens.')
  # The term is tested with pairs of seeds that are not equal alone.
  index['none_alpha', 'nll', 32] = dict(index['none', 'nll', 32])
  found = answer(FAMILIES, RUN, index, 3.0)
  assert '(fine-tuning alone)' not in found[0] and 'Holm' not in found[0]
  assert p_words(tests[1].p) in found[0]


def _points(axes):
  """Returns {arm: (mean, low, high), with (mean,) alone without an interval}."""
  found = {}
  for container in axes.containers:
    dots, _, bars = container.lines
    ends = [x for bar in bars for x in bar.get_segments()[0][:, 0]]
    found[container.get_label()] = [float(dots.get_xdata()[0]), *ends]
  return found


def test_the_figure_of_the_term_draws_what_its_table_has(index):
  with plots.style():
    figure = term_figure.term(FAMILIES, RUN, index)
    weak = term_figure.term(FAMILIES, RUN, index, ['YaRN'])
    assert term_figure.term(
        [f._replace(primary='', others=()) for f in FAMILIES], RUN, index) is None
  alone, yarn = figure.axes
  rows = [tick.get_text() for tick in alone.get_yticklabels()]
  assert rows == ['α = 0.1', 'α = 0.1 of entropy', 'α = 0.1 of symmetric KL',
                  'α = 0, 1.05 of the steps']
  values = lambda name: [*index[name, 'nll', 32].values()]
  wider = wide([paired(values(f'{name}_alpha'), values(name))
                for name in ('none', 'yarn')])
  assert _points(alone) == {'none_alpha': pytest.approx(wider[0])}
  expected = {'yarn_alpha': pytest.approx(wider[1])}
  for name in ('yarn_entropy', 'yarn_kl', 'yarn_more'):
    test = _compare(index, name, 'yarn')
    expected[name] = pytest.approx([test.mean_difference, test.ci_low, test.ci_high])
  assert _points(yarn) == expected
  places = {c.get_label(): float(c.lines[0].get_ydata()[0]) for c in yarn.containers}
  assert places == {'yarn_alpha': 0, 'yarn_entropy': 1, 'yarn_kl': 2, 'yarn_more': 3}
  colours = {c.get_label(): c.lines[0].get_color() for c in yarn.containers}
  assert [name for name, colour in colours.items()
          if colour != colours['yarn_kl']] == ['yarn_alpha']
  assert [shades(axes) for axes in figure.axes] == [
      [pytest.approx((math.log(5.88 / 6.12), math.log(5.77 / 5.82)))]] * 2
  assert 'paired over 3 seeds' in figure.get_label()
  assert ('Shaded: the paper, at 8,192 tokens: 2 L of CLEX, L of the others; α = 0.1, '
          'single runs of Llama-2-7B.') in figure.get_label()
  # Without intervals where it has not learned.
  assert len(_points(weak.axes[0])['none_alpha']) == 3
  assert {len(point) for point in _points(weak.axes[1]).values()} == {1}
  assert 'methods that have not learned' in weak.get_label()
  assert 'have not learned' not in figure.get_label()


@pytest.mark.parametrize(('change', 'scale', 'words'), [
    (0.15, 'linear', 'change of log perplexity, nats'),
    (0.25, 'symlog', 'change of log perplexity, nats, logarithmic beyond ±0.01')])
def test_changes_of_very_different_sizes_are_drawn_on_a_logarithmic_axis(
    index, change, scale, words):
  for arm in ARMS.values():
    index[arm.name, 'nll', 32] = {
        seed: 2 + (arm.name == 'yarn_kl') * change + (arm.weight + arm.steps) * seed / (
            100 if arm.name != 'yarn_kl' else 130) for seed in range(3)}
  with plots.style():
    figure = term_figure.term(FAMILIES[1:], RUN, index)
  axes, = figure.axes
  assert axes.get_xscale() == scale
  assert figure.get_supxlabel() == words
  assert _points(axes)['yarn_kl'][0] == pytest.approx(change, abs=0.01)
  assert axes.get_xlim()[1] > change


@pytest.mark.parametrize(('changes', 'words'), [
    ((0.5, 0.5), 'worse with 2 of 2 methods, better with 0'),
    ((0.5, -0.5), 'worse with 1 of 2 methods, better with 1'),
    ((0, -0.5), 'worse with 0 of 2 methods, better with 1')])
def test_the_title_of_the_figure_of_the_term_counts_methods(index, changes, words):
  for name, change in zip(('none', 'yarn'), changes, strict=True):
    index[f'{name}_alpha', 'nll', 32] = {
        seed: x + change + (0.01 * (-1) ** seed) for seed, x in index[
            name, 'nll', 32].items()}
  assert title_of(term_figure.term(FAMILIES, RUN, index)).replace('\n', ' ') == (
      f'Misalignment term, α = 0.1, at 2 L: {words}')
  found = term_figure.term(FAMILIES, RUN, index, ['YaRN', 'fine-tuning alone'])
  assert title_of(found).replace('\n', ' ') == (
      'The misalignment term at 2 L: no method has learned')


def test_the_answer_has_the_parts_of_the_term_and_what_the_paper_has(index):
  yarn = FAMILIES[1:]
  change = lambda name: _difference(_compare(index, name, 'yarn'))
  found = answer(yarn, RUN, index, 4.0)
  assert found[1:3] == [
      'What its two parts change, each alone with the same α, in nats [95 %], not '
      f'corrected: entropy alone: {change("yarn_entropy")} (YaRN); symmetric KL alone: '
      f'{change("yarn_kl")} (YaRN).',
      'The paper has −0.040 to −0.009 for the whole term, in single runs of '
      'Llama-2-7B: with CLEX at 2 L, with LongQLoRA and EABF at L.']
  assert math.log(5.88 / 6.12) == pytest.approx(-0.040, abs=5e-4)  # CLEX
  assert math.log(5.77 / 5.82) == pytest.approx(-0.009, abs=5e-4)  # LongQLoRA
  # Where a method has not both parts, neither is told.
  assert len(answer(FAMILIES, RUN, index, 4.0)) == len(found) - 2
  without = yarn[0]._replace(others=tuple(
      arm for arm in yarn[0].others if arm.term != 'symmetric_kl'))
  assert len(answer([without], RUN, index, 4.0)) == len(found) - 2


def test_notes_of_tables_say_how_they_were_made(index):
  table = tables.methods(FAMILIES, ARMS['none'], RUN, index, [], 8)
  assert table.note == (
      '3 seeds [95 %]; L = 16, the checkpoint has 8 tokens. Perplexity in blocks, with '
      'the method applied, before and after fine-tuning. Δ: minus fine-tuning alone; '
      'p: paired t-test; it and the intervals of Δ by Holm over methods.')
  table = tables.term(FAMILIES, RUN, index)
  assert table.note == (
      'Δ log perplexity at 2 L, 32 tokens, minus the same method with α = 0, nats; α = '
      '0.1. p: paired two-sided t-test over 3 seeds [95 %]; it and its interval by '
      'Holm over methods.')
  assert ('what its test finds four times in five at the level of 5 % divided by the '
          'number of methods, whatever the other tests are. The entropy of both '
          'windows and their symmetric KL add up to the misalignment term: each alone, '
          'with the same α, tells what the term does by lowering entropy and what by '
          'aligning. What it does by aligning, besides lowering entropy, is also the '
          'term minus entropy alone.') in table.more
  # What a table does not have is not explained.
  parts = {'entropy': 'lowering entropy', 'symmetric_kl': 'by aligning',
           'steps': 'More steps: ', 'weight': 'Another α '}
  for kind, words in parts.items():
    said = [tables._more_of_term([x for x in parts if x in kinds and x != 'weight'],
                                 [0.3] if 'weight' in kinds else [])
            for kinds in ([kind], [*parts], ())]
    assert [words in x for x in said] == [True, True, False]
    assert ['secondary' in x for x in said] == [True, True, False]
  assert tables.sliding(FAMILIES, RUN, index, 8, 3).note == (
      '3 seeds [95 %]. Perplexity in sliding windows, half a window apart, over '
      'segments of 3 L; no BOS.')
  assert paper_table.published().note == (
      'arXiv 2506.11769, Tables 2, 3, 6, 9 and 10: Llama-2-7B, perplexity after 200 '
      'steps, and after 190, which with the term take as long. Single runs, so without '
      'intervals. All are measured at 8,192 tokens: 2 L of CLEX, L of the others.')


def test_the_answer_is_of_the_term_and_names_no_verdict_without_one(index):
  found = answer(FAMILIES, RUN, index, 3.0)
  test = _compare(index, 'yarn_alpha', 'yarn')
  assert f'{text(test.mean_difference, "+.4f")} nats' in found[0]
  assert '(YaRN)' in found[0] and '3 pairs of seeds' in found[0]
  assert found[0].startswith('At 2 L, 32 tokens, the ')
  mean = math.exp(np.mean([*index['yarn', 'nll', 32].values()]))
  assert f'{mean:.3g} (YaRN)' in found[1].split('At 2 L')[1]
  [first, second] = answer(FAMILIES, RUN, index, 1.5)
  assert first == (
      'No verdict: the models predict no better than counts of pairs of tokens.')
  assert second.endswith(f'; that of the counts is {math.exp(1.5):.3g}.')
  alone = [family._replace(primary='', others=()) for family in FAMILIES]
  assert answer(alone, RUN, index, 3.0)[0].startswith(
      'No verdict on the misalignment term')


@pytest.mark.parametrize(('change', 'said'), [
    (0.01, '+0.0100'), (0.0199, '+0.0199'), (-0.5, '−0.5000'), (0.0201, ''), (1.0, '')])
def test_the_answer_says_if_the_checkpoint_needs_no_extension(change, said):
  # At L much may be lost already.
  lines = [{'arm': arm, 'step': step, 'first_seed': seed, 'nll_8': [2.0 + seed],
            'nll_16': [9.0], 'nll_32': [2.0 + seed + other + step + change * seed]}
           for arm, other in (('none', 0), ('yarn', 1)) for step in (0, 4)
           for seed in range(3)]
  said = [f'At that length the checkpoint itself needs no extension: before training, '
          f'without any method, its log perplexity changes by {said} nats from 8 to 32 '
          'tokens.'] if said else []
  say = lambda base, lines: without_extension(base, RUN, lines, 8)
  assert say(ARMS['none'], lines) == said
  assert say(None, lines) == say(ARMS['none'], []) == []
  # A seed that is not finite, or is being measured, does not count.
  lines += [{'arm': 'none', 'step': 0, 'first_seed': seed, 'nll_8': [2.0], **more}
            for seed, more in ((3, {}), (4, {'nll_32': [None]}))]
  assert say(ARMS['none'], lines) == said


def test_holm_over_methods_is_in_the_table_of_methods(index):
  families = [*FAMILIES, Family('pi', 'PI', Arm('pi', 0.0, (0.0, 0.5), 1.0), ())]
  rng = np.random.default_rng(3)
  for n in (8, 16, 32):
    index['pi', 'nll', n] = {
        seed: x + 0.02 + rng.normal(0, 0.02)
        for seed, x in index['none', 'nll', n].items()}
  found = cells(tables.methods(families, ARMS['none'], RUN, index, [], 8))
  p = [_compare(index, name, 'none').p for name in ('yarn', 'pi')]
  assert [row['p Holm'] for row in found] == [
      '', *(tables.p_value(float(x)) for x in holm(p))]
  assert found[1]['p Holm'] != tables.p_value(p[0])
  assert [row['Δ log perplexity at 2 L [95 %]'] for row in found] == [
      '', *_by_holm(index, ('yarn', 'none'), ('pi', 'none'))]
  assert found[0]['L: before'] == ''  # no lines of step 0


def test_controls_of_the_term_differ_from_the_control_in_one_thing():
  arms = {name: arm._replace(offsets=(0.0, 1.0)) for name, arm in ARMS.items()}
  family = FAMILIES[1]._replace(
      others=(*FAMILIES[1].others, arms['yarn_entropy'], arms['yarn_more'],
              ARMS['yarn_kl']._replace(weight=0.3)))
  assert primary.controls(family) == [
      ARMS[name] for name in ('yarn_entropy', 'yarn_kl', 'yarn_more')]


def _diverged(index, name, seed):
  for (arm, _, _), values in index.items():
    if arm == name:
      values[seed] = math.nan


def test_seeds_that_are_not_finite_are_named_and_in_no_test(index):
  _diverged(index, 'yarn', 2)
  _diverged(index, 'yarn_alpha', 1)
  found = tables.methods(FAMILIES, ARMS['none'], RUN, index, [], 8)
  assert found.note.endswith(' Not finite, and left out: YaRN, α = 0, seed 2.')
  left = lambda name, *seeds: [index[name, 'nll', 32][seed] for seed in seeds]
  test = paired_t_test(left('yarn', 0, 1), left('none', 0, 1))
  assert cells(found)[1]['Δ log perplexity at 2 L [95 %]'] == _difference(test)
  table = tables.term(FAMILIES, RUN, index)
  both = ' Not finite, and left out: YaRN, α = 0, seed 2; YaRN, α = 0.1, seed 1.'
  assert table.note.endswith(both)
  # One pair of seeds is left.
  assert cells(table)[1]['misalignment term [95 %]'] == ''
  assert tables.sliding(FAMILIES, RUN, index, 8, 3).note.endswith(both)
  said = answer(FAMILIES, RUN, index, 4.0)
  assert '(YaRN)' not in said[0] and '. 3 pairs of seeds' in said[0]
  # A control of which no seed is finite has learned nothing.
  for seed in (0, 1):
    _diverged(index, 'yarn', seed)
  assert weak_methods(FAMILIES, RUN, index, 4.0) == ['YaRN']
  alone = tables.methods(FAMILIES[:1], ARMS['none'], RUN, index, [], 8)
  assert 'Not finite' not in alone.note


def test_a_method_that_diverged_has_not_the_lowest_perplexity(index):
  message = lambda: figures._message(FAMILIES, ARMS['none'], RUN, index)
  _diverged(index, 'none', 0)
  # Of two methods, one is left.
  assert message() == 'Perplexity by length of context'
  families = [*FAMILIES, Family('pi', 'PI', Arm('pi', 0.0, (0.0, 0.5), 1.0), ())]
  index['pi', 'nll', 32] = {0: 1.0, 1: 1.01, 2: 1.0}
  assert figures._message(families, ARMS['none'], RUN, index) == (
      'At 2 L, PI has the lowest perplexity')
  # The lowest mean is not named if a difference to another was not found.
  for higher in ({0: 1.3, 1: 1.9, 2: 1.6}, {0: 9.0}):
    some = [*families, Family('ntk', 'NTK', Arm('ntk', 0.0, (0.0, 0.5), 1.0), ())]
    index['ntk', 'nll', 32] = higher
    assert figures._message(some, ARMS['none'], RUN, index) == (
        'Perplexity by length of context')
  _diverged(index, 'pi', 2)
  assert figures._message(families, ARMS['none'], RUN, index) == (
      'Perplexity by length of context')


def test_the_figure_of_methods_has_what_the_rows_say(index):
  with plots.style():
    figure = figures.methods(FAMILIES, ARMS['none'], RUN, index, 8)
    alone = figures.methods(FAMILIES[1:], None, RUN, index, 8)
  plain, change = figure.axes
  drawn, shades = lines(plain), bands(plain)
  for family, (colour, _) in zip(FAMILIES, plots.LOOKS, strict=False):
    table = np.array([[*index[family.name, 'nll', n].values()] for n in (8, 16, 32)]).T
    mean, low, high = np.exp(mean_interval(table))
    assert (drawn[family.title].colour, drawn[family.title].x) == (colour, [8, 16, 32])
    np.testing.assert_allclose(drawn[family.title].y, mean)
    np.testing.assert_allclose(shades[colour][1:], (low, high))
  assert figure.legends[0]._ncols == 2
  with plots.style():
    long = [f._replace(title=f'{f.title}, with a name that is very long')
            for f in FAMILIES]
    assert figures.methods(long, ARMS['none'], RUN, index, 8).legends[0]._ncols == 1
  minus, = lines(change).values()
  assert lines(change).keys() == {'YaRN'} and minus.x == [8, 16, 32]
  expected = [_compare(index, 'yarn', 'none', n) for n in (8, 16, 32)]
  np.testing.assert_allclose(minus.y, [test.mean_difference for test in expected])
  np.testing.assert_allclose(
      bands(change)[minus.colour][1:],
      ([test.ci_low for test in expected], [test.ci_high for test in expected]))
  zero, = [line for line in change.lines if line.get_label() != 'YaRN']
  assert (zero.get_color(), [*zero.get_ydata()]) == (plots.LOOKS[0][0], [0, 0])
  # By the longest length, not by L.
  index['yarn', 'nll', 32] = {0: 1.0, 1: 1.01, 2: 1.0}
  assert figures._message(FAMILIES, ARMS['none'], RUN, index) == (
      'At 2 L, YaRN has the lowest perplexity')
  assert [text.get_text() for axes in figure.axes for text in axes.get_xticklabels()
          ] == ['8', 'L', '2 L'] * 2
  assert [[*axes.get_xticks()] for axes in figure.axes] == [[8, 16, 32]] * 2
  assert {axes.get_xscale() for axes in figure.axes} == {'log'}
  assert [axes.get_yscale() for axes in figure.axes] == ['log', 'linear']
  assert [axes.get_title() for axes in figure.axes] == [
      'perplexity', 'log perplexity, nats,\nminus that of fine-tuning alone']
  assert {axes.get_xlabel() for axes in figure.axes} == {'length of context, tokens'}
  assert setup_of(figure) == (
      '4 steps of 8 streams, L = 16 tokens; bands: 95 % intervals over 3 seeds')
  assert figure.get_label() == (
      'Perplexity in blocks after fine-tuning with each method, without the '
      'misalignment term, and its logarithm minus that of fine-tuning alone, paired by '
      'seed, by length of context: geometric mean over 3 seeds, with bands of 95 % '
      'intervals.')
  # Nothing to compare with: one panel.
  assert len(alone.axes) == 1 and 'minus' not in alone.get_label()


@pytest.mark.parametrize('weak, marked', [
    (['YaRN'], 'YaRN, not learned'), (['fine-tuning alone'], 'YaRN')])
def test_a_method_that_has_not_learned_has_no_interval_in_its_figure(
    index, weak, marked):
  draw = lambda weak: figures.methods(FAMILIES, ARMS['none'], RUN, index, 8, weak)
  with plots.style():
    whole, found = draw([]), draw(weak)
  [line] = lines(found.axes[1]).values()
  assert [*lines(found.axes[1])] == [marked]
  np.testing.assert_array_equal(line.y, lines(whole.axes[1])['YaRN'].y)
  assert (len(bands(whole.axes[1])), len(bands(found.axes[1]))) == (1, 0)
  assert f'{weak[0]}, not learned' in lines(found.axes[0])
  assert 'without an interval' in found.get_label()
  assert 'without an interval' not in whole.get_label()
  # Nor is it a message that one of two methods is the best.
  assert title_of(found) == 'Perplexity by length of context'


def test_families_are_methods_with_their_controls():
  config = _config('study').to_dict()
  found = report.families(report.read_run(config), config)
  assert [f.name for f in found] == ['none', 'pi', 'yarn', 'clex']
  for family in found:
    assert family.control == Arm(family.name, 0.0, (0.0, 0.5), 1.0, 'sce')
    assert family.primary == f'{family.name}_alpha_0_1'
    # Also if another arm with the same α stands before it.
    arms = {name: arm for name, arm in config['arms'].items() if name.startswith(
        family.name) and name != family.primary}
    arms[family.primary] = config['arms'][family.primary]
    changed = {**config, 'arms': arms}
    [again] = report.families(report.read_run(changed), changed)
    assert again.primary == family.primary
    assert [arm.name for arm in family.others] == [f'{family.name}_{end}' for end in (
        'alpha_0_03', 'alpha_0_1', 'alpha_0_3', 'entropy', 'more_steps',
        'symmetric_kl')]
  assert report.read_run(config).endpoint == 2
  config = _config('longqlora').to_dict()
  _, family = report.families(report.read_run(config), config)
  assert family.title == ('position interpolation, adapters of rank 64 over nf4 '
                          'weights, shifted sparse attention')


def test_a_figure_of_a_method_has_its_weights_and_another_the_controls():
  config = _config('study').to_dict()
  *_, clex = report.families(report.read_run(config), config)
  drawn = {name: [arm.name for arm in (part.control, *part.others)]
           for name, part in report._in_figures(clex).items()}
  assert drawn == {
      'clex': ['clex', 'clex_alpha_0_03', 'clex_alpha_0_1', 'clex_alpha_0_3'],
      'clex_controls': ['clex', 'clex_alpha_0_1', 'clex_entropy', 'clex_more_steps',
                        'clex_symmetric_kl']}
  weights = clex._replace(others=clex.others[:3])
  assert report._in_figures(weights) == {'clex': weights}
  entropy = clex._replace(others=clex.others[3:4], primary='')
  assert report._in_figures(entropy) == {'clex_controls': entropy}
  assert report._in_figures(clex._replace(others=())) == {}


def test_methods_have_these_names():
  assert report.NAMES == {
      'none': 'fine-tuning alone', 'pi': 'position interpolation', 'ntk': 'NTK',
      'yarn': 'YaRN', 'eabf': 'EABF', 'clex': 'CLEX', 'random': 'random positions',
      'alibi': 'ALiBi'}
  assert {*report.NAMES} == {*methods.METHODS}
  run = report.read_run(_config('study').to_dict())
  assert run.words == '200 steps of 4 streams'
  assert run.arms['pi_entropy'] == Arm('pi_entropy', 0.1, (0.0, 0.5), 1.0, 'entropy')


def test_the_report_has_what_its_rows_say(index, tmp_path, monkeypatch):
  """No table or figure shows an interval of a difference of YaRN, which did not learn.

  The table of methods once did, so that a page said in its table what its figure and
  its answer do not: a test of models that have not learned tells nothing on lengths.
  """
  drawn = {}
  monkeypatch.setattr(plots, 'save', lambda folder, made: drawn.update(made) or {})
  arms = {arm.name: {'method': arm.name.partition('_')[0], 'weight': arm.weight,
                     'offsets': arm.offsets, 'steps': arm.steps, 'term': arm.term}
          for arm in ARMS.values()}
  config = {**_config().to_dict(), 'arms': arms, 'num_seeds': 3,
            'inputs': {'original_length': 8, 'pair_nats': 1.71}}
  config['evaluate'] = {**config['evaluate'], 'segment': 3}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  every = [results.Row('adapt', name, seed, n, metric, x)
           for (name, metric, n), values in index.items()
           for seed, x in values.items()]
  results.write_rows(tmp_path / 'results.csv', every)
  found = report.write(tmp_path)
  run = report.read_run(config)
  made = {table.name: table for table in found.tables}
  assert [*made] == ['methods', 'term', 'paper', 'none', 'none_by_length', 'yarn',
                     'yarn_by_length', 'sliding', 'misalignment']
  assert [*drawn] == ['term', 'methods', 'none', 'yarn', 'yarn_controls']
  first, second = cells(made['methods'])
  column = 'Δ log perplexity at 2 L [95 %]'
  assert (first['method'], first[column]) == ('fine-tuning alone', '')
  test = _compare(index, 'yarn', 'none')
  assert second[column] == text(test.mean_difference, '+.4f')
  assert 'the checkpoint has 8 tokens' in made['methods'].note
  families = report.families(run, config)
  assert found.answer == answer(families, run, index, 1.71)
  assert 'that of counts of pairs of tokens is 5.53,' in found.answer[-1]
  # YaRN has not learned.
  assert cells(made['term']) == cells(tables.term(families, run, index, ['YaRN']))
  # So its own tables have no test either.
  by_arm, by_length = cells(made['yarn'])[1:], cells(made['yarn_by_length'])
  assert {row['p'] for row in by_arm} == {'not learned'}
  tested = [row for row in by_length if row['Δ log perplexity [95 %]']]
  assert len(tested) == 4 and not any('[' in row['Δ log perplexity [95 %]']
                                      for row in tested)
  assert {row['p: log perplexity'] for row in tested} == {'not learned'}
  alone = [row for row in cells(made['none_by_length']) if '[' in row[
      'Δ log perplexity [95 %]']]
  assert [row['arm'] for row in alone] == ['α = 0.1']
  assert 'not learned' not in alone[0]['p: log perplexity']
  # Figures leave out what tables leave out.
  assert len(bands(drawn['none'].axes[1])) == 1 and not bands(drawn['yarn'].axes[1])
  assert not bands(drawn['methods'].axes[1])
  assert all(name.endswith(', not learned') for name in lines(drawn['yarn'].axes[1]))
  assert 'over segments of 3 L' in made['sliding'].note
  assert found.missing == ''
  # Without a control, an arm, or a seed.
  write = lambda keep: results.write_rows(
      tmp_path / 'results.csv', [row for row in every if keep(row)])
  write(lambda row: row.arm != 'none')
  found = report.write(tmp_path)
  assert [r['label'] for r in found.tables[0].records] == ['YaRN']
  assert cells(found.tables[0])[0][column] == ''
  write(lambda row: row.arm not in ('none_alpha', 'yarn_kl', 'yarn_more'))
  made = {table.name: table for table in report.write(tmp_path).tables}
  assert [*made] == ['methods', 'term', 'paper', 'yarn', 'yarn_by_length', 'sliding',
                     'misalignment']
  assert [r['method'] for r in made['term'].records] == ['yarn']
  assert 'symmetric KL alone [95 %]' not in made['term'].columns
  assert len(made['sliding'].records) == 4
  write(lambda row: (row.arm, row.seed) != ('yarn_kl', 1))
  assert report.write(tmp_path).missing == (
      'The run is not finished: yarn_kl has 2 of 3 seeds.')
  # With measurements after more than one step.
  (tmp_path / 'evaluations.jsonl').write_text(''.join(
      json.dumps(line) + '\n' for line in _lines(index, dict.fromkeys(ARMS, (2, 4)))))
  *_, table = report.write(tmp_path).tables
  assert (table.name, len(table.records)) == ('steps', 14)
  assert (tmp_path / 'tables/steps.csv').exists()
  # The steps 0 of fine-tuning alone are of the checkpoint.
  before = [{'arm': 'none', 'step': 0, 'first_seed': 0, 'nll_8': [2.0], 'nll_32': [x]}
            for x in (2.0, 2.1)]
  for line, there in zip(before, (True, False), strict=True):
    (tmp_path / 'evaluations.jsonl').write_text(json.dumps(line) + '\n')
    said = report.write(tmp_path).answer[-1].startswith('At that length the checkpoint')
    assert said == there
  # A pilot is known by the command that started it.
  plain = report.write(tmp_path)
  for variant, pilot in (('study', False), ('study_pilot', True)):
    command = f'python -m experiments.adapt --config=configs/adapt.py:{variant}'
    (tmp_path / 'config.json').write_text(json.dumps({
        'config': config, 'sessions': [{'device': 'cpu'}, {'command': command}]}))
    found = report.write(tmp_path)
    assert found.title == plain.title + ' A pilot' * pilot
    assert found.answer == [report._PILOT.ljust(len(report._PILOT) + 1) * pilot
                            + plain.answer[0], *plain.answer[1:]]
  # L is at which seeds are counted.
  write(lambda row: (row.arm, row.seed, row.length) != ('yarn_kl', 1, 32))
  assert report.write(tmp_path).missing == ''


def test_the_primary_endpoint_is_the_same_test_in_the_table_of_its_method(
    index, tmp_path, monkeypatch):
  """Corrected over methods, as the answer says it.

  The table of a method once had its p and interval without any correction, and called
  them primary too.
  """
  monkeypatch.setattr(plots, 'save', lambda folder, made: {})
  arms = {arm.name: {'method': arm.name.partition('_')[0], 'weight': arm.weight,
                     'offsets': arm.offsets, 'steps': arm.steps, 'term': arm.term}
          for arm in ARMS.values()}
  config = {**_config().to_dict(), 'arms': arms, 'num_seeds': 3,
            'inputs': {'original_length': 8, 'pair_nats': 4.0}}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  results.write_rows(tmp_path / 'results.csv', [
      results.Row('adapt', name, seed, n, metric, x)
      for (name, metric, n), values in index.items() for seed, x in values.items()])
  made = {table.name: table for table in report.write(tmp_path).tables}
  test = _compare(index, 'none_alpha', 'none')
  for name, of_term in zip(('none', 'yarn'), cells(made['term']), strict=True):
    [row] = [row for row in cells(made[name]) if row['arm'] == 'α = 0.1']
    assert row['Δ log perplexity at 2 L [95 %]'] == of_term['misalignment term [95 %]']
    assert row['p'] == f'{of_term["p Holm"]}, primary'
    assert row['smallest detectable'] == of_term['smallest detectable']
    assert 'but for the primary endpoint, over methods (table term).' in made[name].note
  assert of_term['misalignment term [95 %]'] and _difference(test) != (
      cells(made['term'])[0]['misalignment term [95 %]'])
  # The others are corrected over their own table alone.
  [entropy] = [row for row in cells(made['yarn']) if 'entropy' in row['arm']]
  three = [(f'yarn_{name}', 'yarn') for name in ('entropy', 'kl', 'more')]
  assert entropy['Δ log perplexity at 2 L [95 %]'] == _by_holm(index, *three)[0]


@pytest.mark.slow
def test_a_run_whose_controls_are_missing_has_a_report(index, tmp_path):
  arms = {'yarn_alpha': _config().arms.yarn_alpha_0_1.to_dict(),
          'yarn': _config().arms.yarn.to_dict()}
  config = {**_config().to_dict(), 'arms': arms,
            'inputs': {'original_length': 8, 'pair_nats': 3.0}}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  rows = [results.Row('adapt', 'yarn_alpha', 0, n, 'nll', 1.5) for n in (8, 16, 32)]
  results.write_rows(tmp_path / 'results.csv', rows)
  found = report.write(tmp_path)
  assert found.answer == ['No verdict: no method has results yet.']
  # Here 16; the checkpoint has 8 tokens.
  assert 'L is the length of inputs in fine-tuning' in found.about
  results.write_rows(tmp_path / 'results.csv', [
      *rows, *(row._replace(arm='yarn') for row in rows)])
  names = {table.name for table in report.write(tmp_path).tables}
  assert names == {'methods', 'term', 'paper', 'yarn', 'yarn_by_length', 'sliding',
                   'misalignment'}
  # Without the arm of the primary endpoint.
  results.write_rows(tmp_path / 'results.csv', [
      row._replace(arm='yarn') for row in rows])
  assert {table.name for table in report.write(tmp_path).tables} == {
      'methods', 'sliding', 'misalignment'}


@pytest.mark.slow
def test_methods_are_compared_with_the_method_none(index, tmp_path):
  config = {**_config().to_dict(),
            'inputs': {'original_length': 8, 'pair_nats': 3.0}}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  results.write_rows(tmp_path / 'results.csv', [
      results.Row('adapt', name, seed, n, 'nll', x) for name in ('none', 'yarn')
      for n in (8, 16, 32) for seed, x in index[name, 'nll', n].items()])
  first, second = cells(report.write(tmp_path).tables[0])
  column = 'Δ log perplexity at 2 L [95 %]'
  assert (first['method'], first[column]) == ('fine-tuning alone', '')
  assert second[column] == _difference(_compare(index, 'yarn', 'none'))


def test_what_does_not_fit_the_checkpoint_is_said_before_anything_is_written(
    run_here, checkpoint, text_file, tmp_path):
  done = run_here('adapt', *_command(
      checkpoint, text_file, tmp_path, '--config.adapters.rank=2',
      '--config.adapters.also=("output_embedding",)'))
  assert done.returncode == 2 and "no parameter is named 'output_" in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1, done.stderr
  assert not (tmp_path / 'run').exists()


def test_a_run_has_each_arm_measured_after_its_own_steps(
    checkpoint, text_file, tmp_path, monkeypatch):
  seen = {}

  def run_seed(config, name, *_, measure_after, **others):
    seen[name] = [*measure_after]

  monkeypatch.setattr(run.machine, 'use_devices', lambda: None)
  monkeypatch.setattr(sharded, 'run_seed', run_seed)
  monkeypatch.setattr(run, 'Programs', lambda *_: None)
  monkeypatch.setattr(run, 'run_jobs', lambda folder, jobs, *_: [
      job.rows(None) for job in jobs])
  config = _config(checkpoint=str(checkpoint), **{
      'text.path': str(text_file), 'train.batch_size': 8, 'evaluate.num_segments': 8,
      'arms.yarn_alpha_0_1.steps': 0.75})
  run.main(config, str(tmp_path / 'run'))
  assert seen == {'none': [2, 4], 'yarn': [2, 4], 'yarn_alpha_0_1': [1, 3]}


@pytest.mark.slow
def test_measurements_after_other_steps_do_not_change_a_run_that_resumes(
    checkpoint, text_file, tmp_path):
  # The rate stays constant, so that 2 of 4 steps are those of a run of 2.
  fields, name = {'optimizer.final_rate': 1.0}, 'yarn_alpha_0_1'

  def evaluations(folder, *num_steps, measure_after=(1, 3)):
    for number in num_steps:
      config, *ready = _ready(checkpoint, text_file, **fields)
      rows = _train((config, *ready), tmp_path / folder, name, number,
                    measure_after=measure_after)[1]
    lines = read_curves(tmp_path / folder / 'evaluations.jsonl')
    return rows, {line['step']: line for line in lines}

  rows, whole = evaluations('whole', 4)
  again, parts = evaluations('parts', 2, 4)
  assert [*whole] == [0, 1, 3, 4] and [*parts] == [0, 1, 2, 3, 4]
  assert parts.items() >= whole.items() and again == rows
  # The end is measured whatever else is.
  last, plain = evaluations('plain', 4, measure_after=None)
  assert [*plain] == [0, 2, 4] and plain[2] == parts[2]
  measured = lambda rows: [r for r in rows if not r.metric.startswith('training')]
  assert measured(last) == measured(rows)


def _command(checkpoint, text_file, tmp_path, *flags):
  return ('--config=configs/adapt.py:pi_smoke', f'--workdir={tmp_path}/run',
          f'--config.checkpoint={checkpoint}', f'--config.text.path={text_file}',
          *flags)


@pytest.mark.slow
def test_the_command_runs_and_measures_lost_rows_again(
    run_here, checkpoint, text_file, tmp_path):
  command = _command(
      checkpoint, text_file, tmp_path, '--config.positions.factor=0')
  done = run_here('adapt', *command)
  assert done.returncode == 0, done.stderr
  assert ('Factor of pi: 2. L is 16 tokens, the checkpoint has 8.\n'
          '3 of 3 training') in done.stdout
  assert '3 of 3 training runs to do' in done.stdout
  folder = tmp_path / 'run'
  rows = results.read_run(folder, report.EXPERIMENT, ('none', 'pi', 'pi_alpha_0_1'))
  metrics = {row.metric for row in rows}
  assert {'nll', 'sliding', 'sce', 'symmetric_kl', 'training_loss'} <= metrics
  assert {row.length for row in rows if row.metric == 'nll'} == {8, 16, 32}
  for name in ('methods', 'pi', 'pi_by_length', 'sliding', 'steps', 'term'):
    assert (folder / f'tables/{name}.md').exists()
  assert (folder / 'figures/methods.png').exists() and (folder / 'index.html').exists()
  # Of each method, the control alone is measured before training.
  before = {line['arm']: {k: v for k, v in line.items() if k.startswith('nll')}
            for line in read_curves(folder / 'evaluations.jsonl') if not line['step']}
  assert [*before] == ['none', 'pi'] and before['pi'] != before['none']
  inputs = json.loads((folder / 'config.json').read_text())['config']['inputs']
  assert 1 < inputs['pair_nats'] < math.log(256) and inputs['original_length'] == 8
  assert inputs['factor'] == 2
  check_board(folder)
  whole = (folder / 'results.csv').read_bytes()
  lose_rows(folder)
  done = run_here('adapt', *command)
  assert '2 of 3 training runs to do' in done.stdout
  assert (folder / 'results.csv').read_bytes() == whole


@pytest.mark.slow
def test_arms_of_two_folders_are_joined_to_the_run_of_one(
    run_here, checkpoint, text_file, tmp_path):
  run = lambda name, *flags: run_here(
      'adapt', *_command(checkpoint, text_file, tmp_path / name, *flags))
  whole = run('whole', '--config.num_seeds=2')
  assert whole.returncode == 0, whole.stderr
  first = run('a', "--config.run_arms=('none',)", '--config.num_seeds=2')
  assert '2 of 2 training runs to do' in first.stdout, first.stderr
  moved = tmp_path / 'moved.txt'
  moved.write_bytes(text_file.read_bytes())
  for seeds, due in (1, 2), (2, 2):
    second = run('b', "--config.run_arms=('pi','pi_alpha_0_1')",
                 f'--config.num_seeds={seeds}', f'--config.text.path={moved}')
    assert f'{due} of {2 * seeds} training runs to do' in second.stdout, second.stderr
  parts = [f'{tmp_path}/{name}/run' for name in 'ab']
  joined = run_here('join', f'--workdir={tmp_path}/all/run', *parts)
  assert joined.returncode == 0, joined.stderr
  last = run('all', '--config.num_seeds=2')
  assert '0 of 6 training runs to do' in last.stdout, last.stderr
  for name in ('results.csv', 'tables/methods.md', 'tables/term.md'):
    expected = (tmp_path / 'whole/run' / name).read_bytes()
    assert (tmp_path / 'all/run' / name).read_bytes() == expected, name
  by_arm = lambda folder: {
      (line['arm'], line['first_seed'], line['step']): line
      for line in read_curves(tmp_path / folder / 'run/evaluations.jsonl')}
  assert by_arm('all') == by_arm('whole')
  wrong = run('wrong', "--config.run_arms=('ntk',)")
  assert (wrong.returncode, wrong.stderr) == (
      2, 'Error: config.run_arms must be one or more of none, pi, pi_alpha_0_1: ntk\n')


@pytest.mark.slow
def test_an_arm_may_have_another_weight(run_here, checkpoint, text_file, tmp_path):
  command = _command(checkpoint, text_file, tmp_path)[1:]
  done = run_here('adapt', '--config=configs/adapt.py:yarn_smoke', *command,
                  '--config.arms.yarn_alpha_0_1.weight=0.3')
  assert done.returncode == 0, done.stderr
  table = (tmp_path / 'run/tables/yarn.md').read_text()
  assert 'α = 0.3' in table and 'α = 0.1' not in table


@pytest.mark.long
@pytest.mark.slow
def test_devices_that_do_not_divide_the_batch_train_as_one(
    checkpoint, text_file, tmp_path, fast_compilation):
  found = {}
  for number in (1, 3, 32):
    done = subprocess.run(
        [sys.executable, '-m', 'experiments.adapt',
         *_command(checkpoint, text_file, tmp_path / str(number),
                   '--config.evaluate.offsets=(0.25,)')], cwd=ROOT,
        env={**os.environ, 'JAX_NUM_CPU_DEVICES': str(number)}, capture_output=True,
        text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert (f'rows on {number} devices' in done.stdout) == (number > 1)
    found[number] = {row.key: row.value for row in results.read_rows(
        tmp_path / str(number) / 'run/results.csv')}
  for number in (3, 32):
    assert found[number] == pytest.approx(found[1], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(('flags', 'message'), [
    ((), 'config.checkpoint is missing'),
    (('--config.checkpoint=nothing',), 'nothing is not a checkpoint'),
    (('--config.checkpoint=nothing', '--config.positions.factor=0.5'),
     'config.positions.factor must be a finite number of at least 1, or 0: 0.5'),
])
def test_bad_input_is_one_line(run_here, tmp_path, flags, message):
  done = run_here('adapt', '--config=configs/adapt.py:pi_smoke',
                  f'--workdir={tmp_path}/run', *flags)
  assert done.returncode == 2 and message in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1, done.stderr
  assert not (tmp_path / 'run').exists()
