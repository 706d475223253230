"""What a published checkpoint is known by."""

import hashlib

from etils import epath

_PIECE = 2**24  # bytes at a time


def fingerprint(folder: epath.PathLike) -> str:
  """Returns the SHA-256 of all bytes that a checkpoint and its tokenizer are made of.

  They are config.json, the tokenizer's files that `tokenizer_of` reads, and all
  weights, each with its name and size, read in pieces.
  """
  folder = epath.Path(folder)
  tokenizer = ('tokenizer.json', 'tokenizer_config.json')
  paths = [folder / 'config.json', *sorted(folder.glob('*.safetensors'), key=str),
           *(path for name in tokenizer if (path := folder / name).exists())]
  digest = hashlib.sha256()
  for path in paths:
    digest.update(f'{path.name} {path.stat().length}\n'.encode())
    with path.open('rb') as file:
      while piece := file.read(_PIECE):
        digest.update(piece)
  return digest.hexdigest()
