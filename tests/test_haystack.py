"""Hidden facts keep their order and depth, and a prompt has its number of tokens."""

import os
import pathlib
import re

import numpy as np
import pytest

from tests.conftest import NEEDS_REFERENCE
from vvlen.tasks.haystack import hide, NOISE, QUARTERS, split_sentences
from vvlen.tasks.tokenizers import byte_tokenizer, load_tokenizer, Tokenizer

FACTS = ('Mary went to the hall.', 'John got the milk.', 'Mary left.')
TEXT = tuple(f'This is line {i} of a tale{" that goes on" * (i % 3)}.'
             for i in range(40))
BYTES = byte_tokenizer()


def _counting(count):
  """Returns a tokenizer with so many tokens for a text."""
  encode = lambda text: np.zeros(count(text), np.int32)
  return Tokenizer(encode, lambda tokens: '', 1, None)


WORDS = _counting(lambda text: len(text.split()))
# Some characters join the token before, as in byte pair encoding.
PAIRS = _counting(lambda text: len(re.findall('th|is|ine| [a-z]|..|.', text)))
TOKENIZERS = {'bytes': BYTES, 'words': WORDS, 'pairs': PAIRS}


def _question(context):
  return f'Read.\n{context}\nWhere is Mary?'


def _places(context, facts):
  """Returns where facts begin and end, each after the one before."""
  places, end = [], 0
  for fact in facts:
    begin = context.index(fact, end)
    end = begin + len(fact)
    places.append((begin, end))
  return places


@pytest.mark.parametrize('name', TOKENIZERS)
@pytest.mark.parametrize('num_tokens', [64, 65, 66, 67, 150, 700, 3000])
def test_the_number_of_tokens_is_exact(name, num_tokens):
  tokenizer = TOKENIZERS[name]
  facts = FACTS[1:2] if num_tokens < 100 else FACTS
  for seed in range(8):
    hidden = hide(np.random.default_rng(seed), facts, TEXT, num_tokens, tokenizer,
                  wrap=_question)
    assert len(tokenizer.encode(hidden.prompt)) == num_tokens
    assert hidden.prompt == _question(hidden.context)
  hidden = hide(np.random.default_rng(0), facts, TEXT, num_tokens, tokenizer)
  assert hidden.prompt == hidden.context
  assert len(tokenizer.encode(hidden.prompt)) == num_tokens


@pytest.mark.parametrize('num_tokens', [64, 200, 1000])
def test_the_number_of_tokens_is_exact_with_a_tokenizer_of_the_hub(num_tokens):
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  data = pathlib.Path(os.environ['VVLEN_SHARED'], 'data')
  tokenizer = load_tokenizer(data / 'stories260K')
  book = split_sentences((data / 'big.txt').read_text()[:200_000])
  for seed in range(8):
    for text in (book, NOISE):
      hidden = hide(np.random.default_rng(seed), FACTS[:2], text, num_tokens, tokenizer,
                    wrap=_question)
      assert len(tokenizer.encode(hidden.prompt)) == num_tokens


def test_without_its_facts_a_context_is_the_text():
  whole = ' '.join(TEXT * 3)
  for seed in range(30):
    hidden = hide(np.random.default_rng(seed), FACTS, TEXT, 600, BYTES, others=['Oh!'])
    rest = hidden.context
    for fact in (*FACTS, 'Oh!'):
      assert rest.count(fact) == 1
      rest = rest.replace(f' {fact}', '') if f' {fact}' in rest else (
          rest.removeprefix(f'{fact} '))
    assert rest.rstrip() in whole
    assert any(rest.startswith(x[:20]) for x in TEXT)
    assert len(rest) > 400


def test_facts_stand_between_sentences_in_their_order():
  for seed in range(30):
    hidden = hide(np.random.default_rng(seed), FACTS, TEXT, 600, BYTES)
    places = _places(hidden.context, FACTS)
    np.testing.assert_array_equal(
        hidden.depths, [x / len(hidden.context) for x, _ in places])
    # Before a fact a sentence ends; only the last one of the text may be cut.
    cut = [x for x, _ in places if x and hidden.context[x - 2] != '.']
    assert all(' line ' not in hidden.context[x:] for x in cut)


def test_facts_may_be_everywhere():
  depths = np.array([
      hide(np.random.default_rng(seed), FACTS[:1], TEXT, 600, BYTES).depths[0]
      for seed in range(400)])
  # Places are uniform but for their number: each fifth of the context has its share.
  counts = np.histogram(depths, 5, (0, 1))[0]
  assert counts.min() > 50, counts
  assert depths.min() == 0 and depths.max() > 0.9


@pytest.mark.parametrize('depth', [*QUARTERS, (0.3, 0.9), (0.5, 0.55)])
@pytest.mark.parametrize('name', TOKENIZERS)
def test_facts_are_whole_between_the_depths(depth, name):
  for seed in range(20):
    hidden = hide(np.random.default_rng(seed), FACTS, TEXT, 1500, TOKENIZERS[name],
                  depth=depth, wrap=_question)
    places, size = _places(hidden.context, FACTS), len(hidden.context)
    assert depth[0] <= places[0][0] / size and places[-1][1] / size <= depth[1]


def test_a_single_depth_is_the_nearest_place():
  for depth in np.linspace(0, 1, 21):
    hidden = hide(np.random.default_rng(7), FACTS[:1], NOISE, 400, BYTES,
                  depth=(depth, depth))
    [(begin, end)] = _places(hidden.context, FACTS[:1])
    before, after = hidden.context[:begin], hidden.context[end + 1:]
    share = len(before) / (len(before) + len(after))
    # Sentences of the noise have at most 22 characters.
    assert abs(share - depth) <= 11.5 / (len(before) + len(after)), depth
    if depth in (0, 1):
      assert (before, after)[int(depth)] == ''
  three = hide(np.random.default_rng(7), FACTS, NOISE, 400, BYTES, depth=(0.5, 0.5))
  assert ' '.join(FACTS) in three.context


def test_others_are_hidden_anywhere_in_their_order():
  others = ('One is here.', 'Two is here.')
  begins = []
  for seed in range(60):
    hidden = hide(np.random.default_rng(seed), FACTS[:1], TEXT, 900, BYTES,
                  depth=(0.5, 0.75), others=others)
    [(begin, end)] = _places(hidden.context, FACTS[:1])
    assert 0.5 <= begin / len(hidden.context) and end / len(hidden.context) <= 0.75
    begins += [x / len(hidden.context) for x, _ in _places(hidden.context, others)]
    assert len(hidden.context) == 900
  assert min(begins) < 0.2 and max(begins) > 0.8


def test_the_same_generator_hides_in_the_same_place():
  first, again, other = (
      hide(np.random.default_rng(seed), FACTS, TEXT, 500, BYTES) for seed in (0, 0, 1))
  assert first == again != other


def test_facts_may_fill_the_whole_prompt():
  for seed in range(10):
    hidden = hide(np.random.default_rng(seed), FACTS, TEXT, 52, BYTES)
    assert hidden.prompt == ' '.join(FACTS) and len(hidden.prompt) == 52
    # One more, and it is one of the text, or a space.
    assert len(hide(np.random.default_rng(seed), FACTS, TEXT, 54, BYTES).prompt) == 54


def test_a_short_text_is_repeated():
  hidden = hide(np.random.default_rng(0), FACTS[:1], NOISE[:1], 500, BYTES)
  assert hidden.context.count(NOISE[0]) >= 22


@pytest.mark.parametrize(('fields', 'says'), [
    ({'num_tokens': 51}, '51 tokens are too few: .* take 52'),
    ({'num_tokens': 60, 'wrap': _question}, '60 tokens are too few: .* take 73'),
    ({'others': ['x' * 500]}, 'are too few: .* take 553'),
    ({'depth': (0.1, 0.2)}, 'facts of 52 characters do not fit between sentences, from '
     '0.1 to 0.2 of a context of about 300'),
    ({'depth': (0.97, 1.0)}, 'do not fit between sentences, from 0.97 to 1'),
    ({'depth': (0.5, 0.4)}, r'two numbers from 0 to 1 in order: \(0.5, 0.4\)'),
    ({'depth': (-0.1, 0.4)}, 'two numbers from 0 to 1'),
    ({'depth': (0.5, 1.5)}, 'two numbers from 0 to 1'),
    ({'depth': (0.5, float('nan'))}, 'two numbers from 0 to 1'),
    ({'facts': []}, 'there must be facts to hide'),
    ({'sentences': []}, 'sentences to hide them in'),
    ({'sentences': ['', ' ']}, 'sentences to hide them in'),
    ({'tokenizer': _counting(lambda text: 0)}, 'has no tokens for the text'),
])
def test_what_cannot_be_hidden(fields, says):
  fields = {'facts': FACTS, 'sentences': TEXT, 'num_tokens': 300, 'tokenizer': BYTES,
            **fields}
  with pytest.raises(ValueError, match=says):
    hide(np.random.default_rng(0), **fields)


def test_what_has_no_exact_number_is_refused():
  twos = _counting(lambda text: len(text) // 2 * 2)
  with pytest.raises(ValueError, match='exactly 301 tokens'):
    hide(np.random.default_rng(0), FACTS, TEXT, 301, twos)


@pytest.mark.parametrize(('text', 'sentences'), [
    ('One. Two!  Three?\nFour', ['One.', 'Two!', 'Three?', 'Four']),
    ('"Go." He went. (So.) End.', ['"Go."', 'He went.', '(So.)', 'End.']),
    ('Mr. Holmes and Mrs. B. met Dr. Watson in St. Ives. Then',
     ['Mr. Holmes and Mrs. B. met Dr. Watson in St. Ives.', 'Then']),
    ('It cost 3.50 at 5 p.m.', ['It cost 3.50 at 5 p.m.']),
    ('What?! “No.” Yes...  so', ['What?!', '“No.”', 'Yes...', 'so']),
    ('', []), (' \n ', []),
])
def test_sentences(text, sentences):
  assert split_sentences(text) == sentences
