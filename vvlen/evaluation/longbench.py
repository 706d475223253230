"""Scores of LongBench-E: 13 tasks, in three dialects, and three ways to average them.

A score is the best over the answers of a sample, in [0, 1]. The metrics:

  words           F1 of words (`word_f1`)
  summary         ROUGE-L
  class           the name of the class of a question
  number          the number of paragraphs, or of the paragraph that is meant
  code            similarity of the next line of code

`official` is the published code, to the bit, except where that fails in a summary with
a sentence of more than about a thousand words, and gives 0 (`rouge_l`):

  · trec, triviaqa and samsum: only the first line after leading newlines counts.
  · summary: ROUGE-L of the package `rouge` (`rouge_l`).
  · class: names of classes that are substrings of the prediction, in their order. Then
    each that is a proper substring of the answer is removed from the list during the
    loop over it, which skips the name after a removed one. The score is 1 / k if the
    answer is among the k names left, else 0.
  · number: the share of the prediction's integers that equal the answer, 0 without any.
    Digits are compared as text: 05 is not 5. The answer of 'Paragraph 5' is 5.
  · code: leading newlines are stripped, then the first line that has none of `, # and
    // counts, '' if there is none. It is scored by `difflib_ratio`, since
    requirements.txt names fuzzywuzzy alone; with python-Levenshtein installed the
    program would use `indel_ratio`.

`lm_eval` is lm-evaluation-harness 4e7e0d4. It differs from `official` in three points:

  · White space is stripped from both ends of a prediction, except for code.
  · trec, triviaqa and samsum: generation stops at the first newline, so a prediction
    with a leading newline is empty.
  · code: lines of white space alone are skipped too.

`strict` gives 1 for the answer and nothing else, and 0 otherwise; only summaries have
scores in between:

  · words: the normalized prediction is the normalized answer.
  · summary: ROUGE-L of Lin (2004), of whole texts (`sequence_rouge_l`).
  · class: the prediction, without white space around it, is the name.
  · number: the prediction has an integer, and every one is the answer.
  · code: the first line that is not blank is the answer, up to white space around it.
  · trec, triviaqa and samsum: the first line, as in `official`.

The published program reports 100 times the mean, rounded to two digits. It uses the
classes of a file's last sample for all samples; here each sample has its own.
Source: Bai et al. (2024), arXiv 2308.14508; THUDM/LongBench 2e00731. Runs without JAX.
"""

from collections.abc import Callable, Sequence
import re
from typing import NamedTuple

import numpy as np

from vvlen.evaluation import json_lines
from vvlen.evaluation.text_similarity import (
  difflib_ratio,
  normalize,
  rouge_l,
  sequence_rouge_l,
  word_f1,
)

# The metric of each task, by category.
CATEGORIES = {
    'single-document questions': {'qasper': 'words', 'multifieldqa_en': 'words'},
    'multi-document questions': {'hotpotqa': 'words', '2wikimqa': 'words'},
    'summaries': {'gov_report': 'summary', 'multi_news': 'summary'},
    'few-shot': {'trec': 'class', 'triviaqa': 'words', 'samsum': 'summary'},
    'synthetic': {'passage_count': 'number', 'passage_retrieval_en': 'number'},
    'code': {'lcc': 'code', 'repobench-p': 'code'},
}
METRICS = {task: metric for tasks in CATEGORIES.values()
           for task, metric in tasks.items()}
DIALECTS = ('official', 'lm_eval', 'strict')
BUCKETS = ('0-4k', '4-8k', '8k+')
_FIRST_LINE = ('trec', 'triviaqa', 'samsum')


def score(
    task: str,
    prediction: str,
    answers: Sequence[str],
    all_classes: Sequence[str] = (),
    dialect: str = 'official',
    *,
    ratio: Callable[[str, str], float] = difflib_ratio,
) -> float:
  """Returns the score of one prediction, the best over the answers.

  Args:
    task: such as 'qasper', without '_e'.
    prediction: the text that a model generated.
    answers: at least one.
    all_classes: the names of all classes; only trec has and needs them.
    dialect: 'official', 'lm_eval' or 'strict', as above.
    ratio: similarity of two lines of code, for `official` and `lm_eval`.

  Returns:
    A number in [0, 1].

  Raises:
    ValueError: if the task or the dialect is unknown, the prediction is not a text,
      answers are not texts or are missing, trec has no classes, or an answer of
      passage_retrieval_en names no paragraph.
  """
  if dialect not in DIALECTS:
    raise ValueError(f'the dialect must be one of {", ".join(DIALECTS)}: {dialect!r}')
  if not isinstance(prediction, str):
    raise ValueError(f'the prediction must be a text: {prediction!r:.80}')
  check_answers(task, answers, all_classes)
  text = _text(task, prediction, dialect)
  metric = METRICS[task]
  if metric == 'code':
    line = _code_line(text, dialect)
    if dialect == 'strict':
      return float(any(line.strip() == x.strip() for x in answers))
    return max(ratio(line, answer) for answer in answers)
  if metric == 'number':
    shares = [_share_of_numbers(text, _number(task, x)) for x in answers]
    return float(max(shares) == 1) if dialect == 'strict' else max(shares)
  if metric == 'summary':
    similarity = sequence_rouge_l if dialect == 'strict' else rouge_l
    return max(similarity(text, answer) for answer in answers)
  if metric == 'class':
    if dialect == 'strict':
      return float(text.strip() in answers)
    return max(_classification(text, answer, all_classes) for answer in answers)
  if dialect == 'strict':
    return float(any(normalize(text) == normalize(x) for x in answers))
  return max(word_f1(text, answer) for answer in answers)


def check_answers(
    task: str, answers: Sequence[str], all_classes: Sequence[str] = ()
) -> None:
  """Raises if a task cannot be scored with these answers; arguments as in `score`.

  Raises:
    ValueError: as in `score`.
  """
  if task not in METRICS:
    raise ValueError(f'the task must be one of {", ".join(METRICS)}: {task!r}')
  for name, texts in (('answers', answers), ('all_classes', all_classes)):
    if isinstance(texts, str) or not (
        isinstance(texts, Sequence) and all(isinstance(x, str) for x in texts)):
      raise ValueError(f'{name} must be a list of texts: {texts!r:.80}')
    json_lines.check_whole(name, texts)
  if not answers:
    raise ValueError('there must be at least one answer')
  if task == 'trec' and not all_classes:
    raise ValueError('trec needs the names of all classes')
  for answer in answers:
    _number(task, answer)


def _text(task: str, prediction: str, dialect: str) -> str:
  """Returns the part of a prediction that counts."""
  if task in _FIRST_LINE:
    lines = prediction if dialect == 'lm_eval' else prediction.lstrip('\n')
    prediction = lines.split('\n')[0]
  if dialect == 'lm_eval' and METRICS[task] != 'code':
    return prediction.strip()
  return prediction


def _number(task: str, answer: str) -> str:
  """Returns the digits of an answer of the tasks that ask for a number."""
  if task != 'passage_retrieval_en':
    return answer
  found = re.search(r'Paragraph (\d+)', answer)
  if found is None:
    raise ValueError(f'the answer must be as "Paragraph 5": {answer!r:.80}')
  return found[1]


def _share_of_numbers(text: str, number: str) -> float:
  numbers = re.findall(r'\d+', text)
  return numbers.count(number) / len(numbers) if numbers else 0.0


def _code_line(text: str, dialect: str) -> str:
  if dialect == 'strict':
    return next((x for x in text.split('\n') if x.strip()), '')
  lines = text.lstrip('\n').split('\n') if dialect == 'official' else [
      line for line in text.split('\n') if line.strip()]
  return next((x for x in lines if not re.search('`|#|//', x)), '')


def _classification(text: str, answer: str, all_classes: Sequence[str]) -> float:
  names = [name for name in all_classes if name in text]
  place = 0
  while place < len(names):
    if names[place] != answer and names[place] in answer:
      names.remove(names[place])
    place += 1  # also after a removal, so that the next name is skipped
  return 1 / len(names) if answer in names else 0.0


class Scored(NamedTuple):
  """The score of one sample."""

  task: str
  length: int  # of its text, in words
  score: float


class Summary(NamedTuple):
  """Means of scores; nan where there is no sample."""

  tasks: dict[str, float]  # over the samples of each task
  cells: dict[tuple[str, str], float]  # over those of each task and bucket of lengths
  counts: dict[tuple[str, str], int]  # samples of each cell
  categories: dict[str, float]  # over the tasks of each category
  over_tasks: float  # over the tasks that have samples
  over_cells: float  # over the cells that have samples
  over_categories: float  # over the categories that have samples


def bucket(length: int) -> str:
  """Returns the bucket of a length in words: up to 3999, 4000 to 7999, or more."""
  return BUCKETS[(length >= 4000) + (length >= 8000)]


def summarize(scored: Sequence[Scored]) -> Summary:
  """Returns the means of scores of any tasks.

  LongBench-E has no single official score, so state which of the three means you
  report. They leave out tasks, cells and categories without samples.

  Raises:
    ValueError: if a task is unknown.
  """
  cells: dict[tuple[str, str], list[float]] = {
      (task, name): [] for task in METRICS for name in BUCKETS}
  for sample in scored:
    if sample.task not in METRICS:
      raise ValueError(f'the task must be one of {", ".join(METRICS)}: {sample.task!r}')
    cells[sample.task, bucket(sample.length)].append(sample.score)
  tasks = {task: _mean([x for name in BUCKETS for x in cells[task, name]])
           for task in METRICS}
  means = {cell: _mean(scores) for cell, scores in cells.items()}
  categories = {name: _mean([tasks[task] for task in members])
                for name, members in CATEGORIES.items()}
  return Summary(
      tasks, means, {cell: len(scores) for cell, scores in cells.items()}, categories,
      _mean(tasks.values()), _mean(means.values()), _mean(categories.values()))


def _mean(values) -> float:
  """Returns the mean of the values that are not nan; nan if there are none."""
  there = [x for x in values if not np.isnan(x)]
  return float(np.mean(there)) if there else float('nan')
