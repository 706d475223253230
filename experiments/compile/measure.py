"""Compiles a program for a slice, and counts what it needs."""

from collections.abc import Iterator
import contextlib
from importlib import metadata
import os
import pathlib
import re
import tempfile
import time
from typing import Any

import jax

from experiments.compile import hlo
from experiments.compile.chips import Slice
from experiments.compile.operations import operations
from experiments.compile.programs import Program
from experiments.harness import machine

# These variables tell libtpu where it runs; without them it asks the metadata server of
# a cloud machine. Several processes may compile at once, because none of them uses a
# TPU.
_ENVIRONMENT = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1', 'TPU_SKIP_MDS_QUERY': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-4', 'TPU_WORKER_HOSTNAMES': 'localhost',
}
NO_COMPILER = ("the compiler of TPUs is missing: pip install '.[compile]' installs it "
               '(libtpu; no TPU is needed)')


def devices_of(where: Slice) -> Any:
  """Returns the devices of a slice, for which programs can only be compiled.

  Raises:
    ValueError: if libtpu is not installed, or does not know the slice.
  """
  from jax.experimental import topologies

  try:
    import libtpu  # noqa: F401
  except ImportError as error:
    raise ValueError(NO_COMPILER) from error
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  try:
    found = topologies.get_topology_desc(platform='tpu', topology_name=where.name)
  except Exception as error:
    raise ValueError(f'libtpu does not know {where.name}: {error}') from error
  return found.devices


@contextlib.contextmanager
def as_on_accelerators(mesh: jax.sharding.Mesh) -> Iterator[None]:
  """Traces programs as on accelerators: float32 products in float32, on this mesh."""
  with jax.default_matmul_precision('float32'), jax.set_mesh(mesh):
    yield


def measure(program: Program, where: Slice) -> dict[str, Any]:
  """Compiles a program, and returns a row of the table.

  Counts are those of a step and a chip; bytes of memory are those of a chip. If the
  program does not fit, `exceeds` is the number of bytes that are missing, and fields
  that the compiler reports only for programs that fit are left out.
  """
  start = time.perf_counter()
  with as_on_accelerators(program.mesh):
    traced = program.function.trace(*program.arguments)
    flops = operations(traced.jaxpr) / where.size / program.steps
    lowered = traced.lower()
    try:
      compiled, text = _compile(lowered)
    except jax.errors.JaxRuntimeError as error:
      missing = exceeds(str(error))
      if missing is None:
        raise
      return {'compile_seconds': time.perf_counter() - start, 'flops': flops,
              'exceeds': missing, **_about(program, where)}
  seconds, memory = time.perf_counter() - start, compiled.memory_analysis()
  found = hlo.traffic(text)
  return {
      'compile_seconds': seconds, 'flops': flops,
      'arguments': memory.argument_size_in_bytes,
      'temporaries': memory.temp_size_in_bytes,
      'results': memory.output_size_in_bytes - memory.alias_size_in_bytes,
      'code': memory.generated_code_size_in_bytes,
      'bytes': found.bytes / program.steps,
      'collectives': {kind: {'number': n / program.steps, 'bytes': b / program.steps}
                      for kind, (n, b) in sorted(found.collectives.items())},
      'unknown_loops': found.unknown_loops,
      **_about(program, where),
  }


def _compile(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, str]:
  """Returns a compiled program and its text.

  The text is what libtpu writes to a file: JAX could not read back programs of large
  models ("async-update instruction should have 1 operands", jaxlib 0.10.2).
  """
  with tempfile.TemporaryDirectory() as folder:
    compiled = lowered.compile(compiler_options={'xla_dump_to': folder})
    [path] = pathlib.Path(folder).glob('*.after_optimizations.txt')
    return compiled, path.read_text()


def count(program: Program, where: Slice) -> dict[str, Any]:
  """Counts operations, arguments and what temporaries keep, without a compiler."""
  with as_on_accelerators(program.mesh):
    flops = operations(program.function.trace(*program.arguments).jaxpr)
  return {'flops': flops / where.size / program.steps,
          'arguments': _held(program.arguments), 'kept': program.kept,
          **_about(program, where)}


def exceeds(message: str) -> float | None:
  """Returns the bytes by which a program exceeds the memory, from XLA's message."""
  number = lambda text: float(text.rstrip('KMG')) * 1024 ** ' KMG'.index(
      text[-1] if text[-1] in 'KMG' else ' ')
  if found := re.search(r'Exceeded hbm capacity by ([\d.]+[KMG]?)', message):
    return number(found[1])
  found = re.search(r'\(([\d.]+[KMG]?)\) exceeds available HBM \(([\d.]+[KMG]?)\)',
                    message)
  return number(found[1]) - number(found[2]) if found else None


def _about(program: Program, where: Slice) -> dict[str, Any]:
  """Returns the fields of a row that do not depend on compiling."""
  return {'topology': where.name, 'chips': where.size, 'chip': where.chip.name,
          'memory': where.chip.memory, 'steps_a_call': program.steps,
          'steps': program.steps * program.calls, 'note': program.note,
          'jax': jax.__version__, 'libtpu': metadata.version('libtpu')
          if where.compiles else None, 'commit': machine.commit()}


def _held(arguments: Any) -> int:
  """Returns the bytes of arguments on one device."""
  total = 0
  for x in jax.tree.leaves(arguments):
    shape = x.sharding.shard_shape(x.shape)
    width = x.dtype.itemsize
    size = 1
    for n in shape:
      size *= n
    total += size * width
  return total
