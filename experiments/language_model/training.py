"""Text, model and loss of `experiments.language_model`."""

from collections.abc import Callable, Iterable, Iterator
import functools
import hashlib
import importlib.metadata
import math
import pathlib
import platform
from typing import Any, NamedTuple

from etils import epath
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import machine
from experiments.language_model import measuring
from vvlen.models import llama
from vvlen.models.llama.initial_weights import around_common_vector
from vvlen.models.llama.layers import stacked
from vvlen.models.llama.model import Llama, output_table
from vvlen.models.rope import Rope
from vvlen.objectives.chunked import chunked_two_window_loss
from vvlen.objectives.windows import offset_range, sample_offset, two_windows
from vvlen.sharding.mesh import gathered
from vvlen.tasks import documents, tokenizers, tokens
from vvlen.tasks.tokenizers import Tokenizer
from vvlen.tasks.tokens import Documents, Stream
from vvlen.training import optimizer
from vvlen.training.step import Problem

_LONG = 2**25  # characters; the tokens of longer texts are in a file
_WORDS = 8  # the vocabulary size of a new model is a multiple of it


class Text(NamedTuple):
  """A text, in tokens."""

  documents: Documents  # for training, each [n] int32
  held_out: Stream  # all held-out documents joined
  tokenizer: Tokenizer
  facts: dict[str, Any]  # plain values that identify the text, for config.json


def read_text(config: Any) -> Text:
  """Reads, splits and encodes the text of a configuration.

  The text is read once to identify it, one document at a time. The tokens of a short
  text are held in memory. Those of a long one are in a file in the cache, which
  processes map into their memory; they hold about 24 bytes for each document. If that
  file does not exist yet, the text is read again to write it.

  Raises:
    ValueError: if the text is empty, binary or too short for one window, or changes
      while it is read.
    OSError: if the text cannot be read, or the file not be written.
  """
  text = config.text
  if text.path:
    read = functools.partial(documents.stream_documents, [text.path])
  else:
    read = documents.stream_standard_library
  whole = documents.survey(read())
  path = _tokenizer_path(config)
  if path:
    tokenizer = tokenizers.load_tokenizer(path)
  elif config.checkpoint:
    model = llama.read_model(config.checkpoint)
    tokenizer = tokenizers.tokenizer_of(config.checkpoint, model.vocab_size)
  else:
    tokenizer = tokenizers.byte_tokenizer()
  kind = hashlib.sha256(path.read_bytes() if path else b'bytes').hexdigest()
  count = len(whole.lengths)
  if count == 1:  # a single document is cut in two
    train, held_out = np.array([0]), np.array([1])
  else:
    train, held_out = documents.split_numbers(
        whole.lengths, text.held_out, config.seed)
  parts = functools.partial(_parts, config, read, whole)
  if whole.lengths.sum() < _LONG:
    encoded = tokens.encode(parts(), tokenizer)
  else:
    cut = text.held_out if count == 1 else ''
    library = importlib.metadata.version('tokenizers') if path else ''
    name = f'{whole.fingerprint} {kind} {library} {cut}'
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    file = pathlib.Path(machine.cache_folder(), 'texts', f'{digest}.tokens')
    encoded = tokens.encode_once(parts, tokenizer, file)
  training_part = Documents(encoded, train)
  stream = Stream(Documents(encoded, held_out), tokenizer.begin)
  longest = measuring.longest_segment(config)
  if len(stream) < longest:
    raise ValueError(
        f'the held-out text has {len(stream)} tokens, fewer than the longest window of '
        f'{longest}: use more text, or a larger config.text.held_out'
    )
  facts = {
      'text': text.path or f'sources of Python {platform.python_version()}',
      'text_sha256': whole.fingerprint,
      'tokenizer_sha256': kind,
      'documents': count,
      'tokens': int(training_part.lengths.sum()) + len(stream),
      'held_out_tokens': len(stream),
  }
  return Text(training_part, stream, tokenizer, facts)


def _parts(
    config: Any, read: Callable[[], Iterable[str]], whole: documents.Survey
) -> Iterator[str]:
  """Yields the documents to encode: all of them, or both parts of a single one."""
  digest = documents.Fingerprint()
  for text in read():
    digest.add(text)
    if len(whole.lengths) == 1:
      (train,), (held_out,) = documents.split(
          [text], config.text.held_out, config.seed)
      yield from (train, held_out)
    else:
      yield text
  if digest.hexdigest() != whole.fingerprint:
    raise ValueError(f'the text {config.text.path} changed while it was read')


def _tokenizer_path(config: Any) -> epath.Path | None:
  """Returns the path of the tokenizer.json; None if the text is read as bytes."""
  if config.text.tokenizer:
    path = epath.Path(config.text.tokenizer)
    return path / 'tokenizer.json' if path.is_dir() else path
  path = epath.Path(config.checkpoint) / 'tokenizer.json'
  return path if config.checkpoint and path.exists() else None


def make_model(config: Any, tokenizer: Tokenizer) -> Llama:
  """Returns the model of config.checkpoint if given, else that of config.model."""
  if config.checkpoint:
    model = llama.read_model(config.checkpoint)
    tokenizers.check_vocabulary(tokenizer, model.vocab_size)
  else:
    fields = config.model.to_dict()
    rope = Rope(fields.pop('rope_base'))
    std, common = fields.pop('init_std', None), fields.pop('init_common', 0.0)
    if std:
      fields |= dict(kernel_init=_normal(std),
                     embedding_init=_around_common_vector(std, common))
    # Unused words at the end make the size divisible by the axes of meshes.
    vocab_size = math.ceil(tokenizer.vocab_size / _WORDS) * _WORDS
    model = Llama(vocab_size=vocab_size, rope=rope,
                  max_length=config.train.max_length, **fields)
  return in_loop(config, model)


def in_loop(config: Any, model: Llama) -> Llama:
  """Returns a model with the remat and the loop over layers of a configuration."""
  train = config.train
  loop = dict(
      scan_layers=True, remat_keeps=train.get('remat_keeps', 'nothing'),
      stream_dtype=train.get('stream_dtype'),
  )
  return model.clone(
      remat=train.remat, **(loop if train.get('scan_layers', False) else {}))


# Fields of a model, of which equal ones share a compiled program.
_normal = functools.cache(nn.initializers.normal)
_around_common_vector = functools.cache(around_common_vector)


def init_params(model: Llama, key: jax.Array) -> Any:
  """Returns initial parameters, the same whether layers are a loop or not."""
  plain = model.clone(scan_layers=False, remat_keeps='nothing', stream_dtype=None)
  params = plain.init(key, jnp.zeros((1, 2), jnp.int32))['params']
  return stacked(params) if model.scan_layers else params


def save_model(
    config: Any, folder: epath.Path, model: Llama, params: dict[str, Any]
) -> None:
  """Saves a model in hub layout, with the tokenizer that it was trained with.

  If there are several processes, all must call it; the first one writes.
  """
  llama.save_checkpoint(folder, model, {'params': params},
                        like=config.checkpoint or None)
  if config.text.tokenizer and jax.process_index() == 0:
    source = _tokenizer_path(config)
    for old in folder.glob('*token*'):
      old.unlink()
    for name in (source.name, 'tokenizer_config.json'):
      path = source.parent / name
      if path.exists():
        (folder / ('tokenizer.json' if path == source else name)).write_bytes(
            path.read_bytes())


def num_steps(config: Any, arm: Any) -> int:
  """Returns the steps of an arm; for seeds together, a multiple of steps_per_call."""
  each = config.train.steps_per_call if config.train.seeds_at_once else 1
  return max(1, round(arm.steps * config.train.num_steps / each)) * each


class Batch(NamedTuple):
  """Streams of tokens; the loss reads two windows of each."""

  streams: jax.Array  # [B, T] int32
  offset: jax.Array  # e, [] int32
  weight: jax.Array  # α, [] float32; part of the batch, so that arms share a program
  part: jax.Array | int = 0  # which of train.parts, [] int32
  weights: jax.Array | None = None  # of streams in the loss, [B]; None: a mean


def stream_length(config: Any) -> int:
  """Returns T, the length of streams, the same for all arms, as their text is."""
  longest = max(
      offset_range(config.train.max_length, tuple(arm.offsets))[1]
      for arm in config.arms.values()
  )
  return config.train.max_length + longest


def make_loss(config: Any, arm: Any, model: Llama) -> Callable[..., Any]:
  """Returns the loss of an arm: (params, Batch) -> (loss [], metrics)."""
  length, dtype = config.train.max_length, jnp.dtype(config.train.dtype)

  def loss(params, batch):
    params = optimizer.cast_floating(params, dtype)
    windows = two_windows(batch.streams, length, batch.offset)
    hidden = [model.apply({'params': params}, x, method='hidden') for x in windows]
    value, terms = chunked_two_window_loss(
        *hidden, gathered(output_table(model, params)), *windows, batch.offset,
        batch.weight,
        whole_overlap=arm.offsets[1] > 1 / 2, sequence_weights=batch.weights,
    )
    first, second, misalignment = terms.values()
    return value, {'cross_entropy': (first + second) / 2, 'misalignment': misalignment}

  return loss


def make_optimizer(config: Any, num_steps: int) -> Any:
  """Returns AdamW, whose learning rate schedule ends at the last step."""
  return optimizer.adamw(num_steps=num_steps, **config.optimizer.to_dict())


def draw_offset(config: Any, arm: Any, key: jax.Array) -> jax.Array:
  """Draws the offset e; arms with the same range get the same offsets."""
  return sample_offset(key, config.train.max_length, tuple(arm.offsets))


def problem(config: Any, arm: Any, model: Llama, num_steps: int) -> Problem:
  """Returns the problem for an ensemble of seeds; `sample` takes data (text [n], α).

  Streams begin anywhere in the text, with equal probability.
  """
  size = stream_length(config)

  def sample(key, step, data):
    text, weight = data
    place_key, offset_key = jax.random.split(key)
    starts = jax.random.randint(
        place_key, (config.train.batch_size, 1), 0, len(text) - size + 1)
    streams = text[starts + jnp.arange(size)[None]].astype(jnp.int32)
    return Batch(streams, draw_offset(config, arm, offset_key), weight)

  return Problem(
      functools.partial(init_params, model), sample, make_loss(config, arm, model),
      make_optimizer(config, num_steps))
