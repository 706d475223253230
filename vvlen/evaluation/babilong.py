"""Whether an answer to a question of BABILong is correct, in three dialects.

Labels are the words that may be answers: six rooms for qa1 to qa4, persons and things
for qa5. All texts are compared in lower case.

  official   The output is cut at its first '.', '<context>' or '<example>'. It is
             correct if the target is the only label that is a substring of it and not
             of the question.
  lm_eval    The target is a substring of the output: an output that lists all rooms is
             correct, and so is the target after a wrong answer.
  strict     As `official`, but the whole output counts and labels are whole words, so
             no later sentence may name another label.

The published code also cuts at 'Question', which is never found in lower case.
Source: Kuratov et al. (2024), arXiv 2406.10149; booydar/babilong 7a6efee, metrics.py;
lm-evaluation-harness 4e7e0d4, tasks/babilong. Runs without JAX.
"""

import re

_ROOMS = ('bathroom', 'bedroom', 'garden', 'hallway', 'kitchen', 'office')
LABELS = {
    'qa1': _ROOMS, 'qa2': _ROOMS, 'qa3': _ROOMS, 'qa4': _ROOMS,
    'qa5': ('bill', 'fred', 'jeff', 'mary', 'apple', 'football', 'milk'),
}
DIALECTS = ('official', 'lm_eval', 'strict')


def is_correct(
    task: str, output: str, target: str, question: str, dialect: str = 'official'
) -> bool:
  """Returns whether an output answers a question.

  Args:
    task: 'qa1' to 'qa5'.
    output: the text that a model generated.
    target: the answer, such as 'kitchen', without spaces around it.
    question: its text; what it names cannot be the answer.
    dialect: 'official', 'lm_eval' or 'strict', as above.

  Raises:
    ValueError: if the task or the dialect is unknown, or the target is not a label of
      the task, which no output could answer.
  """
  if task not in LABELS:
    raise ValueError(f'the task must be one of {", ".join(LABELS)}: {task!r}')
  if dialect not in DIALECTS:
    raise ValueError(f'the dialect must be one of {", ".join(DIALECTS)}: {dialect!r}')
  output, question, target = output.lower(), question.lower(), target.lower()
  if target not in LABELS[task]:
    raise ValueError(f'the target of {task} must be one of {", ".join(LABELS[task])}: '
                     f'{target!r}')
  if dialect == 'lm_eval':
    return target in output
  if dialect == 'strict':
    words, in_question = (set(re.findall(r'\w+', x)) for x in (output, question))
    named = words.intersection(LABELS[task]) - in_question
  else:
    counts = re.split(r'\.|<context>|<example>', output)[0]
    named = {x for x in LABELS[task] if x in counts and x not in question}
  return named == {target}
