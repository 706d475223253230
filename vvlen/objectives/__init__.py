"""What is minimized: losses, and what they are computed of."""
