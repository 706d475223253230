"""Models of llama2.c become checkpoints: by its forward pass, and a real one."""

import json
import os
import pathlib
import struct

import numpy as np
import pytest

from tests.conftest import NEEDS_REFERENCE
from vvlen.models.llama import llama2c, load_checkpoint
from vvlen.tasks.tokenizers import load_tokenizer

# d, hidden, layers, h, k, V, length: that of the file has −V if not tied.
SIZES = (12, 10, 2, 3, 1, 7, 9)
_LAYER = ('norm', 'q', 'k', 'v', 'o', 'mlp_norm', 'w1', 'w2', 'w3')


def _shapes(sizes):
  d, hidden, layers, heads, key_heads, vocab, length = sizes
  w = d // heads
  of_layer = ((d,), (heads * w, d), (key_heads * w, d), (key_heads * w, d), (d, d),
              (d,), (hidden, d), (d, hidden), (hidden, d))
  return {'embedding': (abs(vocab), d),
          **{name: (layers, *shape)
             for name, shape in zip(_LAYER, of_layer, strict=True)},
          'final': (d,), 'cos': (length, w // 2), 'sin': (length, w // 2),
          **({'head': (abs(vocab), d)} if vocab < 0 else {})}


def _written(path, sizes, weights):
  numbers = [weights[name].astype('<f4').tobytes() for name in _shapes(sizes)]
  path.write_bytes(struct.pack('<7i', *sizes) + b''.join(numbers))
  return path


def _forward(sizes, weights, tokens):
  """The forward pass of run.c of llama2.c, token by token, in float64."""
  d, _, layers, heads, key_heads, *_ = sizes
  w = d // heads
  norm = lambda x, scale: x / np.sqrt(np.mean(x * x) + 1e-5) * scale
  cache = [([], []) for _ in range(layers)]
  logits = []
  for position, token in enumerate(tokens):
    x = weights['embedding'][token].astype(float)
    for layer in range(layers):
      own = {name: weights[name][layer].astype(float) for name in _LAYER}
      z = norm(x, own['norm'])
      q, k, v = own['q'] @ z, own['k'] @ z, own['v'] @ z
      for vector in (q, k):
        for i in range(0, len(vector), 2):  # neighbours are rotated with each other
          angle = position / 10000.0 ** ((i % w) / w)
          a, b = vector[i], vector[i + 1]
          vector[i] = a * np.cos(angle) - b * np.sin(angle)
          vector[i + 1] = a * np.sin(angle) + b * np.cos(angle)
      cache[layer][0].append(k)
      cache[layer][1].append(v)
      out = np.zeros(d)
      for head in range(heads):
        at = slice(head * w, (head + 1) * w)
        shared = head // (heads // key_heads)
        there = slice(shared * w, (shared + 1) * w)
        scores = np.array([q[at] @ k[there] for k in cache[layer][0]]) / np.sqrt(w)
        attention = np.exp(scores - scores.max())
        attention /= attention.sum()
        out[at] = sum(a * v[there]
                      for a, v in zip(attention, cache[layer][1], strict=True))
      x = x + own['o'] @ out
      z = norm(x, own['mlp_norm'])
      gate = own['w1'] @ z
      x = x + own['w2'] @ (gate / (1 + np.exp(-gate)) * (own['w3'] @ z))
    logits.append(weights.get('head', weights['embedding']) @ norm(
        x, weights['final'].astype(float)))
  return np.array(logits)


@pytest.mark.parametrize('tied', [True, False])
def test_a_model_predicts_as_in_llama2c(rng, tmp_path, tied):
  sizes = (*SIZES[:5], SIZES[5] if tied else -SIZES[5], SIZES[6])
  weights = {name: rng.normal(size=shape) for name, shape in _shapes(sizes).items()}
  model, variables = llama2c.read_model(_written(tmp_path / 'm.bin', sizes, weights))
  assert (model.max_length, model.tied, model.num_key_heads) == (9, tied, 1)
  tokens = rng.integers(7, size=8)
  found = model.apply(variables, tokens[None].astype(np.int32))[0]
  np.testing.assert_allclose(
      found, _forward(sizes, weights, tokens), rtol=1e-3, atol=1e-3)


def _tokenizer_file(path, pieces):
  """Writes pieces as tokenizer.py of llama2.c does; scores fall after the bytes."""
  shown = [{'<s>': '\n<s>\n', '</s>': '\n</s>\n'}.get(x, x) for x in pieces]
  coded = [x.replace('▁', ' ').encode() for x in shown]
  path.write_bytes(struct.pack('<i', max(map(len, coded))) + b''.join(
      struct.pack('<fi', -max(0, i - 259), len(x)) + x for i, x in enumerate(coded)))
  return path


@pytest.mark.skipif('VVLEN_SHARED' not in os.environ, reason=NEEDS_REFERENCE)
def test_the_real_model_and_its_tokenizer(run_here, tmp_path):
  source = pathlib.Path(os.environ['VVLEN_SHARED'], 'data/stories260K')
  known, own = load_checkpoint(source)
  sizes = (64, 172, 5, 8, 4, 512, 512)
  layers = [own['params'][f'layer_{i}'] for i in range(5)]
  stacked = lambda name, leaf='kernel': np.stack(
      [np.asarray(layer[name][leaf]).T for layer in layers])

  def pairs(weight, heads):  # component i and i + w/2 of a head become neighbours
    return weight.reshape(5, heads, 2, -1, 64).swapaxes(2, 3).reshape(weight.shape)

  weights = {
      'embedding': np.asarray(own['params']['embedding']),
      'norm': stacked('attention_norm', 'scale'), 'q': pairs(stacked('query'), 8),
      'k': pairs(stacked('key'), 4), 'v': stacked('value'), 'o': stacked('output'),
      'mlp_norm': stacked('mlp_norm', 'scale'), 'w1': stacked('gate'),
      'w2': stacked('down'), 'w3': stacked('up'),
      'final': np.asarray(own['params']['final_norm']['scale']),
      'cos': np.zeros((512, 4)), 'sin': np.zeros((512, 4))}
  expected = json.loads((source / 'tokenizer.json').read_text())
  folder = tmp_path / 'stories260K'
  arguments = (_written(tmp_path / 'stories260K.bin', sizes, weights),
               _tokenizer_file(tmp_path / 'tok512.bin', expected['model']['vocab']))
  done = run_here('import_llama2c', *map(str, arguments), str(folder))
  assert done.returncode == 0, done.stderr
  assert done.stdout == (
      f'{folder}: 5 layers of width 64, 512 tokens, a vocabulary of 512.\n')
  model, variables = load_checkpoint(folder)
  assert model == known
  same = lambda a, b: np.testing.assert_array_equal(a, b)
  same(variables['params']['embedding'], own['params']['embedding'])
  for i, layer in enumerate(layers):
    for name, leaves in layer.items():
      for leaf, x in leaves.items():
        same(variables['params'][f'layer_{i}'][name][leaf], x)
  made = json.loads((folder / 'tokenizer.json').read_text())
  assert made == expected
  text = 'Once upon a time, there was a "naïve" dragon.\n\n  42 €'
  tokenizer = load_tokenizer(folder)
  same(tokenizer.encode(text), load_tokenizer(source).encode(text))
  assert tokenizer.begin == 1 and tokenizer.decode(tokenizer.encode(text)) == text
  again = run_here('import_llama2c', *map(str, arguments), str(folder))
  assert (again.returncode, again.stderr) == (2, f'Error: {folder} is not empty\n')


def test_other_files_are_refused_in_one_line(run_here, rng, tmp_path):
  weights = {name: rng.normal(size=shape) for name, shape in _shapes(SIZES).items()}
  good = _written(tmp_path / 'm.bin', SIZES, weights)
  pieces = ['<unk>', '<s>', '</s>', 'a', 'b', 'ab', '▁']
  tokenizer = _tokenizer_file(tmp_path / 't.bin', pieces)
  merges = llama2c.read_tokenizer(tokenizer, 7)['model']['merges']
  assert merges == [['a', 'b']]
  cut, odd, text = (tmp_path / name for name in ('cut.bin', 'odd.bin', 'text.bin'))
  cut.write_bytes(good.read_bytes()[:-4])
  odd.write_bytes(struct.pack('<7i', 12, 10, 2, 5, 1, 7, 9) + good.read_bytes()[28:])
  text.write_bytes(b'hello')
  for path, words in (cut, 'and a model with its 7 first numbers'), (
      odd, 'its numbers are'), (text, 'is not a .bin file of llama2.c, version 0'):
    with pytest.raises(ValueError, match=words):
      llama2c.read_model(path)
  short = tmp_path / 'short.bin'
  short.write_bytes(tokenizer.read_bytes()[:-1])
  for path, size in (tokenizer, 8), (short, 7), (text, 7):
    with pytest.raises(ValueError, match=f'of a tokenizer of llama2.c with {size} '):
      llama2c.read_tokenizer(path, size)
  folder = tmp_path / 'new'
  for arguments in (text, tokenizer), (good, short), (good, tmp_path / 'nowhere'):
    done = run_here('import_llama2c', *map(str, arguments), str(folder))
    assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr
    assert not folder.exists()
