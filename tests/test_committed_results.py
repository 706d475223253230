"""Tables and figures of experiments/results are what their results.csv gives.

Figures have text that can be read in print, a title, a caption and few lines.
"""

import csv
import itertools
import re
import shutil

from etils import epath
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.legend import Legend
from matplotlib.text import Annotation, Text
import pytest

from experiments.counting.cells import read_figures
from experiments.counting.figures import errors
from experiments.harness import reports
from tests.cases import mostly_slow
from tests.cells import is_short
from tests.conftest import ROOT
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.tables import latex, Table
from vvlen.reporting.titles import setup_of

RESULTS = ROOT / 'experiments/results'
FOLDERS = sorted(
    path.parent.name for path in RESULTS.glob('*/config.json')
    if results.is_there(path.parent / 'results.csv')
)

# Beside results: what knowing nothing gives, a limit, a law, a published number.
_REFERENCES = ('chance', 'set ignored', 'largest logit', 'no order', '1/√N',
               'proportional to', 'uniform weights', 'uniform weights, log N',
               'answering', 'arXiv', 'paper')


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


_INTERVAL = re.compile(r'(\S+) (?:\[(\S+), (\S+)\]|± (\S+))')
_ZERO = re.compile(r'[+−]?0(\.0+)?')


def test_uncertainties_are_not_0_and_in_the_notation_of_their_values():
  found = 0
  for path in RESULTS.glob('*/tables/*.md'):
    for line in path.read_text().splitlines():
      for texts in _INTERVAL.findall(line) if line.startswith('|') else []:
        value, *uncertain = filter(None, texts)
        assert not all(map(_ZERO.fullmatch, uncertain)), (path, texts)
        assert len({'e' in text for text in (value, *uncertain)}) == 1, (path, texts)
        found += 1
  assert found > 1500


def test_tables_as_csv_are_ascii_and_spell_every_character():
  for path in RESULTS.glob('*/tables/*.csv'):
    text = path.read_bytes()
    assert text.isascii() and b'\\' not in text, path


def test_every_character_of_the_tables_has_a_spelling_in_latex():
  found = {c for path in RESULTS.glob('*/tables/*.md') for c in path.read_text()}
  text = ''.join(sorted(found - {'\n'}))
  assert {'ε', 'β', '−', '√'} <= found
  assert latex(Table('t', text, {text: lambda r: r['x']}, [{'x': text}], '')).isascii()


def test_large_files_of_results_are_compressed():
  sizes = {path: path.stat().st_size for path in RESULTS.glob('*/results.csv*')}
  assert [p for p, size in sizes.items() if size > 10**6 and p.suffix == '.csv'] == []
  assert [p for p in sizes if p.with_name('results.csv.xz') in sizes
          and p.suffix == '.csv'] == []


@pytest.fixture(scope='module', params=mostly_slow(FOLDERS, 1, 2, 8))
def remade(request, tmp_path_factory):
  """A committed folder, the same made anew, and its figures {name: figure}."""
  committed, figures = RESULTS / request.param, {}
  copy = tmp_path_factory.mktemp('remade') / request.param
  shutil.copytree(committed, copy, ignore=shutil.ignore_patterns(
      'tables', 'figures', '*.md', '*.html'))

  def save_coarsely(folder, made):
    figures.update(made)
    folder.mkdir()
    for name, figure in made.items():
      figure.savefig(folder / f'{name}.png', dpi=30)
      (folder / f'{name}.pdf').write_bytes(b'')
    return {folder / f'{name}.{kind}': figure.get_label()
            for name, figure in made.items() for kind in ('png', 'pdf')}

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(plots, 'save', save_coarsely)
    reports.make(epath.Path(copy))
  assert figures
  return committed, copy, figures


@pytest.fixture
def drawn(remade):
  return remade[2]


def test_a_committed_run_is_remade_from_its_results(remade):
  committed, copy, _ = remade
  # It names the folder that it is of.
  page = (copy / 'index.md').read_text().replace(
      f'workdir={copy}', f'workdir={committed.relative_to(ROOT)}')
  assert page == (committed / 'index.md').read_text()
  for suffix in ('.md', '.csv', '.png'):
    # Of counting's repetitions, only what their pages show is committed.
    assert _files(copy, suffix) >= _files(committed, suffix)
  for path in sorted(_files(committed, '.md')):
    assert (copy / path).read_text() == (committed / path).read_text(), path
  for path in sorted(_files(committed, '.csv')):
    found, expected = _cells(copy / path), _cells(committed / path)
    assert [len(row) for row in found] == [len(row) for row in expected], path
    cells = zip(itertools.chain(*found), itertools.chain(*expected), strict=True)
    for one, other in cells:
      assert _is_same(one, other), path


def test_no_text_is_smaller_than_7_points_in_a_column_of_5_5_inches(drawn):
  for name, figure in drawn.items():
    printed = 5.5 / figure.get_figwidth()
    sizes = {(text.get_fontsize() * printed, text.get_text())
             for text in figure.findobj(Text)}
    assert min(sizes)[0] >= 7, (name, min(sizes))


def test_each_figure_has_a_title_of_its_own_and_a_sentence_below(drawn):
  titles = [figure.get_suptitle() for figure in drawn.values()]
  assert all(titles)
  for name, figure in drawn.items():
    caption = figure.get_label()
    assert len(caption) > 80 and caption.endswith('.'), (name, caption)
    assert not set(caption) & set('\n*[]$<>'), (name, caption)  # is Markdown and HTML


def test_no_title_is_wider_than_its_figure(drawn):
  for name, figure in drawn.items():
    [title] = [text for text in figure.findobj(Text)
               if text.get_text() == figure.get_suptitle()]
    assert len(title.get_text().rstrip('\n').split('\n')) <= 3, name
    setups = [x for x in figure.artists if isinstance(x, Annotation)]
    assert len(setups) == 1, name  # the task and the setting
    for text in (title, *setups):
      box = text.get_window_extent()
      assert box.x0 >= 0 and box.x1 <= figure.bbox.width, (name, text.get_text())


def test_a_figure_with_bands_or_bars_says_what_they_are(drawn):
  for name, figure in drawn.items():
    drawn_there = [x for axes in figure.axes if axes.get_label() != '<colorbar>'
                   for x in axes.collections]
    if not any(isinstance(x, PolyCollection | LineCollection) for x in drawn_there):
      continue
    legends = [x.get_title().get_text() for x in figure.findobj(Legend)]
    said = ' '.join((setup_of(figure), *legends))
    assert re.search('(bands?|bars?)( and bars)?: ', said), (name, said)


def test_no_panel_has_more_than_five_lines_that_are_results(drawn):
  for name, figure in drawn.items():
    for axes in figure.axes:
      lines = [line.get_label() for line in axes.lines
               if len(line.get_xdata()) and line.get_linestyle() != 'None'
               and not line.get_label().startswith(('_', *_REFERENCES))]
      assert len(lines) <= plots.MOST_LINES, (name, axes.get_title(), lines)


def test_what_is_named_alike_has_one_colour_in_all_figures_of_a_run(drawn):
  colours = {}
  for figure in drawn.values():
    for line in (line for axes in figure.axes for line in axes.lines):
      words = line.get_label().partition(', slope')[0]
      if words and not words.startswith(
          ('_', 'layer ', 'n = ', 'h = ', 'component ', *_REFERENCES)):
        colours.setdefault(words, set()).add(to_hex(line.get_color()))
  assert {words: c for words, c in colours.items() if len(c) > 1} == {}


def test_figure_1c_of_counting_has_one_colour_a_target_in_all_runs():
  found = {}
  for run in ('counting', 'counting_larger', 'counting_steps'):
    rows = results.read_rows(RESULTS / run / 'results.csv')
    with run_folder.reading(RESULTS / run / 'config.json') as stored:
      made = read_figures(stored['config']['figures'])['figure_1c']
    indices = {name: results.index(row for row in rows if row.experiment == name)
               for name in {cell.experiment for cell in made.cells}}
    figure = errors(made, indices, 50)
    for line in figure.axes[0].lines:
      found.setdefault(line.get_label(), set()).add(to_hex(line.get_color()))
  assert len(found) > 4 and all(len(colours) == 1 for colours in found.values())
