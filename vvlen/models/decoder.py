"""A causal transformer decoder, pre-LN, for bits and for text.

  x = E[token] (+ position)
  x = x + W_O norm(attention(LN(x))),   x = x + W_2 GELU(W_1 LN(x))   in each layer
  hidden = LN(x)

The norm right after attention (`vvlen.models.norm`) acts on each head's output, with
one scale and bias for all heads. Norms, positions and objectives on the hidden states
can be combined freely. E has unit variance and sinusoidal positions a variance of 1/2,
so that neither is negligible beside the other.

Axes: B sequences, n tokens, m tokens whose states are returned, d width, h heads.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models import positions as encodings
from vvlen.models.embedding import check_places, rows_of
from vvlen.models.kernels.causal import causal_attention
from vvlen.models.kernels.dense import Alibi, check_mask, masked_attention
from vvlen.models.norm import Norm, norm_within


class Decoder(nn.Module):
  """Maps tokens to hidden states, from which a head predicts next tokens or numbers.

  Every parameter has a name of its own, so models that differ in `positions` or `norm`
  draw the same initial weights from the same key.

  Attributes:
    vocab_size: V.
    num_layers: number of layers.
    width: d.
    num_heads: h, a divisor of d.
    mlp_factor: width of the MLP's hidden layer, as a multiple of d.
    positions: one of `vvlen.models.positions.KINDS`.
    max_positions: number of rows of the learned table, or of positions that 'random'
      draws from. Rows of the table beyond the training lengths keep their initial
      values.
    norm: right after attention, before W_O: 'none', 'standardize', 'layer_norm', a
      function, or a linen module, of which each layer has a copy.
    implementation: one of `vvlen.models.kernels.causal.IMPLEMENTATIONS`. None chooses
      by length, dtype and device; the fused kernels of GPUs and TPUs are chosen only
      for 16-bit floats without ALiBi.
    dtype: of the matrix products; None follows the parameters. Norms, softmax and the
      residual stream are float32 or wider.
    param_dtype: of the parameters.
    precision: of the matrix products, except those of attention.
    kernel_init: of all kernels.
    bias_init: of the biases of the MLP.

  Under a mesh whose axes are Explicit, call it through jax.sharding.auto_axes.
  """

  vocab_size: int
  num_layers: int = 2
  width: int = 64
  num_heads: int = 4
  mlp_factor: int = 4
  positions: str = 'none'
  max_positions: int = 2048
  norm: Norm = 'none'
  implementation: str | None = None
  dtype: Any = None
  param_dtype: Any = jnp.float32
  precision: jax.lax.PrecisionLike = None
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
  bias_init: nn.initializers.Initializer = nn.initializers.zeros

  @nn.compact
  def __call__(
      self,
      tokens: jax.Array,
      positions: jax.Array | None = None,
      mask: jax.Array | None = None,
      read_at: jax.Array | None = None,
  ) -> jax.Array:
    """Returns hidden states.

    If the collection `intermediates` is mutable, sows `attention_logits` and
    `attention_weights` [B, h, n, n] of each layer into it, [B, h, m, n] of the last
    layer with `read_at`; attention then holds all logits in memory.

    Args:
      tokens: [B, n] integers. With the causal mask, later tokens do not change a hidden
        state, so sequences padded at the end need no mask. Tokens must be in 0..V − 1:
        others raise an error outside jit, and make their sequence nan inside.
      positions: [n] or [B, n] integers. None: 0..n − 1 or, if they are 'random', drawn
        from the PRNG `positions`, the same for all sequences. With a learned table,
        positions outside it are treated like tokens outside the vocabulary.
      mask: [n, n] or [B, n, n] bool, True where a row attends to a column. None:
        causal. With a mask, attention holds all logits in memory.
      read_at: [m] or [B, m] integers, the indices of the tokens whose hidden states are
        returned, counted from the end if negative; the last layer computes no others.
        None: all.

    Returns:
      [B, n, d], or [B, m, d] with `read_at`; float32 or wider.

    Raises:
      ValueError: if `positions` or `norm` is unknown, the number of heads does not
        divide the width, there is no layer or no vocabulary, positions or mask are of
        the wrong shape, the mask is not bool, there are more tokens than
        `max_positions`, or a token is outside the vocabulary.
    """
    _check(self, tokens, positions)
    batch, length = tokens.shape
    if mask is not None:
      mask = check_mask(mask, batch, length, length)
    embedding = self.param('embedding', nn.initializers.normal(1.0),
                           (self.vocab_size, self.width), self.param_dtype)
    x = rows_of(embedding, tokens)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if positions is None:
      positions = jnp.arange(length)
      if self.positions == 'random':
        positions = encodings.random_positions(
            self.make_rng('positions'), length, self.max_positions
        )
    if self.positions == 'learned':
      table = self.param('position_embedding', nn.initializers.normal(1.0),
                         (self.max_positions, self.width), self.param_dtype)
      added = rows_of(table, positions).astype(x.dtype)
      x = x + jnp.broadcast_to(added, x.shape)
    elif self.positions == 'sinusoidal':
      added = encodings.sinusoidal(positions, self.width, dtype=x.dtype)
      x = x + jnp.broadcast_to(added, x.shape)
    if read_at is not None:
      read_at = jnp.broadcast_to(read_at, (batch, jnp.shape(read_at)[-1]))
      read_at = jnp.where(read_at < 0, read_at + length, read_at)
    for layer in range(self.num_layers):
      last = layer == self.num_layers - 1
      x = Block(
          num_heads=self.num_heads, mlp_factor=self.mlp_factor,
          positions=self.positions, norm=self.norm,
          implementation=self.implementation, dtype=self.dtype,
          param_dtype=self.param_dtype, precision=self.precision,
          kernel_init=self.kernel_init, bias_init=self.bias_init,
          name=f'layer_{layer}',
      )(x, positions, mask, read_at if last else None)
    return layer_norm('final_norm', self.param_dtype)(x)


class Block(nn.Module):
  """One layer: attention, then an MLP, each added to the residual stream.

  Attributes are as in `Decoder`.
  """

  num_heads: int
  mlp_factor: int = 4
  positions: str = 'none'
  norm: Norm = 'none'
  implementation: str | None = None
  dtype: Any = None
  param_dtype: Any = jnp.float32
  precision: jax.lax.PrecisionLike = None
  kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
  bias_init: nn.initializers.Initializer = nn.initializers.zeros

  @nn.compact
  def __call__(
      self,
      x: jax.Array,
      positions: jax.Array,
      mask: jax.Array | None = None,
      read_at: jax.Array | None = None,
  ) -> jax.Array:
    """Maps x [B, n, d] to [B, n, d], or to [B, m, d] with read_at [B, m]."""
    width, heads = x.shape[-1], (self.num_heads, x.shape[-1] // self.num_heads)

    def dense(name, rows, features, use_bias=False):
      # All tokens as rows of one matrix: with two batch axes, XLA's gradient of a
      # product is many times slower on a CPU.
      layer = nn.Dense(features, use_bias, name=name, **_dense_fields(self))
      flat = layer(rows.reshape(-1, rows.shape[-1]))
      return flat.reshape(*rows.shape[:-1], features)

    project = lambda name, rows: dense(name, rows, width).reshape(
        *rows.shape[:-1], *heads
    )
    z = layer_norm('attention_norm', self.param_dtype)(x)
    key, value = project('key', z), project('value', z)
    query_positions = positions
    if read_at is not None:
      take = lambda table: jnp.take_along_axis(table, read_at[..., None], axis=1)
      x, z = take(x), take(z)
      if mask is None:
        mask = jnp.arange(key.shape[1])[None, None] <= read_at[..., None]
      else:
        mask = take(jnp.broadcast_to(mask, (*key.shape[:2], key.shape[1])))
      query_positions = jnp.broadcast_to(positions, key.shape[:2])
      query_positions = jnp.take_along_axis(query_positions, read_at, axis=1)
    query = project('query', z)
    slopes = None
    if self.positions in ('rope', 'random'):
      query = encodings.rotate(query, query_positions)
      key = encodings.rotate(key, positions)
    elif self.positions == 'alibi':
      slopes = encodings.alibi_slopes(self.num_heads)
    probed = self.is_mutable_collection('intermediates')
    if mask is None and not probed:
      output = causal_attention(
          query, key, value, slopes=slopes, positions=positions,
          implementation=self.implementation,
      )
    else:
      if mask is None:
        mask = jnp.tri(x.shape[1], dtype=bool)
      bias = None if slopes is None else Alibi(slopes, query_positions, positions)
      output, logits, weights = masked_attention(query, key, value, mask, bias)
      self.sow('intermediates', 'attention_logits', logits)
      self.sow('intermediates', 'attention_weights', weights)
    output = norm_within(self, self.norm, param_dtype=self.param_dtype)(output)
    x = x + dense('output', output.reshape(x.shape), width)
    z = layer_norm('mlp_norm', self.param_dtype)(x)
    hidden = nn.gelu(dense('mlp_hidden', z, self.mlp_factor * width, use_bias=True))
    return x + dense('mlp_output', hidden, width, use_bias=True)


class SequenceRegressor(nn.Module):
  """Maps the hidden states of chosen tokens to one number each, by a two-layer MLP.

  Attributes:
    decoder: the `Decoder`.
  """

  decoder: Decoder

  @nn.compact
  def __call__(
      self,
      tokens: jax.Array,
      read_at: jax.Array,
      positions: jax.Array | None = None,
      mask: jax.Array | None = None,
  ) -> jax.Array:
    """Returns one number for each token that `read_at` chooses.

    Args:
      tokens: [B, n], as in `Decoder`.
      read_at: [m] or [B, m], as in `Decoder`. One token per sequence is [B, 1]; a shape
        of [B] would be read as [m].
      positions: as in `Decoder`.
      mask: as in `Decoder`.

    Returns:
      [B, m], float32 or wider.

    Raises:
      ValueError: as `Decoder`.
    """
    hidden = self.decoder(tokens, positions, mask, read_at)
    fields = _dense_fields(self.decoder) | {'dtype': None}
    hidden = nn.gelu(nn.Dense(hidden.shape[-1], name='head_hidden', **fields)(hidden))
    return nn.Dense(1, name='head_output', **fields)(hidden)[..., 0]


def layer_norm(name: str, param_dtype: Any = jnp.float32) -> nn.LayerNorm:
  """Returns LayerNorm that computes the variance in two passes, in float32 or wider."""
  return nn.LayerNorm(epsilon=1e-5, param_dtype=param_dtype, use_fast_variance=False,
                      name=name)


def _dense_fields(module: Any) -> dict[str, Any]:
  """Returns the fields of a decoder or block that its `nn.Dense` layers share."""
  names = ('dtype', 'param_dtype', 'precision', 'kernel_init', 'bias_init')
  return {name: getattr(module, name) for name in names}


def _check(decoder: Decoder, tokens: jax.Array, positions: jax.Array | None) -> None:
  kind = decoder.positions
  if kind not in encodings.KINDS:
    raise ValueError(f'positions must be one of {", ".join(encodings.KINDS)}: {kind!r}')
  if decoder.num_heads < 1 or decoder.width % decoder.num_heads:
    raise ValueError(
        f'{decoder.num_heads} heads do not divide a width of {decoder.width}'
    )
  if decoder.num_layers < 1 or decoder.vocab_size < 1:
    raise ValueError('num_layers and vocab_size must be positive: '
                     f'{decoder.num_layers}, {decoder.vocab_size}')
  if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
    raise ValueError(f'tokens must be integers [B, n]: {tokens.dtype} {tokens.shape}')
  check_places('tokens', tokens, decoder.vocab_size)
  if positions is not None and jnp.shape(positions) not in (
      tokens.shape, tokens.shape[1:]):
    raise ValueError(f'positions {jnp.shape(positions)} do not fit tokens '
                     f'{tokens.shape}')
  if kind == 'learned' and positions is not None:
    check_places('positions', positions, decoder.max_positions)
  bounded = kind in ('learned', 'random') and positions is None
  if bounded and tokens.shape[1] > decoder.max_positions:
    raise ValueError(
        f'{tokens.shape[1]} tokens, but max_positions is {decoder.max_positions}'
    )
