"""A causal transformer decoder, pre-LN, for bits and for text.

  x = E[token] (+ position)
  x = x + W_O norm(attention(LN(x))),   x = x + W_2 GELU(W_1 LN(x))   in each layer
  hidden = LN(x)

The norm right after attention (`vvlen.models.norm`) is of each head's output, with one
scale and bias for all heads, so that the ideas of the three papers combine: a norm,
positions, and an objective on what the decoder returns. E has unit variance, so that
sinusoidal positions, of a variance of 1/2, neither vanish beside it nor hide it.

Axes: B sequences, n tokens, m tokens that are read, d width, h heads.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models import positions as encodings
from vvlen.models.embedding import check_places, rows_of
from vvlen.models.kernels.causal import causal_attention
from vvlen.models.kernels.dense import Alibi, masked_attention
from vvlen.models.norm import PostAttentionNorm


class Decoder(nn.Module):
  """Maps tokens to hidden states, from each of which its next token is to be told.

  Every parameter has a name of its own, so models that differ in `positions` or `norm`
  draw the same initial weights from the same key.

  Attributes:
    vocab_size: V.
    num_layers: how many layers.
    width: d.
    num_heads: h, a divisor of d.
    mlp_factor: the MLP's hidden layer is so many times d.
    positions: of `vvlen.models.positions.KINDS`.
    max_positions: rows of the learned table, or positions that 'random' draws from.
      Rows of the table beyond the training lengths stay as they were drawn.
    norm: 'none', 'standardize' or 'layer_norm', right after attention, before W_O.
    implementation: of `vvlen.models.kernels.causal`; None chooses: the fused kernels
      of GPUs and TPUs are for bfloat16 and no ALiBi.
    dtype: of the matrix products; None follows the parameters, which are float32.
      Norms, softmax and sums over the stream are float32.

  Under a mesh whose axes are Explicit call it through jax.sharding.auto_axes.
  """

  vocab_size: int
  num_layers: int = 2
  width: int = 64
  num_heads: int = 4
  mlp_factor: int = 4
  positions: str = 'none'
  max_positions: int = 2048
  norm: str = 'none'
  implementation: str | None = None
  dtype: Any = None

  @nn.compact
  def __call__(
      self,
      tokens: jax.Array,
      positions: jax.Array | None = None,
      mask: jax.Array | None = None,
      read_at: jax.Array | None = None,
  ) -> jax.Array:
    """Returns hidden states.

    Sows `attention_logits` and `attention_weights` [B, h, n, n] of each layer, with
    `read_at` [B, h, m, n] of the last, into `intermediates` where these are mutable;
    attention is then not memory-efficient.

    Args:
      tokens: [B, n] int32. What follows a token does not change its hidden state, so
        sequences padded at the end need no mask. One that is not in 0..V − 1 makes its
        sequence nan; where it is concrete, it is an error.
      positions: [n] or [B, n]; 0..n − 1 if None, or drawn by the PRNG `positions` where
        they are random, the same for all sequences. With a learned table they are
        checked as tokens are.
      mask: [n, n] or [B, n, n] bool, True where a row attends to a column. None:
        causal. With a mask attention is not memory-efficient.
      read_at: [m] or [B, m], the places of the tokens whose states are wanted, from the
        end where negative: the last layer computes no others. None: all.

    Returns:
      [B, n, d], or [B, m, d] with `read_at`; float32 or wider.

    Raises:
      ValueError: on unknown positions or norm, heads that do not divide the width,
        no layer, positions of another shape, more tokens than there are positions, or
        tokens outside the vocabulary.
    """
    _check(self, tokens, positions)
    batch, length = tokens.shape
    embedding = self.param('embedding', nn.initializers.normal(1.0),
                           (self.vocab_size, self.width), jnp.float32)
    x = rows_of(embedding, tokens)
    if positions is None:
      positions = jnp.arange(length)
      if self.positions == 'random':
        positions = encodings.random_positions(
            self.make_rng('positions'), length, self.max_positions
        )
    if self.positions == 'learned':
      table = self.param('position_embedding', nn.initializers.normal(1.0),
                         (self.max_positions, self.width), jnp.float32)
      x = x + jnp.broadcast_to(rows_of(table, positions), x.shape)
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
          positions=self.positions, norm=self.norm, dtype=self.dtype,
          implementation=self.implementation, name=f'layer_{layer}',
      )(x, positions, mask, read_at if last else None)
    return layer_norm('final_norm')(x)


class Block(nn.Module):
  """One layer: attention, then an MLP, each added to the stream.

  Attributes:
    num_heads, mlp_factor, positions, norm, implementation, dtype: as in `Decoder`.
  """

  num_heads: int
  mlp_factor: int = 4
  positions: str = 'none'
  norm: str = 'none'
  implementation: str | None = None
  dtype: Any = None

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
      # One matrix of all tokens: XLA's gradient of a product over two batch axes is
      # many times slower on a CPU.
      layer = nn.Dense(features, use_bias, dtype=self.dtype, name=name)
      flat = layer(rows.reshape(-1, rows.shape[-1]))
      return flat.reshape(*rows.shape[:-1], features)

    project = lambda name, rows: dense(name, rows, width).reshape(
        *rows.shape[:-1], *heads
    )
    z = layer_norm('attention_norm')(x)
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
    output = PostAttentionNorm(self.norm, name='norm')(output)
    x = x + dense('output', output.reshape(x.shape), width)
    z = layer_norm('mlp_norm')(x)
    hidden = nn.gelu(dense('mlp_hidden', z, self.mlp_factor * width, use_bias=True))
    return x + dense('mlp_output', hidden, width, use_bias=True)


class SequenceRegressor(nn.Module):
  """Reads one real number off the state of one token, by a two-layer MLP.

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
    """Maps tokens [B, n], read at the places [m] or [B, m], to numbers [B, m].

    Places [B], one a sequence, would be taken for [m]: read_at[:, None].

    Raises:
      ValueError: as `Decoder`.
    """
    hidden = self.decoder(tokens, positions, mask, read_at)
    hidden = nn.gelu(nn.Dense(hidden.shape[-1], name='head_hidden')(hidden))
    return nn.Dense(1, name='head_output')(hidden)[..., 0]


def layer_norm(name: str) -> nn.LayerNorm:
  """Returns LayerNorm with the variance in two passes, in float32."""
  return nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, name=name)


def _check(decoder: Decoder, tokens: jax.Array, positions: jax.Array | None) -> None:
  kind = decoder.positions
  if kind not in encodings.KINDS:
    raise ValueError(f'positions must be of {", ".join(encodings.KINDS)}: {kind!r}')
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
    raise ValueError(f'positions {jnp.shape(positions)} are not those of tokens '
                     f'{tokens.shape}')
  if kind == 'learned' and positions is not None:
    check_places('positions', positions, decoder.max_positions)
  bounded = kind in ('learned', 'random') and positions is None
  if bounded and tokens.shape[1] > decoder.max_positions:
    raise ValueError(
        f'{tokens.shape[1]} tokens, but max_positions {decoder.max_positions}'
    )
