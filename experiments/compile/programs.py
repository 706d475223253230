"""The programs of experiments, and with which arguments they run on a slice."""

from collections.abc import Callable
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from configs import adapt as adapt_config
from configs import counting as counting_config
from configs import language_model as language_config
from configs import lookup as lookup_config
from configs import recency_bias as recency_config
from configs import retrieval as retrieval_config
from experiments.adapt.programs import Programs as AdaptPrograms
from experiments.adapt.steps_table import measured_steps
from experiments.counting import training as counting
from experiments.counting.cells import all_cells, read_figures
from experiments.language_model import measuring, sharded
from experiments.language_model import training as language_model
from experiments.length_generalization import training as length_generalization
from experiments.recency_bias.cells import make_cells
from vvlen import sharding
from vvlen.models.llama.lora import join
from vvlen.models.llama.model import Llama
from vvlen.sharding import mesh as partition
from vvlen.simulation import chunks, recency_simulation
from vvlen.training import ensemble
from vvlen.training.step import init_state, Problem

_TEXT = 20_000_000  # tokens of the text that ensembles of language models read
LLAMA_2_7B = Llama(
    vocab_size=32_000, width=4096, mlp_width=11_008, num_layers=32, num_heads=32,
    num_key_heads=32, max_length=4096, tied=False,
)
BATCH = 64  # streams of a step of Llama 2 7B
# Mesh axes (data, fsdp, tensor) of Llama 2 7B, by the number of chips.
_AXES = {32: (1, 8, 4), 64: (1, 16, 4), 256: (1, 64, 4), 8: (1, 8, 1)}


class Program(NamedTuple):
  """A jit-compiled function and its arguments."""

  function: Any
  arguments: tuple[Any, ...]  # jax.ShapeDtypeStructs with shardings
  mesh: Mesh
  steps: int  # of one call
  calls: int  # of the whole experiment
  note: str  # what the numbers stand for
  kept: int = 0  # the least bytes of temporaries of a chip, if counted


def _model_mesh(devices: Any, axes: tuple[int, int, int] | None = None) -> Mesh:
  """Returns a mesh with these axes; None: those of Llama 2 7B."""
  axes = axes or _AXES.get(len(devices), (1, len(devices), 1))
  return Mesh(np.array(devices).reshape(axes), partition.AXES,
              axis_types=(AxisType.Auto,) * 3)


def _placed(tree: Any, mesh: Mesh, *spec: Any) -> Any:
  """Returns shapes with a sharding."""
  where = NamedSharding(mesh, PartitionSpec(*spec))
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree)


def _ensemble(
    problem: Problem, config: Any, devices: Any, models: int, what: str,
    data: Any = None,
) -> Program:
  """Returns the program that trains seeds together, the same number on each chip.

  Args:
    problem: what one of the models trains.
    config: of the experiment.
    devices: of the slice.
    models: how many models each seed trains.
    what: the model, for the note.
    data: what all seeds share, as shapes.
  """
  mesh, train = sharding.seed_mesh(devices), config.train
  a_chip = math.ceil(config.num_seeds / mesh.size)
  count = a_chip * mesh.size
  keys = jax.eval_shape(lambda: jax.vmap(jax.random.key)(jnp.arange(count)))
  states = jax.eval_shape(jax.vmap(lambda key: init_state(problem, key)), keys)
  shared = () if data is None else (_placed(data, mesh),)
  function = ensemble.make_advance(
      problem, train.steps_per_call, a_chip, mesh, has_data=data is not None)
  arguments = (*shared, _placed(states, mesh, 'seed'), _placed(keys, mesh, 'seed'))
  return Program(
      function, arguments, mesh, train.steps_per_call,
      models * train.num_steps // train.steps_per_call,
      f'{what}; {config.num_seeds} seeds, {a_chip} a chip, {count - config.num_seeds} '
      'more than asked for; '
      f'{models} models a seed, training alone')


def _length_generalization(config: Any, devices: Any) -> Program:
  arm = config.arms[-1]
  return _ensemble(length_generalization.problem(config, arm), config, devices,
                   len(config.arms), f'arm {arm}')


def _counting(devices: Any) -> Program:
  config = counting_config.get_config()
  cells = all_cells(read_figures(config.figures.to_dict()))
  return _ensemble(counting.problem(config, cells[0]), config, devices, len(cells),
                   f'{cells[0].experiment}, {cells[0].arm}')


def _language_model(devices: Any) -> Program:
  config = language_config.get_config()
  from vvlen.tasks.tokenizers import byte_tokenizer

  model, name = language_model.make_model(config, byte_tokenizer()), 'alpha_0_1'
  arm = config.arms[name]
  problem = language_model.problem(
      config, arm, model, language_model.num_steps(config, arm))
  data = (jax.ShapeDtypeStruct((_TEXT,), jnp.uint16),
          jax.ShapeDtypeStruct((), jnp.float32))
  return _ensemble(problem, config, devices, len(config.arms),
                   f'arm {name}, text of {_TEXT:,} tokens', data)


def _recency(devices: Any) -> Program:
  cells = [cell for cell in make_cells(recency_config.get_config().to_dict())
           if cell.group == 'panels']
  cell, mesh = cells[-1], sharding.seed_mesh(devices)
  simulation = recency_simulation(
      num_tokens=cell.num_tokens, width=cell.width, anisotropy=cell.anisotropy,
      layer_norm=cell.layer_norm, residual=cell.residual, sampler=cell.sampler)
  arguments = (jax.random.key(0), simulation.draw_arguments, simulation.layer_arguments)
  plan = chunks.plan(simulation, arguments, cell.num_layers, mesh)
  own = jax.ShapeDtypeStruct((plan.block,), jnp.int32)
  shapes = jax.eval_shape(lambda *x: x, *arguments)
  calls = len(cells) * math.ceil(cell.num_simulations / plan.chunk / plan.block)
  return Program(
      plan.program, (*_placed(shapes, mesh), *_placed((own, own), mesh, 'seed')), mesh,
      plan.block * plan.chunk, calls,
      f'{cell.name}; a step is one simulation; {len(cells)} panels of '
      f'{cell.num_simulations:,}')


def llama(length: int, devices: Any) -> Program:
  """Returns a training step of Llama 2 7B with the misalignment term."""
  config = language_config.get_config('finetune')
  config.train.update(
      max_length=length, batch_size=BATCH, dtype='bfloat16', remat=True,
      scan_layers=True, stream_dtype='bfloat16')
  mesh, arm = _model_mesh(devices), config.arms.alpha_0_1
  programs = sharded.Programs(config, _llama_2_7b(config), mesh)
  # With remat, at least these are kept: the stream before each layer of both windows,
  # in bfloat16, and the gradients, in float32.
  parameters = sum(x.size for x in jax.tree.leaves(programs.state.params))
  return Program(
      programs.step(arm), (programs.state, _batch(config, mesh)), mesh, 1,
      config.train.num_steps, _size(config, mesh),
      (_stream(length) + 4 * parameters) // mesh.size)


def adapt(name: str, devices: Any, length: int | None = None) -> Program:
  """Returns a step that fine-tunes Llama 2 7B as NAME_paper of configs/adapt.py.

  Args:
    name: of the variant.
    devices: of the slice.
    length: of a window, in place of the variant's.

  Raises:
    ValueError: if the mesh of the variant does not fit the slice.
  """
  config, arm, programs, mesh = _adapt(name, devices, length)
  trained = sum(x.size for x in jax.tree.leaves(programs.state.params))
  return Program(
      programs.program(arm), (programs.state, programs.frozen, _batch(config, mesh)),
      mesh, 1, config.train.num_steps,
      f'{trained:,} parameters trained; {_size(config, mesh)}',
      (_stream(config.train.max_length) + 4 * trained) // mesh.size)


def adapt_evaluation(name: str, devices: Any) -> Program:
  """Returns how that run measures Llama 2 7B: at L and 2 L, in segments of 4 L tokens.

  A call measures one segment for each device of the axes data x fsdp.
  """
  config, arm, programs, mesh = _adapt(name, devices)
  at_once, longest = partition.row_ways(mesh), measuring.longest_segment(config)
  segments = jax.ShapeDtypeStruct(
      (at_once, longest), jnp.int32, sharding=NamedSharding(mesh, partition.ROWS))
  times = 1 + len(measured_steps(config, arm.steps))  # the first before training
  calls = math.ceil(config.evaluate.num_segments / at_once)
  return Program(
      programs.evaluation, (join(programs.state.params, programs.frozen), segments),
      mesh, 1, times * calls,
      f'a step measures {at_once} segments of {longest} tokens, of '
      f'{config.evaluate.num_segments}, at up to '
      f'{max(config.evaluate.lengths) * config.train.max_length} tokens; an arm is '
      f'measured {times} times; {_axes(mesh)}')


def _adapt(name, devices, length=None):
  """Returns the configuration, arm, programs and mesh of a variant; see `adapt`."""
  config = adapt_config.get_config(f'{name}_paper')
  config.train.max_length = length or config.train.max_length
  mesh = _model_mesh(devices, partition.axis_sizes(
      len(devices), **config.mesh.to_dict()))
  arm = config.arms[f'{name}_alpha_0_1']
  return config, arm, AdaptPrograms(config, arm.method, _llama_2_7b(config), mesh), mesh


def _llama_2_7b(config: Any) -> Llama:
  """Returns Llama 2 7B with the dtypes, remat and loop of a configuration."""
  return language_model.in_loop(
      config, LLAMA_2_7B.clone(dtype=jnp.dtype(config.train.dtype)))


def _batch(config: Any, mesh: Mesh) -> tuple[Any, Any, Any]:
  """Returns streams, the key data of a seed and α, as shapes with shardings."""
  streams = jax.ShapeDtypeStruct(
      (BATCH, language_model.stream_length(config)), jnp.int32,
      sharding=NamedSharding(mesh, partition.ROWS))
  return streams, *_placed((jax.ShapeDtypeStruct((2,), jnp.uint32),
                            jax.ShapeDtypeStruct((), jnp.float32)), mesh)


def _size(config: Any, mesh: Mesh) -> str:
  return f'{BATCH} streams, 2 windows of {config.train.max_length}, {_axes(mesh)}'


def _axes(mesh: Mesh) -> str:
  return 'mesh ' + ', '.join(f'{n} {s}' for n, s in mesh.shape.items() if s > 1)


def _stream(length: int) -> int:
  """Returns the bytes of the stream before each layer of both windows, bfloat16."""
  return LLAMA_2_7B.num_layers * 2 * BATCH * length * LLAMA_2_7B.width * 2


# Name -> devices -> Program.
EXPERIMENTS: dict[str, Callable[[Any], Program]] = {
    'retrieval': lambda devices: _length_generalization(
        retrieval_config.get_config(), devices),
    'lookup': lambda devices: _length_generalization(
        lookup_config.get_config(), devices),
    'retrieval_growing': lambda devices: _length_generalization(
        retrieval_config.get_config('growing'), devices),
    'lookup_growing': lambda devices: _length_generalization(
        lookup_config.get_config('growing'), devices),
    'recency_bias': _recency,
    'counting': _counting,
    'language_model': _language_model,
    'llama_2_7b_4096': functools.partial(llama, 4096),
    'llama_2_7b_8192': functools.partial(llama, 8192),
    **{f'adapt_{name}': functools.partial(adapt, name)
       for name in ('clex', 'yarn', 'eabf', 'longlora', 'longqlora', 'pi', 'ntk',
                    'random', 'alibi')},
    # The paper trains CLEX at 4,096 tokens, the others at 8,192.
    'adapt_clex_8192': functools.partial(adapt, 'clex', length=8192),
    # The others differ from YaRN in the rotation of queries and keys alone.
    **{f'adapt_{name}_evaluation': functools.partial(adapt_evaluation, name)
       for name in ('clex', 'yarn', 'longqlora')},
}
