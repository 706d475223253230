"""The positions that a checkpoint is measured with, if they are not its own.

A configuration has a field `rope`:

  kind             'none': the checkpoint's own; or how they are extended, of `KINDS`
  factor           s, at least 1: by how much
  original_length  L₀ in tokens; 0: the longest input of the checkpoint
"""

from typing import Any

from experiments.harness.fields import one_of, real, whole
from vvlen.models import rope
from vvlen.models.llama.model import Llama

# CLEX is learned, so a checkpoint has it or not.
KINDS = tuple(kind for kind in rope.KINDS if kind != 'clex')
FIELDS = {'rope.kind': one_of(KINDS), 'rope.factor': real(least=1),
          'rope.original_length': whole(least=0)}


def measured_with(chosen: Any, model: Llama) -> Llama:
  """Returns a model with the positions that are chosen for measuring.

  Args:
    chosen: the field `rope` of a configuration.
    model: as the checkpoint has it.

  Raises:
    ValueError: if the model has no rotary positions, or they are extended already.
  """
  if chosen.kind == 'none':
    return model
  try:
    if model.rope is None:
      raise ValueError('the checkpoint has no rotary positions')
    return model.clone(rope=rope.extended(
        model.rope, chosen.kind, chosen.factor,
        chosen.original_length or model.max_length))
  except ValueError as error:
    raise ValueError(f'config.rope.kind {chosen.kind}: {error}') from error
