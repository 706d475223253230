"""Loads the checkpoint that a configuration names."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from vvlen.models import llama
from vvlen.sharding import mesh as partition


def load_variables(config: Any, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """Returns the variables of `config.checkpoint` on the devices of a mesh.

  Args:
    config: with the fields `checkpoint`, a folder, and `dtype`; '' for that of the
      files.
    mesh: of the devices.
  """
  shardings = functools.partial(partition.shardings, mesh=mesh)
  dtype = jnp.dtype(config.dtype) if config.dtype else None
  return llama.load_checkpoint(config.checkpoint, shardings, dtype=dtype)[1]
