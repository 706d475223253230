"""Table 1 of arXiv 2506.11769 as printed. Runs without JAX.

Seven models of 6 to 20 billion parameters, one number each. The paper does not say on
which scale misalignment is measured; it cannot be the symmetric cross-entropy in nats.
Not all of the correlations that it prints are those of its rows.
"""

from collections.abc import Mapping

import numpy as np

# Model -> training loss, misalignment, log perplexity at 16k, LongBench-E.
ROWS: Mapping[str, tuple[float, float, float, float]] = {
    'GPT-J-6B': (2.1, 3.4, 9.5, 7.8),
    'GPT-NeoX-20B': (2.3, 3.2, 9.4, 9.7),
    'Llama2-7B': (1.9, 3.4, 9.4, 8.9),
    'RandomPos': (2.0, 2.8, 8.2, 9.2),
    'YaRN-8k': (2.0, 2.6, 3.8, 21.2),
    'Qwen-7B-8k': (1.7, 2.8, 3.2, 24.2),
    'CLEX-4K': (1.9, 2.4, 1.8, 32.7),
}
# Correlations as printed: (predictor, outcome) -> r.
PRINTED: Mapping[tuple[str, str], float] = {
    ('training loss', 'nll'): 0.62, ('training loss', 'score'): -0.55,
    ('misalignment', 'nll'): 0.85, ('misalignment', 'score'): -0.85,
}


def columns() -> dict[str, np.ndarray]:
  """Returns {name: [7]}: training loss, misalignment, nll and score."""
  names = ('training loss', 'misalignment', 'nll', 'score')
  return dict(zip(names, np.array([*ROWS.values()]).T, strict=True))
