"""A real small Llama: its logits, misalignment and text equal those of others.

Reference numbers are of transformers in float32 and of a float64 forward pass.
"""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import NEEDS_REFERENCE
from vvlen.evaluation.misalignment import misalignment
from vvlen.models.generation import generate
from vvlen.models.llama import load_checkpoint, save_checkpoint
from vvlen.tasks.tokenizers import load_tokenizer

_SHARED = os.environ.get('VVLEN_SHARED')
pytestmark = pytest.mark.skipif(not _SHARED, reason=NEEDS_REFERENCE)
FOLDER = pathlib.Path(_SHARED or '.') / 'data' / 'stories260K'


@pytest.fixture(scope='module')
def stories():
  return load_checkpoint(FOLDER)


@pytest.fixture(scope='module')
def reference():
  folder = FOLDER.parent.parent / 'reference'
  with np.load(folder / 'stories260K.npz', allow_pickle=False) as arrays:
    return dict(arrays), json.loads((folder / 'stories260K.json').read_text())


def test_there_are_as_many_parameters_as_its_name_says(stories):
  assert sum(x.size for x in jax.tree.leaves(stories[1])) == 260_032


@pytest.mark.parametrize('name', ['tiny64', 'random64', 'norvig300'])
def test_logits(stories, reference, name):
  model, variables = stories
  tokens = jnp.asarray(reference[0][f'logits_{name}_ids'])[None]
  logits = model.apply(variables, tokens)[0]
  # transformers in float32 is off by up to 3.6e-5.
  np.testing.assert_allclose(logits, reference[0][f'logits_{name}'], atol=1e-4)


@pytest.mark.slow
def test_logits_in_float64(stories, reference):
  with jax.enable_x64(True):
    variables = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), stories[1])
    tokens = jnp.asarray(reference[0]['logits_tiny64_ids'])[None]
    logits = stories[0].apply(variables, tokens)[0]
  np.testing.assert_allclose(logits, reference[0]['logits_tiny64'], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize('offset', [1, 16, 64])
def test_misalignment(stories, reference, offset):
  model, variables = stories
  expected = reference[1]['sce']['cases'][f'L256_e{offset}']
  found = misalignment(
      jax.jit(lambda x: model.apply(variables, x)),
      jnp.asarray(reference[0]['sce_ids'], jnp.int32), 256, offset)
  np.testing.assert_allclose(found.sce, expected['sce'], rtol=1e-6)
  np.testing.assert_allclose(found.entropy_first, expected['entropy_p'], rtol=1e-6)
  np.testing.assert_allclose(found.entropy_second, expected['entropy_q'], rtol=1e-6)
  np.testing.assert_allclose(
      found.symmetric_kl, expected['kl_pq_plus_kl_qp'], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_greedy_text_is_that_of_the_original_program(stories, tmp_path):
  tokenizer = load_tokenizer(FOLDER)
  expected = (FOLDER / 'expected_greedy.txt').read_text()
  tokens = generate(*stories, jnp.array([[tokenizer.begin]]), 200)[0]
  assert tokenizer.decode(tokens.tolist()).strip() == expected.strip()
  # Saving and loading do not change it either.
  save_checkpoint(tmp_path, *stories, like=FOLDER)
  again = generate(*load_checkpoint(tmp_path), jnp.array([[tokenizer.begin]]), 200)[0]
  np.testing.assert_array_equal(again, tokens)
  assert load_tokenizer(tmp_path).begin == tokenizer.begin
