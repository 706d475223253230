"""Trains one language model at a time, over a mesh of all devices."""

from collections.abc import Collection
import functools
import math
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness.filling import say_filled
from experiments.harness.progress import Progress
from experiments.language_model import measuring, training
from experiments.language_model.seed_reports import SeedReports
from experiments.language_model.training import Batch, Text
from vvlen import sharding
from vvlen.models import llama
from vvlen.models.llama.model import Llama
from vvlen.reporting import results
from vvlen.sharding import mesh as partition
from vvlen.tasks import text as packing
from vvlen.tasks.tokens import Blocks
from vvlen.training import checkpoint, ensemble, finite, loop, optimizer
from vvlen.training.step import TrainState

_OFFSETS = 4  # a purpose of a seed's key, in addition to those in `ensemble`


class Programs:
  """Programs that arms and seeds share, each compiled when first called.

  α and the keys of seeds are arguments of the programs. Two arms have different
  programs of a step only if they differ in the range of offsets or in the number of
  steps, on which the learning rate depends.
  """

  def __init__(self, config: Any, model: Llama, mesh: jax.sharding.Mesh):
    """Prepares the programs of a configuration and a model on a mesh."""
    self._config, self._model, self._mesh = config, model, mesh
    masters = model.clone(dtype=None)
    abstract = llama.abstract_params(masters)
    self.shardings = partition.shardings(abstract, mesh)
    # The optimizer's state has the same structure for any number of steps.
    update = training.make_optimizer(config, config.train.num_steps)
    states = partition.shardings_of_state(
        jax.eval_shape(update.init, abstract), abstract, mesh)
    self._where = TrainState(sharding.whole(mesh), self.shardings, states)
    shapes = TrainState(jax.ShapeDtypeStruct((), jnp.int32), abstract,
                        jax.eval_shape(update.init, abstract))
    # The training state, as shapes with shardings.
    self.state = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        shapes, self._where)
    init = functools.partial(training.init_params, masters)
    self.init = jax.jit(init, out_shardings=self.shardings)
    self.init_optimizer = jax.jit(update.init, out_shardings=states)
    self.evaluate = jax.jit(functools.partial(measuring.evaluate, config, model))
    self._steps: dict[Any, Any] = {}

  def start(self, key: jax.Array) -> TrainState:
    """Returns the state of a seed before the first step, on the mesh."""
    if self._config.checkpoint:
      found = llama.load_checkpoint(
          self._config.checkpoint, self.shardings, dtype=jnp.float32,
          scan_layers=self._model.scan_layers)
      params = found[1]['params']
    else:
      params = self.init(ensemble.purpose_key(key, ensemble.INIT))
    zero = jax.device_put(np.zeros((), np.int32), sharding.whole(self._mesh))
    return TrainState(zero, params, self.init_optimizer(params))

  def save(self, folder: epath.Path, params: Any) -> None:
    """Saves a trained model in hub layout, on the first of all processes."""
    training.save_model(self._config, folder, self._model, params)

  def step(self, arm: Any) -> Any:
    """Returns the step of an arm: (state, batch) -> (next state, metrics).

    The batch is that of `update`. The next state has the shardings of the state.
    """
    kind = tuple(arm.offsets), training.num_steps(self._config, arm)
    if kind not in self._steps:
      self._steps[kind] = jax.jit(
          functools.partial(_step, self._config, arm, self._model), donate_argnums=0,
          out_shardings=(self._where, None))
    return self._steps[kind]


def run_seed(
    config: Any,
    name: str,
    seed: int,
    text: Text,
    mesh: jax.sharding.Mesh,
    programs: Any,
    folder: epath.Path,
    progress: Progress,
    experiment: str = 'language_model',
    measure_first: bool = True,
    measure_after: Collection[int] | None = None,
) -> list[results.Row]:
  """Trains and measures one seed of an arm, resuming from its checkpoint.

  If there are several processes, all must call it; the first one writes.

  Args:
    config: as in configs/language_model.py.
    name: of the arm.
    seed: the seed; it has the same initial weights and order of the text in all arms.
    text: the text to train on.
    mesh: from `vvlen.sharding.mesh.make_mesh`.
    programs: `Programs` for this configuration, model and mesh, or another object with
      their methods `start`, `step`, `evaluate` and `save`.
    folder: of the run. The trained model is saved there.
    progress: counts steps.
    experiment: whose rows these are.
    measure_first: whether a model from a checkpoint is measured before training too.
    measure_after: steps after which the model is measured, besides the last; None:
      every config.evaluate.every_steps.
  """
  train, arm = config.train, config.arms[name]
  [key] = ensemble.seed_keys(config.seed, seed, 1)
  place = loop.place_rows(mesh, partition.ROWS[0])
  counts = _counts(config, mesh)
  measure = _measure(config, programs, key, text, place, mesh)
  reports = SeedReports(folder, name, seed, train.steps_per_call, progress, measure)
  # A numpy array, which is the same in all processes.
  offsets = np.asarray(jax.random.key_data(ensemble.purpose_key(key, _OFFSETS)))
  with jax.set_mesh(mesh):
    state = programs.start(key)
    where = folder / 'checkpoints' / name / f'seed_{seed}'
    if config.checkpoint and measure_first and not checkpoint.last_step(where):
      reports.evaluate(0, state)
    state = loop.train(
        programs.step(arm), state,
        _batches(config, seed, text, _rows(config, mesh)),
        training.num_steps(config, arm),
        place=lambda rows: (place(rows if counts is None else (rows, counts)),
                            offsets, np.float32(arm.weight)),
        folder=where,
        meta={'text': text.facts['text_sha256']},
        save_every_steps=train.save_every_steps,
        metrics_every_steps=train.steps_per_call,
        evaluate_every_steps=(
            config.evaluate.every_steps if measure_after is None else None),
        evaluate_after=measure_after or (),
        must_be_finite=('loss', 'gradient_norm'),
        on_metrics=reports.on_metrics, evaluate=reports.evaluate,
        before_save=reports.flush,
    )
    reports.flush()
    programs.save(folder / 'models' / name / f'seed_{seed}', state.params)
  return reports.rows(experiment)


def check(config: Any, model: Llama, mesh: jax.sharding.Mesh) -> None:
  """Raises ValueError if the mesh does not divide the model.

  Also raises the errors of `llama.load_checkpoint` if a checkpoint is incomplete, and
  ValueError if its weights are not finite. If the mesh does not divide batches or test
  segments, prints how much of the work fills them up.
  """
  for what, size, parts in (
      ('A batch', config.train.batch_size, config.train.parts),
      ('Test data', config.evaluate.num_segments, 1),
  ):
    in_parts = f' in {parts} parts' if parts > 1 else ''
    say_filled(f'{what} of {size} rows{in_parts}', size, _filled(size, mesh, parts),
               mesh)
  shardings = partition.shardings(llama.abstract_params(model.clone(dtype=None)), mesh)
  if config.checkpoint:
    variables = llama.load_checkpoint(
        config.checkpoint, shardings, dtype=jnp.float32,
        scan_layers=model.scan_layers)[1]
    if bad := finite.bad_weights(variables['params']):
      raise ValueError(
          f'{config.checkpoint}: weights of the model are not finite: {bad}')


def _step(config, arm, model, state, batch):
  loss = training.make_loss(config, arm, model)
  return update(config, arm, lambda params, part, _: loss(params, part), state, batch)


def update(
    config: Any, arm: Any, loss: Any, state: TrainState, batch: Any
) -> tuple[TrainState, dict[str, jax.Array]]:
  """Makes an update, with α from the batch, not from the arm.

  Args:
    config: as in configs/language_model.py.
    arm: one of its arms.
    loss: (parameters, `Batch`, key of the step) -> (loss [], metrics).
    state: before the update.
    batch: (streams, key data of the seed, α). In place of streams, it may have the pair
      (streams, which of them count): the others add nothing to loss, metrics and
      gradients.
  """
  rows, key_data, weight = batch
  streams, counts = rows if isinstance(rows, tuple) else (rows, None)
  optimizers = training.make_optimizer(config, training.num_steps(config, arm))
  key = jax.random.fold_in(jax.random.wrap_key_data(key_data), state.step)
  offset = training.draw_offset(config, arm, key)
  parts = config.train.parts
  # The mean over all that count is the mean over parts of these sums.
  weights = None if counts is None else counts * (parts / config.train.batch_size)
  of_part = lambda params, rows: loss(
      params, Batch(rows[0], offset, weight, rows[1][0], rows[2]),
      jax.random.fold_in(key, 1))
  (value, metrics), gradients = optimizer.accumulate(of_part, parts)(
      state.params, (streams, jnp.arange(len(streams)) % parts, weights))
  updates, opt_state = optimizers.update(gradients, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  metrics = {'loss': value, 'gradient_norm': optax.global_norm(gradients), **metrics}
  return TrainState(state.step + 1, params, opt_state), metrics


def _filled(size, mesh, parts):
  """Returns the rows of a filled batch, of which devices share each part equally.

  Every process has devices of its own, so processes share the rows equally too.
  """
  return partition.filled(math.ceil(size / parts), mesh) * parts


def _rows(config, mesh):
  """Returns the number of rows of a filled training batch."""
  return _filled(config.train.batch_size, mesh, config.train.parts)


def _counts(config, mesh):
  """Returns which of this process's rows of a batch count, [rows] bool; None: all."""
  rows, size = _rows(config, mesh), config.train.batch_size
  own = np.arange(rows)[jax.process_index()::jax.process_count()]
  return None if rows == size else own < size


def _batches(config, seed, text, rows=None):
  """Returns an iterator over this process's rows of the batches, from the first one.

  Batches are filled up to `rows` with copies of their last row.
  """
  blocks = Blocks(
      text.documents, training.stream_length(config),
      begin=text.tokenizer.begin, within_documents=config.text.within_documents,
  )
  return packing.batches(
      blocks, config.train.batch_size, config.seed + seed,
      process_index=jax.process_index(), process_count=jax.process_count(),
      filled_to=rows,
  )


def _measure(config, programs, key, text, place, mesh):
  """Returns a function: parameters -> {metric: {length: float}}."""
  test_key = ensemble.purpose_key(key, ensemble.TEST)
  starts = np.asarray(measuring.draw_starts(config, test_key, len(text.held_out)))
  longest = measuring.longest_segment(config)
  segments = np.stack([text.held_out[x:x + longest] for x in starts.tolist()])
  # Each batch has one segment for each device of the axes data x fsdp; the last segment
  # is repeated to fill the last batch.
  at_once, size = partition.row_ways(mesh), len(segments)
  places = np.arange(partition.filled(size, mesh)).reshape(-1, at_once)
  counted = (places < size).sum(1)
  own = np.split(places, jax.process_count(), axis=1)[jax.process_index()]
  batches = [(segments[np.minimum(x, size - 1)], x < size) for x in own]
  if places.size == size:
    batches = [batch[:1] for batch in batches]  # without counts, as all count

  def measure(params):
    found = [jax.device_get(programs.evaluate(params, *place(x))) for x in batches]
    return jax.tree.map(lambda *x: float(np.average(x, weights=counted)), *found)

  return measure
