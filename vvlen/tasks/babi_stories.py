"""New questions of the kinds qa1 to qa5 of bAbI, from a world that is simulated.

John, Mary, Sandra and Daniel (in qa5: Bill, Fred, Jeff and Mary) are in six rooms, with
an apple, a football and a milk. Where they are at first is drawn, and not told. Each
fact is a possible action; its kind is drawn first. Someone moves to another room, gets
a thing that is in the room, drops one, or in qa5 gives it to someone in the room.

  qa1   Two moves, then where is someone who has moved; five times.
  qa2   Where is a thing? Someone took or dropped it, and a move told where they were.
  qa3   Where was a thing before it came to a room, the last time that it did?
  qa4   Three rooms in a line, two neighbours told; what is next to one of them?
  qa5   Who gave what to whom, the last time that something was given?

In qa2, qa3 and qa5, a question follows a fact with probability 1/2, if at least two
facts were told since the last question and it has an answer; a story has five.

Source: Weston et al. (2015), arXiv 1502.05698, and the files of bAbI 1.2, whose words
these are. The published simulator differs in detail: distributions are alike, not
equal. Runs without JAX.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from vvlen.tasks.babi import Question

T = TypeVar('T')

TASKS = ('qa1', 'qa2', 'qa3', 'qa4', 'qa5')
ROOMS = ('bathroom', 'bedroom', 'garden', 'hallway', 'kitchen', 'office')
THINGS = ('apple', 'football', 'milk')
MOVES = ('moved', 'went', 'journeyed', 'travelled', 'went back')
ACTORS = ('Daniel', 'John', 'Mary', 'Sandra')
_GIVERS = ('Bill', 'Fred', 'Jeff', 'Mary')  # of qa5
_HANDLING = ('get', 'drop', 'move', 'move', 'move')
# Each kind as often as it is to be drawn, for shares near those of the files.
_KINDS = {'qa1': ('move',), 'qa2': _HANDLING, 'qa3': _HANDLING,
          'qa5': ('get', 'drop', 'give', 'give', 'give', 'move', 'move', 'move')}
_WORDS = {
    'move': MOVES,
    'get': ('got', 'took', 'grabbed', 'picked up'),
    'drop': ('dropped', 'left', 'discarded', 'put down'),
    'give': ('gave', 'handed', 'passed'),
}
_OPPOSITE = {'north': 'south', 'south': 'north', 'east': 'west', 'west': 'east'}
_STORIES = 3000  # how many to draw, at most, until one has a question short enough


class _Event(NamedTuple):
  """An action of someone."""

  kind: str  # 'move', 'get', 'drop' or 'give'
  actor: str
  thing: str  # or the room that the actor moves to
  receiver: str  # of what is given, else ''


def draw_question(
    rng: np.random.Generator, task: str, most_facts: int | None = None
) -> Question:
  """Draws a question of a new story.

  Args:
    rng: advanced by this.
    task: 'qa1' to 'qa5'.
    most_facts: the largest number of facts before the question; None for any number.
      The smallest possible number is 2, in qa3 3.

  Returns:
    A question of the first story that has any with so few facts.

  Raises:
    ValueError: if the task is unknown, or no story has such a question.
  """
  for _ in range(_STORIES):
    if questions := draw_story(rng, task, most_facts):
      return _pick(rng, questions)
  raise ValueError(f'no question of {task} follows {most_facts} facts or fewer')


def draw_story(
    rng: np.random.Generator, task: str, most_facts: int | None = None
) -> list[Question]:
  """Draws a story with its five questions, or one in qa4.

  Args:
    rng: as in `draw_question`.
    task: as in `draw_question`.
    most_facts: the story ends before it has more; None for any number.

  Returns:
    The questions; fewer than five, or none, if the story ends before.

  Raises:
    ValueError: if the task is unknown.
  """
  if task not in TASKS:
    raise ValueError(f'the task must be one of {", ".join(TASKS)}: {task!r}')
  if task == 'qa4':
    question = _directions(rng)
    few = most_facts is None or len(question.facts) <= most_facts
    return [question] if few else []
  actors = _GIVERS if task == 'qa5' else ACTORS
  rooms = {actor: _pick(rng, ROOMS) for actor in actors}
  places = {thing: _pick(rng, ROOMS) for thing in THINGS}  # rooms, or who holds it
  events: list[_Event] = []
  facts: list[str] = []
  questions: list[Question] = []
  since = 0
  while len(questions) < 5 and (most_facts is None or len(facts) < most_facts):
    event = _draw_event(rng, _KINDS[task], rooms, places)
    _perform(event, rooms, places)
    events.append(event)
    facts.append(_tell(rng, task, event))
    since += 1
    if _is_time(rng, task, since) and (asked := _ask(rng, task, events)):
      questions.append(asked._replace(facts=tuple(facts)))
      since = 0
  return questions


def _draw_event(
    rng: np.random.Generator, kinds: Sequence[str], rooms: dict[str, str],
    places: dict[str, str]
) -> _Event:
  """Draws a kind of action that is possible, then one of the actions of this kind."""
  while True:
    if events := _possible(_pick(rng, kinds), rooms, places):
      return _pick(rng, events)


def _possible(
    kind: str, rooms: dict[str, str], places: dict[str, str]
) -> list[_Event]:
  """Returns all actions of a kind that are possible."""
  if kind == 'move':
    return [_Event(kind, actor, room, '')
            for actor in rooms for room in ROOMS if room != rooms[actor]]
  if kind == 'get':
    return [_Event(kind, actor, thing, '')
            for actor in rooms for thing in THINGS if places[thing] == rooms[actor]]
  held = [(places[thing], thing) for thing in THINGS if places[thing] in rooms]
  if kind == 'drop':
    return [_Event(kind, actor, thing, '') for actor, thing in held]
  return [_Event(kind, actor, thing, other) for actor, thing in held
          for other in rooms if other != actor and rooms[other] == rooms[actor]]


def _perform(event: _Event, rooms: dict[str, str], places: dict[str, str]) -> None:
  """Changes where everyone and everything is."""
  if event.kind == 'move':
    rooms[event.actor] = event.thing
  elif event.kind == 'drop':
    places[event.thing] = rooms[event.actor]
  else:
    places[event.thing] = event.receiver or event.actor


def _tell(rng: np.random.Generator, task: str, event: _Event) -> str:
  word = _pick(rng, _WORDS[event.kind])
  if event.kind == 'move':
    return f'{event.actor} {word} to the {event.thing}.'
  if event.kind == 'give':
    return f'{event.actor} {word} the {event.thing} to {event.receiver}.'
  always = event.kind == 'get' and task != 'qa3'
  there = ' there' if always or rng.random() < 0.2 else ''
  return f'{event.actor} {word} the {event.thing}{there}.'


def _is_time(rng: np.random.Generator, task: str, since: int) -> bool:
  """Whether to ask a question now, `since` facts after the last one."""
  if task == 'qa1':
    return since == 2
  return since >= 2 and rng.random() < 0.5


def _ask(
    rng: np.random.Generator, task: str, events: Sequence[_Event]
) -> Question | None:
  """Returns a question that the events answer, without facts; None if there is none."""
  if task == 'qa1':
    moved = sorted({event.actor for event in events})
    actor = _pick(rng, moved)
    last = _last_move(events, actor, len(events))
    assert last is not None
    return Question((), f'Where is {actor}?', events[last].thing, (last,))
  if task == 'qa5':
    given = [i for i, event in enumerate(events) if event.kind == 'give']
    return _ask_about_gift(rng, events[given[-1]], given[-1]) if given else None
  known = [_where_is(events, thing) if task == 'qa2' else _where_was(rng, events, thing)
           for thing in THINGS]
  return _pick(rng, [x for x in known if x] or [None])


def _where_is(events: Sequence[_Event], thing: str) -> Question | None:
  last = _last_handled(events, thing)
  if last is None:
    return None
  # What is dropped stays; what is held moves along.
  end = last if events[last].kind == 'drop' else len(events)
  move = _last_move(events, events[last].actor, end)
  if move is None:
    return None
  return Question((), f'Where is the {thing}?', events[move].thing, (last, move))


def _where_was(
    rng: np.random.Generator, events: Sequence[_Event], thing: str
) -> Question | None:
  visits = _visits(events, thing)
  rooms = [events[i].thing for i in visits]
  # The last visit of each room; what was before the first is not known.
  latest = {room: place for place, room in enumerate(rooms) if place}
  last = _last_handled(events, thing)
  if not latest or last is None:
    return None
  room = _pick(rng, sorted(latest))
  place = latest[room]
  return Question((), f'Where was the {thing} before the {room}?', rooms[place - 1],
                (last, visits[place], visits[place - 1]))


def _ask_about_gift(rng: np.random.Generator, event: _Event, place: int) -> Question:
  giver, thing, receiver = event.actor, event.thing, event.receiver
  question, answer = _pick(rng, [
      (f'What did {giver} give to {receiver}?', thing),
      (f'Who gave the {thing} to {receiver}?', giver),
      (f'Who did {giver} give the {thing} to?', receiver),
      (f'Who gave the {thing}?', giver),
      (f'Who received the {thing}?', receiver),
  ])
  return Question((), question, answer, (place,))


def _directions(rng: np.random.Generator) -> Question:
  """Returns a question of qa4."""
  rooms = [ROOMS[i] for i in rng.permutation(len(ROOMS))[:3]]
  direction = _pick(rng, ('north', 'east'))
  # (a, d, b): a is d of b. Neighbours of the line, each told from either side.
  told = [_turned(rng, (rooms[i], direction, rooms[i + 1])) for i in range(2)]
  told = [told[i] for i in rng.permutation(2)]
  asked = int(rng.integers(2))
  first, direction, second = _turned(rng, told[asked])
  question, answer = _pick(rng, [
      (f'What is the {first} {direction} of?', second),
      (f'What is {direction} of the {second}?', first),
  ])
  facts = tuple(f'The {a} is {d} of the {b}.' for a, d, b in told)
  return Question(facts, question, answer, (asked,))


def _turned(
    rng: np.random.Generator, relation: tuple[str, str, str]
) -> tuple[str, str, str]:
  """Returns 'a is north of b', or the same as 'b is south of a'."""
  first, direction, second = relation
  turned = second, _OPPOSITE[direction], first
  return turned if rng.random() < 0.5 else relation


def _last_move(events: Sequence[_Event], actor: str, end: int) -> int | None:
  """Returns which event before `end` is someone's last move."""
  return next((i for i in reversed(range(end))
               if events[i].kind == 'move' and events[i].actor == actor), None)


def _last_handled(events: Sequence[_Event], thing: str) -> int | None:
  return next((i for i in reversed(range(len(events)))
               if events[i].kind != 'move' and events[i].thing == thing), None)


def _visits(events: Sequence[_Event], thing: str) -> list[int]:
  """Returns the moves that brought a thing, or who took it, to each of its rooms."""
  visits: list[int] = []
  moves: dict[str, int] = {}
  holder = ''
  for i, event in enumerate(events):
    if event.kind == 'move':
      moves[event.actor] = i
      if event.actor == holder:
        visits.append(i)
    elif event.thing == thing:
      holder = event.actor if event.kind == 'get' else ''
      move = moves.get(event.actor)
      if event.kind == 'get' and move is not None and not (
          visits and events[visits[-1]].thing == events[move].thing):
        visits.append(move)
  return visits


def _pick(rng: np.random.Generator, items: Sequence[T]) -> T:
  return items[int(rng.integers(len(items)))]
