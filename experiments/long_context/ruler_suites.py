"""The tasks of the suites passkey and ruler."""

from collections.abc import Callable
import functools
from typing import Any

from experiments.long_context.samples import (
    encoded,
    facts_of,
    generator,
    Sample,
    sentences_of,
    Suite,
)
from vvlen.tasks import ruler_wording, short_ruler
from vvlen.tasks.haystack import NOISE
from vvlen.tasks.tokenizers import Tokenizer
from vvlen.tasks.word_lists import ADJECTIVES

# Kind of values of needles -> words that they are drawn from; (): they are numbers.
NEEDLE_VALUES: dict[str, tuple[str, ...]] = {'numbers': (), 'words': ADJECTIVES}


def passkey(config: Any, tokenizer: Tokenizer) -> Suite:
  """Returns the task of passkey, each sample at one of config.depths."""
  sentences = sentences_of(config, lambda: NOISE)
  wording = {'short': ruler_wording.SHORT_PASSKEY,
             'published': ruler_wording.LONG_PASSKEY}[config.wording]

  def draw(length: int, index: int) -> Sample:
    depth = config.depths[index % len(config.depths)]
    drawn = short_ruler.passkey(
        generator(config.seed, 'passkey', length, index), length, tokenizer, depth,
        sentences=sentences, digits=config.digits, wording=wording)
    return _of_ruler(config, tokenizer, length, drawn, round(100 * depth))

  return Suite({'passkey': draw}, facts_of(sentences, wording))


def ruler(config: Any, tokenizer: Tokenizer) -> Suite:
  """Returns the tasks of ruler."""
  sentences = sentences_of(config, lambda: NOISE)
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

  def draw(task: str, length: int, index: int) -> Sample:
    drawn = tasks[task](generator(config.seed, task, length, index), length, tokenizer)
    return _of_ruler(config, tokenizer, length, drawn, None)

  return Suite({task: functools.partial(draw, task) for task in config.tasks},
                facts_of(sentences, [needles, variables, words]))


def _of_ruler(
    config: Any, tokenizer: Tokenizer, length: int, drawn: short_ruler.Sample,
    depth: int | None,
) -> Sample:
  return Sample(
      encoded(tokenizer, drawn.prompt, config.begin), length, depth, drawn.answers,
      drawn.others, (), '', drawn.chance,
      {'wording': config.wording, 'depths': [round(x, 4) for x in drawn.depths]})
