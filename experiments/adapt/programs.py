"""Compiled programs that train and measure a checkpoint with one method."""

from collections.abc import Callable
import functools
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from experiments.adapt import methods
from experiments.language_model import measuring, sharded, training
from vvlen import sharding
from vvlen.models import clex, llama
from vvlen.models.llama import adapter_base
from vvlen.models.llama import adapters as adapter_files
from vvlen.models.llama import lora as adapters
from vvlen.models.llama.lora import Lora
from vvlen.models.llama.model import Llama, output_table
from vvlen.objectives.chunked import chunked_cross_entropy, chunked_two_window_loss
from vvlen.objectives.divergences import (
    entropies,
    symmetric_cross_entropy,
    symmetric_kl,
)
from vvlen.objectives.measures import Measures
from vvlen.objectives.windows import two_windows
from vvlen.sharding import mesh as partition
from vvlen.sharding.mesh import gathered
from vvlen.training import ensemble, optimizer
from vvlen.training.step import TrainState

# The term of the loss whose weight is α: the paper's misalignment term, or a control.
TERMS = {
    'sce': symmetric_cross_entropy, 'entropy': entropies, 'symmetric_kl': symmetric_kl}


class Programs:
  """Programs of one method, which its arms and seeds share.

  With adapters, some parameters are frozen; these are not part of the training state.
  """

  def __init__(self, config: Any, name: str, model: Llama, mesh: jax.sharding.Mesh):
    """Prepares the programs.

    Args:
      config: as in configs/adapt.py.
      name: of the method, one of `methods.METHODS`.
      model: the checkpoint's.
      mesh: of all devices.
    """
    self._config, self._name, self._mesh = config, name, mesh
    self._plain, self._lora = model, lora_of(config, name)
    self._method = methods.make(name, model, config)
    self._trained, self._measured = self._method.trained, self._method.measured
    if self._lora:
      self._trained = adapters.with_adapters(self._trained, self._lora, training=True)
      self._measured = adapters.with_adapters(self._measured, self._lora)
    # All trained parameters are float32: in bfloat16, small updates would be rounded
    # away.
    self._dtype = config.train.dtype if self._lora else 'float32'
    trained, frozen = self._split(llama.abstract_params(
        self._measured.clone(param_dtype=jnp.dtype(self._dtype))))
    trained = jax.eval_shape(_as_float32, trained)
    optimizers = training.make_optimizer(config, config.train.num_steps)
    shapes = TrainState(jax.ShapeDtypeStruct((), jnp.int32), trained,
                        jax.eval_shape(optimizers.init, trained))
    self._where = TrainState(
        sharding.whole(mesh), partition.shardings(trained, mesh),
        partition.shardings_of_state(shapes.opt_state, trained, mesh))
    # The training state and what is frozen, as shapes with shardings.
    placed = functools.partial(jax.tree.map, lambda x, where: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=where))
    self.state = placed(shapes, self._where)
    self.frozen = placed(frozen, partition.shardings(frozen, mesh))
    self._init_optimizer = jax.jit(
        optimizers.init, out_shardings=self._where.opt_state)
    # (params, segments, counts) -> measured, as `evaluate`.
    self.evaluation = jax.jit(functools.partial(
        evaluate, config, model.max_length, self._measured, self._method.of_test))
    self._steps: dict[Any, Any] = {}
    self._identity: dict[str, Any] | None = None  # of the checkpoint

  def start(self, key: jax.Array) -> TrainState:
    """Returns the state of a seed before the first step, on the mesh."""
    where = functools.partial(partition.shardings, mesh=self._mesh)
    params = llama.load_checkpoint(
        self._config.checkpoint, where, dtype=jnp.dtype(self._dtype),
        scan_layers=self._plain.scan_layers)[1]['params']
    key = ensemble.purpose_key(key, ensemble.INIT)
    if self._name == 'clex':
      law = self._method.measured.rope.stretched
      width = self._plain.head_width or self._plain.width // self._plain.num_heads
      new = clex.init_params(jax.random.fold_in(key, 0), law, width)
      params |= jax.device_put(new, sharding.whole(self._mesh))
    if self._lora:
      # The same for all seeds.
      self._identity = self._identity or adapter_base.describe(
          self._method.measured, params)
      params = adapters.add_adapters(
          self._method.measured, self._lora, params, jax.random.fold_in(key, 1), where)
    trained, self.frozen = self._split(params)
    trained = _as_float32(trained)
    zero = jax.device_put(np.zeros((), np.int32), sharding.whole(self._mesh))
    return TrainState(zero, trained, self._init_optimizer(trained))

  def step(self, arm: Any) -> Callable[..., Any]:
    """Returns the step of an arm: (state, batch) -> (next state, metrics).

    The batch is (streams, key data, α).
    """
    program = self.program(arm)
    return lambda state, batch: program(state, self.frozen, batch)

  def program(self, arm: Any) -> Any:
    """Returns the compiled step, whose second argument is the frozen parameters."""
    kind = arm.term, tuple(arm.offsets), training.num_steps(self._config, arm)
    if kind not in self._steps:
      loss = functools.partial(
          two_window_loss, self._config, arm, self._trained, self._method.draw)
      self._steps[kind] = jax.jit(
          functools.partial(_step, self._config, arm, loss), donate_argnums=0,
          out_shardings=(self._where, None))
    return self._steps[kind]

  def evaluate(
      self, trained: Any, segments: jax.Array, counts: jax.Array | None = None
  ) -> dict[str, dict[int, Any]]:
    """Measures parameters on segments of text [K, n], as `evaluate`."""
    return self.evaluation(adapters.join(trained, self.frozen), segments, counts)

  def save(self, folder: epath.Path, trained: Any) -> None:
    """Saves a trained model, on the first of all processes.

    The model is saved in hub layout, with its adapters merged. The adapters alone are
    saved too, in PEFT's format, but not with CLEX, whose matrices this format cannot
    hold.
    """
    params = adapters.join(trained, self.frozen)
    if self._lora and self._name != 'clex':
      adapter_files.save_adapters(
          folder / 'adapters', self._method.measured, self._lora, params,
          base=self._config.checkpoint, identity=self._identity)
    if self._lora:
      params = adapters.merged(self._lora, _as_float32(params))
    training.save_model(self._config, folder, self._method.measured, params)

  def _split(self, params):
    return adapters.split(self._lora, params) if self._lora else (params, {})


def lora_of(config: Any, method: str) -> Lora | None:
  """Returns the adapters of a method; None if all parameters are trained.

  The matrices of CLEX are always trained.
  """
  fields = config.adapters.to_dict()
  if not fields['rank']:
    return None
  also = (*fields['also'], *('clex_up', 'clex_down') * (method == 'clex'))
  return Lora(**fields | {'quantized': fields['quantized'] or None, 'also': also})


def two_window_loss(
    config: Any,
    arm: Any,
    model: Llama,
    draw: Callable[[jax.Array, int], methods.Places],
    params: Any,
    batch: training.Batch,
    key: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns the loss of an arm and its metrics.

  Both windows have the same positions, unless config.positions.shared is False.

  Args:
    config: as in configs/adapt.py.
    arm: one of its arms.
    model: as it is trained.
    draw: of the method.
    params: of the model.
    batch: streams and their weights, offset, α, and which part of the batch of a step
      it is.
    key: of this step; positions are the same in all its parts, dropout is not.
  """
  length = config.train.max_length
  places_key, dropout_key = jax.random.split(key)
  dropout_key = jax.random.fold_in(dropout_key, batch.part)
  if config.positions.get('shared', True):
    places = [draw(places_key, length)] * 2
  else:
    places = [draw(key, length) for key in jax.random.split(places_key)]
  windows = two_windows(batch.streams, length, batch.offset)
  # CLEX integrates its rates once, up to the longer of the two lengths.
  lengths = [own.length for own in places if own.length is not None]
  longest = jnp.stack(lengths).max() if lengths else None
  learned = model.apply({'params': params}, longest, method='log_rates')
  hidden = [
      model.apply({'params': params}, x, *own, learned, method='hidden',
                  rngs={'dropout': jax.random.fold_in(dropout_key, i)})
      for i, (x, own) in enumerate(zip(windows, places, strict=True))
  ]
  table = gathered(output_table(model, params)).astype(hidden[0].dtype)
  value, terms = chunked_two_window_loss(
      *hidden, table, *windows, batch.offset, batch.weight,
      divergence=TERMS[arm.term], whole_overlap=arm.offsets[1] > 1 / 2,
      sequence_weights=batch.weights)
  first, second, misalignment = terms.values()
  return value, {'cross_entropy': (first + second) / 2, 'misalignment': misalignment}


def _as_float32(params):
  return optimizer.cast_floating(params, jnp.float32)


def _step(config, arm, loss, state, frozen, batch):
  of_trained = lambda trained, *rest: loss(adapters.join(trained, frozen), *rest)
  return sharded.update(config, arm, of_trained, state, batch)


def evaluate(
    config: Any,
    original: int,
    model: Llama,
    of_test: Callable[[int], methods.Places],
    params: Any,
    segments: jax.Array,
    counts: jax.Array | None = None,
) -> dict[str, dict[int, jax.Array]]:
  """Measures a model on segments of text [K, n], in one batch.

  `counts` is as in `language_model.measuring.evaluate_hidden`.

  Returns:
    {metric: {length: []}}. The metrics are those of
    `language_model.measuring.evaluate_hidden`, with all measures of misalignment, and
    `nll` also in blocks of the checkpoint's own length. `sliding` is log perplexity in
    windows of each length but n, half a window apart: in the first window all tokens
    but one are scored, in the others those of the second half.
  """
  size, table = segments.shape[1], output_table(model, params)
  read = lambda x: model.apply(
      {'params': params}, x, *of_test(x.shape[1]), method='hidden')
  found = measuring.evaluate_hidden(
      config, read, table, segments, Measures._fields, counts)
  lengths = {original, *found['nll']}
  found['sliding'] = {}
  for length in sorted(lengths):
    if length not in found['nll']:
      blocks = segments[:, :size // length * length].reshape(-1, length)
      found['nll'][length] = _nll(
          read, table, blocks, np.ones(len(blocks), int), counts)
    stride = length // 2
    starts = np.arange(0, size - length + 1, stride)
    if len(starts) < 2:
      continue
    windows = segments[:, starts[:, None] + np.arange(length)].reshape(-1, length)
    begins = np.tile(np.where(starts, length - stride, 1), len(segments))
    found['sliding'][length] = _nll(read, table, windows, begins, counts)
  return found


def _nll(read, table, windows, begins, counts):
  """Returns the mean loss of the tokens of windows [W, n] from places [W] on."""
  places = np.arange(windows.shape[1])
  # A row predicts the next token.
  scored = (places >= begins[:, None] - 1) & (places < windows.shape[1] - 1)
  return chunked_cross_entropy(
      read(windows), table, jnp.roll(windows, -1, axis=1),
      measuring.only_counted(scored, counts))
