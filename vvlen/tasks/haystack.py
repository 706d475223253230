"""Facts hidden in a long text, with an exact number of tokens and at a chosen depth.

Facts stand between sentences of the text, in their order. The depth of a fact is the
share of the context's characters before it. Tokens are counted in the whole prompt as
one text, without a token such as BOS before it. To meet their number, the last sentence
of the text is cut, within a word if need be.

Source: Kuratov et al. (2024), arXiv 2406.10149. Their code encodes each sentence by
itself, so that the whole text has another number of tokens, and leaves out sentences of
fewer than ten tokens, which stay here. Runs without JAX.
"""

from collections.abc import Callable, Sequence
import re
from typing import NamedTuple

import numpy as np

from vvlen.tasks.tokenizers import Tokenizer

# The filler of Mohtashami and Jaggi (2023), arXiv 2305.16300, and of RULER.
NOISE = ('The grass is green.', 'The sky is blue.', 'The sun is yellow.',
         'Here we go.', 'There and back again.')
# Pairs of depths, each a quarter of the context apart.
QUARTERS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
_TRIES = 30
_NEAR = 8  # words on either side of the estimated cut that are searched first


class DoesNotFit(ValueError):
  """What is hidden and asked for does not fit into the number of tokens."""


class Haystack(NamedTuple):
  """A prompt with hidden facts."""

  prompt: str  # of exactly the number of tokens
  context: str  # text and facts, without what surrounds them in the prompt
  depths: tuple[float, ...]  # of the first character of each fact
  places: int  # before, between and after sentences, where facts could stand


def split_sentences(text: str) -> list[str]:
  """Returns the sentences of a text, with one space for any white space in them.

  A sentence ends at '.', '!' or '?' and the quotes and brackets that follow, where
  white space comes next; but not after Mr, Mrs, Dr, St or a single capital letter.
  """
  ends = r'(?<!\bMr)(?<!\bMrs)(?<!\bDr)(?<!\bSt)(?<!\b[A-Z])([.!?]["\'”’)\]]*) '
  text = ' '.join(text.split())
  return re.sub(ends, r'\1\n', text).split('\n') if text else []


def hide(
    rng: np.random.Generator,
    facts: Sequence[str],
    sentences: Sequence[str],
    num_tokens: int,
    tokenizer: Tokenizer,
    *,
    depth: tuple[float, float] = (0.0, 1.0),
    others: Sequence[str] = (),
    wrap: Callable[[str], str] | None = None,
) -> Haystack:
  """Hides facts in a text.

  Args:
    rng: draws where the text begins and where the facts stand.
    facts: at least one; they stay in this order, and several may stand together.
    sentences: of the text, such as `split_sentences` returns. They are taken in order
      from a random one on; after the last comes the first.
    num_tokens: of the prompt.
    tokenizer: counts them.
    depth: two shares of the context's characters, in [0, 1]: every fact lies wholly
      between them. If they are equal, all facts stand together, at the place between
      sentences that is nearest to this share of the text.
    others: sentences that are hidden too, in order, at any depth.
    wrap: from the context to the prompt, such as one that adds a question; None: the
      context is the prompt.

  Returns:
    A `Haystack`; `tokenizer.encode(prompt)` has exactly `num_tokens` tokens.

  Raises:
    DoesNotFit: if facts, others and what surrounds them have too many tokens by
      themselves, or the facts do not fit between the two depths.
    ValueError: if there are no facts or sentences, or the depth is not as above.
  """
  low, high = depth
  if not 0 <= low <= high <= 1:
    raise ValueError(f'depths must be two numbers from 0 to 1 in order: {depth}')
  if not facts or not any(x.strip() for x in sentences):
    raise ValueError('there must be facts to hide and sentences to hide them in')
  frame = wrap or (lambda context: context)
  count = lambda parts: len(tokenizer.encode(frame(_join(parts))))
  if (alone := count([*others, *facts])) > num_tokens:
    raise DoesNotFit(
        f'{num_tokens} tokens are too few: facts and what surrounds them take {alone}')
  of_facts = len(_join(facts))
  for _ in range(_TRIES):
    text = _text(rng, sentences, num_tokens, tokenizer)
    room = _room(text, [*others, *facts], count, num_tokens)
    starts = [x for x in text.starts if x < room] or [0]
    pieces = [' '.join(text.words[x:y])
              for x, y in zip(starts, [*starts[1:], room], strict=True)]
    size = len(_join([*pieces, *others, *facts]))
    if low < high and of_facts > (high - low) * size:
      break
    units = _arrange(rng, pieces, facts, others, depth)
    if units and (parts := _fit(units, text.words[starts[-1]:], count, num_tokens)):
      context = _join(parts)
      begins = [len(_join([*parts[:i], '.'])) - 1
                for i, unit in enumerate(units) if unit.kind == 'fact']
      depths = tuple(x / len(context) for x in begins)
      end = (begins[-1] + len(facts[-1])) / len(context)
      if low == high or low <= depths[0] <= end <= high:
        return Haystack(frame(context), context, depths, len(pieces) + 1)
  raise DoesNotFit(
      f'facts of {of_facts} characters do not fit between sentences, from {low:g} to '
      f'{high:g} of a context of about {size}, if the whole has exactly {num_tokens} '
      'tokens')


class _Text(NamedTuple):
  """Words of consecutive sentences."""

  words: list[str]
  starts: list[int]  # which words begin a sentence


class _Unit(NamedTuple):
  """A part of a context."""

  kind: str  # 'text', 'other' or 'fact'
  text: str


def _join(parts: Sequence[str]) -> str:
  return ' '.join(x for x in parts if x)


def _text(
    rng: np.random.Generator, sentences: Sequence[str], num_tokens: int,
    tokenizer: Tokenizer
) -> _Text:
  """Returns sentences from a random one on, with at least so many tokens."""
  place = int(rng.integers(len(sentences)))
  text = _Text([], [])
  characters, enough = 0, 4 * num_tokens
  while True:
    while characters < enough:
      if words := sentences[place % len(sentences)].split():
        text.starts.append(len(text.words))
        text.words.extend(words)
        characters += sum(map(len, words)) + len(words)
      place += 1
    found = len(tokenizer.encode(' '.join(text.words)))
    if found >= num_tokens:
      return text
    if not found:
      raise ValueError('the tokenizer has no tokens for the text')
    enough = int(1.1 * characters * num_tokens / found) + 1


def _room(
    text: _Text, hidden: Sequence[str], count: Callable[[Sequence[str]], int],
    num_tokens: int
) -> int:
  """Returns how many words there is room for, nearly, wherever the facts stand."""
  return last_within(lambda n: count([*hidden, ' '.join(text.words[:n])]),
                      0, len(text.words), num_tokens)


def _arrange(
    rng: np.random.Generator, pieces: Sequence[str], facts: Sequence[str],
    others: Sequence[str], depth: tuple[float, float]
) -> list[_Unit]:
  """Puts others and facts between pieces of text; returns nothing if there is no place.

  A place is allowed if all facts fit between it and the greater depth.
  """
  units = [_Unit('text', x) for x in pieces]
  units = _insert(rng, units, np.arange(len(units) + 1),
                  [_Unit('other', x) for x in others])
  before = np.cumsum([0, *(len(x.text) + 1 for x in units)])
  of_facts = len(_join(facts))
  whole = before[-1] + of_facts
  low, high = depth
  if low == high:
    allowed = np.abs(before - low * before[-1]).argmin(keepdims=True)
  else:
    allowed = np.flatnonzero(
        (low * whole <= before) & (before + of_facts <= high * whole))
  if not allowed.size:
    return []
  return _insert(rng, units, allowed, [_Unit('fact', x) for x in facts])


def _insert(
    rng: np.random.Generator, units: Sequence[_Unit], places: np.ndarray,
    new: Sequence[_Unit]
) -> list[_Unit]:
  """Inserts new units, in their order, at random ones of the places."""
  chosen = np.sort(rng.choice(places, len(new)))
  inserted = [*units]
  for place, unit in zip(chosen[::-1], new[::-1], strict=True):
    inserted.insert(int(place), unit)
  return inserted


def _fit(
    units: Sequence[_Unit], rest: Sequence[str], count: Callable[[Sequence[str]], int],
    num_tokens: int
) -> list[str]:
  """Cuts the last piece of text so that the number of tokens is exact.

  Args:
    units: parts of the context.
    rest: words from the beginning of its last piece of text on, more than enough.
    count: from the parts of a context to the number of tokens.
    num_tokens: the wanted number of tokens.

  Returns:
    The parts of the context; an empty list if no cut gives that number.
  """
  last = max(i for i, unit in enumerate(units) if unit.kind == 'text')

  def parts(end: str) -> list[str]:
    return [*(x.text for x in units[:last]), end, *(x.text for x in units[last + 1:])]

  with_words = lambda n: count(parts(' '.join(rest[:n])))
  near = len(units[last].text.split())
  low, high = max(near - _NEAR, 0), min(near + _NEAR, len(rest))
  if not with_words(low) <= num_tokens < with_words(high):
    low, high = 0, len(rest)
  best = last_within(with_words, low, high, num_tokens)
  # Whole words, then a space, then more and more of the next word.
  words = ' '.join(rest[:best])
  word = ' ' * bool(words) + ''.join(rest[best:best + 1])
  for length in range(len(word) + 1):
    if count(parts(words + word[:length])) == num_tokens:
      return parts(words + word[:length])
  return []


def last_within(
    count: Callable[[int], int], low: int, high: int, target: int
) -> int:
  """Returns the last n in low..high with count(n) ≤ target, or `low` if there is none.

  `count` must not decrease. Each step tries the place at which the target is expected
  between two known counts, but every third step tries the middle.
  """
  at_low, at_high = count(low), count(high)
  if at_high <= target:
    return high
  step = 0
  while high - low > 1:
    step += 1
    share = 0.5 if step % 3 == 0 else (target - at_low) / (at_high - at_low)
    guess = min(max(low + round(share * (high - low)), low + 1), high - 1)
    at = count(guess)
    if at <= target:
      low, at_low = guess, at
    else:
      high, at_high = guess, at
  return low
