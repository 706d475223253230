"""Compiles the programs of experiments for TPU slices, without a TPU."""

# The keys of programs.EXPERIMENTS, which needs JAX.
NAMES = ['retrieval', 'lookup', 'retrieval_growing', 'lookup_growing', 'recency_bias',
         'counting', 'language_model', 'llama_2_7b_4096', 'llama_2_7b_8192',
         'adapt_clex', 'adapt_yarn', 'adapt_eabf', 'adapt_longlora', 'adapt_longqlora',
         'adapt_pi', 'adapt_ntk', 'adapt_random', 'adapt_alibi', 'adapt_clex_8192',
         'adapt_clex_evaluation', 'adapt_yarn_evaluation',
         'adapt_longqlora_evaluation']
