"""Trains one language model at a time, over a mesh of all devices."""

import functools
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness.progress import Progress
from experiments.language_model import training
from experiments.language_model.training import Batch, Text
from vvlen import sharding
from vvlen.models import llama
from vvlen.models.llama.model import Llama
from vvlen.reporting import results
from vvlen.reporting.board import Board
from vvlen.reporting.curves import Curves
from vvlen.sharding import mesh as partition
from vvlen.tasks import text as packing
from vvlen.training import checkpoint, ensemble, loop, optimizer
from vvlen.training.step import TrainState

_OFFSETS = 4  # a purpose of a seed's key, beside those of `ensemble`


def run_seed(
    config: Any,
    name: str,
    seed: int,
    model: Llama,
    text: Text,
    mesh: jax.sharding.Mesh,
    folder: epath.Path,
    progress: Progress,
) -> list[results.Row]:
  """Trains and measures one seed of an arm, from its checkpoint on.

  Where there are several processes all call it, and the first writes.

  Args:
    config: as of configs/language_model.py.
    name: of the arm.
    seed: which shares its weights and the order of its text with those of other arms.
    model: what is trained.
    text: which it reads.
    mesh: of `vvlen.sharding.mesh.make_mesh`.
    folder: of the run. The model is saved there, in hub layout.
    progress: counts steps.
  """
  train, arm = config.train, config.arms[name]
  total = training.num_steps(config, arm)
  [key] = ensemble.seed_keys(config.seed, seed, 1)
  writes = jax.process_index() == 0
  board = Board(folder / 'tensorboard')
  curves = Curves(folder / 'metrics.jsonl', writes, board)
  evaluations = Curves(folder / 'evaluations.jsonl', writes, board)
  place = loop.place_rows(mesh, partition.ROWS[0])
  measure = _measure(config, model, key, text, place, mesh)
  reached, measured = 0, {}

  def on_metrics(step, metrics):
    nonlocal reached
    if not reached:
      reached = max(0, step - train.steps_per_call)
      progress.skip(reached)
    curves.add(name, step, seed, {k: np.array([x]) for k, x in metrics.items()})
    progress.show(f'{name}, seed {seed}, loss {metrics["loss"]:.3f}', step - reached)
    reached = step

  def evaluate(step, state):
    nonlocal measured
    measured = measure(state.params)
    evaluations.add(name, step, seed, {
        f'{metric}_{length}': np.array([value])
        for metric, values in measured.items() for length, value in values.items()
    })

  # As numpy, which is the same on all processes.
  offsets = np.asarray(jax.random.key_data(ensemble.purpose_key(key, _OFFSETS)))
  with jax.set_mesh(mesh):
    state = _start(config, model, mesh, key, total)
    where = folder / 'checkpoints' / name / f'seed_{seed}'
    if config.checkpoint and not checkpoint.last_step(where):
      evaluate(0, state)  # what it was before
    state = loop.train(
        _make_step(config, arm, model, total, state), state,
        _batches(config, seed, text), total,
        place=lambda rows: (place(rows), offsets, np.float32(arm.weight)),
        folder=where,
        meta={'text': text.facts['text_sha256']},
        save_every_steps=train.save_every_steps,
        metrics_every_steps=train.steps_per_call,
        evaluate_every_steps=config.evaluate.every_steps,
        on_metrics=on_metrics, evaluate=evaluate,
    )
    training.save_model(
        config, folder / 'models' / name / f'seed_{seed}', model, state.params)
  late = {
      f'training_{metric}': {None: curves.late_mean(name, seed, metric)[0]}
      for metric in ('loss', 'cross_entropy', 'misalignment')
  }
  return training.rows_of(name, seed, {**measured, **late})


def check(config: Any, model: Llama, mesh: jax.sharding.Mesh) -> None:
  """Raises ValueError if the mesh does not divide batches, segments and the model.

  And as `llama.load_checkpoint` if the checkpoint to go on from is not whole.
  """
  ways = mesh.shape['data'] * mesh.shape['fsdp']
  for name, size in (
      ('train.batch_size / train.parts', config.train.batch_size / config.train.parts),
      ('evaluate.num_segments', config.evaluate.num_segments),
  ):
    if size % ways:
      raise ValueError(f'config.{name} {size:g} is not a multiple of the {ways} '
                       'devices of the mesh axes data x fsdp')
  partition.shardings(llama.abstract_params(model), mesh)
  if config.checkpoint:
    llama.check_checkpoint(config.checkpoint, dtype=jnp.float32)


def _start(config, model, mesh, key, total):
  """Returns the state before the first step, on the mesh."""
  masters = model.clone(dtype=None)
  abstract = llama.abstract_params(masters)
  shardings = partition.shardings(abstract, mesh)
  if config.checkpoint:
    found = llama.load_checkpoint(config.checkpoint, shardings, dtype=jnp.float32)
    params = found[1]['params']
  else:
    init = lambda k: masters.init(k, jnp.zeros((1, 2), jnp.int32))['params']
    params = jax.jit(init, out_shardings=shardings)(
        ensemble.purpose_key(key, ensemble.INIT))
  update = training.make_optimizer(config, total)
  shapes = jax.eval_shape(update.init, params)
  placed = partition.shardings_of_state(shapes, abstract, mesh)
  opt_state = jax.jit(update.init, out_shardings=placed)(params)
  zero = jax.device_put(np.zeros((), np.int32), sharding.whole(mesh))
  return TrainState(zero, params, opt_state)


def _make_step(config, arm, model, total, like):
  """Returns the compiled step, of (state, (streams, data of the key of offsets, α)).

  The next state is placed as `like` is.
  """
  loss = training.make_loss(config, arm, model)
  update = training.make_optimizer(config, total)

  def step(state, batch):
    streams, offsets, weight = batch
    offset_key = jax.random.fold_in(jax.random.wrap_key_data(offsets), state.step)
    offset = training.draw_offset(config, arm, offset_key)
    of_part = lambda params, part: loss(params, Batch(part, offset, weight))
    (value, metrics), gradients = optimizer.accumulate(of_part, config.train.parts)(
        state.params, streams)
    updates, opt_state = update.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    told = {'loss': value, 'gradient_norm': optax.global_norm(gradients), **metrics}
    return TrainState(state.step + 1, params, opt_state), told

  where = jax.tree.map(lambda x: x.sharding, like)
  return jax.jit(step, donate_argnums=0, out_shardings=(where, None))


def _batches(config, seed, text):
  """Returns the iterator over this process's rows of the streams, from the first on."""
  blocks = packing.pack(
      text.documents, training.stream_length(config),
      begin=text.tokenizer.begin, within_documents=config.text.within_documents,
  )
  return packing.batches(
      blocks, config.train.batch_size, config.seed + seed,
      process_index=jax.process_index(), process_count=jax.process_count(),
  )


def _measure(config, model, key, text, place, mesh):
  """Returns parameters -> {metric: {length: float}}."""
  test_key = ensemble.purpose_key(key, ensemble.TEST)
  held_out = jnp.asarray(text.held_out)
  segments = np.asarray(training.draw_segments(config, test_key, held_out))
  # As many segments at once as there are rows of devices.
  at_once = mesh.shape['data'] * mesh.shape['fsdp']
  parts = segments.reshape(-1, at_once, segments.shape[1])
  count, index = jax.process_count(), jax.process_index()
  own = np.split(parts, count, axis=1)[index]
  run = jax.jit(functools.partial(training.evaluate, config, model))

  def measure(params):
    found = [jax.device_get(run(params, place(part))) for part in own]
    return jax.tree.map(lambda *x: float(np.mean(x)), *found)

  return measure
