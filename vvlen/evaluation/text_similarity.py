"""How similar a prediction is to an answer: shares of words, lines and characters.

The published code of LongBench takes ROUGE-L from the package `rouge` (1.0.1) and edit
similarity from `fuzzywuzzy` (0.18). Both are computed here, to the bit, by other code,
except where `rouge` fails (`rouge_l`). Runs without JAX.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
import difflib
import re
import string

import numpy as np

_PUNCTUATION = str.maketrans('', '', string.punctuation)


def normalize(text: str) -> str:
  """Returns a text in lower case, without ASCII punctuation and the words a, an, the.

  Words are separated by one space. Source: the evaluation of SQuAD v1.1, which
  LongBench shares.
  """
  text = text.lower().translate(_PUNCTUATION)
  return ' '.join(re.sub(r'\b(?:a|an|the)\b', ' ', text).split())


def word_f1(prediction: str, answer: str) -> float:
  """Returns F1 of the words of two normalized texts.

    2 P R / (P + R),  P = n / |prediction|,  R = n / |answer|

  where n counts the words that both share, each as often as in the text that has it
  less often. F1 is 0 if they share none.
  """
  predicted, expected = normalize(prediction).split(), normalize(answer).split()
  shared = (Counter(predicted) & Counter(expected)).total()
  if not shared:
    return 0.0
  precision, recall = shared / len(predicted), shared / len(expected)
  return 2 * precision * recall / (precision + recall)


def rouge_l(prediction: str, answer: str) -> float:
  """Returns ROUGE-L of summaries as the package `rouge` computes it.

    2 P R / (P + R + 10⁻⁸),  P = n / |distinct words of the prediction|,
                             R = n / |distinct words of the answer|

  where n counts the distinct words of the union, over all pairs of a sentence of the
  answer and a sentence of the prediction, of one longest common subsequence of each.
  This is not the ROUGE-L of Lin (2004), which counts words as often as they occur.
  Sentences end at '.', words at white space; case and punctuation count. A sentence of
  spaces alone has one word, ''.

  The package recurses once for each word. On a pair of sentences of more than about a
  thousand words it exceeds Python's limit and fails, which LongBench counts as 0. This
  function has no such limit.

  Returns:
    0 if a text has no characters but '.'.
  """
  predicted, expected = _sentences(prediction), _sentences(answer)
  if not predicted or not expected:
    return 0.0
  shared: set[str] = set()
  for of_answer in expected:
    for of_prediction in predicted:
      shared |= _common_words(of_answer, of_prediction)
  precision = len(shared) / len(set().union(*predicted))
  recall = len(shared) / len(set().union(*expected))
  return 2.0 * (precision * recall / (precision + recall + 1e-8))


def sequence_rouge_l(prediction: str, answer: str) -> float:
  """Returns ROUGE-L of two texts, each taken as one sequence of words.

    2 P R / (P + R),  P = LCS / |prediction|,  R = LCS / |answer|

  where LCS is the length of the longest common subsequence. Words are runs of letters
  a–z and digits in lower case. Equal to rougeL of the package `rouge_score` without
  stemming. Source: Lin (2004), equations 2 to 4 with β = 1.

  Returns:
    0 if a text has no words.
  """
  predicted, expected = (
      re.findall(r'[a-z0-9]+', x.lower()) for x in (prediction, answer))
  if not predicted or not expected:
    return 0.0
  common = common_length(predicted, expected)
  precision, recall = common / len(predicted), common / len(expected)
  return 2 * precision * recall / (precision + recall) if common else 0.0


def difflib_ratio(prediction: str, answer: str) -> float:
  """Returns fuzz.ratio / 100 of `fuzzywuzzy` without python-Levenshtein.

    round(100 · 2 M / T) / 100

  where T is the number of characters of both texts and M of those in the blocks that
  `difflib.SequenceMatcher` matches: the longest common block first, then the longest
  ones on either side; no block begins with a character that makes up more than 1 % of
  an answer of 200 characters or more. Halves are rounded to even percents. Equal texts
  give 1, even if empty; an empty and another text give 0.
  """
  if prediction == answer:
    return 1.0
  if not prediction or not answer:
    return 0.0
  matcher = difflib.SequenceMatcher(None, prediction, answer)
  return round(100 * matcher.ratio()) / 100


def indel_ratio(prediction: str, answer: str) -> float:
  """Returns fuzz.ratio / 100 of `fuzzywuzzy` with python-Levenshtein installed.

    round(100 · 2 M / T) / 100

  where T is the number of characters of both texts and M the length of their longest
  common subsequence: 1 minus the share of characters to delete or insert. `rapidfuzz`
  does not round. `difflib_ratio` differs only in M, which is never larger there.
  """
  if prediction == answer:
    return 1.0
  if not prediction or not answer:
    return 0.0
  total = len(prediction) + len(answer)
  # As the package computes it: from the distance, not from the length.
  distance = total - 2 * common_length(prediction, answer)
  return round(100 * (1 - distance / total)) / 100


def common_length(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
  """Returns the length of the longest common subsequence of two sequences."""
  return int(_common_lengths(first, second)[-1, -1])


def _common_lengths(
    first: Sequence[Hashable], second: Sequence[Hashable]
) -> np.ndarray:
  """Returns lengths of longest common subsequences of all prefixes, [n + 1, m + 1].

    L[i, j] = max(L[i − 1, j], L[i, j − 1], L[i − 1, j − 1] + (first_i = second_j))

  for i and j from 1 on, and 0 elsewhere.
  """
  numbers = {x: i for i, x in enumerate(dict.fromkeys([*first, *second]))}
  rows, columns = (np.array([numbers[x] for x in xs], int) for xs in (first, second))
  lengths = np.zeros((rows.size + 1, columns.size + 1), np.int32)
  for i, item in enumerate(rows):
    # The maximum over j, which runs along the row, comes after the other two.
    best = np.maximum(lengths[i, 1:], lengths[i, :-1] + (columns == item))
    np.maximum.accumulate(best, out=lengths[i + 1, 1:])
  return lengths


def _sentences(text: str) -> list[list[str]]:
  return [' '.join(x.split()).split(' ') for x in text.split('.') if x]


def _common_words(first: list[str], second: list[str]) -> set[str]:
  """Returns the words of one longest common subsequence.

  If there are several, the search from the end decides: two equal words are both taken;
  otherwise, if dropping either last word leaves equally long subsequences, that of
  `second` is dropped.
  """
  words: set[str] = set()
  if set(first).isdisjoint(second):
    return words
  lengths = _common_lengths(first, second).tolist()
  i, j = len(first), len(second)
  while i and j:
    if first[i - 1] == second[j - 1]:
      i, j = i - 1, j - 1
      words.add(first[i])
    elif lengths[i - 1][j] > lengths[i][j - 1]:
      i -= 1
    else:
      j -= 1
  return words
