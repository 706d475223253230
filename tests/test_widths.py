"""Prompts in batches of few shapes."""

import numpy as np
import pytest

from vvlen.evaluation import widths


def test_prompts_are_padded_to_one_of_few_widths():
  assert [widths.width_of(n, 12) for n in range(1, 13)] == [
      1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12]
  for longest in (1, 7, 65, 3597):
    found = [widths.width_of(n, longest) for n in range(1, longest + 1)]
    assert found == sorted(found) and found[-1] == longest
    assert all(n <= x <= 1.5 * n + 1 for n, x in enumerate(found, 1))
    assert len(set(found)) <= 2 * longest.bit_length()
  for n in (0, 13):
    with pytest.raises(ValueError, match=f'a prompt has {n} tokens, not 1 to 12'):
      widths.width_of(n, 12)


def test_batches_have_all_samples_once_and_one_width_each():
  found = [6, 4, 6, 6, 4, 6]
  assert widths.batches(found, 2) == [
      (4, (1, 4)), (6, (0, 2)), (6, (3, 5))]
  assert widths.batches(found, 3) == [(4, (1, 4)), (6, (0, 2, 3)), (6, (5,))]
  assert widths.batches(found[:4], 3)[1:] == [(6, (0, 2, 3))]


def test_a_batch_is_filled_up_with_its_first_prompt():
  tokens, lengths = widths.padded([np.array([5, 6]), [7]], 3, 4)
  np.testing.assert_array_equal(tokens, [[5, 6, 0], [7, 0, 0], [5, 6, 0], [5, 6, 0]])
  np.testing.assert_array_equal(lengths, [2, 1, 2, 2])
  assert tokens.dtype == lengths.dtype == np.int32
