"""Linear attention that counts bits (arXiv 2506.11769)."""
