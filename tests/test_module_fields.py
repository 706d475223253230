"""The fields that modules of vvlen share with those of linen."""

import functools

import chex
from flax import linen as nn
import jax
from jax.extend.core import jaxprs_in_params
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cases import mostly_slow
from vvlen.models.attention import SingleHeadAttention
from vvlen.models.decoder import Decoder, SequenceRegressor
from vvlen.models.dictionary import DictionaryRetriever
from vvlen.models.language_model import LanguageModel
from vvlen.models.llama.model import Llama
from vvlen.models.norm import PostAttentionNorm, standardize
from vvlen.models.retriever import Retriever

B, N, W, H = 2, 5, 6, 2
TOKENS = np.arange(B * N).reshape(B, N) % 7
QUERY, ITEMS = (np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)
                for shape in ((B, 3), (B, N, 4)))
KEYS = np.stack([TOKENS, TOKENS % 3], -1)

_attention = functools.partial(
    SingleHeadAttention, W, value_bias=True, output_projection=True)
_retriever = functools.partial(Retriever, 3, W, value_bias=True)
_dictionary = functools.partial(DictionaryRetriever, 7, 3, 4, W)
_decoder = functools.partial(
    Decoder, 7, width=W, num_heads=H, positions='learned', max_positions=N)
_llama = functools.partial(
    Llama, 7, W, W, 2, H, 1, head_width=4, attention_bias=True, mlp_bias=True)
# Makers of modules by their common fields, and the inputs of each.
MODULES = {
    'attention': (_attention, (QUERY, ITEMS)),
    'retriever': (_retriever, (QUERY, ITEMS)),
    'dictionary': (_dictionary, (TOKENS[:, 0], KEYS)),
    'decoder': (_decoder, (TOKENS,)),
    'language_model': (lambda **fields: LanguageModel(_decoder(**fields)), (TOKENS,)),
    'llama': (_llama, (TOKENS,)),
    'llama_in_a_loop': (
        functools.partial(_llama, scan_layers=True, tied=False), (TOKENS,)),
    'regressor': (lambda **fields: SequenceRegressor(_decoder(**fields)),
                  (TOKENS, np.arange(2))),
}
every_module = pytest.mark.parametrize(
    'make, inputs', mostly_slow(MODULES.values(), 0, 1, 2, 3, 4, 5),
    ids=list(MODULES))


def _shapes(module, inputs):
  return jax.eval_shape(module.init, jax.random.key(0), *inputs)['params']


@every_module
def test_param_dtype_is_that_of_all_parameters(make, inputs):
  module = make(norm='layer_norm', param_dtype=jnp.bfloat16)
  shapes = _shapes(module, inputs)
  assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.bfloat16)}
  # The residual stream, norms and outputs stay float32.
  output = jax.eval_shape(module.init_with_output, jax.random.key(0), *inputs)[0]
  assert output.dtype == jnp.float32
  plain = _shapes(make(norm='layer_norm'), inputs)
  assert {x.dtype for x in jax.tree.leaves(plain)} == {jnp.dtype(jnp.float32)}
  chex.assert_trees_all_equal_shapes(shapes, plain)


@every_module
def test_parameters_are_float64_where_they_are_asked_to_be(make, inputs):
  with jax.enable_x64(True):
    module = make(norm='layer_norm', param_dtype=jnp.float64)
    output, variables = jax.eval_shape(
        module.init_with_output, jax.random.key(0), *inputs)
  leaves = jax.tree.leaves(variables['params'])
  assert {x.dtype for x in (output, *leaves)} == {jnp.dtype('float64')}


@every_module
def test_every_bias_is_drawn_by_bias_init_and_every_kernel_by_kernel_init(make, inputs):
  module = make(norm='none', kernel_init=nn.initializers.constant(2.0),
                bias_init=nn.initializers.constant(3.0))
  params = module.init(jax.random.key(0), *inputs)['params']
  for kind, value in (('kernel', 2.0), ('bias', 3.0)):
    # The biases of LayerNorm begin at 0 whatever those of the projections do.
    leaves = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)
              if path[-1].key.endswith(kind)
              and not any(entry.key.endswith('norm') for entry in path)]
    assert leaves and all((leaf == value).all() for leaf in leaves)


@every_module
def test_precision_is_that_of_all_products(make, inputs):
  def precisions(module):
    variables = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    jaxpr = jax.make_jaxpr(module.apply)(variables, *inputs)
    return [eqn.params['precision'] for eqn in _equations(jaxpr.jaxpr)
            if eqn.primitive.name == 'dot_general']

  highest = (jax.lax.Precision.HIGHEST,) * 2
  plain = precisions(make())
  # Attention itself is so by default, and no projection is.
  assert set(plain) == {None, highest}
  assert precisions(make(precision='highest')) == [highest] * len(plain)


def _equations(jaxpr):
  for equation in jaxpr.eqns:
    yield equation
    for inner in jaxprs_in_params(equation.params):
      yield from _equations(inner)


@every_module
@pytest.mark.parametrize('kind', mostly_slow(['standardize', 'layer_norm'], 1))
def test_a_norm_is_a_name_or_a_module_or_a_function(make, inputs, kind):
  named = make(norm=kind)
  module = make(norm=PostAttentionNorm(kind))
  variables = named.init(jax.random.key(0), *inputs)
  variables = jax.tree.map(lambda x: x + 0.1, variables)  # scales and biases count
  chex.assert_trees_all_equal_shapes(
      variables['params'], _shapes(module, inputs))
  expected = named.apply(variables, *inputs)
  np.testing.assert_array_equal(module.apply(variables, *inputs), expected)
  # Created in a user's module, it still belongs to the attention module.
  inner = _Within(lambda: make(norm=PostAttentionNorm(kind)))
  within = {'params': {'inner': variables['params']}}
  chex.assert_trees_all_equal_shapes(within['params'], _shapes(inner, inputs))
  np.testing.assert_array_equal(inner.apply(within, *inputs), expected)
  if kind == 'standardize':
    other = make(norm=standardize).apply(variables, *inputs)
    np.testing.assert_array_equal(other, expected)


class _Within(nn.Module):
  make: object

  def setup(self):
    self.inner = self.make()

  def __call__(self, *inputs):
    return self.inner(*inputs)


@pytest.mark.slow
def test_each_layer_has_a_norm_of_its_own():
  model = _decoder(num_layers=2, norm=nn.LayerNorm(use_fast_variance=False))
  params = _shapes(model, (TOKENS,))
  assert {params[f'layer_{i}']['norm']['scale'].shape for i in range(2)} == {(W // H,)}
