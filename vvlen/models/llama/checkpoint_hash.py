"""Identifies a published checkpoint by its content."""

import hashlib

from etils import epath

from vvlen.models.llama.safetensors import check_link
from vvlen.models.llama.saving import COPIED

_PIECE = 2**24  # bytes read at a time


def fingerprint(folder: epath.PathLike) -> str:
  """Returns the SHA-256 of all files of a checkpoint and its tokenizer.

  These are config.json, all weights, and the files of the tokenizer that
  `tokenizer_of` reads, each preceded by its name and size.

  Raises:
    ValueError: if one, or another file of the tokenizer, is a link to a place outside
      the folder.
  """
  folder = epath.Path(folder)
  tokenizer = ('tokenizer.json', 'tokenizer_config.json')
  paths = [folder / 'config.json', *sorted(folder.glob('*.safetensors'), key=str),
           *(path for name in tokenizer if (path := folder / name).exists())]
  digest = hashlib.sha256()
  for path in (*paths, *(folder / name for name in COPIED)):
    check_link(path)  # also of files that are copied when a model is saved
  for path in paths:
    digest.update(f'{path.name} {path.stat().length}\n'.encode())
    with path.open('rb') as file:
      while piece := file.read(_PIECE):
        digest.update(piece)
  return digest.hexdigest()
