"""The closed forms, by hand, against each other, and against the reference."""

import json

import numpy as np
import pytest
from scipy import integrate, special

from tests.cases import mostly_slow
from tests.conftest import ROOT
from vvlen.theory.recency import (
    exact_mean_layer1_score,
    gram_recursion,
    h,
    layer1_scores,
    layer2_scores,
    residual_in_units_of_z,
)

E = np.e


@pytest.fixture(scope='module')
def reference():
  with np.load(ROOT / 'tests/data/recency.npz') as arrays:
    return dict(arrays)


def _equicorrelated(num_tokens, anisotropy):
  """The Gram matrix of the simulation's tokens, in the limit."""
  return np.eye(num_tokens) + anisotropy / (1 - anisotropy)


def test_scores_of_layer_1_are_products_of_rows_of_norm_sqrt_d():
  np.testing.assert_allclose(
      layer1_scores(3, 16, 0.25), [[4, 0, 0], [1, 4, 0], [1, 1, 4]], rtol=1e-15
  )
  # Squared norm 1 / (1 − α) = 4/3, product 1/3, over √d.
  np.testing.assert_allclose(
      layer1_scores(2, 16, 0.25, layer_norm=False), [[1 / 3, 0], [1 / 12, 1 / 3]],
      rtol=1e-15,
  )


def test_scores_of_layer_2_by_hand():
  # d = 4: r = 2. Token 1 is its own mean, token 2 weighs E : 1.
  first = 2 / np.sqrt(E**4 + 1)
  third = 2 * E**2 / np.sqrt((E**4 + 2) * E**4)
  second = 2 * (E**2 + 1) / np.sqrt((E**4 + 2) * (E**4 + 1))
  np.testing.assert_allclose(
      layer2_scores(3, 4), [[2, 0, 0], [first, 2, 0], [third, second, 2]], rtol=1e-14
  )


@pytest.mark.parametrize('width', [5, 16, 64])
def test_scores_of_isotropic_tokens_in_layer_2(width):
  root = np.sqrt(width)
  scores = layer2_scores(7, width)
  for i in range(1, 8):
    for j in range(1, i):
      numerator = root * (np.exp(root) + j - 1)
      squares = (np.exp(2 * root) + i - 1) * (np.exp(2 * root) + j - 1)
      expected = numerator / np.sqrt(squares)
      np.testing.assert_allclose(scores[i - 1, j - 1], expected, rtol=1e-13)


def test_without_layer_norm_the_key_does_not_matter():
  # d = 4: b = 1/2.
  b = 0.5
  second, third = (b / (np.exp(b) + k) for k in (1, 2))
  diagonal = [b * (E + k) / (np.exp(b) + k) ** 2 for k in (0, 1, 2)]
  np.testing.assert_allclose(diagonal[0], b, rtol=1e-15)
  np.testing.assert_allclose(
      layer2_scores(3, 4, layer_norm=False),
      [[diagonal[0], 0, 0], [second, diagonal[1], 0], [third, third, diagonal[2]]],
      rtol=1e-14,
  )


@pytest.mark.parametrize('width', [16, 64, 251])
@pytest.mark.parametrize('anisotropy', [0.0, 0.3, 0.9])
@pytest.mark.parametrize('residual', [0.0, 1.0, 0.2, -0.3])
def test_layer_2_and_h_are_the_formulas_as_written(width, anisotropy, residual):
  alpha, c, r = anisotropy, residual, np.sqrt(width)
  own, other = np.exp(r), np.exp(alpha * r)
  total = own + np.arange(7) * other
  across = alpha * (1 + c) ** 2 + (1 - alpha) * (1 + c) * other / total
  square = (
      c**2 + 2 * c * alpha + alpha + (1 - alpha) * (2 * c * own + other) / total
      + (1 - alpha) * (own**2 - own * other) / total**2
  )
  expected = r * across[:, None] / np.sqrt(np.outer(square, square))
  np.fill_diagonal(expected, r)
  found = layer2_scores(7, width, alpha, c)
  np.testing.assert_allclose(found, np.tril(expected), rtol=1e-12)
  np.testing.assert_allclose(h(7, width, alpha, c), square**-0.5, rtol=1e-12)


@pytest.mark.parametrize('width', [2, 16, 64, 10**6])
@pytest.mark.parametrize('anisotropy', [0.0, 0.3, 0.9])
@pytest.mark.parametrize('residual', [0.0, 1.0, 0.3])
def test_the_gram_recursion_of_equal_cosines_gives_the_closed_forms(
    width, anisotropy, residual
):
  # Rows of Z: the norm is √d, and c is in its units.
  gram = width * ((1 - anisotropy) * np.eye(11) + anisotropy)
  expected = [
      layer1_scores(11, width, anisotropy),
      layer2_scores(11, width, anisotropy, residual),
  ]
  found = gram_recursion(gram, width, 2, residual=residual)
  np.testing.assert_allclose(found, expected, rtol=1e-12)
  # The simulation's tokens, to which c is relative, are shorter.
  in_z = residual_in_units_of_z(residual, width, anisotropy)
  expected[1] = layer2_scores(11, width, anisotropy, in_z)
  gram = _equicorrelated(11, anisotropy)
  found = gram_recursion(gram, width, 2, residual=residual)
  np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize('width', [2, 16, 64])
def test_the_gram_recursion_without_layer_norm_gives_the_closed_forms(width):
  for anisotropy in (0.0, 0.3):
    gram = _equicorrelated(11, anisotropy)
    first = gram_recursion(gram, width, 1, layer_norm=False)[0]
    expected = layer1_scores(11, width, anisotropy, layer_norm=False)
    np.testing.assert_allclose(first, expected, rtol=1e-13)
  second = gram_recursion(np.eye(11), width, 2, layer_norm=False)[1]
  expected = layer2_scores(11, width, layer_norm=False)
  np.testing.assert_allclose(second, expected, rtol=1e-12, atol=1e-15)


def test_the_gram_recursion_takes_leading_axes_and_leaves_its_input_alone():
  rows = np.random.default_rng(0).normal(size=(2, 3, 5, 7))
  gram = rows @ np.swapaxes(rows, -1, -2)
  before = gram.copy()
  together = gram_recursion(gram, 7, 4, residual=0.5)
  assert together.shape == (2, 3, 4, 5, 5)
  for i in np.ndindex(2, 3):
    alone = gram_recursion(gram[i], 7, 4, residual=0.5)
    np.testing.assert_allclose(together[i], alone, rtol=1e-12, atol=1e-14)
  np.testing.assert_array_equal(gram, before)
  # LayerNorm does not see a row's length, the residual does: in layer 1, as in deeper
  # ones the stream has the length that the layers give it.
  longer = gram_recursion(4 * gram, 7, 2, residual=0.25)
  np.testing.assert_allclose(longer, together[..., :2, :, :], rtol=1e-11, atol=1e-13)
  assert (together[..., *np.triu_indices(5, 1)] == 0).all()


@pytest.mark.parametrize('width', [16, 64])
@pytest.mark.parametrize('anisotropy', [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize('residual', [0.0, 0.2, 1.0])
def test_the_more_recent_key_has_the_larger_score(width, anisotropy, residual):
  assert (np.diff(h(10, width, anisotropy, residual)) > 0).all()
  scores = layer2_scores(10, width, anisotropy, residual)
  for i in range(10):
    assert (np.diff(scores[i, : i + 1]) > 0).all()


def test_curves_of_figure_2_cross_between_keys_8_and_9():
  steeper = h(10, 64, 0.8) - h(10, 64, 0.6)
  assert steeper[0] == pytest.approx(0, abs=1e-15)  # token 1 is its own mean
  assert (steeper[1:8] > 0).all() and (steeper[8:] < 0).all()


def test_widths_whose_exponentials_overflow_reach_their_limit():
  r, n = 1000.0, 5
  limit = np.tril(np.full((n, n), 0.3 * r), -1) + r * np.eye(n)
  with np.errstate(all='raise', under='ignore'):
    for residual in (0.0, 1.0):
      scores = layer2_scores(n, 10**6, 0.3, residual)
      np.testing.assert_allclose(scores, limit, rtol=1e-12)
      found = h(n, 10**6, 0.3, residual)
      np.testing.assert_allclose(found, 1 / (1 + residual), rtol=1e-12)
    gram = _equicorrelated(n, 0.3)
    for scores in gram_recursion(gram, 10**6, 3):
      np.testing.assert_allclose(scores, limit, rtol=1e-12)
    without = layer2_scores(n, 10**6, layer_norm=False)
    np.testing.assert_allclose(without[-1, 0], 1e-3 / (n + 1e-3), rtol=1e-6)


def test_the_residual_of_the_simulation_is_a_fraction_in_units_of_z():
  assert residual_in_units_of_z(1, 64, 0.5) == pytest.approx(0.1768, abs=5e-5)
  assert residual_in_units_of_z(0, 64, 0.5) == 0
  assert residual_in_units_of_z(3.0, 16, 0.75) == pytest.approx(1.5, rel=1e-15)


def test_a_residual_in_the_wrong_units_misses_the_simulation():
  # Row 10, keys 1 and 9, as simulated with c = 1 at d = 64, α = 0.5.
  simulated = np.array([4.302, 4.560])
  off = lambda c: np.abs(layer2_scores(10, 64, 0.5, c)[9, [0, 8]] - simulated)
  assert off(1.0).max() == pytest.approx(0.25, abs=0.005)
  assert off(residual_in_units_of_z(1.0, 64, 0.5)).max() < 0.025


def test_the_closed_form_is_not_the_mean_of_a_simulation():
  # Logits of isotropic tokens have a deviation of 1 around 0 at any width.
  row = layer2_scores(10, 64)[9, :9]
  assert (row > 0.00268).all() and (row < 0.00270).all()
  assert (row < 0.65 * 0.00430).all()  # simulated: 0.00430 to 0.00432


def test_mean_score_of_layer_1_at_the_papers_width():
  assert exact_mean_layer1_score(64, 0.5) == pytest.approx(3.976077, abs=1e-6)
  assert exact_mean_layer1_score(64, 0.0) == 0


@pytest.mark.parametrize('anisotropy', [0.1, 0.5, 0.9, 0.999])
def test_at_width_2_logits_are_signs_that_agree_by_the_arc_sine(anisotropy):
  expected = 2**0.5 * 2 / np.pi * np.arcsin(anisotropy)
  assert exact_mean_layer1_score(2, anisotropy) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('anisotropy', mostly_slow([0.2, 0.5, 0.9], 2))
def test_at_width_3_logits_are_cosines_in_the_plane(anisotropy):
  # y = α x + √(1 − α²) w: u = |x| / |w| is a ratio of Rayleigh variables, and the
  # angle φ between them uniform.
  def density(phi, v):
    u = v / (1 - v)
    across = anisotropy * u + (1 - anisotropy**2) ** 0.5 * np.cos(phi)
    beside = (1 - anisotropy**2) ** 0.5 * np.sin(phi)
    ratio = 2 * u / (1 + u**2) ** 2 / (1 - v) ** 2
    return across / np.hypot(across, beside) * ratio / np.pi

  mean, _ = integrate.dblquad(density, 0, 1, 0, np.pi, epsabs=1e-8, epsrel=1e-8)
  expected = 3**0.5 * mean
  assert exact_mean_layer1_score(3, anisotropy) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('anisotropy', [0.2, 0.5, 0.9])
def test_the_mean_score_of_layer_1_tends_to_alpha_sqrt_d(anisotropy):
  # A sample correlation falls short of α by α (1 − α²) / 2ν, to first order.
  width = 10**4
  share = exact_mean_layer1_score(width, anisotropy) / (anisotropy * width**0.5)
  expected = (1 - anisotropy**2) / 2 / (width - 1)
  assert 1 - share == pytest.approx(expected, rel=1e-3)


def test_closed_forms_are_those_of_the_reference(reference):
  seen = 0
  for name, expected in reference.items():
    kind, _, what = name.partition('/')
    if kind != 'closed':
      continue
    quantity, *settings = what.split('_')
    if settings[0] in ('LN', 'noLN'):
      layer_norm, width = settings[0] == 'LN', int(settings[1][1:])
      if quantity == 'A1':
        scores = layer1_scores(10, width, layer_norm=layer_norm)
        causal = np.tri(10, dtype=bool)
        found = special.softmax(np.where(causal, scores, -np.inf), axis=-1)
      else:
        found = layer2_scores(10, width, layer_norm=layer_norm)
    else:
      width, anisotropy, residual = (float(setting[1:]) for setting in settings)
      formula = {'S2': layer2_scores, 'h': h}[quantity]
      found = formula(10, int(width), anisotropy, residual)
    expected = np.tril(expected) if expected.ndim == 2 else expected
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, err_msg=name)
    seen += 1
  assert seen == 92


def test_limits_are_those_of_the_reference(reference):
  settings = json.loads(str(reference['meta_json']))
  assert len(settings) == 26
  for name, each in settings.items():
    found = gram_recursion(
        _equicorrelated(10, each['alpha']), each['d'], each['layers'], each['ln'],
        each['c'],
    )
    expected = np.tril(reference[f'{name}/limit'])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11, err_msg=name)


_FORMULAS = {
    'layer1_scores': layer1_scores, 'layer2_scores': layer2_scores, 'h': h,
}


def _refuses(words, function, *arguments, **keywords):
  with pytest.raises(ValueError, match=words) as error:
    function(*arguments, **keywords)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('name', _FORMULAS)
def test_a_cosine_or_a_size_that_no_stack_has_is_named(name):
  function = _FORMULAS[name]
  for anisotropy in (1, 1.0, -0.1, float('nan'), float('inf')):
    words = rf'anisotropy must lie in \[0, 1\).*: {anisotropy}$'
    _refuses(words, function, 3, 16, anisotropy)
  for size in (0, -1, 2.5, 3.0, float('nan'), True, '3'):
    _refuses(f'num_tokens must be a positive whole number: {size!r}$', function, size,
             16)
    _refuses(f'width must be a positive whole number: {size!r}$', function, 3, size)
  expected = function(3, 16)
  np.testing.assert_array_equal(function(np.int64(3), np.int32(16)), expected)


def test_a_residual_that_is_not_finite_is_named():
  for value in (float('inf'), float('-inf'), float('nan')):
    words = f'residual must be finite: {value}$'
    _refuses(words, layer2_scores, 3, 16, 0.5, value)
    _refuses(words, h, 3, 16, 0.5, value)
    _refuses(words, residual_in_units_of_z, value, 16, 0.5)
    _refuses(words, gram_recursion, np.eye(3), 16, 2, residual=value)


def test_what_is_not_known_without_layer_norm_is_named():
  _refuses('without layer_norm.*: 0.5, 0.0$', layer2_scores, 3, 16, 0.5,
           layer_norm=False)
  _refuses('without layer_norm.*: 0.0, 1.0$', layer2_scores, 3, 16, 0.0, 1.0, False)


def test_widths_and_cosines_of_the_other_functions_are_named():
  for anisotropy in (1, -0.1, float('nan')):
    words = f'anisotropy.*: {anisotropy}$'
    _refuses(words, residual_in_units_of_z, 1.0, 16, anisotropy)
    _refuses(words, exact_mean_layer1_score, 16, anisotropy)
  for width in (0, -1, 2.5):
    words = f'width must be a positive whole number: {width}$'
    _refuses(words, residual_in_units_of_z, 1.0, width, 0.5)
    _refuses(words, exact_mean_layer1_score, width, 0.5)
    _refuses(words, gram_recursion, np.eye(3), width, 2)
  _refuses('width of at least 2: 1$', exact_mean_layer1_score, 1, 0.5)


@pytest.mark.parametrize('gram, words', [
    (np.ones(3), r'square.*\(3,\)'),
    (np.ones((2, 3)), r'square.*\(2, 3\)'),
    (2.0, r'square.*\(\)'),
    (np.ones((0, 0)), 'num_tokens must be a positive whole number: 0'),
    (np.array([[1.0, 0.5], [0.4, 1.0]]), 'symmetric'),
    (np.array([[1.0, np.nan], [np.nan, 1.0]]), 'not finite'),
    (np.array([[np.inf, 0.0], [0.0, 1.0]]), 'not finite'),
    (np.diag([1.0, 0.0]), 'diagonal must be positive'),
    (np.diag([1.0, -1.0]), 'diagonal must be positive'),
])
def test_a_matrix_that_is_no_gram_matrix_is_named(gram, words):
  _refuses(words, gram_recursion, gram, 16, 2)
  for num_layers in (0, -1, 2.5):
    _refuses(f'num_layers must be a positive whole number: {num_layers}$',
             gram_recursion, np.eye(2), 16, num_layers)


def test_a_row_of_zeros_needs_no_layer_norm_to_be_left_alone():
  scores = gram_recursion(np.diag([1.0, 0.0]), 16, 2, layer_norm=False)
  np.testing.assert_array_equal(scores[0], [[0.25, 0.0], [0.0, 0.0]])
  assert np.isfinite(scores).all()
