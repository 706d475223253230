"""Next-token cross-entropy.

  CE = −(1 / B (L − 1)) Σ_{b, i < L−1} log softmax(z_{b,i})[x_{b,i+1}]

in nats, for logits z and tokens x of B windows of L tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np


def next_token_cross_entropy(logits: jax.Array, tokens: jax.Array) -> jax.Array:
  """Returns the mean cross-entropy of the L − 1 next tokens inside a window.

  Args:
    logits: [B, L, V]; dtypes narrower than float32 are computed in float32.
    tokens: [B, L], integers in 0..V−1. A target outside gives nan; outside jit, any
      token outside is an error.

  Returns:
    A scalar in nats, float32 or float64.

  Raises:
    ValueError: if shapes do not fit or a token is not in the vocabulary.
  """
  check_tokens(tokens, logits.shape)
  if logits.shape[1] < 2:
    raise ValueError(f'a window must have a next token: logits {logits.shape}')
  return token_cross_entropy(logits[:, :-1], tokens[:, 1:]).mean()


def token_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns −log softmax(z)[y] of each row, in nats.

  Args:
    logits: z [..., V]; dtypes narrower than float32 are computed in float32.
    targets: y [...], integers. A target that is not in 0..V−1 gives nan.

  Returns:
    [...], float32 or float64.
  """
  logits = jnp.asarray(logits)
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  # Indices of words may not fit into a narrow dtype: 256 is 0 in uint8.
  targets = jnp.asarray(targets)
  targets = targets.astype(jnp.promote_types(targets.dtype, jnp.int32))
  known = (targets >= 0) & (targets < logits.shape[-1])
  loss = _cross_entropy(logits, targets)
  return loss * jnp.where(known, 1.0, jnp.nan).astype(loss.dtype)


def shifted(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns z − max z and log Σ exp(z − max z), [..., V] and [..., 1].

  Softmax is exp of their difference. Logits may have a common offset far larger than
  their spread; rounding of that offset would then spoil z − log Σ exp z.
  """
  logits = logits - logits.max(axis=-1, keepdims=True)
  return logits, jnp.log(jnp.exp(logits).sum(axis=-1, keepdims=True))


@jax.custom_jvp
def _cross_entropy(logits, targets):
  logits, total = shifted(logits)
  return total[..., 0] - jnp.where(_hits(logits, targets), logits, 0.0).sum(-1)


@_cross_entropy.defjvp
def _(primals, tangents):
  # ∂/∂z = p − 1_y, written out, so that it shares log Σ exp z with other losses of z
  # and keeps no other array of the size of z.
  logits, targets = primals
  logits, total = shifted(logits)
  hits = _hits(logits, targets)
  chosen = jnp.where(hits, logits, 0.0).sum(-1)
  slope = jnp.exp(logits - total) - hits
  return total[..., 0] - chosen, (slope * tangents[0]).sum(-1)


def _hits(logits, targets):
  """Returns which word is y, [..., V] bool."""
  # By comparison, not by index, whose gradient would be a scatter into [..., V].
  words = jnp.expand_dims(jnp.arange(logits.shape[-1]), range(logits.ndim - 1))
  return words == targets[..., None]


def check_tokens(tokens: jax.Array, logits_shape: tuple[int, ...]) -> None:
  """Checks tokens against logits; their values only if they are known (not traced).

  Args:
    tokens: [B, L].
    logits_shape: (B, L, V).

  Raises:
    ValueError: if tokens are not integers, if their shape does not fit, or, outside
      jit, if one is not in 0..V−1.
  """
  if len(logits_shape) != 3 or tuple(tokens.shape) != tuple(logits_shape[:2]):
    raise ValueError(
        f'tokens [B, L] do not fit logits [B, L, V]: {tokens.shape}, {logits_shape}'
    )
  if not jnp.issubdtype(tokens.dtype, jnp.integer):
    raise ValueError(f'tokens must be integers: {tokens.dtype}')
  known = not isinstance(tokens, jax.core.Tracer)
  if known and getattr(tokens, 'is_fully_addressable', True) and tokens.size:
    values = np.asarray(tokens)
    lowest, highest = values.min(), values.max()
    if lowest < 0 or highest >= logits_shape[2]:
      raise ValueError(
          f'tokens {lowest}..{highest} are not in the vocabulary of {logits_shape[2]}'
      )
