"""The samples of the suites whose prompts are made here.

Each sample has a random generator of its own, seeded by the seed of the run and the
sample's task, length and index. So it does not depend on the number of samples, nor on
the other lengths, tasks and batches. Questions of BABILong are seeded without the
length, so that all lengths have the same ones.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import hashlib
import json
import types
from typing import Any, NamedTuple
import zlib

from etils import epath
import numpy as np

from experiments.harness.parts import naming
from vvlen.evaluation import babilong as judge
from vvlen.tasks import (
  babi,
  babi_stories,
  babilong_prompts,
  documents,
  ruler_wording,
  short_ruler,
)
from vvlen.tasks.haystack import NOISE, split_sentences
from vvlen.tasks.tokenizers import Tokenizer
from vvlen.tasks.word_lists import ADJECTIVES, NOUNS

# Kind of values of needles -> words that they are drawn from; (): they are numbers.
NEEDLE_VALUES: dict[str, tuple[str, ...]] = {'numbers': (), 'words': ADJECTIVES}
# More than the tokens of any question of bAbI, which has at most 43 characters.
_QUESTION = 64


class Sample(NamedTuple):
  """A prompt, and what its answer is compared with.

  Names are those of the fields in `experiments.long_context.predictions`.
  """

  tokens: np.ndarray  # [n] int32, with BOS
  length: int
  depth: int | None
  answers: Sequence[str]
  others: Sequence[str]
  all_classes: Sequence[str]
  question: str
  chance: float
  settings: dict[str, Any]


class Part(NamedTuple):
  """The samples of one task and one length; with LongBench, of all lengths."""

  task: str
  name: str  # of its file of predictions
  widths: Sequence[int]  # the most tokens of each sample's prompt, by index
  longest: int  # the most tokens of any prompt
  answer_tokens: int
  draw: Callable[[int], Sample]  # index -> sample
  one_line: bool = False  # as in `experiments.long_context.generation.answer`


class Plan(NamedTuple):
  """What a run is to answer."""

  parts: list[Part]
  facts: dict[str, Any]  # what identifies its inputs, in config.json
  notes: list[str]  # to be printed


def generator(seed: int, *key: str | int) -> np.random.Generator:
  """Returns a random generator for a seed and words or numbers."""
  return np.random.default_rng(
      [seed, *(zlib.crc32(x.encode()) if isinstance(x, str) else x for x in key)])


def template_hash(template: Any) -> str:
  """Returns the SHA-256 of the words around prompts, given as plain values."""
  return hashlib.sha256(json.dumps(template).encode()).hexdigest()


def encoded(tokenizer: Tokenizer, text: str, begin: bool) -> np.ndarray:
  """Returns the tokens of a prompt, with BOS if wanted and if there is one."""
  start = [tokenizer.begin] if begin and tokenizer.begin is not None else []
  return np.concatenate([np.array(start, np.int32), tokenizer.encode(text)])


def lengths_of(config: Any, window: int) -> list[int]:
  """Returns the lengths of prompts in tokens, in ascending order."""
  given = config.lengths or [round(x * window) for x in config.multiples]
  return sorted(set(given))


def plan(config: Any, tokenizer: Tokenizer, window: int) -> Plan:
  """Returns the parts of a run of passkey, babilong or ruler.

  A task and length of which one prompt does not fit is left out, and named in the
  notes: without the prompts that are too long, the others would be easier than those of
  other lengths.

  Args:
    config: of the run.
    tokenizer: of the checkpoint.
    window: the number of tokens that config.multiples are multiples of. Without
      config.beyond_window, prompts and answers must fit into it.

  Raises:
    ValueError: if prompts with their answers exceed the window, or no length is long
      enough for a task.
    OSError: if a text or file of bAbI cannot be read.
  """
  lengths = lengths_of(config, window)
  suite = {'passkey': _passkey, 'babilong': _babilong, 'ruler': _ruler}[config.suite]
  draws, facts, advice, around = suite(config, tokenizer)
  begin = int(config.begin and tokenizer.begin is not None)
  more = begin + config.answer_tokens + max(around.values(), default=0)
  notes = _beyond(config, lengths, window, more)
  parts, not_run = [], {}
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
        not_run[place_of(task, length)] = str(error)
      else:
        fits = True
        parts.append(part)
  if not parts:
    raise ValueError(f'{next(iter(not_run.values()))}. {advice}')
  if not_run:
    facts['not_run'] = [*not_run]
    notes += [*(f'Not run: {error}' for error in not_run.values()),
              'A task is not run at a length at which one of its prompts does not fit. '
              f'{advice}.']
  return Plan(parts, facts, notes)


def place_of(task: str, length: int) -> str:
  """Returns the name of a task at a length for messages."""
  return f'{task} at {length:,} tokens'


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


def _sentences(config: Any, default: Callable[[], Sequence[str]]) -> list[str]:
  """Returns the sentences of the text around what is asked for."""
  if not config.text:
    return list(default())
  text = '\n'.join(documents.read_documents([config.text]))[:config.num_characters]
  return split_sentences(text)


def _facts(sentences: Sequence[str], template: Any, **more: Any) -> dict[str, Any]:
  return {'text_sha256': documents.fingerprint(sentences),
          'template_sha256': template_hash(template), **more}


class _Suite(NamedTuple):
  draws: dict[str, Callable[[int, int], Sample]]  # {task: draw(length, index)}
  facts: dict[str, Any]
  advice: str = 'Choose longer --config.lengths'  # where prompts do not fit
  # {task: the most tokens of a prompt beyond its length}
  around: Mapping[str, int] = types.MappingProxyType({})


def _passkey(config: Any, tokenizer: Tokenizer) -> _Suite:
  sentences = _sentences(config, lambda: NOISE)
  wording = {'short': ruler_wording.SHORT_PASSKEY,
             'published': ruler_wording.LONG_PASSKEY}[config.wording]

  def draw(length: int, index: int) -> Sample:
    depth = config.depths[index % len(config.depths)]
    drawn = short_ruler.passkey(
        generator(config.seed, 'passkey', length, index), length, tokenizer, depth,
        sentences=sentences, digits=config.digits, wording=wording)
    chance = 1 / (9 * 10 ** (config.digits - 1))
    return _of_ruler(config, tokenizer, length, drawn, chance, round(100 * depth))

  return _Suite({'passkey': draw}, _facts(sentences, wording))


def _ruler(config: Any, tokenizer: Tokenizer) -> _Suite:
  sentences = _sentences(config, lambda: NOISE)
  kind = {'short': 'SHORT', 'published': 'RULER'}[config.wording]
  needles, variables, words = (
      getattr(ruler_wording, f'{kind}_{name}') for name in
      ('NEEDLES', 'VARIABLES', 'WORDS'))
  values = NEEDLE_VALUES[config.needle_values]
  niah = functools.partial(short_ruler.niah, sentences=sentences, wording=needles,
                           digits=config.digits, words=values)
  tasks: dict[str, Callable[..., short_ruler.Sample]] = {
      'niah_single': niah,
      'niah_multikey': functools.partial(niah, num_keys=config.num_keys),
      'niah_multivalue': functools.partial(niah, num_values=config.num_values),
      'niah_multiquery': functools.partial(
          niah, num_keys=max(config.num_keys, config.num_queries),
          num_queries=config.num_queries),
      'variable_tracking': functools.partial(
          short_ruler.variable_tracking, sentences=sentences, wording=variables,
          num_hops=config.num_hops, num_chains=config.num_chains),
      'common_words': functools.partial(
          short_ruler.common_words, wording=words, num_common=config.num_common,
          common_repeats=config.common_repeats,
          uncommon_repeats=config.uncommon_repeats),
  }
  letters = variables.names.count('A')
  kinds = {'variable_tracking': 26**letters * 10 ** (len(variables.names) - letters),
           'common_words': len(NOUNS)}

  def draw(task: str, length: int, index: int) -> Sample:
    drawn = tasks[task](generator(config.seed, task, length, index), length, tokenizer)
    # As many different guesses as there are answers.
    chance = len(drawn.answers) / kinds.get(
        task, len(values) or 9 * 10 ** (config.digits - 1))
    return _of_ruler(config, tokenizer, length, drawn, min(chance, 1.0), None)

  return _Suite({task: functools.partial(draw, task) for task in config.tasks},
                _facts(sentences, [needles, variables, words]))


def _of_ruler(
    config: Any, tokenizer: Tokenizer, length: int, drawn: short_ruler.Sample,
    chance: float, depth: int | None,
) -> Sample:
  return Sample(
      encoded(tokenizer, drawn.prompt, config.begin), length, depth, drawn.answers,
      drawn.others, (), '', chance,
      {'wording': config.wording, 'depths': [round(x, 4) for x in drawn.depths]})


def _babilong(config: Any, tokenizer: Tokenizer) -> _Suite:
  sentences = _sentences(config, lambda: split_sentences(
      '\n'.join(documents.standard_library())[:config.num_characters]))
  questions = {task: _questions(config, task) for task in config.tasks}
  depths = [tuple(x) for x in config.depths] or [(0.0, 1.0)]

  def draw(task: str, length: int, index: int) -> Sample:
    question = questions[task](index)
    depth = depths[index % len(depths)]
    hidden = babilong_prompts.build(
        generator(config.seed, task, length, index), task, question, sentences, length,
        tokenizer, depth=depth, of_prompt=config.length_of == 'prompt',
        parts=config.parts)
    # The quarter of the first fact that is needed, as 0, 25, 50 or 75.
    first = min(hidden.depths[i] for i in question.support)
    settings = {'facts': question.facts, 'support': question.support,
                'depths': [round(x, 4) for x in hidden.depths], 'between': depth,
                'parts': list(config.parts)}
    return Sample(
        encoded(tokenizer, hidden.prompt, config.begin), length, 25 * int(4 * first),
        [question.answer], [], (), question.question,
        guess(task, question.question, question.answer), settings)

  parts = list(config.parts)
  blanks = {task: babilong_prompts.prompt(task, '', '', parts) for task in config.tasks}
  template = [[task, parts, blank] for task, blank in blanks.items()]
  around = {task: len(tokenizer.encode(blank)) + _QUESTION
            for task, blank in blanks.items() if config.length_of == 'context'}
  stories = [_file(config, task).read_text() for task in config.tasks if config.babi]
  advice = ('Choose longer --config.lengths, a smaller --config.most_facts or, to '
            'leave out instruction and examples, --config.parts="()"')
  return _Suite(
      {task: functools.partial(draw, task) for task in config.tasks},
      _facts(sentences, template, babi_sha256=documents.fingerprint(stories)), advice,
      around)


def _questions(config: Any, task: str) -> Callable[[int], babi.Question]:
  """Returns a function from the index of a sample to its question."""
  if not config.babi:
    return functools.cache(lambda index: babi_stories.draw_question(
        generator(config.seed, task, index), task, config.most_facts or None))
  path = _file(config, task)
  there = [question for question in babi.read_questions(path)
           if not config.most_facts or len(question.facts) <= config.most_facts]
  if config.num_samples > len(there):
    raise ValueError(f'{path} has {len(there)} questions'
                     f'{" with so few facts" if config.most_facts else ""}, fewer than '
                     f'config.num_samples {config.num_samples}')
  order = generator(config.seed, task).permutation(len(there))
  return lambda index: there[order[index]]


def _file(config: Any, task: str) -> epath.Path:
  """Returns the file of bAbI with the questions of a task."""
  folder = epath.Path(config.babi)
  if not folder.is_dir():
    raise FileNotFoundError(f'{folder}: no such folder')
  paths = sorted(folder.glob(f'{task}_*_test.txt'))
  if len(paths) != 1:
    raise ValueError(f'{folder} must have one file {task}_…_test.txt: {len(paths)}')
  return paths[0]


def guess(task: str, question: str, answer: str) -> float:
  """Returns the score of a guess without the context: one over the possible answers.

  These are the labels of the task of the same kind as the answer, things or not, that
  the question does not name.
  """
  labels = set(judge.LABELS[task])
  things = labels & {x.lower() for x in babi_stories.THINGS}
  kind = things if answer.strip().lower() in things else labels - things
  return 1 / max(1, len([x for x in kind if x not in question.lower()]))

