"""A grid of choices that arXiv 2504.02827 leaves open."""
