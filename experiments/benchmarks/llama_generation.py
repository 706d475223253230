"""How many tokens per second does a Llama generate, compared with transformers?

Greedy generation of 256 tokens after a prompt of 32, with a cache, for one sequence and
for eight at once. Both libraries use the same random float32 model, with 4 layers of
width 256 and a vocabulary of 32,000, in turns, each in its own process. The result also
reports the share of tokens on which both agree.

  python -m experiments.benchmarks.llama_generation    # needs PyTorch and transformers
"""

import argparse
from collections.abc import Callable
import pathlib
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import _rounds
from experiments.benchmarks.llama_training import SMALL
from experiments.harness import machine
from vvlen.models.generation import generate
from vvlen.models.llama import load_checkpoint, save_checkpoint
from vvlen.models.llama.model import Llama

_PROMPT, _TOKENS = 32, 256
_MAX_LENGTH = 512


def save_model(folder: str) -> None:
  """Saves a random model in hub layout."""
  model = Llama(**SMALL, max_length=_MAX_LENGTH)
  tokens = jnp.zeros((1, 2), jnp.int32)
  save_checkpoint(folder, model, jax.jit(model.init)(jax.random.key(0), tokens))


def prompts(rows: int) -> np.ndarray:
  """Returns the prompts, [rows, _PROMPT] int32."""
  rng = np.random.default_rng(rows)
  return rng.integers(3, SMALL['vocab_size'], (rows, _PROMPT)).astype(np.int32)


def serve(go_on: Callable[[], np.ndarray], rows: int, version: str) -> None:
  """Measures tokens per second of `go_on`, which generates for all rows."""
  first = go_on()

  def measure():
    start = time.perf_counter()
    go_on()
    return rows * _TOKENS / (time.perf_counter() - start)

  _rounds.serve(measure, {'tokens': first.tolist(), 'version': version})


def serve_vvlen(folder: str, rows: int) -> None:
  """Measures vvlen."""
  model, variables = load_checkpoint(folder)
  tokens = jnp.asarray(prompts(rows))
  serve(lambda: np.asarray(generate(model, variables, tokens, _TOKENS)), rows,
        jax.__version__)


def serve_transformers(folder: str, rows: int) -> None:
  """Measures transformers."""
  import torch
  import transformers

  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  model = transformers.LlamaForCausalLM.from_pretrained(folder).eval().to(device)
  tokens = torch.tensor(prompts(rows), dtype=torch.long, device=device)

  def go_on():
    with torch.inference_mode():
      found = model.generate(
          tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
          max_new_tokens=_TOKENS, min_new_tokens=_TOKENS, pad_token_id=0)
    return found[:, _PROMPT:].cpu().numpy()

  serve(go_on, rows, f'{transformers.__version__}, torch {torch.__version__}, {device}')


def main() -> None:
  """Measures, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  parser.add_argument('--folder', help=argparse.SUPPRESS)
  parser.add_argument('--rows', type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    (serve_vvlen if args.serve == 'vvlen' else serve_transformers)(
        args.folder, args.rows)
    return
  with tempfile.TemporaryDirectory() as folder:
    save_model(folder)
    results = {f'rows_{rows}': compare(folder, rows, args.rounds) for rows in (1, 8)}
    size = sum(x.stat().st_size for x in pathlib.Path(folder).glob('*.safetensors'))
  _rounds.report({
      'model': SMALL, 'model_bytes': size, 'prompt': _PROMPT, 'tokens': _TOKENS,
      'processor': machine.processor(),
  } | results, args.output)


def compare(folder: str, rows: int, rounds: int) -> dict[str, object]:
  """Measures both libraries in turn, and returns their results."""
  workers = {
      name: _rounds.Worker('experiments.benchmarks.llama_generation',
                           [f'--serve={name}', f'--folder={folder}', f'--rows={rows}'])
      for name in ('vvlen', 'transformers')
  }
  found = {name: worker.about.pop('tokens') for name, worker in workers.items()}
  equal = np.mean(np.equal(found['vvlen'], found['transformers']))
  about = {name: worker.about for name, worker in workers.items()}
  told = _rounds.alternate(workers, rounds)
  rates = {name: worker.median() for name, worker in workers.items()}
  ratio = rates['vvlen'] / rates['transformers']
  print(f'{rows} at once: vvlen {rates["vvlen"]:,.0f}, transformers '
        f'{rates["transformers"]:,.0f} tokens/s, {ratio:.2f} times')
  return {
      'ratio': round(ratio, 3), 'share_of_equal_tokens': round(float(equal), 4),
      'tokens_per_second': {name: round(x, 1) for name, x in rates.items()},
      'about': about,
  } | told


if __name__ == '__main__':
  sys.exit(main())
