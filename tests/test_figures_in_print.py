"""All committed figures, as they are drawn: size of text, titles, captions, lines."""

import shutil

from etils import epath
from matplotlib.text import Text
import pytest

from experiments.harness import reports
from tests.cases import mostly_slow
from tests.conftest import ROOT
from tests.test_committed_results import FOLDERS
from vvlen.reporting import plots

# Lines that are no results: what knowing nothing gives, a law, a published number.
_REFERENCES = ('chance', 'no order', '1/√N', 'proportional to 1/N', 'uniform weights',
               'uniform weights, log N', 'answering', 'arXiv', 'paper')


@pytest.fixture(scope='module', params=mostly_slow(FOLDERS, 2, 3, 5, 8, 11))
def drawn(request, tmp_path_factory):
  """The figures of a committed run, {name: figure}, not written."""
  copy = tmp_path_factory.mktemp('figures') / request.param
  shutil.copytree(ROOT / 'experiments/results' / request.param, copy,
                  ignore=shutil.ignore_patterns('tables', 'figures', '*.md', '*.html'))
  figures = {}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(plots, 'save', lambda _, made: figures.update(made) or {})
    patch.setattr('vvlen.reporting.tables.results.write_text', lambda *_: None)
    reports.writer(reports.study_of(epath.Path(copy)))(epath.Path(copy))
  assert figures
  return figures


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


def test_no_panel_has_more_than_five_lines_that_are_results(drawn):
  for name, figure in drawn.items():
    for axes in figure.axes:
      lines = [line.get_label() for line in axes.lines
               if len(line.get_xdata()) and line.get_linestyle() != 'None'
               and not line.get_label().startswith(('_', *_REFERENCES))]
      assert len(lines) <= plots.MOST_LINES, (name, axes.get_title(), lines)
