"""Finds the report of a study by its name, and makes it. Needs no JAX."""

from collections.abc import Callable
import importlib
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

from etils import epath

from vvlen.reporting import run_folder


def show(workdir: epath.PathLike) -> None:
  """Writes tables and figures of a run, and prints the main tables.

  They are written to a temporary folder if that of the run cannot be written to.

  Raises:
    ValueError: if the folder holds no results, or if they are damaged.
  """
  folder = epath.Path(workdir)
  if '://' not in str(workdir) and folder.exists() and not os.access(folder, os.W_OK):
    folder = _copy(folder)
    print(f'{workdir} cannot be written to: tables and figures are in {folder}.')
  main_tables, paths = writer(study_of(folder))(folder)
  print('', main_tables, *paths, sep='\n')


def _copy(folder: epath.Path) -> pathlib.Path:
  """Copies what a report is made from to a new temporary folder."""
  copy = pathlib.Path(tempfile.mkdtemp(prefix='vvlen-report-'))
  left_out = shutil.ignore_patterns(
      'checkpoints', 'models', 'tables', 'figures', 'trace')
  shutil.copytree(folder, copy, ignore=left_out, dirs_exist_ok=True)
  copy.chmod(0o700)  # copytree copied the mode of the folder, which forbids writing
  return copy


def study_of(workdir: epath.PathLike) -> str:
  """Returns the study of a run's folder; length generalization without a config.json.

  Raises:
    ValueError: if its config.json names an unknown study.
  """
  path = epath.Path(workdir) / 'config.json'
  if not path.exists():
    return 'length_generalization'
  with run_folder.reading(path) as stored:
    study = stored.get('study')
  known = sorted(
      report.parent.name
      for report in pathlib.Path(__file__).parent.parent.glob('*/report.py')
  )
  if study not in known:
    raise ValueError(f'{path}: study must be one of {", ".join(known)}: {study!r}')
  return study


def writer(study: str) -> Callable[..., tuple[str, list[Any]]]:
  """Returns the function that writes the tables and figures of a study's run.

  Args:
    study: a folder of `experiments` that has a report.py.

  Returns:
    folder -> (the main tables as Markdown, the paths written).
  """
  assert re.fullmatch(r'\w+', study), study
  return importlib.import_module(f'experiments.{study}.report').write
