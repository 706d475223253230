r"""Retrieval or lookup in plain PyTorch, for one seed, as a reference of speed.

It is written as most researchers would: keys and values of every item, one batch per
step. Sizes are those of arXiv 2504.02827: width 128, 10 classes, batches of 128
sequences of 5 to 16 items, padded to 16 and masked. It avoids needless costs: all
random numbers are drawn on the device, no step waits for the host, and Adam is fused.
Lookup has 16,384 keys and embeddings of width 64. It draws distinct keys in one line,
as those of the largest among 16,384 random numbers, which on a CPU takes half of a
step. With --redraw, sequences in which a key occurs twice are drawn again instead.

  python -m experiments.benchmarks.torch_retrieval [--task=lookup [--redraw]] \
      [--device=cuda]
"""

import argparse
import functools
import json
import time

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, CLASSES, BATCH, SHORTEST, LONGEST = 128, 10, 128, 5, 16
KEYS, EMBEDDING = 16384, 64
TASKS = ('retrieval', 'lookup')
NORMS = ('none', 'standardize', 'layer_norm')


class Retriever(nn.Module):
  """One attention head between three MLPs of Linear-GELU-Linear."""

  def __init__(self, norm: str, lookup: bool = False):
    """Builds the model with 'none', 'standardize' or 'layer_norm' after attention."""
    super().__init__()
    self.lookup = lookup
    if lookup:
      self.keys = nn.Embedding(KEYS, EMBEDDING)
      self.values = nn.Embedding(CLASSES, EMBEDDING)
    self.encode_items = _mlp(2 * EMBEDDING if lookup else 1 + CLASSES, WIDTH)
    self.encode_query = _mlp(EMBEDDING if lookup else 1, WIDTH)
    self.to_query = nn.Linear(WIDTH, WIDTH, bias=False)
    self.to_key = nn.Linear(WIDTH, WIDTH, bias=False)
    self.to_value = nn.Linear(WIDTH, WIDTH, bias=False)
    self.norm = nn.Identity()
    if norm != 'none':
      self.norm = nn.LayerNorm(WIDTH, elementwise_affine=norm == 'layer_norm')
    self.classify = _mlp(WIDTH, CLASSES)

  def forward(
      self, query: torch.Tensor, items: torch.Tensor, mask: torch.Tensor
  ) -> torch.Tensor:
    """Maps query [B, 1], items [B, N, 1 + C] and mask [B, N] to logits [B, C].

    In lookup, query is [B] keys, and items are [B, N, 2] keys and values.
    """
    if self.lookup:
      query = self.keys(query)
      items = torch.cat([self.keys(items[..., 0]), self.values(items[..., 1])], -1)
    items = self.encode_items(items)
    query = self.to_query(self.encode_query(query))
    scores = torch.einsum('bd,bnd->bn', query, self.to_key(items)) / WIDTH**0.5
    weights = scores.masked_fill(~mask, float('-inf')).softmax(-1)
    output = torch.einsum('bn,bnd->bd', weights, self.to_value(items))
    return self.classify(self.norm(output))


def _mlp(inputs: int, outputs: int) -> nn.Module:
  return nn.Sequential(
      nn.Linear(inputs, WIDTH), nn.GELU(approximate='tanh'), nn.Linear(WIDTH, outputs)
  )


def sample(device: str, longest: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
  """Draws one batch: the inputs of `Retriever`, and the targets [B]."""
  length = torch.randint(SHORTEST, longest + 1, (BATCH, 1), device=device)
  mask = torch.arange(longest, device=device) < length
  priority = torch.rand(BATCH, longest, device=device)
  classes = torch.randint(CLASSES, (BATCH, longest), device=device)
  items = torch.cat([priority[..., None], F.one_hot(classes, CLASSES).float()], -1)
  best = priority.masked_fill(~mask, -1.0).argmax(1, keepdim=True)
  query = torch.rand(BATCH, 1, device=device)
  return (query, items, mask), classes.gather(1, best)[:, 0]


def distinct_keys(device: str, longest: int) -> torch.Tensor:
  """Draws distinct keys [B, N]; a sequence in which a key repeats is drawn again."""
  keys = torch.randint(KEYS, (BATCH, longest), device=device)
  while True:
    by_size = keys.sort(1).values
    wrong = (by_size[:, 1:] == by_size[:, :-1]).any(1)
    if not wrong.any():
      return keys
    keys[wrong] = torch.randint(KEYS, (int(wrong.sum()), longest), device=device)


def sample_lookup(
    device: str, longest: int, redraw: bool = False
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
  """Draws one batch of dictionary lookup; returns the same as `sample`."""
  length = torch.randint(SHORTEST, longest + 1, (BATCH, 1), device=device)
  mask = torch.arange(longest, device=device) < length
  if redraw:
    keys = distinct_keys(device, longest)
  else:
    keys = torch.rand(BATCH, KEYS, device=device).topk(longest).indices
  values = torch.randint(CLASSES, (BATCH, longest), device=device)
  place = (torch.rand(BATCH, 1, device=device) * length).long()
  query = keys.gather(1, place)[:, 0]
  return (query, torch.stack([keys, values], -1), mask), values.gather(1, place)[:, 0]


class Run:
  """A model in training; `advance` continues it."""

  def __init__(
      self, norm: str, device: str, task: str = 'retrieval', longest: int = LONGEST,
      redraw: bool = False,
  ):
    """Starts at step 0 on 'cpu' or 'cuda'."""
    torch.manual_seed(0)
    draw = sample
    if task == 'lookup':
      draw = functools.partial(sample_lookup, redraw=redraw)
    self._sample = functools.partial(draw, device, longest)
    self._model = Retriever(norm, task == 'lookup').to(device)
    self._optimizer = torch.optim.Adam(
        self._model.parameters(), lr=1e-3, weight_decay=1e-3, fused=True
    )
    self.loss = float('nan')

  def advance(self, steps: int) -> float:
    """Makes `steps` updates and returns the seconds they took."""
    start = time.perf_counter()
    for _ in range(steps):
      inputs, target = self._sample()
      loss = F.cross_entropy(self._model(*inputs), target)
      self._optimizer.zero_grad()
      loss.backward()
      self._optimizer.step()
    self.loss = loss.item()  # waits for the device
    return time.perf_counter() - start


def main() -> None:
  """Prints the steps per second as JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--steps', type=int, default=1000)
  parser.add_argument('--norm', choices=NORMS, default='layer_norm')
  parser.add_argument('--task', choices=TASKS, default='retrieval')
  parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
  parser.add_argument('--redraw', action='store_true', help='faster; for lookup')
  args = parser.parse_args()
  run = Run(args.norm, args.device, args.task, redraw=args.redraw)
  run.advance(50)  # the first steps are slower
  rate = args.steps / run.advance(args.steps)
  print(json.dumps({
      'torch_steps_per_second': round(rate, 1),
      'task': args.task,
      'norm': args.norm,
      'device': args.device,
      'torch': torch.__version__,
  }))


if __name__ == '__main__':
  main()
