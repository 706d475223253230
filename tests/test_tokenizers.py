"""Tokenizers turn text into tokens and back; which token begins a document."""

import json
import os
import pathlib
import sys

import numpy as np
import pytest

from tests.conftest import NEEDS_REFERENCE
from tests.llamas import DEEP
from vvlen.tasks.tokenizers import (
    byte_tokenizer,
    check_vocabulary,
    load_tokenizer,
    tokenizer_of,
)

TEXTS = (
    'plain', '', ' Zwölf\r\n\n\tBoxkämpfer  jagen ', '漢字🙂\x00\u2028', '<s>a</s>',
    'a' * 1000,
)


@pytest.mark.parametrize('text', TEXTS)
def test_bytes_and_back(text):
  tokenizer = byte_tokenizer()
  tokens = tokenizer.encode(text)
  assert tokens.dtype == np.int32 and tokens.ndim == 1
  assert tokens.tolist() == [*text.encode()]
  assert tokenizer.decode(tokens) == text
  assert tokenizer.decode([256, *tokens.tolist(), 256]) == text
  tokens[:1] = 0  # its own, not the text's


def test_bytes_beside_the_alphabet():
  tokenizer = byte_tokenizer()
  assert (tokenizer.begin, tokenizer.vocab_size) == (256, 257)
  # Half of a character.
  assert tokenizer.decode([*b'a', *'é'.encode()[:1], *b'b']) == 'a\ufffdb'
  # Words that a model has beside bytes.
  assert tokenizer.decode([259, *b'ab', 263]) == 'ab'


def _file(folder, config=None, special=(), **fields):
  """Writes a tokenizer of a few letters, with <s> and </s>, and returns its folder.

  Args:
    folder: where to write.
    config: of tokenizer_config.json.
    special: pieces that its post-processor puts around the text, '$A'.
    **fields: to replace in tokenizer.json.
  """
  tokenizers = pytest.importorskip('tokenizers')
  vocab = {x: i for i, x in enumerate(('<unk>', '<s>', '</s>', *'▁abcs<>/\n', 'ab'))}
  vocab['▁ab'] = 20  # with a gap before it
  library = tokenizers.Tokenizer(tokenizers.models.BPE(
      vocab, [('a', 'b'), ('▁', 'ab')], unk_token='<unk>'
  ))
  library.add_special_tokens(['<unk>', '<s>', '</s>'])
  library.normalizer = tokenizers.normalizers.Sequence([
      tokenizers.normalizers.Prepend('▁'), tokenizers.normalizers.Replace(' ', '▁')
  ])
  library.decoder = tokenizers.decoders.Sequence([
      tokenizers.decoders.Replace('▁', ' '), tokenizers.decoders.Fuse(),
      tokenizers.decoders.Strip(' ', 1, 0),
  ])
  if special:
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=special, special_tokens=[('<s>', 1), ('</s>', 2)]
    )
  content = json.loads(library.to_str()) | fields
  (folder / 'tokenizer.json').write_text(json.dumps(content))
  if config is not None:
    (folder / 'tokenizer_config.json').write_text(
        config if isinstance(config, str) else json.dumps(config))
  return folder


def test_a_file_of_the_hub_and_back(tmp_path):
  # Its settings for batches of short inputs do not apply to documents.
  folder = _file(
      tmp_path, special=['<s>', '$A', '</s>'],
      truncation={'direction': 'Right', 'max_length': 3, 'strategy': 'LongestFirst',
                  'stride': 0},
      padding={'strategy': {'Fixed': 9}, 'direction': 'Right', 'pad_id': 2,
               'pad_to_multiple_of': None, 'pad_type_id': 0, 'pad_token': '</s>'},
  )
  for path in (folder, str(folder), folder / 'tokenizer.json'):
    tokenizer = load_tokenizer(path)
    assert (tokenizer.begin, tokenizer.vocab_size) == (1, 21)
    tokens = tokenizer.encode('ab ba\nab')
    assert tokens.dtype == np.int32 and tokens.ndim == 1
    assert tokens.tolist() == [20, 3, 5, 4, 11, 12]
    assert tokenizer.decode(tokens) == 'ab ba\nab'
    # Special tokens are not text, and text is not special tokens.
    assert tokenizer.decode(np.array([1, 20, 2])) == 'ab'
    assert tokenizer.encode('<s>a').tolist() == [3, 8, 7, 9, 4]
    assert tokenizer.decode(tokenizer.encode('</s>ab <s>')) == '</s>ab <s>'
    assert tokenizer.encode('').shape == (0,)


BEGINS = {'bos_token': '<s>', 'eos_token': '</s>'}


@pytest.mark.parametrize(('special', 'config', 'begin'), [
    ((), None, None),
    (['<s>', '$A'], None, 1),
    (['</s>', '<s>', '$A', '</s>'], None, 2),
    (['<s>', '$A'], {'bos_token': '</s>'}, 1),
    (['$A', '</s>'], None, None),
    (['$A', '</s>'], BEGINS, 1),
    ((), BEGINS, 1),
    ((), BEGINS | {'add_bos_token': True}, 1),
    ((), BEGINS | {'add_bos_token': False}, None),
    ((), {'bos_token': {'content': '</s>', 'lstrip': False}}, 2),
    ((), {'bos_token': None}, None),
    ((), {'bos_token': '<none>'}, None),
    ((), {}, None),
])
def test_the_token_to_begin_with(tmp_path, special, config, begin):
  assert load_tokenizer(_file(tmp_path, config, special)).begin == begin


@pytest.mark.parametrize('config', ['{"bos_tok', '[]', '{"bos_token": 1}',
                                    '{"bos_token": {}}'])
def test_a_damaged_configuration(tmp_path, config):
  with pytest.raises(ValueError, match=r'tokenizer_config\.json is damaged'):
    load_tokenizer(_file(tmp_path, config))


@pytest.mark.parametrize('damage', [
    lambda x: b'', lambda x: x[:len(x) // 2], lambda x: b'\xff' + x, lambda x: b'{}',
    lambda x: b'[1]', lambda x: x.replace(b'BPE', b'EPB'),
    lambda x: x.replace(b'"vocab"', b'"vocabulary"'),
])
def test_a_damaged_file(tmp_path, damage):
  path = _file(tmp_path) / 'tokenizer.json'
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(ValueError, match='is not a tokenizer') as error:
    load_tokenizer(tmp_path)
  assert str(path) in str(error.value) and '\n' not in str(error.value)


def test_a_text_that_has_no_token_and_there_is_none_for_it(tmp_path):
  library = pytest.importorskip('tokenizers')
  model = library.models.WordLevel({'a': 0, 'b': 1}, unk_token='[UNK]')
  library.Tokenizer(model).save(str(tmp_path / 'tokenizer.json'))
  tokenizer = load_tokenizer(tmp_path)
  assert tokenizer.encode('b').tolist() == [1]
  words = r'tokenizer\.json cannot encode the text, give it an unknown token: .*UNK'
  with pytest.raises(ValueError, match=words):
    tokenizer.encode('c')
  model = library.models.WordLevel({'b': 1}, unk_token='[UNK]')
  library.Tokenizer(model).save(str(tmp_path / 'tokenizer.json'))
  with pytest.raises(ValueError, match=words):
    load_tokenizer(tmp_path)  # which encodes an a
  model = library.models.WordLevel({'a': 1})
  (tmp_path / 'tokenizer_config.json').write_text(DEEP)
  library.Tokenizer(model).save(str(tmp_path / 'tokenizer.json'))
  with pytest.raises(ValueError, match=r'tokenizer_config\.json is damaged'):
    load_tokenizer(tmp_path)


def test_a_character_that_byte_pairs_would_leave_out_is_named(tmp_path):
  library = pytest.importorskip('tokenizers')
  model = library.models.BPE({'a': 0, 'b': 1, 'ab': 2}, [('a', 'b')])
  tokenizer = library.Tokenizer(model)
  tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
  tokenizer.save(str(tmp_path / 'tokenizer.json'))
  encode = load_tokenizer(tmp_path).encode
  assert encode('ab a').tolist() == [2, 0]
  with pytest.raises(ValueError, match=r"tokenizer\.json has no token for 'é', nor"):
    encode('ab aéb')


def test_no_file_and_no_library(tmp_path, monkeypatch):
  pytest.importorskip('tokenizers')
  for path in (tmp_path, tmp_path / 'tokenizer.json', tmp_path / 'none'):
    with pytest.raises(FileNotFoundError, match='no such file'):
      load_tokenizer(path)
  _file(tmp_path)
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  with pytest.raises(ValueError, match='pip install tokenizers'):
    load_tokenizer(tmp_path)


def test_vocabularies_that_do_not_match():
  check_vocabulary(byte_tokenizer(), 257)
  check_vocabulary(byte_tokenizer(), 512)  # rows of a model that stand for nothing
  with pytest.raises(ValueError, match='has 257 tokens, the model 256'):
    check_vocabulary(byte_tokenizer(), 256)


@pytest.fixture(scope='module')
def shared():
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  pytest.importorskip('tokenizers')
  return pathlib.Path(os.environ['VVLEN_SHARED'])


def test_tokens_of_a_real_model_against_the_reference(shared):
  tokenizer = load_tokenizer(shared / 'data' / 'stories260K')
  assert (tokenizer.begin, tokenizer.vocab_size) == (1, 512)
  text = (shared / 'data' / 'big.txt').read_bytes()[:200_000].decode()
  expected = np.load(shared / 'reference' / 'stories260K.npz')['nll_ids'][4028:]
  tokens = tokenizer.encode(text)
  assert expected[0] == tokenizer.begin and len(expected) > 30_000
  np.testing.assert_array_equal(tokens[:len(expected) - 1], expected[1:])
  assert tokenizer.decode(tokens) == text


def test_only_models_of_bytes_do_without_a_tokenizer(tmp_path):
  for size in (257, 264):
    assert tokenizer_of(tmp_path, size).vocab_size == 257
  for size in (200, 256, 265, 32_000):
    with pytest.raises(ValueError, match=f'its vocabulary of {size} is not that of by'):
      tokenizer_of(tmp_path, size)
  folder = _file(tmp_path)
  assert tokenizer_of(folder, 21).vocab_size == 21
  with pytest.raises(ValueError, match='the tokenizer has 21 tokens, the model 20'):
    tokenizer_of(folder, 20)
