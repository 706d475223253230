"""Short texts that teach a small model to look things up in its context.

Of a prompt with its answer, one token in twenty or fewer can be told from the context
alone, too few for a small model to learn it from in thousands of steps. Exercises have
more to look up:

  words     'net kid fox. net kid fox.': a list of words, two or three times
  numbers   '93714 205. 93714 205.': numbers, two to four times
  needles   'kid is calm. web is odd.', then each of them again in another order
  pass_key  'The pass key is 93714.', three times more
  moves     'calm went to the web. odd moved to the fox.', then where each of them is
  people    a story of bAbI's qa1, and a question after each of its moves

What two layers of width 64 made of it, in trials of up to 16,000 steps of 8 streams:
lists of words are completed, after some hundred steps if they are read alone and
initial weights have a standard deviation of 1/√width, after thousands in a mixture or
with 0.02. Of needles and pass keys, where there is one, it was copied in one trial of
three; of several, any one was named, whatever was asked; of people, the room that was
named last. A word that stands right after its key was found at once by a model that
completes lists, but not one with a word between them.
Some have other sentences between. Runs without JAX.
"""

from collections.abc import Sequence

import numpy as np

from vvlen.tasks import babi_stories
from vvlen.tasks.haystack import NOISE
from vvlen.tasks.ruler_wording import SHORT_NEEDLES, SHORT_PASSKEY
from vvlen.tasks.word_lists import ADJECTIVES, NOUNS


def words(rng: np.random.Generator) -> str:
  """Returns 8 to 31 words, which may be equal, two or three times."""
  listed = ' '.join(rng.choice(NOUNS, rng.integers(8, 32)))
  return ' '.join([f'{listed}.'] * rng.integers(2, 4))


def numbers(rng: np.random.Generator) -> str:
  """Returns one to three numbers of 3 to 5 digits, two to four times."""
  listed = ' '.join(map(str, rng.integers(100, 10**5, rng.integers(1, 4))))
  return ' '.join([f'{listed}.'] * rng.integers(2, 5))


def needles(rng: np.random.Generator) -> str:
  """Returns 2 to 8 keys with values, then the same in another order."""
  count = int(rng.integers(2, 9))
  values = rng.choice(ADJECTIVES, count, replace=False)
  told = [SHORT_NEEDLES.needle.format(key=key, value=value) for key, value in zip(
      rng.choice(NOUNS, count, replace=False), values, strict=True)]
  return '\n'.join([_between(rng, told, 1), *rng.permutation(told)])


def pass_key(rng: np.random.Generator) -> str:
  """Returns a pass key of 5 digits after other sentences, then three times more."""
  told = SHORT_PASSKEY.needle.format(key='', value=rng.integers(10**4, 10**5))
  return f'{_between(rng, [told], 6)} ' + '\n'.join([told] * 3)


def moves(rng: np.random.Generator) -> str:
  """Returns 2 to 8 moves as in qa1 but of any words, then where each of them is."""
  count = int(rng.integers(2, 9))
  names = rng.choice(ADJECTIVES, count, replace=False)
  places = rng.choice(NOUNS, count, replace=False)
  told = [f'{name} {verb} to the {place}.' for name, verb, place in zip(
      names, rng.choice(babi_stories.MOVES, count), places, strict=True)]
  asked = [_asked(names[i], places[i]) for i in rng.permutation(count)]
  return '\n'.join([_between(rng, told, 1), *asked])


def people(rng: np.random.Generator) -> str:
  """Returns a story of qa1, and after each move a question about what is known."""
  where: dict[str, str] = {}
  told = []
  for fact in babi_stories.draw_story(rng, 'qa1', 6)[-1].facts:
    where[fact.split()[0]] = fact.removesuffix('.').split()[-1]
    asked = rng.choice([*where])
    told += [_between(rng, [fact], 1), _asked(asked, where[asked])]
  return '\n'.join(told)


def _asked(name: str, place: str) -> str:
  return f'Question: Where is {name}? {place}.'


def _between(rng: np.random.Generator, facts: Sequence[str], most: int) -> str:
  """Returns facts, each after up to `most` sentences that say nothing."""
  return ' '.join(sentence for fact in facts for sentence in (
      *rng.choice(NOISE, rng.integers(most + 1)), fact))


# In this order they take turns.
EXERCISES = (words, needles, words, moves, words, needles, words, people, words,
             numbers, words, moves, needles, pass_key)
