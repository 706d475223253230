"""Files of LongBench-E are read line by line; the prompts are the published ones."""

import json
import os
import pathlib
import re

import numpy as np
import pytest

from tests.conftest import NEEDS_REFERENCE
from vvlen.evaluation.longbench import METRICS, Scored
from vvlen.evaluation.longbench_files import (
  answer_tokens,
  keep_ends,
  prompt,
  read_predictions,
  read_samples,
  Sample,
  score_folder,
)

SAMPLE = {'input': 'Who {x}?', 'context': 'A {context} of\u2028two.',
          'answers': ['Ann'], 'length': 3999, 'dataset': 'qasper', 'language': 'en',
          'all_classes': None, '_id': 'a1'}
PREDICTION = {'pred': 'Ann', 'answers': ['Ann'], 'all_classes': None, 'length': 12}


def _write(path, rows):
  """Writes rows that are bytes as they are, others as JSON."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(b'\n'.join(
      x if isinstance(x, bytes) else json.dumps(x, ensure_ascii=False).encode()
      for x in rows))
  return path


def test_samples_are_read(tmp_path):
  rows = [SAMPLE, b'', {**SAMPLE, '_id': 'a2', 'dataset': 'qasper_e', 'more': 1}]
  samples, bad = read_samples(_write(tmp_path / 'qasper_e.jsonl', rows))
  assert bad == []
  assert samples[0] == Sample(
      'qasper', 'Who {x}?', 'A {context} of\u2028two.', ('Ann',), 3999, (), 'en', 'a1')
  assert [x.id for x in samples] == ['a1', 'a2']
  # The name of the file need not be that of the task.
  other = _write(tmp_path / 'mine.jsonl', rows)
  assert read_samples(other, 'qasper') == (samples, [])


BAD = [
    (b'{"input": ', 'not JSON'),
    (b'[1, 2]', 'not an object'),
    (b'[' * 100_000, 'not JSON'),
    (b'{"pred": "\xff"}', 'not UTF-8'),
    ({'answers': 'Ann'}, "answers must be a list of texts: 'Ann'"),
    ({'answers': [5]}, r'answers must be a list of texts: \[5\]'),
    ({'answers': []}, 'at least one answer'),
    ({'answers': None}, 'answers must be a list of texts: None'),
    ({'all_classes': 'Food'}, "all_classes must be a list of texts: 'Food'"),
    ({'length': '12'}, "length must be a whole number of words: '12'"),
    ({'length': True}, 'length must be a whole number of words: True'),
    ({'length': -1}, 'length must be a whole number of words: -1'),
    ({'length': 1.5}, 'length must be a whole number of words: 1.5'),
]


@pytest.mark.parametrize(('change', 'says'), [
    *BAD,
    ({'input': 5}, 'input must be a text: 5'),
    ({'context': '\ud800'}, 'context has half a character'),
    ({'answers': ['a', '\ud800']}, 'answers has half a character'),
    ({'all_classes': ['\ud800']}, 'all_classes has half a character'),
    ({'dataset': 'hotpotqa'}, "dataset is 'hotpotqa', not 'qasper'"),
    ({'_id': 'a1'}, "earlier line has the same _id, 'a1'"),
    *(({name: ...}, f"field '{name}' is missing") for name in SAMPLE),
])
def test_a_bad_sample_is_named_and_the_others_are_kept(change, says, tmp_path):
  row = change
  if isinstance(change, dict):
    row = {k: v for k, v in {**SAMPLE, '_id': 'a2', **change}.items() if v is not ...}
    row = json.dumps(row).encode()
  path = _write(tmp_path / 'qasper_e.jsonl', [SAMPLE, row, {**SAMPLE, '_id': 'a3'}])
  samples, [bad] = read_samples(path)
  assert [x.id for x in samples] == ['a1', 'a3']
  assert re.match(f'{path} line 2: .*{says}', bad)


@pytest.mark.parametrize(('change', 'says'), [
    *BAD, ({'pred': None}, 'pred must be a text: None'),
    *(({name: ...}, f"field '{name}' is missing") for name in PREDICTION),
])
def test_a_bad_prediction_is_named_and_the_others_are_scored(change, says, tmp_path):
  row = change
  if isinstance(change, dict):
    row = {k: v for k, v in {**PREDICTION, **change}.items() if v is not ...}
  path = _write(tmp_path / 'pred_e/model/qasper.jsonl', [PREDICTION, PREDICTION, row])
  scored, [bad] = score_folder(path.parent)
  assert scored == [Scored('qasper', 12, 1.0)] * 2
  assert re.match(f'{path} line 3: .*{says}', bad)


def test_all_fields_that_are_missing_are_named_at_once(tmp_path):
  _, [bad] = read_predictions(_write(tmp_path / 'trec.jsonl', [{'length': 3}]))
  assert bad.endswith("the fields 'pred', 'answers', 'all_classes' are missing")
  _, [bad] = read_samples(_write(tmp_path / 'trec_e.jsonl', [{
      k: v for k, v in SAMPLE.items() if k not in ('context', 'length')}]))
  assert bad.endswith("the fields 'context', 'length' are missing")


def test_a_long_value_is_not_repeated_whole(tmp_path):
  rows = [{**PREDICTION, 'answers': 'x' * 10**6}]
  _, [bad] = read_predictions(_write(tmp_path / 'qasper.jsonl', rows))
  assert len(bad) < 300


@pytest.mark.parametrize('read', [read_samples, read_predictions])
def test_files_that_cannot_be_read(read, tmp_path):
  with pytest.raises(FileNotFoundError, match=r'qasper\.jsonl: no such file'):
    read(tmp_path / 'qasper.jsonl')
  for content in ([], [b'', b'  ']):
    with pytest.raises(ValueError, match=r'qasper\.jsonl is empty'):
      read(_write(tmp_path / 'qasper.jsonl', content))
  for name in ('musique', 'qasper_f'):
    path = _write(tmp_path / f'{name}.jsonl', [SAMPLE])
    with pytest.raises(ValueError, match=f"{name}.jsonl: the task must .*: '{name}'"):
      read(path)


def test_a_folder_of_predictions(tmp_path):
  folder = tmp_path / 'pred_e/model'
  with pytest.raises(FileNotFoundError, match='no such folder'):
    score_folder(folder)
  folder.mkdir(parents=True)
  with pytest.raises(ValueError, match='has no file TASK'):
    score_folder(folder)
  trec = {**PREDICTION, 'pred': 'Food, City', 'answers': ['Food'],
          'all_classes': ['Food', 'City'], 'length': 9000}
  _write(folder / 'trec.jsonl', [trec, {**trec, 'all_classes': None}])
  _write(folder / 'lcc.jsonl', [{**PREDICTION, 'pred': '\n \nAnn'}])
  _write(folder / 'passage_retrieval_en.jsonl', [PREDICTION])
  _write(folder / 'musique.jsonl', [PREDICTION])
  _write(folder / 'result.json', [{}])
  scored, bad = score_folder(folder)
  assert scored == [Scored('lcc', 12, 0.0), Scored('trec', 9000, 0.5)]
  assert [x.split(': ')[0].removeprefix(f'{folder}/') for x in bad] == [
      'musique.jsonl', 'passage_retrieval_en.jsonl line 1', 'trec.jsonl line 2']
  assert score_folder(folder, 'lm_eval')[0][0].score == 1
  assert score_folder(folder, 'strict')[0][1].score == 0


def _sample(task, **fields):
  sample = Sample(task, 'QUESTION', 'CONTEXT', ('x',), 1, (), 'en', 'a')
  return sample._replace(**fields)


def test_prompts_hold_the_context_and_the_question():
  for task in METRICS:
    text = prompt(_sample(task))
    assert text.count('CONTEXT') == 1
    # What is asked is in the instruction or, of lcc, the code itself.
    alone = task in ('gov_report', 'multi_news', 'passage_count', 'lcc')
    assert text.count('QUESTION') == (not alone)
    assert '{' not in text and 'QUESTION' not in prompt(_sample(task, input=''))
  braces = prompt(_sample('triviaqa', context='{a} {input} {0}', input='{}'))
  assert braces.endswith('{a} {input} {0}\n\n{}')


def test_prompts_and_lengths_are_the_published_ones():
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  folder = pathlib.Path(os.environ['VVLEN_SHARED'], 'data/longbench')
  prompts = json.loads((folder / 'dataset2prompt.json').read_text())
  lengths = json.loads((folder / 'dataset2maxlen.json').read_text())
  for task in METRICS:
    expected = prompts[task].replace('{context}', 'CONTEXT')
    assert prompt(_sample(task)) == expected.replace('{input}', 'QUESTION')
    assert answer_tokens(task) == lengths[task]


def test_lengths_of_answers():
  assert [answer_tokens(x) for x in ('hotpotqa', 'gov_report', 'trec')] == [32, 512, 64]
  with pytest.raises(ValueError, match="'musique'"):
    answer_tokens('musique')


@pytest.mark.parametrize(('length', 'most', 'kept'), [
    (5, 5, [0, 1, 2, 3, 4]), (5, 9, [0, 1, 2, 3, 4]), (0, 2, []),
    (6, 4, [0, 1, 4, 5]), (6, 5, [0, 1, 4, 5]), (9, 2, [0, 8]), (9, 3, [0, 8]),
])
def test_the_middle_is_left_out_and_both_ends_are_kept(length, most, kept):
  tokens = keep_ends(np.arange(length, dtype=np.int32), most)
  assert tokens.dtype == np.int32 and tokens.tolist() == kept


def test_less_than_two_tokens_cannot_be_kept():
  for most in (1, 0, -3):
    with pytest.raises(ValueError, match=f'at least 2 tokens must be kept: {most}'):
      keep_ends(np.arange(9), most)
