"""A page for each run: what it found, its tables and figures, and how to make it again.

The page is written twice: index.html is one file with its figures inside, which needs
no network; index.md shows the same figures from their files. Runs without JAX.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
import datetime
import html
import itertools
import os
import pathlib
import re
import shlex
from typing import Any, NamedTuple

from etils import epath

from vvlen.reporting import results, run_folder
from vvlen.reporting.tables import cells, counted, markdown, MORE, Table

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
  return f'The run is not finished: {", ".join(missing)}.' if missing else ''


def write(folder: epath.Path, report: Report) -> list[epath.Path]:
  """Writes index.html and index.md into the folder of a run; returns their paths."""
  stored = _stored(folder / 'config.json')
  pages = {'index.html': _html(folder, report, stored),
           'index.md': _markdown(folder, report, stored)}
  for name, text in pages.items():
    results.write_text(folder / name, text)
  return [folder / name for name in pages]


def elapsed(folder: epath.Path) -> str:
  """Returns a sentence on how long the last start of a run took, and all of them.

  Of a start that has not ended no time is known, and one that took no second, as where
  nothing was left to do, is not told of. '' if nothing is known.
  """
  sessions = _stored(folder / 'config.json').get('sessions') or [{}]
  last = _seconds(sessions[-1]) or 0
  known = [x for x in map(_seconds, sessions) if x is not None]
  said = f'The last start took {_duration(last)}.' if last else ''
  if sum(known) == last:
    return said
  which = f'All {len(known)} starts' if len(known) == len(sessions) else (
      f'Of {len(sessions)} starts, the {len(known)} that ended')
  return f'{said} {which} took {_duration(sum(known))}.'.strip()


def _seconds(session: Mapping[str, Any]) -> int | None:
  """Returns the seconds that a start of a run took, None if that is not known."""
  try:
    begin, end = (datetime.datetime.fromisoformat(session[name])
                  for name in ('started', 'finished'))
    return round((end - begin).total_seconds())
  except (KeyError, TypeError, ValueError):
    return None


def _duration(total: int) -> str:
  """Returns seconds as '5 s', '2 min 5 s' or '1 h 02 min'."""
  if total >= 3600:
    hours, minutes = divmod(round(total / 60), 60)
    return f'{hours} h {minutes:02d} min'
  minutes, seconds = divmod(total, 60)
  return f'{minutes} min {seconds} s' if minutes else f'{seconds} s'


def _stored(path: epath.Path) -> dict[str, Any]:
  if not path.exists():
    return {}
  with run_folder.reading(path) as stored:
    return dict(stored)


def _settings(stored: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
  """Yields the names and values of all fields of a run's configuration."""
  for name, value in run_folder.flatten(stored.get('config', {})).items():
    yield name, str(value)


# Files of settings that earlier versions had -> their present names.
_RENAMED = {'configs/lm.py': 'configs/language_model.py',
            'configs/recency.py': 'configs/recency_bias.py'}


def _last_start(stored: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
  """Yields facts about the last start of a run: when, how, with what."""
  sessions = stored.get('sessions') or [{}]
  for name, value in run_folder.flatten(sessions[-1]).items():
    text = str(value)
    if name == 'command':
      for before, now in _RENAMED.items():
        text = text.replace(before, now)
    yield name.removeprefix('versions.'), text


def _all_starts(stored: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
  """Yields when, for how long and on which machines a run was started.

  Nothing of a run of one start, of which `_last_start` tells.
  """
  sessions = [run_folder.flatten(session) for session in stored.get('sessions', ())]
  if len(sessions) < 2:
    return
  yield 'starts', str(len(sessions))
  for title, name, which in (
      ('first start', 'started', min), ('last end', 'finished', max)):
    if times := [str(s[name]) for s in sessions if s.get(name)]:
      yield title, which(times)
  known = [x for x in map(_seconds, sessions) if x is not None]
  if sum(known):
    ended = counted(len(known), 'start')
    yield f'time of the {ended} that ended', _duration(sum(known))
  machines: dict[str, list[dict[str, Any]]] = {}
  for session in sessions:
    names = [str(session[x]) for x in ('device', 'processor') if session.get(x)]
    machines.setdefault(', '.join(names) or 'not known', []).append(session)
  for place, (machine, own) in enumerate(machines.items(), 1):
    yield f'machine {place}', f'{machine}: {counted(len(own), "start")}; {_with(own)}'


def _with(sessions: Sequence[Mapping[str, Any]]) -> str:
  """Returns the versions and the commits with which a run was started."""
  versions = [name for name in dict.fromkeys(itertools.chain.from_iterable(sessions))
              if name == 'python' or name.startswith('versions.')]
  told = [f'{name.removeprefix("versions.")} {" or ".join(_distinct(sessions, name))}'
          for name in versions]
  commits = [_short_commit(x) for x in _distinct(sessions, 'commit')]
  told += [f'commit{"s" * (len(commits) > 1)} {", ".join(commits)}'] * bool(commits)
  return ', '.join(told)


def _distinct(sessions: Iterable[Mapping[str, Any]], name: str) -> list[str]:
  return [*dict.fromkeys(str(s[name]) for s in sessions if s.get(name))]


def _short_commit(commit: str) -> str:
  """Returns the first digits of a commit, and '+' if files were changed since it."""
  return commit[:10] + '+' * (commit.endswith('+') and len(commit) > 10)


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
  parts += ['## How it was run', _remake(folder)]
  for title, facts in (('All starts', _all_starts(stored)),
                       ('The last start', _last_start(stored)),
                       ('All settings', _settings(stored))):
    lines = [f'- {name}: `{value}`' for name, value in facts]
    parts += [f'### {title}', '\n'.join(lines)] if lines else []
  return '\n\n'.join(part for part in parts if part) + '\n'


def _html(folder: epath.Path, report: Report, stored: Mapping[str, Any]) -> str:
  title = html.escape(report.title)
  missing = f'<p class="missing">{html.escape(report.missing)}</p>'
  answer = ''.join(f'<p>{html.escape(text)}</p>' for text in report.answer)
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
      '<h2>How it was run</h2>', f'<p>{_code(_remake(folder))}</p>',
      _facts('All starts', _all_starts(stored)),
      _facts('The last start', _last_start(stored)),
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


# Spaces at which no line of a cell is broken, as in an interval, "< .001" or "α = 1".
_KEPT = re.compile(r'(?<=[,<=]) | (?==)')
_SPACE = '\N{NO-BREAK SPACE}'
# A number, such as '−1.2', '< .001' or '75 %', also with an interval behind it.
_NUMBER = re.compile(r'(< )?[+−]?[\d.][\d.,]*(e[+−]?\d+)?( %)?( \[.*\])?|undefined')


def _table(table: Table) -> str:
  rows = cells(table)
  # Columns of numbers, some of which may be missing, are aligned on the right.
  kinds = [' class="number"' * (any(x) and all(map(_is_number, x)))
           for x in zip(*rows, strict=True)] or [''] * len(table.columns)
  row = lambda texts, tag: '<tr>' + ''.join(
      f'<{tag}{kind}>{html.escape(_KEPT.sub(_SPACE, text))}</{tag}>'
      for text, kind in zip(texts, kinds, strict=True)) + '</tr>'
  body = [row(texts, 'td') for texts in rows]
  more = _folded(MORE, f'<p class="note">{html.escape(table.more)}</p>')
  return '\n'.join([
      f'<h2>{html.escape(table.title)}</h2>', '<div class="wide"><table>',
      row(table.columns, 'th'), *body, '</table></div>',
      f'<p class="note">{html.escape(table.note)}</p>',
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
