"""The simulation: its laws, its sums, and the numbers that the paper prints."""

import functools
import json
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from tests.cases import mostly_slow
from tests.conftest import ROOT
from vvlen.evaluation.recency import recency_of_logits
from vvlen.models.causal_stack import causal_stack
from vvlen.sharding import platform
from vvlen.simulation import chunks, SAMPLERS, simulate_recency
from vvlen.simulation.tokens import (
    draw_factor,
    draw_tokens,
    factor_law,
    polynomials_of,
    roots_of_chi_square,
)
from vvlen.theory.recency import (
    exact_mean_layer1_score,
    gram_recursion,
    layer2_scores,
)

# Recency probability by layer, as printed for 10 tokens and 10,000,000 simulations.
# Rows: no LayerNorm; α = 0; α = 0.5; α = 0.5 and c = 1.
_PRINTED = {
    (16, 0.0, False, 0.0): (0.5000, 0.5005, 0.0822, 0.0140),
    (16, 0.0, True, 0.0): (0.5000, 0.5015, 0.5051, 0.5114),
    (16, 0.5, True, 0.0): (0.5000, 0.6382, 0.8002, 0.9079),
    (16, 0.5, True, 1.0): (0.5000, 0.5931, 0.6610, 0.7078),
    (64, 0.0, False, 0.0): (0.5000, 0.5000, 0.0069, 0.0001),
    (64, 0.0, True, 0.0): (0.5000, 0.5000, 0.5000, 0.5000),
    (64, 0.5, True, 0.0): (0.5000, 0.5544, 0.6274, 0.7073),
    (64, 0.5, True, 1.0): (0.5000, 0.5457, 0.5791, 0.6053),
}
_MANY = 100_000
# All small runs: few programs are compiled then.
_small = functools.partial(simulate_recency, num_tokens=3, num_layers=2)
_CHUNK = 2000
_draw_tokens = jax.jit(draw_tokens, static_argnums=(1, 2, 3))
_draw_factor = jax.jit(draw_factor, static_argnums=1)


@functools.cache
def _run(width, anisotropy, layer_norm, residual, sampler):
  """The paper's setting, 10 tokens and 4 layers."""
  return simulate_recency(
      jax.random.key(1), width=width, num_simulations=_MANY, anisotropy=anisotropy,
      layer_norm=layer_norm, residual=residual, sampler=sampler,
  )


@pytest.fixture(scope='module')
def reference():
  with np.load(ROOT / 'tests/data/recency.npz') as arrays:
    return dict(arrays)


def _close(found, expected, error, expected_error=0.0, atol=2e-6):
  """Within 5 standard errors of the difference. Diagonals have no error at all."""
  off = np.abs(np.asarray(found) - expected) - atol
  assert (off <= 5 * np.hypot(error, expected_error)).all(), (off / error).max()


def _weights_error(width, anisotropy, layer_norm, residual):
  """The standard error of mean weights, of which only sums are kept."""
  rng = np.random.default_rng(0)
  count = 256_000 // width
  own, shared = rng.normal(size=(count, 10, width)), rng.normal(size=(count, 1, width))
  x = (own + (anisotropy / (1 - anisotropy)) ** 0.5 * shared) / width**0.5
  x -= layer_norm * x.mean(-1, keepdims=True)
  gram = x @ np.swapaxes(x, -1, -2)
  scores = gram_recursion(gram, width, 4, layer_norm, residual)
  return _softmax(scores).std(0) / _MANY**0.5


def _softmax(scores):
  causal = np.tri(scores.shape[-1], dtype=bool)
  return special.softmax(np.where(causal, scores, -np.inf), axis=-1)


def _equal(one, two):
  """Are two results the same, bit for bit?"""
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    np.testing.assert_array_equal(a, b)


# Laws.


@pytest.mark.parametrize('dtype, rounding', [('float32', 3e-6), ('float64', 0.0)])
def test_roots_of_chi_square_have_the_quantiles_of_their_normals(dtype, rounding):
  degrees = np.array([1, 2, 3, 5, 7, 63, 1023])
  allowed = np.array([4e-7, 5e-9, 2e-10, 1e-12, 1e-12, 1e-12, 1e-12])
  x = np.linspace(-8.29, 8.29, 4001, dtype=dtype)
  with jax.enable_x64(dtype == 'float64'):
    polynomials = jnp.asarray(polynomials_of(degrees), dtype)
    found = roots_of_chi_square(jnp.broadcast_to(x, (7, len(x))), polynomials)
    assert found.dtype == dtype
  x = x.astype(np.float64)
  expected = np.stack([
      np.where(x < 0, stats.chi.ppf(stats.norm.cdf(x), k),
               stats.chi.isf(stats.norm.sf(x), k))
      for k in degrees
  ])
  off = np.abs(np.asarray(found) - expected).max(1)
  assert (off <= allowed + rounding * expected.max(1)).all(), off


@pytest.mark.parametrize('width, layer_norm', [(6, True), (5, False)])
@pytest.mark.parametrize('sampler', SAMPLERS)
def test_products_of_rows_have_the_wishart_law(key, sampler, width, layer_norm):
  n, count, anisotropy = 5, _MANY, 0.3
  if sampler == 'reduced':
    law = factor_law(n, width, anisotropy, layer_norm)
    rows = _draw_factor(key, count, *map(jnp.float32, law))
    assert rows.shape == (n, n, count)
  else:
    rows = _draw_tokens(key, count, n, width, jnp.float32(anisotropy))
    assert rows.shape == (n, width, count)
  rows = np.asarray(rows, np.float64)
  if sampler == 'direct' and layer_norm:
    rows -= rows.mean(1, keepdims=True)
  gram = np.einsum('ikb,jkb->ijb', rows, rows)
  freedom = width - layer_norm
  scale = (np.eye(n) + anisotropy / (1 - anisotropy)) / width
  _close(gram.mean(-1), freedom * scale, gram.std(-1) / count**0.5)
  own = np.diag(scale)
  variance = freedom * (scale**2 + np.outer(own, own))
  squares = (gram - (freedom * scale)[..., None]) ** 2
  _close(squares.mean(-1), variance, squares.std(-1) / count**0.5)


# The paper's numbers.


_DIRECT = ('d16_noLN_a0', 'd16_LN_a0.5_res', 'd64_LN_a0.5')
_REDUCED = (
    *_DIRECT, 'd16_LN_a0.5', 'd64_LN_a0', 'd64_LN_a0.5_res', 'd16_LN_a0', 'd64_noLN_a0',
    *(f'd{d}_LN_a0_res' for d in (16, 64)),
    *(f'd{d}_LN_a{a}{residual}'
      for d in (16, 64) for a in (0.2, 0.4, 0.8) for residual in ('', '_res')),
    *(f'd1024_{x}' for x in ('noLN_a0', 'LN_a0', 'LN_a0.5', 'LN_a0.5_res')),
)


def test_the_reference_has_no_more_cases(reference):
  assert sorted(_REDUCED) == sorted(json.loads(str(reference['meta_json'])))


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize('name, sampler', [
    *((name, 'direct') for name in _DIRECT), *((name, 'reduced') for name in _REDUCED),
])
def test_both_samplers_agree_with_the_reference(reference, name, sampler):
  told = json.loads(str(reference['meta_json']))[name]
  setting = told['d'], told['alpha'], told['ln'], told['c']
  expected = lambda what: reference[f'{name}/{what}'][:4]
  found = _run(*setting, sampler)
  assert found.mean.dtype == found.mean_weights.dtype == np.float64
  _close(found.mean, np.tril(expected('mean')), found.standard_error,
         np.tril(expected('se')))
  # Errors of means that the reference tells without them are as many times smaller.
  smaller = (_MANY / told['N']) ** 0.5
  for value, error, what in (
      (found.mean_weights, _weights_error(*setting), 'A_mean'),
      (found.recency_probability, found.recency_probability_error, 'rp'),
      (found.violation_rate, found.violation_rate_error, 'viol'),
  ):
    _close(value, expected(what), error, error * smaller)
  # Errors are those of the reference, but for the number of simulations.
  ratio = found.standard_error / np.maximum(expected('se'), 1e-30) * smaller
  below = np.tril_indices(10, -1)
  # At α = 0.8 those of later layers hang on a few simulations with one token apart.
  layers = 2 if told['alpha'] == 0.8 else 4
  np.testing.assert_allclose(ratio[:layers, *below], 1.0, atol=0.15)


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize('setting', [(16, 0.5, True, 1.0), (16, 0.0, False, 0.0),
                                     (64, 0.5, True, 0.0)], ids=str)
def test_both_samplers_have_one_law(setting):
  one, two = (_run(*setting, sampler) for sampler in SAMPLERS)
  _close(one.mean, two.mean, one.standard_error, two.standard_error)
  error = _weights_error(*setting)
  _close(one.mean_weights, two.mean_weights, error, error)
  for name in ('recency_probability', 'violation_rate'):
    error = [getattr(each, f'{name}_error') for each in (one, two)]
    _close(getattr(one, name), getattr(two, name), *error)


@pytest.mark.parametrize('setting', mostly_slow(
    [(setting,) for setting in _PRINTED], 3), ids=str)
def test_recency_probabilities_are_those_printed(setting):
  found = _run(*setting, 'reduced')
  # Printed to four digits, from runs of errors that are as large.
  _close(found.recency_probability, _PRINTED[setting], found.recency_probability_error,
         atol=1e-4)


@pytest.mark.slow
def test_without_layer_norm_the_order_is_reversed_from_layer_3_on():
  found = _run(64, 0.0, False, 0.0, 'reduced')
  row = found.mean[:, 9, :9]
  for layer in (2, 3):
    assert (np.diff(row[layer]) < 0).all()
    assert found.recency_probability[layer] < 0.01 < 0.99 < found.violation_rate[layer]
  # Yet weights stay nearly uniform, as logits are small.
  np.testing.assert_allclose(found.mean_weights[:, 9], 0.1, atol=0.02)


@pytest.mark.slow
def test_layer_norm_favours_recent_tokens_the_more_the_deeper():
  for residual in (0.0, 1.0):
    found = _run(64, 0.5, True, residual, 'reduced')
    assert (np.diff(found.mean[1:, 9]) > 0).all()
    assert (np.diff(found.recency_probability) > 0).all()
    assert (np.diff(found.violation_rate) < 0).all()
    diagonal = np.diagonal(found.mean, axis1=1, axis2=2)
    np.testing.assert_allclose(diagonal, 8.0, rtol=1e-6)


@pytest.mark.parametrize('width, anisotropy', [(64, 0.5), (4, 0.5), (16, 0.8)])
def test_the_mean_score_of_layer_1_is_known_at_any_width(key, width, anisotropy):
  found = _small(
      key, width=width, anisotropy=anisotropy, num_simulations=100_000
  )
  below = np.tril_indices(3, -1)
  expected = exact_mean_layer1_score(width, anisotropy)
  _close(found.mean[0][below], expected, found.standard_error[0][below])
  # Which is not that of the limit.
  short = anisotropy * width**0.5 - found.mean[0][below]
  if width == 4:
    assert (short > 20 * found.standard_error[0][below]).all()


def test_the_mean_score_of_layer_2_is_not_the_closed_form(key):
  found = _small(key, width=16, num_simulations=400_000)
  below = np.tril_indices(3, -1)
  beyond = (found.mean[1] - layer2_scores(3, 16))[below]
  assert (beyond > 5 * found.standard_error[1][below]).all()
  assert (beyond < 0.05).all()


# Sums.


def _numpy_run(key, num_simulations, sampler, width, anisotropy, layer_norm, residual):
  """The same draws, all scores of all simulations in numpy: what `_small` tells."""
  n, layers = 3, 2
  grams = []
  for chunk in range(-(-num_simulations // _CHUNK)):
    own_key = jax.random.fold_in(key, chunk)
    if sampler == 'reduced':
      law = factor_law(n, width, anisotropy, layer_norm)
      x = _draw_factor(own_key, _CHUNK, *map(jnp.float32, law))
    else:
      x = _draw_tokens(own_key, _CHUNK, n, width, jnp.float32(anisotropy))
    x = np.moveaxis(np.asarray(x, np.float64), -1, 0)
    if sampler == 'direct' and layer_norm:
      x -= x.mean(-1, keepdims=True)
    grams.append(x @ np.swapaxes(x, -1, -2))
  gram = np.concatenate(grams)[:num_simulations]
  scores = gram_recursion(gram, width, layers, layer_norm, residual)
  weights = _softmax(scores)
  at = lambda i, j: scores[..., i - 1, j - 1]
  rising = at(3, 2) > at(3, 1)
  triples = [at(2, 1) >= at(2, 2), at(3, 1) >= at(3, 2), at(3, 1) >= at(3, 3),
             at(3, 2) >= at(3, 3)]
  each = scores, weights, rising, np.mean(triples, axis=0)
  error = lambda x: x.std(0, ddof=1) / num_simulations**0.5
  return [x.mean(0) for x in each], [error(x) for x in each]


@pytest.mark.parametrize('sampler, width, layer_norm, residual', [
    ('reduced', 4, True, 0.7),
    ('direct', 4, True, 0.7),
    ('reduced', 3, False, 0.0),
])
def test_means_and_errors_are_those_of_all_simulations_at_once(
    key, sampler, width, layer_norm, residual
):
  for number in (7, 2 * _CHUNK, _CHUNK + 1):
    setting = dict(sampler=sampler, width=width, layer_norm=layer_norm,
                   anisotropy=0.5, residual=residual)
    found = _small(key, num_simulations=number, **setting)
    assert found.num_simulations == number
    mean, error = _numpy_run(key, number, **setting)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    close(found.mean, mean[0])
    close(found.mean_weights, mean[1])
    close(found.recency_probability, mean[2])
    close(found.violation_rate, mean[3])
    # That of the diagonal is 0.
    close(found.standard_error, error[0])
    close(found.recency_probability_error, error[2])
    close(found.violation_rate_error, error[3])


def test_one_simulation_tells_what_its_logits_tell(key):
  told = _small(key, width=4, num_simulations=1, sampler='direct', anisotropy=0.5)
  tokens = _draw_tokens(jax.random.fold_in(key, 0), _CHUNK, 3, 4, jnp.float32(0.5))
  scores = causal_stack(tokens[..., 0], 2)
  np.testing.assert_allclose(scores, told.mean, rtol=1e-5, atol=1e-5)
  _, *shares = jax.jit(recency_of_logits)(scores)
  expected = told.recency_probability, told.violation_rate
  np.testing.assert_allclose(shares, expected, rtol=1e-6, atol=1e-6)


def test_of_one_simulation_there_is_no_error(key):
  found = _small(key, num_simulations=1)
  assert np.isfinite(found.mean).all() and np.isfinite(found.mean_weights).all()
  assert np.isnan(found.standard_error).all()
  assert np.isnan(found.recency_probability_error).all()
  assert np.isnan(found.violation_rate_error).all()


# The last needs several calls.
@pytest.mark.parametrize('first, last', [(1, 7), (_CHUNK, _CHUNK + 1), (2001, 5999),
                                         (7 * _CHUNK - 1, 9 * _CHUNK), (3, 400_001)])
def test_a_longer_run_is_the_same_from_a_shorter_one(key, first, last):
  at_once = _small(key, num_simulations=last, anisotropy=0.5)
  short = _small(key, num_simulations=first, anisotropy=0.5)
  assert short.totals.num_chunks == first // _CHUNK
  for _ in range(2):  # the totals that it starts from are unchanged
    continued = _small(
        key, num_simulations=last, anisotropy=0.5, previous=short.totals
    )
    _equal(continued, at_once)
  _equal(_small(key, num_simulations=last, anisotropy=0.5, previous=at_once.totals),
         at_once)


def test_totals_of_another_run_are_refused(key):
  same = dict(num_simulations=_CHUNK, anisotropy=0.5)
  previous = _small(key, **same).totals
  more = dict(num_simulations=2 * _CHUNK, previous=previous)
  for other in ({'anisotropy': 0.4}, {'width': 63}, {'residual': 1.0},
                {'layer_norm': False}, {'sampler': 'direct'}, {'num_layers': 3},
                {'num_tokens': 4}):
    with pytest.raises(ValueError, match='previous is of another run') as error:
      _small(key, **{**same, **more, **other})
    assert '\n' not in str(error.value)
  with pytest.raises(ValueError, match=r'has key=\[0, 0\], this run has key=\[0, 7\];'):
    _small(jax.random.key(7), **{**same, **more})
  with pytest.raises(ValueError, match='2000 simulations already: 1999'):
    _small(key, **{**same, **more, 'num_simulations': 1999})


def test_progress_rises_to_the_number_of_simulations(key):
  number, seen = 400_001, []
  _small(key, num_simulations=number, progress=seen.append)
  assert len(seen) > 1 and seen[-1] == number
  assert (np.diff(seen) > 0).all()
  previous = _small(key, num_simulations=3 * _CHUNK).totals
  seen.clear()
  _small(key, num_simulations=3 * _CHUNK + 1, progress=seen.append, previous=previous)
  assert seen == [3 * _CHUNK + 1]


def test_a_key_tells_the_draws(key):
  run = functools.partial(_small, num_simulations=1000, anisotropy=0.5)
  _equal(run(key), run(key))
  assert (run(key).mean[:, 2, 1] != run(jax.random.key(1)).mean[:, 2, 1]).all()
  # No chunk is drawn twice.
  one, two = (_small(key, num_simulations=k * _CHUNK, anisotropy=0.5) for k in (1, 2))
  assert (one.mean[:, 2, 1] != two.mean[:, 2, 1]).all()
  _close(one.mean, two.mean, one.standard_error, two.standard_error)


_ONE_DEVICE = """
import pickle, sys
import jax
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 1)
from vvlen.simulation import simulate_recency
assert jax.device_count() == 1
found = simulate_recency(jax.random.key(0), **eval(sys.argv[1]))
pickle.dump(tuple(found)[:8], sys.stdout.buffer)
"""


@pytest.mark.slow
@pytest.mark.optimized
def test_the_number_of_devices_does_not_matter(key):
  setting = dict(num_tokens=3, num_layers=2, num_simulations=23 * _CHUNK + 7,
                 anisotropy=0.5, residual=1.0)
  done = subprocess.run(
      [sys.executable, '-c', _ONE_DEVICE, repr(setting)], cwd=ROOT, check=True,
      stdout=subprocess.PIPE,
  )
  expected = pickle.loads(done.stdout)
  assert jax.device_count() == 8
  found = simulate_recency(key, **setting)
  largest = 64**0.5
  for one, two in zip(found[:8], expected, strict=True):
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-6 * largest)


def _recorded(monkeypatch):
  """Returns a list to which every program that is run will be added, and its group."""
  programs, program = [], chunks._program

  def record(chunk, mesh, group):
    programs.append((program(chunk, mesh, group), group))
    return programs[-1][0]

  monkeypatch.setattr(chunks, '_program', record)
  return programs


def test_widths_and_cosines_share_one_program(key, monkeypatch):
  programs, sizes = _recorded(monkeypatch), []
  for width, anisotropy, residual in ((64, 0.5, 0.0), (16, 0.0, 1.0), (1024, 0.8, 0.3)):
    found = _small(key, num_simulations=7, width=width, anisotropy=anisotropy,
                   residual=residual)
    np.testing.assert_allclose(found.mean[:, 1, 1], width**0.5, rtol=1e-6)
    sizes.append(programs[-1][0]._cache_size())
  first = programs[0][0]
  assert [program is first for program, _ in programs] == [True] * 3
  assert sizes[0] > 0 and len(set(sizes)) == 1


@pytest.mark.slow
def test_an_accelerator_computes_chunks_together(key, monkeypatch):
  run = functools.partial(
      _small, key, num_simulations=30 * _CHUNK + 1, anisotropy=0.5
  )
  expected = run()
  monkeypatch.setattr(platform, 'target', lambda *_: 'gpu')
  chunks._chunk.cache_clear()  # traced as for a CPU
  monkeypatch.setattr(chunks, '_CHUNKS_AT_ONCE', 3)
  monkeypatch.setattr(chunks, '_CHUNKS_A_CALL', 1)
  programs, seen = _recorded(monkeypatch), []
  found = run(progress=seen.append)
  assert [group for _, group in programs] == [3]
  assert seen == [24 * _CHUNK, 30 * _CHUNK + 1]  # 8 devices, 3 chunks each
  for one, two in zip(found[:8], expected[:8], strict=True):
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-5)
  # A run may resume on other devices.
  short = _small(key, num_simulations=_CHUNK, anisotropy=0.5)
  continued = run(previous=short.totals)
  np.testing.assert_allclose(continued.mean, expected.mean, rtol=0, atol=1e-5)
  chunks._chunk.cache_clear()


@pytest.mark.slow
def test_an_accelerator_returns_no_more_than_its_limit(key, monkeypatch):
  monkeypatch.setattr(platform, 'target', lambda *_: 'gpu')
  monkeypatch.setattr(chunks, '_NUMBERS_A_CALL', 300)  # a chunk returns 70
  chunks._chunk.cache_clear()
  programs, seen = _recorded(monkeypatch), []
  _small(key, num_simulations=40 * _CHUNK, anisotropy=0.5, progress=seen.append)
  assert [group for _, group in programs] == [4]
  assert seen == [32 * _CHUNK, 40 * _CHUNK]  # 8 devices
  chunks._chunk.cache_clear()


def test_short_inputs_are_never_too_few_for_vector_units(key, monkeypatch):
  sizes = []

  def chunk(*rest):
    sizes.append(rest[-1])
    raise NotImplementedError

  monkeypatch.setattr(chunks, '_chunk', chunk)
  for setting in (
      {'num_tokens': 10, 'width': 1024, 'sampler': 'direct'}, {'num_tokens': 10},
      {'num_tokens': 160, 'width': 161},
  ):
    with pytest.raises(NotImplementedError):
      simulate_recency(key, num_simulations=1, **{'width': 64, **setting})
  assert sizes == [20, 1000, 1]


@pytest.mark.slow
def test_float64_agrees_with_the_reference(key, reference):
  with jax.enable_x64(True):
    found = _small(
        key, width=64, anisotropy=0.5, num_simulations=_MANY, dtype=jnp.float64
    )
  # Tokens do not see later ones: those of three are the first three of ten.
  expected = lambda what: np.tril(reference[f'd64_LN_a0.5/{what}'][:2, :3, :3])
  _close(found.mean, expected('mean'), found.standard_error, expected('se'))
  diagonal = np.diagonal(found.mean, axis1=1, axis2=2)
  np.testing.assert_allclose(diagonal, 8.0, rtol=1e-14)


# Bad input.


@pytest.mark.parametrize('setting, words', [
    ({'anisotropy': 1.0}, r'anisotropy must lie in \[0, 1\).*: 1.0'),
    ({'anisotropy': -0.1}, 'anisotropy.*: -0.1'),
    ({'anisotropy': float('nan')}, 'anisotropy.*: nan'),
    ({'residual': float('inf')}, 'residual must be finite: inf'),
    ({'num_tokens': 0}, 'num_tokens must be a positive whole number: 0'),
    ({'width': 0}, 'width must be a positive whole number: 0'),
    ({'width': 2.5}, 'width must be a positive whole number: 2.5'),
    ({'num_layers': 0}, 'num_layers must be a positive whole number: 0'),
    ({'num_simulations': 0}, 'num_simulations must be a positive whole number: 0'),
    ({'num_simulations': 1e5}, 'num_simulations must be a positive whole number: 1'),
    ({'sampler': 'gram'}, "sampler must be one of reduced, direct: 'gram'"),
    ({'width': 1, 'num_tokens': 1}, 'LayerNorm needs a width of at least 2: 1'),
    ({'width': 1, 'sampler': 'direct'}, 'LayerNorm needs a width of at least 2: 1'),
    ({'num_tokens': 16, 'width': 16}, "at least 17 for 16 tokens.*: 16;.*'direct'"),
    ({'num_tokens': 17, 'width': 16, 'layer_norm': False},
     "at least 17 for 17 tokens: 16;.*'direct'"),
    ({'dtype': 'float64'}, 'float64 needs jax_enable_x64'),
])
def test_bad_input_is_named_in_one_line(key, setting, words):
  with pytest.raises(ValueError, match=words) as error:
    simulate_recency(key, **setting)
  assert '\n' not in str(error.value)


@pytest.mark.slow
def test_as_many_tokens_as_dimensions_are_served_without_layer_norm(key):
  mixing, polynomials = factor_law(16, 16, 0.5, layer_norm=False)
  np.testing.assert_array_equal(polynomials, polynomials_of(np.arange(16, 0, -1)))
  gram = (np.eye(16) + 1) / 16
  np.testing.assert_allclose(mixing @ mixing.T, gram, rtol=1e-13)
  found = _small(key, width=3, layer_norm=False, num_simulations=7)
  assert np.isfinite(found.mean).all()
  # And any number of them where the tokens themselves are drawn.
  found = simulate_recency(
      key, num_tokens=3, width=2, num_layers=1, num_simulations=7, sampler='direct'
  )
  # At width 2, Z is ±1.
  np.testing.assert_allclose(np.diagonal(found.mean[0]), 2**0.5, rtol=1e-6)


def test_a_result_serves_as_previous_like_its_totals(key):
  short = _small(key, num_simulations=2500)
  by_result = _small(key, num_simulations=4500, previous=short)
  _equal(by_result[:7], _small(key, num_simulations=4500, previous=short.totals)[:7])
  # Numbers of another type are the same setting.
  _small(key, num_simulations=4500, previous=short, residual=np.float64(0), width=64)


@pytest.mark.parametrize('setting, words', [
    ({'dtype': jnp.bfloat16}, 'dtype must be float32 or float64'),
    ({'anisotropy': 1 - 1e-9}, 'anisotropy is 1 in float32'),
    ({'anisotropy': 'half'}, "anisotropy must be a number: 'half'"),
    ({'residual': None}, 'residual must be a number: None'),
])
def test_what_no_simulation_can_compute_is_named(key, setting, words):
  with pytest.raises(ValueError, match=words):
    _small(key, num_simulations=10, **setting)
