"""Paired tests of two arms that share their seeds, their power, and intervals."""

from vvlen.statistics.correction import (
    by_holm,
    detectable_together,
    holm,
    holm_levels,
)
from vvlen.statistics.correlations import (
    bootstrap,
    Estimate,
    partial,
    pearson,
    spearman,
)
from vvlen.statistics.intervals import (
    Correlation,
    deviation_ratio,
    mean_interval,
    percentile_interval,
    percentiles_cover,
    rank_correlation,
    Ratio,
    resampled_means,
)
from vvlen.statistics.paired import (
    adjusted_test,
    at_level,
    paired_by_seed,
    paired_t_test,
    PairedTest,
    spread,
)
from vvlen.statistics.power import (
    detectable,
    power_to_find,
    smallest_detectable,
)

__all__ = [
    'Correlation',
    'Estimate',
    'PairedTest',
    'Ratio',
    'adjusted_test',
    'at_level',
    'bootstrap',
    'by_holm',
    'detectable',
    'detectable_together',
    'deviation_ratio',
    'holm',
    'holm_levels',
    'mean_interval',
    'paired_by_seed',
    'paired_t_test',
    'partial',
    'pearson',
    'percentile_interval',
    'percentiles_cover',
    'power_to_find',
    'rank_correlation',
    'resampled_means',
    'smallest_detectable',
    'spearman',
    'spread',
]
