"""Training of any number of seeds at once, and of one model over many devices."""
