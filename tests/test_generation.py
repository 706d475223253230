"""Generation with a cache equals generation without one, token by token."""

from collections.abc import Callable
import itertools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from tests.cases import mostly_slow
from tests.llamas import llama, ROPES, V, variables_of
from vvlen.models import generation
from vvlen.models.generation import generate

PROMPTS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
LENGTHS = np.array([5, 3])


@pytest.fixture(scope='module')
def small():
  model = llama(rope=ROPES['yarn'])
  return model, variables_of(model)


def _logits(small, tokens):
  return small[0].apply(small[1], jnp.asarray([tokens]))[0]


def test_the_size_of_a_cache_is_that_of_its_arrays(small):
  # 2 arrays of each layer, 3 rows, 18 places, key heads, their width, 4 bytes.
  model, variables = small
  one = model.num_key_heads * (model.head_width or model.width // model.num_heads)
  expected = 2 * model.num_layers * 3 * 18 * one * 4
  assert generation.cache_bytes(model, variables, 3, 18) == expected
  half = jax.tree.map(lambda x: x.astype(jnp.float16), variables)
  assert generation.cache_bytes(model, half, 3, 18) == expected // 2


@pytest.mark.slow
def test_greedy_tokens_are_the_likeliest_of_the_whole_model(small):
  found = np.asarray(generate(*small, PROMPTS, 7, lengths=LENGTHS))
  assert found.shape == (2, 7) and found.dtype == np.int32
  for prompt, length, tokens in zip(PROMPTS, LENGTHS, found, strict=True):
    whole = [*prompt[:length], *tokens]
    likeliest = _logits(small, whole).argmax(-1)
    np.testing.assert_array_equal(likeliest[length - 1:-1], tokens)


@pytest.mark.parametrize('rope, dtype', mostly_slow(
    itertools.product(['yarn', 'dynamic'], [np.float32, np.float64])))
def test_float64_may_be_enabled(rope, dtype):
  model = llama(rope=ROPES[rope])
  with jax.enable_x64(True):
    variables = jax.tree.map(lambda x: jnp.asarray(x, dtype), variables_of(model))
    draw = lambda tokens, lengths: generate(
        model, variables, tokens, 5, lengths=lengths, temperature=0.5,
        key=jax.random.key(1), end=3)
    greedy, drawn = (
        [run(PROMPTS.astype(kind), LENGTHS.astype(kind))
         for kind in (np.int32, np.int64)]
        for run in (lambda tokens, lengths: generate(
            model, variables, tokens, 5, lengths=lengths), draw))
    assert {x.dtype for x in (*greedy, *drawn)} == {jnp.dtype('int32')}
    np.testing.assert_array_equal(*greedy)
    np.testing.assert_array_equal(*drawn)
    for prompt, length, tokens in zip(PROMPTS, LENGTHS, greedy[0], strict=True):
      whole = jnp.asarray([[*prompt[:length], *tokens]])
      logits = jax.jit(model.apply)(variables, whole)[0]
      assert logits.dtype == dtype
      if rope == 'yarn':  # dynamic rates rotate keys again, and tokens may differ
        np.testing.assert_array_equal(logits.argmax(-1)[length - 1:-1], tokens)


def test_what_pads_a_prompt_does_not_matter(small):
  padded = np.where(PROMPTS == 0, 17, PROMPTS)
  np.testing.assert_array_equal(
      generate(*small, PROMPTS, 6, lengths=LENGTHS),
      generate(*small, padded, 6, lengths=LENGTHS),
  )


def test_tokens_are_drawn_from_the_softmax_by_temperature(small):
  prompts = np.tile(PROMPTS[:1], (4000, 1))
  drawn = generate(*small, prompts, 1, temperature=0.5, key=jax.random.key(3))
  counts = np.bincount(np.asarray(drawn)[:, 0], minlength=V)
  logits = np.asarray(_logits(small, PROMPTS[0])[-1], np.float64)
  fits = lambda temperature: stats.chisquare(
      counts, 4000 * special.softmax(logits / temperature)).pvalue
  assert fits(0.5) > 1e-3 and fits(0.6) < 1e-6 and fits(0.4) < 1e-6 and fits(1.0) < 1e-6


def test_a_key_gives_the_same_tokens_and_another_key_others(small):
  draw = lambda seed: np.asarray(
      generate(*small, PROMPTS, 30, temperature=3.0, key=jax.random.key(seed)))
  np.testing.assert_array_equal(draw(0), draw(0))
  assert (draw(0) != draw(1)).mean() > 0.2
  # One token is not all of them.
  assert len(set(draw(0)[0].tolist())) > 3


@pytest.mark.slow
def test_a_sequence_that_has_ended_repeats_its_end(small):
  free = np.asarray(generate(*small, PROMPTS, 12, lengths=LENGTHS))
  end = int(free[0, 4])
  found = np.asarray(generate(*small, PROMPTS, 12, lengths=LENGTHS, end=end))
  for row, other in zip(found, free, strict=True):
    hits = np.flatnonzero(other == end)
    last = hits[0] if hits.size else len(other)
    np.testing.assert_array_equal(row[:last], other[:last])
    assert (row[last:] == end).all()


class _Counting(nn.Module):
  """Continues a prompt by its last token plus 1, 2, …, and tells each step."""

  tell: Callable[[], None] = lambda: None
  vocab_size: int = 99

  def prefill(self, tokens, lengths, places):
    del places
    return jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)[:, 0], ()

  def step(self, token, cache):
    jax.debug.callback(self.tell)
    return token, cache

  def logits(self, hidden):
    return jax.nn.one_hot(hidden + 1, self.vocab_size)


@pytest.mark.parametrize('end, rows, steps', [
    (None, [[5, 6, 7, 8, 9, 10, 11, 12], [9, 10, 11, 12, 13, 14, 15, 16]], 7),
    ((), [[5, 6, 7, 8, 9, 10, 11, 12], [9, 10, 11, 12, 13, 14, 15, 16]], 7),
    (7, [[5, 6, 7, 7, 7, 7, 7, 7], [9, 10, 11, 12, 13, 14, 15, 16]], 7),
    # The first of them fills a row, whichever ends it; the last row to end stops all.
    ((7, 11), [[5, 6, 7, 7, 7, 7, 7, 7], [9, 10, 11, 7, 7, 7, 7, 7]], 2),
    ((11, 7), [[5, 6, 7, 11, 11, 11, 11, 11], [9, 10, 11, 11, 11, 11, 11, 11]], 2),
    ({12}, [[5, 6, 7, 8, 9, 10, 11, 12], [9, 10, 11, 12, 12, 12, 12, 12]], 7),
    ([5, 9], [[5] * 8, [9] + [5] * 7], 0),
    (np.int64(20), [[5, 6, 7, 8, 9, 10, 11, 12], [9, 10, 11, 12, 13, 14, 15, 16]], 7),
])
def test_any_of_several_tokens_ends_a_sequence_and_all_ended_stop(end, rows, steps):
  made: list[int] = []
  model = _Counting(lambda: made.append(1))
  found = generate(model, {}, [[4, 0], [1, 8]], 8, lengths=[1, 2], end=end)
  jax.effects_barrier()
  np.testing.assert_array_equal(found, rows)
  assert len(made) == steps


def test_a_program_is_compiled_for_each_choice_of_ends():
  before = generation._generate._cache_size()
  for number, end in enumerate((3, (3,), (3, 4), [3, 4], (4, 3))):
    generate(_Counting(), {}, [[1]], 2, end=end)
    assert generation._generate._cache_size() == before + (1, 1, 2, 2, 3)[number]


def test_tokens_up_to_the_first_end_are_those_without_ends(small):
  free = np.asarray(generate(*small, PROMPTS, 8, lengths=LENGTHS))
  ends = [int(free[0, 3]), int(free[1, 5])]
  found = np.asarray(generate(*small, PROMPTS, 8, lengths=LENGTHS, end=ends))
  for row, other in zip(found, free, strict=True):
    last = np.flatnonzero(np.isin(other, ends))[0] + 1
    np.testing.assert_array_equal(row[:last], other[:last])
    assert (row[last:] == ends[0]).all()


def test_tokens_that_may_not_come_first_may_come_later(small):
  logits = np.asarray(_logits(small, PROMPTS[0])[-1])
  best = np.argsort(-logits)
  [[first, *rest]] = np.asarray(generate(*small, PROMPTS[:1], 5, not_first=best[:2]))
  assert first == best[2]
  likeliest = _logits(small, [*PROMPTS[0], first, *rest]).argmax(-1)
  np.testing.assert_array_equal(likeliest[5:-1], rest)
  # Drawn tokens too.
  drawn = generate(*small, np.tile(PROMPTS[:1], (500, 1)), 2, temperature=1.0,
                   key=jax.random.key(3), not_first=best[:2])
  first, second = np.asarray(drawn).T
  assert not {*first} & {*best[:2]} and {*second} & {*best[:2]}


def test_a_second_call_compiles_nothing(small):
  generate(*small, PROMPTS, 4)
  before = generation._generate._cache_size()
  generate(*small, PROMPTS + 1, 4)
  assert generation._generate._cache_size() == before

@pytest.mark.parametrize('arguments,says', [
    ({'tokens': PROMPTS + 20}, 'tokens .* are not in 0..22'),
    ({'tokens': PROMPTS[0]}, r'tokens must be \[B, n\]'),
    ({'lengths': [0, 3]}, r'in 1..5: \[0, 3\]'),
    ({'lengths': [6, 3]}, r'in 1..5: \[6, 3\]'),
    ({'lengths': [3]}, r'lengths must be \[2\]'),
    ({'lengths': [2.5, 3]}, r'integers in 1..5: \[2.5, 3.0\]'),
    ({'end': 23}, 'end must lie in 0..22: 23'),
    ({'end': -1}, 'end must lie in 0..22: -1'),
    ({'end': (3, 40)}, 'end must lie in 0..22: 40'),
    ({'not_first': [1, 23]}, r'not_first 1..23 are not in 0..22'),
    ({'num_tokens': 0}, 'num_tokens must be positive: 0'),
    ({'temperature': -1.0}, 'temperature .*: -1.0'),
    ({'temperature': 1.0}, 'needs a key'),
])
def test_wrong_arguments_are_refused(small, arguments, says):
  arguments = {'tokens': PROMPTS, 'num_tokens': 2, **arguments}
  with pytest.raises(ValueError, match=says):
    generate(*small, **arguments)
