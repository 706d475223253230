"""Placement on devices: of many seeds, and of one model over the axes of a mesh."""

from vvlen.sharding.padding import cut, padded, put
from vvlen.sharding.seeds import (
    compile_together,
    fetch,
    interleave,
    over_seeds,
    seed_mesh,
    separate,
    whole,
)

__all__ = [
    'compile_together', 'cut', 'fetch', 'interleave', 'over_seeds', 'padded', 'put',
    'seed_mesh', 'separate', 'whole',
]
