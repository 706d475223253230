"""How misalignment and training loss correlate with length generalization."""
