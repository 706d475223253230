"""Says what it costs that the devices of a mesh do not divide a batch."""

import jax

from vvlen.sharding import mesh as partition


def say_filled(
    batch: str, size: int, rows: int, mesh: jax.sharding.Mesh, repeated: str = 'a row'
) -> None:
  """Prints how much of the work fills a batch up, if anything does.

  Args:
    batch: what it is, in words such as 'A batch of 6 rows'.
    size: the number of its rows.
    rows: of the filled batch.
    mesh: the devices.
    repeated: what the rows that fill it up repeat.
  """
  if rows > size:
    print(f'{batch} on {partition.row_ways(mesh)} devices: {rows - size} of {rows} '
          f'rows, {1 - size / rows:.0%} of the work, repeat {repeated} and are not '
          'counted.', flush=True)
