"""Sentences of the tasks of RULER: the published ones, and short ones.

A prompt has three parts, a line each: an instruction, the context, and a question with
the beginning of its answer. The published sentences are from NVIDIA/RULER c3f5e3b
(Apache License 2.0), with a period after each assignment, as in RULER's essays. Those
of the pass key are from Mohtashami and Jaggi (2023), arXiv 2305.16300. Runs without
JAX.
"""

from typing import NamedTuple


class NeedleWording(NamedTuple):
  """Sentences of `niah` and `passkey`, with {key}, {value}, {query} and {kind}.

  The kind of values is 'number' or 'word'.
  """

  before: str
  before_many: str  # where several values are asked for
  needle: str
  question: str
  question_many: str


class VariableWording(NamedTuple):
  """Sentences of `variable_tracking`, with {name}, {value}, {other} and {number}."""

  before: str
  first: str
  following: str
  question: str
  names: str  # a pattern: A stands for any capital letter, 0 for any digit
  digits: int  # of values


class WordsWording(NamedTuple):
  """Sentences of `common_words`, with {number} of words."""

  before: str
  question: str
  numbered: bool  # '1. fox 2. owl' or 'fox owl'


SHORT_NEEDLES = NeedleWording('', '', '{key} is {value}.', '{query} is', '{query} are')
RULER_NEEDLES = NeedleWording(
    'A special magic {kind} is hidden within the following text. Make sure to memorize '
    'it. I will quiz you about the {kind} afterwards.',
    'Some special magic {kind}s are hidden within the following text. Make sure to '
    'memorize it. I will quiz you about the {kind}s afterwards.',
    'One of the special magic {kind}s for {key} is: {value}.',
    'What is the special magic {kind} for {query} mentioned in the provided text? The '
    'special magic {kind} for {query} mentioned in the provided text is',
    'What are all the special magic {kind}s for {query} mentioned in the provided text?'
    ' The special magic {kind}s for {query} mentioned in the provided text are')
SHORT_PASSKEY = NeedleWording('', '', 'The pass key is {value}.', 'The pass key is', '')
LONG_PASSKEY = NeedleWording(
    'There is an important info hidden inside a lot of irrelevant text. Find it and '
    'memorize them. I will quiz you about the important information there.', '',
    'The pass key is {value}. Remember it. {value} is the pass key.',
    'What is the pass key? The pass key is', '')
SHORT_VARIABLES = VariableWording(
    '', '{name} = {value}.', '{name} = {other}.', 'Equal to {value}:', 'A0', 2)
RULER_VARIABLES = VariableWording(
    'Memorize and track the chain(s) of variable assignment hidden in the following '
    'text.\n',
    'VAR {name} = {value}.', 'VAR {name} = VAR {other}.',
    'Question: Find all variables that are assigned the value {value} in the text '
    'above. Answer: According to the chain(s) of variable assignment in the text '
    'above, {number} variables are assigned the value {value}, they are: ', 'AAAAA', 5)
SHORT_WORDS = WordsWording('', 'Most often:', False)
RULER_WORDS = WordsWording(
    'Below is a numbered list of words. In these words, some appear more often than '
    'others. Memorize the ones that appear most often.',
    'Question: What are the {number} most common words in the above list? Answer: The '
    'top {number} words that appear most often in the list are:', True)
