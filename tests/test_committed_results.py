"""Tables and figures of experiments/results are what their results.csv gives."""

import csv
import itertools
import re
import shutil

from etils import epath
import pytest

from experiments.harness import reports
from tests.cells import is_short
from tests.conftest import ROOT
from vvlen.reporting import results

RESULTS = ROOT / 'experiments/results'
FOLDERS = sorted(
    path.parent.name for path in RESULTS.glob('*/config.json')
    if results.is_there(path.parent / 'results.csv')
)


def _cells(path):
  """Returns the cells of a CSV file, numbers as floats."""
  def value(text):
    try:
      return float(text)
    except ValueError:
      return text

  with path.open() as file:
    return [[value(x) for x in row] for row in csv.reader(file)]


def _is_same(one, other):
  if isinstance(one, str) or isinstance(other, str):
    return one == other
  # Sums differ in their last bits between processors.
  return one == pytest.approx(other, rel=1e-9, abs=1e-12, nan_ok=True)


def _files(folder, suffix):
  return {path.relative_to(folder) for path in folder.rglob(f'*{suffix}')
          if path.parent.name in ('tables', 'figures')}


def test_there_are_results_and_all_are_listed():
  assert len(FOLDERS) > 10
  listed = re.findall(r'^- \[(\w+)\]', (RESULTS / 'index.md').read_text(), re.MULTILINE)
  assert listed == FOLDERS


def test_tables_have_at_most_twelve_columns_and_notes_of_two_lines():
  tables = sorted(RESULTS.glob('*/tables/*.md'))
  assert len(tables) > 50
  for path in tables:
    _, _, note, *more = path.read_text().strip().split('\n\n')
    assert is_short(note), f'{path}: {len(note)} characters'
    assert not more or more[0].startswith('<details>'), path
  for path in RESULTS.rglob('*.md'):
    widths = [len(re.findall(r'(?<!\\)\|', line)) - 1
              for line in path.read_text().splitlines() if line.startswith('|')]
    assert max(widths, default=0) <= 12, path


def test_tables_as_csv_are_ascii_and_spell_every_character():
  for path in RESULTS.glob('*/tables/*.csv'):
    text = path.read_bytes()
    assert text.isascii() and b'\\' not in text, path


def test_large_files_of_results_are_compressed():
  sizes = {path: path.stat().st_size for path in RESULTS.glob('*/results.csv*')}
  assert [p for p, size in sizes.items() if size > 10**6 and p.suffix == '.csv'] == []
  assert [p for p in sizes if p.with_name('results.csv.xz') in sizes
          and p.suffix == '.csv'] == []


@pytest.mark.slow
@pytest.mark.parametrize('name', FOLDERS)
def test_a_committed_run_is_remade_from_its_results(name, tmp_path):
  copy = tmp_path / name
  shutil.copytree(RESULTS / name, copy, ignore=shutil.ignore_patterns(
      'tables', 'figures', '*.md'))
  reports.make(epath.Path(copy))
  assert (copy / 'index.md').read_text() == (RESULTS / name / 'index.md').read_text()
  for suffix in ('.md', '.csv', '.png'):
    # Of counting's repetitions, only what their pages show is committed.
    assert _files(copy, suffix) >= _files(RESULTS / name, suffix)
  for path in sorted(_files(RESULTS / name, '.md')):
    assert (copy / path).read_text() == (RESULTS / name / path).read_text(), path
  for path in sorted(_files(RESULTS / name, '.csv')):
    remade, committed = _cells(copy / path), _cells(RESULTS / name / path)
    assert [len(row) for row in remade] == [len(row) for row in committed], path
    cells = zip(itertools.chain(*remade), itertools.chain(*committed), strict=True)
    for one, other in cells:
      assert _is_same(one, other), path
