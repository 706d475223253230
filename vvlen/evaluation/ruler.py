"""Whether an output names what a prompt of RULER asks for, in three dialects.

  official   The share of the answers that are substrings of the output, in lower case.
  lm_eval    The same.
  strict     1 if every answer is a word of the output and no wrong one is, else 0: 71
             is not found in 4711, and an output that lists all numbers is wrong.

Questions about documents have several answers of which one is enough (`one_of`). Then
`official` is 1 if the output names any of them, else 0; `strict` is the same for whole
words; `lm_eval` is still the share of all answers.

The published program reports 100 times the mean, rounded to two digits. It strips white
space from an output and turns its control characters into newlines, and so do
`official` and `lm_eval`: an answer that ends with a space is not found at the end.
Source: Hsieh et al. (2024), arXiv 2404.06654; NVIDIA/RULER c3f5e3b, string_match_all
and string_match_part; lm-evaluation-harness 4e7e0d4, tasks/ruler. Runs without JAX.
"""

from collections.abc import Sequence
import re

DIALECTS = ('official', 'lm_eval', 'strict')


def score(
    output: str,
    answers: Sequence[str],
    dialect: str = 'official',
    *,
    others: Sequence[str] = (),
    one_of: bool = False,
) -> float:
  """Returns the score of one output.

  Args:
    output: the text that a model generated.
    answers: what it must name, at least one.
    dialect: 'official', 'lm_eval' or 'strict', as above.
    others: what it must not name, for `strict`.
    one_of: whether one of the answers is enough, as above.

  Returns:
    A number in [0, 1].

  Raises:
    ValueError: if the dialect is unknown, answers or others are not texts, or there is
      no answer.
  """
  if dialect not in DIALECTS:
    raise ValueError(f'the dialect must be one of {", ".join(DIALECTS)}: {dialect!r}')
  for name, texts in (('answers', answers), ('others', others)):
    if isinstance(texts, str) or not all(isinstance(x, str) and x for x in texts):
      raise ValueError(f'{name} must be a list of texts that are not empty: {texts!r}')
  if not answers:
    raise ValueError('there must be at least one answer')
  output = output.lower()
  enough = any if one_of else all
  if dialect == 'strict':
    named = enough(_is_word(x, output) for x in answers)
    return float(named and not any(_is_word(x, output) for x in others))
  output = re.sub(r'[\x00-\x1f]', '\n', output.strip()).strip()
  found = [x.lower() in output for x in answers]
  if one_of and dialect == 'official':
    return float(any(found))
  return sum(found) / len(found)


def _is_word(text: str, output: str) -> bool:
  return re.search(rf'(?<!\w){re.escape(text.lower())}(?!\w)', output) is not None
