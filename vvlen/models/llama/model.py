"""The transformer decoder of the Llama family (arXiv 2302.13971, 2407.21783).

  x = E[token]
  for each layer:
    x = x + W_O norm(attention(RMSNorm(x)))
    x = x + W_D (SiLU(W_G z) ∘ W_U z),  z = RMSNorm(x)
  logits = E' RMSNorm(x)

with rotary positions (`vvlen.models.rope`), key heads that each serve several query
heads, and E' = E if tied. Published models have no norm right after attention; it is an
addition of vvlen (`vvlen.models.norm`), as is ALiBi (`vvlen.models.positions`).

Kernels are [inputs, outputs], as everywhere in Flax. In files of model hubs they are
[outputs, inputs]: they are transposed when they are read and written.

Axes: B sequences, n tokens, V words, d width, h query heads, k key heads, w width of a
head.
"""

import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models import clex
from vvlen.models import rope as rotary
from vvlen.models.embedding import check_places, rows_of
from vvlen.models.kernels.shifted import Shifted
from vvlen.models.kv_cache import Cache, store
from vvlen.models.llama import layers as stack
from vvlen.models.llama.block import Block, rms_norm, unbound
from vvlen.models.llama.initial_weights import INIT, init_kernel
from vvlen.models.llama.rotation import learned_of, rotation_of
from vvlen.models.llama.sizes import check_model
from vvlen.models.norm import Norm
from vvlen.models.rope import Rope
from vvlen.sharding.mesh import gathered, over_batch


class Llama(nn.Module):
  """Predicts the next token at each position.

  Attributes:
    vocab_size: V.
    width: d.
    mlp_width: number of hidden features of the MLP.
    num_layers: number of layers.
    num_heads: h.
    num_key_heads: k, a divisor of h.
    head_width: w; None: d / h.
    max_length: number of tokens of training inputs; longer inputs are allowed.
    rope: rotary positions, which may differ between training and evaluation; None: no
      positions, or ALiBi. With `vvlen.models.clex.Clex` the model has two more
      parameters, `clex_up` and `clex_down`, initialized as float32.
    alibi: whether logits have the bias of ALiBi; needs rope None.
    epsilon: of RMSNorm.
    attention_bias: whether the projections to queries, keys and values have a bias.
    output_bias: whether the projection after attention has a bias.
    mlp_bias: whether the projections of the MLP have a bias.
    tied: whether the output embedding is the input embedding.
    norm: of each head's output, right after attention: 'none', 'standardize',
      'layer_norm', a linen module, of which each layer has its own copy, or a function.
    implementation: one of `vvlen.models.kernels.causal.IMPLEMENTATIONS`; None chooses.
    shifted: for training, attention within groups of tokens in `__call__` and `hidden`
      (`vvlen.models.kernels.shifted`); the group must divide the number of tokens.
      None: full attention, as always in `init`, `prefill` and `step`. Evaluate
      `model.clone(shifted=None)`.
    remat: whether a layer keeps only its input for the backward pass and computes
      everything else again.
    scan_layers: whether the parameters of all layers are stacked, in arrays
      [num_layers, ...] below the key `layers`, and the layers run in a loop: compiling
      then takes the same time for any number of layers.
      `vvlen.models.llama.layers.stacked` converts parameters. The same key gives other
      initial weights than without scan_layers.
    remat_keeps: with scan_layers and remat, what a layer keeps besides its input:
      'nothing', or 'products', the results of products with kernels.
    stream_dtype: with scan_layers, the dtype of the residual stream between layers, of
      which remat keeps one array per layer; None: float32 or wider.
    dtype: of the matrix products; None: that of the parameters. Norms, softmax, the
      residual stream and logits are float32 or wider.
    param_dtype: of the parameters as they are initialized.
    precision: of the products with kernels and embeddings.
    kernel_init: draws the kernels, by default with a standard deviation of 0.02. Models
      of width 64 learn to look things up in their context sooner with 0.125, 1/√width,
      here and in `embedding_init`.
    bias_init: draws the biases.
    embedding_init: draws the embeddings, by default with the same deviation. With
      `vvlen.models.llama.initial_weights.around_common_vector`, attention to distances
      is learned sooner.
  """

  vocab_size: int
  width: int
  mlp_width: int
  num_layers: int
  num_heads: int
  num_key_heads: int
  head_width: int | None = None
  max_length: int = 2048
  rope: Rope | None = Rope()
  alibi: bool = False
  epsilon: float = 1e-5
  attention_bias: bool = False
  output_bias: bool = False
  mlp_bias: bool = False
  tied: bool = True
  norm: Norm = 'none'
  implementation: str | None = None
  shifted: Shifted | None = None
  remat: bool = False
  scan_layers: bool = False
  remat_keeps: str = 'nothing'
  stream_dtype: Any = None
  dtype: Any = None
  param_dtype: Any = jnp.float32
  precision: jax.lax.PrecisionLike = None
  kernel_init: nn.initializers.Initializer = init_kernel
  bias_init: nn.initializers.Initializer = nn.initializers.zeros
  embedding_init: nn.initializers.Initializer = INIT

  def setup(self):
    """Creates the layers and names their parameters."""
    check_model(self)
    table = (self.vocab_size, self.width)
    self.embedding = self.param(
        'embedding', self.embedding_init, table, self.param_dtype)
    if not self.tied:
      self.output_embedding = self.param(
          'output_embedding', self.embedding_init, table, self.param_dtype)
    learned = self.rope and self.rope.stretched
    if isinstance(learned, clex.Clex):
      shape = clex.shape_of(learned, _head_width(self))
      self.clex_up = self.param('clex_up', clex.init_up, shape, jnp.float32)
      self.clex_down = self.param(
          'clex_down', nn.initializers.zeros, shape[::-1], jnp.float32)
    block = Block
    if self.remat and not self.scan_layers:
      block = nn.remat(Block, methods=['__call__'])
    make = functools.partial(
        block, width=self.width, mlp_width=self.mlp_width, num_heads=self.num_heads,
        num_key_heads=self.num_key_heads, head_width=_head_width(self),
        rotate_late=rotary.depends_on_length(self.rope), alibi=self.alibi,
        epsilon=self.epsilon, attention_bias=self.attention_bias,
        output_bias=self.output_bias, mlp_bias=self.mlp_bias, norm=unbound(self.norm),
        implementation=self.implementation, shifted=self.shifted, dtype=self.dtype,
        param_dtype=self.param_dtype, precision=self.precision,
        kernel_init=self.kernel_init, bias_init=self.bias_init,
    )
    if self.scan_layers:
      self.layers = make()
    else:
      self.layer = [make() for _ in range(self.num_layers)]
    self.final_norm = rms_norm(self.epsilon, self.param_dtype)

  def __call__(
      self,
      tokens: jax.Array,
      positions: jax.Array | None = None,
      length: int | jax.Array | None = None,
  ) -> jax.Array:
    """Returns logits.

    If the collection `intermediates` is mutable, each layer sows `queries` [B, n, h, w]
    and `keys` [B, n, k, w], rotated by their positions, and `attention_output` [B, n,
    h, w], before the norm after attention, into it; with ALiBi also its `slopes` [h].

    Args:
      tokens: [B, n] integers in 0..V − 1: others raise an error outside jit, and make
        their sequence nan inside.
      positions: [n] or [B, n], integers or floats; 0..n − 1 if None. The causal mask
        depends on the order of tokens in the array, not on positions. For RandomPos,
        draw them by `vvlen.models.positions.random_positions` for each forward pass; to
        train CLEX, by `clex.sample`.
      length: the length whose rates Dynamic, LongRope and CLEX use, a number or [B],
        traced or not; None: n, or the highest position + 1 where they are given.

    Returns:
      [B, n, V], float32 or wider.

    Raises:
      ValueError: if shapes do not fit, a token is not in the vocabulary, a model with
        `rope.highest` is not given positions, or as `check_model`.
    """
    return self.logits(self.hidden(tokens, positions, length))

  def hidden(
      self,
      tokens: jax.Array,
      positions: jax.Array | None = None,
      length: int | jax.Array | None = None,
      learned: jax.Array | None = None,
  ) -> jax.Array:
    """Returns hidden states [B, n, d], for `vvlen.objectives.chunked`.

    Their dtype is the attribute `dtype` if given, otherwise that of the output
    embedding. Logits are their product with the transpose of `output_table`.
    Arguments are those of `__call__`, and for CLEX `learned`, what `log_rates` returns
    for this or a longer length, so that several calls integrate once.
    """
    x = self._embed(tokens)
    if positions is not None and jnp.shape(positions) not in (
        tokens.shape, tokens.shape[1:]):
      raise ValueError(f'positions {jnp.shape(positions)} do not fit tokens '
                       f'{tokens.shape}')
    if positions is None:
      self._check_counted()
    num_tokens = tokens.shape[1]
    if length is None:
      length = num_tokens
      if positions is not None and rotary.depends_on_length(self.rope):
        length = jnp.asarray(positions).max(-1) + 1
    positions = jnp.arange(num_tokens) if positions is None else jnp.asarray(positions)
    if learned is None:
      learned = self.log_rates(length)
    rotation = self._rotation(positions, length, num_tokens, learned, x.dtype)
    scaled = rotary.scaled_layers(self.rope, self.num_layers)
    if self.scan_layers:
      x = stack.scan(
          self.layers, x, rotation, scaled, remat=self.remat, kept=self.remat_keeps,
          dtype=self.stream_dtype,
      )
    else:
      for layer, applies in zip(self.layer, scaled, strict=True):
        x = over_batch(layer(x, rotation.of_layer(applies)))
    return self._finish(x)

  def log_rates(self, length: int | jax.Array | None) -> jax.Array | None:
    """Returns the log rates of CLEX up to a length, None without it: `learned_of`."""
    return learned_of(self, length)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Maps hidden states [..., d] to logits [..., V], float32 or wider."""
    table = self.embedding if self.tied else self.output_embedding
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    return jnp.einsum('...d,vd->...v', hidden, table.astype(hidden.dtype),
                      precision=self.precision, preferred_element_type=wide)

  def prefill(
      self, tokens: jax.Array, lengths: jax.Array, capacity: int
  ) -> tuple[jax.Array, Cache]:
    """Reads prompts into a cache.

    Args:
      tokens: [B, n] integers, padded at the end with any tokens.
      lengths: [B] integers, number of tokens of each prompt, at least 1.
      capacity: number of tokens that the cache has room for, at least n.

    Returns:
      Hidden states [B, d] of the last token of each prompt, and the cache.
    """
    self._check_counted()
    x = self._embed(tokens)
    learned = learned_of(self, capacity)
    positions = jnp.arange(tokens.shape[1])
    rotation = self._rotation(positions, lengths, lengths, learned, x.dtype)
    keys, values = [], []
    for layer, scaled in self._each_layer():
      x, key, value = layer.prefill(x, rotation.of_layer(scaled))
      keys.append(store(key, capacity))
      values.append(store(value, capacity))
    last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)[:, 0]
    lengths = jnp.asarray(lengths, jnp.int32)
    return self._finish(last), Cache(tuple(keys), tuple(values), lengths, learned)

  def step(self, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Reads one more token per row.

    Args:
      tokens: [B] integers.
      cache: with room for one more token; in a full row, the last token is overwritten.

    Returns:
      Hidden states [B, d], and the cache with the new tokens.
    """
    x = self._embed(tokens[:, None])[:, 0]
    length = cache.length + 1
    places = cache.length[:, None]
    own = self._rotation(places, length, length, cache.learned, x.dtype)
    held = own
    if rotary.depends_on_length(self.rope):
      # Rates change with the length, so keys are stored before their rotation, and all
      # are rotated again. The hidden states from which they were computed still reflect
      # the rates of earlier lengths.
      held = self._rotation(
          jnp.arange(cache.keys[0].shape[2]), length, length, cache.learned, x.dtype)
    keys, values = [], []
    layers = self._each_layer()
    for (layer, scaled), key, value in zip(
        layers, cache.keys, cache.values, strict=True):
      x, key, value = layer.step(
          x, own.of_layer(scaled), held, key, value, cache.length)
      keys.append(key)
      values.append(value)
    cache = Cache(tuple(keys), tuple(values), length, cache.learned)
    return self._finish(x), cache

  def _each_layer(self):
    """Returns each layer, and whether its queries are scaled."""
    layers = (stack.one_by_one(self.layers, self.num_layers) if self.scan_layers
              else self.layer)
    return list(zip(
        layers, rotary.scaled_layers(self.rope, self.num_layers), strict=True))

  def _check_counted(self):
    """Raises ValueError if positions 0, 1, 2, … are not those of the training."""
    if self.rope and self.rope.highest is not None and not self.is_initializing():
      raise ValueError(
          'this model was trained with random positions (RandomPos): give it positions '
          f'from random_positions(key, num_tokens, {self.rope.highest}) of '
          'vvlen.models.positions; generation does not support them')

  def _embed(self, tokens):
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
      raise ValueError(f'tokens must be integers [B, n]: {tokens.dtype} {tokens.shape}')
    check_places('tokens', tokens, self.vocab_size)
    x = rows_of(gathered(self.embedding), tokens)
    return over_batch(x.astype(jnp.promote_types(x.dtype, jnp.float32)))

  def _rotation(self, positions, length, num_keys, learned, dtype):
    return rotation_of(
        self.rope, _head_width(self), positions, length, num_keys, learned, dtype)

  def _finish(self, x):
    table = self.embedding if self.tied else self.output_embedding
    return self.final_norm(x).astype(self.dtype or table.dtype)


def _head_width(model: Llama) -> int:
  return model.head_width or model.width // model.num_heads


def output_table(model: Llama, params: Any) -> jax.Array:
  """Returns the output embedding [V, d], for `vvlen.objectives.chunked`."""
  return params['embedding' if model.tied else 'output_embedding']
