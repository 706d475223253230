"""Tokenizers: bytes, and those of a model from the hub."""

from collections.abc import Callable, Sequence
import json
from typing import Any, NamedTuple

from etils import epath
import numpy as np

_SPARE = 7  # words of a model of bytes that no byte is, at most


class Tokenizer(NamedTuple):
  """From text to tokens and back."""

  encode: Callable[[str], np.ndarray]  # text -> [n] int32, without special tokens
  decode: Callable[[Sequence[int]], str]  # leaves special tokens out
  vocab_size: int  # all tokens are below it
  begin: int | None  # the token that belongs before a document, if there is one


def byte_tokenizer() -> Tokenizer:
  """Returns a tokenizer whose tokens are the bytes of UTF-8, with 256 to begin.

  Bytes that are not UTF-8, such as a part of a character, are decoded as '�'. Tokens
  from 256 on, which the words of a model may have besides, are left out.
  """
  begin = 256

  def encode(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

  def decode(tokens: Sequence[int]) -> str:
    return bytes(int(x) for x in tokens if x < begin).decode(errors='replace')

  return Tokenizer(encode, decode, vocab_size=257, begin=begin)


def load_tokenizer(path: epath.PathLike) -> Tokenizer:
  """Loads a tokenizer.json as the hub has it.

  A document is encoded in one go, never in parts: a normalizer may put a token in front
  of each part, and a token may go across lines. What looks like a special token in a
  text, such as '<s>', is encoded as the characters it has.

  Args:
    path: the file, local or gs://, or the folder with it. tokenizer_config.json in the
      same folder, if there is one, tells of a token to begin with where the file itself
      has none.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if a file is damaged or the library `tokenizers` is not installed.
  """
  try:
    import tokenizers
  except ImportError as error:
    raise ValueError(
        'to read tokenizer.json needs a library: pip install tokenizers'
    ) from error
  path = epath.Path(path)
  if path.is_dir():
    path = path / 'tokenizer.json'
  if not path.exists():
    raise FileNotFoundError(f'{path}: no such file')
  try:
    library = tokenizers.Tokenizer.from_str(path.read_bytes().decode())
  except Exception as error:  # The library raises no narrower one.
    raise ValueError(f'{path} is no tokenizer: {error}') from error
  # Files may ask for both, for short inputs in batches.
  library.no_truncation()
  library.no_padding()
  library.encode_special_tokens = True
  begin = _begin(library, path.parent / 'tokenizer_config.json')

  def encode(text: str) -> np.ndarray:
    # Without offsets of tokens, for half the time and less memory.
    encoding, = library.encode_batch_fast([text], add_special_tokens=False)
    return np.array(encoding.ids, np.int32)

  def decode(tokens: Sequence[int]) -> str:
    return library.decode([int(x) for x in tokens])

  # Not how many there are, as there may be gaps.
  highest = max([*library.get_vocab().values(), -1 if begin is None else begin])
  return Tokenizer(encode, decode, highest + 1, begin)


def tokenizer_of(checkpoint: epath.PathLike, vocab_size: int) -> Tokenizer:
  """Returns the tokenizer of a checkpoint; bytes, if it has none and has their words.

  They are where its vocabulary has the size of theirs, or up to 7 more, for meshes to
  divide it.

  Args:
    checkpoint: a folder, local or gs://.
    vocab_size: of its model.

  Raises:
    ValueError: if it has not, or the tokenizer has more tokens than the model.
  """
  folder = epath.Path(checkpoint)
  if (folder / 'tokenizer.json').exists():
    tokenizer = load_tokenizer(folder)
    check_vocabulary(tokenizer, vocab_size)
    return tokenizer
  tokenizer = byte_tokenizer()
  highest = tokenizer.vocab_size + _SPARE
  if not tokenizer.vocab_size <= vocab_size <= highest:
    raise ValueError(
        f'{folder} has no tokenizer.json, and its vocabulary of {vocab_size} is not '
        f'that of bytes, {tokenizer.vocab_size} to {highest}: put its tokenizer.json '
        'into the folder'
    )
  return tokenizer


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
  """Raises if a tokenizer has tokens that a model does not have.

  Raises:
    ValueError: if its vocabulary is larger than `vocab_size`.
  """
  if tokenizer.vocab_size > vocab_size:
    raise ValueError(
        f'the tokenizer has {tokenizer.vocab_size} tokens, the model {vocab_size}: '
        'it was trained with another'
    )


def _begin(library: Any, config: epath.Path) -> int | None:
  """Returns the token that goes before a text."""
  plain = library.encode('a', add_special_tokens=False).ids
  whole = library.encode('a').ids
  if plain and whole[0] != plain[0]:
    return whole[0]
  if not config.exists():
    return None
  try:
    fields = json.loads(config.read_bytes())
    token = fields.get('bos_token')
    if isinstance(token, dict):
      token = token['content']
    if token is None or fields.get('add_bos_token') is False:
      return None
    return library.token_to_id(token)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f'{config} is damaged') from error
