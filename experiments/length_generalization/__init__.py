"""Retrieval and lookup beyond the training lengths (arXiv 2504.02827)."""
