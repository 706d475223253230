"""config.json of the Llama family: both styles, missing fields, wrong fields."""

import json
import math
import re

import chex
from flax import linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from tests.llamas import edit, edit_tensors, llama, ROPES, save_llama, variables_of
from vvlen.models.clex import Clex
from vvlen.models.llama import load_checkpoint, read_model, save_checkpoint
from vvlen.models.llama.config import config_of, model_of
from vvlen.models.llama.layers import stacked
from vvlen.models.llama.sizes import check_model
from vvlen.models.rope import Dynamic, Eabf, Linear, Llama3, LongRope, Ntk, Rope, Yarn


@pytest.fixture
def saved(tmp_path):
  """A checkpoint of one file, its model and variables."""
  return save_llama(tmp_path / 'one', tied=False)


def test_ntk_is_written_as_the_base_that_it_has():
  config = config_of(llama(rope=Rope(1e4, Ntk(4.0))), 'float32')
  assert config['rope_scaling'] is None
  assert config['rope_theta'] == pytest.approx(1e4 * 4**1.5, rel=1e-12)  # heads of 6


@pytest.mark.parametrize('norm, says', [
    (lambda x: x, 'function'), (nn.RMSNorm(), 'RMSNorm'), ('rms_norm', 'rms_norm')])
def test_a_norm_that_has_no_name_is_not_saved(norm, says):
  with pytest.raises(ValueError) as raised:
    config_of(llama(norm=norm), 'float32')
  assert str(raised.value) == (
      'to be saved in hub layout, norm must be one of none, standardize, layer_norm: '
      + says)


# What only a model_type of our own has.
OWN = [
    *({'norm': norm, **positions} for norm in ('standardize', 'layer_norm')
      for positions in ({}, {'rope': None, 'alibi': True}, {'rope': None})),
    {'rope': None}, {'output_bias': True}, {'attention_bias': True, 'mlp_bias': True},
    {'norm': 'layer_norm', 'attention_bias': True},
    {'norm': 'layer_norm', 'attention_bias': True, 'output_bias': True},
]


@pytest.mark.parametrize('fields', mostly_slow(OWN, 0, 5, 6), ids=str)
def test_what_no_published_model_has_is_saved_as_our_own(tmp_path, fields):
  folder, model, variables = save_llama(tmp_path, **fields)
  config = json.loads((folder / 'config.json').read_text())
  assert config['model_type'] == 'vvlen_llama'
  assert config['architectures'] == ['VvlenLlamaForCausalLM']
  assert config['post_attention_norm'] == model.norm
  found, loaded = load_checkpoint(folder)
  assert found == model
  chex.assert_trees_all_equal(loaded, variables)
  tokens = jnp.arange(14).reshape(2, 7)
  logits = found.apply(loaded, tokens)
  chex.assert_trees_all_equal(logits, model.apply(variables, tokens))
  config['rope_parameters'] = config.pop('rope_scaling')
  assert model_of(config) == model


@pytest.mark.slow
def test_stacked_layers_have_the_norm_of_theirs(tmp_path):
  _, model, variables = save_llama(tmp_path / 'one', norm='layer_norm', rope=None)
  looped, loaded = load_checkpoint(tmp_path / 'one', scan_layers=True)
  assert looped == model.clone(scan_layers=True)
  chex.assert_trees_all_equal(loaded['params'], stacked(variables['params']))
  tokens = jnp.arange(14).reshape(2, 7)
  np.testing.assert_allclose(looped.apply(loaded, tokens),
                             model.apply(variables, tokens), rtol=1e-5, atol=1e-5)
  save_checkpoint(tmp_path / 'two', looped, loaded)
  for name in ('model.safetensors', 'config.json'):
    assert ((tmp_path / 'two' / name).read_bytes()
            == (tmp_path / 'one' / name).read_bytes())


@pytest.mark.parametrize('change, says', [
    (lambda x: x.pop('model.layers.1.self_attn.post_norm.bias'),
     'has no model.layers.1.self_attn.post_norm.bias, which its config.json requires'),
    (lambda x: x.update({'model.layers.1.self_attn.post_norm.scale': x[
        'model.layers.1.self_attn.post_norm.bias']}),
     'has model.layers.1.self_attn.post_norm.scale, which is not part of the model'),
    (lambda x: x.update({'model.layers.0.self_attn.post_norm.weight': x[
        'model.norm.weight']}),
     r'post_norm.weight is \(12,\), but config.json requires \(6,\)'),
])
def test_tensors_of_a_norm_must_be_those_of_its_kind(tmp_path, change, says):
  folder, *_ = save_llama(tmp_path, norm='layer_norm')
  edit_tensors(folder, change)
  with pytest.raises(ValueError, match=says) as raised:
    load_checkpoint(folder)
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize('norm', ['none', 'standardize'])
def test_a_norm_without_parameters_has_no_tensors(tmp_path, norm):
  folder, *_ = save_llama(tmp_path, norm='layer_norm')
  edit(folder, post_attention_norm=norm)
  with pytest.raises(ValueError, match=r'has model\.layers\.0\.self_attn\.post_norm\.'):
    load_checkpoint(folder)


def test_fields_of_our_own_and_foreign_code_do_not_come_along(tmp_path):
  own, like_own, _ = save_llama(tmp_path / 'own', norm='standardize', output_bias=True)
  plain, like_plain, _ = save_llama(tmp_path / 'plain')
  edit(plain, auto_map={'AutoConfig': 'theirs.Config'})
  before = json.loads((plain / 'config.json').read_text())
  for model, like in ((like_plain, own), (like_own, plain), (like_plain, plain)):
    save_checkpoint(tmp_path / 'next', model, variables_of(model), like=like)
    assert read_model(tmp_path / 'next') == model
    found = json.loads((tmp_path / 'next/config.json').read_text())
    assert found.keys() == config_of(model, 'float32').keys() | (
        {'auto_map'} if model == like_plain and like == plain else set())
  assert found == before
  # Nor biases that the family of the model has without saying so.
  qwen = like_plain.clone(attention_bias=True)
  biased = like_own.clone(attention_bias=True, mlp_bias=True)
  save_checkpoint(tmp_path / 'biased', biased, variables_of(biased))
  for like in (plain, own, tmp_path / 'biased'):
    save_checkpoint(tmp_path / 'next', qwen, variables_of(qwen), like=like)
    assert read_model(tmp_path / 'next') == qwen


@pytest.mark.slow
@pytest.mark.parametrize('kind, fields', [
    *((type(x).__name__.lower(), {'rope': Rope(1e4, x)}) for x in (
        Eabf(8, 700.0, 0), Eabf(9), Clex(8, 3, 2, 20, False), Clex(5))),
    ('alibi', {'rope': None, 'alibi': True}),
    *(('random', {'rope': Rope(5e3, x, 64)}) for x in (None, Linear(2.0), Eabf(9)))])
def test_positions_of_our_own_are_saved_and_other_libraries_refuse_them(
    tmp_path, kind, fields):
  folder, model, variables = save_llama(tmp_path / 'own', **fields)
  found, loaded = load_checkpoint(folder)
  assert found == model
  # Also where config.json has other fields of the checkpoint that was trained.
  save_llama(tmp_path / 'like')
  save_checkpoint(folder, model, variables, like=tmp_path / 'like')
  assert load_checkpoint(folder)[0] == model
  chex.assert_trees_all_equal(loaded, variables)
  transformers = pytest.importorskip(
      'transformers', reason="compares with transformers: pip install '.[oracle]'")
  with pytest.raises((KeyError, ValueError, AttributeError), match=kind):
    transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_a_published_config_of_clex_is_read():
  config = config_of(llama(), 'float32') | {'rope_scaling': {
      'type': 'clex', 'max_factor': 16, 'param_factor': 1, 'factor': 1}}
  assert model_of(config).rope == Rope(1e4, Clex(8, 16, 1, 100, True))


@pytest.mark.parametrize('style', ['older', 'newer'])
@pytest.mark.parametrize('kind', ROPES)
def test_both_styles_of_config_say_the_same(style, kind):
  rope = ROPES[kind]
  model = llama(rope=rope)
  config = json.loads(json.dumps(config_of(model, 'float32')))
  if style == 'newer':
    scaling = config.pop('rope_scaling') or {'rope_type': 'default'}
    config['rope_parameters'] = {'rope_theta': config.pop('rope_theta'), **scaling}
    config['dtype'] = config.pop('torch_dtype')
  assert model_of(config) == model


def test_what_a_config_leaves_out_is_that_of_its_family():
  least = {'vocab_size': 5, 'hidden_size': 12, 'intermediate_size': 7,
           'num_hidden_layers': 2, 'num_attention_heads': 3, 'model_type': 'llama'}
  model = model_of(least)
  assert model.num_key_heads == 3 and model.epsilon == 1e-6 and not model.tied
  assert model.rope == Rope(1e4) and model.head_width is None
  assert not (model.attention_bias or model.output_bias or model.mlp_bias)
  with_bias = model_of({**least, 'attention_bias': True})
  assert with_bias.attention_bias and with_bias.output_bias
  qwen = model_of({**least, 'model_type': 'qwen2', 'num_key_value_heads': 1,
                   'sliding_window': 4096})
  assert qwen.attention_bias and not qwen.output_bias
  own = {**least, 'model_type': 'vvlen_llama', 'attention_bias': True}
  assert model_of({**own, 'post_attention_norm': 'standardize'}) == model.clone(
      norm='standardize', attention_bias=True)
  for family in ('llama', 'qwen2', 'mistral'):
    null = model_of({**least, 'model_type': family, 'num_key_value_heads': None,
                     'sliding_window': None})
    assert null.num_key_heads == 3
  older = {'type': 'linear', 'factor': 4}
  assert model_of({**least, 'rope_scaling': older}).rope == Rope(1e4, Linear(4.0))


def test_published_rope_scalings_are_read():
  least = {'vocab_size': 5, 'hidden_size': 128, 'intermediate_size': 7, 'model_type':
           'llama', 'num_hidden_layers': 2, 'num_attention_heads': 1,
           'max_position_embeddings': 131072}
  read = lambda **fields: model_of({**least, **fields}).rope
  # Llama 3.2 1B
  assert read(rope_theta=500000.0, rope_scaling={
      'factor': 32.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0,
      'original_max_position_embeddings': 8192, 'rope_type': 'llama3'
  }) == Rope(5e5, Llama3(32.0, 8192, 1.0, 4.0))
  # Yarn-Llama-2-7b-128k
  assert read(rope_scaling={
      'factor': 32.0, 'original_max_position_embeddings': 4096, 'type': 'yarn',
      'finetuned': True}) == Rope(1e4, Yarn(32.0, 4096))
  assert read(rope_scaling={'type': 'dynamic', 'factor': 2.0}) == Rope(
      1e4, Dynamic(2.0, 131072))
  # Without a factor, as in Phi 3: that of the two lengths.
  short, long = [1.0] * 64, [float(x) for x in range(1, 65)]
  assert read(original_max_position_embeddings=4096, rope_scaling={
      'type': 'longrope', 'short_factor': short, 'long_factor': long}) == Rope(
          1e4, LongRope(tuple(short), tuple(long), 4096, 32.0))


def test_two_names_and_nulls_say_the_same():
  config = config_of(llama(), 'float32')
  yarn = {'rope_type': 'yarn', 'factor': 40.0, 'mscale': 1.0, 'mscale_all_dim': 0.5,
          'original_max_position_embeddings': 8}
  assert model_of({**config, 'hidden_act': 'swish'}) == model_of(config)
  plain = {'rope_type': 'default', 'partial_rotary_factor': None}
  assert model_of({**config, 'rope_scaling': plain}) == model_of(config)
  scale = lambda **fields: model_of(
      {**config, 'rope_scaling': {**yarn, **fields}}).rope.stretched.scale
  expected = (1 + 0.1 * math.log(40)) / (1 + 0.05 * math.log(40))
  assert scale() == pytest.approx(expected, rel=1e-12)
  assert scale(attention_factor=1.5) == 1.5
  assert scale(mscale_all_dim=0) is None and scale(mscale=None) is None
  assert scale(factor=1.0) == 1


_OURS = {'model_type': 'vvlen_llama', 'architectures': ['VvlenLlamaForCausalLM']}


@pytest.mark.parametrize('fields,says', [
    ({'model_type': 'gpt2', 'architectures': ['GPT2LMHeadModel']},
     "model_type 'gpt2' .*'GPT2LMHeadModel'.* is not supported: must be one of llama"),
    # One of ours is not read as another, or the reverse.
    *(({'model_type': family, 'post_attention_norm': norm},
       f"norm '{norm}' is not supported with model_type '{family}', only with 'vvlen_")
      for family, norm in (('llama', 'layer_norm'), ('llama', 'none'),
                           ('qwen2', 'standardize'), ('mistral', 'standardize'))),
    *(({**_OURS, 'post_attention_norm': norm}, 'post_attention_norm must be one of '
       rf'none, standardize, layer_norm: {re.escape(repr(norm))}$')
      for norm in ('rms_norm', 3, ['layer_norm'], None)),
    (_OURS, 'post_attention_norm must be one of .*: None'),
    ({**_OURS, 'post_attention_norm': 'none', 'attention_output_bias': 1},
     'attention_output_bias must be true or false: 1'),
    ({**_OURS, 'post_attention_norm': 'layer_norm'}, 'has no .*self_attn.post_norm'),
    ({'model_type': 'vvlen_llama', 'post_attention_norm': 'none'},
     "architecture 'LlamaForCausalLM' is .* not one of model_type 'vvlen_llama'"),
    ({'architectures': ['VvlenLlamaForCausalLM']},
     "architecture 'VvlenLlamaForCausalLM' is .* not one of model_type 'llama'"),
    ({'model_type': ...}, 'model_type None .* is not supported'),
    ({'architectures': ['MixtralForCausalLM']},
     "architecture 'MixtralForCausalLM' is not supported, or is not one of"),
    ({'hidden_size': ...}, 'config.json: hidden_size is missing'),
    ({'hidden_size': '12'}, "hidden_size must be a number of type int: '12'"),
    ({'hidden_size': True}, 'hidden_size must be a number of type int: True'),
    ({'tie_word_embeddings': 1}, 'tie_word_embeddings must be true or false: 1'),
    ({'hidden_act': 'gelu'}, "hidden_act 'gelu' is not supported"),
    ({'quantization_config': {'bits': 4}}, 'quantization_config .* is not supported'),
    ({'num_key_value_heads': 3}, '3 key heads do not divide 4'),
    ({'num_hidden_layers': 0}, 'num_hidden_layers must be positive .*: 0'),
    ({'vocab_size': 2**31}, 'vocab_size must be positive and at most .*: 2147483648'),
    ({'head_dim': 0}, 'head_dim must be positive .*: 0'),
    ({'num_key_value_heads': 0}, 'num_key_value_heads must be positive .*: 0'),
    ({'rms_norm_eps': float('nan')}, 'rms_norm_eps must be positive and finite: nan'),
    ({'rms_norm_eps': float('inf')}, 'rms_norm_eps must be positive and finite: inf'),
    ({'rms_norm_eps': -1e-6}, 'rms_norm_eps must be positive and finite: -1e-06'),
    ({'rms_norm_eps': 10**400}, 'rms_norm_eps must be positive and finite: 1000'),
    ({'model_type': ['llama']}, r"model_type \['llama'\] .* is not supported"),
    ({'model_type': 'x', 'architectures': {'a': 1}}, r"\(architecture {'a': 1}\) is"),
    ({'model_type': 'x', 'architectures': 7}, r'\(architecture 7\) is not supported'),
    ({'model_type': 'x', 'architectures': 'Gpt'}, r"\(architecture 'Gpt'\) is not"),
    ({'layer_types': 5}, 'layer_types 5 is not supported'),
    ({'layer_types': [['a']]}, r"layer_types \[\['a'\]\] is not supported"),
    ({'layer_types': ['sliding_attention']}, 'layer_types .* is not supported'),
    ({'rope_theta': -1.0}, 'rope_theta must be positive and finite: -1.0'),
    ({'rope_theta': 1.0, 'rope_scaling': {'rope_type': 'yarn', 'factor': 2.0}},
     'config.json: base of yarn positions must be more than 1: 1.0'),
    ({'rope_scaling': {'rope_type': 'yarn', 'original_max_position_embeddings': 0}},
     'original_max_position_embeddings must be positive .*: 0'),
    ({'rope_scaling': {'rope_type': 'yarn', 'factor': 0}}, 'factor must be pos.*: 0'),
    ({'rope_scaling': {'rope_type': 'yarn', 'beta_fast': 0}}, 'beta_fast must be pos'),
    ({'rope_scaling': {'rope_type': 'su'}}, "rope type 'su' is not supp"),
    ({'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1.0] * 3}},
     'long_factor must be a list of numbers: None'),
    ({'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1.0] * 3,
                       'long_factor': [1.0, '2', 1.0]}},
     "long_factor must be a number of type float: '2'"),
    ({'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1.0] * 3,
                       'long_factor': [1.0] * 2}}, 'need 3 numbers, .*: 3, 2'),
    ({'rope_scaling': {'rope_type': 'linear'}}, 'factor is missing'),
    ({'rope_scaling': {'rope_type': 'linear', 'factor': -1.0}}, 'finite: -1.0'),
    *(({'rope_scaling': {'rope_type': name, 'factor': 0.5, **others}},
       'config.json: factor of rotary positions must be at least 1: 0.5')
      for name, others in (
          ('linear', {}), ('dynamic', {}), ('yarn', {}),
          ('llama3', {'low_freq_factor': 1.0, 'high_freq_factor': 4.0}),
          ('longrope', {'short_factor': [1.0] * 3, 'long_factor': [1.0] * 3}))),
    ({'rope_scaling': {'rope_type': 'yarn', 'mscale': 1.0, 'mscale_all_dim': 0.5,
                       'factor': 0.5}}, 'factor of rotary positions .* least 1: 0.5'),
    # Without a factor it is the ratio of the two lengths, here 8 and 16.
    ({'rope_scaling': {'rope_type': 'yarn', 'original_max_position_embeddings': 16}},
     'factor of rotary positions must be at least 1: 0.5'),
    ({'rope_scaling': 3}, 'must be an object: 3'),
    ({'rope_scaling': {'rope_type': 'random'}}, 'highest is missing'),
    ({'rope_scaling': {'rope_type': 'random', 'highest': 0}}, 'highest must be pos.*0'),
    *(({'rope_scaling': {'rope_type': 'random', 'highest': 9, 'rope_scaling': {
        'rope_type': kind}}}, 'random positions must be of rotary positions')
      for kind in ('alibi', 'none')),
    ({'model_type': 'mistral', 'sliding_window': 4},
     'sliding_window 4 is not supported: .* set it to null in config.json'),
    ({'model_type': 'mistral', 'sliding_window': 4096}, 'window 4096 is not supported'),
    ({'model_type': 'mistral', 'sliding_window': '4'}, "window '4' is not supported"),
    ({'model_type': 'mistral'}, 'window 4096, the default, is not'),
    ({'hidden_size': 16}, r'embed_tokens.weight is \(23, 12\), but .* \(23, 16\)'),
    ({'intermediate_size': 11}, r'\(12, 10\), but config.json requires \(12, 11\)'),
    ({'num_hidden_layers': 3}, 'has no model.layers.2.* requires'),
    ({'num_hidden_layers': 2**30}, '21 tensors, too few for the 1073741824 layers'),
    ({'vocab_size': 2**31 - 1, 'hidden_size': 2**31 - 2},
     r'embed_tokens.weight is \(23, 12\), but config.json'),
    ({'num_hidden_layers': 1}, 'has model.layers.1.*, which is not part of the model'),
    ({'vocab_size': 24}, r'\(23, 12\), but config.json requires \(24, 12\)'),
    ({'mlp_bias': True}, 'has no model.layers.0.mlp.*bias'),
])
def test_what_config_json_has_wrong_is_told_in_one_line(saved, fields, says):
  edit(saved[0], **fields)
  with pytest.raises(ValueError, match=says) as raised:
    load_checkpoint(saved[0])
  assert '\n' not in str(raised.value) and str(saved[0]) in str(raised.value)


@pytest.mark.parametrize('fields,says', [
    ({'head_width': 0}, 'head_width must be positive: 0'),
    ({'epsilon': 0.0}, 'epsilon must be positive and finite: 0.0'),
    ({'epsilon': float('nan')}, 'epsilon must be positive and finite: nan'),
    ({'epsilon': float('inf')}, 'epsilon must be positive and finite: inf'),
])
def test_numbers_that_make_no_model_are_refused(fields, says):
  with pytest.raises(ValueError, match=says):
    check_model(llama(**fields))
