"""Texts that are read piece by piece: the same tokens and blocks, whatever is held."""

import json
import multiprocessing
import os

import numpy as np
import pytest

from configs import language_model
from experiments.language_model import training
from vvlen.tasks import documents, text, tokens
from vvlen.tasks.tokenizers import byte_tokenizer
from vvlen.tasks.tokens import Blocks, Documents, Encoded, Stream

_BYTES = byte_tokenizer()
_TEXTS = ['zwölf', '', 'a', 'boxkämpfer jagen', 'x' * 23, 'viktor']


def _documents(order=(3, 0, 5, 4, 2, 1)):
  return Documents(tokens.encode(_TEXTS, _BYTES), np.array(order))


def _plain(order=(3, 0, 5, 4, 2, 1)):
  return [_BYTES.encode(_TEXTS[i]) for i in order]


@pytest.mark.parametrize('length', [1, 2, 5, 7, 12])
@pytest.mark.parametrize('begin', [None, 256])
@pytest.mark.parametrize('within', [False, True])
def test_blocks_read_one_by_one_are_those_of_the_whole_text(length, begin, within):
  expected = text.pack(_plain(), length, begin=begin, within_documents=within)
  found = Blocks(_documents(), length, begin=begin, within_documents=within)
  assert len(found) == len(expected)
  np.testing.assert_array_equal([found[i] for i in range(len(found))], expected)
  assert found[0].dtype == expected.dtype == np.int32
  with pytest.raises(IndexError):
    found[len(found)]
  batches = [[*text.batches(blocks, 1, seed=3, num_epochs=2)]
             for blocks in (found, expected)]
  np.testing.assert_array_equal(*batches)


@pytest.mark.parametrize('within', [False, True])
def test_too_short_texts_are_refused_as_the_whole_text_is(within):
  said = []
  for make in (lambda **x: text.pack(_plain(), 99, **x),
               lambda **x: Blocks(_documents(), 99, **x)):
    with pytest.raises(ValueError, match='fewer than one window of 99') as error:
      make(begin=256, within_documents=within)
    said.append(str(error.value))
  assert said[0] == said[1]


@pytest.mark.parametrize('begin', [None, 256])
def test_a_slice_of_a_stream_is_that_of_the_joined_documents(begin):
  first = [] if begin is None else [begin]
  whole = np.concatenate([[*first, *x] for x in _plain()]).astype(np.int32)
  stream = Stream(_documents(), begin)
  assert len(stream) == len(whole)
  for start in range(len(whole) + 1):
    for stop in range(start, len(whole) + 2):
      np.testing.assert_array_equal(stream[start:stop], whole[start:stop])
  np.testing.assert_array_equal(np.asarray(stream), whole)


def test_documents_are_those_that_were_encoded():
  found = _documents()
  for one, expected in zip(found, _plain(), strict=True):
    np.testing.assert_array_equal(one, expected)
  assert found.lengths.tolist() == [len(x) for x in _plain()]
  assert [x.tolist() for x in found[1:3]] == [x.tolist() for x in _plain()[1:3]]


def _raising():
  raise AssertionError('encoded again')


def _equal(found, expected):
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_array_equal(one, other)
    assert one.dtype == other.dtype


def test_a_file_is_written_once_and_has_the_tokens(tmp_path):
  path = tmp_path / 'cache/text.tokens'
  wide = _BYTES._replace(vocab_size=2**17)
  for tokenizer, dtype in ((_BYTES, np.uint16), (wide, np.int32)):
    expected = tokens.encode(_TEXTS, tokenizer)
    _equal(tokens.encode_once(lambda: _TEXTS, tokenizer, path), expected)
    found = tokens.encode_once(_raising, tokenizer, path)
    _equal(found, expected)
    assert found.tokens.dtype == dtype and isinstance(found.tokens, np.memmap)
    path.unlink()
  assert sorted(x.name for x in path.parent.iterdir()) == ['text.lock']


@pytest.mark.parametrize('damage', [
    lambda content: b'', lambda content: content[:-8], lambda content: content[8:],
    lambda content: content[:-1], lambda content: content + bytes(8),
    lambda content: content[:16] + content[24:], lambda content: bytes(len(content)),
    lambda content: content[:-24] + b'\xff' * 7 + content[-17:]])
def test_a_file_that_is_not_complete_is_written_again(tmp_path, damage):
  path = tmp_path / 'text.tokens'
  expected = tokens.encode_once(lambda: _TEXTS, _BYTES, path)
  expected = Encoded(*(x.copy() for x in expected))
  whole = path.read_bytes()
  path.unlink()
  path.write_bytes(damage(whole))
  _equal(tokens.encode_once(lambda: _TEXTS, _BYTES, path), expected)
  assert path.read_bytes() == whole


def test_an_error_leaves_no_file(tmp_path):
  def failing():
    yield 'text'
    raise ValueError('bad line')

  # What a killed process left is in nobody's way.
  (tmp_path / 'text.tmp').write_text('half')
  with pytest.raises(ValueError, match='bad line'):
    tokens.encode_once(failing, _BYTES, tmp_path / 'text.tokens')
  assert [x.name for x in tmp_path.iterdir()] == ['text.lock']


def _encode(path, log):
  def read():
    with open(log, 'a') as file:
      file.write(f'{os.getpid()}\n')
    yield from ['one', 'two'] * 1000

  assert len(tokens.encode_once(read, _BYTES, path).tokens) == 6000


@pytest.mark.slow
def test_of_two_processes_one_writes(tmp_path):
  start = multiprocessing.get_context('spawn').Process
  workers = [start(target=_encode, args=(tmp_path / 'x.tokens', tmp_path / 'log'))
             for _ in range(2)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join(120)
  assert [worker.exitcode for worker in workers] == [0, 0]
  assert len((tmp_path / 'log').read_text().split()) == 1


@pytest.mark.parametrize('name', ['many.jsonl', 'one.txt'])
def test_a_long_text_is_the_same_from_its_file(tmp_path, monkeypatch, name):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  lines = [f'line {i} of zwölf\n' * (i % 7 + 1) for i in range(200)]
  if name == 'many.jsonl':
    content = ''.join(json.dumps({'text': x}) + '\n' for x in lines)
  else:
    content = ''.join(lines)
  (tmp_path / name).write_text(content)
  config = language_model.get_config('smoke')
  config.text.path = str(tmp_path / name)
  short = training.read_text(config)
  assert not (tmp_path / 'cache').exists()
  monkeypatch.setattr(training, '_LONG', 1)
  for _ in range(2):
    long = training.read_text(config)
    assert long.facts == short.facts
    np.testing.assert_array_equal(long.held_out[:], short.held_out[:])
    assert [x.tolist() for x in long.documents] == [
        x.tolist() for x in short.documents]
  assert len(list((tmp_path / 'cache').rglob('*.tokens'))) == 1
  # As it was when all documents were held in memory.
  whole = documents.read_documents([config.text.path])
  train, held_out = documents.split(whole, config.text.held_out, config.seed)
  assert short.facts['text_sha256'] == documents.fingerprint(whole)
  assert [x.tolist() for x in short.documents] == [
      _BYTES.encode(x).tolist() for x in train]
  joined = [y for x in held_out for y in (256, *_BYTES.encode(x).tolist())]
  assert short.held_out[:].tolist() == joined


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
  config = language_model.get_config('smoke')
  config.text.path = str(tmp_path / 'text.jsonl')
  line = json.dumps({'text': 'a line of text'}) + '\n'
  (tmp_path / 'text.jsonl').write_text(line * 400)
  real = documents.survey

  def survey(found):
    result = real(found)
    (tmp_path / 'text.jsonl').write_text(line * 401)
    return result

  monkeypatch.setattr(documents, 'survey', survey)
  with pytest.raises(ValueError, match='jsonl changed while it was read'):
    training.read_text(config)
