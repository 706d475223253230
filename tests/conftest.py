"""Makes JAX strict, and gives the tests eight CPU devices to shard over."""

import pathlib

import jax
import pytest

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='module')
def fast_compilation(tmp_path_factory):
  """Lets commands share what they compile, with each other alone, and compile fast."""
  jax.devices()  # this process has read its flags
  with pytest.MonkeyPatch.context() as patch:
    cache = tmp_path_factory.getbasetemp() / 'compilation_cache'
    patch.setenv('JAX_COMPILATION_CACHE_DIR', str(cache))
    patch.setenv('XLA_FLAGS', '--xla_backend_optimization_level=0')
    yield


@pytest.fixture
def key() -> jax.Array:
  return jax.random.key(0)
