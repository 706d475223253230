"""Makes JAX strict, and gives the tests eight CPU devices to shard over."""

import pathlib
import tempfile

import jax
import pytest

from vvlen.tables import markdown

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_rank_promotion', 'raise')
# What two tests of this process have in common is compiled once.
_cache = tempfile.TemporaryDirectory(prefix='vvlen_tests')
jax.config.update('jax_compilation_cache_dir', _cache.name)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)

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


def shown(table, text):
  """Returns the row of a table, as Markdown, that has a cell with this text."""
  lines = [line.strip('|').split('|') for line in markdown(table).splitlines()
           if line.startswith('|')]
  header, _, *rows = [[cell.strip() for cell in line] for line in lines]
  row, = [row for row in rows if text in row]
  return dict(zip(header, row, strict=True))
