"""The recency bias of LayerNorm (arXiv 2509.21042)."""
