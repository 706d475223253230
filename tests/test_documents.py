"""What counts as a document, and how documents are split."""

import collections
import hashlib
import json
import os
import sysconfig

from etils.epath import testing
import numpy as np
import pytest

from vvlen.tasks.documents import fingerprint, read_documents, split, standard_library


def _write(folder, files):
  for name, content in files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return folder


def _jsonl(*documents):
  return ''.join(json.dumps({'text': x, 'id': 1}) + '\n' for x in documents)


def test_a_file_is_a_document_as_it_stands(tmp_path):
  text = ' Zwölf\r\n\n\tBoxkämpfer\u2028\x0c🙂 \n\n'
  _write(tmp_path, {'a.txt': text, 'b.md': '\ufeffmarked', '.c': 'asked for by name'})
  paths = [str(tmp_path / 'b.md'), tmp_path / 'a.txt', tmp_path / '.c']
  assert read_documents(paths) == ['marked', text, 'asked for by name']


@pytest.mark.parametrize('line_end', ['\n', '\r\n', '\n \n\n'])
def test_a_jsonl_file_has_a_document_a_line(tmp_path, line_end):
  # Line separators within a string, as JSON may hold them, end no line.
  lines = ['{"text": "one\\n\\r\\n two"}', '{"id": 2, "text": "a\u2028b\u0085c"}',
           '{"text": " \\n"}', '{"text": "🙂 \\ud83d\\ude42"}']
  path = _write(tmp_path, {'x.jsonl': '\ufeff' + line_end.join(lines)}) / 'x.jsonl'
  assert read_documents([path]) == ['one\n\r\n two', 'a\u2028b\u0085c', '🙂 🙂']


FOLDER = {
    'b.txt': '2', 'a/z.txt': '1', 'a.txt': '0', 'c/d/e': '4', 'blank.txt': ' \n',
    'b.txt.jsonl': _jsonl('3'), '.hidden': 'x', '.git/x.txt': 'x', 'c/.d/x.txt': 'x',
}


def test_a_folder_has_all_files_below_sorted(tmp_path):
  # Its own name may be hidden.
  folder = _write(tmp_path / '.cache', FOLDER)
  assert read_documents([folder]) == ['0', '1', '2', '3', '4']
  assert read_documents([folder / 'c', folder / 'a.txt']) == ['4', '0']


def test_folders_of_a_bucket(tmp_path):
  _write(tmp_path, FOLDER)

  def mapped(function, path, *rest):
    path = os.fspath(path)
    assert path.startswith('gs://bucket')
    return function(path.replace('gs://bucket', str(tmp_path)), *rest)

  names = ('open', 'exists', 'isdir', 'listdir')
  with testing.mock_epath(**dict.fromkeys(names, mapped)):
    assert read_documents(['gs://bucket']) == ['0', '1', '2', '3', '4']
    assert read_documents(['gs://bucket/a.txt']) == ['0']
    with pytest.raises(FileNotFoundError, match='gs://bucket/none'):
      read_documents(['gs://bucket/none'])


@pytest.mark.parametrize(('name', 'content', 'says'), [
    ('a.txt', '', 'a.txt has no text'),
    ('a.txt', ' \r\n\t\n', 'a.txt has no text'),
    ('a.txt', '\ufeff', 'a.txt has no text'),
    ('a.jsonl', '\n\n', 'a.jsonl has no text'),
    ('a.jsonl', _jsonl('', ' \n'), 'a.jsonl has no text'),
    ('a.png', b'\x89PNG\r\n\x1a\n\0\0', 'a.png is not a text file: byte 8 is NUL'),
    ('a.txt', 'wide'.encode('utf-16-le'), 'a.txt is not a text file: byte 1 is NUL'),
    ('a.txt', 'Zwölf'.encode('latin-1'), 'a.txt is not UTF-8 at byte 2'),
    ('a.txt', '\ufeffZwölf'.encode()[:6], 'a.txt is not UTF-8 at byte 5'),
    ('a.jsonl', _jsonl('x') + '\n{"text": "cut', 'a.jsonl line 3 is not JSON'),
    ('a.jsonl', '[' * 100_000, 'a.jsonl line 1 is not JSON'),
    ('a.jsonl', '{"content": "x"}', 'a.jsonl line 1 has no string "text"'),
    ('a.jsonl', _jsonl('x', 7), 'a.jsonl line 2 has no string "text"'),
    ('a.jsonl', _jsonl('x') + '"text"', 'a.jsonl line 2 has no string "text"'),
    ('a.jsonl', _jsonl('x', '\ud83d!'), 'a.jsonl line 2 has half a character'),
])
def test_bad_files(tmp_path, name, content, says):
  _write(tmp_path, {'good.txt': 'text', f'folder/{name}': content})
  path = tmp_path / 'folder' / name
  # In its folder it is as bad.
  for bad in (path, path.parent):
    says = says if bad == path else says.replace(f'{name} has no text', 'has no text')
    with pytest.raises(ValueError, match=says) as error:
      read_documents([tmp_path / 'good.txt', bad])
    assert str(bad) in str(error.value) and '\n' not in str(error.value)


def test_nothing_there(tmp_path):
  with pytest.raises(FileNotFoundError, match=f'{tmp_path}/none: no such'):
    read_documents([tmp_path / 'none'])
  (tmp_path / 'folder').mkdir()
  for files in ({}, {'folder/.hidden': 'text'}):
    with pytest.raises(ValueError, match='folder has no text'):
      read_documents([_write(tmp_path, files) / 'folder'])


def test_the_standard_library_is_large_and_the_same_again():
  documents = standard_library()
  assert sum(map(len, documents)) > 1_000_000
  assert all(isinstance(x, str) and x.strip() for x in documents)
  assert standard_library() == documents
  said = [x for x in documents if 'JSON (JavaScript Object Notation) <' in x[:200]]
  assert len(said) == 1


def test_what_is_of_the_standard_library(tmp_path, monkeypatch):
  files = {
      'json/__init__.py': '2', 'abc.py': '0', 'test.py': '4', 'json.py': '1',
      'marked.py': '\ufeff3', 'empty.py': '\n', 'latin.py': b'# \xe9', 'a.zip': b'\0',
      'README.txt': 'x',
  }
  left_out = (
      'site-packages/numpy', 'dist-packages', 'test', 'json/tests', 'idlelib',
      'lib2to3', '__pycache__', 'config-3.11-x86_64-linux-gnu', '.hidden',
  )
  _write(tmp_path, files | {f'{folder}/x.py': 'x' for folder in left_out})
  monkeypatch.setattr(sysconfig, 'get_paths', lambda: {'stdlib': str(tmp_path)})
  assert standard_library() == ['0', '1', '2', '3', '4']
  (tmp_path / 'bare').mkdir()
  for name in ('bare', 'a.zip', 'none'):
    paths = {'stdlib': str(tmp_path / name)}
    monkeypatch.setattr(sysconfig, 'get_paths', lambda paths=paths: paths)
    with pytest.raises(ValueError, match=f'{name} has no sources of Python'):
      standard_library()


def test_a_fingerprint_tells_texts_orders_and_borders_apart():
  different = (
      ['ab', 'c'], ['a', 'bc'], ['abc'], ['c', 'ab'], ['ab', 'c', ''], ['', 'ab', 'c'],
      ['ab', 'd'], [], ['ab\0\0\0\0\0\0\0\0c'], ['ab\x01\0\0\0\0\0\0\0c'], ['äb', 'c'],
  )
  prints = [fingerprint(x) for x in different]
  assert len(set(prints)) == len(different)
  assert prints == [fingerprint(tuple(x)) for x in different]
  # As it will be in years.
  by_hand = b'\x03' + bytes(7) + 'äb'.encode() + b'\x01' + bytes(7) + b'c'
  assert prints[-1] == hashlib.sha256(by_hand).hexdigest()


@pytest.mark.parametrize('fraction', [0.02, 0.3, 0.5, 0.97])
@pytest.mark.parametrize(
    'sizes', [[10] * 50, [1000, 5, 7], [80, 90, 95], [1, 1], range(90)])
def test_documents_are_split_whole(sizes, fraction):
  documents = [f'{i:03}'[-n:] + 'x' * (n - 3) for i, n in enumerate(sizes) if n]
  for seed in range(3):
    training, held_out = split(documents, fraction, seed)
    assert training and held_out
    assert (collections.Counter(training + held_out)
            == collections.Counter(documents))
    held, most = sum(map(len, held_out)), fraction * sum(map(len, documents))
    # Only what would not have fitted is left, or nothing fitted.
    assert held <= most or held == min(map(len, documents))
    assert held > most or min(map(len, training)) > most - held - 1
    assert split(tuple(documents), fraction, seed) == (training, held_out)


def test_which_documents_are_held_out_is_random():
  documents = [f'{i:02}' for i in range(20)]
  splits = [split(documents, 0.25, seed) for seed in range(400)]
  assert all(len(held_out) == 5 for _, held_out in splits)
  times = collections.Counter(x for _, held_out in splits for x in held_out)
  np.testing.assert_allclose([times[x] for x in documents], 100, atol=5 * 75**0.5)


def test_a_long_document_never_is_what_is_held_out():
  documents = ['x' * 10_000, 'short', 'another short one']
  for seed in range(8):
    training, held_out = split(documents, 0.1, seed)
    assert training == documents[:1] and sorted(held_out) == sorted(documents[1:])


@pytest.mark.parametrize('line', ['a line\n', 'a line\r\n', 'x\n', '0' * 30 + '\n'])
@pytest.mark.parametrize('fraction', [0.1, 0.5, 0.8])
def test_one_document_is_cut_at_a_line_break(line, fraction):
  text = line * 40
  (first,), (second,) = split([text], fraction, seed=0)
  assert first + second == text
  assert first.endswith('\n') and second.startswith(line)
  assert abs(len(second) - fraction * len(text)) <= len(line) / 2 + 0.5


def test_one_document_is_cut_between_lines_only_where_near():
  for text in ('x' * 1000, 'title\n' + 'x' * 994, 'x' * 999 + '\n'):
    (first,), (second,) = split([text], 0.2, seed=0)
    assert first + second == text and len(second) == 200
  # The nearest of two, before and after.
  for breaks, at in (((750, 830), 831), ((780, 830), 781)):
    text = ''.join('\n' if i in breaks else 'x' for i in range(1000))
    (first,), _ = split([text], 0.2, seed=0)
    assert len(first) == at


@pytest.mark.parametrize(('documents', 'fraction', 'says'), [
    (['a', 'b'], 0.0, 'between 0 and 1: 0.0'),
    (['a', 'b'], 1.0, 'between 0 and 1: 1.0'),
    (['a', 'b'], -0.1, 'between 0 and 1: -0.1'),
    (['a', 'b'], float('nan'), 'between 0 and 1: nan'),
    ([], 0.1, 'no training text'),
    (['a'], 0.1, 'no held-out text'),
    ([''], 0.5, 'no training text'),
    (['text\n' + ' ' * 5], 0.5, 'no held-out text .* 1 documents, 10 characters'),
    (['', 'text'], 0.5, 'no held-out text'),
    (['text', '    '], 0.5, 'no (held-out|training) text'),
])
def test_a_part_may_not_be_empty(documents, fraction, says):
  with pytest.raises(ValueError, match=says) as error:
    split(documents, fraction, seed=0)
  assert '\n' not in str(error.value)
