"""How many tokens per second does a Llama generate, compared with transformers?

Greedy generation with a cache: 256 tokens after a prompt of 32, for one sequence and
for eight at once; and 64 tokens after eight prompts of 2,048 as in long-context
benchmarks, where the time to read the prompts counts too. Both libraries use the same
random float32 model, with 4 layers of width 256 and a vocabulary of 32,000, in turns,
each in its own process. The result also has the share of tokens on which both agree,
how many programs each case compiles (one generates, the others convert its arguments),
the bytes of vvlen's cache of keys and values, and the peak of resident memory while
text is generated, less that before the first call: the cache, all else that is
computed, and what the libraries keep.

  python -m experiments.benchmarks.llama_generation    # needs PyTorch and transformers

With --tiny, a small model and few tokens, to see that it runs.
"""

import argparse
from collections.abc import Callable
import pathlib
import sys
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import _rounds
from experiments.benchmarks.llama_training import SMALL, TINY
from vvlen.models.generation import cache_bytes, generate
from vvlen.models.llama import load_checkpoint, save_checkpoint
from vvlen.models.llama.model import Llama

_MAX_LENGTH = 4096


class Case(NamedTuple):
  """What is generated."""

  rows: int  # sequences at once
  prompt: int  # tokens
  tokens: int  # generated

  @property
  def name(self) -> str:
    """Returns its name in the result."""
    return f'rows_{self.rows}' + (f'_prompt_{self.prompt}' if self.prompt > 32 else '')


CASES = Case(1, 32, 256), Case(8, 32, 256), Case(8, 2048, 64)
TINY_CASES = Case(1, 8, 4), Case(2, 64, 4)


def save_model(folder: str, shape: dict[str, int]) -> None:
  """Saves a random model in hub layout."""
  model = Llama(**shape, max_length=_MAX_LENGTH)
  tokens = jnp.zeros((1, 2), jnp.int32)
  save_checkpoint(folder, model, jax.jit(model.init)(jax.random.key(0), tokens))


def prompts(case: Case, vocab_size: int) -> np.ndarray:
  """Returns the prompts, [rows, prompt] int32."""
  rng = np.random.default_rng(case.rows)
  shape = case.rows, case.prompt
  return rng.integers(3, vocab_size, shape).astype(np.int32)


def serve(
    go_on: Callable[[], np.ndarray], case: Case, version: str, **facts: int
) -> None:
  """Measures tokens per second of `go_on`, which generates for all rows."""
  compiled = _rounds.compilations()
  before = _rounds.memory('VmRSS')
  tokens = go_on().tolist()
  _rounds.forget_peak()
  go_on()
  _rounds.serve_calls(go_on, case.rows * case.tokens, {
      'tokens': tokens, 'version': version, 'programs_compiled': len(compiled),
      'peak_bytes_beside_model': _rounds.memory('VmHWM') - before, **facts})


def serve_vvlen(folder: str, case: Case) -> None:
  """Measures vvlen."""
  model, variables = load_checkpoint(folder)
  tokens = jnp.asarray(prompts(case, model.vocab_size))
  places = case.prompt + case.tokens
  serve(lambda: np.asarray(generate(model, variables, tokens, case.tokens)), case,
        jax.__version__,
        cache_bytes=cache_bytes(model, variables, case.rows, places))


def serve_transformers(folder: str, case: Case) -> None:
  """Measures transformers."""
  import torch
  import transformers

  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  model = transformers.LlamaForCausalLM.from_pretrained(folder).eval().to(device)
  tokens = torch.tensor(
      prompts(case, model.config.vocab_size), dtype=torch.long, device=device)

  def go_on():
    with torch.inference_mode():
      found = model.generate(
          tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
          max_new_tokens=case.tokens, min_new_tokens=case.tokens, pad_token_id=0)
    return found[:, case.prompt:].cpu().numpy()

  serve(go_on, case, f'{transformers.__version__}, torch {torch.__version__}, {device}')


def main() -> None:
  """Measures, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--tiny', action='store_true', help='to see that it runs')
  parser.add_argument('--output', help='also write the JSON to this file')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  parser.add_argument('--folder', help=argparse.SUPPRESS)
  parser.add_argument('--case', type=int, nargs=3, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    (serve_vvlen if args.serve == 'vvlen' else serve_transformers)(
        args.folder, Case(*args.case))
    return
  shape, cases = (TINY, TINY_CASES) if args.tiny else (SMALL, CASES)
  with tempfile.TemporaryDirectory() as folder:
    save_model(folder, shape)
    results = {case.name: compare(folder, case, args.rounds) for case in cases}
    size = sum(x.stat().st_size for x in pathlib.Path(folder).glob('*.safetensors'))
  _rounds.report({
      'model': shape, 'model_bytes': size,
  } | results, args.output)


def compare(folder: str, case: Case, rounds: int) -> dict[str, object]:
  """Measures both libraries in turn, and returns their results."""
  workers = {
      name: _rounds.Worker('experiments.benchmarks.llama_generation',
                           [f'--serve={name}', f'--folder={folder}', '--case',
                            *map(str, case)])
      for name in ('vvlen', 'transformers')
  }
  found = {name: worker.about.pop('tokens') for name, worker in workers.items()}
  equal = np.mean(np.equal(found['vvlen'], found['transformers']))
  about = {name: worker.about for name, worker in workers.items()}
  measured = _rounds.alternate(workers, rounds)
  rates = {name: worker.median() for name, worker in workers.items()}
  ratio = rates['vvlen'] / rates['transformers']
  print(f'{case.rows} at once after {case.prompt} tokens: vvlen '
        f'{rates["vvlen"]:,.0f}, transformers {rates["transformers"]:,.0f} tokens/s, '
        f'{ratio:.2f} times')
  return {
      'prompt': case.prompt, 'tokens': case.tokens,
      'ratio': round(ratio, 3), 'share_of_equal_tokens': round(float(equal), 4),
      'tokens_per_second': {name: round(x, 1) for name, x in rates.items()},
      'about': about,
  } | measured


if __name__ == '__main__':
  sys.exit(main())
