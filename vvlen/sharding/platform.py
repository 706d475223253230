"""Which platform a program is compiled for.

A program may be compiled for devices that this process does not have, such as those of
a TPU slice (`jax.experimental.topologies`). So the choice of a kernel must follow the
devices of the mesh, not `jax.default_backend()`, which is about this process.
"""

import jax
from jax.sharding import AbstractMesh, Mesh


def target(mesh: Mesh | AbstractMesh | None = None) -> str:
  """Returns the platform of the devices that a program is compiled for.

  Args:
    mesh: the devices. None: those of the current mesh, which jax.set_mesh sets, or the
      jax.shard_map around the traced function.

  Returns:
    'cpu', 'gpu' or 'tpu'; that of this process if there is no mesh.
  """
  device = _abstract(mesh).abstract_device
  return _name(device.platform) if device else jax.default_backend()


def num_devices() -> int:
  """Returns the number of devices that a program is compiled for.

  It is the size of the mesh in whose context this is called, and without a mesh the
  number of all devices.
  """
  mesh = _abstract(None)
  return mesh.size if mesh.axis_names else jax.device_count()


def _abstract(mesh):
  if mesh is None:
    return jax.sharding.get_abstract_mesh()
  return mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh


def _name(platform):
  # Devices of NVIDIA and AMD call their platform cuda and rocm in some versions of JAX.
  return 'gpu' if platform in ('cuda', 'rocm') else platform
