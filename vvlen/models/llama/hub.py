"""Downloads checkpoints that are named as on the Hugging Face Hub, ORG/NAME."""

import importlib
import os
import re

from etils import epath

_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*')
# Weights, configurations and tokenizers; no file that would have to be unpickled.
_WANTED = ['*.safetensors', '*.json', 'tokenizer.model', 'merges.txt',
           'chat_template.jinja']
# Subfolders and `consolidated` have the same weights in other layouts.
_UNWANTED = ['*/*', 'consolidated*']


def local_folder(checkpoint: epath.PathLike) -> epath.Path:
  """Returns the folder of a checkpoint, after downloading one that the hub has.

  A path that exists, is in a folder that exists, or contains ://, is returned as it is.
  Otherwise ORG/NAME is the name of a model of the hub. Its files are kept in the cache
  of huggingface_hub, which also locks them: processes that download one model to one
  machine at once wait for the first of them.

  Args:
    checkpoint: a folder, local or gs://, or a name on the hub.

  Raises:
    ValueError: if huggingface_hub is not installed, or cannot download the model.
  """
  name, path = os.fspath(checkpoint), epath.Path(checkpoint).expanduser()
  # In runs/misspelt, runs is a folder, not an organization.
  if '://' in name or path.parent.exists() or not _NAME.fullmatch(name):
    return path
  try:
    library = importlib.import_module('huggingface_hub')
  except ImportError as error:
    raise ValueError(
        f'{name} is not a folder, and downloading it from the hub needs a library: pip '
        'install huggingface_hub. Or give a folder') from error
  try:
    return epath.Path(library.snapshot_download(
        name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
  except Exception as error:  # of the library, and of those that it uses
    why = str(error).strip().partition('\n')[0].removeprefix('Got: ')
    why = why or type(error).__name__
    raise ValueError(f'{name} is not a folder, and could not be downloaded from the '
                     f'hub: {why}') from error
