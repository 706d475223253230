"""Configurations of `experiments.adapt`: recipes, arms, and what is refused."""

import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import adapt as config_file
from experiments.adapt import check, methods, programs, steps_table
from experiments.language_model import training
from tests.adapt_cases import config_of, MODEL
from tests.llamas import llama, save_llama
from vvlen.models.llama import lora as adapters
from vvlen.models.rope import Rope


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_llama(tmp_path_factory.mktemp('checkpoint'), **MODEL)[0]


VARIANTS = [f'{name}_{size}'.rstrip('_')
            for name in (*config_file._METHODS, *config_file._ADAPTERS)
            for size in config_file.SIZES]


def test_segments_have_room_for_two_windows_of_the_longest_length():
  """Sliding windows and misalignment are measured at all lengths.

  Perplexity in blocks is measured on the same text at each.
  """
  for name in (*VARIANTS, 'study', 'study_pilot'):
    fields = config_of(name).evaluate
    room = fields.lengths[-1] * (1 + max(0.5, *fields.offsets))
    assert fields.segment >= room, name
    assert all(fields.segment % multiple == 0 for multiple in fields.lengths), name


@pytest.mark.slow
def test_every_variant_is_a_config_that_can_be_run(checkpoint):
  for name in VARIANTS:
    check.check(config_of(name, checkpoint=str(checkpoint)))
  config = config_of('study', checkpoint=str(checkpoint))
  check.check(config)
  assert len(config.arms) == 28 and config.num_seeds == 12
  # The pilot has the arms of the primary endpoint, in other seeds and on the same text.
  pilot = config_of('study_pilot', checkpoint=str(checkpoint))
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
  config = config_of(variant)
  assert programs.lora_of(config, 'pi') == adapters.LONG_QLORA
  assert config.positions.groups == 4
  rates = lambda optimizer: (
      optimizer.learning_rate, optimizer.warmup_steps, optimizer.clip_norm,
      optimizer.final_rate, optimizer.weight_decay)
  assert rates(config.optimizer) == (2e-4, 20, 0.3, 1.0, 0.0)
  longlora = config_of(f'longlora_{name}'.rstrip('_'))
  assert programs.lora_of(longlora, 'pi') == adapters.LONG_LORA
  # fine-tune.py of dvlab-research/LongLoRA with the options of its README.
  assert rates(longlora.optimizer) == (2e-5, 20, 1.0, 1.0, 0.0)
  assert programs.lora_of(config_of('clex'), 'clex') is None
  paper = {n: config_of(f'{n}_paper').train for n in ('clex', 'eabf', 'longqlora')}
  assert {n: (t.max_length, t.batch_size, t.num_steps) for n, t in paper.items()} == {
      'clex': (4096, 64, 200), 'eabf': (8192, 64, 200), 'longqlora': (8192, 64, 200)}


def test_the_paper_and_the_study_have_their_settings():
  for name in ('clex', 'eabf'):
    config = config_of(f'{name}_paper')
    # AdamW, 2e-5, cosine, 3 % of 200 steps of warm-up, of CLEX; measured at 2 L.
    assert (config.optimizer.learning_rate, config.optimizer.warmup_steps,
            config.optimizer.final_rate, config.optimizer.weight_decay) == (
                2e-5, 0.03 * 200, 0.0, 0.0)
    assert (config.evaluate.lengths, config.evaluate.every_steps) == ((1, 2), 50)
    assert config.positions.largest == 16 and config.adapters.rank == 0
  # That of the published code in the recipes and at the size of the paper.
  b2 = {name: config_of(name).optimizer.get('b2') for name in (
      'longqlora', 'longlora_paper', 'clex_paper', 'eabf_paper', 'clex', 'eabf_quick',
      'study', 'study_pilot')}
  assert [*b2.values()] == 4 * [0.999] + 4 * [None]
  study = config_of('study')
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
  config = config_of('random_quick')
  longest = config.evaluate.lengths[-1] * config.train.max_length
  assert config.positions.highest == 2 * longest == 2048
  assert {config_of(name).positions.highest for name in (
      'random', 'random_paper', 'study', 'study_pilot')} == {2**16}


@pytest.mark.parametrize('name', ['longqlora', 'longlora'])
def test_recipes_stretch_positions_by_l_over_the_original_length(name):
  # ⌈L / L₀⌉, also where L₀ is not that of the checkpoint, 4,096 tokens.
  factor = lambda size, max_length, **fields: methods.make(
      'pi', llama(max_length=max_length), config_of(f'{name}{size}', **fields)
  ).measured.rope.stretched.factor
  assert factor('_paper', 4096) == 2 and factor('_paper', 3000) == 3
  assert factor('', 512) == 8 and factor('', 4096) == 1
  assert factor('', 4096, **{'positions.original_length': 512}) == 8
  assert factor('', 512, **{'positions.factor': 4.0}) == 4
  # The others name it.
  others = {n: config_of(f'{n}_paper').positions.factor for n in ('pi', 'yarn', 'ntk')}
  assert {*others.values()} == {2.0}
  assert config_of('study').positions.factor == 4


@pytest.mark.parametrize('name, weights, offsets', [
    ('clex', [0, 0.1, 0.3, 0.5, 1], []), ('eabf', [0, 0.1, 0.5], []),
    ('longqlora', [0, 0.1, 0.5], [(0, 0.25), (0, 1), (0.25, 0.5)])])
def test_the_papers_tables_have_their_arms(checkpoint, name, weights, offsets):
  # Tables 2, 3 and 6; 7; 9 and 10.
  config = config_of(f'{name}_paper', checkpoint=str(checkpoint))
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
    made = training.make_optimizer(config_of(name), 200)
    _, state = made.update({'x': jnp.full(2, 0.5)}, made.init(params), params)
    second[name] = optax.tree_utils.tree_get(state, 'nu')['x']
  for name, b2 in (('clex_smoke', 0.95), ('clex_paper', 0.999)):
    np.testing.assert_allclose(second[name], (1 - b2) * 0.5**2, rtol=1e-4)


def test_arms_are_measured_after_the_same_shares_of_their_steps(checkpoint):
  # Tables 9 and 10: 190 steps beside 200.
  config = config_of('eabf_paper', checkpoint=str(checkpoint))
  shares = {name: arm.steps for name, arm in config.arms.items()}
  for name, share in shares.items():
    steps = [47, 95, 142, 190] if name == 'eabf_equal_time' else [50, 100, 150, 200]
    found = steps_table.measured_steps(config, share)
    assert [*found] == [50, 100, 150, 200] and [*found.values()] == steps
    assert steps[-1] == training.num_steps(config, config.arms[name])
  # Those of the study once, at their end.
  config = config_of('study')
  found = {steps_table.measured_steps(config.to_dict(), arm.steps)[200]
           for arm in config.arms.values()}
  assert found == {200, 210}
  config = config_of(**{'evaluate.every_steps': 100, 'train.num_steps': 250})
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
    check.check(config_of(**{'checkpoint': str(checkpoint), **fields}))


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
    check.check_model(config_of(**fields), model)


def test_adapters_without_their_library_are_refused(monkeypatch):
  monkeypatch.setitem(sys.modules, 'qwix', None)
  with pytest.raises(ValueError, match='config: method none: adapters and quantized'):
    check.check_model(config_of(**{'adapters.rank': 2}), llama())
  check.check_model(config_of(), llama())
