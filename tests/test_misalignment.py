"""Misalignment against the reference, by hand, and what must hold for any logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from tests.conftest import ROOT
from vvlen.evaluation import misalignment as evaluation
from vvlen.evaluation.programs import program_of
from vvlen.objectives import misalignment as objective
from vvlen.objectives.cross_entropy import next_token_cross_entropy
from vvlen.objectives.measures import mean_over_rows, measures_of_rows
from vvlen.objectives.misalignment import misalignment_loss, symmetric_cross_entropy

B, L, V = 3, 11, 7
DIVERGENCES = (
    symmetric_cross_entropy, objective.symmetric_kl, objective.jensen_shannon,
    objective.stop_gradient_cross_entropy,
)


@pytest.fixture(scope='module')
def reference():
  with np.load(ROOT / 'tests/data/misalignment.npz') as arrays:
    return dict(arrays)


def _logits(length=L):
  rng = np.random.default_rng(0)
  return tuple(jnp.asarray(2 * rng.normal(size=(B, length, V)), jnp.float32)
               for _ in range(2))


def _exact(first, second):
  """Returns SCE by its formula in numpy, float64."""
  p, q = (np.exp(np.asarray(z, np.float64)) for z in (first, second))
  p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
  return -(q * np.log(p) + p * np.log(q)).sum(-1)


def _case(reference, e):
  tokens, length = reference['tokens'], int(reference['L'])
  logits = (jnp.asarray(reference[f'e{e}_logits{i}']) for i in (1, 2))
  return *logits, *objective.two_windows(jnp.asarray(tokens), length, e), e


@pytest.mark.parametrize('e', [1, 2, 3])
def test_values_and_gradients_of_the_reference(reference, e):
  with jax.enable_x64(True):
    *case, e = _case(reference, e)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
    value = lambda name: reference[f'e{e}_{name}']
    total, terms = jax.jit(objective.two_window_loss)(*case, e, reference['alpha'])
    close(total, value('total'))
    close(terms['cross_entropy_first'], value('ce1'))
    close(terms['cross_entropy_second'], value('ce2'))
    loss, gradients = jax.jit(jax.value_and_grad(misalignment_loss, (0, 1)))(
        *case[:2], e
    )
    assert loss.dtype == jnp.float64
    close(loss, value('sce_mean'))
    close(gradients[0], value('grad1'))
    close(gradients[1], value('grad2'))
    found = jax.jit(objective.measures)(*case[:2], e)
    for name, expected in {
        'sce': 'sce_per_token', 'half_sce': 'sce_half_mean', 'js': 'js',
        'kl_first_second': 'kl12', 'kl_second_first': 'kl21',
        'entropy_first': 'entropy1', 'entropy_second': 'entropy2',
    }.items():
      close(getattr(found, name), value(expected).mean(), err_msg=name)
    close(found.symmetric_kl, found.sce - found.entropy_first - found.entropy_second)
    assert found.excess is found.symmetric_kl
    rows = [z[:, s] for z, s in zip(case[:2], _slices(8, e), strict=True)]
    likeliest = [np.asarray(z).argmax(-1) for z in rows]
    close(found.top1_agreement, (likeliest[0] == likeliest[1]).mean())
    # The formulas in the paper's text, and in its code, give other numbers.
    whole = misalignment_loss(*case[:2], e, whole_overlap=True)
    close(whole, value('sce_full_overlap_mean'))
    for name in ('appE_typo', 'appE_dim0_literal', 'sce_full_overlap'):
      assert abs(loss - value(f'{name}_mean')) > 0.05


def _slices(length, e, whole=False):
  start = 0 if whole else length // 2
  return slice(start + e, length), slice(start, length - e)


def test_a_value_by_hand():
  p, q = jnp.log(jnp.array([2.0, 1, 1])), jnp.log(jnp.array([1.0, 2, 1]))
  found = symmetric_cross_entropy(p + 3, q - 1)
  np.testing.assert_allclose(found, 3.5 * np.log(2), rtol=1e-6)


@pytest.mark.parametrize('length', [10, 11])
@pytest.mark.parametrize('whole', [False, True])
def test_rows_of_the_same_token_are_compared_at_every_offset(length, whole):
  first, second = _logits(length)
  traces = []

  @jax.jit
  def loss(offset):
    traces.append(offset)
    return misalignment_loss(first, second, offset, whole_overlap=whole)

  most = length - 1 if whole else length // 2 - 1
  for e in range(1, most + 1):
    one, two = _slices(length, e, whole)
    expected = _exact(np.asarray(first)[:, one], np.asarray(second)[:, two]).mean()
    np.testing.assert_allclose(loss(e), expected, rtol=1e-5)
  assert len(traces) == 1
  outside_jit = misalignment_loss(first, second, most, whole_overlap=whole)
  np.testing.assert_allclose(outside_jit, expected, rtol=1e-5)
  for e in (-1, 0, most + 1, length + 5):
    assert jnp.isnan(loss(e))


@pytest.mark.parametrize('e', [1, 3, 4])
def test_value_and_gradient_in_float64(e):
  with jax.enable_x64(True):
    first, second = (z.astype(np.float64) for z in _logits())
    found, gradients = jax.jit(jax.value_and_grad(misalignment_loss, (0, 1)))(
        first, second, e)
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
  own, other = slice(5 + e, L), slice(5, L - e)
  z, y = np.asarray(first)[:, own], np.asarray(second)[:, other]
  close(found, _exact(z, y).mean())
  p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (z, y))

  def expected(p, q, rows):
    whole = np.zeros((B, L, V))
    mean = (p * np.log(q)).sum(-1, keepdims=True)
    whole[:, rows] = ((p - q) - p * (np.log(q) - mean)) / (B * (6 - e))
    return whole

  close(gradients[0], expected(p, q, own))
  close(gradients[1], expected(q, p, other))


@pytest.mark.parametrize('shift', [-1000.0, -100.0, 50.0])
def test_a_common_offset_of_logits_changes_nothing(shift):
  # Steps of 2^-13 survive in float32 at 1000.
  first, second = (jnp.round(z * 2**13) / 2**13 for z in _logits())
  tokens = jnp.zeros((B, L), jnp.int32)
  loss = lambda a, b: objective.two_window_loss(a, b, tokens, tokens, 2, 0.3)[0]
  both = jax.jit(jax.value_and_grad(loss, (0, 1)))
  shifted, plain = both(first + shift, second - shift), both(first, second)
  for x, y in zip(jax.tree.leaves(shifted), jax.tree.leaves(plain), strict=True):
    np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize('dtype, words', [
    ('uint8', 256), ('uint8', 300), ('int8', 300), ('uint16', 65_536), ('int16', 50_000)
])
def test_narrow_tokens_of_a_vocabulary_beyond_their_type(dtype, words):
  tokens = jnp.array([[0, 100, 7, 127]])
  logits = jax.random.normal(jax.random.key(0), (1, 4, words))
  loss = jax.jit(next_token_cross_entropy)
  found = loss(logits, tokens.astype(dtype))
  np.testing.assert_array_equal(found, loss(logits, tokens))
  assert jnp.isfinite(found)


def test_sce_is_at_least_the_entropies_and_lowers_them():
  # Of every row, also of rows that are alike or nearly certain.
  rng = np.random.default_rng(1)
  rows = rng.normal(size=(60, V)) * np.repeat([0.1, 1, 30], 20)[:, None]
  others = np.where(np.arange(60)[:, None] % 2, rows, rng.permutation(rows))
  sce = symmetric_cross_entropy(*map(jnp.asarray, (rows, others)))
  entropy = lambda z: stats.entropy(special.softmax(z, -1), axis=-1)
  assert (sce >= entropy(rows) + entropy(others) - 1e-5).all()
  np.testing.assert_allclose(sce[1::2], 2 * entropy(rows)[1::2], atol=1e-5)
  first, second = _logits()
  found = jax.jit(objective.measures)(first, second, 2)
  excess = found.kl_first_second + found.kl_second_first
  np.testing.assert_allclose(found.symmetric_kl, excess, rtol=1e-5)
  assert found.sce >= found.entropy_first + found.entropy_second
  assert 0 <= found.js <= np.log(2)
  # At p = q: SCE = 2 H, with the gradient −p ⊙ (log p − ⟨p, log p⟩); others have none.
  log_p = jax.nn.log_softmax(first)
  p = jnp.exp(log_p)
  for divergence in DIVERGENCES[:3]:
    of_first = lambda z, f=divergence: f(z, first).sum()
    gradient = jax.jit(jax.grad(of_first))(first)
    mean = (p * log_p).sum(-1, keepdims=True)
    expected = -p * (log_p - mean) if divergence is symmetric_cross_entropy else 0 * p
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_gradient_of_each_side():
  first, second = _logits()
  p, q = jax.nn.softmax(first), jax.nn.softmax(second)
  grads = lambda f: jax.jit(jax.grad(lambda *z: f(*z).sum(), (0, 1)))(first, second)

  def by_formula(p, q):
    mean = (p * jnp.log(q)).sum(-1, keepdims=True)
    return (p - q) - p * (jnp.log(q) - mean)

  found = grads(symmetric_cross_entropy)
  np.testing.assert_allclose(found[0], by_formula(p, q), atol=1e-5)
  np.testing.assert_allclose(found[1], by_formula(q, p), atol=1e-5)
  # The first window has the longer context: it is the one that stays.
  stopped = grads(objective.stop_gradient_cross_entropy)
  np.testing.assert_array_equal(stopped[0], 0 * p)
  np.testing.assert_array_equal(stopped[1], found[1])


@pytest.mark.parametrize('divergence', DIVERGENCES)
def test_vmap_and_bfloat16(divergence):
  first, second = (z.astype(jnp.bfloat16) for z in _logits())
  loss = lambda a, b, e: misalignment_loss(a, b, e, divergence=divergence)
  offsets = np.arange(1, 5)
  found = jax.jit(jax.vmap(loss, (None, None, 0)))(first, second, offsets)
  assert found.dtype == jnp.float32
  wide = first.astype(jnp.float32), second.astype(jnp.float32)
  one = jax.jit(loss)
  expected = [one(*wide, e) for e in offsets]
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_nan_reaches_the_gradient_of_an_offset_outside():
  gradient = jax.jit(jax.grad(misalignment_loss))(*_logits(), 0)
  assert jnp.isnan(gradient).any()


def test_offsets_are_uniform_on_their_ranges(key):
  expected = {(0, 1 / 2): (1, 9), (0, 1 / 4): (1, 5), (1 / 4, 1 / 2): (5, 9),
              (0, 1): (1, 20), (0, 3 / 4): (1, 15)}
  for fractions, (lowest, highest) in expected.items():
    assert objective.offset_range(21, fractions) == (lowest, highest)
    sample = functools.partial(objective.sample_offset, length=21, range=fractions)
    drawn = jax.jit(jax.vmap(sample))(jax.random.split(key, 4000))
    values, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(lowest, highest + 1))
    mean = 4000 / len(values)
    assert (np.abs(counts - mean) < 5 * np.sqrt(mean)).all()


def test_windows():
  tokens = jnp.arange(40).reshape(2, 20)
  windows = jax.jit(objective.two_windows, static_argnums=1)
  first, second = windows(tokens, 13, 7)
  np.testing.assert_array_equal(first, tokens[:, :13])
  np.testing.assert_array_equal(second, tokens[:, 7:])
  # Indices outside the stream or the vocabulary are refused.
  logits = jnp.zeros((2, 13, 40))
  loss = jax.jit(next_token_cross_entropy)
  np.testing.assert_allclose(loss(logits, first), np.log(40), rtol=1e-6)
  assert jnp.isnan(loss(logits, first.at[0, 3].set(40)))
  for e in (8, -1):
    _, second = windows(tokens, 13, e)
    assert jnp.isnan(jax.jit(next_token_cross_entropy)(logits, second))
    _, second = windows(tokens.astype(jnp.uint8), 13, e)
    assert jnp.isnan(jax.jit(next_token_cross_entropy)(logits, second))


def test_a_step_of_training_serves_all_offsets_by_one_program(key):
  stream = jax.random.randint(key, (B, L + 4), 0, V)
  table = jax.random.normal(key, (V, V))

  @jax.jit
  @jax.value_and_grad
  def step(table, key):
    e = objective.sample_offset(key, L)
    first, second = objective.two_windows(stream, L, e)
    return objective.two_window_loss(
        table[first], table[second], first, second, e, 0.1)[0]

  losses = {float(step(table, k)[0]) for k in jax.random.split(key, 20)}
  assert len(losses) == 4 and step._cache_size() == 1


def _model(tokens):
  """Predicts from a token, its position, and the mean of those so far."""
  table = jnp.sin(jnp.arange(V * V, dtype=jnp.float32) ** 2).reshape(V, V)
  count = jnp.arange(1, tokens.shape[1] + 1)[None, :, None]
  return table[tokens] * jnp.cos(count) + 3 * table[tokens].cumsum(1) / count


def test_a_model_is_measured_at_offsets_in_one_compilation(key):
  tokens = jax.random.randint(key, (B, 20), 0, V)
  traces = []
  model = lambda tokens: traces.append(tokens) or _model(tokens)
  offsets, found = evaluation.misalignment_over_offsets(model, tokens, L, key, 3)
  assert len(traces) == 1 and len(set(offsets)) == 3
  assert 1 <= offsets.min() and offsets.max() <= 4
  for i, e in enumerate(offsets.tolist()):
    one = evaluation.misalignment(_model, tokens[:, : L + e], L, e)
    logits = _model(tokens[:, :L]), _model(tokens[:, e : L + e])
    np.testing.assert_allclose(one.sce, misalignment_loss(*logits, e), rtol=1e-5)
    for x, y in zip(one, found, strict=True):
      np.testing.assert_allclose(x, y[i], rtol=1e-5)


def test_the_whole_overlap_of_a_model(key):
  tokens = jax.random.randint(key, (B, 2 * L), 0, V)
  logits = lambda e: (_model(tokens[:, :L]), _model(tokens[:, e : L + e]), e)
  for e in (2, 9):
    found = evaluation.misalignment(_model, tokens, L, e, whole_overlap=True)
    expected = misalignment_loss(*logits(e), whole_overlap=True)
    np.testing.assert_allclose(found.sce, expected, rtol=1e-5)
  over = functools.partial(evaluation.misalignment_over_offsets, _model, tokens, L, key)
  offsets, found = over(10, range=(0, 1))
  assert offsets.tolist() == [*range(1, 11)]
  expected = [misalignment_loss(*logits(e), whole_overlap=True) for e in range(1, 11)]
  np.testing.assert_allclose(found.sce, expected, rtol=1e-5)
  offsets, found = over(3, range=(1 / 4, 1 / 2))
  assert offsets.tolist() == [2, 3, 4]
  expected = [misalignment_loss(*logits(e)) for e in (2, 3, 4)]
  np.testing.assert_allclose(found.sce, expected, rtol=1e-5)


def test_weights_of_a_model_are_not_compiled_into_its_program(key):
  table = jax.random.normal(key, (V, 300))
  model = lambda x: jnp.tanh(table)[x] @ table.T
  tokens = jax.random.randint(key, (B, L + 4), 0, V)
  for form in (model, jax.jit(model)):
    run, logits = program_of(form, tokens)
    np.testing.assert_allclose(run(tokens), model(tokens), atol=1e-4)
    assert logits.shape == (B, L + 4, V)
  run, _ = program_of(model, tokens)
  assert [x.shape for x in run.args[0]] == [table.shape]


def test_sequences_told_apart_have_the_mean_of_all(key):
  tokens = jax.random.randint(key, (B, 2 * L), 0, V)
  at = lambda tokens, **options: evaluation.misalignment_at_offsets(
      _model, tokens, L, [1, 4], **options)
  apart = at(tokens, by_sequence=True)
  for values, mean in zip(apart, at(tokens), strict=True):
    assert values.shape == (2, B)
    np.testing.assert_allclose(values.mean(1), mean, rtol=1e-5, atol=1e-6)
  for i in range(B):
    np.testing.assert_allclose(apart.sce[:, i], at(tokens[i : i + 1]).sce, rtol=1e-5)


def test_rows_and_their_mean_agree_where_the_likeliest_tokens_do(key):
  first, second = jax.random.normal(key, (2, 3, 5, 4))
  rows = measures_of_rows(first, second)
  same = np.asarray(first).argmax(-1) == np.asarray(second).argmax(-1)
  assert 0 < same.sum() < same.size
  np.testing.assert_array_equal(rows.top1_agreement, same)
  weights = jnp.array([0, 0.25, 0.5, 0.25, 0])
  np.testing.assert_allclose(
      mean_over_rows(rows, weights).top1_agreement, same @ weights, rtol=1e-6)


def test_a_model_that_sees_one_token_is_aligned(key):
  tokens = jax.random.randint(key, (B, 2 * L), 0, V)
  table = jax.random.normal(key, (V, V))
  found = evaluation.misalignment(lambda x: table[x], tokens, L, 3)
  np.testing.assert_allclose([found.symmetric_kl, found.js], 0, atol=1e-6)
  np.testing.assert_allclose(found.sce, 2 * found.entropy_first, rtol=1e-5)
  assert found.top1_agreement == 1  # a share, with no rounding beyond it
  # Whatever integers the tokens are, the model gets the same.
  narrow = tokens.astype(jnp.uint8)
  far = lambda x: table[(x + 250) % V]
  for one, other in zip(evaluation.misalignment_at_offsets(far, narrow, L, [1, 3]),
                        evaluation.misalignment_at_offsets(far, tokens, L, [1, 3]),
                        strict=True):
    np.testing.assert_array_equal(one, other)


Z, T = jnp.zeros((B, L, V)), jnp.zeros((B, L), jnp.int32)


@pytest.mark.parametrize('call, said', [
    *[(lambda e=e: misalignment_loss(Z, Z, e), f'1..4 at length 11: {e}')
      for e in (0, 5, -1, 1.5, True)],
    (lambda: misalignment_loss(Z, Z, 11, whole_overlap=True), '1..10'),
    (lambda: misalignment_loss(Z, Z, jnp.int32(5)), r'Array\(5'),
    (lambda: misalignment_loss(Z, Z, jnp.array([1])), 'offset'),
    (lambda: misalignment_loss(Z, Z, '3'), "11: '3'"),
    (lambda: misalignment_loss(Z, Z, 1, divergence=lambda p, q: (p - q).sum()),
     r'\(3, 6, 7\) to \(\)'),
    (lambda: misalignment_loss(Z, Z[:, 1:], 1), r'\(3, 10, 7\)'),
    (lambda: misalignment_loss(Z, Z[..., 1:], 1), r'\(3, 11, 6\)'),
    (lambda: objective.two_window_loss(Z, Z, T, T, 1, -0.1), '-0.1'),
    (lambda: objective.two_window_loss(Z, Z, T, T, 1, np.nan), 'nan'),
    (lambda: objective.two_window_loss(Z, Z, T, T, 1, np.inf), 'inf'),
    (lambda: objective.two_window_loss(Z, Z, T, T, 1, '0.1'), "negative: '0.1'"),
    (lambda: objective.two_window_loss(Z, Z, T, T, 1, None), 'negative: None'),
    (lambda: objective.two_window_loss(Z, Z, T, T[:, 1:], 1, 0.1), r'\(3, 10\)'),
    (lambda: objective.two_window_loss(Z, Z, T, T + V, 1, 0.1), 'vocabulary of 7'),
    (lambda: next_token_cross_entropy(Z, T - 1), 'vocabulary of 7'),
    (lambda: next_token_cross_entropy(Z, T.astype(jnp.float32)), 'float32'),
    (lambda: next_token_cross_entropy(Z[:, :1], T[:, :1]), 'next token'),
    (lambda: objective.two_windows(T, 8, 4), 'offset 4'),
    (lambda: objective.two_windows(T, 8, -1), 'offset -1'),
    (lambda: objective.two_windows(T, 8, 1.5), 'whole number: 1.5'),
    (lambda: objective.two_windows(T, -3, 3), '-3'),
    (lambda: objective.offset_range(16.5), 'whole number: 16.5'),
    (lambda: jax.jit(misalignment_loss)(Z[:, :1], Z[:, :1], 1), 'no rows'),
    (lambda: misalignment_loss(Z[:0], Z[:0], 1), 'no rows'),
    (lambda: objective.offset_range(11, (0.5, 0.25)), r'\(0.5, 0.25\)'),
    (lambda: objective.offset_range(3), 'length 3'),
    (lambda: evaluation.misalignment(_model, T, 8, 4), '8'),
    (lambda: evaluation.misalignment(lambda x: Z, T, 8, 3), r'\(3, 11, 7\)'),
    (lambda: evaluation.misalignment_at_offsets(_model, T, 8, []), 'no offsets'),
    (lambda: evaluation.misalignment_over_offsets(
        _model, T, 6, jax.random.key(0), 3), '1..2: 3'),
])
def test_bad_input_is_named_before_anything_runs(call, said):
  with pytest.raises(ValueError, match=said):
    call()


def test_a_vocabulary_is_checked_before_the_model_runs():
  tokens = T.at[0, 5].set(V)
  for measured in (evaluation.misalignment, evaluation.misalignment_at_offsets):
    runs = []

    def model(tokens, runs=runs):
      jax.debug.callback(lambda: runs.append(1))
      return _model(tokens)

    offsets = 1 if measured is evaluation.misalignment else [1]
    with pytest.raises(ValueError, match='vocabulary of 7'):
      measured(model, tokens, 8, offsets)
    jax.effects_barrier()
    assert not runs


def test_a_model_that_cannot_be_traced_is_measured():
  tokens = jnp.arange(B * L).reshape(B, L) % V
  found = evaluation.misalignment(lambda x: np.eye(V)[np.asarray(x)], tokens, 8, 2)
  expected = evaluation.misalignment(lambda x: jnp.eye(V)[x], tokens, 8, 2)
  np.testing.assert_allclose(found.sce, expected.sce, rtol=1e-6)
