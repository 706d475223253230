"""Retrieval and lookup at lengths not seen in training (arXiv 2504.02827)."""
