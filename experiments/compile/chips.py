"""What is published about chips, and slices of them. Runs without JAX.

Numbers are those of cloud.google.com/tpu/docs/v5e, /v5p and /v6e, and of NVIDIA's data
sheet of the H100 SXM (dense): peaks of bfloat16 products.
"""

import difflib
import math
from typing import NamedTuple


class Chip(NamedTuple):
  """One chip."""

  name: str
  flops: float  # a second, of bfloat16 products
  bandwidth: float  # bytes a second, of its memory
  memory: int  # bytes


_GIB = 2**30
CHIPS = {
    'v5e': Chip('TPU v5e', 197e12, 819e9, 16 * _GIB),
    'v5p': Chip('TPU v5p', 459e12, 2765e9, 95 * _GIB),
    'v6e': Chip('TPU v6e', 918e12, 1640e9, 32 * _GIB),
    'h100': Chip('NVIDIA H100', 989e12, 3350e9, 80 * 10**9),
}
_FLAT = ('2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
SHAPES = {
    'v5e': _FLAT,
    'v5p': ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8'),
    'v6e': _FLAT,
    'h100': ('8',),  # by counting alone: there is no compiler for it here
}


class Slice(NamedTuple):
  """Several chips that run one program."""

  name: str  # such as 'v5e:16x16'
  chip: Chip
  size: int  # chips

  @property
  def compiles(self) -> bool:
    """Whether its compiler runs on machines without the chip."""
    return self.chip.name.startswith('TPU')


def slice_of(name: str) -> Slice:
  """Returns the slice with a name such as 'v5e:16x16'.

  Raises:
    ValueError: if it is unknown; the message lists those that are known.
  """
  kind, _, shape = name.partition(':')
  if kind not in SHAPES:
    raise ValueError(f'unknown type of chip {kind!r} in --topology={name}: must be one '
                     f'of {", ".join(SHAPES)}, with a shape in chips, as in v5e:4x8')
  if shape not in SHAPES[kind]:
    raise ValueError(f'unknown topology {name!r}: must be one of '
                     f'{", ".join(f"{kind}:{x}" for x in SHAPES[kind])}')
  return Slice(name, CHIPS[kind], math.prod(map(int, shape.split('x'))))


def known(what: str, name: str, names: list[str]) -> None:
  """Raises ValueError unless a name is one of several; the message lists them."""
  if name not in names:
    near = difflib.get_close_matches(name, names, 1)
    raise ValueError(f'unknown {what} {name!r}{f" ({near[0]}?)" if near else ""}: must '
                     f'be one of {", ".join(names)}')
