"""Fine-tuning that extends the context: methods, loss, measuring, report, command."""

import functools
import json
import math
import subprocess
import sys

import chex
from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import adapt as config_file
from experiments.adapt import check, methods, programs, report, tables
from experiments.adapt.answer import answer
from experiments.harness.progress import Progress
from experiments.language_model import sharded, training
from experiments.language_model.report import Arm, Family, Run
from tests.cells import cells, text
from tests.conftest import check_board, lose_rows, ROOT
from tests.llamas import llama, save_llama, variables_of
from vvlen.evaluation.perplexity import sliding_sums
from vvlen.models.kernels.shifted import Shifted
from vvlen.models.llama import load_checkpoint
from vvlen.models.llama import lora as adapters
from vvlen.objectives import misalignment
from vvlen.objectives.divergences import (
    entropies,
    symmetric_cross_entropy,
    symmetric_kl,
)
from vvlen.reporting import results
from vvlen.reporting.curves import read_curves
from vvlen.sharding import mesh as partition
from vvlen.statistics import holm, paired_t_test

# A checkpoint of 8 tokens that reads bytes.
MODEL = dict(vocab_size=264, width=16, mlp_width=12, head_width=8)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  folder = tmp_path_factory.mktemp('adapt') / 'checkpoint'
  save_llama(folder, **MODEL)
  return folder


@pytest.fixture(scope='module')
def text_file(tmp_path_factory):
  path = tmp_path_factory.mktemp('text') / 'text.txt'
  path.write_text('\n'.join(f'{i} {"It was the best of times"[i % 20:]}'
                            for i in range(300)))
  return path


def _config(variant='yarn_smoke', **fields):
  config = config_file.get_config(variant)
  config.update_from_flattened_dict(fields)
  return config


def _ready(checkpoint, text_file, variant='yarn_smoke', **fields):
  config = _config(variant, checkpoint=str(checkpoint), **{
      'text.path': str(text_file), 'train.batch_size': 8,
      'evaluate.num_segments': 8, **fields})
  check.check(config)
  read = training.read_text(config)
  model = training.make_model(config, read.tokenizer)
  check.check_model(config, model)
  return config, read, model, partition.make_mesh(data=-1)


def test_every_variant_is_a_config_that_can_be_run(checkpoint):
  known = [*config_file._METHODS, *config_file._ADAPTERS]
  for name in [f'{n}_{size}'.rstrip('_') for n in known for size in config_file.SIZES]:
    check.check(_config(name, checkpoint=str(checkpoint)))
  config = _config('study', checkpoint=str(checkpoint))
  check.check(config)
  assert len(config.arms) == 28 and config.num_seeds >= 8
  with pytest.raises(ValueError, match="variant must be study, or one of none, pi"):
    config_file.get_config('x')


@pytest.mark.parametrize('name', ['paper', ''])
def test_recipes_are_those_of_the_papers(name):
  variant = f'longqlora_{name}'.rstrip('_')
  config = _config(variant)
  assert programs.lora_of(config) == adapters.LONG_QLORA
  assert config.positions.groups == 4 and config.optimizer.learning_rate == 2e-4
  assert (config.optimizer.warmup_steps, config.optimizer.clip_norm,
          config.optimizer.final_rate) == (20, 0.3, 1.0)
  assert programs.lora_of(_config('longlora')) == adapters.LONG_LORA
  assert programs.lora_of(_config('clex')) is None
  paper = {n: _config(f'{n}_paper').train for n in ('clex', 'eabf', 'longqlora')}
  assert {n: (t.max_length, t.batch_size, t.num_steps) for n, t in paper.items()} == {
      'clex': (4096, 64, 200), 'eabf': (8192, 64, 200), 'longqlora': (8192, 64, 200)}


@pytest.mark.parametrize(('fields', 'message'), [
    ({'positions.factor': 0.5}, 'config.positions.factor must be .* at least 1: 0.5'),
    ({'checkpoint': ''}, 'config.checkpoint is missing'),
    ({'positions.groups': 3}, 'config.positions.groups must divide half of'),
    ({'adapters.quantized': 'nf4'}, 'config.adapters.quantized needs adapters'),
    ({'arms.none.weight': 0.2}, 'config.arms: method none needs one arm with weight 0'),
    ({'arms.yarn.term': 'x'}, "config.arms.yarn.term must be one of"),
    ({'arms.yarn.method': 'random', 'arms.yarn_alpha_0_1.method': 'random',
      'positions.highest': 31}, 'config.positions.highest must be at least the long'),
    ({'evaluate.offsets': (0.6,)}, 'config.evaluate.offsets times the length'),
    ({'optimizer.warmup_steps': 4}, 'config.optimizer.warmup_steps must be less than'),
])
def test_a_config_that_cannot_be_run_is_refused(checkpoint, fields, message):
  with pytest.raises(ValueError, match=message):
    check.check(_config(**{'checkpoint': str(checkpoint), **fields}))


@pytest.mark.parametrize(('fields', 'model', 'message'), [
    ({}, llama(max_length=17), 'config.train.max_length is 16, shorter than the 17'),
    ({}, llama(rope=None), 'config: method yarn: yarn needs a model with rotary'),
    ({'adapters.rank': 12}, llama(), 'config: method none: rank must be positive and'),
])
def test_a_config_that_does_not_fit_the_checkpoint_is_refused(fields, model, message):
  with pytest.raises(ValueError, match=message):
    check.check_model(_config(**fields), model)


def _method(name, model=None, **fields):
  return methods.make(name, model or llama(**MODEL), _config(**fields))


def test_methods_change_positions_alone(key):
  model = llama(**MODEL)
  variables = variables_of(model)
  tokens = jax.random.randint(key, (2, 16), 0, 256)
  plain = model.apply(variables, tokens)
  for name in set(methods.METHODS) - {'clex'}:
    made = _method(name, model)
    places = made.draw(key, 16)
    found = made.trained.apply(variables, tokens, *places)
    assert (name == 'none') == bool(jnp.allclose(found, plain, atol=1e-5)), name
  assert _method('pi').trained.rope.stretched == (4.0,)
  yarn = _method('yarn', **{'positions.factor': 2.0}).measured.rope.stretched
  assert yarn[:2] == (2.0, 8)  # of the 8 tokens of the checkpoint
  longer = _method('yarn', **{'positions.original_length': 6}).measured.rope.stretched
  assert longer[:2] == (4.0, 6)
  positions, length = _method('random').draw(key, 16)
  assert length is None and positions.max() > 16 and (np.diff(positions) > 0).all()
  again = _method('random').draw(jax.random.key(1), 16)[0]
  assert (positions != again).any()
  test = _method('random').of_test(16)[0]
  np.testing.assert_array_equal(test, _method('random').of_test(16)[0])


def test_clex_draws_a_length_and_is_measured_at_its_own(key):
  made = _method('clex', **{'positions.largest': 4})
  lengths = [int(made.draw(jax.random.key(i), 16)[1]) for i in range(40)]
  assert {*lengths} == {8, 16, 24, 32}
  assert made.of_test(16) == (None, None)
  assert not made.trained.rope.stretched.log_scale
  assert made.measured.rope.stretched.log_scale


def test_sparse_attention_is_of_training_alone():
  made = _method('pi', **{'positions.groups': 2})
  assert (made.trained.shifted, made.measured.shifted) == (Shifted(8), None)


@pytest.mark.parametrize(('method', 'term'), [
    ('yarn', 'sce'), ('none', 'entropy'), ('none', 'kl'), ('clex', 'sce')])
def test_the_loss_is_that_of_two_windows_at_the_same_positions(key, method, term):
  config = _config(**{'arms.yarn.method': method, 'arms.yarn.term': term})
  made = methods.make(method, llama(**MODEL), config)
  variables = variables_of(made.trained, scale=0.2)
  streams = jax.random.randint(key, (3, 24), 0, 256)
  arm = config.arms.yarn
  value, told = programs.two_window_loss(
      config, arm, made.trained, made.draw, variables['params'],
      training.Batch(streams, jnp.int32(3), jnp.float32(0.3)), key)
  places = made.draw(jax.random.split(key)[0], 16)
  windows = misalignment.two_windows(streams, 16, 3)
  logits = [made.trained.apply(variables, x, *places) for x in windows]
  divergence = {'sce': symmetric_cross_entropy, 'kl': symmetric_kl,
                'entropy': entropies}[term]
  expected, terms = misalignment.two_window_loss(
      *logits, *windows, 3, 0.3, divergence=divergence)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(told['misalignment'], terms['misalignment'], rtol=1e-5)


def test_entropies_and_symmetric_kl_are_the_misalignment_term(key):
  p, q = jax.random.normal(key, (2, 5, 7))
  np.testing.assert_allclose(
      entropies(p, q) + symmetric_kl(p, q), symmetric_cross_entropy(p, q), rtol=1e-5)
  uniform = jnp.zeros((2, 7))
  np.testing.assert_allclose(entropies(uniform, uniform), 2 * math.log(7), rtol=1e-6)


def test_sliding_windows_are_those_of_the_library(key):
  config, model = _config(), llama(**MODEL)
  variables = variables_of(model)
  segments = jax.random.randint(key, (3, 32), 0, 256)
  plain = lambda n: methods.Places()
  found = programs.evaluate(config, 8, model, plain, variables['params'], segments)
  apply = functools.partial(jax.jit(model.apply), variables)
  assert found['sliding'].keys() == {8, 16} and found['nll'].keys() == {8, 16, 32}
  for length, stride in ((8, 4), (16, 8)):
    sums = [sliding_sums(apply, np.asarray(x), length, stride) for x in segments]
    total, count = (sum(x[i].sum() for x in sums) for i in (0, 1))
    np.testing.assert_allclose(found['sliding'][length], total / count, rtol=1e-5)


def _train(ready, tmp_path, name, num_steps=None):
  config, read, model, mesh = ready
  if num_steps:
    config.train.num_steps = num_steps
  made = programs.Programs(config, config.arms[name].method, model, mesh)
  with Progress(config.train.num_steps, 'steps') as progress:
    rows = sharded.run_seed(config, name, 0, read, mesh, made, epath.Path(tmp_path),
                            progress, report.EXPERIMENT)
  return made, rows


@pytest.mark.parametrize('variant', [
    'none', 'pi', 'ntk', 'yarn', 'eabf', 'clex', 'longlora', 'longqlora'])
def test_a_trained_model_is_saved_and_read_again(
    checkpoint, text_file, tmp_path, variant):
  ready = _ready(checkpoint, text_file, f'{variant}_smoke')
  config, read, _, _ = ready
  _, rows = _train(ready, tmp_path, variant)
  folder = tmp_path / f'models/{variant}/seed_0'
  model, variables = load_checkpoint(folder)
  segments = _segments(config, read)
  expected = {row.length: row.value for row in rows if row.metric == 'nll'}
  found = jax.jit(functools.partial(
      programs.evaluate, config, 8, model, lambda n: methods.Places()))(
          variables['params'], segments)
  # A quantized base is written in its own dtype.
  tolerance = 2e-2 if variant == 'longqlora' else 1e-4
  for length, value in found['nll'].items():
    np.testing.assert_allclose(value, expected[length], rtol=tolerance)
  before, = [line for line in read_curves(tmp_path / 'evaluations.jsonl')
             if line['step'] == 0]
  assert before['nll_16'][0] != expected[16]
  if 'long' in variant:
    assert (folder / 'adapters/adapter_model.safetensors').exists()


def _segments(config, read):
  [key] = training_keys(config)
  starts = np.asarray(training.draw_starts(config, key, len(read.held_out)))
  longest = training.longest_segment(config)
  return jnp.stack([jnp.asarray(read.held_out[x:x + longest]) for x in starts.tolist()])


def training_keys(config):
  from vvlen.training import ensemble

  [key] = ensemble.seed_keys(config.seed, 0, 1)
  return [ensemble.purpose_key(key, ensemble.TEST)]


@pytest.mark.parametrize('variant', ['clex', 'longlora'])
def test_a_run_that_stopped_goes_on_as_if_it_had_not(
    checkpoint, text_file, tmp_path, variant):
  # The rate stays constant, so that 2 of 4 steps are those of a run of 2.
  fields = {'optimizer.final_rate': 1.0}
  name = f'{variant}_alpha_0_1'
  fresh = lambda: _ready(checkpoint, text_file, f'{variant}_smoke', **fields)
  _, whole = _train(fresh(), tmp_path / 'whole', name)
  _train(fresh(), tmp_path / 'parts', name, 2)
  _, parts = _train(fresh(), tmp_path / 'parts', name)
  assert parts == whole


def test_what_is_frozen_stays_and_is_no_part_of_the_state(checkpoint, text_file, key):
  config, read, model, mesh = _ready(checkpoint, text_file, 'longlora_smoke')
  made = programs.Programs(config, 'pi', model, mesh)
  with jax.set_mesh(mesh):
    state = made.start(key)
    before = jax.device_get(made.frozen)
    sizes = [x.size for x in jax.tree.leaves(state.opt_state) if x.ndim]
    trained = sum(x.size for x in jax.tree.leaves(state.params))
    assert sum(sizes) == 2 * trained
    streams = next(sharded._batches(config, 0, read))
    data = np.asarray(jax.random.key_data(key))
    start = jax.device_get(state.params)
    for _ in range(2):
      state, _ = made.step(config.arms.longlora)(
          state, (streams, data, np.float32(0.1)))
  chex.assert_trees_all_equal(jax.device_get(made.frozen), before)
  changed = jax.tree.map(lambda x, y: bool((x != y).any()), start,
                         jax.device_get(state.params))
  assert all(jax.tree.leaves(changed)), changed


# Tables, of made-up numbers that are all different.

ARMS = {name: Arm(name, weight, (0.0, 0.5), steps, term) for name, weight, steps, term
        in (('none', 0.0, 1.0, 'sce'), ('yarn', 0.0, 1.0, 'sce'),
            ('yarn_alpha', 0.1, 1.0, 'sce'), ('yarn_entropy', 0.1, 1.0, 'entropy'),
            ('yarn_kl', 0.1, 1.0, 'kl'), ('yarn_more', 0.0, 1.05, 'sce'),
            ('none_alpha', 0.1, 1.0, 'sce'))}
RUN = Run(ARMS, '', 16, (1, 2), 3, '4 steps of 8 streams', 2)
FAMILIES = [
    Family('none', 'fine-tuning alone', ARMS['none'], (ARMS['none_alpha'],),
           'none_alpha'),
    Family('yarn', 'YaRN', ARMS['yarn'], tuple(
        ARMS[n] for n in ('yarn_alpha', 'yarn_entropy', 'yarn_kl', 'yarn_more')),
           'yarn_alpha'),
]


@pytest.fixture
def index():
  rng = np.random.default_rng(2)
  return {
      (name, metric, length): dict(enumerate(
          1.5 + place / 10 + rng.normal(0, 0.02, 3) + length / 100))
      for place, name in enumerate(ARMS) for metric in ('nll', 'sliding')
      for length in (8, 16, 32) if (metric, length) != ('sliding', 32)}


def _difference(test, form='.4f'):
  return (f'{text(test.mean_difference, "+" + form)} '
          f'[{text(test.ci_low, "+" + form)}, {text(test.ci_high, "+" + form)}]')


def _compare(index, one, other, length=32):
  return paired_t_test([*index[one, 'nll', length].values()],
                       [*index[other, 'nll', length].values()])


def _perplexity(values):
  from scipy import stats

  low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
  return (f'{text(math.exp(np.mean(values)), ".2f")} '
          f'[{text(math.exp(low), ".2f")}, {text(math.exp(high), ".2f")}]')


def test_every_cell_of_methods(index):
  lines = [{'arm': name, 'step': step, 'first_seed': seed,
            **{f'nll_{n}': [step + seed / 10 + n / 7 + place] for n in (8, 16, 32)}}
           for place, name in enumerate(('none', 'yarn')) for step in (0, 4)
           for seed in range(3)]
  found = cells(tables.methods(FAMILIES, ARMS['none'], RUN, index, lines, 8))
  test = _compare(index, 'yarn', 'none')
  expected = []
  for place, (name, words) in enumerate(
      (('none', 'fine-tuning alone'), ('yarn', 'YaRN'))):
    row = {'method': words}
    for at, n in (('8 tokens', 8), ('L', 16), ('2 L', 32)):
      row[f'{at}: before'] = text(math.exp(0.1 + n / 7 + place), '.2f')
      row[f'{at}: after [95 %]'] = _perplexity([*index[name, 'nll', n].values()])
    row['Δ log perplexity at 2 L [95 %]'] = _difference(test) if place else ''
    row['p, Holm'] = tables.p_value(test.p) if place else ''
    expected.append(row)
  assert found == expected


def test_every_cell_of_the_term(index):
  found = cells(tables.term(FAMILIES, RUN, index))
  tests = [_compare(index, f'{name}_alpha', name) for name in ('none', 'yarn')]
  p_holm = holm([test.p for test in tests])
  for row, test, p, words in zip(
      found, tests, p_holm, ('fine-tuning alone', 'YaRN'), strict=True):
    assert row['method'] == words
    assert row['misalignment term [95 %]'] == _difference(test)
    assert row['p'] == tables.p_value(test.p)
    assert row['p Holm'] == tables.p_value(float(p))
  for header, name in (('entropy alone', 'entropy'), ('symmetric KL alone', 'kl'),
                       ('more steps', 'more')):
    assert found[0][f'{header} [95 %]'] == ''
    assert found[1][f'{header} [95 %]'] == _difference(
        _compare(index, f'yarn_{name}', 'yarn'))


def test_every_cell_of_sliding_windows(index):
  found = cells(tables.sliding(FAMILIES, RUN, index, 8))
  names = ['none', 'none_alpha', 'yarn', 'yarn_alpha', 'yarn_entropy', 'yarn_kl',
           'yarn_more']
  for row, name in zip(found, names, strict=True):
    assert row.pop('arm').startswith(
        'YaRN' if name.startswith('yarn') else 'fine-tuning alone')
    assert row == {
        '8 tokens [95 %]': _perplexity([*index[name, 'sliding', 8].values()]),
        'L [95 %]': _perplexity([*index[name, 'sliding', 16].values()])}


def test_the_answer_is_of_the_term_and_names_no_verdict_without_one(index):
  found = answer(FAMILIES, RUN, index, 4.0)
  test = _compare(index, 'yarn_alpha', 'yarn')
  assert f'{text(test.mean_difference, "+.4f")} nats' in found[0]
  assert '(YaRN)' in found[0] and '3 pairs of seeds' in found[0]
  assert 'log perplexity at 2 L, 32 tokens' in found[0]
  mean = math.exp(np.mean([*index['yarn', 'nll', 32].values()]))
  assert f'{mean:.3g} (YaRN)' in found[1].split('At 2 L')[1]
  [first, second] = answer(FAMILIES, RUN, index, 2.0)
  assert first.startswith('No verdict: the models predict little more')
  assert f'frequencies alone is {math.exp(2):.3g}' in second
  alone = [family._replace(primary='', others=()) for family in FAMILIES]
  assert answer(alone, RUN, index, 4.0)[0].startswith(
      'No verdict on the misalignment term')


def _command(checkpoint, text_file, tmp_path, *flags):
  return ('--config=configs/adapt.py:pi_smoke', f'--workdir={tmp_path}/run',
          f'--config.checkpoint={checkpoint}', f'--config.text.path={text_file}',
          *flags)


def test_the_command_runs(run_here, checkpoint, text_file, tmp_path):
  done = run_here('adapt', *_command(checkpoint, text_file, tmp_path))
  assert done.returncode == 0, done.stderr
  assert '3 of 3 training runs to do' in done.stdout
  folder = tmp_path / 'run'
  rows = results.read_run(folder, report.EXPERIMENT, ('none', 'pi', 'pi_alpha_0_1'))
  metrics = {row.metric for row in rows}
  assert {'nll', 'sliding', 'sce', 'excess', 'training_loss'} <= metrics
  assert {row.length for row in rows if row.metric == 'nll'} == {8, 16, 32}
  for name in ('methods', 'pi', 'pi_by_length', 'sliding', 'term'):
    assert (folder / f'tables/{name}.md').exists()
  assert (folder / 'figures/methods.png').exists() and (folder / 'index.html').exists()
  inputs = json.loads((folder / 'config.json').read_text())['config']['inputs']
  assert 1 < inputs['unigram_nats'] < math.log(256) and inputs['original_length'] == 8
  check_board(folder)


@pytest.mark.slow
def test_a_run_that_lost_rows_measures_them_again_and_adds_seeds(
    checkpoint, text_file, tmp_path, fast_compilation):

  def run(*flags):
    command = _command(checkpoint, text_file, tmp_path, *flags)
    done = subprocess.run(
        [sys.executable, '-m', 'experiments.adapt', *command], cwd=ROOT, text=True,
        capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout, (tmp_path / 'run/results.csv').read_text()

  _, whole = run()
  lose_rows(tmp_path / 'run')
  said, again = run()
  assert '2 of 3 training runs to do' in said and again == whole
  said, more = run('--config.num_seeds=2')
  assert '3 of 6 training runs to do' in said
  assert {*whole.splitlines()} < {*more.splitlines()}


@pytest.mark.parametrize(('flags', 'message'), [
    ((), 'config.checkpoint is missing'),
    (('--config.checkpoint=nothing',), 'nothing is not a checkpoint'),
    (('--config.checkpoint=nothing', '--config.positions.factor=0.5'),
     'config.positions.factor must be a finite number of at least 1: 0.5'),
])
def test_bad_input_is_one_line(run_here, tmp_path, flags, message):
  done = run_here('adapt', '--config=configs/adapt.py:pi_smoke',
                  f'--workdir={tmp_path}/run', *flags)
  assert done.returncode == 2 and message in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1, done.stderr
  assert not (tmp_path / 'run').exists()
