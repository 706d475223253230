"""Texts that small models learn the long-context tasks from: answers are right."""

import itertools
import json
import re
import subprocess
import sys

from etils import epath
import numpy as np
import pytest

from configs import long_context
from experiments.long_context import exercises, suites, training_text
from tests.conftest import ROOT
from vvlen.evaluation import babilong, ruler
from vvlen.tasks import babi_stories, short_ruler
from vvlen.tasks.haystack import NOISE
from vvlen.tasks.tokenizers import byte_tokenizer, load_tokenizer
from vvlen.tasks.word_lists import ADJECTIVES, NOUNS, PAIRS

_LENGTHS = 300, 600  # bytes


@pytest.mark.parametrize('name', training_text.tasks(4))
def test_a_document_is_a_prompt_with_its_right_answer(name, monkeypatch):
  asked = []

  def kept(draw):
    def wrapped(*args, **kwargs):
      asked.append(draw(*args, **kwargs))
      return asked[-1]
    return wrapped

  of_babi = name.startswith('qa')
  module, function = (babi_stories, 'draw_question') if of_babi else (
      short_ruler, name if name in ('variable_tracking', 'common_words', 'passkey')
      else 'niah')
  monkeypatch.setattr(module, function, kept(getattr(module, function)))
  draws = {name: training_text.tasks(4)[name]}
  texts = []
  for text in training_text.documents(draws, 8, _LENGTHS, byte_tokenizer(), 0):
    texts.append(text)
    if of_babi:
      question, answer = text.rpartition('?')[::2]
      assert question.endswith(asked[-1].question.rstrip('?'))
      assert len(asked[-1].facts) <= 4
      assert babilong.is_correct(
          name, answer, asked[-1].answer, asked[-1].question, 'strict')
    else:
      sample = asked[-1]
      assert text.startswith(sample.prompt)
      answer = text.removeprefix(sample.prompt)
      assert ruler.score(answer, sample.answers, 'strict', others=sample.others) == 1
    assert _LENGTHS[0] - 30 <= len(text.encode()) <= _LENGTHS[1]
  assert len({*texts}) == 8 and np.std([len(x) for x in texts]) > 30


def test_values_of_needles_are_words_where_asked_for(rng):
  for name, count in (('niah_single', 1), ('niah_multivalue', 4), ('passkey', 1)):
    for values in ('numbers', 'words'):
      draw = training_text.tasks(4, values)[name]
      drawn = draw(rng, 400, byte_tokenizer())
      words = values == 'words' and name != 'passkey'
      assert len(drawn.answers) == count
      assert all((x in ADJECTIVES) == words != x.isdigit() for x in drawn.answers)
      kinds = len(ADJECTIVES) if words else 90_000 if name == 'passkey' else 900
      assert drawn.chance == drawn.shortcut == count / kinds


def test_tasks_take_turns_and_more_documents_change_none():
  draws = training_text.tasks(4)
  few, more = (
      [*training_text.documents(draws, n, _LENGTHS, byte_tokenizer(), 3)]
      for n in (12, 24))
  assert more[:12] == few
  other = [*training_text.documents(draws, 12, _LENGTHS, byte_tokenizer(), 4)]
  assert not {*other} & {*few}
  assert sum('<context>' in text for text in few) == 5
  assert [few[5].startswith(x) for x in ('The pass', 'net')] == [False, False]
  assert 'Most often:' in few[5] and 'The pass key is' in few[6]


def test_exercises_tell_twice_what_the_context_says(rng):
  counts, orders = {'phrases': set(), 'numbers': set()}, set()
  for _ in range(200):
    *parts, end = exercises.numbers(rng).split('.')
    listed = parts[0].split()
    assert end == '' and [x.split() for x in parts] == len(parts) * [listed]
    assert all(100 <= int(x) < 10**5 for x in listed)
    counts['numbers'] |= {(len(parts), len(listed))}
    first, *again = ([x.strip(' ') for x in line.split('.')[:-1]]
                     for line in exercises.phrases(rng).split('\n'))
    assert all(sorted(x) == sorted(first) for x in again)
    assert {word for x in first for word in x.split()} <= {*NOUNS, *ADJECTIVES}
    counts['phrases'] |= {(1 + len(again), len(first), len(x.split())) for x in first}
    orders |= {first == x for x in again}
    told, *again = exercises.needles(rng).split('\n')
    facts = [x for x in re.findall(r'\b[a-z]{3} is \w+\.', told)
             if x.split()[0] in NOUNS]
    assert sorted(facts) == sorted(again) and 2 <= len({*facts}) == len(facts) <= 4
    assert len({x.split()[0] for x in facts}) == len(facts)
    assert {x.split()[-1].removesuffix('.') for x in facts} <= {*ADJECTIVES}
    for sentence in facts:
      told = told.replace(sentence, '')
    assert {x.strip() for x in told.split('.')} <= {
        '', *(x.removesuffix('.') for x in NOISE)}
    first, second, third = exercises.pass_key(rng).split('\n')
    assert second == third and first.endswith(f'{second} {second}')
    assert re.fullmatch(r'The pass key is \d{5}\.', second)
  assert [{*x} for x in zip(*counts['phrases'], strict=True)] == [
      {2}, {2, 3, 4}, {2, 3}]
  assert orders == {True, False}
  assert [{*x} for x in zip(*counts['numbers'], strict=True)] == [{2, 3, 4}, {1, 2, 3}]


_MOVE = r'(\w+) (?:moved|went|journeyed|travelled|went back) to the (\w+)\.'
_ASKED = r'Question: Where is (\w+)\? (\w+)\.'


def test_an_exercise_asks_where_each_is_who_has_moved(rng):
  counts, last_first, last_room = set(), set(), []
  for _ in range(400):
    told, *questions = exercises.people(rng).split('\n')
    moves = re.findall(_MOVE, told)
    assert re.sub(_MOVE, '', told).strip() == ''
    asked = [re.fullmatch(_ASKED, x).groups() for x in questions]
    assert dict(asked) == dict(moves) and len(asked) == len(dict(moves))
    counts |= {(len(moves) - len(asked), len(asked))}
    last_first |= {asked[0][0] == moves[-1][0]}
    last_room += [place == moves[-1][1] for _, place in asked]
    assert all(x != y for name in dict(moves) for x, y in itertools.pairwise(
        place for moved, place in moves if moved == name))
  assert counts == {*itertools.product((0, 1, 2), (2, 3, 4))}
  assert last_first == {True, False} and 0.4 < np.mean(last_room) < 0.5


def test_exercises_follow_each_document_in_turn():
  draws = training_text.tasks(4)
  made = lambda count, every: [*training_text.documents(
      draws, count, _LENGTHS, byte_tokenizer(), 3, every)]
  texts = made(36, 2)
  assert texts[:10] == made(10, 2)
  of_tasks = [text for i, text in enumerate(texts) if i % 3 == 0]
  assert 'Most often:' in of_tasks[5] and 'The pass key is' in of_tasks[6]
  assert sum('<context>' in text for text in of_tasks) == 5
  between = [text for i, text in enumerate(texts) if i % 3]
  kinds = ['people' if 'Question' in x else 'pass_key' if 'pass' in x else 'needles'
           if ' is ' in x else 'numbers' if x[0].isdigit() else 'phrases'
           for x in between]
  turns = ['phrases', 'people', 'needles', 'people', 'pass_key', 'phrases', 'people',
           'needles', 'people', 'numbers']
  assert kinds == (3 * turns)[:24] and len({*between}) == 24
  assert [x.__name__ for x in exercises.EXERCISES] == turns


def test_prompts_are_not_those_of_the_suites():
  # Same seed, task and index; the suites' random numbers have the length too.
  rng = training_text.generator(0, 'training', 'niah_single', 0)
  assert rng.integers(10**9) not in {
      training_text.generator(0, 'niah_single', length, 0).integers(10**9)
      for length in range(600)}


def test_the_tokenizer_keeps_text_and_has_a_token_for_each_digit(tmp_path):
  draws = training_text.tasks(4)
  training_text.write(epath.Path(tmp_path), draws, 36, (48, 128), 700, 0)
  tokenizer = load_tokenizer(tmp_path)
  lines = (tmp_path / 'text.jsonl').read_text().splitlines()
  assert len(lines) == 36 and tokenizer.begin is not None
  for line in lines:
    text = json.loads(line)['text']
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text and 30 < len(tokens) <= 128
    assert tokenizer.begin not in tokens
  apart = [tokenizer.decode([x]) for x in tokenizer.encode('471, 25')]
  assert apart == ['4', '7', '1', ',', '2', '5']
  # Wherever a word or a digit stands, it is the same token.
  one, space, again, end, line = np.split(tokenizer.encode('4 4 4\n4'), [1, 2, 3, 4])
  assert one == space == again == line != end
  is_, *between, last = tokenizer.encode('is green. The is\nis')
  for text in (' a', 'a\n b', '\n', '', ' ', 'a  b \n\n c', '1 2  3\n 4'):
    assert tokenizer.decode(tokenizer.encode(text)) == text
  assert is_ == last == between[-2] and tokenizer.decode([is_]) == 'is'
  assert tokenizer.vocab_size <= 700


@pytest.mark.slow
def test_the_vocabulary_is_spent_on_words_of_the_text(tmp_path):
  """Lists of more bytes than those of the text have other words, such as calm-fox."""
  draws = {'common_words': training_text.tasks(4)['common_words']}
  training_text.write(epath.Path(tmp_path), draws, 48, (48, 128), 700, 0)
  tokenizer = load_tokenizer(tmp_path)
  for noun in NOUNS:
    assert len(tokenizer.encode(noun)) == 1
  text = ''.join(tokenizer.decode([x]) for x in range(tokenizer.vocab_size))
  assert not any(pair.partition('-')[0] in text for pair in PAIRS if len(pair) > 8)


def _command(*arguments):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.long_context.training_text', *arguments],
      cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_suite_of_babilong_asks_in_the_same_form(tmp_path):
  draws = {'qa1': training_text.tasks(4)['qa1']}
  training_text.write(epath.Path(tmp_path), draws, 30, (48, 128), 400, 0)
  tokenizer = load_tokenizer(tmp_path)
  config = long_context.get_config('babilong')
  config.update(tasks=('qa1',), parts=(), most_facts=4, lengths=(107,), num_samples=9,
                text=f'{tmp_path}/filler.txt')
  [part] = suites.plan(config, tokenizer, 128).parts
  asked = [tokenizer.decode(part.draw(i).tokens) for i in range(9)]
  learned = [json.loads(line)['text'].rpartition(' ')[0]
             for line in (tmp_path / 'text.jsonl').read_text().splitlines()]
  words = [{*' '.join(x).replace('.', ' ').split()} for x in (asked, learned)]
  assert len(words[0]) > 30 and len(words[0] - words[1]) < 5  # sentences may be cut
  form = r'<context>\n.*\.?.*\n</context>\n\nQuestion: Where is \w+\?'
  assert all(re.fullmatch(form, x) for x in asked + learned)


@pytest.mark.parametrize('arguments, says', [
    (['--tasks=niah'], "--tasks must be of niah_single, .*: 'niah'"),
    (['--documents=0'], 'must be positive'),
    (['--shortest=9', '--longest=8'], 'longest'),
    (['--vocabulary=200'], 'at least 300'), (['--documents=x'], 'invalid int'),
    (['--tasks=qa5', '--shortest=9', '--longest=16', '--documents=9'],
     'qa5 was not drawn with 16 tokens or fewer: ')])
def test_wrong_input_is_one_line(arguments, says, tmp_path, monkeypatch, capsys):
  def refused(error):
    print(error)
    raise SystemExit(2)

  for name in ('refuse', 'leave'):
    monkeypatch.setattr(training_text.errors, name, refused)
  monkeypatch.setattr(sys, 'argv', ['x', f'--folder={tmp_path}/new', *arguments])
  with pytest.raises(SystemExit):
    training_text.main()
  assert re.search(says, capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.slow
def test_a_model_is_trained_on_it_and_asked(tmp_path, fast_compilation):
  done = _command(f'--folder={tmp_path}/tasks', '--documents=200', '--vocabulary=400')
  assert (done.returncode, done.stderr) == (0, '')
  for module, *arguments in (
      ('correlation', '--config=configs/correlation.py:smoke',
       f'--config.text.path={tmp_path}/tasks/text.jsonl',
       f'--config.text.tokenizer={tmp_path}/tasks', f'--workdir={tmp_path}/model'),
      ('long_context', '--config=configs/long_context.py:ruler_smoke',
       f'--checkpoint={tmp_path}/model/models/rope/seed_1',
       f'--workdir={tmp_path}/ruler')):
    run = subprocess.run([sys.executable, '-m', f'experiments.{module}', *arguments],
                         cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
  lines = [json.loads(line) for path in (tmp_path / 'ruler/predictions').iterdir()
           for line in path.read_text().splitlines()]
  models = sorted(x.relative_to(tmp_path / 'model/models').as_posix()
                  for x in (tmp_path / 'model/models').glob('*/*'))
  assert models == [
      f'{name}/seed_{seed}'
      for name in ('alibi_short', 'layer_norm', 'rope', 'rope_term')
      for seed in range(2)]
  weights = [(tmp_path / f'model/models/rope/seed_{seed}/model.safetensors')
             .read_bytes() for seed in range(2)]
  assert weights[0] != weights[1]
  assert len(lines) == 36 and all(isinstance(x['pred'], str) for x in lines)
