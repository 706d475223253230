"""Converts a model of llama2.c, such as stories260K, to a checkpoint in hub layout.

  python -m experiments.import_llama2c stories260K.bin tok512.bin runs/stories260K

The first two files are in the folder stories260K of karpathy/tinyllamas on the Hugging
Face Hub.
"""

import argparse
import json

from etils import epath

from experiments.harness import errors, paths
from vvlen.models.llama import llama2c, save_checkpoint
from vvlen.reporting import results

_CONFIG = {'tokenizer_class': 'PreTrainedTokenizerFast', 'bos_token': '<s>',
           'eos_token': '</s>', 'unk_token': '<unk>'}


def main() -> None:
  """Reads the command line; wrong input ends with one line and exit code 2."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('weights', help='the .bin file of weights')
  parser.add_argument('tokenizer', help='the .bin file of the tokenizer')
  parser.add_argument('folder', help='new folder of the checkpoint')
  parser.error = lambda text: errors.refuse(ValueError(text))  # type: ignore
  args = parser.parse_args()
  with errors.reported():
    folder = epath.Path(paths.usable(args.folder, 'folder'))
    if folder.exists() and any(folder.iterdir()):
      raise ValueError(f'{folder} is not empty')
    model, variables = llama2c.read_model(args.weights)
    tokenizer = llama2c.read_tokenizer(args.tokenizer, model.vocab_size)
    save_checkpoint(folder, model, variables)
    for name, content in ('tokenizer.json', tokenizer), (
        'tokenizer_config.json', _CONFIG):
      results.write_text(
          folder / name, json.dumps(content, indent=2, ensure_ascii=False) + '\n')
  print(f'{folder}: {model.num_layers} layers of width {model.width}, '
        f'{model.max_length:,} tokens, a vocabulary of {model.vocab_size:,}.')


if __name__ == '__main__':
  main()
