"""Which sizes and fields of `vvlen.models.llama.Llama` fit each other."""

import math
from typing import Any

from vvlen.models.llama.layers import KEPT


def check_model(model: Any) -> None:
  """Raises ValueError unless the sizes of a model are positive and fit each other."""
  for name in ('vocab_size', 'width', 'mlp_width', 'num_layers', 'num_heads',
               'num_key_heads', 'max_length'):
    if getattr(model, name) < 1:
      raise ValueError(f'{name} must be positive: {getattr(model, name)}')
  if model.head_width is not None and model.head_width < 1:
    raise ValueError(f'head_width must be positive: {model.head_width}')
  if not 0 < model.epsilon < math.inf:
    raise ValueError(f'epsilon must be positive and finite: {model.epsilon}')
  if model.num_heads % model.num_key_heads:
    raise ValueError(f'{model.num_key_heads} key heads do not divide '
                     f'{model.num_heads} query heads')
  if model.alibi and model.rope is not None:
    raise ValueError(f'alibi needs rope None: {model.rope}')
  if model.alibi and model.shifted is not None:
    raise ValueError('shifted sparse attention does not support ALiBi')
  if model.remat_keeps not in KEPT:
    raise ValueError(f'remat_keeps must be one of {", ".join(KEPT)}: '
                     f'{model.remat_keeps!r}')
  if not model.scan_layers and (model.remat_keeps, model.stream_dtype) != (
      'nothing', None):
    raise ValueError('remat_keeps and stream_dtype need scan_layers')
  if model.head_width is None and model.width % model.num_heads:
    raise ValueError(f'{model.num_heads} heads do not divide a width of {model.width}')
