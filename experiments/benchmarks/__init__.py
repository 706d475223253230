"""Benchmarks of speed and memory against code that does not use vvlen."""
