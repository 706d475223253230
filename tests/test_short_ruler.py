"""Tasks of RULER: what a prompt asks for is found by reading it."""

from collections import Counter
import itertools
import os
import pathlib
import re

import numpy as np
import pytest

from tests.conftest import NEEDS_REFERENCE
from vvlen.evaluation.ruler import DIALECTS, score
from vvlen.tasks import word_lists
from vvlen.tasks.ruler_wording import (
  LONG_PASSKEY,
  RULER_NEEDLES,
  RULER_VARIABLES,
  RULER_WORDS,
)
from vvlen.tasks.short_ruler import (
  common_words,
  niah,
  passkey,
  TooFewWords,
  variable_tracking,
)
from vvlen.tasks.tokenizers import byte_tokenizer, load_tokenizer, Tokenizer

BYTES = byte_tokenizer()
WORDS = Tokenizer(lambda text: np.array([*map(len, text.split())]), str, 99, None)
KINDS = {
    'single': {}, 'multi_key': {'num_keys': 4}, 'multi_value': {'num_values': 4},
    'multi_query': {'num_keys': 5, 'num_queries': 3},
    'all': {'num_keys': 3, 'num_queries': 2, 'num_values': 2},
}
PUBLISHED = {'keys': word_lists.PAIRS, 'digits': 7, 'wording': RULER_NEEDLES}
TASKS = {**{name: (niah, fields) for name, fields in KINDS.items()},
         'passkey': (lambda *x, **fields: passkey(*x, 0.5, **fields), {}),
         'variables': (variable_tracking, {}), 'chains': (
             variable_tracking, {'num_chains': 3, 'num_hops': 2})}


def _rng(seed=0):
  return np.random.default_rng(seed)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('published', [False, True])
def test_needles_are_found_by_reading(kind, published):
  needle = (r'One of the special magic numbers for (\S+) is: (\d{7})\.' if published
            else r'(\S+) is (\d{3})\.')
  for seed in range(20):
    x = niah(_rng(seed), 1600, BYTES, **KINDS[kind], **(PUBLISHED if published else {}))
    *_, context, question = x.prompt.split('\n')
    needles = re.findall(needle, context)
    asked = [value for key, value in needles if re.search(rf'\b{key}\b', question)]
    keys = {key for key, _ in needles}
    assert sorted(asked) == sorted(x.answers)
    assert sorted({*x.answers, *x.others}) == sorted(value for _, value in needles)
    assert len(keys) == KINDS[kind].get('num_keys', 1)
    assert len(needles) == len(keys) * KINDS[kind].get('num_values', 1)
    begins = [found.start() / len(context) for found in re.finditer(needle, context)
              if found[2] in x.answers]
    assert x.depths == tuple(begins)
    assert not any(value in question for value in x.answers)


def test_values_may_be_words():
  for kind, fields in KINDS.items():
    x = niah(_rng(), 1600, BYTES, **fields, words=word_lists.ADJECTIVES)
    *_, context, question = x.prompt.split('\n')
    found = [(key, value) for key, value in re.findall(r'(\S+) is (\w+)\.', context)
             if key in word_lists.NOUNS]
    asked = [value for key, value in found if re.search(rf'\b{key}\b', question)]
    assert sorted(asked) == sorted(x.answers), kind
    assert sorted({*x.answers, *x.others}) == sorted(value for _, value in found)
    assert {*x.answers, *x.others} <= {*word_lists.ADJECTIVES}
  with pytest.raises(ValueError, match='not 4 values among 3 words'):
    niah(_rng(), 1600, BYTES, num_values=4, words=('a', 'b', 'c'))


@pytest.mark.parametrize(('kind', 'words'), [('number', ()), ('word', ('blue',) * 9)])
@pytest.mark.parametrize('num_values', [1, 2])
def test_published_words_name_the_kind_of_values(kind, words, num_values):
  x = niah(_rng(), 900, BYTES, num_values=num_values, words=words, keys=['fox'],
           wording=RULER_NEEDLES)
  before, context, question = x.prompt.split('\n')
  assert context.count(f'One of the special magic {kind}s for fox is: ') == num_values
  if num_values == 1:
    assert before == (
        f'A special magic {kind} is hidden within the following text. Make sure to '
        f'memorize it. I will quiz you about the {kind} afterwards.')
    assert question == (
        f'What is the special magic {kind} for fox mentioned in the provided text? The '
        f'special magic {kind} for fox mentioned in the provided text is')
  else:
    assert before == (
        f'Some special magic {kind}s are hidden within the following text. Make sure '
        f'to memorize it. I will quiz you about the {kind}s afterwards.')
    assert question == (
        f'What are all the special magic {kind}s for fox mentioned in the provided '
        f'text? The special magic {kind}s for fox mentioned in the provided text are')


@pytest.mark.parametrize(('num_hops', 'num_chains'), [(4, 1), (1, 1), (3, 3), (12, 2)])
@pytest.mark.parametrize('published', [False, True])
def test_variables_are_found_by_reading(num_hops, num_chains, published):
  fields = {'wording': RULER_VARIABLES} if published else {}
  value_of = {}
  for seed in range(20):
    x = variable_tracking(_rng(seed), 1800, BYTES, num_hops=num_hops,
                          num_chains=num_chains, **fields)
    value_of = {}
    for name, other in re.findall(r'([A-Z]\w+) = (?:VAR )?(\w+)\.', x.prompt):
      # In their order: what is assigned has a value by then.
      value_of[name] = other if other.isdigit() else value_of[other]
    *_, question = x.prompt.split('\n')
    asked, = {value for value in value_of.values() if value in question}
    assert {name for name, value in value_of.items() if value == asked} == {*x.answers}
    assert {*value_of} == {*x.answers, *x.others}
    assert len(x.answers) == num_hops + 1 == len(set(x.answers)) == len(x.depths)
    assert len(x.others) == (num_chains - 1) * (num_hops + 1)
    assert len(set(value_of.values())) == num_chains
    assert list(x.depths) == sorted(x.depths)


def test_chains_are_told_in_turns():
  turns = set()
  for seed in range(30):
    x = variable_tracking(_rng(seed), 900, BYTES, num_hops=2, num_chains=3)
    names = re.findall(r'([A-Z]\d) = ', x.prompt)
    turns.add(tuple(x.others.index(name) // 3 for name in names if name in x.others))
  assert len(turns) > 8 and all(sorted(x) == [0, 0, 0, 1, 1, 1] for x in turns)


@pytest.mark.parametrize(('fields', 'num_tokens'), [
    ({}, 64), ({}, 200), ({'num_common': 3, 'common_repeats': 5}, 300),
    ({'num_common': 10, 'common_repeats': 30, 'uncommon_repeats': 3}, 3000),
    ({'num_common': 10, 'common_repeats': 6, 'wording': RULER_WORDS}, 2000),
])
@pytest.mark.parametrize('tokenizer', [BYTES, WORDS])
def test_common_words_are_found_by_reading(fields, num_tokens, tokenizer):
  for seed in range(5):
    x = common_words(_rng(seed), num_tokens, tokenizer, **fields)
    context = x.prompt.split('\n')[-2]
    counts = Counter(re.findall(r'[a-z]\S+', context))
    common, uncommon = (
        [word for word, count in counts.items() if count == fields.get(name, default)]
        for name, default in (('common_repeats', 3), ('uncommon_repeats', 1)))
    assert sorted(common) == sorted(x.answers) and sorted(uncommon) == sorted(x.others)
    assert len(common) == fields.get('num_common', 2) and uncommon
    assert len(counts) == len(common) + len(uncommon)
    if fields.get('wording'):
      numbers = re.findall(r'(\d+)\. ', context)
      assert numbers == [str(i + 1) for i in range(counts.total())]
      assert 'the 10 most common words' in x.prompt
    # At most so many tokens, and no room for one word more.
    assert x.num_tokens == len(tokenizer.encode(x.prompt)) <= num_tokens
    longest = (10 if '-' in context else 4) + 5 * ('wording' in fields)
    longest = longest if tokenizer is BYTES else 1 + ('wording' in fields)
    assert num_tokens - x.num_tokens < longest * fields.get('uncommon_repeats', 1)


@pytest.mark.parametrize('published', [False, True])
def test_a_passkey_is_at_its_depth(published):
  fields = {'wording': LONG_PASSKEY} if published else {}
  for depth in np.linspace(0, 1, 11):
    x = passkey(_rng(1), 1000, BYTES, depth, **fields)
    *_, context, question = x.prompt.split('\n')
    [key] = re.findall(r'The pass key is (\d{5})\.', context)
    assert x.answers == (key,) and x.others == () and question.endswith('pass key is')
    [begin] = x.depths
    assert context[round(begin * len(context)):].startswith('The pass key is')
    # Places are sentences apart; the depth is that of the text around the key.
    share = begin * len(context) / (len(context) - (66 if published else 26))
    assert abs(share - depth) < 12 / 750


@pytest.mark.parametrize('name', TASKS)
@pytest.mark.parametrize('tokenizer', [BYTES, WORDS])
def test_prompts_have_exactly_the_number_of_tokens(name, tokenizer):
  draw, fields = TASKS[name]
  for num_tokens in (128, 129, 500, 4096):
    x = draw(_rng(num_tokens), num_tokens, tokenizer, **fields)
    assert len(tokenizer.encode(x.prompt)) == num_tokens == x.num_tokens


def test_prompts_begin_at_64_tokens():
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  tokenizer = load_tokenizer(
      pathlib.Path(os.environ['VVLEN_SHARED'], 'data/stories260K'))
  for seed, (draw, fields) in itertools.product(range(4), (
      (niah, {}), (niah, {'num_keys': 4}), (niah, {'num_values': 4}),
      (niah, {'num_keys': 4, 'num_queries': 4}), TASKS['passkey'],
      TASKS['variables'])):
    x = draw(_rng(seed), 64, tokenizer, **fields)
    assert len(tokenizer.encode(x.prompt)) == 64
  assert 60 < common_words(_rng(), 64, tokenizer).num_tokens <= 64
  # Of bytes, which are a quarter as long, all but four queries.
  for draw, fields in ((niah, {}), (niah, {'num_keys': 4}), (niah, {'num_values': 4}),
                       (niah, {'num_keys': 2, 'num_queries': 2}), TASKS['passkey'],
                       TASKS['variables'], (common_words, {})):
    assert len(draw(_rng(), 64, BYTES, **fields).prompt) in (63, 64)


@pytest.mark.parametrize('depth', [(0.0, 0.25), (0.5, 0.75), (0.9, 1.0)])
@pytest.mark.parametrize('name', ['multi_key', 'multi_value', 'multi_query', 'chains'])
def test_what_is_asked_for_is_between_the_depths(name, depth):
  draw, fields = TASKS[name]
  for seed in range(10):
    x = draw(_rng(seed), 2000, BYTES, depth=depth, **fields)
    assert all(depth[0] <= begin < depth[1] for begin in x.depths)


def test_the_same_generator_draws_the_same():
  for draw, fields in (*TASKS.values(), (common_words, {})):
    first, again, other = (draw(_rng(seed), 300, BYTES, **fields) for seed in (0, 0, 1))
    assert first == again != other


def test_finding_one_word_is_not_finding_another():
  nouns, adjectives = word_lists.NOUNS, word_lists.ADJECTIVES
  assert len(nouns) > 100 and {len(x) for x in nouns} == {3}
  assert len(word_lists.PAIRS) == len(set(word_lists.PAIRS)) > 10_000
  for first, second in itertools.permutations(nouns, 2):
    assert first != second
  for first, second in itertools.permutations(adjectives, 2):
    assert not second.endswith(first)


@pytest.mark.parametrize(('draw', 'fields', 'says'), [
    (niah, {'num_tokens': 17}, '17 tokens are too few: .* take 18'),
    (niah, {'num_keys': 0}, 'num_keys must be positive: 0'),
    (niah, {'num_values': -1}, 'num_values must be positive: -1'),
    (niah, {'num_queries': 0}, 'num_queries must be positive: 0'),
    (niah, {'num_queries': 3, 'num_keys': 2}, 'at least as many as queries, 3, .*: 2'),
    (niah, {'num_keys': 500}, 'at most the words to draw from, 114: 500'),
    (niah, {'digits': 0}, 'there are not 1 numbers of 0 digits'),
    (niah, {'digits': 1, 'num_values': 10}, 'there are not 10 numbers of 1 digits'),
    (niah, {'depth': (0.6, 0.5)}, 'two numbers from 0 to 1'),
    (niah, {'depth': (0.5, 0.51)}, 'do not fit between sentences'),
    (niah, {'sentences': []}, 'sentences to hide them in'),
    (variable_tracking, {'num_hops': 0}, 'num_hops must be positive: 0'),
    (variable_tracking, {'num_chains': 0}, 'num_chains must be positive: 0'),
    (variable_tracking, {'num_chains': 60}, 'there are not 300 names like A0'),
    (variable_tracking, {'num_tokens': 56}, '56 tokens are too few: .* take 57'),
    (common_words, {'num_tokens': 30}, 'are too few: one other word takes 39'),
    (common_words, {'num_tokens': 10**6},
     '16,758 words are too few for 1,000,000 tokens, where 2 occur 3 times and the '
     'others 1'),
    (common_words, {'num_common': 0}, 'num_common must be positive: 0'),
    (common_words, {'common_repeats': 1}, 'repeated more than 1 times: 1'),
])
def test_what_cannot_be_drawn(draw, fields, says):
  fields = {'num_tokens': 200, 'tokenizer': BYTES, **fields}
  with pytest.raises(ValueError, match=says):
    draw(_rng(), **fields)


@pytest.mark.parametrize(('output', 'scores'), [
    # In the order of DIALECTS; the answers are 471 and Ox7, another value is 83.
    ('471 and OX7', (1, 1, 1)),
    ('ox7, 471.', (1, 1, 1)),
    ('471', (1 / 2, 1 / 2, 0)),
    ('471, ox7 or 83', (1, 1, 0)),
    ('471, ox7 or 834', (1, 1, 1)),
    ('4711, ox7', (1, 1, 0)),
    ('5471, ox7', (1, 1, 0)),
    ('', (0, 0, 0)),
])
def test_scores(output, scores):
  assert scores == tuple(
      score(output, ['471', 'Ox7'], dialect, others=['83']) for dialect in DIALECTS)
  assert score(output, ('471', 'Ox7')) == scores[0]


@pytest.mark.parametrize(('fields', 'says'), [
    ({'answers': []}, 'at least one answer'),
    ({'answers': '471'}, "answers must be a list of texts that are not empty: '471'"),
    ({'answers': ['471', '']}, 'answers must be a list of texts that are not empty'),
    ({'others': [5]}, r'others must be a list of texts that are not empty: \[5\]'),
    ({'dialect': 'loose'}, "official, lm_eval, strict: 'loose'"),
])
def test_what_cannot_be_scored(fields, says):
  with pytest.raises(ValueError, match=says):
    score(**{'output': '471', 'answers': ['471'], **fields})


def test_chance_is_that_of_guesses_of_what_may_be_drawn():
  chance = lambda draw, num_tokens=300, **fields: draw(
      _rng(), num_tokens, BYTES, **fields).chance
  assert chance(niah) == chance(niah, num_keys=4) == 1 / 900
  assert chance(niah, num_keys=4, num_queries=2, num_values=2, digits=7) == (
      4 / 9_000_000)
  assert chance(niah, words=word_lists.ADJECTIVES, num_values=3) == (
      3 / len(word_lists.ADJECTIVES))
  assert chance(TASKS['passkey'][0]) == 1 / 90_000
  assert chance(variable_tracking) == chance(variable_tracking, num_chains=2) == 5 / 260
  assert chance(variable_tracking, 900, num_hops=2, wording=RULER_VARIABLES) == (
      3 / 26**5)
  # Short lists are of nouns, long ones of pairs.
  nouns, pairs = (common_words(_rng(), n, BYTES) for n in (300, 1000))
  assert {*nouns.answers} <= {*word_lists.NOUNS} and nouns.chance == 2 / 114
  assert {*pairs.answers} <= {*word_lists.PAIRS} and pairs.chance == 2 / 16_758
  # Who knows only what may be drawn is right so often.
  right = [score(', '.join(word_lists.NOUNS[:2]), common_words(
      _rng(seed), 100, BYTES).answers) for seed in range(4000)]
  assert abs(np.mean(right) - nouns.chance) < 4 * np.std(right) / 4000**0.5


def test_more_words_than_there_are_is_an_error_of_its_own():
  with pytest.raises(TooFewWords):
    common_words(_rng(), 10**6, BYTES)
  # More repeats fill more tokens.
  whole = common_words(_rng(), 170_000, BYTES, common_repeats=6, uncommon_repeats=2)
  assert 169_970 < whole.num_tokens <= 170_000
  with pytest.raises(TooFewWords):
    common_words(_rng(), 200_000, BYTES)


def test_answers_of_a_drawn_prompt_score_one():
  for draw, fields in (*TASKS.values(), (common_words, {})):
    x = draw(_rng(), 300, BYTES, **fields)
    output = ', '.join(x.answers)
    assert {score(output, x.answers, y, others=x.others) for y in DIALECTS} == {1}
    if x.others:
      everything = ', '.join(x.answers + x.others)
      assert score(everything, x.answers) == 1
      assert score(everything, x.answers, 'strict', others=x.others) == 0
