"""What the temperatures that heads need change in the answers of counting models.

Each head gets the law that is fitted to its logits, or all heads get log n, at
inference (`vvlen.evaluation.tempered_heads`): n^p or (log n)^q over n keys, relative to
the longest training length, up to which nothing changes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.counting.cells import Setup
from experiments.counting.heads import Measured, STRINGS
from experiments.counting.heads_table import LAWS
from experiments.harness.temperatures import factors, with_controls
from vvlen import sharding
from vvlen.evaluation.tempered_heads import apply_tempered
from vvlen.models.decoder import SequenceRegressor
from vvlen.objectives.output_reparameterization import Reparameterization
from vvlen.tasks import counting

_MORE = 2  # keys: the tokens before and after the bits


def make_tempered(
    model: SequenceRegressor,
    function: Reparameterization,
    cell: Setup,
    lengths: Sequence[int],
    mesh: jax.sharding.Mesh,
    group_size: int,
) -> Callable[[Any, jax.Array, Measured], Measured]:
  """Builds the function that measures a block of seeds.

  Args:
    model: of the cell. With ALiBi nothing is measured: its logits are not products of
      queries and keys alone.
    function: its targets are values of this function.
    cell: what the model was trained on.
    lengths: numbers of bits, of which those beyond training are measured.
    mesh: the devices, with the axis 'seed'.
    group_size: the most seeds in one vmap.

  Returns:
    A function of parameters, test keys, each with a leading axis of seeds, and what
    `heads.make_heads` measures. It returns `squared_error_LAW`, the mean over random
    strings of each length, other ones than those that laws are fitted to. A head
    without a law keeps its logits.
  """
  beyond = [n for n in lengths if n > cell.train_length]
  longest = cell.train_length + _MORE
  layers, heads = model.decoder.num_layers, model.decoder.num_heads

  def of_seed(params, key, powers):
    """Returns errors [laws, lengths]; `powers` are [laws, layers, h]."""
    errors = []
    for n in beyond:
      drawn = counting.sample(
          jax.random.fold_in(jax.random.fold_in(key, n), 1), batch_size=STRINGS,
          min_length=n, max_length=n, task=cell.task, counts=cell.counts)

      def error(of_heads, drawn=drawn, n=n):
        output = apply_tempered(
            model, of_heads, {'params': params}, drawn.tokens, jnp.arange(n + _MORE))
        return jnp.square(function.decode(output[:, -1]) - drawn.target).mean()

      of_laws = jnp.stack([
          factors(law, power, n + _MORE, longest)
          for law, power in zip(LAWS, powers, strict=True)])
      errors.append(jax.lax.map(error, of_laws))
    return jnp.stack(errors, axis=1)

  run = sharding.over_seeds(of_seed, mesh, group_size)

  def measure(params, test_keys, of_heads):
    if not beyond or model.decoder.positions == 'alibi':
      return {}
    of_law = lambda name: np.stack([
        np.stack([of_heads[f'needed_{name}', layer, head, None] for head in
                  range(heads)], axis=-1) for layer in range(layers)], axis=-2)
    found = with_controls(of_law('power'), of_law('power_of_log'))
    powers = np.stack([found.get(law, 0 * found['log_n']) for law in LAWS], axis=1)
    put = sharding.put(powers.astype(np.float32), mesh, group_size)
    errors = np.asarray(sharding.fetch(run(params, test_keys, put)))
    measured: Measured = {}
    for i, law in enumerate(LAWS):
      for j, n in enumerate(beyond):
        measured[f'squared_error_{law}', None, None, n] = errors[:, i, j]
    return measured

  return measure
