"""How far two distributions over the vocabulary lie apart, from their logits.

With p and q their softmax, in nats:

  SCE = −Σ q log p − Σ p log q = H(p) + H(q) + KL(p‖q) + KL(q‖p)

Its gradient in the logits of p, (p − q) − p ⊙ (log q − ⟨p, log q⟩), is not zero at p =
q: as a loss it also lowers entropy. The symmetric KL and Jensen–Shannon divergences do
not. Narrower logits are computed in float32, and float64 stays float64.
"""

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp

# (logits of p [..., V], logits of q [..., V]) -> [...]
Divergence = Callable[[jax.Array, jax.Array], jax.Array]


def symmetric_cross_entropy(
    logits_p: jax.Array, logits_q: jax.Array
) -> jax.Array:
  """Returns −Σ q log p − Σ p log q of logits [..., V], [...] in nats."""
  log_p, log_q = log_softmax(logits_p), log_softmax(logits_q)
  return -(jnp.exp(log_q) * log_p + jnp.exp(log_p) * log_q).sum(-1)


def stop_gradient_cross_entropy(
    logits_p: jax.Array, logits_q: jax.Array
) -> jax.Array:
  """Returns SCE of logits [..., V], without gradient in p, that of longer context."""
  return symmetric_cross_entropy(jax.lax.stop_gradient(logits_p), logits_q)


def symmetric_kl(logits_p: jax.Array, logits_q: jax.Array) -> jax.Array:
  """Returns KL(p‖q) + KL(q‖p) of logits [..., V], [...] in nats."""
  log_p, log_q = log_softmax(logits_p), log_softmax(logits_q)
  return ((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)).sum(-1)


def jensen_shannon(logits_p: jax.Array, logits_q: jax.Array) -> jax.Array:
  """Returns (KL(p‖m) + KL(q‖m))/2, m = (p + q)/2, of logits [..., V], in nats."""
  log_p, log_q = log_softmax(logits_p), log_softmax(logits_q)
  log_m = jnp.logaddexp(log_p, log_q) - math.log(2)
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  return (p * (log_p - log_m) + q * (log_q - log_m)).sum(-1) / 2


def log_softmax(logits: jax.Array) -> jax.Array:
  """Returns log softmax of logits [..., V], float32 or wider."""
  logits = jnp.asarray(logits)
  wide = jnp.promote_types(logits.dtype, jnp.float32)
  return jax.nn.log_softmax(logits.astype(wide))
