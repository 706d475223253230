"""Mean, number and sum of bits (arXiv 2506.11769)."""
