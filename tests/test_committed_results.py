"""Tables and figures of experiments/results are what their results.csv gives."""

import csv
import itertools
import re
import shutil

from etils import epath
import pytest

from experiments.harness import reports
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
