"""Loss by length of context: models whose losses are known, and the reference."""

import functools
import itertools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from tests.conftest import NEEDS_REFERENCE
from tests.llamas import llama, V, variables_of
from vvlen.evaluation.perplexity import block_nll, nll_by_position, sliding_nll
from vvlen.evaluation.programs import program_of
from vvlen.models.llama import load_checkpoint
from vvlen.models.rope import Dynamic, Linear, Llama3, Rope, Yarn
from vvlen.objectives.cross_entropy import token_cross_entropy
from vvlen.sharding import mesh as partition

W = 5  # words of the models here


def _bigram(seed=0):
  """Returns a model that looks at one token, and its losses [W, W]: of y after x."""
  table = np.random.default_rng(seed).normal(size=(W, W)).astype(np.float32)
  losses = np.log(np.exp(table.astype(float)).sum(1, keepdims=True)) - table
  return lambda tokens: jnp.asarray(table)[tokens], losses


def _sure(position):
  """The logit that 0 comes next, by position."""
  return 0.3 * position


def _by_place(tokens):
  """A model that is surer of the token 0 the more tokens it has seen."""
  sure = _sure(jnp.arange(tokens.shape[1]))
  logits = jnp.zeros((*tokens.shape, W))
  return logits.at[..., 0].set(jnp.broadcast_to(sure[None], tokens.shape))


def _losses_by_place(length):
  return np.log1p((W - 1) * np.exp(-_sure(np.arange(length - 1))))


@pytest.mark.parametrize('length, tokens_at_once', [(2, 10), (4, 12), (7, 1), (23, 99)])
def test_blocks_do_not_overlap_and_score_all_but_their_first(length, tokens_at_once):
  model, losses = _bigram()
  text = np.random.default_rng(1).integers(0, W, 23)
  blocks = [text[i : i + length] for i in range(0, 23 - length + 1, length)]
  expected = np.mean([losses[b[:-1], b[1:]] for b in blocks])
  found = block_nll(model, text, length, tokens_at_once=tokens_at_once)
  assert isinstance(found, float)
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  by_position = nll_by_position(model, text, length, tokens_at_once=tokens_at_once)
  expected = np.mean([losses[b[:-1], b[1:]] for b in blocks], axis=0)
  np.testing.assert_allclose(by_position, expected, rtol=1e-6)
  np.testing.assert_allclose(by_position.mean(), found, rtol=1e-12)


@pytest.mark.parametrize('stride', [1, 3, 4, 6])
def test_a_sliding_window_scores_its_last_tokens_and_the_first_all(stride):
  window, text = 7, np.zeros(30, np.int32)
  by_place = _losses_by_place(window)
  count = (30 - window) // stride + 1  # windows
  expected = by_place.sum() + (count - 1) * by_place[-stride:].sum()
  expected /= 30 - 1 - (30 - window) % stride  # what is left at the end is not scored
  for tokens_at_once in (7, 20, 1000):
    found = sliding_nll(_by_place, text, window, stride, tokens_at_once=tokens_at_once)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sliding_scores_each_token_once():
  model, losses = _bigram()
  text = np.random.default_rng(2).integers(0, W, 31)
  # 25 tokens after the first six are 5 strides of 5: all 30 next tokens.
  np.testing.assert_allclose(
      sliding_nll(model, text, 6, 5), losses[text[:-1], text[1:]].mean(), rtol=1e-6)
  # The stride of blocks leaves no token before the first of a window; one less is the
  # same as blocks, but for the tokens at their borders, which are now scored too.
  blocks, window = 5, 6
  inside = block_nll(model, text[:30], window) * blocks * (window - 1)
  borders = losses[text[5:29:6], text[6:30:6]].sum()
  whole = sliding_nll(model, text[:30], 30, 29)
  np.testing.assert_allclose((inside + borders) / 29, whole, rtol=1e-6)


def test_a_longer_context_helps_a_model_that_uses_it():
  text = np.zeros(64, np.int32)
  losses = [block_nll(_by_place, text, n) for n in (4, 16, 64)]
  np.testing.assert_allclose(
      losses, [_losses_by_place(n).mean() for n in (4, 16, 64)], rtol=1e-6)
  assert losses[0] > losses[1] > losses[2]
  assert sliding_nll(_by_place, text, 16, 4) < losses[1]


def test_begin_is_the_first_of_the_tokens_of_each_window():
  seen = []

  def model(tokens):
    seen.append(np.asarray(tokens))
    return np.asarray(_bigram()[0](seen[-1]))  # numpy alone: it cannot be traced

  text = np.arange(11) % W
  found = block_nll(model, text, 4, begin=3, tokens_at_once=8)
  windows = np.concatenate(seen[-2:])[:3]
  assert windows.tolist() == [[3, 0, 1, 2], [3, 3, 4, 0], [3, 1, 2, 3]]
  losses = _bigram()[1]
  np.testing.assert_allclose(
      found, np.mean([losses[w[:-1], w[1:]] for w in windows]), rtol=1e-6)
  seen.clear()
  sliding_nll(model, text, 4, 2, begin=3, tokens_at_once=100)
  assert seen[-1].tolist() == [
      [3, 0, 1, 2], [3, 2, 3, 4], [3, 4, 0, 1], [3, 1, 2, 3], [3, 3, 4, 0]]
  zeros = np.zeros(11, np.int32)
  by_place = _losses_by_place(4)
  np.testing.assert_allclose(
      sliding_nll(_by_place, zeros, 4, 2, begin=0),
      (by_place.sum() + 4 * by_place[-2:].sum()) / 11, rtol=1e-6)
  # All of the text, but for what is left at the end, is scored once.
  np.testing.assert_allclose(
      block_nll(_by_place, zeros, 4, begin=0), by_place.mean(), rtol=1e-6)


def test_the_mean_is_of_float64():
  text = np.zeros(40_000, np.uint8)
  uniform = lambda tokens: jnp.zeros((*tokens.shape, 7), jnp.bfloat16)
  expected = float(token_cross_entropy(jnp.zeros(7), 0))  # float32
  assert abs(block_nll(uniform, text, 100) - expected) < 1e-12
  assert abs(sliding_nll(uniform, text, 100, 50) - expected) < 1e-12


def test_a_model_may_be_under_jit_or_not_and_is_traced_once():
  table = jnp.asarray(np.random.default_rng(0).normal(size=(V, V)), jnp.float32)
  text = np.random.default_rng(0).integers(0, V, 50)
  traces = []

  def model(table, tokens):
    traces.append(tokens.shape)
    return table[tokens]

  expected = block_nll(functools.partial(model, table), text, 8, tokens_at_once=16)
  assert traces == [(2, 8)]
  jitted = functools.partial(jax.jit(model), table)
  for run in (jitted, jax.jit(functools.partial(model, table)),
              lambda x: np.asarray(table)[np.asarray(x)]):
    found = block_nll(run, text, 8, tokens_at_once=16)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert program_of(jitted, jnp.zeros((2, 8), int))[0] is jitted
  traces.clear()
  for scale in (1, 2):  # other weights, the same program
    block_nll(functools.partial(jitted.func, scale * table), text, 8,
              tokens_at_once=16)
  assert not traces


@pytest.mark.slow
def test_devices_share_the_windows():
  model = llama(rope=Rope(1e4))
  variables = variables_of(model)
  apply = functools.partial(jax.jit(model.apply), variables)
  text = np.random.default_rng(0).integers(0, V, 90)
  expected = [block_nll(apply, text, 8), sliding_nll(apply, text, 8, 3)]
  mesh = partition.make_mesh(data=4, fsdp=2)
  placed = jax.device_put(variables['params'],
                          jax.NamedSharding(mesh, jax.P()))
  read = []

  def watched(variables, tokens):
    read.append(tokens.shape)
    return model.apply(variables, tokens)

  with jax.set_mesh(mesh):
    apply = functools.partial(jax.jit(watched), {'params': placed})
    found = [block_nll(apply, text, 8), sliding_nll(apply, text, 8, 3)]
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert all(shape[0] % 8 == 0 for shape in read)


@pytest.mark.parametrize('change, words', [
    ({'tokens': np.arange(3)}, 'the text has 3 tokens, fewer than the 4 of a window'),
    ({'tokens': np.arange(2), 'begin': 0}, 'has 2 tokens, fewer than the 3 of a'),
    ({'length': 1}, 'length of a window must be at least 2: 1'),
    ({'tokens': np.zeros((2, 9), int)}, r'must be integers \[N\]: int64 \(2, 9\)'),
    ({'tokens': np.zeros(9)}, r'must be integers \[N\]: float64 \(9,\)'),
    ({'tokens': np.arange(9)}, 'tokens 0..8 are not in the vocabulary of 5'),
    ({'tokens': -np.arange(9)}, 'tokens -8..0 are not in the vocabulary of 5'),
    ({'begin': 5}, r'tokens 0..5 are not in the vocabulary of 5'),
    ({'tokens_at_once': 0}, 'tokens_at_once must be positive: 0'),
])
def test_what_cannot_be_scored_is_told(change, words):
  arguments = {'apply_fn': _bigram()[0], 'tokens': np.zeros(9, int), 'length': 4}
  for function in (block_nll, nll_by_position):
    with pytest.raises(ValueError, match=words):
      function(**{**arguments, **change})


@pytest.mark.parametrize('stride', [0, -1, 4, 9])
def test_a_stride_leaves_tokens_before_it(stride):
  with pytest.raises(ValueError, match=rf'stride must be in 1..3: {stride}'):
    sliding_nll(_by_place, np.zeros(20, int), 4, stride)


def test_a_model_of_another_shape_is_told():
  with pytest.raises(ValueError, match='do not fit logits'):
    block_nll(lambda x: jnp.zeros((*x.shape, 2, W)), np.zeros(9, int), 4)


_STRETCHED = {
    'none': None, 'linear_2': Linear(2.0), 'dynamic_4': Dynamic(4.0, 512),
    'yarn_4_orig512': Yarn(4.0, 512), 'llama3_8_orig512': Llama3(8.0, 512),
}


@pytest.fixture(scope='module')
def stories():
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  shared = pathlib.Path(os.environ['VVLEN_SHARED'])
  reference = shared / 'reference' / 'stories260K'
  expected = json.loads(reference.with_suffix('.json').read_text())['nll']['methods']
  text = np.load(reference.with_suffix('.npz'))['nll_ids']
  return *load_checkpoint(shared / 'data' / 'stories260K'), text, expected


@pytest.mark.optimized
@pytest.mark.parametrize('length, method', mostly_slow(
    itertools.product([256, 1024], _STRETCHED)))
def test_loss_of_a_real_model_is_that_of_the_reference(stories, method, length):
  model, variables, text, expected = stories
  model = model.clone(rope=Rope(1e4, _STRETCHED[method]))
  apply = functools.partial(model.apply, variables)
  np.testing.assert_allclose(
      block_nll(apply, text, length),
      expected[method]['by_length'][str(length)]['nll'], rtol=1e-6)
