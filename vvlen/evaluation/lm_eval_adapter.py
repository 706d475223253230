"""Lets lm-evaluation-harness measure a Llama of vvlen: pip install 'vvlen[harness]'.

  folder = 'path/to/llama'
  model, variables = load_checkpoint(folder)
  tokenizer = tokenizer_of(folder, model.vocab_size)
  subject = VvlenLM(model, variables, tokenizer, ends=ends_of(folder))
  lm_eval.simple_evaluate(model=subject, tasks=[…])

Log likelihoods and greedy answers are those of lm_eval's own `hf` on the same
checkpoint, up to rounding, by its conventions:

  loglikelihood          log p(continuation | context), and whether each token of the
                         continuation is the most probable one
  loglikelihood_rolling  log p(text), in windows of `max_length` tokens, of which only
                         the last may overlap the one before it; BOS stands before the
                         text, and a BOS of the text's own is scored too
  generate_until         the most probable tokens, up to a stop string

Inputs that are too long lose their beginning, with BOS, and a warning counts them. Text
that looks like a special token, such as '<s>', is encoded as ordinary characters.

Sampling, beams and chat templates are refused. Stop strings are searched for after a
batch is done, so every answer takes the largest number of steps unless all answers of
its batch end earlier. This is the only module that imports lm_eval.
"""

from collections.abc import Iterator, Mapping, Sequence
import functools
import logging
from typing import Any

import jax
import numpy as np

try:
  from lm_eval.api.model import TemplateLM
  from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
  from tqdm import tqdm
except ImportError as error:
  raise ImportError(
      "lm-evaluation-harness is missing: pip install 'vvlen[harness]'") from error

from vvlen.evaluation.programs import chunk_size
from vvlen.evaluation.widths import Batch, batches, continuations, padded, width_of
from vvlen.models.llama.model import Llama, output_table
from vvlen.models.llama.saving import gather
from vvlen.objectives.chunked_rows import token_scores

_log = logging.getLogger(__name__)

_ANSWER_TOKENS = 256  # if a task does not say how many, as with lm_eval's `hf`
# The names that tasks give to the length limit of an answer; the first present counts.
_ANSWER_FIELDS = (
    'max_gen_toks', 'max_new_tokens', 'max_tokens', 'max_completion_tokens')
# Fields that only sampling uses.
_OF_SAMPLING = ('top_k', 'top_p', 'min_p')


class VvlenLM(TemplateLM):
  """A Llama behind the interface of lm_eval.

  It compiles one program for each width of inputs, of which there are few
  (`vvlen.evaluation.widths.width_of`); `generate_until` also compiles one for each
  number of new tokens.

  Args:
    model: a Llama.
    variables: of the model. They may be sharded over a mesh: then make all calls under
      jax.set_mesh. The number of devices for rows must divide `batch_size`.
    tokenizer: of the model, a `vvlen.tasks.tokenizers.Tokenizer`.
    ends: the tokens that end an answer, as `vvlen.models.llama.ends_of` returns them.
    batch_size: number of inputs that the model reads at once.
    max_length: the largest number of tokens of one input, in `generate_until` of prompt
      and answer together; None: model.max_length, the training length.
    begin: whether the tokenizer's BOS, if it has one, stands before each text. lm_eval
      decides this by the file of the tokenizer or its argument `add_bos_token`.
    about: what lm_eval writes beside its results, such as the hash of the checkpoint.

  Raises:
    ValueError: if a number is not positive, or a token is not in the vocabulary.
  """

  def __init__(
      self,
      model: Llama,
      variables: dict[str, Any],
      tokenizer: Any,
      *,
      ends: Sequence[int] = (),
      batch_size: int = 8,
      max_length: int | None = None,
      begin: bool = True,
      about: Mapping[str, Any] | None = None,
  ):
    super().__init__()
    max_length = model.max_length if max_length is None else max_length
    for name, number in (('batch_size', batch_size), ('max_length', max_length)):
      if number < 1:
        raise ValueError(f'{name} must be positive: {number}')
    if tokenizer.vocab_size > model.vocab_size:
      raise ValueError(f'the tokenizer has {tokenizer.vocab_size} tokens, the model '
                       f'{model.vocab_size}: it belongs to another model')
    if wrong := [x for x in ends if not 0 <= x < model.vocab_size]:
      raise ValueError(f'ends must lie in 0..{model.vocab_size - 1}: {wrong}')
    self.batch_size, self.max_length = batch_size, max_length
    self._model, self._variables = model, variables
    self._tokenizer, self._ends = tokenizer, tuple(ends)
    self._about = dict(about or {})
    self._begin = [tokenizer.begin] if begin and tokenizer.begin is not None else []

  @property
  def eot_token_id(self) -> int:
    """The first token that ends a text.

    Raises:
      ValueError: if there is none.
    """
    if not self._ends:
      raise ValueError('no token is known that ends a text: VvlenLM(…, ends=…)')
    return self._ends[0]

  @property
  def prefix_token_id(self) -> int:
    """BOS, or without one a token that ends a text; it precedes texts without context.

    Raises:
      ValueError: if there is neither.
    """
    begin = self._tokenizer.begin
    return self.eot_token_id if begin is None else begin

  def tok_encode(
      self, string: str, add_special_tokens: bool | None = None, **_: Any
  ) -> list[int]:
    """Returns the tokens of a text, with BOS unless add_special_tokens is False."""
    first = [] if add_special_tokens is False else self._begin
    return [*first, *self._tokenizer.encode(string).tolist()]

  def loglikelihood_rolling(
      self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[float]:
    """Returns log p(text) of each request in nats; its `args` are (text,)."""
    texts = [request.args[0] for request in requests]
    windows = [
        [make_disjoint_window(window) for window in get_rolling_token_windows(
            token_list=self.tok_encode(text), prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length, context_len=1)]
        for text in texts]
    found = iter(self._loglikelihood_tokens(
        [(None, *window) for own in windows for window in own], disable_tqdm))
    sums = [float(sum(next(found)[0] for _ in own)) for own in windows]
    for text, value in zip(texts, sums, strict=True):
      self.cache_hook.add_partial('loglikelihood_rolling', (text,), value)
    return sums

  def _loglikelihood_tokens(
      self, requests: Sequence[tuple[Any, list[int], list[int]]],
      disable_tqdm: bool = False, **_: Any,
  ) -> list[tuple[float, bool]]:
    """Scores continuations.

    Args:
      requests: (the texts or None, tokens of the context, tokens of the continuation).
      disable_tqdm: whether to hide the progress bar.

    Returns:
      For each request, log p(continuation | context) in nats, and whether each of its
      tokens is the most probable one.

    Raises:
      ValueError: if a continuation has no tokens, or more than `max_length`.
    """
    rows, counts = [], [len(after) for _, _, after in requests]
    for texts, before, after in requests:
      if not 1 <= len(after) <= self.max_length:
        raise ValueError(f'a continuation has {len(after)} tokens, not 1 to '
                         f'{self.max_length}: {texts!r:.200}')
      rows.append([*(before or [self.prefix_token_id]), *after])
    # The last token is only predicted.
    rows = self._last(rows, self.max_length + 1)
    widths = [width_of(len(row) - 1, self.max_length) for row in rows]
    answers: list[Any] = [None] * len(rows)
    for width, own in self._shown(widths, 'log likelihoods', disable_tqdm):
      found = _scores(self._model, self._variables,
                      *padded([rows[i] for i in own], width + 1, self.batch_size))
      losses, is_best = (gather(x, False) for x in found)
      for i, loss, best in zip(own, losses, is_best, strict=False):
        scored = slice(len(rows[i]) - 1 - counts[i], len(rows[i]) - 1)
        nats = -float(loss[scored].sum(dtype=np.float64))
        answers[i] = nats, bool(best[scored].all())
        if requests[i][0] is not None:
          self.cache_hook.add_partial('loglikelihood', requests[i][0], answers[i])
    return answers

  def generate_until(
      self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[str]:
    """Returns greedy answers.

    Args:
      requests: whose `args` are (prompt, fields). The field `until` holds stop strings;
        one of `max_gen_toks`, `max_new_tokens`, `max_tokens` and
        `max_completion_tokens` limits the tokens of an answer, to 256 without any.
      disable_tqdm: whether to hide the progress bar.

    Returns:
      Texts, without the stop string and what follows it.

    Raises:
      ValueError: if a field asks for anything but greedy answers, or an answer of so
        many tokens leaves no room for its prompt.
    """
    asked = [_asked(request.args[1]) for request in requests]
    answers = [''] * len(requests)
    for num_tokens in sorted({count for _, count in asked}):
      most = self.max_length - num_tokens
      if most < 1:
        raise ValueError(f'{num_tokens} tokens of an answer leave no room for a prompt '
                         f'in {self.max_length}: choose another '
                         'gen_kwargs={"max_gen_toks": …} or VvlenLM(…, max_length=…)')
      mine = [i for i, (_, count) in enumerate(asked) if count == num_tokens]
      prompts = [self.tok_encode(requests[i].args[0]) for i in mine]
      prompts = self._last([x or [self.prefix_token_id] for x in prompts], most)
      widths = [width_of(len(prompt), most) for prompt in prompts]
      for width, own in self._shown(widths, 'answers', disable_tqdm):
        found = continuations(
            self._model, self._variables, [prompts[i] for i in own], width,
            self.batch_size, num_tokens, self._ends)
        for i, tokens in zip(own, found, strict=True):
          request = requests[mine[i]]
          answer = _before(self._tokenizer.decode(tokens), asked[mine[i]][0])
          answers[mine[i]] = answer
          self.cache_hook.add_partial('generate_until', request.args, answer)
    return answers

  def get_model_info(self) -> dict[str, Any]:
    """Returns what lm_eval writes beside its results."""
    return {
        'model_num_parameters': sum(x.size for x in jax.tree.leaves(self._variables)),
        'max_length': self.max_length, 'begin': bool(self._begin), **self._about}

  @property
  def tokenizer_name(self) -> str:
    """What lm_eval asks for if it is to use a chat template.

    Raises:
      ValueError: always.
    """
    raise ValueError('chat templates are not supported: apply_chat_template=False')

  def _last(self, rows: list[list[int]], most: int) -> list[list[int]]:
    """Returns the last `most` tokens of each row and warns how many rows are cut."""
    if cut := sum(len(row) > most for row in rows):
      _log.warning('%d of %d inputs have more than %d tokens and lose their beginning',
                   cut, len(rows), most)
    return [row[-most:] for row in rows]

  def _shown(self, widths: list[int], what: str, disable_tqdm: bool) -> Iterator[Batch]:
    """Yields batches, the widest first, and shows how many are done."""
    found = batches(widths, self.batch_size)[::-1]
    return iter(tqdm(found, desc=what, unit='batch', disable=disable_tqdm))


@functools.partial(jax.jit, static_argnums=0)
def _scores(model, variables, tokens, lengths):
  """Scores all tokens but the first: losses and is_best [B, n − 1] of tokens [B, n]."""
  hidden = model.apply(variables, tokens[:, :-1], length=lengths - 1, method='hidden')
  table = output_table(model, variables['params'])
  size = chunk_size(hidden.shape[0], hidden.shape[1], model.vocab_size)
  return token_scores(hidden, table, tokens[:, 1:], chunk_size=size)


def _asked(fields: Mapping[str, Any]) -> tuple[list[str], int]:
  """Returns the stop strings and the largest number of tokens of an answer.

  Raises:
    ValueError: if the fields ask for anything but a greedy answer.
  """
  left = {name: x for name, x in fields.items() if x is not None}
  stops = left.pop('until', [])
  counts = [left.pop(name) for name in _ANSWER_FIELDS if name in left]
  drawn, temperature = left.pop('do_sample', None), left.pop('temperature', 0)
  if drawn or (drawn is None and temperature > 0):
    raise ValueError(
        f'answers are greedy, but the task asks for samples: {dict(fields)}. Set '
        'gen_kwargs={"do_sample": False, "temperature": 0}')
  for name in _OF_SAMPLING:
    left.pop(name, None)
  if left.pop('num_beams', 1) != 1 or left:
    raise ValueError('answers are greedy; the only fields are until, max_gen_toks, '
                     f'do_sample and temperature: {dict(fields)}')
  count = int(counts[0]) if counts else _ANSWER_TOKENS
  if count < 1:
    raise ValueError(f'an answer must have at least one token: {dict(fields)}')
  return [stops] if isinstance(stops, str) else list(stops), count


def _before(text: str, stops: Sequence[str]) -> str:
  """Returns the text, cut at each stop string in turn, as lm_eval does."""
  for stop in filter(None, stops):
    text = text.partition(stop)[0]
  return text
