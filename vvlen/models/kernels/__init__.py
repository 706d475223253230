"""Implementations of attention: all logits at once, in blocks, and for short inputs."""
