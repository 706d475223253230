"""Fields of configurations: what is wrong with them is told by name."""

from collections.abc import Iterator
import contextlib


@contextlib.contextmanager
def naming_fields() -> Iterator[None]:
  """Names what a configuration lacks, or has wrong, for the block that reads it.

  Raises:
    ValueError: instead of AttributeError, KeyError and TypeError.
  """
  try:
    yield
  except (KeyError, AttributeError) as error:
    # Their text says which field; ml_collections wraps it.
    raise ValueError(f'config lacks a field: {error.args[0]}') from error
  except TypeError as error:
    raise ValueError(f'config: {error}') from error
