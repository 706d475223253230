"""Titles of figures: the finding, and the setup in smaller type. Runs without JAX."""

import re

from matplotlib.figure import Figure
from matplotlib.text import Annotation

_LONGEST = 72  # characters of a line of a title
_LONGEST_SETUP = 100  # of the setup
_SIZE = 7.5  # points, of the setup
_UNEVEN = 900  # squared characters that a break behind a comma is worth
# Spaces at which no line is broken, as in 'N = 16', '95 %', 'width 8' or '0.2 → 0.1'.
_KEPT = re.compile(r'(?<=[=<×→−±+^]) | (?=[=<×→%−±]|L\b)|(?<=[\d½]) (?=[a-z])'
                   r'|(?<=[a-z]) (?=[−+]?\d)|(?<=\bto) |(?<=\d,) (?=\d)|(?<=\bat) '
                   r'| (?=to\b)')


def set_title(figure: Figure, title: str, setup: str = '') -> None:
  """Writes a title above a figure, and the setup below it in smaller regular type.

  Lines that are too long are broken into as few lines as can be, of about equal length,
  preferably after a comma, and never within brackets or behind a number.
  """
  lines = break_lines(title, _LONGEST)
  below = break_lines(setup, _LONGEST_SETUP, ',;') if setup else []
  if old := _setup(figure):
    old.remove()
  # Empty lines of the title keep the place of the setup.
  above = figure.suptitle('\n'.join((*lines, *[''] * len(below))))
  if below:
    figure.add_artist(Annotation(
        '\n'.join(below), (0.5, 0), xycoords=above, gid='setup', ha='center',
        va='bottom', fontsize=_SIZE))


def title_of(figure: Figure) -> str:
  """Returns the title of a figure, without line breaks."""
  return ' '.join(figure.get_suptitle().split('\n')).strip()


def setup_of(figure: Figure) -> str:
  """Returns the setup below the title of a figure without line breaks, '' if none."""
  found = _setup(figure)
  return ' '.join(found.get_text().split('\n')) if found else ''


def _setup(figure: Figure) -> Annotation | None:
  return next((artist for artist in figure.artists
               if isinstance(artist, Annotation) and artist.get_gid() == 'setup'), None)


def break_lines(text: str, longest: int, marks: str = ',:;') -> list[str]:
  """Returns the lines of a text, none longer than `longest` where that is possible.

  Args:
    text: of one or more lines.
    longest: in characters.
    marks: behind which a line is broken preferably.
  """
  return [line for own in text.split('\n') for line in _broken(own, longest, marks)]


def _broken(line: str, longest: int, marks: str) -> list[str]:
  """Breaks one line into as few as can be, of about equal length."""
  places = _places(line)
  for lines in range(max(1, -(-len(line) // longest)), len(places) + 2):
    if found := _best(line, places, lines, longest, marks):
      return found
  return _best(line, places, len(places) + 1, len(line), marks) or [line]


def _best(
    line: str, places: list[int], lines: int, longest: int, marks: str
) -> list[str]:
  """Returns the most even way of breaking a line at some of the places, [] if none.

  A break that is not behind one of `marks` counts as if its lines were less even.
  """
  goal = len(line) / lines
  best: dict[int, tuple[float, list[str]]] = {0: (0.0, [])}  # by where a line begins
  for number in range(lines):
    ends = [len(line)] if number == lines - 1 else places
    found: dict[int, tuple[float, list[str]]] = {}
    for start, (cost, before) in best.items():
      for end in ends:
        if end <= start:
          continue
        own = line[start:end].strip()
        if len(own) > longest:
          continue
        more = cost + (len(own) - goal) ** 2 + _UNEVEN * (own[-1] not in marks)
        if end not in found or more < found[end][0]:
          found[end] = more, [*before, own]
    best = found
  return best[len(line)][1] if len(line) in best else []


def _places(line: str) -> list[int]:
  """Returns where a line may be broken: at spaces that are not to be kept."""
  kept = {match.start() for match in _KEPT.finditer(line)}
  depth, places = 0, []
  for i, letter in enumerate(line):
    depth += (letter in '([') - (letter in ')]')
    if letter == ' ' and not depth and i not in kept:
      places.append(i)
  return places
