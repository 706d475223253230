r"""Writes answered prompts, for small models to learn the tasks from.

  python -m experiments.long_context.training_text --folder=runs/tasks \
      --documents=150000
  python -m experiments.correlation --config=configs/correlation.py:pilot \
      --config.run_models="('rope',)" --workdir=runs/pilot
  python -m experiments.long_context --suite=ruler --config.lengths='(119, 247, 503)' \
      --config.needle_values=words \
      --checkpoint=runs/pilot/models/rope/seed_0 --workdir=runs/tasks_ruler
  python -m experiments.long_context --suite=babilong --config.parts='()' \
      --config.lengths='(119, 247, 503)' --config.most_facts=10 \
      --text=runs/tasks/filler.txt \
      --checkpoint=runs/pilot/models/rope/seed_0 --workdir=runs/tasks_babilong

A document is a prompt with its answer, as `experiments.long_context` asks for it: of
RULER's short tasks, of a pass key, or of BABILong without instructions. For BABILong,
give the fields above: by default its prompts are longer and in another text. A prompt
of 119 tokens fills 128, with BOS and the study's 8 for the answer. Needles have words
as values, unless --needle_values=numbers. Tasks take turns. The number of
tokens, answer included, is drawn evenly from --shortest to --longest. After each such
document there are --exercises of `experiments.long_context.exercises`, which are there
to teach small models to look things up. The tokenizer is byte-level BPE, trained on
prompts of these lengths; each digit is a token, and a word the same one wherever it
stands. The random numbers are not those of the suites. Runs without JAX.
"""

import argparse
from collections.abc import Callable, Iterator
import functools
import json
from typing import NamedTuple

from etils import epath
import numpy as np

from experiments.harness import errors, paths
from experiments.long_context import shortcuts
from experiments.long_context.babilong_suite import guess
from experiments.long_context.exercises import EXERCISES
from experiments.long_context.ruler_suites import NEEDLE_VALUES
from experiments.long_context.samples import generator
from vvlen.reporting import results
from vvlen.tasks import babi_stories, babilong_prompts, short_ruler
from vvlen.tasks.haystack import NOISE
from vvlen.tasks.tokenizers import byte_tokenizer, load_tokenizer, Tokenizer

# The benchmark of small models.
SMALL = ('niah_single', 'niah_multikey', 'passkey', 'qa1')
_TRIES = 50  # draws of the length and the prompt of a document
_FOR_TOKENIZER = 2_000  # documents


class Answered(NamedTuple):
  """A prompt and its answers."""

  prompt: str
  answers: tuple[str, ...]  # all are asked for
  question: str = ''  # of BABILong, for `vvlen.evaluation.babilong.is_correct`
  # The score of a guess without the context.
  chance: float = 0.0
  # The score of an answer that takes a fitting word of the context whatever is asked:
  # that of another key as likely as the right one, or the label that is named last;
  # `chance` where there is none.
  shortcut: float = 0.0
  others: tuple[str, ...] = ()  # wrong answers of the same kind in the prompt

  @property
  def answer(self) -> str:
    """Returns what follows the prompt."""
    return f' {", ".join(self.answers)}.'

  @property
  def text(self) -> str:
    """Returns prompt and answers, as one text."""
    return f'{self.prompt}{self.answer}'


# (generator, tokens of the prompt, tokenizer) -> prompt and answer
Draw = Callable[[np.random.Generator, int, Tokenizer], Answered]


def tasks(most_facts: int, values: str = 'numbers') -> dict[str, Draw]:
  """Returns the tasks, with the sizes of configs/long_context.py.

  Args:
    most_facts: of a story of BABILong.
    values: of needles, a key of `NEEDLE_VALUES`.
  """
  words = NEEDLE_VALUES[values]
  niah = functools.partial(short_ruler.niah, words=words)
  of_ruler: dict[str, Callable[..., short_ruler.Sample]] = {
      'niah_single': niah,
      'niah_multikey': functools.partial(niah, num_keys=4),
      'niah_multivalue': functools.partial(niah, num_values=4),
      'niah_multiquery': functools.partial(niah, num_keys=4, num_queries=4),
      'variable_tracking': short_ruler.variable_tracking,
      'common_words': short_ruler.common_words,
      'passkey': lambda rng, n, tokenizer: short_ruler.passkey(
          rng, n, tokenizer, rng.uniform()),
  }
  return {
      **{name: functools.partial(_of_ruler, draw) for name, draw in of_ruler.items()},
      **{f'qa{i}': functools.partial(_of_babilong, f'qa{i}', most_facts)
         for i in range(1, 6)},
  }


def _of_ruler(
    draw: Callable[..., short_ruler.Sample], rng: np.random.Generator,
    num_tokens: int, tokenizer: Tokenizer,
) -> Answered:
  """Draws a prompt of RULER or of a pass key.

  Args:
    draw: a task of `short_ruler`.
    rng: of all random numbers.
    num_tokens: of the prompt.
    tokenizer: counts them.

  Raises:
    ValueError: if the task does not fit into the tokens.
  """
  sample = draw(rng, num_tokens, tokenizer)
  count, others = len(sample.answers), len(sample.others)
  return Answered(
      sample.prompt, sample.answers, chance=sample.chance,
      shortcut=shortcuts.of_needles(count, others, sample.chance),
      others=sample.others)


def _of_babilong(
    task: str, most_facts: int, rng: np.random.Generator, num_tokens: int,
    tokenizer: Tokenizer,
) -> Answered:
  """Draws a prompt of BABILong, without instruction and examples.

  Args:
    task: 'qa1' to 'qa5'.
    most_facts: of its story.
    rng: of all random numbers.
    num_tokens: of the prompt.
    tokenizer: counts them.

  Raises:
    ValueError: if the story does not fit into the tokens.
  """
  question = babi_stories.draw_question(rng, task, most_facts)
  hidden = babilong_prompts.build(
      rng, task, question, NOISE, num_tokens, tokenizer, parts=())
  chance = guess(task, question.question, question.answer)
  return Answered(
      hidden.prompt, (question.answer,), question.question, chance,
      shortcuts.of_story(task, question.facts, question.question, question.answer))


def documents(
    draws: dict[str, Draw], count: int, lengths: tuple[int, int], tokenizer: Tokenizer,
    seed: int, exercises: int = 0,
) -> Iterator[str]:
  """Yields texts of the tasks in turn, and exercises between them.

  Args:
    draws: the tasks.
    count: of documents, exercises included.
    lengths: the fewest and most tokens of a text of a task, answer included.
    tokenizer: counts them.
    seed: of all random numbers. Document i does not depend on `count`.
    exercises: how many follow each text of a task. They may have any length.

  Raises:
    ValueError: if a task does not fit into the most tokens.
  """
  names = list(draws)
  for i in range(count):
    turn, place = divmod(i, 1 + exercises)
    if place:
      draw = EXERCISES[(turn * exercises + place - 1) % len(EXERCISES)]
      yield draw(generator(seed, 'training', 'exercise', i))
    else:
      yield _document(draws, names[turn % len(names)], lengths, tokenizer, seed, i)


def _document(
    draws: dict[str, Draw], name: str, lengths: tuple[int, int], tokenizer: Tokenizer,
    seed: int, i: int,
) -> str:
  """Returns document i, a text of a task."""
  rng = generator(seed, 'training', name, i)
  says: object = 'it has more'
  for _ in range(_TRIES):
    length = int(rng.integers(lengths[0], lengths[1] + 1))
    try:
      drawn = draws[name](rng, length, tokenizer)
      # The answer's tokens are known now, and the prompt is drawn with room for them.
      more = len(tokenizer.encode(drawn.answer))
      drawn = draws[name](rng, length - more, tokenizer)
    except ValueError as error:
      says = error
      continue
    if len(tokenizer.encode(drawn.text)) <= lengths[1]:
      return drawn.text
  raise ValueError(f'{name} was not drawn with {lengths[1]} tokens or fewer: {says}')


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> str:
  """Returns a tokenizer.json: byte-level BPE with a token for each digit.

  A word is the same token after a space and at the beginning of a line, and the first
  digit of a number includes the space before it: a model that looks up what followed
  the tokens which it has just read should find them. So a space is put before each
  line, and is taken away again where tokens become text.
  """
  import tokenizers
  from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

  library = tokenizers.Tokenizer(models.BPE())
  library.normalizer = normalizers.Sequence([
      normalizers.Prepend(' '), normalizers.Replace('\n', '\n ')])
  library.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(r' ?\d'), 'isolated'),
      pre_tokenizers.ByteLevel(add_prefix_space=False)])
  library.decoder = decoders.Sequence([
      decoders.ByteLevel(), decoders.Replace('\n ', '\n'), decoders.Strip(' ', 1, 0)])
  library.train_from_iterator(texts, trainers.BpeTrainer(
      vocab_size=vocab_size, special_tokens=['<s>'], show_progress=False,
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  return library.to_str()


def write(
    folder: epath.Path, draws: dict[str, Draw], count: int, lengths: tuple[int, int],
    vocab_size: int, seed: int, exercises: int = 0,
) -> None:
  """Writes text.jsonl, filler.txt and the tokenizer's two files into a folder."""
  results.write_text(folder / 'filler.txt', '\n'.join(NOISE) + '\n')
  results.write_text(folder / 'tokenizer_config.json',
                     json.dumps({'bos_token': '<s>', 'add_bos_token': True}))
  # The first tokenizer is trained on texts whose length is in bytes: a few times as
  # many as tokens, and enough for any task. Long lists have other words than short
  # ones, so a second one is trained on texts of the wanted number of tokens, as the
  # first one counts them.
  wide = max(4 * lengths[1], 400), max(8 * lengths[1], 800)
  tokenizer, sizes = byte_tokenizer(), wide
  for _ in range(2):
    texts = documents(draws, min(count, _FOR_TOKENIZER), sizes, tokenizer, seed + 1)
    results.write_text(folder / 'tokenizer.json', train_tokenizer(texts, vocab_size))
    tokenizer, sizes = load_tokenizer(folder), lengths
  texts = documents(draws, count, lengths, tokenizer, seed, exercises)
  results.write_text(folder / 'text.jsonl',
                     ''.join(f'{json.dumps({"text": text})}\n' for text in texts))


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--folder', required=True, help='where the files are written')
  parser.add_argument('--documents', type=int, default=24_000)
  parser.add_argument('--shortest', type=int, default=48, help='tokens of a document')
  parser.add_argument('--longest', type=int, default=128, help='tokens of a document')
  parser.add_argument('--vocabulary', type=int, default=1024, help='tokens there are')
  parser.add_argument('--tasks', default=','.join(SMALL),
                      help='names, with commas; by default those of small models')
  parser.add_argument('--needle_values', choices=(*NEEDLE_VALUES,), default='words')
  parser.add_argument('--most_facts', type=int, default=10,
                      help='of a story of BABILong')
  parser.add_argument('--exercises', type=int, default=4,
                      help='after each document with a prompt')
  parser.add_argument('--seed', type=int, default=0)
  parser.error = lambda text: errors.refuse(ValueError(text))  # type: ignore
  args = parser.parse_args()
  with errors.reported():
    draws = tasks(args.most_facts, args.needle_values)
    names = [name for name in args.tasks.split(',') if name]
    if unknown := [name for name in names if name not in draws]:
      raise ValueError(f'--tasks must be of {", ".join(draws)}: {unknown[0]!r}')
    if not names:
      raise ValueError('--tasks must have a name or more')
    if not 0 < args.shortest <= args.longest or args.documents < 1 or min(
        args.seed, args.exercises) < 0:
      raise ValueError('--documents, --shortest and --longest must be positive, and '
                       'the longest not below the shortest; --seed and --exercises '
                       'not negative')
    if args.vocabulary < 300:
      raise ValueError('--vocabulary must be at least 300, as bytes take 256: '
                       f'{args.vocabulary}')
    folder = paths.usable(args.folder, '--folder')
    paths.check_reachable(folder, '--folder')
    write(epath.Path(folder), {name: draws[name] for name in names}, args.documents,
          (args.shortest, args.longest), args.vocabulary, args.seed, args.exercises)
    print(f'{args.documents:,} documents in {folder}/text.jsonl, and their '
          'tokenizer.json.')


if __name__ == '__main__':
  main()
