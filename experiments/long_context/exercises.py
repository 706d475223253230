"""Short texts that teach a small model to look things up in its context.

Of a prompt with its answer, one token in twenty or fewer can be told from the context
alone, too few for a small model to learn it from in thousands of steps. Exercises have
more to look up:

  phrases   'net kid. odd fox. odd fox. net kid.': phrases, in random orders
  numbers   '93714 205. 93714 205.': numbers, two to four times
  needles   'kid is calm. web is odd.', then each of them again, in a random order
  pass_key  'The pass key is 93714.', three times more
  people    a story as in bAbI's qa1, then where each of its people is

They are short, for a window of training begins anywhere: of a long text it mostly has
one half, in which nothing can be looked up. Some have other sentences between. Runs
without JAX.
"""

from collections.abc import Sequence

import numpy as np

from vvlen.tasks import babi_stories
from vvlen.tasks.haystack import NOISE
from vvlen.tasks.ruler_wording import SHORT_NEEDLES, SHORT_PASSKEY
from vvlen.tasks.word_lists import ADJECTIVES, NOUNS


def phrases(rng: np.random.Generator) -> str:
  """Returns 2 to 4 phrases of 2 or 3 words, twice, each time in a random order."""
  told = [' '.join(rng.choice(NOUNS + ADJECTIVES, rng.integers(2, 4))) + '.'
          for _ in range(rng.integers(2, 5))]
  return '\n'.join(' '.join(rng.permutation(told)) for _ in range(2))


def numbers(rng: np.random.Generator) -> str:
  """Returns one to three numbers of 3 to 5 digits, two to four times."""
  listed = ' '.join(map(str, rng.integers(100, 10**5, rng.integers(1, 4))))
  return ' '.join([f'{listed}.'] * rng.integers(2, 5))


def needles(rng: np.random.Generator) -> str:
  """Returns 2 to 4 keys with values, then the same in another order."""
  count = int(rng.integers(2, 5))
  values = rng.choice(ADJECTIVES, count, replace=False)
  told = [SHORT_NEEDLES.needle.format(key=key, value=value) for key, value in zip(
      rng.choice(NOUNS, count, replace=False), values, strict=True)]
  return '\n'.join([_between(rng, told, 1), *rng.permutation(told)])


def pass_key(rng: np.random.Generator) -> str:
  """Returns a pass key of 5 digits after other sentences, then three times more."""
  told = SHORT_PASSKEY.needle.format(key='', value=rng.integers(10**4, 10**5))
  return f'{_between(rng, [told], 6)} ' + '\n'.join([told] * 3)


def people(rng: np.random.Generator) -> str:
  """Returns a story of 2 to 4 people, and a question about each of them at its end.

  Each moves once, and up to two moves are more. The room that the story names last
  answers 45 % of these questions.
  """
  names = rng.choice(babi_stories.ACTORS, rng.integers(2, 5), replace=False)
  told, where = [], dict.fromkeys(names, '')
  for name in rng.permutation([*names, *rng.choice(names, rng.integers(3))]):
    where[name] = rng.choice([x for x in babi_stories.ROOMS if x != where[name]])
    told.append(f'{name} {rng.choice(babi_stories.MOVES)} to the {where[name]}.')
  return '\n'.join([' '.join(told), *(
      f'Question: Where is {name}? {where[name]}.' for name in rng.permutation(names))])


def _between(rng: np.random.Generator, facts: Sequence[str], most: int) -> str:
  """Returns facts, each after up to `most` sentences that say nothing."""
  return ' '.join(sentence for fact in facts for sentence in (
      *rng.choice(NOISE, rng.integers(most + 1)), fact))


# In this order they take turns.
EXERCISES = (phrases, people, needles, people, pass_key, phrases, people, needles,
             people, numbers)
