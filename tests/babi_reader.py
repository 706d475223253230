"""Reads stories of bAbI as a person does: answers from the text of the facts alone.

Independent of vvlen.tasks, whose answers it checks. Stories may be told in part.
"""

import re

_MOVE = re.compile(r'(\w+) (?:moved|went|journeyed|travelled|went back) to the (\w+)\.')
_GET = re.compile(r'(\w+) (?:got|took|grabbed|picked up) the (\w+)(?: there)?\.')
_DROP = re.compile(r'(\w+) (?:dropped|left|discarded|put down) the (\w+)(?: there)?\.')
_GIVE = re.compile(r'(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.')
_IS = re.compile(r'The (\w+) is (north|south|east|west) of the (\w+)\.')
_OPPOSITE = {'north': 'south', 'south': 'north', 'east': 'west', 'west': 'east'}


def answer(facts, question):
  """Returns the one answer to a question."""
  person, thing, gifts, relations = {}, {}, [], set()  # thing: rooms it has been in
  holder = {}
  for fact in facts:
    if found := _MOVE.fullmatch(fact):
      who, room = found.groups()
      person[who] = room
      for what, other in holder.items():
        if other == who:
          thing.setdefault(what, []).append(room)
    elif found := _GET.fullmatch(fact):
      who, what = found.groups()
      assert what not in holder, f'{what} is held by {holder[what]}: {fact}'
      holder[what] = who
      been = thing.setdefault(what, [])
      if who in person:
        # Nobody gets a thing that is elsewhere; unless where it was is not known.
        assert not been or been[-1] == person[who], f'{what} is elsewhere: {fact}'
        been += [person[who]] if not been else []
      elif been:
        person[who] = been[-1]
    elif found := _DROP.fullmatch(fact):
      who, what = found.groups()
      assert holder.pop(what, who) == who, fact
      if who in person and thing.get(what, [])[-1:] != [person[who]]:
        thing.setdefault(what, []).append(person[who])
    elif found := _GIVE.fullmatch(fact):
      who, what, receiver = found.groups()
      assert holder.get(what, who) == who != receiver, fact
      together = {person[x] for x in (who, receiver) if x in person}
      assert len(together) < 2, f'they are not in one room: {fact}'
      holder[what] = receiver
      gifts.insert(0, found.groups())
    else:
      first, direction, second = _IS.fullmatch(fact).groups()
      relations |= {(first, direction, second),
                    (second, _OPPOSITE[direction], first)}
  return _look_up(question, person, thing, gifts, relations)


def _look_up(question, person, thing, gifts, relations):
  if found := re.fullmatch(r'Where is (\w+)\?', question):
    return person[found[1]]
  if found := re.fullmatch(r'Where is the (\w+)\?', question):
    return thing[found[1]][-1]
  if found := re.fullmatch(r'Where was the (\w+) before the (\w+)\?', question):
    rooms = thing[found[1]][::-1]
    return rooms[rooms.index(found[2]) + 1]
  if found := re.fullmatch(r'What is (\w+) of the (\w+)\?', question):
    [first] = {a for a, *rest in relations if rest == [*found.groups()]}
    return first
  if found := re.fullmatch(r'What is the (\w+) (\w+) of\?', question):
    [second] = {b for *rest, b in relations if rest == [*found.groups()]}
    return second
  for pattern, names in (
      (r'What did (?P<giver>\w+) give to (?P<receiver>\w+)\?', 'what'),
      (r'Who gave the (?P<what>\w+) to (?P<receiver>\w+)\?', 'giver'),
      (r'Who did (?P<giver>\w+) give the (?P<what>\w+) to\?', 'receiver'),
      (r'Who gave the (?P<what>\w+)\?', 'giver'),
      (r'Who received the (?P<what>\w+)\?', 'receiver')):
    if found := re.fullmatch(pattern, question):
      named = [dict(zip(('giver', 'what', 'receiver'), x, strict=True)) for x in gifts]
      return next(x[names] for x in named if x.items() >= found.groupdict().items())
  raise ValueError(question)
