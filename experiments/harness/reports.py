"""Finds the report of a study by its name, and makes it. Needs no JAX."""

from collections.abc import Callable
import importlib
import os
import pathlib
import re
import shutil
import tempfile
import textwrap

from etils import epath

from experiments.harness import errors, locks
from vvlen.reporting import page, results, run_folder, starts
from vvlen.reporting.numbers import counted
from vvlen.reporting.tables import grid

_MOST = 20  # lines of a table in the terminal
_MOST_SAID = 3  # answers there
_LARGE = 10**6  # bytes of a results.csv that `compress` compresses


def show(workdir: epath.PathLike) -> None:
  """Writes tables, figures and page of a run, and prints what it has found.

  It prints the answer, the main table as far as it fits into the terminal, and the path
  of the page. If the folder of the run cannot be written to, a temporary one is used.

  Raises:
    ValueError: if the folder holds no results, or if they are damaged.
  """
  folder = epath.Path(workdir)
  if '://' not in str(workdir) and folder.exists() and not os.access(folder, os.W_OK):
    folder = _copy(folder)
    print(f'{workdir} cannot be written to: tables and figures are in {folder}.')
  report, path = make(folder)
  print('', *said(report, shutil.get_terminal_size().columns), sep='\n')
  took = starts.elapsed(folder)
  print(f'Open {path} for all tables and figures.')
  if took:
    print(took)


def make(folder: epath.Path) -> tuple[page.Report, epath.Path]:
  """Writes tables, figures and page of a run; returns its report and index.html."""
  for line in results.which_of_two(folder / 'results.csv'):
    print(line)
  write = writer(study_of(folder))
  try:
    report = write(folder)
  except (LookupError, ValueError) as error:
    listed = (folder / 'rows.json').exists()
    there = results.is_there(folder / 'results.csv')
    if listed or not there or not errors.is_bug(error):
      raise
    raise ValueError(
        f'{folder}/results.csv seems to have lost rows ({type(error).__name__}: '
        f'{error}), and there is no rows.json to say which. Delete results.csv: the '
        'command of the run computes its rows again') from error
  path, _ = page.write(folder, report)
  return report, path


def show_all(folder: epath.PathLike) -> None:
  """Writes tables, figures and pages of all runs in a folder, and lists them.

  The list is index.md in the folder. It has the question of each run and the first
  sentence of its answer.

  Raises:
    ValueError: if the folder holds no run, or results are damaged.
  """
  folder, lines = epath.Path(folder), []
  for run in runs_of(folder):
    report, _ = make(run)
    found = ' '.join(filter(None, (report.missing, *report.answer[:1])))
    lines.append(f'- [{run.name}]({run.name}/index.md). *{report.title}* {found}')
    print(lines[-1], flush=True)
  if not lines:
    raise ValueError(f'{folder} holds no folders of runs')
  results.write_text(folder / 'index.md', '\n'.join(['# Runs', '', *lines, '']))


def runs_of(folder: epath.PathLike) -> list[epath.Path]:
  """Returns the folders of runs in a folder, none if there is no such folder."""
  folder = epath.Path(folder)
  return [run for run in (sorted(folder.iterdir()) if folder.exists() else [])
          if results.is_there(run / 'results.csv')]


def compress(workdir: epath.PathLike) -> None:
  """Replaces a run's results.csv by results.csv.xz if it is larger than 1 MB.

  Then it makes the run's page again, which names this file.

  Raises:
    ValueError: if another process is at work in the folder.
  """
  path = epath.Path(workdir) / 'results.csv'
  if not path.exists() or path.stat().length <= _LARGE:
    return
  locks.lock(workdir)
  try:
    before, after = results.compress(path)
  finally:
    locks.release()
  print(f'{path}: {before / 1e6:.1f} MB, now results.csv.xz of {after / 1e6:.1f} MB.')
  make(path.parent)


def said(report: page.Report, width: int) -> list[str]:
  """Returns lines that say what a run has found, none longer than `width`."""
  lines = []
  texts = [report.missing, *report.answer[:_MOST_SAID]]
  if len(report.answer) > _MOST_SAID:
    more_answers = counted(len(report.answer) - _MOST_SAID, 'more answer')
    texts.append(f'The page has {more_answers}.')
  for text in texts:
    joined = text.replace(' %', '\N{NO-BREAK SPACE}%')  # so that no line begins with %
    lines += [line.replace('\N{NO-BREAK SPACE}', ' ')
              for line in textwrap.wrap(joined, width)] + [''] * bool(text)
  if table := report.shown_in_terminal:
    rows = grid(table, width).split('\n')
    # Lines that continue the row above begin with an empty cell.
    begins = [i for i, row in enumerate(rows) if not row.startswith('|  ')]
    end = next((i for i in begins if i >= _MOST), len(rows))
    left = sum(i >= end for i in begins)
    # Tables with `short` leave columns out by choice, others those that do not fit.
    hidden = 0 if table.short else len(table.columns) - (rows[0].count(' | ') + 1)
    more = [f'and {counted(count, f"more {what}")}'
            for count, what in ((left, 'row'), (hidden, 'column')) if count]
    lines += [*textwrap.wrap(table.title, width), *rows[:end], *more, '']
  return lines


def _copy(folder: epath.Path) -> pathlib.Path:
  """Copies what a report is made from to a new temporary folder."""
  copy = pathlib.Path(tempfile.mkdtemp(prefix='vvlen-report-'))
  left_out = shutil.ignore_patterns(
      'checkpoints', 'models', 'tables', 'figures', 'trace', 'tensorboard')
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


def writer(study: str) -> Callable[[epath.PathLike], page.Report]:
  """Returns the function that writes the tables and figures of a study's run.

  Args:
    study: a folder of `experiments` that has a report.py.

  Returns:
    folder -> what the run has found.
  """
  assert re.fullmatch(r'\w+', study), study
  return importlib.import_module(f'experiments.{study}.report').write
