"""Files of RULER's predictions: read as published, written so that others read them."""

import json
import re

import pytest

from vvlen.evaluation import ruler_files as files
from vvlen.evaluation.ruler import score
from vvlen.evaluation.ruler_files import Prediction

LINE = {'index': 4107, 'pred': ' 71 and\x00 8302.', 'input': 'Some special magic …',
        'outputs': ['71', '8302'], 'others': {}, 'truncation': -1, 'length': 4096}


def _write(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(''.join(
      (row if isinstance(row, str) else json.dumps(row)) + '\n' for row in rows))
  return path


@pytest.mark.parametrize('more', [
    {}, {'others': ..., 'input': ..., 'length': ..., 'truncation': ..., 'index': ...},
    {'others': {'id': 7}, 'answer_prefix': 'x'}])
def test_published_lines_are_read(more, tmp_path):
  row = {k: v for k, v in {**LINE, **more}.items() if v is not ...}
  path = _write(tmp_path / 'niah_multivalue.jsonl', [row, row])
  expected = Prediction('niah_multivalue', ' 71 and\x00 8302.', ('71', '8302'))
  assert files.read_predictions(path) == ([expected] * 2, [])  # of one index


@pytest.mark.parametrize('change, says', [
    ({'pred': ...}, "the field 'pred' is missing"),
    ({'pred': None}, 'pred must be a text: None'),
    ({'outputs': ...}, "the field 'outputs' is missing"),
    ({'outputs': []}, r'outputs must be a list of texts: \[\]'),
    ({'outputs': 'x'}, "outputs must be a list of texts: 'x'"),
    ({'outputs': ['x', 3]}, r"outputs must be a list of texts: \['x', 3\]"),
    ({'outputs': ['\ud800']}, 'outputs has half a character: .*'),
    ({'outputs': ['']}, r"outputs must be a list of texts: \[''\]"),
    ('[]', 'not an object of JSON'), ('{', 'not JSON'),
])
def test_a_bad_line_is_named_and_the_others_are_kept(change, says, tmp_path):
  row = change
  if isinstance(change, dict):
    row = {k: v for k, v in {**LINE, **change}.items() if v is not ...}
  path = _write(tmp_path / 'vt.jsonl', [LINE, row, LINE])
  good, [bad] = files.read_predictions(path)
  assert len(good) == 2 and re.fullmatch(f'{path} line 2: {says}', bad)


def test_parts_of_a_task_are_read_together(tmp_path):
  for name, pred in (('qa_1-10', 'b'), ('qa_1-9', 'a'), ('cwe', 'c'), ('qa_3', 'd')):
    _write(tmp_path / f'{name}.jsonl', [{**LINE, 'pred': pred}])
  _write(tmp_path / 'fwe.jsonl', [{}])
  found, bad = files.read_folder(tmp_path)
  assert {task: [x.text for x in own] for task, own in found.items()} == {
      'cwe': ['c'], 'qa_1': ['b', 'a']}
  assert re.fullmatch(r".*fwe\.jsonl line 1: .*'pred' is missing", bad[0])
  assert re.fullmatch(r".*: the task must be one of .*qa_1, qa_2: 'qa_3'", bad[1])
  with pytest.raises(ValueError, match=r'has no file TASK\.jsonl'):
    files.read_folder(_write(tmp_path / 'other/x.csv', []).parent)


def test_parts_take_the_place_of_a_whole_file(tmp_path):
  for name, pred in (('vt', 'whole'), ('vt-0', 'a'), ('vt-1', 'b'), ('cwe', 'c')):
    _write(tmp_path / f'{name}.jsonl', [{**LINE, 'pred': pred}])
  found, bad = files.read_folder(tmp_path)
  assert {task: [x.text for x in own] for task, own in found.items()} == {
      'cwe': ['c'], 'vt': ['a', 'b']}
  assert bad == [
      f'{tmp_path}/vt.jsonl: its parts, such as vt-0.jsonl, are read instead']


@pytest.mark.parametrize('output, answer, expected', [
    # As the published program strips and replaces: official, lm_eval, strict.
    ('It is Paris ', 'Paris ', (0, 0, 1)), ('\tParis', '\tParis', (0, 0, 1)),
    ('in\tParis', 'in\tParis', (0, 0, 1)), ('in\tParis', 'in\nParis', (1, 1, 0)),
    ('in Paris\x00', 'paris', (1, 1, 1)), ('in Paris\x00', 'Paris\n', (0, 0, 0)),
    ('in\x00Paris', 'in\nParis', (1, 1, 0)), ('in\x1fParis', 'in\nParis', (1, 1, 0)),
    ('in\x20Paris', 'in\nParis', (0, 0, 0)), ('\x00Paris', '\nParis', (0, 0, 0))])
def test_white_space_around_and_control_characters(output, answer, expected):
  assert tuple(score(output, [answer], x) for x in (
      'official', 'lm_eval', 'strict')) == expected


def test_there_are_the_thirteen_published_tasks():
  assert len(files.TASKS) == len(set(files.TASKS)) == 13
  assert set(files.NAMES.values()) < set(files.TASKS)


@pytest.mark.parametrize('text, expected', [  # official, lm_eval, strict
    ('in Paris', (1, 0.5, 1)), ('PARIS, France', (1, 1, 1)), ('Madrid', (0, 0, 0)),
    ('Parisian', (1, 0.5, 0)), ('', (0, 0, 0))])
def test_one_answer_to_a_question_is_enough(text, expected):
  prediction = Prediction('qa_2', text, ('Paris', 'France'))
  assert tuple(files.score_of(prediction, x)
               for x in ('official', 'lm_eval', 'strict')) == expected
  # Of other tasks, all are asked for.
  other = prediction._replace(task='cwe')
  for dialect in ('official', 'lm_eval'):
    assert files.score_of(other, dialect) == expected[1]
  assert files.score_of(other, 'strict') == float('France' in text)
  with pytest.raises(ValueError, match='the dialect must be one of'):
    files.score_of(prediction, 'no')


def test_what_is_written_is_read(tmp_path):
  lines = [files.line_of(i, text, ['71', 'é\u2028'], 96)
           for i, text in enumerate(('a\nb\r\x85', '日本 "\\'))]
  assert json.loads(lines[1]) == {
      'index': 1, 'pred': '日本 "\\', 'input': '', 'outputs': ['71', 'é\u2028'],
      'others': {}, 'truncation': -1, 'length': 96}
  assert lines[0].isascii() and lines[0].count('\n') == 1
  assert json.loads(files.line_of(0, 'x', ['y']))['length'] == -1
  path = tmp_path / 'niah_single_1.jsonl'
  path.write_text(''.join(lines))
  good, bad = files.read_predictions(path)
  assert bad == [] and [x.text for x in good] == ['a\nb\r\x85', '日本 "\\']
  assert files.score_of(good[0]) == score('a', ['71']) == 0
