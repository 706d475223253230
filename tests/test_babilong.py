"""Answers to questions of BABILong by hand, in each dialect."""

import pytest

from vvlen.evaluation.babilong import DIALECTS, is_correct, LABELS

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
])
def test_what_cannot_be_judged(task, target, dialect, says):
  with pytest.raises(ValueError, match=says):
    is_correct(task, 'kitchen', target, WHERE, dialect)
