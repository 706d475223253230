"""The tasks of counting, and reparameterized outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models.decoder import Decoder, SequenceRegressor
from vvlen.objectives import output_reparameterization as outrep
from vvlen.tasks import counting

N = 6


def _sample(key, batch_size=5000, **fields):
  fields = {'min_length': 1, 'max_length': N, 'task': 'sum', **fields}
  return jax.tree.map(np.asarray, counting.sample(key, batch_size=batch_size, **fields))


@pytest.mark.parametrize('task', counting.TASKS)
@pytest.mark.parametrize('counts', counting.COUNTS)
def test_strings_and_their_targets(key, task, counts):
  batch = _sample(key, 200, task=task, counts=counts)
  for tokens, end, mask, target in zip(*batch, strict=True):
    length = end - 1
    assert tokens[0] == counting.BOS and tokens[end] == counting.EOS
    bits = tokens[1:end]
    assert set(bits) <= {0, 1} and len(bits) == length
    assert mask.tolist() == [True] * (length + 2) + [False] * (N - length)
    expected = {'mean': bits.mean(), 'length': length, 'sum': bits.sum()}[task]
    np.testing.assert_allclose(target, expected, rtol=1e-6)


def test_lengths_and_fair_bits_are_uniform(key):
  batch = _sample(key, 20_000)
  counts = np.bincount(batch.end - 1, minlength=N + 1)[1:]
  error = 5 * (20_000 * (1 / N) * (1 - 1 / N)) ** 0.5
  np.testing.assert_allclose(counts, 20_000 / N, atol=error)
  # All strings of three bits are as likely.
  three = batch.tokens[batch.end == 4, 1:4] @ [4, 2, 1]
  share = np.bincount(three, minlength=8) / len(three)
  np.testing.assert_allclose(share, 1 / 8, atol=5 * (7 / 64 / len(three)) ** 0.5)


def _packed(key, num_rows, **fields):
  fields = {'min_length': 1, 'max_length': N, 'task': 'sum', **fields}
  packed = counting.sample_packed(key, num_rows=num_rows, **fields)
  return jax.tree.map(np.asarray, packed)


@pytest.mark.parametrize('task', counting.TASKS)
def test_packed_rows_hold_two_strings(key, task):
  packed = _packed(key, 100, min_length=2, task=task)
  for tokens, positions, mask, read_at, target in zip(*packed, strict=True):
    end = read_at[0] + 1
    assert 2 <= end - 2 <= N and len(tokens) == 2 + N + 4 == read_at[1] + 1
    for string, part in enumerate((slice(end), slice(end, None))):
      bits = tokens[part][1:-1]
      assert tokens[part][0] == counting.BOS and tokens[part][-1] == counting.EOS
      assert set(bits) <= {0, 1} and 2 <= len(bits) <= N
      assert positions[part].tolist() == [*range(len(bits) + 2)]
      expected = {'mean': bits.mean(), 'length': len(bits), 'sum': bits.sum()}[task]
      np.testing.assert_allclose(target[string], expected, rtol=1e-6)
      np.testing.assert_array_equal(mask[part, part], np.tri(len(bits) + 2, dtype=bool))
    assert not mask[:end, end:].any() and not mask[end:, :end].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    'positions', ['none', 'learned', 'sinusoidal', 'alibi', 'rope'])
def test_a_packed_string_is_answered_as_if_alone(key, positions):
  packed = _packed(key, 20, task='mean')
  model = SequenceRegressor(Decoder(
      counting.VOCAB_SIZE, width=16, positions=positions, max_positions=N + 2
  ))
  arguments = packed.tokens, packed.read_at, packed.positions, packed.mask
  params = jax.jit(model.init)(key, *arguments)
  answer = jax.jit(model.apply)(params, *arguments)
  assert answer.std() > 0.01
  # The same strings, padded.
  end = np.diff(packed.read_at, axis=1, prepend=-1).reshape(-1) - 1
  tokens = np.full((40, N + 2), counting.EOS)
  tokens[np.arange(N + 2) <= end[:, None]] = packed.tokens.reshape(-1)
  alone = jax.jit(model.apply)(params, tokens, end[:, None])
  np.testing.assert_allclose(answer.reshape(-1), alone[:, 0], atol=2e-6)


@pytest.mark.slow
def test_packed_strings_are_distributed_as_others(key):
  packed = _packed(key, 20_000, counts='uniform')
  length = np.diff(packed.read_at, axis=1, prepend=-1) - 2
  for string in range(2):
    counts = np.bincount(length[:, string], minlength=N + 1)[1:]
    error = 5 * (20_000 * (1 / N) * (1 - 1 / N)) ** 0.5
    np.testing.assert_allclose(counts, 20_000 / N, atol=error)
    ones = packed.target[length[:, string] == 4, string].astype(int)
    share = np.bincount(ones, minlength=5) / len(ones)
    np.testing.assert_allclose(share, 1 / 5, atol=5 * (4 / 25 / len(ones)) ** 0.5)
  # Their numbers of ones do not depend on each other but by their lengths.
  both = packed.target[length[:, 0] == 3]
  assert abs(np.corrcoef(both.T)[0, 1]) < 5 / len(both) ** 0.5
  fair = _packed(key, 20_000)
  share = fair.target.sum() / (20_000 * (N + 1))
  assert abs(share - 0.5) < 5 * 0.5 / (20_000 * (N + 1)) ** 0.5


def test_uniform_counts_and_orders(key):
  batch = _sample(key, 60_000, min_length=4, max_length=4, counts='uniform')
  ones = batch.tokens[:, 1:5].sum(1)
  share = np.bincount(ones, minlength=5) / len(ones)
  np.testing.assert_allclose(share, 1 / 5, atol=5 * (4 / 25 / len(ones)) ** 0.5)
  two = batch.tokens[ones == 2, 1:5] @ [8, 4, 2, 1]
  orders = np.unique(two, return_counts=True)[1] / len(two)
  assert len(orders) == 6
  np.testing.assert_allclose(orders, 1 / 6, atol=5 * (5 / 36 / len(two)) ** 0.5)


@pytest.mark.parametrize('counts', counting.COUNTS)
def test_probabilities_of_strings(counts):
  bits = counting.all_strings(5)
  assert len({tuple(row) for row in bits.tolist()}) == 32
  probability = counting.string_probability(bits, counts)
  np.testing.assert_allclose(probability.sum(), 1)
  if counts == 'uniform':
    by_count = np.bincount(bits.sum(1), probability)
    np.testing.assert_allclose(by_count, 1 / 6)


def test_the_same_key_gives_the_same_bits_at_every_task(key):
  one, other = (_sample(key, 50, task=task) for task in ('mean', 'length'))
  np.testing.assert_array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize('function', [
    outrep.IDENTITY, outrep.SQRT, outrep.LOG, outrep.INVERSE_SQRT,
    outrep.shifted(outrep.LOG, 1.0), outrep.inverse_sqrt(0.01),
    # As in the docstring.
    outrep.Reparameterization(
        encode=lambda y: y ** (1 / 3), decode=lambda z: z**3
    ),
])
def test_reparameterizations_undo_themselves(function):
  y = jnp.array([0.02, 0.5, 1.0, 7.0, 50.0])
  np.testing.assert_allclose(function.decode(function.encode(y)), y, rtol=2e-5)


def test_reparameterizations_by_their_formulas():
  y = np.array([1.0, 4.0, 25.0])
  for function, expected in (
      (outrep.SQRT, [1, 2, 5]), (outrep.LOG, np.log(y)),
      (outrep.INVERSE_SQRT, [1, 0.5, 0.2]),
      (outrep.shifted(outrep.SQRT, 11.0), np.sqrt(y + 11)),
  ):
    np.testing.assert_allclose(function.encode(jnp.asarray(y)), expected, rtol=1e-6)


def test_outputs_without_an_inverse_are_clamped():
  z = jnp.array([-3.0, 0.0, 1e-4])
  np.testing.assert_allclose(outrep.INVERSE_SQRT.decode(z), 1e6, rtol=1e-5)
  np.testing.assert_allclose(outrep.inverse_sqrt(0.1).decode(z), 100, rtol=1e-5)
  np.testing.assert_array_equal(outrep.SQRT.decode(z)[:2], 0)


@pytest.mark.parametrize('function', [outrep.LOG, outrep.INVERSE_SQRT])
def test_zero_has_no_logarithm(function):
  with pytest.raises(ValueError, match='target of 0'):
    outrep.check_target(function, 0.0)
  outrep.check_target(outrep.shifted(function, 1.0), 0.0)
  outrep.check_target(outrep.SQRT, 0.0)


@pytest.mark.parametrize('fields', [
    {'task': 'median'}, {'counts': 'odd'}, {'min_length': 0}, {'min_length': 9},
    {'batch_size': 0},
])
def test_bad_input(key, fields):
  with pytest.raises(ValueError):
    _sample(key, **fields)
  num_rows = fields.pop('batch_size', 5)
  with pytest.raises(ValueError):
    _packed(key, num_rows, **fields)
  with pytest.raises(ValueError):
    outrep.inverse_sqrt(0.0)
  with pytest.raises(ValueError):
    counting.target_of(jnp.ones(3), jnp.full(3, 5), 'lenght')
