"""The starts of a run: when, for how long, on which machines. Runs without JAX.

Arguments named `stored` are the content of a run's config.json.
"""

from collections.abc import Iterable, Mapping, Sequence
import datetime
import itertools
from typing import Any

from etils import epath

from vvlen.reporting import run_folder
from vvlen.reporting.numbers import counted

# Files of settings that earlier versions had -> their present names.
_RENAMED = {'configs/lm.py': 'configs/language_model.py',
            'configs/recency.py': 'configs/recency_bias.py'}


def elapsed(folder: epath.Path) -> str:
  """Returns a sentence on how long the last start of a run took, and all of them.

  It is the time until the last results, without tables and figures.
  The time of a start is known if it has ended. A start of less than a second, which had
  nothing left to do, is not mentioned. '' if nothing is known.
  """
  sessions = run_folder.stored(folder).get('sessions') or [{}]
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


def last_start(stored: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
  """Yields facts about the last start of a run: when, how, with what."""
  sessions = stored.get('sessions') or [{}]
  for name, value in run_folder.flatten(sessions[-1]).items():
    text = str(value)
    if name == 'command':
      for before, now in _RENAMED.items():
        text = text.replace(before, now)
    yield name.removeprefix('versions.'), text


def all_starts(stored: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
  """Yields when, for how long and on which machines a run was started.

  It yields nothing for a run with a single start, which `last_start` describes.
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
  commits = [short_commit(x) for x in _distinct(sessions, 'commit')]
  told += [f'commit{"s" * (len(commits) > 1)} {", ".join(commits)}'] * bool(commits)
  return ', '.join(told)


def _distinct(sessions: Iterable[Mapping[str, Any]], name: str) -> list[str]:
  return [*dict.fromkeys(str(s[name]) for s in sessions if s.get(name))]


def short_commit(commit: str) -> str:
  """Returns the first digits of a commit, and '+' if files were changed since it."""
  return commit[:10] + '+' * (commit.endswith('+') and len(commit) > 10)
