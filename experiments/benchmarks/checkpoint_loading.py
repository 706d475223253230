"""How long does loading a checkpoint take, compared with reading its files?

The checkpoint is a random Llama of width 1,024 with bfloat16 weights of one gigabyte in
four files, which stay in the system's cache. Reading all bytes of the files and loading
the model alternate in one process. The peak memory that loading needs in addition to
the model is measured in a separate process.

  python -m experiments.benchmarks.checkpoint_loading    # Linux
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.flax import save_file

from experiments.benchmarks import _rounds
from vvlen.models.llama import abstract_params, load_checkpoint, save_checkpoint
from vvlen.models.llama.model import Llama
from vvlen.models.llama.names import hub_name, is_transposed

MODEL = Llama(vocab_size=32_000, width=1024, mlp_width=4096, num_layers=26,
              num_heads=16, num_key_heads=8, tied=False)
_FILES = 4


def save_in_files(folder: pathlib.Path) -> int:
  """Saves a random model in several files, and returns its size in bytes."""
  small = MODEL.clone(num_layers=1, vocab_size=8)
  tokens = jnp.zeros((1, 2), jnp.int32)
  save_checkpoint(folder, small, small.init(jax.random.key(0), tokens))
  config = json.loads((folder / 'config.json').read_text())
  config |= {'num_hidden_layers': MODEL.num_layers, 'vocab_size': MODEL.vocab_size,
             'torch_dtype': 'bfloat16', 'dtype': 'bfloat16'}
  (folder / 'config.json').write_text(json.dumps(config))
  (folder / 'model.safetensors').unlink()
  rng = np.random.default_rng(0)
  tensors = {}
  for path, x in jax.tree_util.tree_leaves_with_path(abstract_params(MODEL)):
    path = '/'.join(key.key for key in path)
    shape = x.shape[::-1] if is_transposed(path) else x.shape
    tensors[hub_name(path)] = jnp.asarray(
        rng.standard_normal(shape, np.float32), jnp.bfloat16)
  where = {}
  for i in range(_FILES):
    file = f'model-{i + 1:05}-of-{_FILES:05}.safetensors'
    part = dict(list(tensors.items())[i::_FILES])
    save_file(part, folder / file, metadata={'format': 'pt'})
    where |= dict.fromkeys(part, file)
  (folder / 'model.safetensors.index.json').write_text(
      json.dumps({'metadata': {}, 'weight_map': where}))
  return sum(x.nbytes for x in tensors.values())


def load(folder: str) -> None:
  """Loads the model in this process, and prints the peak of its memory as JSON."""
  jax.block_until_ready(jax.device_put(1.0))
  before = _rounds.memory('VmRSS')
  jax.block_until_ready(load_checkpoint(folder)[1])
  print(json.dumps({'peak': _rounds.memory('VmHWM') - before}))


def main() -> None:
  """Measures, and prints JSON as the last line."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=9)
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--load', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.load:
    load(args.load)
    return
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    size = save_in_files(folder)
    files = sorted(folder.glob('*.safetensors'))
    seconds, about = _rounds.in_turns({
        'read': lambda _: [np.fromfile(file, np.uint8) for file in files],
        'load': lambda _: jax.block_until_ready(load_checkpoint(folder)[1]),
    }, args.rounds)
    out = subprocess.run(
        [sys.executable, '-m', 'experiments.benchmarks.checkpoint_loading',
         f'--load={folder}'], capture_output=True, text=True, check=True).stdout
  median = {name: statistics.median(x) for name, x in seconds.items()}
  largest = max(x.size for x in jax.tree.leaves(abstract_params(MODEL))) * 2
  beside = json.loads(out)['peak'] - size
  ratio = median['load'] / median['read']
  print(f'{size / 1e9:.2f} GB: read {median["read"]:.3f} s, loaded '
        f'{median["load"]:.3f} s, {ratio:.2f} times; {beside / 1e6:.0f} MB more than '
        f'the model, whose largest tensor has {largest / 1e6:.0f} MB')
  _rounds.report({
      'ratio': round(ratio, 3), 'bytes': size, 'files': _FILES,
      'bytes_beside_the_model': beside, 'largest_tensor_bytes': largest,
      'seconds': {name: float(f'{x:.4g}') for name, x in median.items()},
  } | about, args.output)


if __name__ == '__main__':
  sys.exit(main())
