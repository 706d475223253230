"""Similarities are those of the packages that LongBench uses, to the bit."""

import json

import numpy as np
import pytest

from tests.conftest import ROOT
from vvlen.evaluation.text_similarity import (
  common_length,
  difflib_ratio,
  indel_ratio,
  normalize,
  rouge_l,
  sequence_rouge_l,
  word_f1,
)

PACKAGES = json.loads((ROOT / 'tests/data/text_similarity.json').read_text())


@pytest.mark.parametrize(('prediction', 'answer', 'rouge', 'rouge_score'),
                         PACKAGES['rouge'])
def test_rouge_l_is_that_of_the_packages(prediction, answer, rouge, rouge_score):
  assert rouge_l(prediction, answer) == rouge
  assert sequence_rouge_l(prediction, answer) == rouge_score


@pytest.mark.parametrize(('prediction', 'answer', 'by_difflib', 'by_levenshtein'),
                         PACKAGES['ratio'])
def test_ratios_are_those_of_the_package(
    prediction, answer, by_difflib, by_levenshtein):
  assert difflib_ratio(prediction, answer) == by_difflib
  assert indel_ratio(prediction, answer) == by_levenshtein


def test_the_stored_values_tell_the_kinds_apart():
  assert sum(a != b for _, _, a, b in PACKAGES['rouge']) > 20
  assert sum(a < b for _, _, a, b in PACKAGES['ratio']) >= 3


def test_rouge_l_by_hand():
  # The answer's words a, b, c; the prediction's a, b, d, of which a, b are in order.
  expected = 2 * (2 / 3) * (2 / 3) / (4 / 3 + 1e-8)
  assert rouge_l('a d b', 'a b c') == pytest.approx(expected, abs=1e-15)
  # Repeated words count once, so a prediction may repeat them freely.
  assert rouge_l('a b a b a b', 'a b') == rouge_l('a b', 'a b')
  assert sequence_rouge_l('a b a b a b', 'a b') == pytest.approx(0.5)
  # Over sentences in another order, subsequences are joined.
  assert rouge_l('c d. a b', 'a b. c d') == rouge_l('a b. c d', 'a b. c d')
  assert rouge_l('c d a b', 'a b c d') < 0.51


def test_long_sentences_have_a_rouge_l():
  text = ' '.join(map(str, range(1100)))
  assert rouge_l(text, text) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(('text', 'normalized'), [
    ('The Cat, an  A\tthe dog!', 'cat dog'),
    ('theatre analysis: a', 'theatre analysis'),
    ("it's U.S.A.", 'its usa'),
    ('a-b', 'ab'),  # punctuation goes first, so no article is left
    ('«the»', '« »'),  # only punctuation of ASCII goes
    ('', ''),
])
def test_normalization(text, normalized):
  assert normalize(text) == normalized


@pytest.mark.parametrize(('prediction', 'answer', 'f1'), [
    ('The cat!', 'a CAT', 1),
    ('the cat sat', 'cat', 2 * 0.5 / 1.5),
    ('no no no', 'no no', 2 * (2 / 3) / (5 / 3)),
    ('', 'cat', 0), ('cat', '', 0), ('', '', 0), ('the', 'the', 0), ('.', '.', 0),
])
def test_f1_of_words(prediction, answer, f1):
  assert word_f1(prediction, answer) == pytest.approx(f1, abs=1e-15)


def test_longest_common_subsequence_is_the_longest():
  rng = np.random.default_rng(0)

  def by_trying(first, second):
    if not first or not second:
      return 0
    if first[0] == second[0]:
      return 1 + by_trying(first[1:], second[1:])
    return max(by_trying(first[1:], second), by_trying(first, second[1:]))

  for _ in range(60):
    first, second = (
        ''.join(rng.choice([*'abc'], rng.integers(8))) for _ in range(2))
    assert common_length(first, second) == by_trying(first, second)


def test_ratios_by_hand():
  # difflib takes the longest block, abc, after which p, q, r and s cannot match.
  pair = 'pqrsabc', 'abcp.q.r.s'
  assert (difflib_ratio(*pair), indel_ratio(*pair)) == (0.35, 0.47)  # 6/17 and 8/17
  # 12.5 is rounded to an even percent.
  assert indel_ratio('a' + 'b' * 7, 'a' + 'c' * 7) == 0.12
  for ratio in (difflib_ratio, indel_ratio):
    assert ratio('', '') == 1 and ratio('', 'x') == ratio('x', '') == 0
    assert ratio('return x', 'return x') == 1
