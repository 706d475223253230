"""The README's first command, and its Python examples and those of docs, unchanged."""

import re
import shlex
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.llamas import llama, variables_of
from vvlen.models.llama import load_checkpoint, save_checkpoint
from vvlen.reporting import results
from vvlen.training import ensemble

_README = (ROOT / 'README.md').read_text()


def _examples(path):
  return re.findall(r'```python\n(.*?)```', (ROOT / path).read_text(), re.S)


_SHORT = _examples('README.md')
_EXAMPLES = _examples('docs/in_your_code.md')


def _run(example):
  scope = {}
  exec(compile(example, 'example', 'exec'), scope)
  return scope


@pytest.mark.slow
def test_readme_first_command(tmp_path, fast_compilation):
  found = re.search(r'^\.venv/bin/python -m experiments\.(.*\\\n)*.*$', _README,
                    re.MULTILINE)
  command = found.group().replace('\\\n', ' ').replace(':quick', ':smoke')
  words = shlex.split(command)
  assert [w.startswith('--config=') for w in words].count(True) == 1
  words = [f'--workdir={tmp_path}/run' if w.startswith('--workdir') else w
           for w in words]
  done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True,
                        text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stderr
  out = done.stdout
  assert 'No verdict: an arm has not learned' in out and '| LN − Baseline ' in out
  assert f'Open {tmp_path}/run/index.html for all tables and figures.' in out
  assert 'data:image/png;base64,' in (tmp_path / 'run/index.html').read_text()
  rows = results.index(results.read_rows(tmp_path / 'run/results.csv'))
  for arm in ('none', 'standardize', 'layer_norm'):
    for suffix in ('', '+adaptive', '+fitted'):
      for length in (16, 32, 64):
        assert rows[arm + suffix, 'accuracy', length].keys() == {0, 1}


@pytest.mark.parametrize('number, name, shape', [
    (0, 'logits', (2, 10)), (0, 'sharper', (2, 10)), (1, 'y', (2, 16, 64)),
    (1, 'y_linen', (2, 16, 64)),
])
def test_modules_in_ones_own_code(number, name, shape):
  with jax.numpy_rank_promotion('allow'):  # nnx promotes ranks
    scope = _run(_EXAMPLES[number])
  assert scope[name].shape == shape
  assert jax.numpy.isfinite(scope[name]).all()
  if number == 1:  # one norm for all heads, among what is trained
    norms = (scope['trained']['attention']['attention_fn']['norm'],
             scope['variables']['params']['MultiHeadDotProductAttention_0']['norm'])
    assert [norm['scale'].shape for norm in norms] == [(16,), (16,)]


@pytest.mark.slow
def test_recency_of_any_logits():
  scope = _run(_EXAMPLES[2])
  assert scope['by_distance'].shape == (4, 32)
  # Nothing in layer 1, a bias that grows from there on; near tokens score higher.
  first, *later = np.asarray(scope['by_layer'])
  assert abs(first - 0.5) < 0.02
  assert (np.diff([first, *later]) > 0.05).all()
  assert scope['by_distance'][3, 1] > scope['by_distance'][3, 31] + 1


@pytest.mark.slow
def test_misalignment_of_any_model():
  scope = _run(_EXAMPLES[3])
  assert scope['offsets'].shape == scope['found'].sce.shape == (3,)
  # A cross-entropy is at least an entropy.
  found = scope['found']
  assert (found.sce >= found.entropy_first + found.entropy_second - 1e-5).all()
  norms = [float(abs(x).max()) for x in jax.tree.leaves(scope['gradients'])]
  assert np.isfinite(norms).all() and min(norms) > 0


@pytest.mark.slow
def test_any_problem_with_many_seeds():
  scope = _run(_SHORT[2])
  w, keys = scope['w'], scope['keys']
  assert w.shape == (8 * jax.device_count(),)
  # Gradient descent on E[x²] = 1: each step takes 2 · rate off the error.
  start = jax.vmap(lambda key: jax.random.normal(
      ensemble.purpose_key(key, ensemble.INIT)))(keys)
  np.testing.assert_allclose(abs(w - 2), abs(start - 2) * 0.96**50, rtol=0.5)


def _bytes_model(**fields):
  model = llama(vocab_size=257, **fields)
  return model, variables_of(model)


@pytest.mark.slow
def test_llamas_of_the_hub(tmp_path):
  model, variables = _bytes_model()
  save_checkpoint(tmp_path / 'llama', model, variables)
  scope = _run(_EXAMPLES[4].replace('path/to', str(tmp_path)))
  assert scope['logits'].shape == (1, 16, 257) and scope['more'].shape == (1, 8)
  longer, variables = load_checkpoint(tmp_path / 'longer')
  assert longer == scope['longer'] and longer.max_length == 4 * model.max_length
  chex.assert_trees_all_equal(variables, scope['variables'])


@pytest.mark.slow
def test_low_rank_adapters(tmp_path):
  pytest.importorskip('qwix', reason="needs qwix: pip install '.[lora]'")
  model = llama()
  save_checkpoint(tmp_path / 'llama', model, variables_of(model))
  scope = _run(_EXAMPLES[5].replace('path/to', str(tmp_path)))
  plain, variables = load_checkpoint(tmp_path / 'merged')
  assert plain == model and scope['lora'].quantized == 'nf4'
  # Loaded adapters, merged, are those that were trained.
  found = plain.apply(variables, scope['tokens'])
  np.testing.assert_allclose(found, scope['logits'], rtol=1e-3, atol=1e-3)
  base = load_checkpoint(tmp_path / 'llama')[1]['params']['layer_0']['query']['kernel']
  assert not np.array_equal(
      variables['params']['layer_0']['query']['kernel'], base)


def test_a_norm_in_the_attention_of_flax():
  block = _run(_SHORT[0])['Block']()
  x = jax.random.normal(jax.random.key(0), (2, 16, 64))
  with jax.numpy_rank_promotion('allow'):
    y, variables = block.init_with_output(jax.random.key(1), x)
  assert y.shape == x.shape
  params = variables['params']['MultiHeadDotProductAttention_0']
  assert [x.shape for x in params['norm'].values()] == [(16,), (16,)]


@pytest.mark.slow
def test_misalignment_as_a_measure_and_as_a_term_of_the_loss():
  scope = _run(_SHORT[1])
  assert scope['found'].symmetric_kl == 0
  # Means over the same windows and rows.
  np.testing.assert_allclose(scope['term'], scope['found'].sce, rtol=1e-5)


@pytest.mark.slow
def test_lm_evaluation_harness(tmp_path, monkeypatch):
  pytest.importorskip(
      'lm_eval', reason="needs lm-evaluation-harness: pip install '.[harness]'")
  import datasets
  monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'cache')
  save_checkpoint(tmp_path / 'llama', *_bytes_model(max_length=32))
  [line] = re.findall(r'`(\{"text".*\})`', (ROOT / 'docs/in_your_code.md').read_text())
  (tmp_path / 'questions.jsonl').write_text(f'{line}\n' * 3)
  scope = _run(_EXAMPLES[6].replace('path/to', str(tmp_path)))
  assert scope['found']['results']['stories']['acc,none'] in (0, 1)
  assert scope['found']['n-samples']['stories']['effective'] == 3
