"""Models that `experiments.adapt` trains, saves and resumes."""

import json

import chex
from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.adapt import programs, report
from experiments.harness.progress import Progress
from experiments.language_model import measuring, sharded
from tests.adapt_cases import MODEL, prepared, write_text
from tests.cases import mostly_slow
from tests.llamas import save_llama
from vvlen.models.clex import Clex
from vvlen.models.llama import adapter_base, load_checkpoint
from vvlen.models.positions import random_positions
from vvlen.models.rope import Rope
from vvlen.objectives.cross_entropy import next_token_cross_entropy
from vvlen.reporting.curves import read_curves
from vvlen.training import ensemble


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_llama(tmp_path_factory.mktemp('checkpoint'), **MODEL)[0]


@pytest.fixture(scope='module')
def text_file(tmp_path_factory):
  return write_text(tmp_path_factory.mktemp('text'))


def _train(ready, tmp_path, name, num_steps=None, measure_after=None):
  config, read, model, mesh = ready
  if num_steps:
    config.train.num_steps = num_steps
  made = programs.Programs(config, config.arms[name].method, model, mesh)
  with Progress(config.train.num_steps, 'steps') as progress:
    rows = sharded.run_seed(config, name, 0, read, mesh, made, epath.Path(tmp_path),
                            progress, report.EXPERIMENT, measure_after=measure_after)
  return made, rows


# As on accelerators.
BFLOAT16 = {'train.dtype': 'bfloat16', 'train.remat': True, 'train.scan_layers': True,
            'train.stream_dtype': 'bfloat16'}


@pytest.mark.slow
@pytest.mark.parametrize(('variant', 'fields'), [
    *((name, {}) for name in ('pi', 'ntk', 'yarn', 'eabf', 'alibi', 'random')),
    # The matrices of CLEX move far enough to be seen in the loss.
    *(('clex', {'optimizer.learning_rate': 0.02, **x}) for x in (
        {}, {'adapters.rank': 2})),
    *((name, {'adapters.rank': 2}) for name in ('alibi', 'random')),
    ('longqlora', {}), ('longlora', BFLOAT16)])
def test_a_trained_model_is_saved_and_read_again(
    checkpoint, text_file, tmp_path, variant, fields):
  ready = prepared(checkpoint, text_file, f'{variant}_smoke', **fields)
  config, read, _, _ = ready
  _, rows = _train(ready, tmp_path, variant)
  folder = tmp_path / f'models/{variant}/seed_0'
  model, variables = load_checkpoint(folder)
  segments = _segments(config, read)
  expected = {row.length: row.value for row in rows if row.metric == 'nll'}
  for length in (16, 32):
    blocks, places = segments.reshape(-1, length), None
    if variant == 'random':
      places = random_positions(jax.random.key(0), length, 64)
      with pytest.raises(ValueError, match=r'RandomPos.*\(key, num_tokens, 64\)'):
        model.apply(variables, blocks)
    logits = jax.jit(model.apply)(variables, blocks, places)
    np.testing.assert_allclose(
        next_token_cross_entropy(logits, blocks), expected[length],
        rtol=1e-2 if fields is BFLOAT16 else 1e-4)
  # Of 8 tokens, trained with 16; YaRN's factor is 4.
  assert model.max_length == (32 if variant == 'yarn' else 16)
  before, = [line for line in read_curves(tmp_path / 'evaluations.jsonl')
             if line['step'] == 0]
  assert before['nll_16'][0] != expected[16]
  if 'long' in variant:
    assert (folder / 'adapters/adapter_model.safetensors').exists()
    base, weights = load_checkpoint(checkpoint)
    identity = adapter_base.describe(base, weights['params'])
    saved = json.loads((folder / 'adapters/base.json').read_text())
    assert saved['checksums'] == identity['checksums']
    assert 'model.layers.0.mlp.up_proj.weight' in identity['checksums']


@pytest.mark.slow
def test_a_norm_after_attention_and_no_positions_are_kept(text_file, tmp_path):
  folder, start, _ = save_llama(
      tmp_path / 'start', **MODEL, norm='layer_norm', rope=None)
  ready = prepared(folder, text_file, 'none_smoke', **{'adapters.rank': 2})
  _, rows = _train(ready, tmp_path, 'none')
  model, variables = load_checkpoint(tmp_path / 'models/none/seed_0')
  assert model == start.clone(max_length=16)
  blocks = _segments(*ready[:2]).reshape(-1, 16)
  expected, = [x.value for x in rows if x.metric == 'nll' and x.length == 16]
  np.testing.assert_allclose(next_token_cross_entropy(
      model.apply(variables, blocks), blocks), expected, rtol=1e-4)


def _segments(config, read):
  [key] = ensemble.seed_keys(config.seed, 0, 1)
  key = ensemble.purpose_key(key, ensemble.TEST)
  starts = np.asarray(measuring.draw_starts(config, key, len(read.held_out)))
  longest = measuring.longest_segment(config)
  return jnp.stack([jnp.asarray(read.held_out[x:x + longest]) for x in starts.tolist()])


@pytest.mark.slow
@pytest.mark.parametrize(('variant', 'fields'), [
    # CLEX and random positions are drawn at each step, and so is dropout.
    ('clex', {'adapters.rank': 2}), *((name, {}) for name in (
        'none', 'pi', 'ntk', 'yarn', 'eabf', 'clex', 'random', 'alibi', 'longlora',
        'longqlora'))])
def test_a_run_that_stopped_goes_on_as_if_it_had_not(
    checkpoint, text_file, tmp_path, variant, fields):
  # The rate stays constant, so that 2 of 4 steps are those of a run of 2.
  fields, name = {'optimizer.final_rate': 1.0, **fields}, f'{variant}_alpha_0_1'
  fresh = lambda: prepared(checkpoint, text_file, f'{variant}_smoke', **fields)
  _, whole = _train(fresh(), tmp_path / 'whole', name)
  _train(fresh(), tmp_path / 'parts', name, 2)
  _, parts = _train(fresh(), tmp_path / 'parts', name)
  assert parts == whole
  folders = [tmp_path / part / f'models/{name}/seed_0' for part in ('whole', 'parts')]
  one, other = (load_checkpoint(folder) for folder in folders)
  assert one[0] == other[0] and one[0].max_length > 8
  chex.assert_trees_all_equal(one[1], other[1])


@pytest.mark.parametrize(('variant', 'method', 'fields'), mostly_slow([
    ('longlora', 'pi', {}), ('longlora', 'pi', BFLOAT16),
    ('clex', 'clex', {'adapters.rank': 2})]))
def test_what_is_frozen_stays_and_is_no_part_of_the_state(
    checkpoint, text_file, key, variant, method, fields):
  config, read, model, mesh = prepared(
      checkpoint, text_file, f'{variant}_smoke', **fields)
  made = programs.Programs(config, method, model, mesh)
  shapes = lambda *x: jax.tree.map(lambda x: (x.shape, x.dtype), x)
  expected = shapes(made.state, made.frozen)
  with jax.set_mesh(mesh):
    state = made.start(key)
    assert shapes(state, made.frozen) == expected  # as experiments.compile has them
    before = jax.device_get(made.frozen)
    sizes = [x.size for x in jax.tree.leaves(state.opt_state) if x.ndim]
    trained = sum(x.size for x in jax.tree.leaves(state.params))
    assert sum(sizes) == 2 * trained
    streams = next(sharded._batches(config, 0, read))
    data = np.asarray(jax.random.key_data(key))
    start = jax.device_get(state.params)
    for _ in range(2):
      state, _ = made.step(config.arms[variant])(
          state, (streams, data, np.float32(0.1)))
  chex.assert_trees_all_equal(jax.device_get(made.frozen), before)
  changed = jax.tree.map(lambda x, y: bool((x != y).any()), start,
                         jax.device_get(state.params))
  assert all(jax.tree.leaves(changed)), changed
  assert ('clex_down' in state.params) == (method == 'clex')
  assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype('float32')}


@pytest.mark.slow
def test_a_checkpoint_of_clex_keeps_its_rates_without_another_method(
    text_file, tmp_path, key):
  rope = Rope(1e4, Clex(8, largest=3))
  folder, _, variables = save_llama(tmp_path / 'clex', **MODEL, rope=rope)
  config, _, model, mesh = prepared(folder, text_file, 'none_smoke')
  with jax.set_mesh(mesh):
    state = programs.Programs(config, 'none', model, mesh).start(key)
  chex.assert_trees_all_equal(state.params, variables['params'])


@pytest.mark.slow
def test_measurements_after_other_steps_do_not_change_a_run_that_resumes(
    checkpoint, text_file, tmp_path):
  # The rate stays constant, so that 2 of 4 steps are those of a run of 2.
  fields, name = {'optimizer.final_rate': 1.0}, 'yarn_alpha_0_1'

  def evaluations(folder, *num_steps, measure_after=(1, 3)):
    for number in num_steps:
      config, *ready = prepared(checkpoint, text_file, **fields)
      rows = _train((config, *ready), tmp_path / folder, name, number,
                    measure_after=measure_after)[1]
    lines = read_curves(tmp_path / folder / 'evaluations.jsonl')
    return rows, {line['step']: line for line in lines}

  rows, whole = evaluations('whole', 4)
  again, parts = evaluations('parts', 2, 4)
  assert [*whole] == [0, 1, 3, 4] and [*parts] == [0, 1, 2, 3, 4]
  assert parts.items() >= whole.items() and again == rows
  # The end is measured whatever else is.
  last, plain = evaluations('plain', 4, measure_after=None)
  assert [*plain] == [0, 2, 4] and plain[2] == parts[2]
  measured = lambda rows: [r for r in rows if not r.metric.startswith('training')]
  assert measured(last) == measured(rows)
