"""Measurements of speed and memory, against what one would write without vvlen."""
