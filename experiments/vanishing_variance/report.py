"""What a family of runs tells: its tables and figure. Runs without JAX."""


def show(workdir):
  """Writes tables and figures, prints the main table."""
