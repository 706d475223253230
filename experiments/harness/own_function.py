"""A function in a Python file of the user. Runs without JAX."""

from collections.abc import Callable
import runpy
import traceback
from typing import Any


def load(field: str, path: str, function: str) -> Callable[..., Any]:
  """Runs a file as Python and returns one of its functions.

  Args:
    field: of the configuration, for messages.
    path: of the file, which exists.
    function: its name.

  Raises:
    ValueError: if the file cannot be run or has no such function.
  """
  try:
    found = runpy.run_path(path).get(function)
  except (Exception, SystemExit) as error:  # whatever the file raises
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    at = f', line {lines[-1]}' if lines else ''
    says = str(error).strip().split('\n')[0]
    raise ValueError(f'{field}: {path} cannot be run: {type(error).__name__}: '
                     f'{says}{at}') from error
  if not callable(found):
    raise ValueError(f'{field}: {path} has no function {function!r}')
  return found
