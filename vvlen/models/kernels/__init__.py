"""The forms of causal attention: all logits at once, in blocks, and of short inputs."""
