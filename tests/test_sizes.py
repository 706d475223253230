"""Lengths of sequences, also those that grow during training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import lookup as lookup_config
from configs import retrieval as retrieval_config
from experiments.length_generalization import training
from vvlen.tasks import lookup, retrieval
from vvlen.tasks.lengths import growing_length, uniform_length
from vvlen.training import ensemble


def test_lengths_are_every_length_from_shortest_to_longest():
  uniform = jnp.linspace(0.0, 1.0, 1201)[:-1]
  lengths = np.asarray(uniform_length(uniform, 5, 16, None))
  np.testing.assert_array_equal(np.bincount(lengths)[5:], 100)
  np.testing.assert_array_equal(
      np.unique(uniform_length(uniform, 5, 16, 7)), [5, 6, 7])
  # Outside, the nearer end.
  assert set(np.asarray(uniform_length(uniform, 5, 16, 3)).tolist()) == {5}
  np.testing.assert_array_equal(uniform_length(uniform, 5, 16, 99), lengths)


def test_the_longest_grows_in_a_line_and_then_stays():
  steps = np.array([0, 1, 40, 79, 80, 81, 100])
  at = lambda step: int(growing_length(step, first=16, last=256, num_steps=80))
  assert [at(step) for step in steps] == [16, 19, 136, 253, 256, 256, 256]


@pytest.mark.parametrize('sample', [
    functools.partial(retrieval.sample, num_classes=3),
    functools.partial(lookup.sample, num_keys=64, num_values=3),
], ids=['retrieval', 'lookup'])
def test_a_traced_longest_draws_as_a_fixed_one_and_compiles_once(sample, key):
  traces = []

  @jax.jit
  def draw(key, longest):
    traces.append(longest)
    return sample(key, batch_size=64, min_length=2, max_length=16, longest=longest)

  for longest in (2, 5, 16):
    lengths = np.asarray(draw(key, jnp.int32(longest)).mask.sum(1))
    assert set(lengths.tolist()) == set(range(2, longest + 1))
  assert len(traces) == 1
  whole = sample(key, batch_size=64, min_length=2, max_length=16)
  jax.tree.map(np.testing.assert_array_equal, draw(key, jnp.int32(16)), whole)


@pytest.mark.slow
@pytest.mark.parametrize('configs', [retrieval_config, lookup_config])
def test_training_lengths_follow_the_schedule_and_compile_once(configs):
  config = configs.get_config('smoke_growing')
  config.model.width, config.train.batch_size = 4, 64
  problem = training.problem(config, 'none')
  key = jax.random.key(0)
  draw = jax.jit(problem.sample)
  # 20 steps; from 16 to 32 over the first 16 of them.
  for step, longest in ((0, 16), (8, 24), (16, 32), (19, 32)):
    lengths = np.concatenate([
        np.asarray(draw(jax.random.fold_in(key, i), step).mask.sum(1))
        for i in range(8)])
    assert (lengths.min(), lengths.max()) == (5, longest)
  assert draw._cache_size() == 1
  mesh = jax.make_mesh((1,), ('seed',), devices=jax.devices()[:1],
                       axis_types=(jax.sharding.AxisType.Auto,))
  trainer = ensemble.make_trainer(problem, steps_per_call=5, mesh=mesh)
  ensemble.train(trainer, ensemble.seed_keys(0, 0, 1), 20)
  assert trainer.advance._cache_size() == 1


def test_only_variants_that_there_are_have_a_configuration():
  for configs in (retrieval_config, lookup_config):
    assert configs.get_config('growing').num_seeds == 100
    assert configs.get_config('smoke_growing').train.first_max_length == 16
    for variant in ('growing_smoke', 'smoke_growingly', 'fast'):
      with pytest.raises(ValueError, match='cpu, quick or smoke, or end in growing'):
        configs.get_config(variant)
