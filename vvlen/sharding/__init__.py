"""Placement on devices: of many seeds, and of one model over the axes of a mesh."""

from vvlen.sharding.seeds import (
    check_divisible,
    compile_together,
    fetch,
    interleave,
    over_seeds,
    put,
    seed_mesh,
    separate,
    whole,
)

__all__ = [
    'check_divisible', 'compile_together', 'fetch', 'interleave', 'over_seeds', 'put',
    'seed_mesh', 'separate', 'whole',
]
