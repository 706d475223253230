"""The page of a run shows what its tables hold, and a run ends with its answer."""

import base64
import html
import html.parser
import json
import re
import shlex
import shutil
import subprocess

from etils import epath
import numpy as np
import pytest

from experiments.counting import answer as counting
from experiments.harness import reports
from experiments.language_model import answer as language_model
from experiments.language_model import arms as language_model_arms
from experiments.length_generalization import answer as lengths
from experiments.length_generalization.about import about
from experiments.linear_attention.answer import answer as linear_attention
from experiments.measure.answer import answer as measure
from experiments.mechanism.answer import answer as mechanism
from experiments.recency_bias.answer import answer as recency_bias
from experiments.vanishing_variance.answer import answer as family
from tests.cells import LAST
from tests.conftest import ROOT
from vvlen.reporting import page, results, starts
from vvlen.reporting.results import Row
from vvlen.reporting.tables import grid, Table

_NAN = float('nan')
_TABLE = Table(
    'one', 'First <table> & more',
    {'name': lambda r: r['name'], 'x': lambda r: f'{r["x"]}',
     'y': lambda r: 'wide ' * 3},
    [{'name': f'row {i} <b>', 'x': 10 * i} for i in range(30)], 'A note.')
_OTHER = Table('two', 'Second', {'z': lambda r: r['z']}, [{'z': 'last'}], 'Other note.',
               more='More & <more>.')
_PNG = b'\x89PNG small'
_BROWSER = next(filter(None, map(shutil.which, (
    'chromium', 'chromium-browser', 'google-chrome'))), None)


class _Parser(html.parser.HTMLParser):
  """Collects cells, images and open elements of a page."""

  def __init__(self):
    super().__init__()
    self.cells, self.images, self.open, self.links = [], [], [], []

  def handle_starttag(self, tag, attributes):
    facts = dict(attributes)
    self.links += [facts[x] for x in ('src', 'href') if x in facts]
    if tag == 'img':
      self.images.append(facts['src'])
    elif tag not in ('meta', 'br'):
      self.open.append(tag)
    if tag in ('td', 'th'):
      self.cells.append('')

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if {'td', 'th'} & {*self.open}:
      self.cells[-1] += data


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'figures').mkdir()
  for kind, content in (('png', _PNG), ('pdf', b'%PDF')):
    (tmp_path / f'figures/figure_2.{kind}').write_bytes(content)
  (tmp_path / 'config.json').write_text(json.dumps({
      'study': 'counting', 'config': {'train': {'rate': '<i>'}},
      'sessions': [{'started': '2026-01-01T00:00:00+00:00'}, {
          'started': '2026-01-01T00:00:00+00:00', 'command': 'python -m x',
          'finished': '2026-01-01T01:02:05+00:00', 'versions': {'jax': '1.2'}}]}))
  return epath.Path(tmp_path)


def _report(folder, **fields):
  figures = {folder / f'figures/figure_2.{kind}': 'Loss <b> by length.'
             for kind in ('png', 'pdf')}
  report = page.Report('A question?', ['It is 5 % more.', 'Both <learned>.'],
                       [_TABLE, _OTHER], figures)
  return report._replace(**fields)


def test_a_page_is_one_file_with_all_cells_and_figures(folder):
  path, other = page.write(folder, _report(folder, missing='Two are missing.'))
  text = path.read_text()
  parser = _Parser()
  parser.feed(text)
  assert parser.open == [] and path.name == 'index.html'
  assert parser.images == [
      f'data:image/png;base64,{base64.b64encode(_PNG).decode()}']
  # Nothing is fetched; links, which are relative, lead to what is beside the page.
  assert parser.links == [*parser.images, 'config.json', 'figures/']
  own = [str(x) for r in _TABLE.records for x in (r['name'], r['x'], 'wide ' * 3)]
  assert parser.cells[:3 + 90] == ['name', 'x', 'y', *own]
  assert 'last' in parser.cells
  for said in ('A question?', 'It is 5 % more.', 'Both &lt;learned&gt;.', 'A note.',
               'Two are missing.', '&lt;i&gt;', 'python -m x', '1.2', 'train.rate',
               '<figcaption>Figure 2. Loss &lt;b&gt; by length.</figcaption>',
               'alt="Figure 2. Loss &lt;b&gt; by length."'):
    assert said in text, said
  assert '<learned>' not in text and '<i>' not in text
  assert other.name == 'index.md'
  # Folded below the note of the second table, which is folded itself.
  assert text.count('<summary>More about this table</summary>') == 1
  last = text[text.index('<summary>Second</summary>'):]
  assert last.index('Other note.') < last.index('<details><summary>More about') < (
      last.index('More &amp; &lt;more&gt;.')) < last.index('</details>\n</details>')


@pytest.mark.parametrize('cells, aligned', [
    (['1', '−0.5', '', '2,048', '1e−6', '75 %', '< .001'], True),
    (['+3.6 [2.4, 4.8]', '−1.1 [−2.2, +0.1]'], True),
    (['1 layer', '2'], False), (['', ''], False), (['2^14'], False),
    (['undefined', '.004'], True), (['0.2 → 0.3'], False),
])
def test_columns_of_numbers_are_aligned_on_the_right(folder, cells, aligned):
  columns = {'name': lambda r: 'a name', 'x': lambda r: r['x']}
  table = Table('t', 'T', columns, [{'x': x} for x in cells], '')
  text = page.write(folder, _report(folder, tables=[table]))[0].read_text()
  kind = ' class="number"' * aligned
  assert f'<tr><th>name</th><th{kind}>x</th></tr>' in text
  assert text.count('<td class="number">') == len(cells) * aligned


def test_headers_are_not_broken_within_a_unit(folder):
  table = Table('a', 'A', {'x [95 %]': lambda r: '75 %'}, [{}], '')
  text = page.write(folder, _report(folder, tables=[table]))[0].read_text()
  assert '>x [95\N{NO-BREAK SPACE}%]</th>' in text
  assert '>75\N{NO-BREAK SPACE}%</td>' in text
  text = page.write(folder, _report(folder, answer=[
      'By +1.2 points [95 %: 0.4, 2.0], p < .001 or p = .034; 5 % <of> 2.']))[0]
  kept = text.read_text().replace('\N{NO-BREAK SPACE}', '_')
  assert ('<p>By +1.2 points [95_%: 0.4, 2.0], p &lt;_.001 or p =_.034; 5 % &lt;of&gt; '
          '2.</p>') in kept


def test_a_page_as_markdown_names_the_figures_and_puts_main_tables_first(folder):
  text = page.write(folder, _report(folder))[1].read_text()
  assert text.startswith(
      '# A question?\n\nIt is 5 % more.\n\nBoth <learned>.\n\n**First')
  assert ('![Figure 2. Loss <b> by length.](figures/figure_2.png)\n\n'
          '*Figure 2. Loss <b> by length.*\n') in text
  assert 'pdf' not in text
  assert grid(_TABLE) in text and grid(_OTHER) in text
  assert text.index('figure_2.png') < text.index('**Second**')
  both = page.write(folder, _report(folder, num_main=2))[1].read_text()
  assert both.index('figure_2.png') < both.index('**Second**') < both.index('## How')
  assert '- starts: `2`' in text and '- jax: `1.2`' in text
  assert 'workdir=FOLDER' not in text


def test_a_page_says_what_was_run_and_links_the_paper(folder):
  said = 'Bits <b> are read. Paper: bits, arXiv 2506.11769, section 3.'
  html_page, markdown_page = page.write(folder, _report(folder, about=said))
  parser, text = _Parser(), html_page.read_text()
  parser.feed(text)
  paper = 'https://arxiv.org/abs/2506.11769'
  assert [link for link in parser.links if not link.startswith('data:')] == [
      paper, 'config.json', 'figures/']
  assert (f'<p>Bits &lt;b&gt; are read. Paper: bits, <a href="{paper}">arXiv 2506.11769'
          '</a>, section 3.</p>') in text
  # After the answer, before the first table.
  assert text.index('learned') < text.index(paper) < text.index('<table>')
  assert markdown_page.read_text().startswith(
      '# A question?\n\nIt is 5 % more.\n\nBoth <learned>.\n\nBits <b> are read. '
      f'Paper: bits, [arXiv 2506.11769]({paper}), section 3.\n\n**First')


@pytest.mark.parametrize('tasks, begin, end', [
    (['retrieval'], 'Retrieval: name the class', 'N items'),
    (['lookup_growing'], 'Lookup: name the value', 'length grows during training'),
    (['lookup', 'retrieval'], 'Lookup: ', 'Retrieval: '), (['mine'], 'One query', '')])
def test_a_page_names_the_tasks_that_were_run(tasks, begin, end):
  said = about(tasks)
  assert said.startswith(begin) and end in said
  assert ('grows' in said) == ('lookup_growing' in tasks)
  assert said.endswith('LN is LayerNorm there. Paper: vanishing variance, arXiv '
                       '2504.02827.')


def test_a_page_links_the_files_that_are_beside_it(folder):
  for name in ('results.csv.xz', 'metrics.jsonl'):
    (folder / name).write_text('')
  (folder / 'tables').mkdir()
  html_page, markdown_page = page.write(folder, _report(folder))
  names = ['results.csv.xz', 'config.json', 'metrics.jsonl', 'tables/', 'figures/']
  parser = _Parser()
  parser.feed(html_page.read_text())
  links = [link for link in parser.links if not link.startswith('data:')]
  assert links == names and all((folder / link).exists() for link in links)
  said = ', '.join(f'[{name}]({name})' for name in names)
  assert f'## How it was run\n\nBeside this page: {said}.\n\n' in (
      markdown_page.read_text())


def _in_browser(folder, text, facts, *flags, widths=(400, 1400)):
  """Returns 'width facts' of a page in frames of these widths, with ';' between them.

  Args:
    folder: in which a page with the frames is written.
    text: of the page.
    facts: JavaScript on a frame x, a list without its brackets.
    *flags: of the browser.
    widths: in pixels. The width that is returned is that which the page takes.
  """
  frames = ''.join(f'<iframe style="border: 0; width: {width}px; height: 900px" '
                   f'srcdoc="{html.escape(text)}"></iframe>' for width in widths)
  script = (
      '<script>onload = () => { document.title = [...document.querySelectorAll('
      '"iframe")].map(x => [x.contentDocument.documentElement.scrollWidth, '
      f'{facts}].join(" ")).join(";") }}</script>')
  path = folder / 'frames.html'
  path.write_text(f'<!doctype html><title></title>{frames}{script}')
  done = subprocess.run(
      [_BROWSER, '--headless', '--no-sandbox', '--hide-scrollbars', '--dump-dom',
       *flags, f'file://{path}'],
      capture_output=True, text=True, timeout=120, check=False)
  found = re.search('<title>(.*?)</title>', done.stdout)
  assert found, done.stderr
  return found[1]


@pytest.mark.slow
@pytest.mark.skipif(_BROWSER is None, reason='needs Chromium or Google Chrome')
@pytest.mark.parametrize('scheme, colour', [(0, 'rgb(255, 255, 255)'),
                                            (1, 'rgb(0, 0, 0)')])
def test_a_page_fits_a_browser_in_light_and_dark(folder, scheme, colour):
  text = page.write(folder, _report(folder))[0].read_text()
  found = _in_browser(
      folder, text, 'x.contentWindow.getComputedStyle(x.contentDocument.body).color',
      f'--blink-settings=preferredColorScheme={scheme}')
  assert found == f'400 {colour};1400 {colour}'


@pytest.mark.slow
@pytest.mark.skipif(_BROWSER is None, reason='needs Chromium or Google Chrome')
@pytest.mark.parametrize('name', ['counting', 'language_model', 'mechanism_lookup'])
def test_pages_of_committed_runs_fit_a_browser_and_load_nothing(name, tmp_path):
  copy = epath.Path(tmp_path / name)
  shutil.copytree(ROOT / 'experiments/results' / name, copy)
  report, path = reports.make(copy)
  # All is open, as a reader may have it.
  text = path.read_text().replace('<details>', '<details open>')
  parser = _Parser()
  parser.feed(text)
  assert len(parser.images) == sum(x.suffix == '.png' for x in report.figures) > 0
  images = 'x.contentDocument.images'
  found = _in_browser(
      tmp_path, text,
      f'[...{images}].filter(i => i.complete && i.naturalWidth > 100).length, '
      # What was fetched: all but the page and what is in it.
      'x.contentWindow.performance.getEntriesByType("resource")'
      '.map(e => e.name).filter(n => !n.startsWith("data:"))')
  assert found == ';'.join(f'{width} {len(parser.images)} ' for width in (400, 1400))


@pytest.mark.slow
@pytest.mark.skipif(_BROWSER is None, reason='needs Chromium or Google Chrome')
def test_notes_of_committed_tables_have_two_lines(folder):
  """At 1,400 pixels; seeds and settings that are left out are named behind them."""
  notes = [LAST.sub('', path.read_text().split('\n\n')[2])
           for path in sorted((ROOT / 'experiments/results').glob('*/tables/*.md'))]
  assert len(notes) > 50
  tables = [_OTHER._replace(note=note, more='') for note in (*notes, 100 * 'word ')]
  text = page.write(folder, _report(folder, tables=tables))[0].read_text()
  found = _in_browser(
      folder, text, '[...x.contentDocument.querySelectorAll(".note")].map(p => '
      'Math.round(p.clientHeight / parseFloat(x.contentWindow.getComputedStyle(p)'
      '.lineHeight)))', widths=(1400,))
  width, lines = found.split()
  assert width == '1400'
  *of_notes, of_long = map(int, lines.split(','))
  assert len(of_notes) == len(notes) and {*of_notes} == {1, 2} and of_long > 2


@pytest.mark.slow
@pytest.mark.skipif(_BROWSER is None, reason='needs Chromium or Google Chrome')
def test_a_wide_table_fits_1200_pixels_and_breaks_no_interval(folder):
  # Like that of the committed language models, the widest of all.
  interval = dict.fromkeys([
      *(f'perplexity at {n} L' for n in (1, 2, 4, 8)), 'Δ log perplexity at 4 L',
      'SCE', 'symmetric KL', 'log perplexity in training'], '25.04 [20.76, 30.20]')
  shown = interval | {'arm': 'α = 0.1', 'p': '< .001', 'p Holm': '< .001'}
  table = Table('wide', 'Wide', {name: lambda _, text=text: text
                                 for name, text in shown.items()}, [{}] * 3, '')
  text = page.write(folder, _report(folder, tables=[table]))[0].read_text()
  assert '[20.76,\N{NO-BREAK SPACE}30.20]' in text
  frame = folder / 'frame.html'
  frame.write_text(
      '<!doctype html><title></title><iframe style="border: 0; width: 1200px" '
      f'srcdoc="{html.escape(text)}"></iframe><script>onload = () => {{'
      'const page = document.querySelector("iframe").contentDocument;'
      'const [wide, cell] = [".wide", "td"].map(x => page.querySelector(x));'
      'document.title = [wide.scrollWidth <= wide.clientWidth, Math.round('
      'cell.clientHeight / 18)] }</script>')
  done = subprocess.run(
      [_BROWSER, '--headless', '--no-sandbox', '--hide-scrollbars', '--dump-dom',
       f'file://{frame}'], capture_output=True, text=True, timeout=120, check=False)
  assert '<title>true,2</title>' in done.stdout, done.stdout[:200]  # and in two lines


def test_how_long_a_run_took(folder, tmp_path):
  assert starts.elapsed(folder) == 'The last start took 1 h 02 min.'
  assert starts.elapsed(epath.Path(tmp_path / 'nothing')) == ''
  path = folder / 'config.json'
  for end, words in (('00:05', 'The last start took 5 s.'),
                     ('01:00', 'The last start took 1 min 0 s.'), ('00:00', '')):
    path.write_text(json.dumps({'sessions': [{
        'started': '2026-01-01T00:00:00+00:00',
        'finished': f'2026-01-01T00:{end}+00:00'}]}))
    assert starts.elapsed(folder) == words


def _session(begin, end=None, **facts):
  times = {name: f'2026-01-{x}:00+00:00'
           for name, x in (('started', begin), ('finished', end)) if x}
  return times | facts


@pytest.mark.parametrize('sessions, words', [
    ([('01T00:00', '01T00:30'), ('02T00:00', '02T00:40')],
     'The last start took 40 min 0 s. All 2 starts took 1 h 10 min.'),
    ([('01T00:00', '01T00:30'), ('01T00:10',), ('02T00:00', '02T00:40')],
     'The last start took 40 min 0 s. Of 3 starts, the 2 that ended took 1 h 10 min.'),
    ([('01T00:00', '01T00:30'), ('02T00:00',)],
     'Of 2 starts, the 1 that ended took 30 min 0 s.'),
    ([('01T00:00', '01T00:30'), ('02T00:00', '02T00:00')],
     'All 2 starts took 30 min 0 s.'),
    ([('01T00:00',), ('02T00:00', '02T00:02')], 'The last start took 2 min 0 s.'),
    ([('01T00:00',), ('02T00:00',)], '')])
def test_how_long_all_starts_of_a_run_took(folder, sessions, words):
  (folder / 'config.json').write_text(json.dumps(
      {'sessions': [_session(*x) for x in sessions]}))
  assert starts.elapsed(folder) == words


def test_a_page_tells_of_all_starts_and_machines(folder):
  cpu = {'device': '2 x cpu', 'processor': '2 x <EPYC>', 'python': '3.11.7',
         'commit': 'a' * 40, 'versions': {'jax': '0.10.2', 'numpy': '2.4'}}
  gpu = cpu | {'device': '1 x H200', 'commit': 'b' * 40 + '+'}
  newer = cpu | {'versions': {'jax': '0.11.0', 'numpy': '2.4'}, 'commit': 'c' * 40}
  sessions = [_session('01T00:00', '01T00:30', **cpu), _session('02T00:00', **gpu),
              _session('03T00:00', '03T01:00', **newer), _session('04T00:00', **cpu)]
  (folder / 'config.json').write_text(json.dumps({'sessions': sessions}))
  html_page, other = page.write(folder, _report(folder))
  text = other.read_text()
  starts = text[text.index('### All starts'):text.index('### The last start')]
  assert starts == (
      '### All starts\n\n'
      '- starts: `4`\n'
      '- first start: `2026-01-01T00:00:00+00:00`\n'
      '- last end: `2026-01-03T01:00:00+00:00`\n'
      '- time of the 2 starts that ended: `1 h 30 min`\n'
      '- machine 1: `2 x cpu, 2 x <EPYC>: 3 starts; python 3.11.7, jax 0.10.2 or '
      '0.11.0, numpy 2.4, commits aaaaaaaaaa, cccccccccc`\n'
      '- machine 2: `1 x H200, 2 x <EPYC>: 1 start; python 3.11.7, jax 0.10.2, numpy '
      '2.4, commit bbbbbbbbbb+`\n\n')
  assert '<td>machine 1</td><td><code>2 x cpu, 2 x &lt;EPYC&gt;: 3 starts; ' in (
      html_page.read_text())
  # Of a single start, all is told once.
  (folder / 'config.json').write_text(json.dumps({'sessions': sessions[:1]}))
  text = page.write(folder, _report(folder))[1].read_text()
  assert '### The last start' in text and 'All starts' not in text


@pytest.mark.parametrize('before, now', [
    ('lm', 'language_model'), ('recency', 'recency_bias'),
    ('recency_bias', 'recency_bias'), ('lookup', 'lookup')])
def test_a_command_names_files_that_there_are(folder, before, now):
  (folder / 'config.json').write_text(json.dumps({'sessions': [
      {'command': f'python -m x --config=configs/{before}.py:cpu --workdir=runs/lm'}]}))
  said = f'python -m x --config=configs/{now}.py:cpu --workdir=runs/lm'
  assert (ROOT / f'configs/{now}.py').exists()
  for path in page.write(folder, _report(folder)):
    assert said in path.read_text()


def test_a_page_names_the_folder_of_its_run(folder, tmp_path, monkeypatch):
  def said(place, name='index.md'):
    page.write(epath.Path(place), _report(folder, figures={}))
    [found] = re.findall(r'experiments.report --workdir=(.*?)(?:`|</code>), in the',
                         (epath.Path(place) / name).read_text())
    return found

  assert said(folder) == str(folder)  # elsewhere
  monkeypatch.chdir(tmp_path.parent)
  assert said(folder) == said(folder.name) == folder.name  # as the command has it
  assert said(folder.name, 'index.html') == folder.name
  odd = tmp_path / "a run's `x`"
  odd.mkdir()
  assert said(odd, 'index.html') == html.escape(
      shlex.quote(f"{tmp_path.name}/a run's `x`"))


@pytest.mark.parametrize('width, columns', [
    (200, ['name', 'x', 'y']), (38, ['name', 'x', 'y']), (37, ['name', 'x']),
    (20, ['name', 'x']), (19, ['name']), (3, ['name'])])
def test_columns_that_do_not_fit_are_left_out(width, columns):
  lines = grid(_TABLE, width).split('\n')
  assert [x.strip() for x in lines[0].strip('|').split('|')] == columns
  assert len(lines) == 32 and len({*map(len, lines)}) == 1
  assert width < 15 or len(lines[0]) <= width


def test_a_long_first_column_leaves_room_for_numbers():
  names = {'first': 'fine-tuning alone, ' + 40 * 'x', 'second': 'CLEX, ' + 40 * 'x'}
  table = Table('t', 'T', {'name': lambda r: names[r['name']], 'x': lambda r: r['x'],
                           'y': lambda r: r['x']},
                [{'name': name, 'x': '1.25 [1, 2]'} for name in names], '')
  lines = grid(table, 60).split('\n')
  assert lines[2] == '| fine-tuning alone, xxxx… | 1.25 [1, 2] | 1.25 [1, 2] |'
  assert lines[3].startswith('| CLEX, xxxxxxxxxxxxxxxxx… | 1.25')
  assert names['first'] in grid(table, 120) and names['second'] in grid(table)


def test_the_last_column_for_a_terminal_goes_on_below():
  words = 'z-scores of training, mean and variance as at N'
  table = Table('t', 'T', {'arm': lambda r: 'LN', 'change': lambda r: r['x'],
                           'long': lambda r: 80 * 'x'},
                [{'x': words}, {'x': 'none'}], '', short=('arm', 'change'))
  assert grid(table, 80).split('\n')[2:] == [
      f'| LN  | {words} |', f'| LN  | {"none":47} |']
  assert grid(table, 40) == """\
| arm | change                         |
|-----|--------------------------------|
| LN  | z-scores of training, mean and |
|     | variance as at N               |
| LN  | none                           |"""
  assert grid(table, 17).split('\n')[2] == '| LN  | z-scor… |'


def test_rows_that_are_left_out_are_counted_once(folder):
  table = Table('t', 'T', {'arm': lambda r: 'LN', 'change': lambda r: 'a b ' * 10},
                [{}] * 11, '', short=('arm', 'change'))
  lines = reports.said(_report(folder, tables=[table]), 35)
  assert 'and 2 more rows' in lines
  lines = reports.said(_report(folder, tables=[table._replace(records=[{}] * 10)]), 35)
  assert 'and 1 more row' in lines


def test_columns_that_do_not_fit_are_counted(folder):
  table = Table('t', 'T', {'task': lambda r: 'qa1', **{
      f'{n} tokens': lambda r: '0' for n in (64, 128, 256)}}, [{}], '')
  said = lambda table, width: reports.said(_report(folder, tables=[table]), width)
  assert said(table, 30)[-4:-1] == [
      '|------|-----------|', '| qa1  | 0         |', 'and 2 more columns']
  assert said(table, 80)[-2] == '| qa1  | 0         | 0          | 0          |'
  assert said(table._replace(records=[{}] * 30), 40)[-3:-1] == [
      'and 12 more rows', 'and 1 more column']
  assert said(table._replace(short=('task', '64 tokens')), 80)[-2] == (
      '| qa1  | 0         |')


def test_a_run_ends_with_its_answer_within_the_terminal(folder):
  lines = reports.said(_report(folder, missing='Two are missing.'), 30)
  assert lines[:6] == [
      'Two are missing.', '', 'It is 5 % more.', '', 'Both <learned>.', '']
  assert all(len(line) <= 30 for line in lines)
  assert 'and 12 more rows' in lines and not any('Second' in x for x in lines)
  assert reports.said(_report(folder, answer=['aaaaaa bbb 95 % c']), 14)[:2] == [
      'aaaaaa bbb', '95 % c']
  lines = reports.said(_report(folder, answer=[*'abcde']), 80)
  assert lines[:8] == ['a', '', 'b', '', 'c', '', 'The page has 2 more answers.', '']
  assert 'The page has 1 more answer.' in reports.said(
      _report(folder, answer=[*'abcd']), 80)
  assert 'more answers' not in ' '.join(
      reports.said(_report(folder, answer=[*'abc']), 80))


def test_a_terminal_may_show_another_table_than_the_first_one(folder):
  shown = _report(folder, num_main=2, in_terminal='two')
  lines = reports.said(shown, 80)
  assert 'Second' in lines and not any(_TABLE.title in x for x in lines)
  for name in ('', 'three'):
    assert _TABLE.title in reports.said(shown._replace(in_terminal=name), 80)
  text = page.write(folder, shown)[1].read_text()
  assert text.index(_TABLE.title) < text.index('figure_2.png') < text.index('**Second')
  assert reports.said(_report(folder, tables=[]), 80)[-2:] == ['Both <learned>.', '']


def test_the_answer_is_printed_last_with_the_page(folder, capsys, monkeypatch):
  monkeypatch.setattr(reports, 'study_of', lambda _: 'counting')
  monkeypatch.setattr(reports, 'writer', lambda _: lambda path: _report(path))
  reports.show(folder)
  out = capsys.readouterr().out
  assert out.startswith('\nIt is 5 % more.\n\nBoth <learned>.\n')
  assert out.endswith(f'Open {folder}/index.html for all tables and figures.\n'
                      'The last start took 1 h 02 min.\n')


def test_all_runs_of_a_folder_are_listed(folder, tmp_path, monkeypatch):
  monkeypatch.setattr(reports, 'study_of', lambda _: 'counting')
  monkeypatch.setattr(reports, 'writer', lambda _: lambda path: _report(
      folder, missing='Two are missing.' * (path.name == 'b'), figures={}))
  for name in ('b', 'a'):
    (tmp_path / 'runs' / name).mkdir(parents=True)
    (tmp_path / 'runs' / name / 'results.csv').write_text('')
  (tmp_path / 'runs/a/results.csv').rename(tmp_path / 'runs/a/results.csv.xz')
  (tmp_path / 'runs/other').mkdir()
  reports.show_all(tmp_path / 'runs')
  assert (tmp_path / 'runs/index.md').read_text() == (
      '# Runs\n\n'
      '- [a](a/index.md). *A question?* It is 5 % more.\n'
      '- [b](b/index.md). *A question?* Two are missing. It is 5 % more.\n')
  assert (tmp_path / 'runs/a/index.html').exists()
  with pytest.raises(ValueError, match='holds no folders of runs'):
    reports.show_all(tmp_path / 'runs/other')


_PRIMARY = {
    'comparison': 'LN − Baseline', 'control': 60.24, 'difference': 3.62, 'ci_low': 2.4,
    'ci_high': 4.84, 'p': 0.0002, 'pairs': 32, 'smallest_detectable': 1.66,
    'at_5_percent': 'ahead',
}


def test_the_answer_of_length_generalization():
  training = [{'arm': 'Baseline', 'median_accuracy': 99.12},
              {'arm': 'std.', 'median_accuracy': 1.0},
              {'arm': 'LN', 'median_accuracy': 99.0}]
  first, second = lengths.answer(
      [{'comparison': 'x'}, _PRIMARY], training, 0.1, '5 to 16 items')
  assert first == (
      'LayerNorm after attention: +3.6 points of accuracy beyond the training lengths '
      '[95 %: +2.4, +4.8], p < .001; Baseline 60.2 %, 32 pairs of seeds. It is '
      'ahead.')
  assert second == (
      'At the training lengths, 5 to 16 items taken together, right (median over '
      'seeds): Baseline 99.1 %, LN 99.0 %; both learned the task (90 % is needed; '
      'chance is 10 %).')
  first, _ = lengths.answer([_PRIMARY | {'p': 0.051}], training)
  assert first.endswith('p = .051; Baseline 60.2 %, 32 pairs of seeds. No difference '
                        'was found; one of 1.7 points would be found four times in '
                        'five.')
  assert lengths.answer([_PRIMARY | {'p': _NAN}], training)[0].startswith(
      'No verdict: ')
  assert lengths.answer([], training)[0].startswith('No answer: ')


def test_arms_of_which_every_seed_diverged_are_named():
  training = [{'arm': arm, 'median_accuracy': x, 'loss': loss, 'seeds': seeds}
              for arm, x, loss, seeds in (
                  ('Baseline', 95.0, 0.1, 2), ('std.', 0, _NAN, 2), ('LN', 0, _NAN, 2))]
  primary = [_PRIMARY | {'at_5_percent': lengths.NOT_LEARNED}]
  said, = lengths.answer(primary, training)
  assert said.startswith('No verdict: the loss of every seed of LN became infinite or ')
  training[0]['loss'] = _NAN
  said, = lengths.answer(primary, training)
  assert 'every seed of Baseline and of LN became' in said
  training[0] |= {'loss': 0.1}
  training[2] |= {'seeds': 0}  # it is not there yet
  assert 'became' not in lengths.answer(primary, training)[0]


def test_there_is_no_verdict_where_training_failed():
  found = lengths.answer(
      [_PRIMARY | {'at_5_percent': lengths.NOT_LEARNED}],
      [{'arm': 'Baseline', 'median_accuracy': 95.0},
       {'arm': 'LN', 'median_accuracy': 52.3}])
  assert found[0].startswith('No verdict: an arm has not learned the training lengths')
  assert 'points' not in found[0]
  assert found[1] == (
      'At the training lengths, right (median over seeds): Baseline 95.0 %, LN 52.3 %; '
      '90 % is needed to call the task learned.')


@pytest.mark.parametrize('task, counts', [
    ('mean', 'fair'), ('mean', 'uniform'), ('sum', 'fair'), ('sum', 'uniform'),
    ('length', 'fair')])
def test_the_best_constant_answer_has_the_variance_of_the_target(task, counts):
  rng, n = np.random.default_rng(0), 10
  if task == 'length':
    target = rng.integers(1, n + 1, 400_000)
  elif counts == 'fair':
    target = rng.integers(0, 2, (400_000, n)).sum(1)
  else:
    target = rng.integers(0, n + 1, 400_000)
  target = target / n if task == 'mean' else target
  assert counting.best_constant(task, counts, n) == pytest.approx(
      target.var(), rel=0.01)


def _count(model, error, training, factor=_NAN, p=_NAN):
  return {'model': model, 'error_50': error, 'training_error': training,
          'constant_error': 1.0, 'factor': factor, 'factor_low': factor / 2,
          'factor_high': 2 * factor, 'p_holm': p}


def test_the_answer_of_counting():
  records = [_count('no positions', 0.5, 0.1), _count('ALiBi', 7.0, 0.02, 15, 0.0001),
             _count('RoPE', 0.1, 0.09, 0.01, 0.2),
             _count('learned', 0.01, 0.11, 1e3, 0)]
  assert counting.answer('Sum', records, 50, 'no positions') == (
      'Sum: at 50 bits, the least squared error is that of RoPE, 0.10. Beyond '
      'training, RoPE has 0.010 times the error of no positions [95 %: 0.0050, 0.020], '
      'p = .200 by Holm; no difference was found. Did not learn the training lengths: '
      'learned.')
  assert counting.answer(
      'Sum', [_count('none', 0.5, 0.01), records[1]], 50, 'none').endswith(
          'ALiBi has 15 times the error of none [95 %: 7.5, 30], p < .001 by Holm.')
  assert counting.answer('Sum', records[3:], 50, None) == (
      'Sum: no verdict, as no model has learned the training lengths.')
  assert counting.learned(records) == (
      'At the longest training length, 3 of 4 lines of the figures have learned: '
      'their squared error is at most 0.1 times that of the best constant answer, '
      'where 0 is exact. The largest of all lines is 0.11 times as large.')
  assert counting.learned(records[:3]) == (
      'All models learned the training lengths: at the longest, their squared error is '
      'at most 0.10 of that of the best constant answer, where 0.1 is needed and 0 is '
      'exact.')
  assert [*map(counting.short, (2, 33.2, 150, 0.0025, 1e-5))] == [
      '2.0', '33', '150', '0.0025', '1.0e−05']
  assert 'times' not in counting.answer(
      'Sum', [_count('none', 1.0, 0.5), records[1]], 50, 'none')


def test_the_first_sentence_of_counting_is_of_all_figures():
  none = _count('none', 0.5, 0.1)
  one = [none, _count('ALiBi', 7.0, 0.02, 15, 0.0001),
         _count('RoPE', 0.1, 0.09, 0.01, 0.2), _count('learned', 0.01, 0.11, 1e3, 0)]
  two = [none, _count('1/√y', 7.0, 0.02, 0.5, 0.04)]
  lost = [_count('none', 0.5, 0.2), _count('ALiBi', 7.0, 0.02, 1e-3, 0.0001)]
  figures = [('Figure 1', one, 'none'), ('Figure 2', two, 'none'),
             ('Figure 3', lost, 'none'), ('Figure 4', [none], None)]
  assert counting.summary(figures) == [
      'Of 3 tests beyond the training lengths, each of a model against the control of '
      'its figure, 1 found less error, 1 more, and 1 no difference (p by Holm in each '
      'of 2 figures); the error is from 0.010 times (RoPE against none, Figure 1) to '
      '15 times (ALiBi against none, Figure 1) that of the control.']
  assert counting.summary(figures[1:]) == [
      'Of 1 test beyond the training lengths, each of a model against the control of '
      'its figure, 1 found less error, 0 more, and 0 no difference (p by Holm in each '
      'of 1 figure); the error is 0.50 times (1/√y against none, Figure 2) that of the '
      'control.']
  assert counting.summary(figures[2:]) == [
      'No verdict: in none of 2 figures is there a test of models that have learned '
      'the training lengths.']
  assert counting.summary(figures[:1]) == []


def _language_rows(base, change):
  noise = (0.0, 0.1, -0.1, 0.05)
  return results.index(
      Row('language_model', arm, seed, n, 'nll', base + x + shift * (1 + x) + more)
      for arm, shift in (('control', 0.0), ('tenth', change))
      for n, more in ((64, 0.0), (256, 0.7))
      for seed, x in enumerate(noise))


def test_the_answer_of_language_models():
  run = language_model_arms.read_run({
      'arms': {'control': {'weight': 0, 'offsets': (0, 1), 'steps': 1},
               'tenth': {'weight': 0.1, 'offsets': (0, 1), 'steps': 1}},
      'control': 'control', 'train': {'max_length': 64},
      'evaluate': {'lengths': (1, 2, 4)}, 'num_seeds': 4})
  [kind] = language_model_arms.families(run, {*run.arms})
  first, second = language_model.answer(kind, run, _language_rows(1.5, 0.25), 256)
  assert first.startswith(
      'The misalignment term with α = 0.1 changes log perplexity at 4 L, 256 tokens, '
      'by +0.253 nats [95 %: +0.')
  assert first.endswith('4 pairs of seeds.')
  assert second == ('Perplexity at the training length, 64 tokens: 4.54 (α = 0), 5.85 '
                    '(α = 0.1); guessing one of the 256 bytes has 256, and 16 or less '
                    'counts as learned.')
  found = language_model.answer(kind, run, _language_rows(4.0, 0.25), 256)
  assert found[0].startswith('No verdict: the models have learned little more')
  assert found[1].endswith(
      '; guessing one of the 256 bytes has 256, and 16 or less counts as learned.')
  unclear = results.index(
      Row('language_model', arm, seed, n, 'nll', 1.5 + x * (arm == 'tenth'))
      for arm in run.arms for n in (64, 256)
      for seed, x in enumerate((0.4, -0.1, 0.3, -0.05)))
  first, _ = language_model.answer(kind, run, unclear, 256)
  assert first.endswith(', p = .351, 4 pairs of seeds; no difference was found.')
  # Of a checkpoint or a tokenizer that is not known here, no such bound is known.
  assert 'nats' in language_model.answer(
      kind, run, _language_rows(4.0, 0.25), None)[0]
  assert language_model.answer(
      kind._replace(primary=''), run, _language_rows(1.5, 0.1), 256)[0].startswith(
          'No verdict: fewer than two pairs')


def test_the_answer_of_linear_attention():
  optimum = [{'table': 'exact', 'largest_difference': 9.0},
             {'table': 'trained', 'largest_difference': 0.01},
             {'table': 'trained', 'largest_difference': 0.02}]
  errata = [{'quantity': 'least training loss', 'paper': p, 'all_strings': 1.0}
            for p in (1.0, 1.5)] + [{'quantity': 'x', 'paper': 9.0, 'all_strings': 1.0}]
  assert linear_attention(optimum, errata) == [
      'Gradient descent finds the optimum of least squares, to within 0.01 of each '
      'entry, in 1 of 2 settings; the farthest is off by 2.0e−02.',
      "The paper's single number Γ has a larger training loss than the optimum in 1 of "
      '2 settings of length and sum.']


def test_the_answer_of_interventions():
  record = {'arm': 'LN', 'intervention': 'a', 'difference': 1.0, 'ci_low': 0.5,
            'ci_high': 1.5, 'restored_percent': 12.4, 'p_holm': 0.3}
  best = record | {'intervention': 'b', 'difference': 2.0, 'p_holm': 0.01}
  told = record | {'intervention': 'all weight on the target', 'difference': 30.0,
                   'restored_percent': 102.0}
  imposed = told | {'intervention': 'z-scores of training, mean as at N'}
  records = [record, best, told, imposed, record | {'difference': 9.0, 'p_holm': _NAN},
             best | {'arm': 'Baseline', 'difference': 7.0}]
  found = mechanism(records, {'LN': 95.0, 'Baseline': 89.0}, 0.1, 16)
  assert found == [
      'LN: of the changes of the attention output that do not know the target, "b" '
      'restores most accuracy beyond the training lengths, +2.0 points [95 %: +0.5, '
      '+1.5], 12 % of what is lost, p = .010 by Holm. Told the target, up to 102 % '
      'come back, which does not tell variance from dispersion.',
      'At the shortest length, 16 items, right (mean of seeds): LN 95.0 %, Baseline '
      '89.0 %; 90 % is needed to call the task learned; chance is 10 %.',
      'Baseline: no verdict, 89.0 % right at the shortest length is too little to '
      'lose.']
  first, second = mechanism(records[4:5], {'LN': 95.0})
  assert 'fewer than two seeds' in first
  assert second == ('At the shortest length, right (mean of seeds): LN 95.0 %; it '
                    'learned the task (90 % is needed).')


def test_the_answer_of_recency_bias():
  record = lambda width, layer, setting, value, off: {
      'width': width, 'layer': layer, 'setting': setting,
      'recency_probability': value, 'difference_in_errors': off}
  found = recency_bias([
      record(16, 1, 'LN', 0.5, 0.0), record(16, 2, 'LN', 0.7, 2.0),
      record(64, 2, 'LN', 0.6, 2.1), record(16, 2, 'no LN', 0.1, _NAN)])
  assert found == [
      'Recency probability (0.5: no order, more: recent tokens are favoured) in layer '
      '2, d = 16: 0.700 for LN; 0.100 for no LN.',
      'Of 3 recency probabilities that the paper prints, 2 are met within two standard '
      'errors; the farthest is 2.1 away.']
  assert recency_bias([]) == []


def test_the_answer_of_a_family():
  record = {'cell': 'base', 'setting': 'retrieval', 'steps': 40_000, 'p': 0.01,
            'verdict': 'LN ahead', 'difference': 3.0, 'ci_low': 2.0, 'ci_high': 4.0,
            'seeds': 6, 'l2': 0.0, 'training_accuracy_control': 99.0,
            'training_accuracy_treated': 97.0}
  waits = record | {'p': _NAN, 'verdict': '2 of 6 seeds', 'difference': 50.0,
                    'training_accuracy_treated': 10.0}
  not_run = waits | {'verdict': 'not run'}
  decays = [
      record | {'l2': 0.1, 'difference': x, 'verdict': verdict} for x, verdict in (
          (-3.0, 'LN behind'), (0.5, 'equal within 1 point'), (-4.0, 'LN behind'))]
  first, second, *others = family([not_run, record, waits, not_run, *decays])
  assert first == (
      'LN − Baseline, accuracy beyond the training lengths: +3.0 points in 1 setting '
      'without weight decay (LN ahead in 1); −4.0 to +0.5 points in 3 settings with '
      'weight decay (LN behind in 2, equal within 1 point in 1). 3 of 7 settings are '
      'without a verdict.')
  assert second == (
      'In each of these both arms learned the training lengths: right in 97 % or more '
      '(medians of seeds; 90 % is needed).')
  assert len(others) == 5 and others[0] == (
      'retrieval, 40,000 steps: LN ahead, +3.0 points [corrected: +2.0, +4.0], 6 pairs '
      'of seeds.')
  assert others[-1] == ('No verdict: retrieval, 40,000 steps (2 of 6 seeds); 2 of 7 '
                        'settings, which are not run.')
  assert 'with weight decay' not in family([record])[0]
  assert family([record])[0].endswith('(LN ahead in 1).')
  assert family([waits]) == ['No verdict: retrieval, 40,000 steps (2 of 6 seeds).']


def test_the_answer_of_measurements():
  windows = [{'times_trained': t, 'tokens': 512 * t, 'block_perplexity': 30 + t,
              'block_ratio': t, 'block_ratio_low': low, 'block_ratio_high': 9.0}
             for t, low in ((1, _NAN), (2, _NAN), (4, 3.5))]
  layers = [{'shuffled_recency_probability': x} for x in (0.75, 0.81, _NAN)]
  assert measure(windows, layers) == [
      'Perplexity is 31 in blocks of L = 512 tokens, and 4 times as high [95 %: 3.5, '
      '9] at 4 L.',
      'Recency probability of shuffled text, where 0.5 is no order: from 0.75 to 0.81 '
      'over 2 layers.']
  assert measure(windows[:2], []) == [
      'Perplexity is 31 in blocks of L = 512 tokens, and 2 times as high at 2 L.']
  assert measure((), ()) == []
  assert not re.search('times', measure(windows[:1], ())[0])


def test_a_run_that_lacks_much_names_six_and_counts_the_others():
  lacks = page.missing_seeds({f'arm_{i}': i for i in range(9)}, 8)
  assert page.unfinished(lacks[:6]).endswith('arm_5 has 5 of 8 seeds.')
  assert page.unfinished(lacks).endswith('arm_5 has 5 of 8 seeds, and 2 more.')
  assert page.unfinished([]) == ''
