"""A grid of settings that arXiv 2504.02827 leaves open."""
