import numpy as np
import pytest

from experiments.benchmarks import numpy_recency, recency_simulation
from vvlen.simulation import simulate_recency

SETTINGS = dict(num_tokens=5, width=12, num_layers=3, anisotropy=0.5)


@pytest.mark.parametrize('dtype', numpy_recency.DTYPES)
@pytest.mark.parametrize('sampler', ['reduced', 'direct'])
def test_numpy_agrees_with_vvlen(sampler, dtype, key):
  rng = np.random.default_rng(0)
  parts = [
      numpy_recency.simulate(
          rng, sampler=sampler, num_simulations=100, chunk=60, dtype=dtype, **SETTINGS
      )
      for _ in range(40)
  ]
  expected = simulate_recency(key, sampler=sampler, num_simulations=4000, **SETTINGS)
  for name in numpy_recency.Recency._fields:
    found = np.array([getattr(part, name) for part in parts])
    if name == 'standard_error':
      found = np.sqrt(np.square(found).mean(0) / len(parts))
      # Sums of squares of equal scores, in float32, do not tell that they are equal.
      np.testing.assert_allclose(found, expected.standard_error, rtol=0.2, atol=1e-4)
      continue
    # Both have that error. Own scores have none, but for rounding.
    error = np.sqrt(2) * found.std(0, ddof=1) / np.sqrt(len(parts))
    difference = np.abs(found.mean(0) - getattr(expected, name))
    assert (difference <= 5 * error + 1e-5).all(), name


def test_counts_of_rises_are_those_of_a_loop():
  scores = np.tril(np.random.default_rng(1).standard_normal((7, 4, 4)))
  own = sum(
      s[i, i] > s[i, k] for s in scores for i in range(4) for k in range(i)
  )
  earlier = sum(
      s[i, j] > s[i, k]
      for s in scores for i in range(4) for j in range(i) for k in range(j)
  )
  assert numpy_recency.count_rises(scores) == (own, earlier)


def _clock():
  """Reads of a clock: a run of the fourth setting takes half a second, others one."""
  now = 0.0
  for run in range(3 * 12):
    yield now
    now += 0.5 if run // 3 == 3 else 1.0
    yield now


def test_the_fastest_settings_are_found(monkeypatch):
  monkeypatch.setattr(numpy_recency.time, 'perf_counter', _clock().__next__)
  about = numpy_recency.fastest(lambda **settings: None)
  assert (about['chunk'], about['dtype']) == (500, 'float32')
  times = about['microseconds_per_simulation']
  assert times['float32'] == {'200': 50.0, '500': 25.0, '1000': 50.0, '2000': 50.0,
                              '5000': 50.0, '20000': 50.0}


def test_floors_count_triangles():
  # A product of two lower triangles, entry by entry.
  n = recency_simulation.NUM_TOKENS
  entries = sum(i - k + 1 for i in range(n) for k in range(i + 1))
  floors = recency_simulation.floors('reduced')
  layers = recency_simulation.NUM_LAYERS
  assert floors['multiply_adds'] == (2 * layers + 1) * entries
  assert floors['comparisons'] == layers * sum(
      j for i in range(n) for j in range(i + 1)
  )
  # A whole matrix has n³ products, a pair of triangles about a sixth of them.
  assert floors['dense_multiply_adds'] == (2 * layers + 1) * n**3
  direct = recency_simulation.floors('direct')
  width = recency_simulation.WIDTH
  assert direct['normals'] == (n + 1) * width  # of which one token's is shared
  assert direct['comparisons'] == floors['comparisons']
