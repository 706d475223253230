"""Answers to questions of BABILong by hand, in each dialect, and its prompts."""

import hashlib
import re

import numpy as np
import pytest

from tests import babi_reader
from vvlen.evaluation.babilong import DIALECTS, is_correct, LABELS
from vvlen.tasks.babi_stories import draw_question
from vvlen.tasks.babilong_prompts import build, PARTS, prompt
from vvlen.tasks.tokenizers import byte_tokenizer

WHERE = 'Where is Mary?'
BEFORE = 'Where was the apple before the kitchen?'
GAVE = 'What did Fred give to Jeff?'
WHO = 'Who gave the football to Jeff?'


@pytest.mark.parametrize(('task', 'output', 'target', 'question', 'correct'), [
    # In the order of DIALECTS.
    ('qa1', 'The most recent location of Mary is kitchen', 'kitchen', WHERE, (1, 1, 1)),
    ('qa1', 'KITCHEN', 'Kitchen', WHERE, (1, 1, 1)),
    ('qa1', 'kitchen or garden', 'kitchen', WHERE, (0, 1, 0)),
    ('qa1', 'garden', 'kitchen', WHERE, (0, 0, 0)),
    ('qa1', '', 'kitchen', WHERE, (0, 0, 0)),
    # Only the first sentence counts.
    ('qa1', 'kitchen. Not the garden.', 'kitchen', WHERE, (1, 1, 0)),
    ('qa1', 'I know. kitchen', 'kitchen', WHERE, (0, 1, 1)),
    ('qa1', '.kitchen', 'kitchen', WHERE, (0, 1, 1)),
    # Nor does what a model makes up after its answer.
    ('qa1', 'kitchen\n<context>\ngarden', 'kitchen', WHERE, (1, 1, 0)),
    ('qa1', 'kitchen <EXAMPLE> garden', 'kitchen', WHERE, (1, 1, 0)),
    ('qa1', 'kitchen <example> garden <context> office', 'kitchen', WHERE, (1, 1, 0)),
    # The published code does not find 'Question', since it looks in lower case.
    ('qa1', 'kitchen\nQuestion: Where is the garden?', 'kitchen', WHERE, (0, 1, 0)),
    # Parts of words are labels too, but for strict.
    ('qa1', 'the kitchenette', 'kitchen', WHERE, (1, 1, 0)),
    ('qa1', 'kitchen, next to the gardener', 'kitchen', WHERE, (0, 1, 1)),
    # What the question names is left out.
    ('qa3', 'Before the kitchen the apple was in the office', 'office', BEFORE,
     (1, 1, 1)),
    ('qa3', 'the kitchen', 'kitchen', BEFORE, (0, 1, 0)),
    ('qa5', 'Fred gave the milk to Jeff', 'milk', GAVE, (1, 1, 1)),
    ('qa5', 'Mary gave the milk to Jeff', 'milk', GAVE, (0, 1, 0)),
    ('qa5', 'bill', 'Bill', WHO, (1, 1, 1)),
    ('qa5', 'Bill was paid in billions', 'Bill', WHO, (1, 1, 1)),
    ('qa5', 'Fredericka', 'Fred', WHO, (1, 1, 0)),
])
def test_answers(task, output, target, question, correct):
  assert correct == tuple(
      is_correct(task, output, target, question, x) for x in DIALECTS)
  assert is_correct(task, output, target, question) == correct[0]


def test_labels_are_six_rooms_or_persons_and_things():
  assert [len(LABELS[f'qa{i}']) for i in range(1, 6)] == [6, 6, 6, 6, 7]
  for room in LABELS['qa1']:
    assert is_correct('qa4', room, room, 'What is the attic north of?')


@pytest.mark.parametrize(('task', 'target', 'dialect', 'says'), [
    ('qa6', 'yes', 'official', "task must be one of qa1, .*, qa5: 'qa6'"),
    ('qa1', 'kitchen', 'loose', "official, lm_eval, strict: 'loose'"),
    ('qa1', 'milk', 'official', "target of qa1 must be one of bathroom, .*: 'milk'"),
    ('qa5', '', 'lm_eval', "target of qa5 must be one of bill, .*: ''"),
    # The published code finds no target with a space around it in any output.
    ('qa1', ' kitchen', 'official', "target of qa1 must be .*: ' kitchen'"),
    ('qa5', 'Bill\n', 'strict', "target of qa5 must be one of bill, .*"),
])
def test_what_cannot_be_judged(task, target, dialect, says):
  with pytest.raises(ValueError, match=says):
    is_correct(task, 'kitchen', target, WHERE, dialect)


def test_prompts_are_the_published_ones():
  # SHA-256 of get_formatted_input of booydar/babilong 7a6efee.
  published = {'qa1': 'd2d0b53ac55e87b6', 'qa2': '477c043becbfeb71',
               'qa3': '007ef44be15add41', 'qa4': '317a2e470ee00c3a',
               'qa5': '16e4009afa0174ef'}
  for task, digest in published.items():
    text = prompt(task, 'CONTEXT ', 'QUESTION ')
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
    assert len(text) < 1600


def test_parts_of_prompts():
  bare = '<context>\nCONTEXT\n</context>\n\nQuestion: QUESTION'
  assert prompt('qa1', 'CONTEXT ', 'QUESTION ', ()) == bare
  whole = prompt('qa1', 'CONTEXT', 'QUESTION')
  begins = [prompt('qa1', 'CONTEXT', 'QUESTION', [part])[:40] for part in PARTS]
  places = [whole.index(x) for x in begins]
  assert places == sorted(places) and places[0] == 0 and whole.endswith(bare)
  with pytest.raises(ValueError, match=r"one of qa1, .*, qa5: 'qa6'"):
    prompt('qa6', '', '')
  with pytest.raises(ValueError, match=r"parts must be of .*: \['example'\]"):
    prompt('qa1', '', '', ['example'])


@pytest.mark.parametrize('task', LABELS)
def test_built_prompts_hold_a_story_that_answers_the_question(task):
  rng = np.random.default_rng(0)
  sentences = [f'Line {i} says nothing of it.' for i in range(50)]
  for depth, of_prompt, parts in (
      ((0, 1), True, PARTS), ((0.5, 0.75), True, ()), ((0, 0.25), False, PARTS)):
    question = draw_question(rng, task, 8)
    hidden = build(rng, task, question, sentences, 3000, byte_tokenizer(), depth=depth,
                   of_prompt=of_prompt, parts=parts)
    text = hidden.prompt if of_prompt else hidden.context
    assert len(text.encode()) == 3000
    assert hidden.prompt == prompt(task, hidden.context, question.question, parts)
    found = re.findall('|'.join(map(re.escape, question.facts)), hidden.context)
    assert babi_reader.answer(found, question.question) == question.answer
    assert tuple(found) == question.facts
    assert all(depth[0] <= x <= depth[1] for x in hidden.depths)
    assert is_correct(task, question.answer, question.answer, question.question)


def test_what_cannot_be_built():
  rng = np.random.default_rng(0)
  question = draw_question(rng, 'qa1')
  arguments = question, ['Nothing.'], 500, byte_tokenizer()
  with pytest.raises(ValueError, match='500 tokens are too few'):
    build(rng, 'qa1', *arguments)
  for of_prompt in (False, True):
    with pytest.raises(ValueError, match="task must be one of"):
      build(rng, 'qa0', *arguments, of_prompt=of_prompt)
