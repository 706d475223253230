"""Losses, and the windows, divergences and measures that they are made of."""
