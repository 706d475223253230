"""The names of the scales of misalignment. Runs without JAX."""

# Fields of `vvlen.objectives.measures.Measures`. The first window is the one in which
# the compared token has the longer context.
SCALES = {
    'sce': 'SCE', 'half_sce': 'SCE/2', 'symmetric_kl': 'symmetric KL',
    'kl_first_second': 'KL(long‖short)', 'kl_second_first': 'KL(short‖long)',
    'js': 'Jensen–Shannon', 'entropy_first': 'entropy, long',
    'entropy_second': 'entropy, short', 'top1_agreement': 'top-1 agreement',
}
