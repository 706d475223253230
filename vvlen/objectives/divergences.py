"""How far two distributions over the vocabulary lie apart, from their logits.

With p and q the softmax of the logits, in nats:

  SCE = −Σ q log p − Σ p log q = H(p) + H(q) + KL(p‖q) + KL(q‖p)

Its gradient in the logits of p, (p − q) − p ⊙ (log q − ⟨p, log q⟩), is not zero at p =
q: as a loss it also lowers entropy. The symmetric KL and Jensen–Shannon divergences do
not. Logits narrower than float32 are computed in float32, and float64 stays float64.
"""

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp

from vvlen.objectives.cross_entropy import shifted

# (logits of p [..., V], logits of q [..., V]) -> [...]
Divergence = Callable[[jax.Array, jax.Array], jax.Array]


def of_rows(
    divergence: Divergence, logits_p: jax.Array, logits_q: jax.Array
) -> jax.Array:
  """Returns the divergence of each row of logits [..., V], [...].

  Raises:
    ValueError: if `divergence` returns another shape, such as a sum over rows.
  """
  values = divergence(logits_p, logits_q)
  if jnp.shape(values) != logits_p.shape[:-1]:
    raise ValueError('divergence must map logits [..., V] to [...]: '
                     f'{logits_p.shape} to {jnp.shape(values)}')
  return values


def symmetric_cross_entropy(
    logits_p: jax.Array, logits_q: jax.Array
) -> jax.Array:
  """Returns −Σ q log p − Σ p log q of logits [..., V], [...] in nats."""
  return _symmetric_cross_entropy(_wide(logits_p), _wide(logits_q))


@jax.custom_jvp
def _symmetric_cross_entropy(logits_p, logits_q):
  return _cross_entropies(logits_p, logits_q)[0]


@_symmetric_cross_entropy.defjvp
def _(primals, tangents):
  # ∂/∂z_p = p (1 + ⟨p, z_q⟩ − z_q) − q. This is (p − q) − p ⊙ (log q − ⟨p, log q⟩), as
  # log q differs from z_q by a constant, which cancels.
  value, p, q, p_dot, q_dot, shifted_p, shifted_q = _cross_entropies(*primals)
  of_p = p * (1 + p_dot - shifted_q) - q
  of_q = q * (1 + q_dot - shifted_p) - p
  return value, (of_p * tangents[0]).sum(-1) + (of_q * tangents[1]).sum(-1)


def _cross_entropies(logits_p, logits_q):
  """Returns SCE, p, q, both products and shifted z.

  SCE = lse_p + lse_q − ⟨p, z_q⟩ − ⟨q, z_p⟩.
  """
  (z_p, total_p), (z_q, total_q) = shifted(logits_p), shifted(logits_q)
  p, q = jnp.exp(z_p - total_p), jnp.exp(z_q - total_q)
  p_dot = (p * z_q).sum(-1, keepdims=True)
  q_dot = (q * z_p).sum(-1, keepdims=True)
  sce = (total_p + total_q - p_dot - q_dot)[..., 0]
  return sce, p, q, p_dot, q_dot, z_p, z_q


def stop_gradient_cross_entropy(
    logits_p: jax.Array, logits_q: jax.Array
) -> jax.Array:
  """Returns SCE of logits [..., V], with no gradient in p, the longer context."""
  return symmetric_cross_entropy(jax.lax.stop_gradient(logits_p), logits_q)


def symmetric_kl(logits_p: jax.Array, logits_q: jax.Array) -> jax.Array:
  """Returns KL(p‖q) + KL(q‖p) of logits [..., V], [...] in nats."""
  log_p, log_q = log_softmax(logits_p), log_softmax(logits_q)
  return ((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)).sum(-1)


def entropies(logits_p: jax.Array, logits_q: jax.Array) -> jax.Array:
  """Returns H(p) + H(q) of logits [..., V], [...] in nats.

  This is no divergence, but the part of SCE beyond the symmetric KL: training on each
  part alone tells their effects apart.
  """
  log_p, log_q = log_softmax(logits_p), log_softmax(logits_q)
  return -(jnp.exp(log_p) * log_p + jnp.exp(log_q) * log_q).sum(-1)


def jensen_shannon(logits_p: jax.Array, logits_q: jax.Array) -> jax.Array:
  """Returns (KL(p‖m) + KL(q‖m))/2, m = (p + q)/2, of logits [..., V], in nats."""
  log_p, log_q = log_softmax(logits_p), log_softmax(logits_q)
  log_m = jnp.logaddexp(log_p, log_q) - math.log(2)
  p, q = jnp.exp(log_p), jnp.exp(log_q)
  return (p * (log_p - log_m) + q * (log_q - log_m)).sum(-1) / 2


def log_softmax(logits: jax.Array) -> jax.Array:
  """Returns log softmax of logits [..., V], float32 or wider."""
  return jax.nn.log_softmax(_wide(logits))


def _wide(logits: jax.Array) -> jax.Array:
  logits = jnp.asarray(logits)
  return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
