"""Rotary positions: rates of every kind, by formulas, by numbers of the papers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vvlen.models import rope, rope_extensions
from vvlen.models.clex import Clex
from vvlen.models.rope import (
    Dynamic,
    Eabf,
    extended,
    KINDS,
    Linear,
    Llama3,
    LongRope,
    Ntk,
    Rope,
    Yarn,
)


def _rates(stretched, width=8, length=1, base=10_000.0):
  return rope.rates(Rope(base, stretched), width, length)


def test_plain_rates_are_powers_of_the_base():
  found, scale = _rates(None)
  np.testing.assert_allclose(found, [1.0, 0.1, 0.01, 0.001], rtol=1e-12)
  assert scale == 1


def test_linear_divides_every_rate():
  np.testing.assert_allclose(_rates(Linear(4.0))[0], _rates(None)[0] / 4, rtol=1e-12)


def test_ntk_keeps_the_fastest_rate_and_divides_the_slowest_by_the_factor():
  for width in (8, 128):
    ratio = _rates(Ntk(4.0), width=width)[0] / _rates(None, width=width)[0]
    assert ratio[0] == 1 and (np.diff(ratio) < 0).all()
    np.testing.assert_allclose(ratio[-1], 1 / 4, rtol=1e-12)
  # Dynamic NTK of factor 4 at 1,024 tokens, twice its original length, grows by 5.
  np.testing.assert_allclose(_rates(Ntk(5.0))[0][1], 0.05848035, rtol=1e-6)


@pytest.mark.parametrize('length,second', [
    (512, 0.1), (1024, 0.05848035), (2048, 0.042529),
])
def test_dynamic_has_the_known_second_rate(length, second):
  found, _ = _rates(Dynamic(4.0, 512), length=length)
  np.testing.assert_allclose(found[1], second, rtol=1e-5)


def test_dynamic_of_an_array_of_lengths_is_that_of_each():
  lengths = [3, 512, 513, 2048]
  together, _ = _rates(Dynamic(4.0, 512), length=jnp.asarray(lengths))
  assert together.shape == (4, 4)
  for row, length in zip(together, lengths, strict=True):
    np.testing.assert_allclose(row, _rates(Dynamic(4.0, 512), length=length)[0], 2e-6)


def test_borders_of_yarn_in_llama_2_are_planes_20_and_46():
  assert rope_extensions.yarn_borders(1e4, 128, Yarn(8.0, 4096)) == (20, 46)


@pytest.mark.parametrize('length, borders', [
    (2**27, (5, 7)),  # planes of 32 turns and of one: 5.8 and 7.3, beyond d − 1
    (2**20, (3, 6)),  # 3.7 and 5.2, beyond the last plane, 3
    (4, (0, 0.001)),  # −2.0 and −0.2
])
def test_borders_of_yarn_are_kept_within_0_and_d_minus_1(length, borders):
  assert rope_extensions.yarn_borders(1e4, 8, Yarn(4.0, length)) == borders


def test_yarn_leaves_fast_planes_and_slows_slow_ones_by_the_factor():
  # Llama 2: d = 128, L₀ = 4096, planes up to 20 and from 46 on.
  found, scale = _rates(Yarn(8.0, 4096), width=128)
  ratio = found / _rates(None, width=128)[0]
  np.testing.assert_allclose(ratio[:21], 1.0, rtol=1e-12)
  np.testing.assert_allclose(ratio[46:], 1 / 8, rtol=1e-12)
  assert (ratio[21:46] < 1).all() and (ratio[21:46] > 1 / 8).all()
  np.testing.assert_allclose(np.diff(ratio[20:47]), (1 / 8 - 1) / 26, rtol=1e-9)
  assert math.isclose(scale, 0.1 * math.log(8) + 1)


def test_yarn_takes_a_scale_of_its_own_and_borders_that_are_not_rounded():
  found, scale = _rates(Yarn(8.0, 4096, truncate=False, scale=1.5), width=128)
  assert scale == 1.5
  # Of β = 32 and 1: 20.94 and 45.03.
  ratio = found / _rates(None, width=128)[0]
  assert ratio[20] == 1 and ratio[21] < 1 and ratio[45] > 1 / 8
  low, high = (128 * math.log(4096 / (2 * math.pi * b)) / (2 * math.log(1e4))
               for b in (32, 1))
  expected = 1 - 7 / 8 * (30 - low) / (high - low)
  np.testing.assert_allclose(ratio[30], expected, rtol=1e-9)


def test_yarn_without_stretching_changes_nothing():
  found, scale = _rates(Yarn(1.0, 512))
  np.testing.assert_allclose(found, _rates(None)[0], rtol=1e-12)
  assert scale == 1


def test_llama3_changes_by_wavelength():
  # Llama 3.1: d = 128, base 500,000, factor 8, bands at wavelengths 2048 and 8192.
  found, scale = _rates(Llama3(8.0, 8192), width=128, base=500_000.0)
  plain = _rates(None, width=128, base=500_000.0)[0]
  wavelength = 2 * np.pi / plain
  fast, slow = wavelength < 2048, wavelength > 8192
  np.testing.assert_allclose(found[fast], plain[fast], rtol=1e-12)
  np.testing.assert_allclose(found[slow], plain[slow] / 8, rtol=1e-12)
  between = ~fast & ~slow
  assert between.sum() >= 3 and scale == 1
  t = (8192 / wavelength[between] - 1) / 3
  np.testing.assert_allclose(
      found[between], t * plain[between] + (1 - t) * plain[between] / 8, rtol=1e-9
  )


def test_longrope_divides_by_one_list_up_to_the_original_length_and_then_by_another():
  fields = LongRope((1.0, 1.5, 2.0, 2.5), (4.0, 5.0, 6.0, 7.0), 64, 8.0)
  plain = _rates(None)[0]
  for length, divisors in ((64, fields.short_factor), (65, fields.long_factor)):
    found, scale = _rates(fields, length=length)
    np.testing.assert_allclose(found, plain / divisors, rtol=1e-12)
    np.testing.assert_allclose(scale, math.sqrt(1.5), rtol=1e-12)  # 8² = 64
  together, _ = _rates(fields, length=jnp.array([64, 65]))
  np.testing.assert_allclose(
      together, plain / [fields.short_factor, fields.long_factor], rtol=1e-6)
  assert _rates(fields._replace(scale=1.2))[1] == 1.2
  assert _rates(fields._replace(factor=1.0))[1] == 1


def test_eabf_has_another_base_and_longer_queries_at_later_positions():
  fields = Rope(1e4, Eabf(16))
  found, scale = rope.rates(fields, 8, 1)
  np.testing.assert_allclose(found, 500_000.0 ** -(np.arange(4) / 4), rtol=1e-12)
  assert scale == 1
  factor = rope.query_scale(fields, jnp.array([0, 1, 15, 16, 63, 255]), 1)
  np.testing.assert_allclose(
      factor, [1, 1, 1, math.log(17, 16), 1.5, 2], rtol=1e-6)
  np.testing.assert_array_equal(
      rope.scaled_layers(fields, 4), [False, False, True, True])
  every = fields._replace(stretched=Eabf(16, exempt_layers=0))
  assert rope.scaled_layers(every, 2).all()


def test_only_eabf_and_clex_scale_queries():
  others = [Linear(2.0), Ntk(2.0), Dynamic(2.0, 8), Yarn(2.0, 8), Llama3(2.0, 8), None,
            LongRope((1.0,) * 4, (2.0,) * 4, 8, 2.0), Clex(8, log_scale=False)]
  assert not any(rope.query_scale(Rope(1e4, x), jnp.arange(9), 9) is not None
                 for x in others)
  found = rope.query_scale(Rope(1e4, Clex(8)), jnp.arange(64), 64)
  np.testing.assert_allclose(found, [2.0], rtol=1e-6)
  by_row = rope.query_scale(Rope(1e4, Clex(8)), jnp.arange(64), jnp.array([64, 2]))
  np.testing.assert_allclose(by_row, [[2.0], [1 / 3]], rtol=1e-6)


@pytest.mark.parametrize('length', [1, 16, 17, 40, 4096])
@pytest.mark.parametrize('stretched, scaling', [
    (Linear(3.0), {'rope_type': 'linear', 'factor': 3.0}),
    (Dynamic(3.0, 16), {'rope_type': 'dynamic', 'factor': 3.0}),
    (Yarn(4.0, 16), {'rope_type': 'yarn', 'factor': 4.0,
                     'original_max_position_embeddings': 16}),
    (Llama3(8.0, 16), {
        'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0,
        'high_freq_factor': 4.0, 'original_max_position_embeddings': 16}),
    (LongRope((1.0, 1.5, 2.0, 2.5), (4.0, 5.0, 6.0, 7.0), 16, 8.0), {
        'rope_type': 'longrope', 'factor': 8.0, 'short_factor': [1.0, 1.5, 2.0, 2.5],
        'long_factor': [4.0, 5.0, 6.0, 7.0], 'original_max_position_embeddings': 16}),
], ids=lambda x: type(x).__name__)
def test_rates_against_transformers(stretched, scaling, length):
  utils = pytest.importorskip(
      'transformers.modeling_rope_utils',
      reason="compares with transformers: pip install '.[oracle]'")
  transformers = pytest.importorskip(
      'transformers', reason="compares with transformers: pip install '.[oracle]'")
  config = transformers.LlamaConfig(
      hidden_size=16, num_attention_heads=2, max_position_embeddings=16)
  # What both versions 4 and 5 take.
  config.rope_scaling = dict(scaling)
  if hasattr(config, 'rope_parameters'):
    config.rope_parameters = {'rope_theta': 10_000.0, **scaling}
  init = utils.ROPE_INIT_FUNCTIONS[scaling['rope_type']]
  expected, scale = init(config, 'cpu', seq_len=length)
  for given in (length, jnp.int32(length)):
    found, own = _rates(stretched, length=given)
    np.testing.assert_allclose(found, expected.numpy(), rtol=2e-6)
    np.testing.assert_allclose(own, scale, rtol=1e-6)


@pytest.mark.parametrize('kind, stretched', [
    ('none', None), ('linear', Linear(4.0)), ('ntk', Ntk(4.0)),
    ('dynamic', Dynamic(4.0, 512)), ('yarn', Yarn(4.0, 512)),
    ('llama3', Llama3(4.0, 512)), ('eabf', Eabf(512)), ('clex', Clex(512)),
])
def test_a_kind_is_chosen_by_its_name(kind, stretched):
  assert kind in KINDS
  assert extended(Rope(500.0), kind, 4.0, 512) == Rope(500.0, stretched)


def test_clex_goes_on_to_the_factor():
  assert extended(Rope(), 'clex', 31.5, 512).stretched == Clex(512, largest=32)


@pytest.mark.parametrize('arguments, says', [
    ((Rope(), 'linear', 0.5, 512), 'factor .* at least 1: 0.5'),
    ((Rope(), 'none', float('nan'), 512), 'factor .* at least 1: nan'),
    ((Rope(), 'clex', float('inf'), 512), 'factor .* finite .*: inf'),
    ((Rope(), 'pi', 2.0, 512), "one of none, linear, .*, clex: 'pi'"),
    ((Rope(1e4, Yarn(4.0, 512)), 'yarn', 4.0, 512), r'already: Yarn\(factor=4'),
    ((Rope(), 'yarn', 4.0, 0), 'original_length .* positive.*: 0'),
    ((Rope(), 'eabf', 4.0, 1), 'original_length .* more than 1: 1'),
])
def test_what_extends_nothing_is_refused(arguments, says):
  with pytest.raises(ValueError, match=says) as raised:
    extended(*arguments)
  assert '\n' not in str(raised.value)


def test_turned_queries_and_keys_know_their_distance_alone(key):
  q, k = jax.random.normal(key, (2, 1, 1, 1, 8))
  [rates, _] = _rates(Yarn(4.0, 16))

  def product(at, other):
    turned = []
    for x, p in ((q, at), (k, other)):
      angle = rope.angles(jnp.array([p]), rates)
      turned.append(rope.rotate_by(x, jnp.cos(angle), jnp.sin(angle)))
    return (turned[0] * turned[1]).sum()

  np.testing.assert_allclose(product(7, 3), product(104, 100), rtol=1e-4)
  assert abs(product(7, 3) - product(7, 4)) > 1e-3


def test_turning_is_a_rotation_of_features_half_a_head_apart():
  x = jnp.array([1.0, 0.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
  angle = jnp.array([[np.pi / 6, 1.0]])
  turned = rope.rotate_by(x, jnp.cos(angle), jnp.sin(angle))[0, 0, 0]
  np.testing.assert_allclose(turned, [math.sqrt(3) / 2, 0, 0.5, 0], atol=1e-6)


@pytest.mark.parametrize('positions,rates,shape', [
    ((5,), (4,), (5, 4)), ((2, 5), (4,), (2, 5, 4)), ((5,), (2, 4), (2, 5, 4)),
    ((2, 5), (2, 4), (2, 5, 4)),
])
def test_angles_are_of_each_row_where_positions_or_rates_are(positions, rates, shape):
  p = np.arange(np.prod(positions)).reshape(positions)
  w = 1.0 + np.arange(np.prod(rates)).reshape(rates)
  found = rope.angles(jnp.asarray(p), w)
  wide_p = np.broadcast_to(p, shape[:-1])[..., None]
  wide_w = np.broadcast_to(w[..., None, :], shape)
  np.testing.assert_allclose(found, wide_p * wide_w)


@pytest.mark.parametrize('bad,says', [
    (lambda: _rates(None, width=7), 'even width of heads: 7'),
    (lambda: _rates(Linear(0.0)), 'factor of rotary positions must be positive.*: 0.0'),
    *((lambda x=x: _rates(x), 'factor of rotary positions must be at least 1: 0.5')
      for x in (Linear(0.5), Ntk(0.5), Dynamic(0.5, 8), Yarn(0.5, 8), Llama3(0.5, 8),
                LongRope((1.0,) * 4, (1.0,) * 4, 8, 0.5))),
    (lambda: _rates(Dynamic(2.0, 0)), 'original_length .* positive.*: 0'),
    (lambda: _rates(Dynamic(2.0, 8), width=2), 'wider than 2'),
    (lambda: _rates(Ntk(2.0), width=2), 'Ntk need heads wider than 2'),
    (lambda: _rates(Clex(8)), 'they need the argument'),
    (lambda: _rates(Clex(1)), 'original_length .* more than 1: 1'),
    (lambda: _rates(Clex(8, largest=0)), 'largest .* positive.*: 0'),
    (lambda: _rates(Eabf(8, exempt_layers=-1)), 'exempt_layers .* negative: -1'),
    (lambda: _rates(LongRope((1.0,) * 3, (1.0,) * 4, 8, 2.0)), 'need 4 num.*: 3, 4'),
    (lambda: _rates(LongRope((1.0,) * 4, (1.0, 0.0, 1.0, 1.0), 8, 2.0)),
     'long_factor 1 of rotary positions must be positive and finite: 0.0'),
    (lambda: _rates(Llama3(8.0, 512, 4.0, 4.0)), 'less than high_frequency_factor'),
    (lambda: _rates(None, base=float('inf')), 'base .* positive and finite: inf'),
    (lambda: _rates(Yarn(2.0, 8), base=1.0), 'base of yarn .* more than 1: 1.0'),
])
def test_numbers_that_make_no_positions_are_refused(bad, says):
  with pytest.raises(ValueError, match=says):
    bad()
