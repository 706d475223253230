"""What a run of passkey, babilong or ruler is to answer."""

from collections.abc import Callable
import functools
from typing import Any

from experiments.harness.parts import naming
from experiments.long_context.babilong_suite import babilong
from experiments.long_context.ruler_suites import passkey, ruler
from experiments.long_context.samples import Part, Plan, Sample
from experiments.long_context.scores import place_of
from vvlen.tasks.haystack import DoesNotFit
from vvlen.tasks.short_ruler import TooFewWords
from vvlen.tasks.tokenizers import Tokenizer

# Why a task is not run at a length.
_RULES: dict[type[BaseException], str] = {
    DoesNotFit: 'A task is not run at a length at which one of its prompts does not '
                'fit, as the others alone would be easier.',
    TooFewWords: 'A list of words is not run at a length that takes more words than '
                 'there are.'}
_SHORTER = ('Choose shorter --config.lengths, or larger --config.uncommon_repeats and '
            '--config.common_repeats, which change the lists of all lengths')
_SUITES = {'passkey': passkey, 'babilong': babilong, 'ruler': ruler}


def lengths_of(config: Any, window: int) -> list[int]:
  """Returns the lengths of prompts in tokens, in ascending order."""
  given = config.lengths or [round(x * window) for x in config.multiples]
  return sorted(set(given))


def plan(config: Any, tokenizer: Tokenizer, window: int) -> Plan:
  """Returns the parts of a run of passkey, babilong or ruler.

  A task and length of which one prompt does not fit is left out, and named in the
  notes: without the prompts that are too long, the others would be easier than those of
  other lengths. So is one whose list of words would need more words than there are.

  Args:
    config: of the run.
    tokenizer: of the checkpoint.
    window: the number of tokens that config.multiples are multiples of. Without
      config.beyond_window, prompts and answers must fit into it.

  Raises:
    ValueError: if prompts with their answers exceed the window, no length is long
      enough for a task, or its settings contradict each other.
    OSError: if a text or file of bAbI cannot be read.
  """
  lengths = lengths_of(config, window)
  suite = _SUITES[config.suite](config, tokenizer)
  draws, facts, advice, around, bad, _ = suite
  begin = int(config.begin and tokenizer.begin is not None)
  more = begin + config.answer_tokens + max(around.values(), default=0)
  notes = [*(f'Not used: {line}' for line in bad),
           *_beyond(config, lengths, window, more)]
  if bad:
    facts['bad_lines'] = len(bad)
  ways: dict[type[BaseException], str] = {DoesNotFit: advice, TooFewWords: _SHORTER}
  parts: list[Part] = []
  run: list[tuple[str, int]] = []  # task and length of each
  not_run: dict[str, str] = {}  # place -> why
  causes: dict[type[BaseException], None] = {}
  for task, draw in draws.items():
    fits = False  # whether all prompts of a shorter length do, and so those of others
    for length in lengths:
      longest = length + begin + around.get(task, 0)
      part = Part(
          task, f'{task}_{length}', [longest] * config.num_samples, longest,
          config.answer_tokens, functools.partial(_named, draw, task, length))
      try:
        for index in range(1 if fits else config.num_samples):
          part.draw(index)
      except ValueError as error:
        cause = _cause(error)
        if cause not in ways:
          raise
        not_run[place_of(task, length)] = str(error)
        causes[cause] = None
      else:
        fits = True
        parts.append(part)
        run.append((task, length))
  if not parts:
    raise ValueError(f'{next(iter(not_run.values()))}. {ways[next(iter(causes))]}')
  if not_run:
    facts['not_run'] = [*not_run]
    notes += [*(f'Not run: {error}' for error in not_run.values()),
              *(f'{_RULES[cause]} {ways[cause]}.' for cause in causes)]
  return Plan(parts, facts, notes + suite.notes(run))


def _cause(error: BaseException) -> type[BaseException]:
  """Returns the kind of the error from which an error comes, or of its own."""
  while error.__cause__ is not None:
    error = error.__cause__
  return type(error)


def _named(draw: Callable[..., Sample], task: str, length: int, index: int) -> Sample:
  with naming(f'{place_of(task, length)}, sample {index}'):
    return draw(length, index)


def _beyond(config: Any, lengths: list[int], window: int, more: int) -> list[str]:
  """Returns a line about lengths beyond the window, or raises ValueError.

  Args:
    config: of the run.
    lengths: of prompts.
    window: the number of tokens that config.beyond_window is about.
    more: the most tokens of BOS, the answer and what surrounds a context.
  """
  beyond = [f'{n:,}' for n in lengths if n + more > window]
  if not beyond:
    return []
  around = ', answer and what surrounds the context' if (
      config.get('length_of') == 'context') else ' and answer'
  what = (f'With up to {more} tokens of BOS{around}, lengths beyond the window of '
          f'{window:,} tokens: {", ".join(beyond)}')
  if not config.beyond_window:
    raise ValueError(f'{what}. Choose shorter ones, or --config.beyond_window=True')
  return [f'{what}.']
