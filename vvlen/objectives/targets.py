"""Loss and accuracy of answers whose target is a class or a distribution.

  class t:          loss −ln q_t,                 accuracy 1 if q_t is the largest, or 0
  distribution p:   loss Σ p ln(p / q), nats,     accuracy 1 − Σ |p − q| / 2

where q = softmax(logits). For a distribution, the accuracy is one minus the total
variation distance: the share of the probability that is on the right classes.

Axes: C classes; leading axes are those of the answers.
"""

import jax
import jax.numpy as jnp
import optax


def score(logits: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the loss and the accuracy of each answer, both [...].

  Args:
    logits: [..., C].
    target: [...] int, a class; or [..., C] float, a distribution.

  Returns:
    Loss, of the dtype of the logits, and accuracy, bool for a class.
  """
  if jnp.issubdtype(target.dtype, jnp.floating):
    loss = optax.losses.kl_divergence(jax.nn.log_softmax(logits), target)
    return loss, 1 - jnp.abs(target - jax.nn.softmax(logits)).sum(-1) / 2
  loss = optax.softmax_cross_entropy_with_integer_labels(logits, target)
  return loss, logits.argmax(-1) == target
