"""How well counts of tokens predict a text: what a trained model has to beat.

From counts in the training text, a token b after a token a has the probability

  p(b | a) = (c(a, b) + k(a) p(b)) / (c(a) + k(a)),   p(b) = (c(b) + 1) / (N + V),

where c(a, b) counts the pair, c(a) = Σ_b c(a, b), and k(a) is the number of different
tokens that follow a (Witten and Bell 1991, method C, interpolated). A model that does
no better uses at most the token before.
"""

import numpy as np
from numpy.typing import ArrayLike


def pair_entropy(train: ArrayLike, held_out: ArrayLike, vocab_size: int) -> float:
  """Returns the mean of −ln p(b | a) over the tokens of a text but the first, nats.

  Args:
    train: [N] integers in 0..V−1, the tokens that are counted.
    held_out: [n] integers in 0..V−1, at least two, the text.
    vocab_size: V.
  """
  train, held_out = (np.asarray(x, np.int64) for x in (train, held_out))
  single = (np.bincount(train, minlength=vocab_size) + 1) / (len(train) + vocab_size)
  pairs, counts = np.unique(_pairs(train, vocab_size), return_counts=True)
  # c(a) and k(a), [V].
  before = pairs // vocab_size
  total = np.bincount(before, counts, minlength=vocab_size)
  kinds = np.bincount(before, minlength=vocab_size)
  asked = _pairs(held_out, vocab_size)
  place = np.searchsorted(pairs, asked).clip(max=len(pairs) - 1)
  found = np.where(pairs[place] == asked, counts[place], 0)  # c(a, b)
  first, second = np.divmod(asked, vocab_size)
  # After a token that training has not, p(b).
  kinds = np.where(total, kinds, 1)
  p = (found + kinds[first] * single[second]) / (total + kinds)[first]
  return float(-np.log(p).mean())


def _pairs(tokens, vocab_size):
  """Returns a number for each two neighbouring tokens, [n − 1]."""
  return tokens[:-1] * vocab_size + tokens[1:]
