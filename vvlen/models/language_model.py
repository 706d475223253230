"""A language model: a decoder and an output embedding.

Axes: B sequences, n tokens, V words, d width.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from vvlen.models.decoder import Decoder


class LanguageModel(nn.Module):
  """Predicts the next token at each position.

  Attributes:
    decoder: the `Decoder`, with V words. The entries of the output embedding [V, d]
      are initialized with a variance of 1/d, so that initial logits have a variance
      of 1.
  """

  decoder: Decoder

  def setup(self):
    """Creates the output embedding, which `hidden` does not use."""
    self.output_embedding = self.param(
        'output_embedding', nn.initializers.normal(self.decoder.width**-0.5),
        (self.decoder.vocab_size, self.decoder.width), self.decoder.param_dtype,
    )

  def __call__(
      self, tokens: jax.Array, positions: jax.Array | None = None
  ) -> jax.Array:
    """Maps tokens [B, n] to logits [B, n, V], float32 or wider."""
    hidden = self.hidden(tokens, positions)
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    return jnp.einsum(
        'bnd,vd->bnv', hidden, self.output_embedding.astype(hidden.dtype),
        preferred_element_type=wide, precision=self.decoder.precision,
    )

  def hidden(
      self, tokens: jax.Array, positions: jax.Array | None = None
  ) -> jax.Array:
    """Maps tokens [B, n] to hidden states [B, n, d], for `vvlen.objectives.chunked`.

    They have the decoder's `dtype`, if that is given. The logits are their product with
    the transpose of the parameter `output_embedding`, cast to the same dtype.
    """
    hidden = self.decoder(tokens, positions)
    return hidden.astype(self.decoder.dtype or hidden.dtype)
