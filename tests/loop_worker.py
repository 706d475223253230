"""A toy for the training loop, and the process that trains it alone or with others.

The mean token of a sequence is predicted from embeddings of its tokens by linear
regression, on a mesh of data x fsdp x tensor.
"""

import json
import pathlib
import sys
import time
from typing import NamedTuple

import grain
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np
import optax

from vvlen.training import loop, optimizer, preemption
from vvlen.training.step import TrainState

BLOCKS, BATCH, LENGTH, VOCABULARY, WIDTH = 48, 8, 5, 16, 8
ROWS = ('data', 'fsdp')
_SPECS = {
    'embedding': PartitionSpec('fsdp', 'tensor'), 'kernel': PartitionSpec('tensor')
}


class Toy(NamedTuple):
  """What `loop.train` is called with."""

  step: object
  state: TrainState
  batches: object
  place: object


def make_mesh(shape) -> Mesh:
  """Returns a mesh data x fsdp x tensor over the first devices."""
  devices = jax.devices()[:int(np.prod(shape))]
  return jax.make_mesh(
      tuple(shape), ('data', 'fsdp', 'tensor'), axis_types=(AxisType.Auto,) * 3,
      devices=devices,
  )


def make_batches(seed=3):
  """Returns the iterator over this process's rows of each batch, [rows, LENGTH]."""
  blocks = np.random.default_rng(0).integers(VOCABULARY, size=(BLOCKS, LENGTH))
  process, count = jax.process_index(), jax.process_count()
  dataset = grain.MapDataset.source(blocks).seed(seed).shuffle()[process::count]
  dataset = dataset.repeat().batch(BATCH // count, drop_remainder=True)
  return iter(dataset.to_iter_dataset())


def make(mesh, *, seed=3, width=WIDTH, dtype=jnp.float32, num_steps=100) -> Toy:
  """Returns the toy before its first step."""
  update = optimizer.adamw(
      0.05, num_steps, warmup_steps=3, weight_decay=0.1, clip_norm=1.0
  )

  def init(key):
    draw = lambda k, *shape: jax.random.normal(jax.random.fold_in(key, k), shape, dtype)
    params = {'embedding': draw(0, VOCABULARY, width), 'kernel': draw(1, width)}
    return TrainState(jnp.zeros((), jnp.int32), params, update.init(params))

  def loss(params, tokens):
    told = (params['embedding'][tokens] @ params['kernel']).mean(-1)
    error = told - tokens.mean(-1, dtype=dtype)
    return jnp.mean(error**2), {'error': jnp.abs(error).mean()}

  def step(state, tokens):
    (value, metrics), gradients = optimizer.accumulate(loss, 2)(state.params, tokens)
    updates, moments = update.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(state.step + 1, params, moments), {'loss': value, **metrics}

  key = jax.random.key(1)
  placement = jax.tree_util.tree_map_with_path(
      lambda path, _: NamedSharding(
          mesh, _SPECS.get(getattr(path[-1], 'key', None), PartitionSpec())
      ),
      jax.eval_shape(init, key),
  )
  return Toy(
      jax.jit(step, out_shardings=(placement, None), donate_argnums=0),
      jax.jit(init, out_shardings=placement)(key),
      make_batches(seed),
      loop.place_rows(mesh, ROWS),
  )


def _refused():
  """Returns the errors for rows and for iterators that do not fit two processes."""
  batches = make_batches()
  if jax.process_index() == 1:
    next(batches)
  start = TrainState(np.int32(0), {}, ())
  said = []
  for wrong in (
      lambda: loop.place_rows(make_mesh((1, 1, 8)), ROWS),
      lambda: loop.train(None, start, batches, 1, place=None, folder='not_made'),
  ):
    try:
      wrong()
    except ValueError as error:
      said.append(str(error))
  return said


def main(options) -> None:
  """Trains as one process of `options['processes']`, and prints a line of JSON.

  With a folder `marks`, each step leaves a file there, and takes a while.
  """
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', 8 // options['processes'])
  jax.config.update('jax_numpy_rank_promotion', 'raise')
  if options['processes'] > 1:
    jax.distributed.initialize(
        f'127.0.0.1:{options["port"]}', options['processes'], options['process']
    )
  toy = make(make_mesh(options['mesh']))
  told = []

  def place(batch):
    if options.get('marks'):
      pathlib.Path(options['marks'], f'{time.time_ns()}').touch()
      time.sleep(0.03)
    return toy.place(batch)

  answer = {}
  try:
    loop.train(
        toy.step, toy.state, toy.batches, options['num_steps'], place=place,
        folder=options['folder'], save_every_steps=options['save_every_steps'],
        metrics_every_steps=2, on_metrics=lambda *x: told.append(x),
    )
  except preemption.Preempted as error:
    answer['preempted'] = str(error)
  if options['processes'] > 1:
    answer['refused'] = _refused()
  print(json.dumps({'told': told, **answer}), flush=True)


if __name__ == '__main__':
  main(json.loads(sys.argv[1]))
