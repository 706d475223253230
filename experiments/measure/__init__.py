"""Measures a checkpoint beyond the lengths of its training."""
