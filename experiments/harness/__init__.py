"""What every experiment does around its science."""
