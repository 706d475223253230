"""Flax linen modules and the pure functions beneath them."""
