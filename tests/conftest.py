"""Makes JAX strict, and gives the tests eight CPU devices to shard over."""

import os
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


@pytest.fixture
def shared() -> pathlib.Path:
  """The folder of reference data, where there is one."""
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip('VVLEN_SHARED is not set: no reference data')
  return pathlib.Path(os.environ['VVLEN_SHARED'])
