"""Training of any number of seeds at once."""
