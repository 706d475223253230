import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec
import pytest

from vvlen.sharding import platform


def _mesh(size, name, kind):
  return AbstractMesh((size,), ('data',), (AxisType.Auto,),
                      abstract_device=AbstractDevice(kind, None, name))


TPU = _mesh(4, 'tpu', 'TPU v5 lite')


def test_without_a_mesh_it_is_that_of_this_process():
  assert (platform.target(), platform.num_devices()) == ('cpu', 8)


@pytest.mark.parametrize('name, found', [
    ('tpu', 'tpu'), ('cpu', 'cpu'), ('cuda', 'gpu'), ('rocm', 'gpu'), ('gpu', 'gpu')])
def test_it_is_that_of_the_mesh_that_is_given_or_set(name, found):
  mesh = _mesh(3, name, 'some kind')
  assert platform.target(mesh) == found
  with jax.sharding.use_abstract_mesh(mesh):
    assert (platform.target(), platform.num_devices()) == (found, 3)
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,),
                       devices=jax.devices()[:2])
  assert platform.target(mesh) == 'cpu'
  with jax.set_mesh(mesh):
    assert (platform.target(), platform.num_devices()) == ('cpu', 2)


def test_inside_a_shard_map_it_is_that_of_its_mesh():
  seen = []

  def local(x):
    seen.append((platform.target(), platform.num_devices()))
    return x

  apart = jax.shard_map(local, mesh=TPU, in_specs=PartitionSpec('data'),
                        out_specs=PartitionSpec('data'))
  jax.jit(apart).trace(jax.ShapeDtypeStruct((4,), 'float32'))
  assert seen == [('tpu', 4)]


def test_one_function_is_traced_for_each_platform():
  seen = []
  function = jax.jit(lambda x: seen.append(platform.target()) or x)
  shape = jax.ShapeDtypeStruct((4,), 'float32')
  function.trace(shape)
  with jax.sharding.use_abstract_mesh(TPU):
    function.trace(shape)
  assert seen == ['cpu', 'tpu']
