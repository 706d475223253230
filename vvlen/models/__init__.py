"""Flax linen modules and the pure functions that they use."""
