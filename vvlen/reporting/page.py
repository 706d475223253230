"""A page for each run: what it found, its tables and figures, and how to make it again.

The page is written twice: index.html is one file with its figures inside, which needs
no network; index.md shows the same figures from their files. Runs without JAX.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
import html
import os
import pathlib
import re
import shlex
from typing import Any, NamedTuple

from etils import epath

from vvlen.reporting import results, run_folder, starts
from vvlen.reporting.tables import cells, markdown, MORE, Table

_NAMED = 6  # of what is missing; more are counted

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --shade: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto;
       padding: 1rem; box-sizing: border-box; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; }
.answer { border-left: 4px solid #0072B2; padding: .1rem 1rem;
          background: var(--shade); }
.missing { border-left: 4px solid #D55E00; padding: .5rem 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .75rem; }
th, td { padding: .2rem .3rem; border-bottom: 1px solid var(--line); text-align: left;
         vertical-align: top; }
td { white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
@media (min-width: 70rem) { td { white-space: normal; } }
.note { font-size: .85rem; }
figure { margin: 1.5rem 0; } figcaption { font-size: .85rem; }
img { max-width: 100%; height: auto; background: #fff; padding: .5rem;
      box-sizing: border-box; }
@media (max-width: 40rem) { img { max-width: none; width: 40rem; } }
summary { cursor: pointer; margin: .7rem 0; }
code, pre { font-size: .85rem; overflow-wrap: anywhere; white-space: pre-wrap; }
"""


class Report(NamedTuple):
  """What a run has found."""

  title: str  # the question of the study
  answer: Sequence[str]  # sentences, the answer first
  tables: Sequence[Table]  # the first `num_main` are the main ones
  # Files that were written -> a sentence on what they show. The PNG are shown.
  figures: Mapping[epath.Path, str]
  num_main: int = 1
  missing: str = ''  # what is still to be run, '' if nothing
  about: str = ''  # what was run, what its words mean, and in which paper
  in_terminal: str = ''  # name of the table that a terminal shows; '': the first

  @property
  def main(self) -> Sequence[Table]:
    """Returns the main tables."""
    return self.tables[: self.num_main]

  @property
  def shown_in_terminal(self) -> Table | None:
    """Returns the table that a terminal shows, None if there are none."""
    named = (table for table in self.tables if table.name == self.in_terminal)
    return next(named, next(iter(self.main), None))


def missing_seeds(have: Mapping[str, int], asked: int) -> list[str]:
  """Names those of {name: number of seeds} that have fewer than were asked for."""
  return [f'{name} has {seeds} of {asked} seeds' for name, seeds in have.items()
          if seeds < asked]


def unfinished(missing: Sequence[str]) -> str:
  """Returns a sentence that names what a run still lacks, '' if nothing."""
  more = len(missing) - _NAMED
  named = [*missing[:_NAMED], *[f'and {more} more'] * (more > 0)]
  return f'The run is not finished: {", ".join(named)}.' if missing else ''


def write(folder: epath.Path, report: Report) -> list[epath.Path]:
  """Writes index.html and index.md into the folder of a run; returns their paths."""
  stored = run_folder.stored(folder)
  pages = {'index.html': _html(folder, report, stored),
           'index.md': _markdown(folder, report, stored)}
  for name, text in pages.items():
    results.write_text(folder / name, text)
  return [folder / name for name in pages]


def _settings(stored: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
  """Yields the names and values of all fields of a run's configuration."""
  for name, value in run_folder.flatten(stored.get('config', {})).items():
    yield name, str(value)


_BESIDE = ('results.csv', 'results.csv.xz', 'config.json', 'metrics.jsonl',
           'evaluations.jsonl', 'tables/', 'figures/')


def _beside(folder: epath.Path) -> list[str]:
  """Returns which files and folders of a run a reader finds beside its page."""
  return [name for name in _BESIDE if (folder / name.rstrip('/')).exists()]


def _remake(folder: epath.Path) -> str:
  """Returns a sentence on the command that makes a run's tables and figures again."""
  place = os.fspath(folder)
  if '://' not in place:
    here, absolute = pathlib.Path.cwd(), pathlib.Path(place).absolute()
    if absolute.is_relative_to(here):
      place = absolute.relative_to(here).as_posix()
  return ('The tables and figures are made from results.csv, and can be made again '
          f'with `python -m experiments.report --workdir={shlex.quote(place)}`, in the '
          'folder of the repository.')


def _shown(report: Report) -> list[tuple[epath.Path, str]]:
  """Returns the figures to show, each with its caption: its name and a sentence."""
  return [(path, f'{_words(path)}. {sentence}'.strip())
          for path, sentence in report.figures.items() if path.suffix == '.png']


def _in_turn(tables: list[str], figures: list[str]) -> list[str]:
  """Returns the first table, the first figure, and then all others."""
  return [*tables[:1], *figures[:1], *tables[1:], *figures[1:]]


def _markdown(folder: epath.Path, report: Report, stored: Mapping[str, Any]) -> str:
  about = _PAPER.sub(r'[\g<0>](https://arxiv.org/abs/\1)', report.about)
  parts = [f'# {report.title}', report.missing, *report.answer, about]
  parts += _in_turn(
      [markdown(table).rstrip() for table in report.main],
      [f'![{caption}]({path.relative_to(folder).as_posix()})\n\n*{caption}*'
       for path, caption in _shown(report)])
  others = report.tables[report.num_main:]
  parts += ['## More tables'] if others else []
  parts += [markdown(table).rstrip() for table in others]
  links = ', '.join(f'[{name}]({name})' for name in _beside(folder))
  parts += ['## How it was run', f'Beside this page: {links}.' if links else '',
            _remake(folder)]
  for title, facts in (('All starts', starts.all_starts(stored)),
                       ('The last start', starts.last_start(stored)),
                       ('All settings', _settings(stored))):
    lines = [f'- {name}: `{value}`' for name, value in facts]
    parts += [f'### {title}', '\n'.join(lines)] if lines else []
  return '\n\n'.join(part for part in parts if part) + '\n'


def _html(folder: epath.Path, report: Report, stored: Mapping[str, Any]) -> str:
  title = html.escape(report.title)
  missing = f'<p class="missing">{html.escape(report.missing)}</p>'
  answer = ''.join(f'<p>{_prose(text)}</p>' for text in report.answer)
  links = ', '.join(f'<a href="{name}">{name}</a>' for name in _beside(folder))
  parts = [
      '<!doctype html>', '<html lang="en">', '<meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width, initial-scale=1">',
      f'<title>{title}</title>', f'<style>{_STYLE}</style>', f'<h1>{title}</h1>',
      missing if report.missing else '',
      f'<div class="answer">{answer}</div>' if answer else '',
      f'<p>{_linked(html.escape(report.about))}</p>' if report.about else '',
      *_in_turn([*map(_table, report.main)],
                [_figure(path, caption) for path, caption in _shown(report)]),
      *(_folded(table.title, _table(table))
        for table in report.tables[report.num_main:]),
      '<h2>How it was run</h2>', f'<p>Beside this page: {links}.</p>' if links else '',
      f'<p>{_code(_remake(folder))}</p>',
      _facts('All starts', starts.all_starts(stored)),
      _facts('The last start', starts.last_start(stored)),
      _facts('All settings', _settings(stored)),
  ]
  return '\n'.join(part for part in parts if part) + '\n</html>\n'


_PAPER = re.compile(r'arXiv (\d{4}\.\d{5})')


def _linked(text: str) -> str:
  """Makes links of the papers that are named in a text."""
  return _PAPER.sub(r'<a href="https://arxiv.org/abs/\1">\g<0></a>', text)


def _code(text: str) -> str:
  """Escapes a sentence, with what is between backticks as code."""
  before, _, rest = html.escape(text).partition('`')
  code, _, after = rest.rpartition('`')
  return f'{before}<code>{code}</code>{after}'


# Spaces at which no line of a cell is broken, as in an interval, "< .001", "α = 1" or
# "95 %".
_KEPT = re.compile(r'(?<=[,<=]) | (?=[=%])')
_SPACE = '\N{NO-BREAK SPACE}'
# Spaces at which no line of a sentence is broken, as in "[95 %: 1, 2]" or "p < .001".
_KEPT_IN_PROSE = re.compile(r'(?<=\[\d\d) (?=%)|(?<=[<=]) (?=\.\d)')
# A number, such as '−1.2', '< .001' or '75 %', also with an interval behind it.
_NUMBER = re.compile(r'(< )?[+−]?[\d.][\d.,]*(e[+−]?\d+)?( %)?( \[.*\])?|undefined')


def _prose(text: str) -> str:
  """Escapes a sentence, whose numbers stay in one line."""
  return html.escape(_KEPT_IN_PROSE.sub(_SPACE, text))


def _table(table: Table) -> str:
  rows = cells(table)
  # Columns of numbers, some of which may be missing, are aligned on the right.
  kinds = [' class="number"' * (any(x) and all(map(_is_number, x)))
           for x in zip(*rows, strict=True)] or [''] * len(table.columns)
  row = lambda texts, tag: '<tr>' + ''.join(
      f'<{tag}{kind}>{html.escape(_KEPT.sub(_SPACE, text))}</{tag}>'
      for text, kind in zip(texts, kinds, strict=True)) + '</tr>'
  body = [row(texts, 'td') for texts in rows]
  more = _folded(MORE, f'<p class="note">{_prose(table.more)}</p>')
  return '\n'.join([
      f'<h2>{html.escape(table.title)}</h2>', '<div class="wide"><table>',
      row(table.columns, 'th'), *body, '</table></div>',
      f'<p class="note">{_prose(table.note)}</p>',
      *[more] * bool(table.more)])


def _is_number(cell: str) -> bool:
  return not cell or _NUMBER.fullmatch(cell) is not None


def _figure(path: epath.Path, caption: str) -> str:
  data = base64.b64encode(path.read_bytes()).decode()
  words = html.escape(caption)
  return (f'<figure><div class="wide"><img alt="{words}" '
          f'src="data:image/png;base64,{data}"></div><figcaption>{words}</figcaption></figure>')


def _words(path: epath.Path) -> str:
  return path.stem.replace('_', ' ').capitalize()


def _folded(title: str, body: str) -> str:
  return (f'<details><summary>{html.escape(title)}</summary>\n{body}\n</details>')


def _facts(title: str, facts: Iterable[tuple[str, str]]) -> str:
  rows = ''.join(f'<tr><td>{html.escape(name)}</td><td><code>{html.escape(value)}'
                 '</code></td></tr>' for name, value in facts)
  table = f'<div class="wide"><table>{rows}</table></div>'
  return _folded(title, table) if rows else ''
