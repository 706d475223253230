"""From results to tables and figures; knows no paper, and runs without JAX."""
