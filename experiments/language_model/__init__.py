"""Language models with and without the misalignment term (arXiv 2506.11769)."""
