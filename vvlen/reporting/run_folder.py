"""Which run owns a folder: config.json, the configuration of the run in it."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import json
from typing import Any

from etils import epath

from vvlen.reporting.results import write_text

LOCK = '.vvlen.lock'  # file that locks a local folder while a run is at work in it
_MACHINE = 'commit', 'python', 'device', 'processor'  # fields of a session
_NAMED = 5  # the largest number of differing fields that a message names


def claim(
    workdir: epath.PathLike,
    config: Mapping[str, Any],
    session: Mapping[str, Any],
    may_grow: Sequence[str] = (),
    may_differ: Sequence[str] = (),
    study: str = '',
) -> dict[str, Any] | None:
  """Claims a folder for this run, or raises if it holds another run.

  Writes config.json: the configuration, and one entry of `session` (versions,
  commit, machine) for each time that the run was started.

  Args:
    workdir: the folder; created if it is missing.
    config: nested dictionaries of plain values.
    session: plain values that describe this start.
    may_grow: names of fields of `config`, such as 'train.num_steps', that may be
      larger than at the last start.
    may_differ: names of fields that do not affect the results.
    study: the name of the experiment, by which its report is found.

  Returns:
    The configuration of the last start, None at the first.

  Raises:
    ValueError: if the folder holds a run with another configuration, naming the
      fields that differ, or holds files but no run.
  """
  before, stored = claimed(workdir, config, session, may_grow, may_differ, study)
  write_text(epath.Path(workdir) / 'config.json', json.dumps(stored, indent=2) + '\n')
  return before


def claimed(
    workdir: epath.PathLike,
    config: Mapping[str, Any],
    session: Mapping[str, Any],
    may_grow: Sequence[str] = (),
    may_differ: Sequence[str] = (),
    study: str = '',
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
  """Returns what `claim` would return and write, or raises; writes nothing."""
  workdir = epath.Path(workdir)
  path = workdir / 'config.json'
  config = json.loads(json.dumps(config))
  before, sessions = None, []
  if path.exists():
    with reading(path) as stored:
      before, sessions = stored['config'], [dict(s) for s in stored['sessions']]
      other, old = stored.get('study', study), flatten(before)
    if study and other != study:
      raise ValueError(
          f'{workdir} holds a run of {other}, not of {study}. Choose another --workdir.'
      )
    new = flatten(config)
    differing = [
        name for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name not in may_differ
        and not (name in may_grow and _grows(old.get(name, 0), new.get(name, 0)))
    ]
    if differing:
      raise ValueError(_refusal(workdir, differing, old, new, may_grow))
  elif used(workdir):
    raise ValueError(
        f'{workdir} is not empty and holds no run. Choose another --workdir.'
    )
  named = {'study': study} if study else {}
  return before, {**named, 'config': config, 'sessions': [*sessions, dict(session)]}


def _refusal(
    workdir: epath.Path, differing: Sequence[str], old: Mapping[str, Any],
    new: Mapping[str, Any], may_grow: Sequence[str],
) -> str:
  """Says in which fields a folder's run differs, and what may be done."""
  told = [
      f'{name}: {old.get(name)} there, {new.get(name)} here'
      f'{" (may only grow)" if name in may_grow else ""}' for name in differing]
  more = len(told) - _NAMED
  if more > 0:
    told[_NAMED:] = [f'and {more} more field{"s" * (more > 1)}']
  larger = all(name in may_grow and _grows(new.get(name, 0), old.get(name, 0))
               for name in differing)
  flags = ' '.join(f'--config.{name}={old[name]}' for name in differing
                   if larger and not name.startswith('inputs.'))
  return (f'{workdir} holds {"a larger" if larger else "another"} run '
          f'({"; ".join(told)}). Choose another --workdir'
          f'{f", or resume it with {flags}" if larger else ""}.')


def _grows(old: Any, new: Any) -> bool:
  numbers = all(isinstance(x, (int, float)) for x in (old, new))
  return numbers and new > old


@contextlib.contextmanager
def reading(path: epath.Path, of: str = 'a run') -> Iterator[dict[str, Any]]:
  """Yields the content of a config.json to a block that reads fields of it.

  Raises:
    ValueError: if the file is damaged or lacks a field that the block reads.
  """
  try:
    yield json.loads(path.read_text())
  except (ValueError, LookupError, TypeError, AttributeError, RecursionError,
          OverflowError) as error:
    what = ' '.join(f'{type(error).__name__} {error}'.split())
    raise ValueError(f'{path} is not the config.json of {of} ({what:.90}): restore it, '
                     'or choose another folder') from error


def stored(folder: epath.PathLike) -> dict[str, Any]:
  """Returns the content of a folder's config.json, {} if there is none.

  Raises:
    ValueError: if the file is damaged.
  """
  path = epath.Path(folder) / 'config.json'
  if not path.exists():
    return {}
  with reading(path) as content:
    return dict(content)


def used(workdir: epath.Path) -> bool:
  """Whether a folder holds more than notes, a lock and the rest of a killed `claim`.

  The notes, README.md, may state hypotheses that were written down before the run.
  """
  nothing = ('.config.json.tmp', LOCK, 'README.md')
  return workdir.exists() and any(
      path.name not in nothing for path in workdir.iterdir())


def changes(workdir: epath.PathLike) -> list[str]:
  """Returns a line for each way in which a run's last two starts differ.

  Other versions, commits or devices may change the last digits of new results. Files of
  earlier versions lack these fields, which are then not compared.
  """
  path = epath.Path(workdir) / 'config.json'
  if not path.exists():
    return []
  with reading(path) as stored:
    sessions = [flatten(session) for session in stored['sessions'][-2:]]
  before, now = sessions[0], sessions[-1]
  names = [name for name in now if name in _MACHINE or name.startswith('versions.')]
  return [
      f'{name.removeprefix("versions.")} is {now[name]}, and was {before[name]} at the '
      'last start: new results may differ in their last digits.'
      for name in names if before.get(name, now[name]) != now[name]
  ]


def finish(workdir: epath.PathLike, **facts: Any) -> None:
  """Adds facts, such as the time, to the last session of a folder's config.json."""
  path = epath.Path(workdir) / 'config.json'
  stored = json.loads(path.read_text())
  stored['sessions'][-1].update(facts)
  write_text(path, json.dumps(stored, indent=2) + '\n')


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Flattens nested dictionaries: {'a': {'b': 1}} -> {'a.b': 1}."""
  flat = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      flat.update(flatten(value, f'{prefix}{name}.'))
    else:
      flat[prefix + name] = value
  return flat
