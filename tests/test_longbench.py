"""Scores of LongBench-E by hand, in each dialect, and their means."""

import math

import pytest

from vvlen.evaluation.longbench import (
  bucket,
  BUCKETS,
  CATEGORIES,
  DIALECTS,
  METRICS,
  score,
  Scored,
  summarize,
)
from vvlen.evaluation.text_similarity import indel_ratio

WORDS = [task for task, metric in METRICS.items() if metric == 'words']
CLASSES = ['Food', 'Country', 'Country of origin', 'origin', 'Number', 'Other number']


def _scores(task, prediction, answers, all_classes=()):
  """Returns the scores in the order of DIALECTS."""
  return tuple(score(task, prediction, answers, all_classes, dialect)
               for dialect in DIALECTS)


def test_the_tasks_are_those_of_the_paper():
  assert len(METRICS) == 13 and DIALECTS == ('official', 'lm_eval', 'strict')
  assert sum(map(len, CATEGORIES.values())) == 13


@pytest.mark.parametrize('task', WORDS)
def test_words(task):
  assert _scores(task, 'The Cat, an "animal"', ['a cat animal']) == (1, 1, 1)
  half = pytest.approx(2 * 0.5 / 1.5)
  assert _scores(task, 'cat sat', ['the cat']) == (half, half, 0)
  assert _scores(task, '', ['cat']) == (0, 0, 0)
  assert _scores(task, 'dog', ['cat', 'a dog', 'dog cat']) == (1, 1, 1)


def test_first_lines_are_those_of_three_tasks():
  for task in ('triviaqa', 'samsum', 'qasper', 'gov_report'):
    official, lm_eval, _ = _scores(task, '\nParis\nor London', ['Paris'])
    assert (official > 0.99) == (task in ('triviaqa', 'samsum'))
    # In the harness, generation of these has ended at the first newline.
    assert (lm_eval == 0) == (task in ('triviaqa', 'samsum'))
    official, lm_eval, strict = _scores(task, 'Paris \nor London', ['Paris'])
    assert (official > 0.99) == (lm_eval > 0.99) == (task in ('triviaqa', 'samsum'))
    assert (strict == 1) == (task in ('triviaqa', 'samsum'))


def test_a_line_of_spaces_is_a_first_line():
  assert score('triviaqa', '\n \nParis', ['Paris']) == 0


def test_summaries():
  text = 'He went home. She stayed.'
  official, lm_eval, strict = _scores('gov_report', text, ['Unlike this', text])
  assert official == lm_eval == pytest.approx(1, abs=1e-8) and strict == 1
  # A period and a space at the end make a word, '', for the package.
  assert score('multi_news', 'one. ', ['one']) < 0.7
  assert score('multi_news', 'one. ', ['one'], dialect='lm_eval') > 0.99
  for empty in ('', '...', '\n'):
    assert _scores('samsum', empty, [text]) == (0, 0, 0)


@pytest.mark.parametrize(('prediction', 'answer', 'scores'), [
    ('Food', 'Food', (1, 1, 1)),
    ('Type: Food', 'Food', (1, 1, 0)),
    ('Food, Number', 'Food', (1 / 2, 1 / 2, 0)),
    # 'Other number' does not hold 'Number': case counts.
    ('Other number', 'Other number', (1, 1, 1)),
    # Country, Country of origin, origin are found. Country goes; the next is skipped,
    # and origin, which comes after it, goes.
    ('Country of origin', 'Country of origin', (1, 1, 1)),
    # Names in the answer's name stay if the answer is not found: 0 all the same.
    ('Country', 'Country of origin', (0, 0, 0)),
    # A name that holds the truth is not removed.
    ('Country of origin', 'Country', (1 / 3, 1 / 3, 0)),
    ('', 'Food', (0, 0, 0)),
    ('food', 'Food', (0, 0, 0)),
    ('\n\n Food \nNumber', 'Food', (1, 0, 1)),
])
def test_classes(prediction, answer, scores):
  assert _scores('trec', prediction, [answer], CLASSES) == scores


def test_a_name_after_a_removed_one_is_not_looked_at():
  # a and b are both parts of the answer; a goes, b is skipped and stays.
  assert score('trec', 'ab', ['ab'], ['a', 'b', 'ab']) == 1 / 2
  # With another between them, both go.
  assert score('trec', 'abc', ['ab'], ['a', 'c', 'b', 'ab']) == 1 / 2
  assert score('trec', 'ab', ['ab'], ['a', 'ab', 'b']) == 1


@pytest.mark.parametrize(('prediction', 'scores'), [
    ('5', (1, 1, 1)),
    ('The answer is 5.', (1, 1, 1)),
    ('5 of 12', (1 / 2, 1 / 2, 0)),
    ('5, 5 and 7', (2 / 3, 2 / 3, 0)),
    ('5 or 5', (1, 1, 1)),
    ('05', (0, 0, 0)),
    ('15', (0, 0, 0)),
    ('five', (0, 0, 0)),
    ('', (0, 0, 0)),
])
def test_numbers(prediction, scores):
  assert _scores('passage_count', prediction, ['5']) == scores
  assert _scores('passage_retrieval_en', prediction, ['Paragraph 5']) == scores
  assert _scores('passage_count', prediction, ['9', '5']) == scores


@pytest.mark.parametrize(('prediction', 'scores'), [
    ('return x', (1, 1, 1)),
    ('\n\nreturn x\nreturn y', (1, 1, 1)),
    ('```python\n# the next line\n// or this\nreturn x', (1, 1, 0)),
    ('   \nreturn x', (0.18, 1, 1)),  # 2 · 1 / (3 + 8): a blank line is a line
    ('return x  # the end', (0, 0, 0)),  # no line is left
    ('return z', (0.88, 0.88, 0)),  # 14 / 16
    ('  return x', (0.89, 0.89, 1)),  # 16 / 18
    ('', (0, 0, 0)),
])
@pytest.mark.parametrize('task', ['lcc', 'repobench-p'])
def test_code(task, prediction, scores):
  assert _scores(task, prediction, ['return x']) == scores


def test_the_best_of_several_lines_counts():
  assert _scores('lcc', 'return x', ['return y', 'return x', 'x']) == (1, 1, 1)
  assert _scores('lcc', 'return x', ['return y', 'x']) == (0.88, 0.88, 0)


def test_the_ratio_may_be_that_with_levenshtein():
  arguments = 'lcc', 'pqrsabc', ['abcp.q.r.s']
  assert (score(*arguments), score(*arguments, ratio=indel_ratio)) == (0.35, 0.47)


@pytest.mark.parametrize(('arguments', 'says'), [
    (('narrativeqa', 'x', ['x']), "task must be one of .*: 'narrativeqa'"),
    (('qasper_e', 'x', ['x']), "task must be one of .*: 'qasper_e'"),
    (('qasper', 'x', ['x'], (), 'lenient'), "one of official, lm_eval, .*: 'lenient'"),
    (('qasper', None, ['x']), 'prediction must be a text: None'),
    (('qasper', 'x', 'x'), "answers must be a list of texts: 'x'"),
    (('qasper', 'x', [5]), r'answers must be a list of texts: \[5\]'),
    (('qasper', 'x', None), 'answers must be a list of texts: None'),
    (('qasper', 'x', []), 'at least one answer'),
    (('trec', 'x', ['x']), 'trec needs the names of all classes'),
    (('trec', 'x', ['x'], 'x'), "all_classes must be a list of texts: 'x'"),
    (('passage_retrieval_en', 'x', ['5']), "must be as \"Paragraph 5\": '5'"),
])
def test_what_cannot_be_scored(arguments, says):
  with pytest.raises(ValueError, match=says):
    score(*arguments)


def test_buckets():
  at = [bucket(x) for x in (0, 3999, 4000, 7999, 8000, 10**6)]
  assert at == ['0-4k', '0-4k', '4-8k', '4-8k', '8k+', '8k+']


def test_three_means_that_differ():
  summary = summarize([
      Scored('qasper', 10, 1.0), Scored('qasper', 20, 1.0), Scored('qasper', 9000, 0.0),
      Scored('multifieldqa_en', 5000, 0.5), Scored('lcc', 3999, 0.25)])
  assert summary.tasks['qasper'] == pytest.approx(2 / 3)
  assert summary.cells['qasper', '0-4k'] == 1 and summary.cells['qasper', '8k+'] == 0
  assert summary.counts['qasper', '0-4k'] == 2 and sum(summary.counts.values()) == 5
  assert summary.categories['single-document questions'] == pytest.approx(7 / 12)
  assert summary.over_tasks == pytest.approx((2 / 3 + 1 / 2 + 1 / 4) / 3)
  assert summary.over_cells == pytest.approx((1 + 0 + 0.5 + 0.25) / 4)
  assert summary.over_categories == pytest.approx((7 / 12 + 1 / 4) / 2)


def test_what_is_empty_is_not_zero():
  summary = summarize([Scored('qasper', 10, 1.0)])
  assert math.isnan(summary.cells['qasper', '4-8k'])
  assert math.isnan(summary.tasks['lcc']) and math.isnan(summary.categories['code'])
  assert summary.over_tasks == summary.over_cells == summary.over_categories == 1
  assert set(summary.cells) == {(x, y) for x in METRICS for y in BUCKETS}
  nothing = summarize([])
  assert all(map(math.isnan, (nothing.over_tasks, nothing.over_cells,
                              nothing.over_categories)))
  with pytest.raises(ValueError, match="'musique'"):
    summarize([Scored('musique', 10, 1.0)])
