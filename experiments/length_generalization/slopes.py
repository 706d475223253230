"""How fast a quantity falls at the longest lengths. Runs without JAX."""

from collections.abc import Sequence

import numpy as np


def slopes_at_the_end(
    lengths: Sequence[int], values: np.ndarray
) -> tuple[list[float], int]:
  """Fits v ∝ N^slope to each seed, from a sixteenth of the longest length on.

  Args:
    lengths: N, ascending.
    values: [seeds, lengths], v. A seed is left out if its value at any length is not
      finite and positive.

  Returns:
    The slopes of the least-squares lines of ln v against ln N, [] if only one length is
    used; and the shortest length that is used.
  """
  last = [n for n in lengths if n >= lengths[-1] / 16]
  slopes = [
      float(np.polyfit(np.log(last), np.log(v[-len(last):]), 1)[0])
      for v in values if len(last) > 1 and np.isfinite(v).all() and (v > 0).all()
  ]
  return slopes, last[0]
