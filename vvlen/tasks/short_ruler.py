"""Tasks of RULER from 64 tokens on, and the retrieval of a pass key.

  niah                Needles 'fox is 471.' between other sentences; what is fox?
                        single        one needle
                        multi-key     num_keys needles, one is asked for
                        multi-value   num_values needles of one key, all are asked for
                        multi-query   num_keys needles, num_queries are asked for
  variable_tracking   'B7 = 57.', 'K2 = B7.', … hidden in order; which are 57?
  common_words        a list of words; which are the most frequent?
  passkey             'The pass key is 90547.' at a depth

The default sentences are short; the published ones are too long for 64 tokens
(`vvlen.tasks.ruler_wording` has both). RULER's worked examples are left out. A prompt
has exactly the given number of tokens, in `common_words` at most so many. The answer,
and a token such as BOS before the prompt, are not counted.

Source: Hsieh et al. (2024), arXiv 2404.06654; NVIDIA/RULER c3f5e3b, scripts/data. The
pass key: Mohtashami and Jaggi (2023), arXiv 2305.16300. Runs without JAX.
"""

from collections.abc import Sequence
import itertools
import math
import string
from typing import NamedTuple, TypeVar

import numpy as np

from vvlen.tasks.haystack import DoesNotFit, hide, last_within, NOISE
from vvlen.tasks.ruler_wording import (
  NeedleWording,
  SHORT_NEEDLES,
  SHORT_PASSKEY,
  SHORT_VARIABLES,
  SHORT_WORDS,
  VariableWording,
  WordsWording,
)
from vvlen.tasks.tokenizers import Tokenizer
from vvlen.tasks.word_lists import NOUNS, PAIRS

T = TypeVar('T')


class Sample(NamedTuple):
  """A prompt and what its answer must name; `vvlen.evaluation.ruler.score`."""

  prompt: str
  answers: tuple[str, ...]
  others: tuple[str, ...]  # wrong answers of the same kind that the prompt contains
  depths: tuple[float, ...]  # share of the context before each fact that answers
  num_tokens: int  # of the prompt
  # The score of a guess without the context: as many different ones as there are
  # answers, of all values, names or words that may be drawn.
  chance: float


class TooFewWords(ValueError):
  """There are not enough words to make a list as long as the number of tokens."""


def niah(
    rng: np.random.Generator,
    num_tokens: int,
    tokenizer: Tokenizer,
    *,
    num_keys: int = 1,
    num_values: int = 1,
    num_queries: int = 1,
    depth: tuple[float, float] = (0.0, 1.0),
    sentences: Sequence[str] = NOISE,
    digits: int = 3,
    words: Sequence[str] = (),
    keys: Sequence[str] = NOUNS,
    wording: NeedleWording = SHORT_NEEDLES,
) -> Sample:
  """Draws a needle in a haystack, or several.

  RULER has 4 keys, values or queries, PAIRS as keys and 7 digits.

  Args:
    rng: advanced by this.
    num_tokens: of the prompt, exactly.
    tokenizer: counts them.
    num_keys: how many keys have needles.
    num_values: needles of each key, with different values.
    num_queries: how many of the keys are asked for.
    depth: the depths between which the needles asked for stand, as in
      `vvlen.tasks.haystack.hide`; needles of other keys are anywhere.
    sentences: of the haystack, as in `hide`.
    digits: of each value; all values differ.
    words: from which values are drawn in place of numbers, as RULER can too.
    keys: from which the keys are drawn.
    wording: `SHORT_NEEDLES` or `RULER_NEEDLES`.

  Returns:
    A `Sample`; its answers are the values of the keys that are asked for.

  Raises:
    ValueError: if a number is not positive, there are fewer keys than queries, too few
      words or numbers, or as in `hide`, such as if the prompt has too few tokens.
  """
  _check_positive(num_keys=num_keys, num_values=num_values, num_queries=num_queries)
  if not num_queries <= num_keys <= len(keys):
    raise ValueError(f'keys must be at least as many as queries, {num_queries}, and at '
                     f'most the words to draw from, {len(keys)}: {num_keys}')
  names = [keys[i] for i in rng.choice(len(keys), num_keys, replace=False)]
  count = num_keys * num_values
  values = _words(rng, count, words) if words else _numbers(rng, count, digits)
  kind = 'word' if words else 'number'
  needles = [wording.needle.format(key=name, value=value, kind=kind)
             for name, value in zip(np.repeat(names, num_values), values, strict=True)]
  asked = num_queries * num_values  # the first ones
  query = ', and '.join(filter(None, (', '.join(names[:num_queries - 1]),
                                      names[num_queries - 1])))
  before, question = (wording.before, wording.question) if asked == 1 else (
      wording.before_many, wording.question_many)
  before = before.format(kind=kind)
  question = question.format(query=query, kind=kind)
  hidden = hide(
      rng, _shuffled(rng, needles[:asked]), sentences, num_tokens, tokenizer,
      depth=depth, others=_shuffled(rng, needles[asked:]),
      wrap=lambda context: _lines(before, context, question))
  return Sample(hidden.prompt, tuple(values[:asked]), tuple(values[asked:]),
                hidden.depths, num_tokens, asked / (len(words) or _count(digits)))


def passkey(
    rng: np.random.Generator,
    num_tokens: int,
    tokenizer: Tokenizer,
    depth: float,
    *,
    sentences: Sequence[str] = NOISE,
    digits: int = 5,
    wording: NeedleWording = SHORT_PASSKEY,
) -> Sample:
  """Hides a number near a depth; arguments and errors as in `niah`.

  Args:
    rng: as in `niah`.
    num_tokens: as in `niah`.
    tokenizer: as in `niah`.
    depth: in [0, 1]; the number is at the place between sentences nearest to it.
    sentences: as in `niah`.
    digits: of the number.
    wording: `SHORT_PASSKEY` or `LONG_PASSKEY`.
  """
  return niah(rng, num_tokens, tokenizer, depth=(depth, depth), sentences=sentences,
              digits=digits, keys=[''], wording=wording)


def variable_tracking(
    rng: np.random.Generator,
    num_tokens: int,
    tokenizer: Tokenizer,
    *,
    num_hops: int = 4,
    num_chains: int = 1,
    depth: tuple[float, float] = (0.0, 1.0),
    sentences: Sequence[str] = NOISE,
    wording: VariableWording = SHORT_VARIABLES,
) -> Sample:
  """Draws chains of assignments, of which one is asked for.

  Args:
    rng: as in `niah`.
    num_tokens: as in `niah`.
    tokenizer: as in `niah`.
    num_hops: assignments of a chain after its first; each variable but the first is
      assigned the one before.
    num_chains: chains with different values; each keeps its order.
    depth: the depths between which the chain asked for stands.
    sentences: as in `niah`.
    wording: `SHORT_VARIABLES` or `RULER_VARIABLES`.

  Returns:
    A `Sample`; its answers are the num_hops + 1 names of a chain.

  Raises:
    ValueError: as in `niah`.
  """
  _check_positive(num_hops=num_hops, num_chains=num_chains)
  length = num_hops + 1
  names = _names(rng, num_chains * length, wording.names)
  values = _numbers(rng, num_chains, wording.digits)
  chains = []
  for i, value in enumerate(values):
    own = names[i * length:(i + 1) * length]
    chains.append([wording.first.format(name=own[0], value=value), *(
        wording.following.format(name=name, other=other)
        for other, name in itertools.pairwise(own))])
  # The chain of each other statement, in random order; each chain keeps its own order.
  chain_of = _shuffled(rng, [i for i in range(1, num_chains) for _ in range(length)])
  left = [iter(chain) for chain in chains]
  question = wording.question.format(value=values[0], number=length)
  hidden = hide(
      rng, chains[0], sentences, num_tokens, tokenizer, depth=depth,
      others=[next(left[i]) for i in chain_of],
      wrap=lambda context: _lines(wording.before, context, question))
  chance = length / math.prod(map(len, _choices(wording.names)))
  return Sample(hidden.prompt, tuple(names[:length]), tuple(names[length:]),
                hidden.depths, num_tokens, chance)


def common_words(
    rng: np.random.Generator,
    num_tokens: int,
    tokenizer: Tokenizer,
    *,
    num_common: int = 2,
    common_repeats: int = 3,
    uncommon_repeats: int = 1,
    wording: WordsWording = SHORT_WORDS,
) -> Sample:
  """Draws a list of words, of which some are more frequent than others.

  RULER has 10 common words, 30 times each, and others 3 times; below 4,096 tokens 6
  times and once.

  Args:
    rng: as in `niah`.
    num_tokens: the largest number of tokens of the prompt; one more word does not fit.
    tokenizer: as in `niah`.
    num_common: how many words are frequent; all of them are to be named.
    common_repeats: how often each of these occurs.
    uncommon_repeats: how often each other word occurs, fewer times. There is at least
      one other word, and as many as fit.
    wording: `SHORT_WORDS` or `RULER_WORDS`.

  Returns:
    A `Sample` with its own number of tokens and without depths.

  Raises:
    DoesNotFit: if the prompt has too few tokens for one other word.
    TooFewWords: if it has room for more words than there are.
    ValueError: if a number is not positive, or common words are not more frequent.
  """
  _check_positive(num_common=num_common, uncommon_repeats=uncommon_repeats)
  if common_repeats <= uncommon_repeats:
    raise ValueError(f'common words must be repeated more than {uncommon_repeats} '
                     f'times: {common_repeats}')
  question = wording.question.format(number=num_common)
  for vocabulary in (NOUNS, PAIRS):
    words = _shuffled(rng, vocabulary)
    repeats = [common_repeats] * num_common + [uncommon_repeats] * (
        len(words) - num_common)
    # The order of all occurrences; a shorter list leaves some out.
    order = _shuffled(rng, np.repeat(np.arange(len(words)), repeats).tolist())

    def prompt(others: int, words=words, order=order) -> str:
      listed = [words[i] for i in order if i < num_common + others]
      if wording.numbered:
        listed = [f'{i}. {word}' for i, word in enumerate(listed, 1)]
      return _lines(wording.before, ' '.join(listed), question)

    count = lambda others, prompt=prompt: len(tokenizer.encode(prompt(others)))
    most = len(words) - num_common
    if most < 1 or count(most) <= num_tokens:
      continue  # there is room for more
    if (least := count(1)) > num_tokens:
      raise DoesNotFit(f'{num_tokens} tokens are too few: one other word takes {least}')
    others = last_within(count, 1, most, num_tokens)
    return Sample(prompt(others), tuple(words[:num_common]),
                  tuple(words[num_common:num_common + others]), (), count(others),
                  num_common / len(words))
  raise TooFewWords(
      f'{len(PAIRS):,} words are too few for {num_tokens:,} tokens, where '
      f'{num_common} occur {common_repeats} times and the others '
      f'{uncommon_repeats}')


def _check_positive(**numbers: int) -> None:
  for name, number in numbers.items():
    if number < 1:
      raise ValueError(f'{name} must be positive: {number}')


def _shuffled(rng: np.random.Generator, items: Sequence[T]) -> list[T]:
  return [items[i] for i in rng.permutation(len(items))]


def _lines(*parts: str) -> str:
  return '\n'.join(x for x in parts if x)


def _words(rng: np.random.Generator, number: int, words: Sequence[str]) -> list[str]:
  """Draws different words."""
  if number > len(words):
    raise ValueError(f'there are not {number} values among {len(words)} words')
  return [words[i] for i in rng.choice(len(words), number, replace=False)]


def _numbers(rng: np.random.Generator, number: int, digits: int) -> list[str]:
  """Returns different numbers with so many digits, of which the first is not 0."""
  if digits < 1 or number > _count(digits):
    raise ValueError(f'there are not {number} numbers of {digits} digits')
  first = 10 ** (digits - 1)
  return [str(first + x) for x in rng.choice(_count(digits), number, replace=False)]


def _count(digits: int) -> int:
  """Returns how many numbers have so many digits, of which the first is not 0."""
  return 9 * 10 ** (digits - 1)


def _names(rng: np.random.Generator, number: int, pattern: str) -> list[str]:
  """Returns different names, with a random letter for A and a digit for 0."""
  choices = _choices(pattern)
  if number > math.prod(map(len, choices)):
    raise ValueError(f'there are not {number} names like {pattern}')
  names: dict[str, None] = {}
  while len(names) < number:
    names[''.join(x[int(rng.integers(len(x)))] for x in choices)] = None
  return [*names]


def _choices(pattern: str) -> list[str]:
  """Returns the characters among which each one of a name is drawn."""
  return [string.ascii_uppercase if x == 'A' else string.digits for x in pattern]
