"""Long-context benchmarks of a checkpoint."""
