"""The arms: what each changes in one head of attention.

With n keys that are not masked, n₀ the longest training length, and logits z = q·k/√d:

  arm           a = attention weights, or o = output       learned   source       cost
  softmax       a = e^z / Σ e^z                            -         -            1
  layer_norm    o ← scale ⊙ (o − mean) / √(var + ε) + bias 2 d       2504.02827   d
  standardize   o ← (o − mean) / √(var + ε)                -         2504.02827   d
  rms_norm      o ← scale ⊙ o / √(mean o² + ε)             d         1910.07467   d
  ssmax         a = softmax(β z), β = s ln n               s         2501.19399   n
  log_n         β = ln n / ln n₀, below 1 for n < n₀       -         2401.07004   n
  sqrt_log_n    β = s √(2 ln n)                            s         -            n
  power         β = (n / n₀)^p                             p         -            n
  linear        β = n / n₀                                 -         -            n
  adaptive      β = max(polynomial(entropy of a), 1)       -         2410.01104   2 n
  l2_softmax    a = e^z / ‖e^z‖₂                           -         -            n
  entmax        a = [z / 2 − τ]₊², Σ a = 1                 -         1905.05702   sort n
  sigmoid       a = σ(z + b − ln n)                        b         2409.04431   n
  sink          a = e^z / (e^s + Σ e^z)                    s         2508.10925   n
  qk_norm       z = g q̂·k̂                                  g         2010.04245   n d²
  qk_norm_log_n z = (ln n / ln n₀) g q̂·k̂                   g         both         n d²
  gated         o ← o ⊙ σ(W q)                             d²        2505.06708   d²

Cost is the order of what one query adds to the n d² of a step. A step of retrieval
takes 0.9 to 1.1 times as long as softmax's, but 1.8 times with qk_norm; one of the
other tasks 1.0 to 1.1 times, but 1.1 to 1.6 times with qk_norm
(experiments/results/benchmarks/league_arms*.json). The last six arms, ssmax_layer_norm
to adaptive_layer_norm, are a temperature and layer_norm together. l2_softmax keeps the
variance that proposition 1 of 2504.02827 shows to fall.

adaptive has the published polynomial, which was fitted to a trained model and is for
inference only; here the model is trained with it. ssmax and log_n are the same function
of n up to a factor that W_Q and W_K can hold; Qwen, which has log_n too, keeps it at 1
or above. The entmax of 2506.16640, with a temperature that each head computes, is not
here. g starts at log₂(n₀² − n₀), as its
authors have it.

An arm of the user is a function of logits and mask, in a file of its own:
docs/examples/my_attention.py.
"""

from collections.abc import Callable
import functools
import math
import os
from typing import Any

from flax import linen as nn
import jax

from experiments.harness import own_function
from experiments.harness.parts import naming
from experiments.league.names import NAMES
from vvlen.models.attention import Temperature
from vvlen.models.fixes import laws
from vvlen.models.fixes.check import check_weights
from vvlen.models.fixes.entmax import entmax15
from vvlen.models.fixes.l2_softmax import l2_softmax
from vvlen.models.fixes.sigmoid import sigmoid
from vvlen.models.fixes.sink import sink
from vvlen.models.fixes.tempered import tempered
from vvlen.models.temperature import adaptive_temperature

BUILT_IN = 'built in'  # the source of an arm of this file

Fields = dict[str, Any]  # of `vvlen.models.retriever.Retriever`


def built_in(longest: int) -> dict[str, Fields]:
  """Returns the arms of this file: {name: what it changes in the model's fields}.

  Args:
    longest: n₀, at least 2.
  """
  power: Callable[..., jax.Array] = laws.power(longest)
  temperatures: dict[str, Temperature] = {
      'ssmax': laws.ssmax(longest),
      'log_n': laws.log_n(longest),
      'sqrt_log_n': laws.sqrt_log_n(longest),
      'power': power,
      'linear': functools.partial(power, p=1),  # an int, so not learned
      'adaptive': adaptive_temperature,
  }
  g = math.log2(longest**2 - longest)
  return {
      'softmax': {},
      'layer_norm': dict(norm='layer_norm'),
      'standardize': dict(norm='standardize'),
      'rms_norm': dict(norm=nn.RMSNorm(epsilon=1e-5)),
      **{name: dict(weights=tempered(beta)) for name, beta in temperatures.items()},
      'l2_softmax': dict(weights=l2_softmax),
      'entmax': dict(weights=entmax15),
      'sigmoid': dict(weights=sigmoid),
      'sink': dict(weights=sink),
      'qk_norm': dict(qk_norm=g),
      'qk_norm_log_n': dict(qk_norm=g, weights=tempered(laws.log_n(longest))),
      'gated': dict(gated=True),
      **{f'{name}_layer_norm': dict(weights=tempered(beta), norm='layer_norm')
         for name, beta in temperatures.items()},
  }


def fields_of(name: str, source: str, longest: int) -> Fields:
  """Returns what an arm changes in the fields of a model.

  Args:
    name: of the arm.
    source: BUILT_IN, or 'FILE.py:FUNCTION' with a function of the form of
      `vvlen.models.fixes.learned`; the file is run as Python.
    longest: n₀, for arms of this file.

  Raises:
    ValueError: if there is no such arm or function, or the function is not of that
      form; the message names the file and what is wrong.
  """
  if source == BUILT_IN:
    if name not in NAMES:
      raise ValueError(f'config.arms.{name} must be FILE.py:FUNCTION; built in are '
                       f'{", ".join(NAMES)}')
    return built_in(longest)[name]
  path, _, function = source.rpartition(':')
  if name in NAMES or not path.endswith('.py') or not os.path.isfile(path):
    raise ValueError(
        f'config.arms.{name} must be {"" if name in NAMES else "FILE.py:FUNCTION, "}'
        f'{repr(BUILT_IN) if name in NAMES else "where the file exists"}: {source!r}')
  found = own_function.load(f'config.arms.{name}', path, function)
  with naming(f'config.arms.{name}: {path}'):
    check_weights(found)
  return dict(weights=found)
