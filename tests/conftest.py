"""Makes JAX strict, and gives the tests eight CPU devices to shard over."""

import pathlib

import jax
import pytest

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def key() -> jax.Array:
  return jax.random.key(0)
