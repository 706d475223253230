"""Questions of bAbI, read or drawn, have the answers that their facts give."""

from collections import Counter
import itertools
import os
import pathlib
import re

import numpy as np
import pytest

from tests import babi_reader
from tests.conftest import NEEDS_REFERENCE
from vvlen.tasks.babi import Question, read_questions
from vvlen.tasks.babi_stories import (
  draw_question,
  draw_story,
  ROOMS,
  TASKS,
  THINGS,
)

STORY = """1 Mary got the milk there.
2 John moved to the bedroom.
3 Where is John? \tbedroom\t2
4 Mary travelled to the hallway.
5 Where is the milk? \thallway\t1 4
1 The garden is north of the office.
2 What is north of the office?\tgarden\t1
"""


def _read(tmp_path, text):
  path = tmp_path / 'qa.txt'
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return read_questions(path)


def test_facts_since_the_beginning_of_the_story_and_no_other_questions(tmp_path):
  milk, john, hallway = 'Mary got the milk there.', 'John moved to the bedroom.', (
      'Mary travelled to the hallway.')
  expected = [
      Question((milk, john), 'Where is John?', 'bedroom', (1,), 3),
      Question((milk, john, hallway), 'Where is the milk?', 'hallway', (0, 2), 5),
      Question(('The garden is north of the office.',), 'What is north of the office?',
               'garden', (0,), 7)]
  assert _read(tmp_path, STORY) == (expected, [])
  assert _read(tmp_path, '\ufeff' + STORY.replace('\n', '\r\n')) == (expected, [])


@pytest.mark.parametrize(('line', 'says'), [
    ('Mary got the milk.', 'a line must be a number, a space and a text'),
    ('3', "a number, a space and a text: '3'"),
    ('', "a number, a space and a text: ''"),
    ('\N{SUPERSCRIPT TWO} Mary', 'a number, a space and a text'),
    ('4 Mary got the milk.', 'the number must be 3, or 1 for a new story: 4'),
    ('2 Mary got the milk.', 'the number must be 3, or 1 for a new story: 2'),
    ('3 Where is Mary?\thall', 'followed by a tab, its answer, a tab and numbers'),
    ('3 Where is Mary?\thall\t', 'followed by a tab, its answer, a tab and numbers'),
    ('3 Where is Mary?\t \t1', 'followed by a tab, its answer, a tab and numbers'),
    ('3 Where is Mary?\thall\t1\t2', 'followed by a tab, its answer, a tab and number'),
    ('3 Where is Mary?\thall\t3', "no fact of the story has the number '3'"),
    ('3 Where is Mary?\thall\t1 x', "no fact of the story has the number 'x'"),
    ('1 Where is Mary?\thall\t1', "no fact of the story has the number '1'"),
])
def test_lines_that_are_not_of_babi(line, says, tmp_path):
  text = '1 Mary got the milk.\n2 Mary moved to the hall.\n' + line + '\n'
  with pytest.raises(
      ValueError, match=rf'has no questions\. .*qa\.txt line 3: .*{says}'):
    _read(tmp_path, text)
  # The story ends there, whatever follows; others are read.
  good = '1 Mary got the milk.\n2 Where is it?\there\t1\n'
  later = '3 Sandra got the ball.\n4 Where is it?\there\t1\n'
  questions, [message] = _read(tmp_path, good + text + later + good)
  assert questions == [
      Question(('Mary got the milk.',), 'Where is it?', 'here', (0,), line)
      for line in (2, 9)]
  assert re.search(rf'qa\.txt line 5: .*{says}', message)


def test_files_that_are_not_of_babi(tmp_path):
  for text in ('', '1 Mary got the milk.\n'):
    with pytest.raises(ValueError, match=r'qa\.txt has no questions'):
      _read(tmp_path, text)
  with pytest.raises(ValueError, match=r'qa\.txt is not UTF-8 at byte 2'):
    _read(tmp_path, b'1 \xff')
  with pytest.raises(FileNotFoundError, match='no such file'):
    read_questions(tmp_path / 'none.txt')


@pytest.mark.parametrize('task', TASKS)
def test_official_questions_are_answered_by_their_facts(task):
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  [path] = pathlib.Path(os.environ['VVLEN_SHARED'], 'data/babi').glob(f'{task}_*')
  questions, bad = read_questions(path)
  assert len(questions) == 1000 and not bad
  wrong = [x.question for x in questions
           if babi_reader.answer(x.facts, x.question) != x.answer]
  # In two of qa5, one gave two things to another, and the answer is the earlier one.
  assert wrong == ['What did Bill give to Mary?', 'What did Fred give to Bill?'] * (
      task == 'qa5')
  for x in questions:
    assert all(0 <= place < len(x.facts) for place in x.support)
    if task in ('qa1', 'qa2', 'qa4'):
      facts = [x.facts[i] for i in sorted(x.support)]
      assert babi_reader.answer(facts, x.question) == x.answer


@pytest.mark.parametrize('task', TASKS)
def test_drawn_questions_are_answered_by_their_facts(task):
  rng = np.random.default_rng(0)
  stories = [draw_story(rng, task) for _ in range(100)]
  assert {x.line for story in stories for x in story} == {0}
  assert {len(story) for story in stories} == {1 if task == 'qa4' else 5}
  for x in (x for story in stories for x in story):
    assert babi_reader.answer(x.facts, x.question) == x.answer
    supporting = [x.facts[i] for i in x.support]
    if task == 'qa3':  # what was done with the thing, and the moves to both rooms
      handled, there, before = supporting
      thing, room = x.question[:-1].split()[3::3]
      assert f'the {thing}' in handled and there.endswith(f'the {room}.')
      assert before.endswith(f'the {x.answer}.')
    else:  # only these facts are needed
      facts = [x.facts[i] for i in sorted(x.support)]
      assert babi_reader.answer(facts, x.question) == x.answer
      assert len(facts) == (2 if task == 'qa2' else 1)


def test_later_questions_of_a_story_repeat_its_facts():
  for task in ('qa1', 'qa2', 'qa3', 'qa5'):
    story = draw_story(np.random.default_rng(1), task)
    for first, second in itertools.pairwise(story):
      assert second.facts[:len(first.facts)] == first.facts
      assert len(second.facts) - len(first.facts) >= 2
    if task == 'qa1':
      assert [len(x.facts) for x in story] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize('task', TASKS)
def test_the_same_generator_draws_the_same_story_and_another_does_not(task):
  first, again, other = (
      draw_story(np.random.default_rng(seed), task) for seed in (0, 0, 1))
  assert first == again != other


def test_answers_are_spread_over_all_labels():
  rng = np.random.default_rng(0)
  for task in TASKS:
    stories = [draw_story(rng, task) for _ in range(400 if task == 'qa4' else 80)]
    answers = Counter(x.answer for story in stories for x in story)
    persons = [answers.pop(x) for x in ('Bill', 'Fred', 'Jeff', 'Mary') if x in answers]
    assert (len(persons), len(answers)) == ((4, 3) if task == 'qa5' else (0, 6))
    # Two of three questions of qa5 ask for persons.
    for counts in (persons, answers.values()):
      assert not counts or min(counts) > sum(counts) / len(counts) * 0.6, answers


def test_all_kinds_of_questions_are_drawn():
  rng = np.random.default_rng(0)
  for task, count in (('qa4', 8), ('qa5', 5)):
    questions = [draw_question(rng, task, 9).question for _ in range(200)]
    kinds = {re.sub('|'.join(ROOMS + THINGS) + '|Bill|Fred|Jeff|Mary', '_', x)
             for x in questions}
    assert len(kinds) == count, kinds


@pytest.mark.parametrize(('task', 'fewest'), [
    ('qa1', 2), ('qa2', 2), ('qa3', 3), ('qa4', 2), ('qa5', 2)])
def test_short_questions(task, fewest):
  rng = np.random.default_rng(0)
  for most in (fewest, fewest + 2):
    for _ in range(5):
      x = draw_question(rng, task, most)
      assert len(x.facts) <= most
      assert babi_reader.answer(x.facts, x.question) == x.answer
  says = f'no question of {task} follows {fewest - 1} facts or fewer'
  with pytest.raises(ValueError, match=says):
    draw_question(rng, task, fewest - 1)


def test_tasks_that_cannot_be_drawn():
  with pytest.raises(ValueError, match=r"one of qa1, .*, qa5: 'qa6'"):
    draw_story(np.random.default_rng(0), 'qa6')


@pytest.mark.parametrize(('facts', 'question', 'answer'), [
    (['Mary got the milk there.', 'Mary went to the hallway.', 'Mary left the milk.',
      'Mary moved to the office.'], 'Where is the milk?', 'hallway'),
    (['John got the apple.', 'John went to the office.', 'John went to the garden.',
      'John went to the office.', 'John went to the kitchen.'],
     'Where was the apple before the office?', 'garden'),
    (['The hallway is east of the bathroom.', 'The bedroom is west of the bathroom.'],
     'What is the bathroom east of?', 'bedroom'),
    (['Fred took the milk there.', 'Fred gave the milk to Jeff.',
      'Jeff passed the milk to Bill.'], 'Who gave the milk?', 'Jeff'),
    (['Fred took the milk there.', 'Fred gave the milk to Jeff.',
      'Jeff passed the milk to Bill.'], 'What did Fred give to Jeff?', 'milk'),
])
def test_the_reader_itself_by_hand(facts, question, answer):
  assert babi_reader.answer(facts, question) == answer
