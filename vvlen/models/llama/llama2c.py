"""Reads models of llama2.c, such as karpathy/tinyllamas on the Hugging Face Hub.

A .bin file of weights, its version 0 (`legacy_export` in export.py of
github.com/karpathy/llama2.c), has 7 numbers, int32

  width, mlp_width, num_layers, num_heads, num_key_heads, V, max_length

with −V if the output embedding is another than that of the input, and then, float32,
the embedding [V, d]; of all layers, one kind after the other, the scales of attention's
norm, W_Q, W_K, W_V, W_O, the scales of the MLP's norm, W_G, W_D, W_U; the scales of the
final norm; cosines and sines, which are not read; and the output embedding, if it is
another. Matrices are [outputs, inputs].

It rotates components 2i and 2i + 1 of queries and keys with each other, where `Llama`
rotates i and i + w/2. So the rows of each head of W_Q and W_K change their places.

A .bin file of a tokenizer has the largest number of bytes of a token, int32, and of
each token its score, float32, the number of its bytes, int32, and these, with a space
in place of ▁. Where two merges are possible, the one with the higher score comes first.
"""

from collections.abc import Mapping
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from vvlen.models.llama.model import Llama

_HEADER = 7
_SPECIAL = ('<unk>', '<s>', '</s>')
_SPACE = '▁'


def read_model(path: epath.PathLike) -> tuple[Llama, dict[str, Any]]:
  """Returns the model and the variables in a .bin file of weights, float32.

  Raises:
    ValueError: if the file is not of version 0.
    OSError: if it cannot be read.
  """
  data = epath.Path(path).read_bytes()
  if len(data) < 4 * _HEADER or len(data) % 4:
    raise ValueError(f'{path} is not a .bin file of llama2.c, version 0')
  numbers = np.frombuffer(data, '<i4', _HEADER).astype(int)
  width, mlp_width, layers, heads, key_heads, vocab, length = numbers.tolist()
  if min(width, mlp_width, layers, heads, key_heads, abs(vocab), length) < 1 or (
      width % heads or heads % key_heads or width // heads % 2):
    raise ValueError(f'{path} is not a .bin file of llama2.c, version 0: its numbers '
                     f'are {numbers.tolist()}')
  tied, vocab, head = vocab > 0, abs(vocab), width // heads
  kinds = {  # in the order of the file
      'attention_norm/scale': (width,), 'query/kernel': (heads * head, width),
      'key/kernel': (key_heads * head, width),
      'value/kernel': (key_heads * head, width),
      'output/kernel': (width, heads * head), 'mlp_norm/scale': (width,),
      'gate/kernel': (mlp_width, width), 'down/kernel': (width, mlp_width),
      'up/kernel': (mlp_width, width)}
  shapes = {'embedding': (vocab, width),
            **{kind: (layers, *shape) for kind, shape in kinds.items()},
            'final_norm': (width,), 'rotations': (2, length, head // 2)}
  if not tied:
    shapes['output_embedding'] = (vocab, width)
  values = np.frombuffer(data, '<f4', offset=4 * _HEADER)
  sizes = [int(np.prod(shape)) for shape in shapes.values()]
  if len(values) != sum(sizes):
    raise ValueError(f'{path} has {len(values):,} numbers, and a model with its '
                     f'{_HEADER} first numbers {sum(sizes):,}')
  parts = np.split(values, np.cumsum(sizes)[:-1])
  found = {name: part.reshape(shape).astype(np.float32)
           for (name, shape), part in zip(shapes.items(), parts, strict=True)}
  for name, count in ('query/kernel', heads), ('key/kernel', key_heads):
    found[name] = _halves(found[name], count)
  params: dict[str, Any] = {
      'embedding': found['embedding'], 'final_norm': {'scale': found['final_norm']}}
  if not tied:
    params['output_embedding'] = found['output_embedding']
  for layer in range(layers):
    params[f'layer_{layer}'] = of_layer = {}
    for kind in kinds:
      module, _, leaf = kind.partition('/')
      of_layer[module] = {leaf: found[kind][layer].T}
  model = Llama(
      vocab_size=vocab, width=width, mlp_width=mlp_width, num_layers=layers,
      num_heads=heads, num_key_heads=key_heads, max_length=length, tied=tied)
  return model, {'params': jax.tree.map(jnp.asarray, params)}


def read_tokenizer(path: epath.PathLike, vocab_size: int) -> dict[str, Any]:
  """Returns the content of a tokenizer.json for a tokenizer's .bin file.

  Args:
    path: of the file.
    vocab_size: V of the model.

  Raises:
    ValueError: if the file is not such a tokenizer with V tokens.
    OSError: if it cannot be read.
  """
  data = epath.Path(path).read_bytes()
  scores: dict[str, float] = {}
  at, size = 4, len(data)
  while at + 8 <= size:
    score = float(np.frombuffer(data, '<f4', 1, at)[0])
    length = int(np.frombuffer(data, '<i4', 1, at + 4)[0])
    piece = data[at + 8 : at + 8 + length]
    at += 8 + length
    if length < 0 or len(piece) < length:
      break
    place = len(scores)
    name = (_SPECIAL[place] if place < len(_SPECIAL)
            else piece.decode(errors='replace').replace(' ', _SPACE))
    scores[name] = score
  if at != size or len(scores) != vocab_size:
    raise ValueError(f'{path} is not a .bin file of a tokenizer of llama2.c with '
                     f'{vocab_size:,} tokens')
  return _tokenizer(scores)


def _halves(weight, heads):
  """Puts components 2i of each head first, then 2i + 1: [layers, h w, d]."""
  layers, _, width = weight.shape
  pairs = weight.reshape(layers, heads, -1, 2, width)
  return pairs.swapaxes(2, 3).reshape(weight.shape)


def _tokenizer(scores: Mapping[str, float]) -> dict[str, Any]:
  """Returns a tokenizer.json of byte-pair encoding, as transformers writes Llama's.

  Args:
    scores: of tokens, in the order of their numbers.
  """
  numbers = {piece: number for number, piece in enumerate(scores)}
  merges = [
      (-scores[piece], numbers[piece], i, [piece[:i], piece[i:]])
      for piece in scores for i in range(1, len(piece))
      if piece[:i] in numbers and piece[i:] in numbers]
  first = {'SpecialToken': {'id': '<s>', 'type_id': 0}}
  text = lambda name, number: {'Sequence': {'id': name, 'type_id': number}}
  replaced = lambda old, new: {
      'type': 'Replace', 'pattern': {'String': old}, 'content': new}
  return {
      'version': '1.0', 'truncation': None, 'padding': None,
      'added_tokens': [
          {'id': number, 'content': token, 'single_word': False, 'lstrip': False,
           'rstrip': False, 'normalized': False, 'special': True}
          for number, token in enumerate(_SPECIAL)],
      'normalizer': {'type': 'Sequence', 'normalizers': [
          {'type': 'Prepend', 'prepend': _SPACE}, replaced(' ', _SPACE)]},
      'pre_tokenizer': None,
      'post_processor': {
          'type': 'TemplateProcessing', 'single': [first, text('A', 0)],
          'pair': [first, text('A', 0), first, text('B', 1)],
          'special_tokens': {'<s>': {'id': '<s>', 'ids': [1], 'tokens': ['<s>']}}},
      'decoder': {'type': 'Sequence', 'decoders': [
          replaced(_SPACE, ' '), {'type': 'ByteFallback'}, {'type': 'Fuse'},
          {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]},
      'model': {
          'type': 'BPE', 'dropout': None, 'unk_token': '<unk>',
          'continuing_subword_prefix': None, 'end_of_word_suffix': None,
          'fuse_unk': True, 'byte_fallback': True, 'ignore_merges': False,
          'vocab': numbers, 'merges': [pair for *_, pair in sorted(merges)]},
  }
