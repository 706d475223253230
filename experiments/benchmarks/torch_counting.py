"""Counting in plain PyTorch, for one seed: the reference of `counting_training`.

It is written as most researchers would: a pre-LN transformer with nn.Linear and
scaled_dot_product_attention, AdamW and a cosine schedule, on padded batches. Sizes,
task, loss and optimizer are those of configs/counting.py:cpu, without positions.
"""

import torch
from torch import nn
from torch.nn import functional

BOS, EOS = 2, 3


class Block(nn.Module):
  """One layer: causal attention, then an MLP."""

  def __init__(self, width: int, num_heads: int, mlp_factor: int):
    super().__init__()
    self.num_heads = num_heads
    self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
    self.qkv = nn.Linear(width, 3 * width, bias=False)
    self.output = nn.Linear(width, width, bias=False)
    self.mlp = nn.Sequential(
        nn.Linear(width, mlp_factor * width), nn.GELU(approximate='tanh'),
        nn.Linear(mlp_factor * width, width),
    )

  def forward(self, x):
    batch, length, width = x.shape
    heads = lambda t: t.view(batch, length, self.num_heads, -1).transpose(1, 2)
    q, k, v = (heads(t) for t in self.qkv(self.attention_norm(x)).chunk(3, dim=-1))
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + self.output(attended.transpose(1, 2).reshape(batch, length, width))
    return x + self.mlp(self.mlp_norm(x))


class Regressor(nn.Module):
  """Predicts a number from the hidden state of EOS."""

  def __init__(self, num_layers: int, width: int, num_heads: int, mlp_factor: int):
    super().__init__()
    self.embedding = nn.Embedding(4, width)
    self.blocks = nn.ModuleList(
        Block(width, num_heads, mlp_factor) for _ in range(num_layers)
    )
    self.norm = nn.LayerNorm(width)
    self.head = nn.Sequential(
        nn.Linear(width, width), nn.GELU(approximate='tanh'), nn.Linear(width, 1)
    )

  def forward(self, tokens, end):
    x = self.embedding(tokens)
    for block in self.blocks:
      x = block(x)
    x = self.norm(x[torch.arange(len(x), device=x.device), end])
    return self.head(x)[:, 0]


class Run:
  """Trains one seed on the mean of 1 to `max_length` bits."""

  def __init__(self, device: str, model: dict[str, int], batch_size: int,
               max_length: int, num_steps: int):
    torch.manual_seed(0)
    self.device, self.batch_size, self.max_length = device, batch_size, max_length
    self.model = Regressor(**model).to(device)
    self.optimizer = torch.optim.AdamW(
        self.model.parameters(), lr=1e-3, weight_decay=0.01, fused=True
    )
    self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        self.optimizer, num_steps
    )

  def batch(self):
    """Draws padded strings of bits, the positions of EOS, and the means."""
    rows, longest = self.batch_size, self.max_length
    length = torch.randint(1, longest + 1, (rows, 1), device=self.device)
    bits = torch.randint(0, 2, (rows, longest), device=self.device)
    kept = torch.arange(longest, device=self.device) < length
    edge = lambda token: torch.full((rows, 1), token, device=self.device)
    tokens = torch.cat([edge(BOS), torch.where(kept, bits, EOS), edge(EOS)], dim=1)
    mean = (bits * kept).sum(dim=1) / length[:, 0]
    return tokens, length[:, 0] + 1, mean

  def advance(self, num_steps: int) -> float:
    """Makes `num_steps` updates and returns the last loss."""
    for _ in range(num_steps):
      tokens, end, target = self.batch()
      loss = functional.mse_loss(self.model(tokens, end), target)
      self.optimizer.zero_grad()
      loss.backward()
      self.optimizer.step()
      self.schedule.step()
    return loss.item()
