"""Llamas of transformers and ours: the same logits, whichever of the two saved them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.llamas import llama, OWN_ROPES, ROPES, V, variables_of
from vvlen.models.generation import generate
from vvlen.models.llama import load_checkpoint, save_checkpoint
from vvlen.models.llama.config import model_of

torch = pytest.importorskip(
    'torch', reason="compares with PyTorch: pip install '.[oracle]'")
transformers = pytest.importorskip(
    'transformers', reason="compares with transformers: pip install '.[oracle]'")

TOKENS = np.random.default_rng(0).integers(0, V, (2, 29))
_BASE = dict(
    vocab_size=V, hidden_size=24, intermediate_size=20, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=6,
    max_position_embeddings=16, rms_norm_eps=1e-4, attn_implementation='eager',
    initializer_range=0.4, bos_token_id=1, eos_token_id=2,
)
_SCALINGS = {
    'linear': {'rope_type': 'linear', 'factor': 2.0},
    'dynamic': {'rope_type': 'dynamic', 'factor': 3.0},
    'yarn': {'rope_type': 'yarn', 'factor': 2.0,
             'original_max_position_embeddings': 8},
    'yarn_whole': {'rope_type': 'yarn', 'factor': 2.0, 'truncate': False,
                   'original_max_position_embeddings': 8, 'attention_factor': 1.3,
                   'beta_fast': 4.0, 'beta_slow': 0.5},
    'yarn_mscale': {'rope_type': 'yarn', 'factor': 8.0, 'mscale': 1.0,
                    'mscale_all_dim': 0.4, 'original_max_position_embeddings': 8},
    'longrope': {'rope_type': 'longrope', 'factor': 4.0,
                 'short_factor': [1.0, 1.1, 1.5], 'long_factor': [1.2, 3.0, 7.0],
                 'original_max_position_embeddings': 8},
    'llama3': {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0,
               'high_freq_factor': 4.0, 'original_max_position_embeddings': 8},
}


def _make(kind='Llama', seed=0, **fields):
  """Returns a random model, biases and scales of norms too."""
  torch.manual_seed(seed)
  scaling = fields.pop('scaling', None)
  config = getattr(transformers, f'{kind}Config')(**{**_BASE, **fields})
  if scaling:
    # What both versions 4 and 5 take.
    config.rope_scaling = dict(scaling)
    if hasattr(config, 'rope_parameters'):
      config.rope_parameters = {'rope_theta': 10_000.0, **scaling}
  model = getattr(transformers, f'{kind}ForCausalLM')(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.ndim == 1:
        parameter.add_(0.3 * torch.randn(parameter.shape))
  return model


def _logits(model, tokens=TOKENS):
  with torch.no_grad():
    return model(torch.tensor(tokens)).logits.float().numpy()


@pytest.mark.parametrize('kind,fields', [
    ('Llama', {}),
    ('Llama', {'tie_word_embeddings': True}),
    ('Llama', {'num_key_value_heads': 4}),
    ('Llama', {'num_key_value_heads': 1}),
    ('Llama', {'attention_bias': True, 'mlp_bias': True}),
    ('Llama', {'head_dim': 10}),
    ('Mistral', {'sliding_window': None}),
    ('Qwen2', {'tie_word_embeddings': True}),
    *(('Llama', {'scaling': scaling}) for scaling in _SCALINGS.values()),
], ids=lambda x: x if isinstance(x, str) else '-'.join(map(str, x)))
def test_what_transformers_saves_has_its_logits_here(tmp_path, kind, fields):
  theirs = _make(kind, **fields)
  theirs.save_pretrained(tmp_path)
  model, variables = load_checkpoint(tmp_path)
  expected = _logits(theirs)
  assert np.abs(expected).max() > 1
  np.testing.assert_allclose(
      model.apply(variables, jnp.asarray(TOKENS)), expected,
      atol=1e-5 * np.abs(expected).max(), rtol=1e-4,
  )


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['dynamic', 'longrope'])
def test_rates_by_length_are_theirs_at_every_length(tmp_path, kind):
  theirs = _make(scaling=_SCALINGS[kind])
  theirs.save_pretrained(tmp_path)
  model, variables = load_checkpoint(tmp_path)
  # At and above the original length, 16 of dynamic positions and 8 of LongRoPE.
  for length in {'dynamic': (16, 17, 29), 'longrope': (8, 9, 29)}[kind]:
    expected = _logits(theirs, TOKENS[:, :length])
    np.testing.assert_allclose(
        model.apply(variables, jnp.asarray(TOKENS[:, :length])), expected,
        atol=1e-5 * np.abs(expected).max(), rtol=1e-4, err_msg=str(length))


@pytest.mark.parametrize('kind', ['Llama', 'Mistral', 'Qwen2'])
def test_what_a_config_leaves_out_is_what_transformers_takes(kind):
  theirs = getattr(transformers, f'{kind}Config')
  least = {'vocab_size': V, 'hidden_size': 64, 'intermediate_size': 20,
           'num_hidden_layers': 2, 'num_attention_heads': 32}
  for fields in ({}, {'num_key_value_heads': 16}):
    expected = theirs(**least, **fields, sliding_window=None)
    model = model_of({'model_type': kind.lower(), 'sliding_window': None, **least,
                      **fields})
    assert model.max_length == expected.max_position_embeddings
    assert model.num_key_heads == expected.num_key_value_heads
    assert model.epsilon == expected.rms_norm_eps
    assert model.tied == expected.tie_word_embeddings
  window = getattr(theirs(), 'sliding_window', None)
  if window is not None:
    with pytest.raises(ValueError, match=f'sliding_window {window}, the default'):
      model_of({'model_type': kind.lower(), **least})


def test_several_files_of_transformers_are_read(tmp_path):
  theirs = _make()
  theirs.save_pretrained(tmp_path, max_shard_size='5KB')
  assert len(list(tmp_path.glob('*.safetensors'))) > 2
  model, variables = load_checkpoint(tmp_path)
  np.testing.assert_allclose(
      model.apply(variables, jnp.asarray(TOKENS)), _logits(theirs), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_narrow_parameters_are_those_that_were_saved(tmp_path, dtype):
  _make().to(getattr(torch, dtype)).save_pretrained(tmp_path)
  # Loaded again, since the cast rounded their rotary rates too.
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path, dtype=torch.float32, attn_implementation='eager').eval()
  model, variables = load_checkpoint(tmp_path)
  assert {str(x.dtype) for x in jax.tree.leaves(variables)} == {dtype}
  wide = jax.tree.map(lambda x: x.astype(jnp.float32), variables)
  np.testing.assert_allclose(
      model.apply(wide, jnp.asarray(TOKENS)), _logits(theirs), atol=1e-4)
  # Without a cast, each rounds in its own order.
  narrow = model.apply(variables, jnp.asarray(TOKENS))
  exact = np.asarray(model.apply(wide, jnp.asarray(TOKENS)))
  assert np.abs(narrow - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize('fields', [
    {}, {'tied': False}, {'attention_bias': True, 'output_bias': True},
    {'attention_bias': True}, {'mlp_bias': True},
    *({'rope': rope} for rope in (*ROPES.values(), OWN_ROPES['ntk'])),
], ids=lambda x: '-'.join(map(str, x)))
def test_what_is_saved_here_has_its_logits_in_transformers(tmp_path, fields):
  model = llama(**fields)
  variables = variables_of(model)
  save_checkpoint(tmp_path, model, variables)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path, attn_implementation='eager').eval()
  expected = model.apply(variables, jnp.asarray(TOKENS))
  np.testing.assert_allclose(
      _logits(theirs), expected, atol=2e-5 * np.abs(expected).max(), rtol=1e-4)


@pytest.mark.parametrize('fields', [
    {'norm': 'layer_norm'}, {'norm': 'standardize'}, {'rope': None},
    {'norm': 'standardize', 'rope': None, 'alibi': True}, {'output_bias': True},
], ids=str)
def test_what_transformers_lacks_it_refuses(tmp_path, fields):
  model = llama(**fields)
  save_checkpoint(tmp_path, model, variables_of(model))
  for made in (transformers.AutoConfig, transformers.AutoModelForCausalLM):
    with pytest.raises(ValueError, match='model type `vvlen_llama`'):
      made.from_pretrained(tmp_path)
  # Not even as a Llama, which would be without the norm.
  for made in (transformers.LlamaForCausalLM, transformers.Qwen2ForCausalLM):
    with pytest.raises(KeyError, match=r'vvlen_silu|none|alibi'):
      made.from_pretrained(tmp_path)


def test_both_styles_of_config_are_what_transformers_writes(tmp_path):
  _make(scaling=_SCALINGS['llama3']).save_pretrained(tmp_path)
  config = json.loads((tmp_path / 'config.json').read_text())
  assert ('rope_parameters' in config) != ('rope_theta' in config)


@pytest.mark.slow
def test_greedy_generation_is_theirs(tmp_path):
  theirs = _make(seed=1)
  theirs.save_pretrained(tmp_path)
  model, variables = load_checkpoint(tmp_path)
  prompt = TOKENS[:1, :5]
  expected = theirs.generate(
      torch.tensor(prompt), attention_mask=torch.ones_like(torch.tensor(prompt)),
      max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0,
  )[0, 5:].numpy()
  np.testing.assert_array_equal(generate(model, variables, prompt, 20)[0], expected)
