"""The models of the study of correlations, and their initial weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import correlation as config_file
from configs import language_model
from experiments.correlation import check, models, term
from experiments.language_model import check as check_of_language_models
from experiments.language_model import training
from experiments.long_context import training_text
from tests.correlation_cases import BYTES, config_of
from vvlen.models.llama.initial_weights import around_common_vector
from vvlen.models.rope import Rope

FIRST = {'cpu': 'rope_01', 'full': 'rope_01'}  # a model of each variant


def test_a_model_is_measured_in_units_of_its_own_length():
  config = config_of('cpu')
  check.check(config)
  for name, model in config.models.items():
    own = models.own_config(config, name)
    length = own.train.max_length
    assert length == {1.0: 128, 0.875: 112}[model.length]
    assert models.make(config, name, BYTES).max_length == length
    assert own.evaluate.lengths == (1, 2, 4, 8) and own.seed == model.seed
    assert models.prompt_lengths(config, name) == [
        length * n / 4 for n in (4, 5, 6, 7, 8, 16, 32)]
    steps = training.num_steps(own, own.arms[name])
    assert steps == round(12_000 * model.steps) == own.evaluate.every_steps
  other = config_of('cpu', seed=1000)
  assert models.own_config(other, 'alibi_02').seed == 1302


def test_models_whose_shares_of_steps_are_rounded_alike_are_refused():
  steps = {'train.num_steps': 800, 'train.steps_per_call': 400}
  check.check(config_of(**steps, **{'models.layer_norm.norm': 'none',
                                    'models.layer_norm.steps': 0.5}))
  with pytest.raises(ValueError, match='layer_norm and rope would have the same weigh'):
    check.check(config_of(**steps, **{'models.layer_norm.norm': 'none',
                                      'models.layer_norm.steps': 0.8}))
  # Those of another seed have other weights.
  check.check(config_of(**{'models.layer_norm.norm': 'none',
                           'models.layer_norm.seed': 3}))


def test_models_differ_in_what_their_fields_say():
  config = config_of('cpu')
  made = {name: models.make(config, name, BYTES) for name in config.models}
  of = lambda prefix: {name for name in made if name.startswith(prefix)}
  for prefix, rope in (('rope_', Rope(10_000.0)), ('low_base', Rope(1e3)),
                       ('high_base', Rope(1e6)), ('alibi', None)):
    assert {made[name].rope for name in of(prefix)} == {rope}
  assert {name for name, x in made.items() if x.alibi} == of('alibi')
  assert {name: x.norm for name, x in made.items()} == {
      name: x.norm for name, x in config.models.items()}
  bare = models.make(config_of('quick'), 'no_positions', BYTES)
  assert bare.rope is None and not bare.alibi


def test_the_study_is_of_these_models():
  cpu, full = (config_file.get_config(x) for x in ('cpu', 'full'))
  plain = {name: x for name, x in cpu.models.items() if not x.weight}
  assert sorted(plain) == sorted(
      f'{name}_{i:02}' for name in ('rope', 'low_base', 'high_base', 'alibi')
      for i in range(1, 13))
  assert len({x.seed for x in plain.values()}) == 48
  # Of each positions, each choice is there equally often.
  for positions in ('rope', 'low_base', 'high_base', 'alibi'):
    own = [x for name, x in plain.items() if name.startswith(positions)]
    for field, choices in (('norm', ('none', 'layer_norm', 'standardize')),
                           ('length', (0.875, 1.0)), ('steps', (1.0, 1.25))):
      found = [x[field] for x in own]
      assert {c: found.count(c) for c in {*found}} == {
          c: 12 // len(choices) for c in choices}
  partners = {name: x for name, x in cpu.models.items() if x.weight}
  assert sorted(partners) == sorted(
      f'{name}_{i:02}_term' for name in ('rope', 'low_base', 'high_base', 'alibi')
      for i in range(1, 6))
  for name, x in partners.items():
    other = cpu.models[name.removesuffix('_term')]
    assert {field for field in x if x[field] != other[field]} == {'weight'}
    assert x.weight == term.PRIMARY == 0.1
  # More partners change no model.
  assert {name: full.models[name] for name in cpu.models} == dict(cpu.models.items())
  assert len(full.models) == 96
  assert [cpu.num_seeds, cpu.seed, cpu.num_resamples] == [1, 0, 10_000]
  assert cpu.primary.to_dict() == dict(
      measure='symmetric_kl', outcome='score_near', correlation='spearman',
      tasks=training_text.SMALL[:2])
  assert cpu.benchmark.lengths == (1, 1.25, 1.5, 1.75, 2, 4, 8)
  # The prompts are of the kinds that the training text has by default.
  assert cpu.benchmark.tasks == training_text.SMALL
  assert cpu.benchmark.num_prompts == 96 and cpu.evaluate.num_segments == 256
  pilot = config_file.get_config('pilot')
  assert pilot.seed == 1000 and pilot.train == cpu.train  # seeds of its own


def test_initial_weights_have_the_given_spread(key):
  for variant, std in (('cpu', 1 / 8), ('full', 1 / 16)):
    config = config_of(variant)
    assert config.model.init_std == std == config.model.width**-0.5
    model = models.make(config, FIRST[variant], BYTES)
    params = training.init_params(model, key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
      if leaf.ndim > 1:  # kernels and the embedding; norms are 1
        spread = np.sqrt(np.var(leaf, 0).mean())  # around what the rows have in common
        assert spread == pytest.approx(std, rel=0.05), path
    # Embeddings have a common part, twice as large: cos = 4 / (1 + 4).
    rows = params['embedding'] / np.linalg.norm(params['embedding'], axis=1)[:, None]
    near = np.mean(rows @ rows.T)
    assert near == pytest.approx(0.8, abs=0.06), variant
    kernel = params['layer_0']['query']['kernel']
    assert abs(np.mean(kernel)) < std / 20
  # Without the field it is 0.02, as it always was.
  plain = config_of()
  with plain.unlocked():
    del plain.model.init_std, plain.model.init_common
  params = training.init_params(models.make(plain, 'rope', BYTES), key)
  assert np.std(params['embedding']) == pytest.approx(0.02, rel=0.1)


def test_embeddings_are_drawn_around_a_common_vector(key):
  shape, init = (4000, 16), around_common_vector(0.5, 2.0)
  found = init(key, shape)
  common = found.mean(0)  # of norm 2 · 0.5 · √16 = 4, up to chance
  assert 2 < np.linalg.norm(common) < 6
  np.testing.assert_allclose(np.std(found, 0), 0.5, rtol=0.05)
  np.testing.assert_array_equal(found, init(key, shape))
  # Not a multiple of a vector's own part, as with one key for both.
  assert np.abs(found[0] - 1.5 * common).max() > 0.5
  other = init(jax.random.key(9), shape).mean(0)
  assert np.linalg.norm(other - common) > 1
  assert np.abs(around_common_vector(0.5, 0.0)(key, shape).mean(0)).max() < 0.05
  np.testing.assert_array_equal(
      around_common_vector(0.5, 0.0)(key, shape),
      jax.nn.initializers.normal(0.5)(key, shape))
  # Their spread over many common vectors, in units of the other.
  drawn = jnp.stack([init(jax.random.key(i), (200, 16)).mean(0) for i in range(100)])
  assert np.std(drawn) == pytest.approx(1.0, rel=0.1)


def test_the_common_part_is_in_units_of_a_given_spread():
  config = language_model.get_config('smoke')
  config.model.init_common = 2.0
  with pytest.raises(ValueError, match='init_common is in units of'):
    check_of_language_models.check(config)
  config.model.init_std = 0.1
  check_of_language_models.check(config)
