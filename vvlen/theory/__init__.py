"""What is known about the effects without training or sampling."""
