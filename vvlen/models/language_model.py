"""A language model: the decoder and its output embedding.

Axes: B sequences, n tokens, V words, d width.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models.decoder import Decoder


class LanguageModel(nn.Module):
  """Tells the next token of each token.

  Attributes:
    decoder: the `Decoder`. Its words are those of the output embedding, [V, d], whose
      entries have a variance of 1/d, so that logits begin with that of 1.
  """

  decoder: Decoder

  def setup(self):
    """Names the output embedding, which `hidden` leaves out."""
    self.output_embedding = self.param(
        'output_embedding', nn.initializers.normal(self.decoder.width**-0.5),
        (self.decoder.vocab_size, self.decoder.width), jnp.float32,
    )

  def __call__(
      self, tokens: jax.Array, positions: jax.Array | None = None
  ) -> jax.Array:
    """Maps tokens [B, n] to logits [B, n, V], float32 or wider."""
    hidden = self.hidden(tokens, positions)
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    return jnp.einsum(
        'bnd,vd->bnv', hidden, self.output_embedding.astype(hidden.dtype),
        preferred_element_type=wide,
    )

  def hidden(
      self, tokens: jax.Array, positions: jax.Array | None = None
  ) -> jax.Array:
    """Maps tokens [B, n] to hidden states [B, n, d], for `vvlen.objectives.chunked`.

    They are of the decoder's `dtype`, if that is given. The logits are these times the
    parameter `output_embedding`, cast to the same, transposed.
    """
    hidden = self.decoder(tokens, positions)
    return hidden.astype(self.decoder.dtype or hidden.dtype)
