"""Tokenizers: bytes, and tokenizer.json as models on the Hugging Face Hub have it."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
from typing import Any, NamedTuple

from etils import epath
import numpy as np

_SPARE = 7  # the most unused words that the vocabulary of a model of bytes may have


class Tokenizer(NamedTuple):
  """Turns text into tokens and back."""

  encode: Callable[[str], np.ndarray]  # text -> [n] int32, without special tokens
  decode: Callable[[Sequence[int]], str]  # leaves special tokens out
  vocab_size: int  # all tokens are below it
  begin: int | None  # the token to put before a document; None if there is none


def byte_tokenizer() -> Tokenizer:
  """Returns a tokenizer whose tokens are the bytes of UTF-8; 256 begins a document.

  Bytes that are not UTF-8, such as a part of a character, are decoded as '�'. Tokens
  from 256 on, which the vocabulary of a model may have, are left out.
  """
  begin = 256

  def encode(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

  def decode(tokens: Sequence[int]) -> str:
    return bytes(int(x) for x in tokens if x < begin).decode(errors='replace')

  return Tokenizer(encode, decode, vocab_size=257, begin=begin)


def load_tokenizer(path: epath.PathLike) -> Tokenizer:
  """Loads a tokenizer.json, the format of the Hugging Face Hub.

  A document is encoded as a whole, never in parts: a normalizer may put a token in
  front of each part, and a token may span lines. Text that looks like a special token,
  such as '<s>', is encoded as ordinary characters.

  Args:
    path: the file, local or gs://, or its folder. Where the file itself puts no token
      before a document, tokenizer_config.json in the same folder may name one.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if a file is damaged or the library `tokenizers` is not installed. Later
      `encode` raises it if a text has characters without a token.
  """
  try:
    import tokenizers
  except ImportError as error:
    raise ValueError(
        'reading tokenizer.json needs a library: pip install tokenizers'
    ) from error
  path = epath.Path(path)
  if path.is_dir():
    path = path / 'tokenizer.json'
  if not path.exists():
    raise FileNotFoundError(f'{path}: no such file')
  try:
    library = tokenizers.Tokenizer.from_str(path.read_bytes().decode())
  except Exception as error:  # The library raises no narrower one.
    raise ValueError(f'{path} is not a tokenizer: {error}') from error
  # A file may ask for truncation and padding, which are for batches of short inputs.
  library.no_truncation()
  library.no_padding()
  library.encode_special_tokens = True
  with _naming_unknown(path):
    begin = _begin(library, path.parent / 'tokenizer_config.json')
  leaves_out = _leaves_out(library)

  def encode(text: str) -> np.ndarray:
    # The fast variant omits the offsets of tokens: half the time and less memory.
    with _naming_unknown(path):
      encoding, = library.encode_batch_fast([text], add_special_tokens=False)
      if leaves_out and (odd := _left_out(library, text)):
        raise ValueError(f'{path} has no token for {odd!r}, nor for unknown ones')
    return np.array(encoding.ids, np.int32)

  def decode(tokens: Sequence[int]) -> str:
    return library.decode([int(x) for x in tokens])

  # The highest token, not the number of tokens: there may be gaps.
  highest = max([*library.get_vocab().values(), -1 if begin is None else begin])
  return Tokenizer(encode, decode, highest + 1, begin)


def tokenizer_of(checkpoint: epath.PathLike, vocab_size: int) -> Tokenizer:
  """Returns the tokenizer of a checkpoint, or bytes if it has no tokenizer.json.

  Bytes are assumed if the vocabulary has 257 to 264 words: the 257 tokens of
  `byte_tokenizer`, and up to 7 unused ones, so that a mesh can divide the vocabulary.

  Args:
    checkpoint: a folder, local or gs://.
    vocab_size: of its model.

  Raises:
    ValueError: if there is no tokenizer.json and the vocabulary has another size, or
      the tokenizer has more tokens than the model.
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
        'the model was trained with another tokenizer'
    )


@contextlib.contextmanager
def _naming_unknown(path: epath.Path) -> Iterator[None]:
  """Turns what the library raises in encoding into a ValueError with the file's name.

  It fails where a text has characters that no token covers, and the tokenizer has no
  token for unknown ones.
  """
  try:
    yield
  except (ValueError, MemoryError):
    raise
  except Exception as error:  # The library raises no narrower one.
    raise ValueError(f'{path} cannot encode the text, give it an unknown token: '
                     f'{error}') from error


def _leaves_out(library: Any) -> bool:
  """Whether unknown characters are left out silently, as BPE does without a token."""
  facts = json.loads(library.to_str())
  model = facts['model']
  of_bytes = 'ByteLevel' in json.dumps([facts['pre_tokenizer'], facts['normalizer']])
  return model.get('type') == 'BPE' and not (
      model.get('unk_token') or model.get('byte_fallback') or of_bytes)


def _left_out(library: Any, text: str) -> str:
  """Returns a character of the text that has no token, '' if there is none."""
  ids = lambda x: library.encode(x, add_special_tokens=False).ids
  # Twice, because a vocabulary may have other tokens for the end of a word.
  return next((x for x in dict.fromkeys(text)
               if not (x.isspace() or ids(x) or ids(x + x))), '')


def _begin(library: Any, config: epath.Path) -> int | None:
  """Returns the token that goes before a text, or None."""
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
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(f'{config} is damaged') from error
