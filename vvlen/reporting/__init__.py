"""From results to tables and figures, and whose folder it is; knows no paper. Runs without JAX."""
