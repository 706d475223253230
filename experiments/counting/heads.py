"""Which temperature would the heads of a counting model need to attend to one key?

Counting asks for no single item, so the key is the one with the largest logit. β is the
least factor of the logits that gives this key half of the weight of a head, and

  p: slope of log β against log n,   q: slope of log β against log log n

over n keys: the bits and the tokens before and after them. The query is always the last
token, whose hidden state gives the answer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vvlen import sharding
from vvlen.evaluation.temperature_law import critical_temperature, powers_of
from vvlen.models.decoder import SequenceRegressor
from vvlen.tasks import counting

# (metric, layer, head, length) -> one value per seed [S]; None: of all of them
Measured = dict[tuple[str, int | None, int | None, int | None], np.ndarray]
STRINGS = 200  # of each length
_MOST = 1000.0  # larger factors of the logits would tell rounding errors apart


def make_heads(
    model: SequenceRegressor,
    lengths: Sequence[int],
    counts: str,
    mesh: jax.sharding.Mesh,
    group_size: int,
) -> Callable[[Any, jax.Array], Measured]:
  """Builds the function that measures the heads of a block of seeds.

  Args:
    model: of counting.
    lengths: numbers of bits.
    counts: how bits are drawn, as in `vvlen.tasks.counting.sample`.
    mesh: the devices, with the axis 'seed'.
    group_size: the most seeds in one vmap.

  Returns:
    A function of (parameters, test keys), each with a leading axis of seeds. For each
    head it returns `needed_temperature`, the median of β over random strings of each
    length; `largest_weight`, the mean of the largest weight that the head gives to a
    key, at each length; `needed_power`, p; and `needed_power_of_log`, q. β above 1,000
    counts as infinite, since such keys differ by rounding alone; p and q leave these
    lengths out.
  """

  def of_seed(params, key):
    drawn = [counting.sample(
        jax.random.fold_in(key, n), batch_size=STRINGS, min_length=n, max_length=n,
        task='mean', counts=counts).tokens for n in lengths]
    return [look(model, params, tokens) for tokens in drawn]

  run = sharding.over_seeds(of_seed, mesh, group_size)

  def measure(params, test_keys):
    if not lengths:
      return {}
    found = sharding.fetch(run(params, test_keys))
    betas, weights = (np.stack(x) for x in zip(*found, strict=True))
    # [lengths, S, strings, layers, h]
    medians, weights = np.median(betas, axis=2), weights.mean(axis=2)
    medians = np.where(medians > _MOST, np.inf, medians)
    measured: Measured = {}
    for layer, head in np.ndindex(*medians.shape[2:]):
      of_head = medians[..., layer, head]
      for n, median, weight in zip(lengths, of_head, weights, strict=True):
        measured['needed_temperature', layer, head, n] = median
        measured['largest_weight', layer, head, n] = weight[:, layer, head]
      # Of medians over strings, so that each seed is one sequence of temperatures.
      powers = powers_of([n + 2 for n in lengths], of_head.T[:, None])
      for name, values in zip(('power', 'power_of_log'), powers.T, strict=True):
        measured[f'needed_{name}', layer, head, None] = values
    return measured

  return measure


def look(
    model: SequenceRegressor, params: Any, tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns β and the largest weight of the last token's heads, [B, layers, h] each.

  Args:
    model: of counting.
    params: of the model.
    tokens: [B, n], of which the last one is read.
  """
  _, sown = model.apply({'params': params}, tokens, jnp.array([-1]),
                        mutable=['intermediates'])
  layers = sown['intermediates']['decoder']
  logits = jnp.stack([layers[f'layer_{i}']['attention_logits'][0][:, :, -1]
                      for i in range(model.decoder.num_layers)], axis=1)
  return critical_temperature(logits), jax.nn.softmax(logits).max(-1)
