"""The recency bias of LayerNorm under a causal mask, in closed form.

The stack (`vvlen.models.causal_stack`) has no parameters. With Z = LN(X), one layer is

  S = Z Zᵀ / √d,   A = softmax of S over keys j ≤ i,   X' = A Z + c X.

For tokens that all have cosine α with each other, as tokens drawn at random do in the
limit of large d, S is known. With r = √d, E = eʳ, F = e^{αr}, D_i = E + (i − 1) F:

  layer 1   S_ii = r,   S_ij = α r
  layer 2   S_ii = r,   S_ij = r M_ij / √(M_ii M_jj)   for j < i
            M_ij = α (1 + c)² + (1 − α)(1 + c) F / D_i
            M_jj = c² + 2cα + α + (1 − α)(2cE + F) / D_j + (1 − α)(E² − EF) / D_j²

M_ij does not depend on j, and M_jj falls with D_j, so S_ij rises with j: recent tokens
are favoured. What depends on j is h(j) = M_jj^{−1/2} (arXiv 2509.21042, Theorem 1 and
Propositions 2 and 3). Without LayerNorm, with b = 1/√d, there is no such bias in the
limit (Proposition 1, α = c = 0); at finite d the mean logits rise in j very slightly:

  layer 2   S_ii = b (e^{2b} + i − 1) / (eᵇ + i − 1)²,   S_ij = b / (eᵇ + i − 1)

Two warnings. These are not the means of a simulation: logits of random tokens have a
standard deviation of about 1 − α² at any width, and a mean of exponentials is not the
exponential of a mean. (At α = 0, d = 64, layer 2: 0.0027 here, 0.0043 simulated.) And c
is in units of Z here, but the stack adds the raw X; `residual_in_units_of_z` converts.

Everything is numpy, float64. Scores above the diagonal are 0.
"""

import math
import numbers

import numpy as np
from scipy import special


def layer1_scores(
    num_tokens: int, width: int, anisotropy: float = 0.0, layer_norm: bool = True
) -> np.ndarray:
  """Returns the limit of the logits of layer 1.

  Args:
    num_tokens: n.
    width: d.
    anisotropy: α in [0, 1), the cosine of any two tokens.
    layer_norm: False: logits are products of the raw tokens, 1 / (1 − α) / √d on the
      diagonal and α / (1 − α) / √d below it.

  Returns:
    [n, n], 0 above the diagonal.

  Raises:
    ValueError: on sizes that are not positive or α outside [0, 1).
  """
  check(num_tokens, width, anisotropy)
  scale = math.sqrt(width)
  if not layer_norm:
    scale = 1 / (1 - anisotropy) / scale
  scores = np.full((num_tokens, num_tokens), anisotropy * scale)
  np.fill_diagonal(scores, scale)
  return np.tril(scores)


def layer2_scores(
    num_tokens: int,
    width: int,
    anisotropy: float = 0.0,
    residual: float = 0.0,
    layer_norm: bool = True,
) -> np.ndarray:
  """Returns the limit of the logits of layer 2.

  Args:
    num_tokens: n.
    width: d.
    anisotropy: α in [0, 1).
    residual: c, in units of Z. For a stack that adds c times the raw X, pass
      `residual_in_units_of_z(c, width, anisotropy)`.
    layer_norm: False supports only α = c = 0.

  Returns:
    [n, n], 0 above the diagonal.

  Raises:
    ValueError: on sizes that are not positive, α outside [0, 1), a residual that is
      not finite, or α or c other than 0 without LayerNorm.
  """
  check(num_tokens, width, anisotropy, residual)
  before = np.arange(num_tokens)  # i − 1
  if not layer_norm:
    if anisotropy or residual:
      raise ValueError(
          'without layer_norm, layer 2 supports only anisotropy = residual = 0: '
          f'{anisotropy}, {residual}'
      )
    b = 1 / math.sqrt(width)
    total = math.exp(b) + before
    scores = np.repeat((b / total)[:, None], num_tokens, axis=1)
    np.fill_diagonal(scores, b * (math.exp(2 * b) + before) / total**2)
    return np.tril(scores)
  _, other = _weights(num_tokens, width, anisotropy)
  alpha, c, r = anisotropy, residual, math.sqrt(width)
  across = alpha * (1 + c) ** 2 + (1 - alpha) * (1 + c) * other  # M_ij [i]
  root = h(num_tokens, width, anisotropy, residual)
  scores = r * (across * root)[:, None] * root
  np.fill_diagonal(scores, r)
  return np.tril(scores)


def h(
    num_tokens: int, width: int, anisotropy: float = 0.0, residual: float = 0.0
) -> np.ndarray:
  """Returns M_jj^{−1/2}, the factor of the logits of layer 2 that depends on key j.

  Args:
    num_tokens: n.
    width: d.
    anisotropy: α in [0, 1).
    residual: c, in units of Z, as in Figure 5 of the paper.

  Returns:
    [n], for j = 1..n. It rises with j if c ≥ 0; infinite at j = 1 if c = −1.

  Raises:
    ValueError: on sizes that are not positive, α outside [0, 1), or a residual that is
      not finite.
  """
  check(num_tokens, width, anisotropy, residual)
  own, other = _weights(num_tokens, width, anisotropy)
  alpha, c = anisotropy, residual
  square = (
      c**2 + 2 * c * alpha + alpha
      + (1 - alpha) * (2 * c * own + other)
      + (1 - alpha) * own * (own - other)
  )
  return 1 / np.sqrt(square)


def residual_in_units_of_z(residual: float, width: int, anisotropy: float) -> float:
  """Returns c / √(d (1 − α)): the factor c of the raw input, converted to units of Z.

  A token has the squared norm 1 / (1 − α), and its row of Z has d. So c = 1 in the
  simulation is 0.1768 at d = 64, α = 0.5. This holds in layer 1; for deeper layers,
  where the stream has grown, use `gram_recursion`.

  Args:
    residual: c, times the raw stream.
    width: d.
    anisotropy: α in [0, 1).

  Raises:
    ValueError: on a width that is not positive, α outside [0, 1), or a residual that
      is not finite.
  """
  check(1, width, anisotropy, residual)
  return residual / math.sqrt(width * (1 - anisotropy))


def exact_mean_layer1_score(width: int, anisotropy: float) -> float:
  """Returns E[S_ij], i ≠ j, of layer 1 with LayerNorm at a finite width.

    E[S_ij] = r α (2/ν) (Γ((ν+1)/2) / Γ(ν/2))² ₂F₁(½, ½; (ν+2)/2; α²),   ν = d − 1

  This is r = √d times the mean of the sample correlation, with ν degrees of freedom, of
  two normal variables whose correlation is α.

  Args:
    width: d, at least 2.
    anisotropy: α in [0, 1).

  Raises:
    ValueError: on a width below 2 or α outside [0, 1).
  """
  check(1, width, anisotropy)
  if width < 2:
    raise ValueError(f'LayerNorm needs a width of at least 2: {width}')
  freedom = width - 1
  ratio = special.poch(freedom / 2, 0.5)  # Γ((ν+1)/2) / Γ(ν/2), without cancelling
  series = special.hyp2f1(0.5, 0.5, (freedom + 2) / 2, anisotropy**2)
  return float(math.sqrt(width) * anisotropy * 2 / freedom * ratio**2 * series)


def gram_recursion(
    gram: np.ndarray,
    width: int,
    num_layers: int,
    layer_norm: bool = True,
    residual: float = 0.0,
) -> np.ndarray:
  """Returns the logits of any input, at any depth, from its Gram matrix.

  The stack depends on its input only through products of rows. With G = X Xᵀ,

    Ĝ_ij = d G_ij / √(G_ii G_jj),   S = Ĝ / √d,   A = causal softmax of S,
    B = A + c diag(√(G_ii / d)),    G' = B Ĝ Bᵀ;

  without LayerNorm Ĝ = G and B = A + c I. Exact to rounding.

  Args:
    gram: G [..., n, n], symmetric. With LayerNorm, G is that of the rows of X minus
      each row's mean. The limit for the simulation's tokens is 1 / (1 − α) on the
      diagonal and α / (1 − α) off it.
    width: d.
    num_layers: how many layers.
    layer_norm: whether each layer normalizes.
    residual: c, times the raw stream, as in the stack.

  Returns:
    [..., num_layers, n, n], 0 above the diagonal. G must have no negative eigenvalue,
    as no Gram matrix has one; this is not checked.

  Raises:
    ValueError: on a matrix that is not square, symmetric and finite or, with
      LayerNorm, has a diagonal that is not positive, on sizes that are not positive,
      and on a residual that is not finite.
  """
  gram = np.asarray(gram, np.float64)
  if gram.ndim < 2 or gram.shape[-1] != gram.shape[-2]:
    raise ValueError(f'gram must be square, [..., n, n]: {gram.shape}')
  check(gram.shape[-1], width, 0.0, residual)
  check_size('num_layers', num_layers)
  if not np.isfinite(gram).all():
    raise ValueError('gram has entries that are not finite')
  if not np.allclose(gram, np.swapaxes(gram, -1, -2), rtol=1e-9, atol=1e-12):
    raise ValueError('gram must be symmetric')
  diagonal = lambda g: np.diagonal(g, axis1=-2, axis2=-1)
  if layer_norm and not (diagonal(gram) > 0).all():
    raise ValueError('LayerNorm of a row of zeros: the diagonal must be positive')
  causal = np.tri(gram.shape[-1], dtype=bool)
  layers = []
  for _ in range(num_layers):
    own = residual * np.eye(gram.shape[-1])
    if layer_norm:
      norm = np.sqrt(diagonal(gram) / width)  # of a row of X over that of Z
      gram = gram / norm[..., None] / norm[..., None, :]
      own = own * norm[..., None]
    scores = gram / math.sqrt(width)
    mixing = special.softmax(np.where(causal, scores, -np.inf), axis=-1) + own
    gram = mixing @ gram @ np.swapaxes(mixing, -1, -2)
    layers.append(np.where(causal, scores, 0.0))
  return np.stack(layers, axis=-3)


def _weights(num_tokens: int, width: int, anisotropy: float) -> tuple[np.ndarray, ...]:
  """Returns the attention weights of layer 1: E / D_i and F / D_i, each [n].

  Numerator and denominator are divided by E, which overflows from d = 503,800 on.
  """
  ratio = math.exp((anisotropy - 1) * math.sqrt(width))  # F / E
  total = 1 + np.arange(num_tokens) * ratio
  return 1 / total, ratio / total


def check(
    num_tokens: int, width: int, anisotropy: float, residual: float = 0.0
) -> None:
  """Raises ValueError on sizes that are not positive, α outside [0, 1), or a bad c."""
  check_size('num_tokens', num_tokens)
  check_size('width', width)
  for name, value in (('anisotropy', anisotropy), ('residual', residual)):
    try:
      float(value)
    except (TypeError, ValueError) as error:
      raise ValueError(f'{name} must be a number: {value!r}') from error
  if not 0 <= anisotropy < 1:
    raise ValueError(
        f'anisotropy must lie in [0, 1), at 1 all tokens are equal: {anisotropy}'
    )
  if not math.isfinite(residual):
    raise ValueError(f'residual must be finite: {residual}')


def check_size(name: str, value: int) -> None:
  """Raises ValueError unless the value is a positive whole number."""
  if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
    raise ValueError(f'{name} must be a positive whole number: {value!r}')
