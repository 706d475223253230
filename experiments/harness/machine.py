"""Devices, and a description of the machine for each start of a run."""

import datetime
import importlib.metadata
import math
import os
import platform
import shlex
import subprocess
import sys
from typing import Any

import jax


def use_devices(num_parts: int | None = None) -> None:
  """Makes every CPU core a JAX device, if there is no accelerator.

  A core that trains its own seeds never waits for another, which is faster than
  two cores on one small matrix product. Has no effect on accelerators. Keeps the number
  of devices that JAX_NUM_CPU_DEVICES, or --xla_force_host_platform_device_count in
  XLA_FLAGS, sets. Call it before JAX is used.

  Args:
    num_parts: number of equal parts of the work, such as seeds. Uses the fewest cores
      that finish them as early as all cores would. None: all cores.
  """
  affinity = getattr(os, 'sched_getaffinity', None)
  cores = len(affinity(0)) if affinity else os.cpu_count() or 1
  if num_parts is not None:
    cores = math.ceil(num_parts / math.ceil(num_parts / cores))
  given = 'JAX_NUM_CPU_DEVICES' in os.environ or (
      'xla_force_host_platform_device_count' in os.environ.get('XLA_FLAGS', ''))
  if not given:
    jax.config.update('jax_num_cpu_devices', cores)
  # So that each device has one thread.
  flag = '--xla_cpu_multi_thread_eigen=false'
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flag}'.strip()
  if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    jax.config.update('jax_compilation_cache_dir', cache_folder())
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  if jax.default_backend() != 'cpu':
    # Products of float32 are computed in float32, not in TF32 or bfloat16.
    jax.config.update('jax_default_matmul_precision', 'float32')


def cache_folder() -> str:
  """Returns the folder of this machine for what can be made again."""
  cache = os.environ.get('XDG_CACHE_HOME', os.path.expanduser('~/.cache'))
  return f'{cache}/vvlen'


def session() -> dict[str, Any]:
  """Describes this start of a run: time, command, versions and hardware."""
  return {
      'started': now(),
      'command': shlex.join(['python', '-m', *_module(), *sys.argv[1:]]),
      'commit': commit(),
      'python': platform.python_version(),
      'versions': versions(),
      'device': device(),
      'processor': processor(),
  }


def versions() -> dict[str, str]:
  """Returns {package: version} of what results may depend on."""
  names = 'jax', 'jaxlib', 'flax', 'optax', 'numpy', 'orbax-checkpoint'
  return {name: importlib.metadata.version(name) for name in names}


def device() -> str:
  """Returns the number and the kind of the devices of JAX."""
  return f'{jax.device_count()} x {jax.devices()[0].device_kind}'


def now() -> str:
  """Returns the UTC time to the second, in ISO format."""
  return datetime.datetime.now(datetime.UTC).isoformat('T', 'seconds')


def _module() -> list[str]:
  spec = getattr(sys.modules['__main__'], '__spec__', None)
  return [spec.name.removesuffix('.__main__')] if spec else [sys.argv[0]]


def commit() -> str:
  """Returns the git commit of the code, with '+' if files were changed since.

  Changes in experiments/results do not count: a run may write its results there. The
  environment variable VVLEN_COMMIT counts first: on the workers of a TPU there is no
  repository, and `tpu_scripts` sets it.
  """
  if sent := os.environ.get('VVLEN_COMMIT'):
    return sent
  here = os.path.dirname(os.path.abspath(__file__))

  def git(*arguments):
    return subprocess.run(
        ['git', '-C', here, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()

  try:
    changed = git('status', '--porcelain', '--', ':/', ':!/experiments/results')
    return git('rev-parse', 'HEAD') + ('+' if changed else '')
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'


def processor() -> str:
  """Returns the number and the model of the CPU cores."""
  try:
    with open('/proc/cpuinfo') as f:
      names = [line.split(':')[1] for line in f if line.startswith('model name')]
  except OSError:
    names = []
  return f'{os.cpu_count()} x {names[0].strip() if names else platform.processor()}'
