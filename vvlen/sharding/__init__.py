"""Which device has what: of many seeds, and of one model over several axes."""

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
