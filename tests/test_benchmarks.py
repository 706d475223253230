"""Benchmarks compare equal computations, and count the operations that there are."""

import argparse
import json
import math

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import (
  _rounds,
  chunked_loss,
  counting_training,
  regularizer_cost,
)
from experiments.counting import training
from tests.conftest import ROOT
from vvlen.models.decoder import Decoder
from vvlen.models.language_model import LanguageModel
from vvlen.objectives import misalignment


def _operations(jaxpr):
  """Counts floating-point operations in the matrix products of a program."""
  total = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      (contracted, _), _ = equation.params['dimension_numbers']
      left, = (v.aval.shape for v in equation.invars[:1])
      summed = math.prod(left[axis] for axis in contracted)
      total += 2 * summed * math.prod(equation.outvars[0].aval.shape)
    for inner in jax.tree.leaves(
        equation.params, is_leaf=lambda x: hasattr(x, 'eqns') or hasattr(x, 'jaxpr')):
      inner = getattr(inner, 'jaxpr', inner)
      total += _operations(inner) if hasattr(inner, 'eqns') else 0
  return total


def test_operations_of_counting_are_those_of_its_program(key):
  config = counting_training._config()
  problem = training.problem(config, counting_training.CELL)
  params, batch = jax.eval_shape(problem.init, key), problem.sample(key, 0)
  gradient = jax.grad(lambda params: problem.loss(params, batch)[0])
  found = _operations(jax.make_jaxpr(gradient)(params).jaxpr)
  expected = counting_training.matrix_operations(config)
  np.testing.assert_allclose(found, expected, rtol=0.02)


def test_the_regularizer_is_measured_against_no_weight(key):
  args = argparse.Namespace(length=8, weight=0.3)
  model = LanguageModel(Decoder(11, num_layers=1, width=8, num_heads=2))
  tokens = jax.random.randint(key, (2, 11), 0, 11)
  params = model.init(key, tokens)['params']
  first, second = misalignment.two_windows(tokens, args.length, 2)
  logits = [model.apply({'params': params}, x) for x in (first, second)]
  found = {name: loss(model, params, first, second, jnp.int32(2), args.weight)
           for name, loss in regularizer_cost._LOSSES.items()}
  for kind, weight in (('baseline', 0.0), ('aligned', args.weight)):
    expected, _ = misalignment.two_window_loss(*logits, first, second, 2, weight)
    np.testing.assert_allclose(found[kind], expected, rtol=1e-5)
    np.testing.assert_allclose(found[f'plain_{kind}'], expected, rtol=1e-5)


def test_the_regularizer_is_told_against_the_fastest_step_without_it():
  # docs/speed.md has these numbers for the published sizes.
  folder = ROOT / 'experiments/results/benchmarks'
  found = [
      regularizer_cost.more_than_fastest(
          json.loads((folder / f'{name}.json').read_text())['seconds'])
      for name in ('regularizer_cost', 'regularizer_cost_small')
  ]
  np.testing.assert_allclose(found, [4.7, 6.4], atol=0.06)


def test_chunked_losses_are_measured_against_the_same_loss():
  arrays = chunked_loss.inputs(vocabulary=13, width=5, length=16, dtype='float32')
  expected, _ = chunked_loss.plain(*arrays)
  found, _ = chunked_loss.chunked_two_window_loss(*arrays, chunk_size=3)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_rounds_alternate_and_the_first_does_not_count():
  calls = []
  runs = {name: lambda i, name=name: calls.append((i, name)) for name in 'ab'}
  seconds, about = _rounds.in_turns(runs, 3)
  assert calls == [(0, 'b'), (0, 'a'), (1, 'a'), (1, 'b'), (2, 'b'), (2, 'a'),
                   (3, 'a'), (3, 'b')]
  counted = about['quiet_rounds'] or 3
  assert {name: len(x) for name, x in seconds.items()} == {'a': counted, 'b': counted}
