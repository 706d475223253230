"""The study of correlations over models: models, benchmark, tables, sentences, runs."""

import contextlib
import functools
import json
import re
import shutil
import subprocess
import sys
import time
import types

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from configs import correlation as config_file
from configs import language_model
from experiments.correlation import (
  answer,
  check,
  dialects,
  figures,
  groups,
  models,
  paper,
  points,
  prompts,
  related,
  report,
  tables,
  term,
  unfinished,
)
from experiments.correlation import run as run_of_study
from experiments.correlation.points import At, OfTask
from experiments.correlation.programs import make_answer
from experiments.language_model import check as check_of_language_models
from experiments.language_model import training
from experiments.long_context import generation, training_text
from experiments.long_context.training_text import Answered
from tests.artists import bands
from tests.conftest import ROOT, shown
from vvlen import sharding, statistics
from vvlen.models.llama.initial_weights import around_common_vector
from vvlen.models.rope import Rope
from vvlen.reporting import results
from vvlen.reporting.results import Row
from vvlen.reporting.titles import setup_of
from vvlen.tasks import babi_stories
from vvlen.tasks.tokenizers import byte_tokenizer

BYTES = byte_tokenizer()


def _config(variant='smoke', **fields):
  config = config_file.get_config(variant)
  config.update_from_flattened_dict(fields)
  return config


# Models.

FIRST = {'cpu': 'rope_01', 'full': 'rope_01'}  # a model of each variant


def test_a_model_is_measured_in_units_of_its_own_length():
  config = _config('cpu')
  check.check(config)
  for name, model in config.models.items():
    own = models.own_config(config, name)
    length = own.train.max_length
    assert length == {1.0: 128, 0.875: 112}[model.length]
    assert models.make(config, name, BYTES).max_length == length
    assert own.evaluate.lengths == (1, 2, 4, 8) and own.seed == model.seed
    assert models.prompt_lengths(config, name) == [
        length * n / 4 for n in (4, 5, 6, 7, 8, 16, 32)]
    steps = training.num_steps(own, own.arms[name])
    assert steps == round(12_000 * model.steps) == own.evaluate.every_steps
  other = _config('cpu', seed=1000)
  assert models.own_config(other, 'alibi_02').seed == 1302


def test_models_whose_shares_of_steps_are_rounded_alike_are_refused():
  steps = {'train.num_steps': 800, 'train.steps_per_call': 400}
  check.check(_config(**steps, **{'models.layer_norm.norm': 'none',
                                  'models.layer_norm.steps': 0.5}))
  with pytest.raises(ValueError, match='layer_norm and rope would have the same weigh'):
    check.check(_config(**steps, **{'models.layer_norm.norm': 'none',
                                    'models.layer_norm.steps': 0.8}))
  # Those of another seed have other weights.
  check.check(_config(**{'models.layer_norm.norm': 'none',
                         'models.layer_norm.seed': 3}))


def test_models_differ_in_what_their_fields_say():
  config = _config('cpu')
  made = {name: models.make(config, name, BYTES) for name in config.models}
  of = lambda prefix: {name for name in made if name.startswith(prefix)}
  for prefix, rope in (('rope_', Rope(10_000.0)), ('low_base', Rope(1e3)),
                       ('high_base', Rope(1e6)), ('alibi', None)):
    assert {made[name].rope for name in of(prefix)} == {rope}
  assert {name for name, x in made.items() if x.alibi} == of('alibi')
  assert {name: x.norm for name, x in made.items()} == {
      name: x.norm for name, x in config.models.items()}
  bare = models.make(_config('quick'), 'no_positions', BYTES)
  assert bare.rope is None and not bare.alibi


def test_the_study_is_of_these_models():
  cpu, full = (config_file.get_config(x) for x in ('cpu', 'full'))
  plain = {name: x for name, x in cpu.models.items() if not x.weight}
  assert sorted(plain) == sorted(
      f'{name}_{i:02}' for name in ('rope', 'low_base', 'high_base', 'alibi')
      for i in range(1, 13))
  assert len({x.seed for x in plain.values()}) == 48
  # Of each positions, each choice is there equally often.
  for positions in ('rope', 'low_base', 'high_base', 'alibi'):
    own = [x for name, x in plain.items() if name.startswith(positions)]
    for field, choices in (('norm', ('none', 'layer_norm', 'standardize')),
                           ('length', (0.875, 1.0)), ('steps', (1.0, 1.25))):
      found = [x[field] for x in own]
      assert {c: found.count(c) for c in {*found}} == {
          c: 12 // len(choices) for c in choices}
  partners = {name: x for name, x in cpu.models.items() if x.weight}
  assert sorted(partners) == sorted(
      f'{name}_{i:02}_term' for name in ('rope', 'low_base', 'high_base', 'alibi')
      for i in range(1, 6))
  for name, x in partners.items():
    other = cpu.models[name.removesuffix('_term')]
    assert {field for field in x if x[field] != other[field]} == {'weight'}
    assert x.weight == term.PRIMARY == 0.1
  # More partners change no model.
  assert {name: full.models[name] for name in cpu.models} == dict(cpu.models.items())
  assert len(full.models) == 96
  assert [cpu.num_seeds, cpu.seed, cpu.num_resamples] == [1, 0, 10_000]
  assert cpu.primary.to_dict() == dict(
      measure='symmetric_kl', outcome='score_near', correlation='spearman',
      tasks=training_text.SMALL[:2])
  assert cpu.benchmark.lengths == (1, 1.25, 1.5, 1.75, 2, 4, 8)
  # The prompts are of the kinds that the training text has by default.
  assert cpu.benchmark.tasks == training_text.SMALL
  assert cpu.benchmark.num_prompts == 96 and cpu.evaluate.num_segments == 256
  pilot = config_file.get_config('pilot')
  assert pilot.seed == 1000 and pilot.train == cpu.train  # seeds of its own


def test_initial_weights_have_the_given_spread(key):
  for variant, std in (('cpu', 1 / 8), ('full', 1 / 16)):
    config = _config(variant)
    assert config.model.init_std == std == config.model.width**-0.5
    model = models.make(config, FIRST[variant], BYTES)
    params = training.init_params(model, key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
      if leaf.ndim > 1:  # kernels and the embedding; norms are 1
        spread = np.sqrt(np.var(leaf, 0).mean())  # around what the rows have in common
        assert spread == pytest.approx(std, rel=0.05), path
    # Embeddings have a common part, twice as large: cos = 4 / (1 + 4).
    rows = params['embedding'] / np.linalg.norm(params['embedding'], axis=1)[:, None]
    near = np.mean(rows @ rows.T)
    assert near == pytest.approx(0.8, abs=0.06), variant
    kernel = params['layer_0']['query']['kernel']
    assert abs(np.mean(kernel)) < std / 20
  # Without the field it is 0.02, as it always was.
  plain = _config()
  with plain.unlocked():
    del plain.model.init_std, plain.model.init_common
  params = training.init_params(models.make(plain, 'rope', BYTES), key)
  assert np.std(params['embedding']) == pytest.approx(0.02, rel=0.1)


def test_embeddings_are_drawn_around_a_common_vector(key):
  shape, init = (4000, 16), around_common_vector(0.5, 2.0)
  found = init(key, shape)
  common = found.mean(0)  # of norm 2 · 0.5 · √16 = 4, up to chance
  assert 2 < np.linalg.norm(common) < 6
  np.testing.assert_allclose(np.std(found, 0), 0.5, rtol=0.05)
  np.testing.assert_array_equal(found, init(key, shape))
  # Not a multiple of a vector's own part, as with one key for both.
  assert np.abs(found[0] - 1.5 * common).max() > 0.5
  other = init(jax.random.key(9), shape).mean(0)
  assert np.linalg.norm(other - common) > 1
  assert np.abs(around_common_vector(0.5, 0.0)(key, shape).mean(0)).max() < 0.05
  np.testing.assert_array_equal(
      around_common_vector(0.5, 0.0)(key, shape),
      jax.nn.initializers.normal(0.5)(key, shape))
  # Their spread over many common vectors, in units of the other.
  drawn = jnp.stack([init(jax.random.key(i), (200, 16)).mean(0) for i in range(100)])
  assert np.std(drawn) == pytest.approx(1.0, rel=0.1)


def test_the_common_part_is_in_units_of_a_given_spread():
  config = language_model.get_config('smoke')
  config.model.init_common = 2.0
  with pytest.raises(ValueError, match='init_common is in units of'):
    check_of_language_models.check(config)
  config.model.init_std = 0.1
  check_of_language_models.check(config)


# The benchmark.


@pytest.fixture(scope='module')
def asked():
  benchmark = _config(**{'benchmark.num_prompts': 3,
                         'benchmark.needle_values': 'numbers',
                         'benchmark.tasks': ('niah_multivalue', 'qa1')}).benchmark
  return prompts.draw(benchmark, [400, 800], BYTES, 0)


def test_a_prompt_with_its_answer_fills_a_length(asked):
  for length, own in asked.items():
    assert [x.task for x in own] == 3 * ['niah_multivalue'] + 3 * ['qa1']
    for prompt in own:
      assert len(prompt.tokens) == length - 20 and prompt.tokens[0] == BYTES.begin
      assert BYTES.decode(prompt.tokens) == prompt.answered.prompt
    assert len({x.answered.prompt for x in own}) == 6
  # Those of one length are not those of another with more filler.
  first, second = ({x.answered.answers for x in own[:3]} for own in asked.values())
  assert len(first) == len(second) == 3 and not first & second
  chance = [x.answered.chance for x in asked[400]]
  assert chance == pytest.approx(3 * [4 / 900] + 3 * [1 / 6])


def test_a_shortcut_is_right_without_the_question():
  benchmark = _config(**{'benchmark.num_prompts': 40,
                         'benchmark.tasks': ('niah_single', 'niah_multikey', 'qa1')
                         }).benchmark
  own = prompts.draw(benchmark, [800], BYTES, 0)[800]
  of = lambda task: [x.answered for x in own if x.task == task]
  assert all(x.shortcut == x.chance for x in of('niah_single'))
  for answered in of('niah_multikey'):
    # One of four keys; the others' values are in the prompt.
    assert answered.shortcut == 1 / 4 and len(answered.others) == 3
    assert all(f' is {x}.' in answered.prompt for x in answered.others)
  rooms = '|'.join(babi_stories.ROOMS)
  shortcuts = set()
  for answered in of('qa1'):
    last = re.findall(rf'to the ({rooms})\.', answered.prompt)[-1]
    right = answered.answers == (last,)
    assert answered.shortcut == right
    shortcuts |= {right}
  assert shortcuts == {True, False}


def test_more_prompts_and_lengths_change_none(asked):
  benchmark = _config(**{'benchmark.tasks': ('qa1',)}).benchmark
  few = prompts.draw(benchmark, [800], BYTES, 0)[800]
  assert [x.answered for x in few] == [x.answered for x in asked[800][3:5]]
  other = prompts.draw(benchmark, [800], BYTES, 1)[800]
  assert few[0].answered != other[0].answered


def test_answers_are_scored_as_their_task_is():
  needles = prompts.Prompt(
      'niah_multivalue', np.zeros(3, np.int32),
      Answered('p', ('12', '34'), others=('56',)))
  where = prompts.Prompt('qa1', np.zeros(3, np.int32), Answered(
      'p', ('office',), 'Where is Mary?', 1 / 6, 0.5))
  outputs = [' 34, 56.', ' office.', ' kitchen, office.', ' 12, 34.']
  rows = prompts.rows_of('m', 4, 128, [needles, where, where, needles], outputs)
  assert {(r.experiment, r.metric): r.value for r in rows} == {
      ('niah_multivalue', 'score'): 0.75, ('niah_multivalue', 'score_lm_eval'): 0.75,
      ('niah_multivalue', 'score_strict'): 0.5, ('niah_multivalue', 'chance'): 0,
      ('niah_multivalue', 'shortcut'): 0,
      ('qa1', 'score'): 0.5, ('qa1', 'score_lm_eval'): 1, ('qa1', 'score_strict'): 0.5,
      ('qa1', 'chance'): pytest.approx(1 / 6), ('qa1', 'shortcut'): 0.5}
  assert {r[1:4] for r in rows} == {('m', 4, 128)}
  # What a question names is no answer.
  north = prompts.Prompt('qa4', np.zeros(3, np.int32), Answered(
      'p', ('office',), 'What is north of the kitchen?', 1 / 6))
  assert prompts.score(north, ' office, north of the kitchen.') == 1
  lines = prompts.lines_of(128, [needles, where], outputs[:2]).splitlines()
  assert [*map(json.loads, lines)] == [
      {'task': 'niah_multivalue', 'length': 128, 'index': 0, 'num_tokens': 3,
       'answers': ['12', '34'], 'question': '', 'chance': 0, 'shortcut': 0,
       'pred': ' 34, 56.', 'score': 0.5, 'score_lm_eval': 0.5, 'score_strict': 0},
      {'task': 'qa1', 'length': 128, 'index': 1, 'num_tokens': 3,
       'answers': ['office'], 'question': 'Where is Mary?',
       'chance': pytest.approx(1 / 6), 'shortcut': 0.5, 'pred': ' office.', 'score': 1,
       'score_lm_eval': 1, 'score_strict': 1}]


def test_rows_and_files_of_answers_are_those_of_their_seed(monkeypatch, tmp_path):
  where = lambda answer: prompts.Prompt('qa1', np.zeros(3, np.int32), Answered(
      'p', (answer,), 'Where is Mary?', 1 / 6))
  asked = {128: [where('office'), where('garden')], 256: [where('kitchen')]}
  measured = {seed: {'nll': {128: 2.0 + seed}} for seed in (4, 5)}
  trained = lambda config, name, programs, first, folder, progress: (
      types.SimpleNamespace(params=first, measured=measured))
  monkeypatch.setattr(run_of_study.together, 'train_and_measure', trained)
  # The last seed of the block is one too many.
  outputs = {2: [['office', 'office'], ['garden', 'garden'], ['x', 'x']],
             1: [['garden'], ['kitchen'], ['x']]}
  saved = []
  monkeypatch.setattr(run_of_study.together, 'save_models',
                      lambda *arguments: saved.append(arguments))
  subject = run_of_study.Subject(
      'own', 'model', None, lambda params, own: outputs[len(own)], asked)
  progress = types.SimpleNamespace(measuring=lambda _: contextlib.nullcontext())
  rows = run_of_study._rows(
      _config(), 'base', subject, 4, epath.Path(tmp_path), progress)
  [(own, name, model, of, seeds, folder)] = saved
  assert (own, name, model, seeds) == ('own', 'base', 'model', [4, 5])
  assert (of.params, folder) == (4, epath.Path(tmp_path))
  found = {row[:5]: row.value for row in rows}
  assert {row[2:4]: x for row, x in found.items() if row[4] == 'score'} == {
      (4, 128): 0.5, (5, 128): 0.5, (4, 256): 0, (5, 256): 1}
  assert found['correlation', 'base', 5, 128, 'nll'] == 7
  assert {row[1] for row in found} == {'base'} and len(rows) == 2 * (1 + 5 * 2)
  for seed, texts in ((4, ['office', 'office', 'garden']),
                      (5, ['garden', 'garden', 'kitchen'])):
    path = tmp_path / f'predictions/base_seed_{seed}.jsonl'
    lines = [*map(json.loads, path.read_text().splitlines())]
    assert [line['pred'] for line in lines] == texts
    assert [line['length'] for line in lines] == [128, 128, 256]


@pytest.mark.slow
def test_seeds_answer_as_each_does_alone(key):
  config = _config()
  model = models.make(config, 'rope', BYTES)
  mesh = sharding.seed_mesh(jax.devices()[:2])
  params = jax.vmap(lambda k: jax.tree.map(
      lambda x: 30 * x, training.init_params(model, k)))(jax.random.split(key, 2))
  own = [prompts.Prompt('qa1', np.arange(n, dtype=np.int32) + n, Answered('', ('a',)))
         for n in (9, 30, 17)]
  found = make_answer(model, BYTES, 6, mesh, 1)(sharding.put(params, mesh), own)
  for seed in range(2):
    subject = generation.Subject(
        model, {'params': jax.tree.map(lambda x, s=seed: x[s], params)}, BYTES,
        (BYTES.begin,), 1)
    assert found[seed] == [
        generation.answer(subject, [x.tokens], len(x.tokens), 6)[0] for x in own]
  assert found[0] != found[1]


# Tables, figures and sentences, from made rows.


_KEPT = [f'{name}_{i:02}' for i in range(1, 5)
         for name in ('rope', 'low_base', 'high_base', 'alibi')]
_PARTNERS = [f'{name}_01_term' for name in ('rope', 'low_base', 'high_base', 'alibi')]


def _few_of_cpu(**fields):
  """Returns the study with 16 models, four partners and two seeds."""
  config = _config('cpu', **{
      'benchmark.tasks': ('niah_single', 'qa1', 'passkey'), 'num_resamples': 300,
      'primary.tasks': ('niah_single', 'qa1'), 'num_seeds': 2,
      **fields})
  config.models = {name: config.models[name] for name in (*_KEPT, *_PARTNERS)}
  return config


def _run(**fields):
  return points.read_run(_few_of_cpu(**fields).to_dict())


# Of 20 models; the alphabet puts each partner behind its model.
_ORDER = np.random.default_rng(5).permutation(20)
_LOSS = [*(1 + (_ORDER + np.random.default_rng(6).normal(0, 9, 20)) / 20)]
_EXCESS = [*((_ORDER + np.random.default_rng(7).normal(0, 4, 20) + 20) / 400)]


def _score(i, n):
  """Of model i at n L: all have learned, and beyond L they differ."""
  return 0.95 if n == 1 else 0.9 - 0.02 * _ORDER[i] - 0.04 * n


def _rows(run, score=_score, loss=_LOSS, excess=_EXCESS, nll=None):
  """Returns rows of two seeds; values of model i differ in every field and length."""
  rows = []
  nll = nll or (lambda i, n: 2 + _ORDER[i]**2 / 50 + n / 4)
  for i, model in enumerate(run.models):
    for seed in (0, 1):
      shift = 0.01 * seed
      row = lambda metric, n, value, of='correlation', m=model, s=seed: Row(
          of, m.name, s, n if n is None else m.tokens(n), metric, value)
      rows += [row('training_cross_entropy', None, loss[i] + shift),
               row('training_loss', None, 77.0)]
      for n in run.nll_lengths:
        rows += [row('nll', n, nll(i, n) + shift),
                 row('symmetric_kl', n, excess[i] + shift / 10 + (n - 1)),
                 row('sce', n, 5 + i / 3 + n), row('js', n, 1 / (i + 2)),
                 row('kl_first_second', n, 0.3 + (i - 1) ** 2),
                 row('kl_second_first', n, 0.2 + (i - 3) ** 2),
                 row('entropy_first', n, (i - 2) ** 2 + 0.5),
                 row('entropy_second', n, (i - 4) ** 2 + 0.7),
                 row('top1_agreement', n, 0.5 + i / 50)]
      for n in run.lengths:
        rows += [row('score', n, score(i, n) + shift, 'niah_single'),
                 row('score', n, score(i, n) - 0.06, 'qa1'),
                 *(row(f'score_{dialect}', n, score(i, n) - 0.11 * (i % less), task)
                   for task in ('niah_single', 'qa1')
                   for dialect, less in (('lm_eval', 2), ('strict', 3))),
                 # A task that does not count.
                 *(row(metric, n, 0.3 + i / 100, 'passkey') for metric in (
                     'score', 'score_lm_eval', 'score_strict')),
                 *(row(metric, n, 0.4, 'passkey') for metric in ('chance', 'shortcut')),
                 row('chance', n, 0.0, 'niah_single'),
                 row('chance', n, 0.2 + (n - 1) / 100, 'qa1'),
                 row('shortcut', n, 0.05, 'niah_single'),
                 row('shortcut', n, 0.25 + (n - 1) / 100, 'qa1')]
  return rows


@pytest.fixture(scope='module')
def run():
  return _run()


@pytest.fixture(scope='module')
def found(run):
  return points.points(run, _rows(run))


@pytest.fixture(scope='module')
def used(run, found):
  return points.compared(run, found)


def _names(points):
  return [model.name for model in points.models]


def test_a_model_is_the_mean_of_its_seeds(run, found):
  assert len(run.models) == 20 and _names(found) == [m.name for m in run.models]
  assert {m.length for m in run.models} == {112, 128}
  assert run.lengths == (1, 1.25, 1.5, 1.75, 2, 4, 8)
  assert run.nll_lengths == (1, 2, 4, 8)
  assert run.near == (1.25, 1.5, 1.75, 2) and run.far == (2, 4, 8)
  means = found.means
  np.testing.assert_allclose(means['training_cross_entropy'], np.array(_LOSS) + 0.005)
  # Predictors are at L, the length of a model's own training.
  np.testing.assert_allclose(means['symmetric_kl'], np.array(_EXCESS) + 0.0005)
  np.testing.assert_allclose(means['sce'], 6 + np.arange(20) / 3)
  near, far = 0.9 - 0.02 * _ORDER - 0.04 * np.mean([[1.25, 1.5, 1.75, 2]]), (
      0.9 - 0.02 * _ORDER - 0.04 * 14 / 3)
  np.testing.assert_allclose(means['score_near'], near + 0.0025 - 0.03)
  np.testing.assert_allclose(means['score_far'], far + 0.0025 - 0.03)
  np.testing.assert_allclose(means[At('score', 1)], 0.95 + 0.0025 - 0.03)
  np.testing.assert_allclose(
      means['nll_beyond'], 2 + _ORDER**2 / 50 + 14 / 3 / 4 + 0.005)
  np.testing.assert_allclose(means['nll'], 2 + _ORDER**2 / 50 + 1 / 4 + 0.005)
  np.testing.assert_allclose(means['chance'], 0.1)
  np.testing.assert_allclose(means['shortcut'], 0.15)
  np.testing.assert_allclose(means[OfTask('qa1', 1, 'shortcut')], 0.25)
  np.testing.assert_allclose(means['shortcut_near'], 0.15 + 0.625 / 200)
  np.testing.assert_allclose(means[OfTask('qa1', 1.5, 'score_strict')],
                             0.84 - 0.02 * _ORDER - 0.11 * (np.arange(20) % 3))
  assert found.left_out == []


def test_seeds_that_are_not_finite_or_not_whole_are_left_out(run):
  rows = _rows(run)
  bad = {('alibi_02', 1): 'nll', ('rope_01', 0): 'js', ('rope_01', 1): 'sce'}
  rows = [r._replace(value=np.nan) if bad.get((r.arm, r.seed)) == r.metric else r
          for r in rows if (r.arm, r.seed, r.metric, r.experiment) !=
          ('rope_02', 0, 'score', 'qa1')]
  found = points.points(run, rows)
  assert found.left_out == [('alibi_02', 1), ('rope_01', 0), ('rope_01', 1)]
  assert _names(found) == [m.name for m in run.models if m.name != 'rope_01']
  seeds = {name: sorted(x) for name, x in
           zip(_names(found), found.seeds['score_near'], strict=True)}
  assert seeds == {name: {'alibi_02': [0], 'rope_02': [1]}.get(name, [0, 1])
                   for name in seeds}
  assert 'left out: alibi_02, seed 1; rope_01, seed 0' in tables.table_1(
      run, found).note


def test_compared_are_models_without_the_term_that_learned_each_task(run, found, used):
  assert _names(used) == sorted(_KEPT)
  # Halfway from the shortcuts .05 and .25 to 1: .525 and .625, of means over seeds.
  at = {'rope_01': (0.519, 0.95), 'rope_02': (0.521, 0.95), 'alibi_01': (0.95, 0.684),
        'alibi_02': (0.95, 0.686)}

  def score(of):
    return lambda i, n: at.get(run.models[i].name, (0.95, 0.95))[of]

  one, other = (_rows(run, score(of)) for of in (0, 1))
  rows = [a if a.experiment == 'niah_single' else b
          for a, b in zip(one, other, strict=True)]
  made = points.points(run, rows)
  of = lambda task: {name for name, ok in zip(
      _names(made), points.learned(run, made, task), strict=True) if not ok}
  assert of('niah_single') == {'rope_01'} and of('qa1') == {'alibi_01'}
  assert of('') == {'rope_01', 'alibi_01'}
  assert _names(points.compared(run, made)) == [
      name for name in sorted(_KEPT) if name not in ('rope_01', 'alibi_01')]
  cells = {r['model']: r['not_learned'] for r in tables.models(run, made).records}
  assert {name: x for name, x in cells.items() if x} == {
      'rope_01': 'niah_single', 'alibi_01': 'qa1'}
  assert not points.learned(run, made.only(np.zeros(20, bool))).size


def test_models_and_predictors_have_these_names():
  config = _config('quick')
  labels = {m.name: m.label for m in points.read_run(config.to_dict()).models}
  assert labels == {
      'rope': 'RoPE 10,000', 'alibi_short': 'ALiBi, 0.75 of the length',
      'no_positions': 'no positions', 'layer_norm': 'RoPE 10,000, LN after attention',
      'fewer_steps': 'RoPE 10,000, 0.75 of the steps',
      'rope_term': 'RoPE 10,000, α = 0.1'}
  config.models.rope.update(offsets=(0.25, 1.0), rope_base=1e6, norm='standardize')
  assert 'RoPE 1,000,000, std. after attention, e / L in 0.25..1' in [
      m.label for m in points.read_run(config.to_dict()).models]
  run = points.read_run(_config('cpu').to_dict())
  assert {m.positions for m in run.models} == {
      'RoPE 10,000', 'RoPE 1,000', 'RoPE 1,000,000', 'ALiBi'}
  assert {m.weight for m in run.models if m.name.endswith('term')} == {0.1}
  assert points.PREDICTORS == {
      'training_cross_entropy': 'training loss',
      'nll': 'log perplexity at L', 'symmetric_kl': 'symmetric KL',
      'sce': 'SCE', 'js': 'Jensen–Shannon',
      'kl_first_second': 'KL(long‖short)', 'kl_second_first': 'KL(short‖long)',
      'entropy_first': 'entropy, long', 'entropy_second': 'entropy, short',
      'top1_agreement': 'top-1 agreement'}
  assert points.OUTCOMES == {
      'score_near': 'score up to 2 L', 'score_far': 'score from 2 L on',
      'nll_beyond': 'log perplexity beyond L'}
  assert (run.measure, run.outcome, run.correlation) == (
      'symmetric_kl', 'score_near', 'spearman')
  assert run.words == '2 layers of width 64, 12,000 to 15,000 steps'
  assert points.outcomes(_run(**{'primary.outcome': 'nll_beyond'})) == [
      'nll_beyond', 'score_near', 'score_far']


def test_table_1_is_as_the_paper_prints_it():
  # Training loss, misalignment, log perplexity at 16k, LongBench-E; copied by hand.
  assert {name: [*row] for name, row in paper.ROWS.items()} == {
      'GPT-J-6B': [2.1, 3.4, 9.5, 7.8], 'GPT-NeoX-20B': [2.3, 3.2, 9.4, 9.7],
      'Llama2-7B': [1.9, 3.4, 9.4, 8.9], 'RandomPos': [2.0, 2.8, 8.2, 9.2],
      'YaRN-8k': [2.0, 2.6, 3.8, 21.2], 'Qwen-7B-8k': [1.7, 2.8, 3.2, 24.2],
      'CLEX-4K': [1.9, 2.4, 1.8, 32.7]}
  assert paper.PRINTED == {
      ('training loss', 'nll'): 0.62, ('training loss', 'score'): -0.55,
      ('misalignment', 'nll'): 0.85, ('misalignment', 'score'): -0.85}


def _text(value):
  return f'{value:+.2f}'.replace('-', '−') if round(value, 2) else '0.00'


def _scipy(name):
  def statistic(x, y):
    x, y = np.round(x, 12), np.round(y, 12)  # as many right answers share a rank
    with np.errstate(invalid='ignore'):
      return getattr(stats, name)(x, y).statistic if np.ptp(x) and np.ptp(y) else np.nan
  return statistic


_PEARSON, _SPEARMAN = _scipy('pearsonr'), _scipy('spearmanr')
_CLAIMED = {'score_near': -1, 'score_far': -1, 'nll_beyond': 1, 'score': -1, 'nll': 1}


def _gain(x, y, z, outcome='score', r=_SPEARMAN):
  """Losses and misalignment are claimed to fall with scores."""
  return _CLAIMED[outcome.partition('_')[0]] * (r(x, y) - r(z, y))


def _partial(x, y, z):
  design = np.stack([np.ones_like(z), z], 1)
  left = [a - design @ np.linalg.lstsq(design, a, rcond=None)[0] for a in (x, y)]
  determined = len({*z}) < 2 or min(map(np.ptp, left)) < 1e-9
  return np.nan if determined else stats.pearsonr(*left).statistic


def _partial_of_ranks(*items):
  return _partial(*(stats.rankdata(np.round(x, 12)) for x in items))


def _ends(statistic, *items):
  """Returns the percentiles 2.5 and 97.5 over 300 resamples, in a plain loop."""
  draws = np.random.default_rng(0).integers(len(items[0]), size=(300, len(items[0])))
  values = np.array([statistic(*(np.array(x)[d] for x in items)) for d in draws])
  return np.percentile(values[np.isfinite(values)], [2.5, 97.5])


def _estimate(statistic, *items):
  low, high = _ends(statistic, *items)
  return f'{_text(statistic(*items))} [{_text(low)}, {_text(high)}]'


def _cells(table):
  return [[column(r) for column in table.columns.values()] for r in table.records]


@pytest.mark.filterwarnings('ignore:An input array is')
def test_every_cell_of_the_main_table(run, found, used):
  table = tables.table_1(run, found)
  loss, excess = used.means['training_cross_entropy'], used.means['symmetric_kl']
  printed, expected = paper.columns(), []
  rows = [(words, 'ours, 16', loss, excess, used.means[outcome], '', '')
          for outcome, words in points.OUTCOMES.items()]
  rows += [('LongBench-E', 'the paper, 7', printed['training loss'],
            printed['misalignment'], printed['score'], '−0.55', '−0.85'),
           ('log perplexity at 16k', 'the paper, 7', printed['training loss'],
            printed['misalignment'], printed['nll'], '+0.62', '+0.85')]
  for words, source, z, x, y, *prints in rows:
    outcome = 'nll' if 'perplexity' in words else 'score'
    for place, name in enumerate(('training loss', 'misalignment')):
      own = x if place else z
      expected.append([
          words, name, source, *(_estimate(r, own, y) for r in (_PEARSON, _SPEARMAN)),
          *(_estimate(r, x, y, z) if place else ''
            for r in (_partial, _partial_of_ranks)),
          _estimate(functools.partial(_gain, outcome=outcome), x, y, z)
          if place else '', prints[place]])
  assert _cells(table) == expected
  assert list(table.columns) == [
      'outcome', 'predictor', 'models', 'Pearson [95 %]', 'Spearman [95 %]',
      'partial Pearson [95 %]', 'partial Spearman [95 %]',
      'r as claimed − that of training loss [95 %]', 'printed']
  assert table.short == ('outcome', 'predictor', 'models', 'Spearman [95 %]')
  assert table.note == (
      '95 % intervals: 300 resamples of the models. Ours: trained without the term, '
      'that learned each task that counts; misalignment: symmetric KL at L, the length '
      'of training. The paper: its rows recomputed.')
  assert table.more.startswith(
      'Primary: our row of misalignment and score up to 2 L, r as claimed − that of '
      "training loss, with r Spearman's; above 0, misalignment predicts better. All "
      'other intervals are secondary and not corrected for being many. ')
  for made in tables.make(run, found):
    assert not any('|' in text for text in [*made.columns, *made.title])


def test_a_gain_that_is_0_up_to_rounding_decides_nothing():
  made = lambda low, high: related.Related(
      *4 * [statistics.Estimate(0.5, 0.4, 0.6)], statistics.Estimate(0.1, low, high))
  assert made(1e-16, 0.3).better == made(-0.3, -1e-16).better == 0
  assert made(1e-3, 0.3).better == 1 and made(-0.3, -1e-3).better == -1
  assert made(-0.1, 0.3).better == made(np.nan, np.nan).better == 0


def test_as_many_right_answers_share_a_rank_despite_round_off(run):
  scores = np.array([1, 5, 1, 3, 5, 2, 4, 3]) / 10
  # The same numbers, as sums in another order give them.
  noisy = scores + np.array([0, 1, -1, 1, 0, 0, 1, -1]) * 2**-52
  x, z = np.random.default_rng(2).normal(size=(2, 8))
  kinds = np.array([0, 0, 0, 0, 1, 1, 1, 1.0])
  assert stats.spearmanr(x, scores)[0] != stats.spearmanr(x, noisy)[0]
  for of in (None, kinds):
    exact, found = (
        related.relate(run, x, y, z, (-1.0, -1.0), of) for y in (scores, noisy))
    assert found == exact
  value = related.relate(run, x, noisy, z, (-1.0, -1.0)).spearman.value
  assert value == pytest.approx(stats.spearmanr(x, scores)[0])


def test_the_papers_rows_give_these_numbers():
  """Of Table 1, computed by hand from its sums, and by residuals."""
  run = _run(**{'primary.correlation': 'pearson'})
  columns = paper.columns()
  assert [len(x) for x in columns.values()] == [7] * 4
  numbers = {(x, y): tables.published(run, x, y).pearson.value for x, y in
             paper.PRINTED}
  assert numbers == pytest.approx({
      ('training loss', 'nll'): 0.616, ('training loss', 'score'): -0.557,
      ('misalignment', 'nll'): 0.889, ('misalignment', 'score'): -0.846}, abs=5e-4)
  z, x = columns['training loss'], columns['misalignment']
  for outcome in ('nll', 'score'):
    found = tables.published(run, 'misalignment', outcome)
    # As docs/long_short_alignment.md has them.
    ends = tables.published(
        run._replace(num_resamples=10_000), 'misalignment', outcome).gain
    assert [round(x, 2) for x in ends] == {
        'nll': [0.27, -0.15, 0.9], 'score': [0.29, -0.24, 0.87]}[outcome]
    assert found.partial.value == pytest.approx(_partial(x, columns[outcome], z))
    assert found.gain.value == pytest.approx(
        abs(numbers['misalignment', outcome]) - abs(numbers['training loss', outcome]))
    assert found.gain.ci_low < 0 < found.gain.ci_high
    assert np.isnan(tables.published(run, 'training loss', outcome).gain).all()


def test_every_cell_of_the_table_of_models(run, found):
  more = {**found.means, 'chance': found.means['chance'] + np.arange(20) / 100}
  table = tables.models(run, found._replace(means=more))
  assert [r['chance'] for r in table.records] == pytest.approx(
      0.1 + np.arange(20) / 100)
  assert [r['number'] for r in table.records] == [*range(1, 21)]
  place = [m.name for m in run.models].index('alibi_02')
  order = _ORDER[place]

  def cell(value, form, spread):
    # Of two seeds, the interval is 12.7 standard errors wide on either side.
    half = stats.t.ppf(0.975, 1) * spread / 2
    ends = [f'{value + spread / 2 + x:{form}}'.replace('-', '−') for x in (-half, half)]
    return f'{value + spread / 2:{form}} [{ends[0]}, {ends[1]}]' if spread else (
        f'{value:{form}}')

  cells = shown(table, str(place + 1))
  near, far = 0.9 - 0.02 * order - 0.065, 0.9 - 0.02 * order - 0.56 / 3
  label = run.models[place].label
  assert label.startswith('ALiBi') and cells == {
      'no.': str(place + 1), 'model': label, 'L': str(run.models[place].length),
      'not learned': '', 'training loss': cell(_LOSS[place], '.3f', 0.01),
      'symmetric KL': cell(_EXCESS[place], '.4f', 0.001),
      'log perplexity at L': cell(2.25 + order**2 / 50, '.3f', 0.01),
      'beyond L': cell(2 + order**2 / 50 + 7 / 6, '.3f', 0.01),
      'score at L': cell(0.92, '.3f', 0.005),
      'up to 2 L': cell(near - 0.03, '.3f', 0.005),
      'from 2 L on': cell(far - 0.03, '.3f', 0.005)}
  # Numbers are places in the configuration, whichever models are there.
  few = tables.models(run, found.only(np.arange(20) > 4))
  assert [r['number'] for r in few.records] == [*range(6, 21)]


def test_every_cell_of_all_measures(run, used):
  table, alike = tables.measures(run, used), related.with_others(used)
  assert len(table.records) == 3 * 10
  for r in table.records:
    x, y, z = (used.means[name] for name in (
        r['predictor'], r['outcome'], 'training_cross_entropy'))
    assert r['pearson'] == pytest.approx(_PEARSON(x, y))
    assert r['spearman'] == pytest.approx(_SPEARMAN(x, y))
    if r['predictor'] != 'training_cross_entropy':
      sign = -1 if r['predictor'] == 'top1_agreement' else 1
      claimed = _CLAIMED[r['outcome']]
      assert r['gain'] == pytest.approx(
          claimed * (sign * _SPEARMAN(x, y) - _SPEARMAN(z, y)))
      assert r['gain_low'] < r['gain'] < r['gain_high']
      assert r['partial_spearman'] == pytest.approx(_partial_of_ranks(x, y, z))
    x, y = (_less_means(_kinds(alike), alike.means[name]).round(12)
            for name in (r['predictor'], r['outcome']))
    assert r['within'] == pytest.approx(_SPEARMAN(x, y))
    names = r['predictor'], r['outcome']
    whole = related.within(run, alike, *names).spearman
    assert (r['within'], r['within_low'], r['within_high']) == whole
    few = alike.only(np.arange(len(alike.models)) < 4)
    assert np.isnan(related.primary_within(run, few, *names).value)
  assert f'{len(alike.models)} models have others' in table.more
  first, *_, last = _cells(table)
  assert (first[:2], last[:2]) == (
      ['score up to 2 L', 'training loss'],
      ['log perplexity beyond L', 'top-1 agreement'])
  assert last[2].startswith(_text(_PEARSON(
      used.means['top1_agreement'], used.means['nll_beyond'])) + ' [')


def test_every_cell_by_length(run, used):
  table = tables.by_length(run, used)
  assert [(r['outcome'], r['length']) for r in table.records] == [
      *(('score', n) for n in run.lengths), *(('nll', n) for n in run.nll_lengths)]
  for r, cells in zip(table.records, _cells(table), strict=True):
    y = used.means[At(r['outcome'], r['length'])]
    loss, excess = (used.means[x] for x in ('training_cross_entropy', 'symmetric_kl'))
    assert cells[:5] == [
        {'score': 'score', 'nll': 'log perplexity'}[r['outcome']],
        'L' if r['length'] == 1 else f'{r["length"]:g} L',
        *(f'{x:.3f}' for x in (y.mean(), y.min(), y.max()))]
    if np.ptp(y):
      assert (r['loss'], r['misalignment'], r['gain']) == pytest.approx(
          (_SPEARMAN(loss, y), _SPEARMAN(excess, y),
           _gain(excess, y, loss, r['outcome'])))
      assert cells[6].startswith(f'{_text(_SPEARMAN(excess, y))} [')
  assert table.note.startswith('16 models. r: Spearman; misalignment: symmetric KL.')
  other = tables.by_length(_run(**{'primary.outcome': 'nll_beyond'}), used)
  assert other.records[0]['outcome'] == 'nll'


def _less_means(names, values):
  """Returns values less the means of those with the same name."""
  names, values = np.array(names), np.array(values, float)
  return np.array([x - values[names == name].mean()
                   for name, x in zip(names, values, strict=True)])


def test_correlations_within_groups_are_of_their_models_alone(run):
  low = points.points(run, _rows(
      run, lambda i, n: 0.3 if n == 1 and i == 4 else _score(i, n)))
  used, plain = points.compared(run, low), points.without_term(low)
  assert len(used.models) == 15 and len(plain.models) == 16
  table = groups.table(run, low)
  records = [r for r in table.records if r['group'] != groups.WITHIN]
  inside = {
      groups.ALL: lambda m: True,
      'ALiBi': lambda m: m.name.startswith('alibi'),
      'RoPE 1,000': lambda m: m.name.startswith('low'),
      'RoPE 1,000,000': lambda m: m.name.startswith('high'),
      'RoPE 10,000': lambda m: m.name.startswith('rope'),
      'trained on 112 tokens': lambda m: m.length == 112,
      'trained on 128 tokens': lambda m: m.length == 128}
  assert {(r['outcome'], r['group']) for r in records} == {
      (outcome, group) for outcome in points.OUTCOMES for group in inside}
  for r in records:
    of = plain if r['group'] == groups.ALL else used
    at = [i for i, m in enumerate(of.models) if inside[r['group']](m)]
    y, loss, excess = (of.means[x][at] for x in (
        r['outcome'], 'training_cross_entropy', 'symmetric_kl'))
    assert r['models'] == len(at)
    if len(at) < 5:  # of fewer than five models there is none
      assert np.isnan(r['gain']) and np.isnan(r['loss'])
    else:
      assert (r['loss'], r['misalignment'], r['gain']) == pytest.approx((
          _SPEARMAN(loss, y), _SPEARMAN(excess, y),
          _gain(excess, y, loss, r['outcome'])))
  alibi = 4 - run.models[4].name.startswith('alibi')
  assert [r['models'] for r in records if r['group'] == 'ALiBi'] == 3 * [alibi]
  assert min(r['models'] for r in records if 'tokens' in r['group']) >= 5


def _kinds(points):
  return [f'{m.positions} {m.length}' for m in points.models]


def test_among_models_that_are_alike_means_are_taken_away(run, found, used):
  kinds = _kinds(used)
  counts = {kind: kinds.count(kind) for kind in kinds}
  assert 1 in counts.values() and max(counts.values()) > 1
  rest = used.only([counts[kind] > 1 for kind in kinds])
  records = [r for r in groups.table(run, found).records if r['group'] == groups.WITHIN]
  assert [r['outcome'] for r in records] == [*points.OUTCOMES]
  for r in records:
    loss, excess, y = (_less_means(_kinds(rest), rest.means[field]) for field in (
        'training_cross_entropy', 'symmetric_kl', r['outcome']))
    assert r['models'] == len(rest.models) < 16
    assert (r['loss'], r['misalignment'], r['gain']) == pytest.approx((
        _SPEARMAN(loss, y), _SPEARMAN(excess, y), _gain(excess, y, loss, r['outcome'])))
    assert r['gain_low'] < r['gain'] < r['gain_high']
  assert groups.table(run, found).note == (
      'The same positions and L: less the mean of models that have these. r: '
      'Spearman; misalignment: symmetric KL. The first row is the control of the '
      'verdict; all else is secondary and not corrected for being many.')


def test_means_of_kinds_are_taken_in_each_resample(run, used):
  fields = ('symmetric_kl', 'score_near')
  draws = np.random.default_rng(0).integers(16, size=(300, 16))
  names = np.array(_kinds(used))
  values = [_SPEARMAN(*(_less_means(names[d], used.means[f][d]).round(12)
                        for f in fields)) for d in draws]
  among = related.within(run, used, *fields).spearman
  low, high = np.percentile(values, [2.5, 97.5])
  assert (among.ci_low, among.ci_high) == pytest.approx((low, high), abs=0.01)
  one = related._less_means(
      np.array([0.1, 0.1, 0.1, 3.0, 5.0]), np.array([0, 0, 0, 1, 1]))
  assert one.tolist() == [0, 0, 0, -1, 1]


@pytest.mark.slow
@pytest.mark.parametrize('loss, misalignment, share', [
    (0.3, 0.85, 0.77), (0.56, 0.85, 0.38), (0.0, 0.0, 0.0), (-0.5, 0.0, 0.02)])
def test_verdicts_are_as_frequent_as_the_plan_says(rng, loss, misalignment, share):
  """Of 36 models in experiments/results/correlation/README.md."""
  between = {0.85: 0.3 if loss == 0.3 else 0.5}.get(misalignment, 0.0)
  covariance = [[1, misalignment, loss], [misalignment, 1, between], [loss, between, 1]]
  root, kinds = np.linalg.cholesky(covariance), np.arange(36) % 8
  gain = related.gain(statistics.spearman, (1.0, 1.0))
  interval = lambda statistic, *items: statistics.bootstrap(
      statistic, *items, num_resamples=400, seed=0)
  none, found = related._NONE, []
  for _ in range(100):
    draw = lambda *shape: rng.normal(size=(*shape, 3)) @ root.T
    y, x, z = (0.6**0.5 * draw(8)[kinds] + 0.4**0.5 * draw(36)).T
    r = interval(statistics.spearman, x, y), interval(statistics.spearman, z, y)
    among = interval(related._within(gain), x, y, z, kinds.astype(float))
    found.append(answer._verdict(
        related.Related(none, r[0], none, none, interval(gain, x, y, z)),
        related.Related(none, none, none, none, among), [own.ci_low > 0 for own in r],
        (True, True)))
  made = np.mean([text.startswith('misalignment predicts it better') for text in found])
  assert abs(made - share) < (0.14 if share > 0.1 else 0.04)
  assert np.mean([text.startswith('training loss') for text in found]) < 0.04


def test_dialects_may_turn_the_order_of_models(run, used):
  table = dialects.table(run, used)
  every = [(task, n, dialect) for task in ('niah_single', 'qa1', 'passkey')
           for n in run.lengths for dialect in ('lm_eval', 'strict')]
  shown = [(r['task'], r['length'], r['dialect']) for r in table.records]
  # What is not shown has no pair that turns, as pass keys have none.
  assert shown == [x for x in every if x in shown]
  assert 20 < len(shown) <= 28 and 'passkey' not in {task for task, *_ in shown}
  for task, n, dialect in {*every} - {*shown}:
    official, other = (used.means[OfTask(task, n, x)]
                       for x in ('score', f'score_{dialect}'))
    assert not any((official[i] - official[j]) * (other[i] - other[j]) < -1e-12
                   for i in range(16) for j in range(i))
  for r, cells in zip(table.records, _cells(table), strict=True):
    official, other = (used.means[OfTask(r['task'], r['length'], x)]
                       for x in ('score', f'score_{r["dialect"]}'))
    pairs = [(i, j) for i in range(16) for j in range(i)]
    turned = sum((official[i] - official[j]) * (other[i] - other[j]) < -1e-12
                 for i, j in pairs)
    assert r['turned'] == turned > 0
    assert cells == [
        r['task'], 'L' if r['length'] == 1 else f'{r["length"]:g} L', r['dialect'],
        f'{official.mean():.3f}', f'{other.mean():.3f}',
        _text(r['spearman']) if np.isfinite(r['spearman']) else 'undefined',
        str(turned)]
    if np.ptp(official) > 1e-9:
      assert r['spearman'] == pytest.approx(_SPEARMAN(official, other))
  assert table.note == (
      f'Of 42 combinations of task, length and dialect, the {len(shown)} in which a '
      'pair of the 16 models turns. Pairs turned: of 120 pairs, those of which the one '
      'is better in the official dialect and worse in this one.')


def test_what_is_primary_is_what_the_configuration_says(found):
  run = _run(**{'primary.measure': 'sce', 'primary.outcome': 'nll_beyond',
                'primary.correlation': 'pearson'})
  used = points.compared(run, found)
  table = tables.table_1(run, found)
  assert [r['outcome'] for r in table.records[:6:2]] == [
      'nll_beyond', 'score_near', 'score_far']
  sce, loss, y = (used.means[x] for x in (
      'sce', 'training_cross_entropy', 'nll_beyond'))
  ours = table.records[1]
  assert (ours['predictor'], ours['source']) == ('misalignment', 'ours')
  assert ours['gain'] == pytest.approx(_PEARSON(sce, y) - _PEARSON(loss, y))
  assert 'of misalignment and log perplexity beyond L' in table.more
  said = answer.answer(run, found)
  assert said[0].startswith('Log perplexity beyond L over 16 models: ')
  assert said[2].startswith('Secondary: score up to 2 L over 16 models: ')
  value = f'r = {_text(_PEARSON(sce, y))} [95 %'
  assert value in said[0] and 'with misalignment (SCE at L' in said[0]


# Orders of 20 models, by how much they are like that of scores.
_STRONG = [*(_ORDER / 20)]
_WEAK = [*(np.random.default_rng(8).permutation(20) / 20)]
_SAME = 'over all models and among those with the same positions and L'
_UNSURE = 'undecided whether misalignment or training loss predicts it better'


def _only_positions(values):
  """Returns values of 20 models that are those of their positions, with noise."""
  rank = {'RoPE 10,000': 0, 'RoPE 1,000': 1, 'ALiBi': 2, 'RoPE 1,000,000': 3}
  noise = np.random.default_rng(values).normal(size=20) / 9
  return [float(rank[m.positions] + x)
          for m, x in zip(_run().models, noise, strict=True)]


@pytest.mark.parametrize('loss, excess, score, says', [
    (_WEAK, _STRONG, None,
     f'misalignment predicts it better than training loss, {_SAME}'),
    (_STRONG, _WEAK, None,
     f'training loss predicts it better than misalignment, {_SAME}'),
    # Against the direction that is claimed: training loss does not predict it either.
    (_WEAK, [-x for x in _STRONG], None,
     'neither misalignment nor training loss is found to predict it'),
    # Nor does misalignment, if training loss has the other sign.
    ([-x for x in _STRONG], _WEAK, None,
     'neither misalignment nor training loss is found to predict it'),
    ([x + 0.5 * y for x, y in zip(_STRONG, _WEAK, strict=True)],
     [x + 0.5 * y for x, y in zip(_STRONG, _WEAK[::-1], strict=True)], None, _UNSURE),
    ([x + 0.01 * (-1)**i for i, x in enumerate(_STRONG)], _STRONG, None,
     'misalignment and training loss predict it equally well'),
    (_WEAK, _only_positions(1), _only_positions(2),
     'undecided, as misalignment predicts it better than training loss over all models '
     'but not among those with the same positions and L'),
])
def test_the_answer_is_what_the_intervals_say(loss, excess, score, says):
  run = _run()
  of = _score if score is None else (
      lambda i, n: 0.95 if n == 1 else 0.8 - 0.1 * score[i] - 0.01 * n)
  made = points.points(run, _rows(run, of, loss, excess))
  used = points.compared(run, made)
  first, _, second, third, *_ = answer.answer(run, made)
  assert first.startswith(f'Score up to 2 L over 16 models: {says}. r = '), first
  assert second.startswith('Secondary: score from 2 L on over 16 models: ')
  assert third.startswith('Secondary: log perplexity beyond L over 16 models: ')
  x, z, y = (used.means[n] for n in (
      'symmetric_kl', 'training_cross_entropy', 'score_near'))
  odd = ', against the direction that is claimed, with '
  for words, predictor in (('misalignment', x), ('training loss', z)):
    sure = _ends(_SPEARMAN, predictor, y)[0] > 0
    assert (f'{odd}{words}' in first) == sure
  words = re.search(
      r'\. r = (\S+) \[95 %: [^]]*\].* with misalignment .* r = (\S+) \[[^]]*\].* with '
      r'training loss; r of misalignment minus that of training loss, both in the '
      r'direction that is claimed, is (\S+) \[95 %: ([^]]*), ([^]]*)\]\. ',
      first).groups()
  low, high = _ends(_gain, x, y, z)
  assert words == tuple(map(_text, (
      _SPEARMAN(x, y), _SPEARMAN(z, y), _gain(x, y, z), low, high)))
  among = re.search(
      r' positions and L, (\d+) models: r = (\S+) \[.*\] and r = (\S+) \[.*\], '
      r'and the difference is (\S+) \[95 %: ', first).groups()
  rest = used.only([_kinds(used).count(kind) > 1 for kind in _kinds(used)])
  x, z, y = (_less_means(_kinds(rest), rest.means[n]) for n in (
      'symmetric_kl', 'training_cross_entropy', 'score_near'))
  assert among == (str(len(rest.models)), *map(_text, (
      _SPEARMAN(x, y), _SPEARMAN(z, y), _gain(x, y, z))))


def test_each_verdict_is_that_of_its_intervals():
  made = lambda low, high: related.Related(
      *4 * [statistics.Estimate(0.5, 0.4, 0.6)],
      statistics.Estimate((low + high) / 2, low, high))
  of = lambda one, other, *predict, alike=(True, True): answer._verdict(
      made(*one), made(*other), predict or (True, True), alike)
  up, down, both = (0.01, 0.5), (-0.5, -0.01), (-0.3, 0.3)
  better = 'misalignment predicts it better than training loss'
  worse = 'training loss predicts it better than misalignment'
  assert of(up, up) == f'{better}, {_SAME}' and of(down, down) == f'{worse}, {_SAME}'
  but = ' over all models but not among those with the same positions and L'
  assert of(up, down) == of(up, both) == f'undecided, as {better}{but}'
  assert of(down, both) == of(down, up) == f'undecided, as {worse}{but}'
  assert of(both, up) == of((-0.3, 0.1), both) == of((-0.1, 0.3), both) == _UNSURE
  equal = 'misalignment and training loss predict it equally well'
  though = ' over all models, though among those with the same positions and L '
  assert of((-0.19, 0.19), both) == of((0.01, 0.1), both) == equal
  assert of((0.01, 0.1), up) == f'{equal}{though}{better}'
  assert of((0.01, 0.1), down) == f'{equal}{though}{worse}'
  # Who is better must predict it at all; who is equal, both.
  assert of(up, up, True, False) == f'{better}, {_SAME}'
  assert of(down, down, False, True) == f'{worse}, {_SAME}'
  assert of(up, up, False, True) == of(down, down, True, False) == _UNSURE
  assert of((-0.1, 0.1), up, True, False) == _UNSURE
  assert of(up, (np.nan, np.nan)) == (
      f'undecided, as {better} over all models, without a control')
  none = 'neither misalignment nor training loss is found to predict it'
  assert of(up, both, False, False) == of((-0.1, 0.1), both, False, False) == none
  assert of(both, up, False, False, alike=(True, False)) == f'{none}{though}{better}'
  assert of(up, down, False, False, alike=(False, True)) == f'{none}{though}{worse}'
  # Who is better there must predict it there.
  assert of(both, up, False, False, alike=(False, True)) == none
  assert of(up, down, False, False, alike=(True, False)) == none


def test_a_predictor_predicts_if_r_is_surely_in_the_direction_that_is_claimed():
  made = lambda low, high: related.Related(
      statistics.Estimate(9, 9, 9), statistics.Estimate(0, low, high),
      *3 * [statistics.Estimate(9, 9, 9)])
  run = _run()
  for low, high, sign, known in ((0.1, 0.5, 1, True), (-0.1, 0.5, 1, False),
                                 (-0.5, -0.1, -1, True), (-0.5, 0.1, -1, False),
                                 (0.1, 0.5, -1, False), (np.nan, np.nan, 1, False)):
    assert answer._predicts(run, made(low, high), sign) == known


def test_the_paper_is_the_last_sentence(run, found):
  last = answer.answer(run, found)[-1]
  score, nll = (tables.published(run, 'misalignment', x).gain for x in ('score', 'nll'))
  of = lambda x: f'{_text(x.value)} [95 %: {_text(x.ci_low)}, {_text(x.ci_high)}]'
  assert last == (
      "The paper's seven rows, recomputed: r of misalignment, in the direction that is "
      f'claimed, minus that of training loss is {of(score)} for LongBench-E, {of(nll)} '
      'for log perplexity; seven models do not decide it.')
  assert _text(score.value) == '+0.38'


def test_there_is_no_verdict_without_models_that_learned_and_differ(run):
  def first(score, rows=None):
    return answer.answer(run, points.points(run, rows or _rows(run, score)))[0]

  some = [r for r in _rows(run) if r.arm not in ('rope_01', 'alibi_01_term')]
  assert first(None, some) == (
      'No verdict: 36 of 40 seeds of 20 models have results, and it is about all of '
      'them.')
  # A model with one seed of two is not done.
  for left in (0, 1):
    some = [r for r in _rows(run) if r.seed == left or r.arm == 'alibi_01']
    assert first(None, some).startswith('No verdict: 21 of 40 seeds of 20 models have ')
  alone = run._replace(num_seeds=1)
  some = [r for r in _rows(run) if r.arm != 'rope_01' and r.seed == 0]
  assert answer.answer(alone, points.points(alone, some))[0] == (
      'No verdict: 19 of 20 models have results, and it is about all of them.')
  # Seeds beyond the plan count for no other.
  more = [r for r in _rows(run) if r.arm != 'rope_01']
  assert answer.answer(alone, points.points(alone, more))[0].startswith(
      'No verdict: 19 of 20 models')
  # A seed with a value that is not finite has been run.
  lost = [r._replace(value=np.inf) if (r.arm, r.metric) == ('rope_01', 'nll') else r
          for r in _rows(run)]
  assert first(None, lost).startswith('Score up to 2 L over 15 models')
  few = lambda i, n: 0.3 if n == 1 and i < 7 else _score(i, n)
  kept = sum(not m.weight for m in run.models[7:])
  assert kept < 12 and first(few) == (
      f'No verdict: {kept} models that learned each task that counts, without the '
      'misalignment term, fewer than 12.')
  assert answer.FEWEST == 12
  # Beyond L they have 0.24 on average, shortcuts 0.153.
  floor = lambda i, n: 0.95 if n == 1 else 0.1 + 0.02 * _ORDER[i]
  low = points.compared(run, points.points(run, _rows(run, floor)))
  mean = low.means['score_near'].mean()
  assert 0.05 < mean - 0.153 < 0.1 and first(floor) == (
      f'No verdict: the mean score up to 2 L, {mean:.3f}, is less than 0.1 above that '
      'of shortcuts.')
  alike = lambda i, n: 0.95 if n == 1 else 0.6 + 0.005 * _ORDER[i]
  spread = points.compared(run, points.points(run, _rows(run, alike))).means[
      'score_near'].std(ddof=1)
  assert 0.02 < spread < 0.05 and first(alike) == (
      'No verdict: scores up to 2 L hardly differ: their standard deviation over '
      f'models is {spread:.3f}, less than 0.05.')
  assert first(lambda i, n: 0.95 if n == 1 else 0.6 + 0.012 * _ORDER[i]).startswith(
      'Score up to 2 L over 16 models')
  assert answer.answer(run, points.points(run, [])) == [
      'No verdict: 0 of 40 seeds of 20 models have results, and it is about all of '
      'them.',
      answer._of_paper(run)]


def test_the_answer_says_what_models_have_learned(run):
  rows = _rows(run, lambda i, n: 0.3 if n == 1 and i < 3 else _score(i, n))
  made = points.points(run, rows)
  count = sum(not m.weight for m in run.models[3:])
  used = points.compared(run, made)
  assert len(used.models) == count < 16
  mean = {f: used.means[f].mean() for f in (At('score', 1), 'score_near', 'score_far')}
  assert answer.answer(run, made)[1] == (
      f'{count} of 16 models without the misalignment term have learned each task that '
      'counts, niah_single and qa1, that is, have at L, the length of their training, '
      'scores at least halfway from those of shortcuts to 1. Mean score of these: '
      f'{mean[At("score", 1)]:.3f} at L, '
      f'{mean["score_near"]:.3f} up to 2 L, {mean["score_far"]:.3f} from 2 L on; '
      'shortcuts have 0.150 at L and 0.153 up to 2 L.')
  # Two diverged, and one of the term, which is not counted here.
  lost = [r._replace(value=np.inf)
          if r.arm in ('rope_01', 'alibi_01', 'rope_01_term') and r.metric == 'nll'
          else r for r in _rows(run)]
  said = answer.answer(run, points.points(run, lost))[1]
  assert said.startswith('14 of 14 models without')
  assert ' to 1. 2 more models had a value that is not finite. Mean score of' in said
  nobody = answer.answer(run, points.points(run, _rows(run, lambda i, n: 0.2)))[1]
  assert nobody.startswith('0 of 16 models') and 'Mean score of all: 0.173' in nobody


def test_a_correlation_that_is_undefined_has_no_verdict(run):
  same = points.points(run, _rows(run, excess=[1.0] * 20))
  assert answer.answer(run, same)[0] == (
      'Score up to 2 L over 16 models: no verdict, as a correlation is undefined.')


# What the term changes, of pairs of models.
_GAINS = {'rope': 0.03, 'low_base': 0.08, 'high_base': 0.05, 'alibi': 0.06}


def _with_term(run, gains=_GAINS, more=None):
  """Returns points of which the partners' scores beyond L are larger by their gain."""
  name = lambda i: run.models[i].name
  place = {m.name: i for i, m in enumerate(run.models)}

  def score(i, n):
    own = name(i).removesuffix('_term')
    larger = name(i) != own and n > 1
    return (0.95 if n == 1 else 0.5 + place[own] / 100) + larger * gains[own[:-3]] + (
        0.01 if name(i) != own and more else 0)

  return points.points(run, _rows(run, score))


def test_models_that_differ_in_the_weight_alone_are_pairs(run, found):
  assert set(run.pairs) == {(name, name.removesuffix('_term')) for name in _PARTNERS}
  names = _names(found)
  assert {(names[a], names[b]) for a, b in term.pairs(run, found, 0.1)} == {*run.pairs}
  assert term.pairs(run, found, 0.3) == []
  quick = lambda **fields: points.read_run(_config('quick', **fields).to_dict()).pairs
  assert quick() == (('rope_term', 'rope'),)
  assert quick(**{'models.rope_term.offsets': (0.0, 1.0)}) == ()
  assert quick(**{'models.rope_term.seed': 1}) == ()
  assert quick(**{'models.rope.weight': 0.2}) == ()
  # Both must have learned, with the term and without.
  for which, kept in (('alibi_01', 3), ('alibi_01_term', 3), ('alibi_02', 4)):
    low = points.points(run, _rows(run, lambda i, n, x=which: (
        0.3 if n == 1 and run.models[i].name == x else _score(i, n))))
    assert len(term.pairs(run, low, 0.1)) == kept
  # A model without results is in no pair.
  assert len(term.pairs(run, low, 0.1, None)) == 4
  rows = [r for r in _rows(run) if r.arm != 'rope_01']
  assert len(term.pairs(run, points.points(run, rows), 0.1)) == 3


def test_every_cell_of_what_the_term_changes(run):
  found = _with_term(run, more=True)
  table = tables.make(run, found)[-1]
  assert table.name == 'term'
  fields = ['score_near', 'all_pairs', 'all_pairs_1', 'carried', 'score_far',
            'nll_beyond', 'niah_single_near', 'qa1_near', 'passkey_near',
            'symmetric_kl', 'sce',
            *(f'score_{n:g}' for n in run.lengths),
            *(f'nll_{n:g}' for n in run.nll_lengths)]
  assert [r['field'] for r in table.records] == fields
  places = {m.name: i for i, m in enumerate(run.models)}
  with_it, without = ([places[name] for name in names] for names in zip(
      *run.pairs, strict=True))
  means = found.means
  values = {**means, 'carried': means['score_near'] - means[At('score', 1)],
            'all_pairs': means['score_near'], 'all_pairs_1': means[At('score', 1)],
            **{f'{task}_near': means[OfTask(task, 'near')] for task in run.tasks},
            **{f'score_{n:g}': means[At('score', n)] for n in run.lengths},
            **{f'nll_{n:g}': means[At('nll', n)] for n in run.nll_lengths}}
  words = {'carried': 'score up to 2 L less that at L', 'score_1': 'score at L',
           'symmetric_kl': 'symmetric KL at L', 'nll_2': 'log perplexity at 2 L',
           'score_1.25': 'score at 1.25 L', 'score_near': 'score up to 2 L',
           'all_pairs': 'score up to 2 L, all pairs', 'qa1_near': 'qa1 up to 2 L',
           'all_pairs_1': 'score at L, all pairs', 'sce': 'SCE at L'}
  for r, cells in zip(table.records, _cells(table), strict=True):
    a, b = values[r['field']][with_it], values[r['field']][without]
    assert cells[1] == words.get(r['field'], cells[1])
    # Pass keys have not been learned.
    assert cells[0] == '0.1' and cells[6] == str(4 * (r['field'] != 'passkey_near'))
    if r['field'] == 'passkey_near':
      continue
    assert cells[2:4] == [f'{x.mean():.3f}'.replace('-', '−') for x in (b, a)]
    if np.ptp(a - b) > 1e-9:
      test = stats.ttest_rel(a, b)
      low, high = test.confidence_interval()
      assert (r['difference'], r['ci_low'], r['ci_high'], r['p']) == (
          pytest.approx(((a - b).mean(), low, high, test.pvalue)))
      assert r['smallest_detectable'] == pytest.approx(
          statistics.smallest_detectable(np.std(a - b, ddof=1), 4))
  # At L all gain .01, so less is carried over than is gained beyond.
  gains = [r['difference'] for r in table.records[:4]]
  assert gains == pytest.approx([0.065, 0.065, 0.01, 0.055])
  low = points.points(run, _rows(run, lambda i, n: (
      0.3 if n == 1 and run.models[i].name == 'rope_01' else _score(i, n))))
  assert [r['pairs'] for r in term.table(run, low).records] == [
      3, 4, 4, 3, 3, 3, 3, 3, 0, *13 * [3]]
  assert table.note == (
      'Pairs of models that both learned each task that counts; p: paired two-sided '
      't-test. Primary: score up to 2 L, α = 0.1; all else is secondary and not '
      'corrected. All pairs: learned or not; of a task: that learned it.')


def test_seeds_that_one_model_of_a_pair_lacks_are_in_no_difference(run):
  rows = [r._replace(value=r.value + 9 * (r.metric == 'nll' and r.seed == 1))
          for r in _rows(run) if (r.arm, r.seed) != ('alibi_01_term', 1)]
  found = points.points(run, rows)
  changed = term.changed(run, found, 0.1, At('nll', 2))
  assert len(changed.treated) == 4
  assert abs(changed.treated - changed.control).max() < 8.5
  rows = [r for r in rows if (r.arm, r.seed) != ('alibi_01', 0)]
  assert len(term.changed(run, points.points(run, rows), 0.1, 'carried').treated) == 3


def test_other_weights_of_the_term_follow_the_primary_one():
  config = _few_of_cpu()
  for name in ('rope_01', 'alibi_01'):
    config.models[f'{name}_more'] = dict(config.models[name], weight=0.05)
  run = points.read_run(config.to_dict())
  rows = _rows(run, lambda i, n: 0.9, [1.0] * 22, [0.1] * 22, lambda i, n: 2.0)
  records = term.table(run, points.points(run, rows)).records
  assert [(r['weight'], r['pairs']) for r in records] == [
      *8 * [(0.1, 4)], (0.1, 0), *13 * [(0.1, 4)],
      *8 * [(0.05, 2)], (0.05, 0), *13 * [(0.05, 2)]]


def test_the_answer_says_what_the_term_changes(run):
  said = answer.answer(run, _with_term(run))[4]
  gains = [*_GAINS.values()]
  test = stats.ttest_1samp(gains, 0)
  (low, high), p = test.confidence_interval(), f'{test.pvalue:.3f}'[1:]
  assert said == (
      'The misalignment term with α = 0.1 changes the score up to 2 L by +0.055 [95 %: '
      f'+{low:.3f}, +{high:.3f}], p = {p}, 4 of 4 pairs of models, those that learned '
      'each task that counts. The score at L it changes by 0.000; over all pairs, that '
      f'up to 2 L by +0.055 [95 %: +{low:.3f}, +{high:.3f}].')
  of = lambda *values: term.sentence(run, _with_term(
      run, dict(zip(_GAINS, values, strict=True))))
  unsure = of(-0.03, 0.05, 0.01, -0.02)
  assert 'by +0.003 [95 %: −0.05' in unsure
  least = statistics.smallest_detectable(np.std([-3, 5, 1, -2], ddof=1) / 100, 4)
  assert ('; no difference was found, and one of '
          f'{least:.3f} would be found four times in five. The score at L') in unsure
  # Of p = 8 %.
  nearly = (0.01, 0.08, 0.02, 0.08)
  assert 0.05 < stats.ttest_1samp(nearly, 0).pvalue < 0.1
  assert 'no difference was found' in of(*nearly)
  one = points.points(run, [r for r in _rows(run) if not (
      r.arm.endswith('_term') and r.arm != 'rope_01_term')])
  none = ('The misalignment term with α = 0.1: no verdict, as fewer than two pairs '
          'learned each task that counts, or all changed alike.')
  assert of(*4 * [0.02]) == (
      f'{none} Over all pairs, it changes the score up to 2 L by +0.020.')
  assert term.sentence(run, one) == f'{none} Of 3 pairs, a value is not finite.'
  lost = points.points(run, [
      r._replace(value=np.nan) if (r.arm, r.metric) == ('rope_01_term', 'nll') else r
      for r in _rows(run)])
  assert ', 3 of 4 pairs of models, those' in term.sentence(run, lost)
  assert term.sentence(run, lost).endswith('. Of 1 pair, a value is not finite.')
  # Nothing is said of a study that is not finished.
  assert not any('misalignment term with' in x for x in answer.answer(run, one))
  both = points.points(run, _rows(run, lambda i, n: _score(i, n) - 0.3 * (
      n == 1 and run.models[i].name == 'alibi_01') - 0.1 * (
          n == 1 and run.models[i].name == 'rope_01')))
  assert ', 3 of 4 pairs of models, those' in term.sentence(run, both)
  at = term.changed(run, both, 0.1, At('score', 1)).test
  of_all = term.changed(run, both, 0.1, 'score_near', None).test
  by = lambda test: (f'{test.mean_difference:+.3f} [95 %: {test.ci_low:+.3f}, '
                     f'{test.ci_high:+.3f}]').replace('-', '−')
  assert term.sentence(run, both).endswith(
      f'The score at L it changes by {by(at)}; over all pairs, that up to 2 L by '
      f'{by(of_all)}.') and at.mean_difference > 0.03
  other = run._replace(pairs=())
  assert term.sentence(other, one) == ''
  assert len(answer.answer(other, _with_term(run))) == 5


def test_scores_are_told_for_each_task(run, found):
  # Models with the term are in no mean, and have learned or not.
  rows = _rows(run, lambda i, n: 0.7 if n == 1 and i < 6 else _score(i, n))
  found = points.points(run, rows)
  table = tables.tasks(run, found)
  plain = np.array([not m.weight for m in run.models])
  assert [r['task'] for r in table.records] == ['niah_single', 'qa1', 'passkey']
  for r, chance, shortcut in zip(
      table.records, (0, 0.2, 0.4), (0.05, 0.25, 0.4), strict=True):
    for n in run.lengths:
      own = found.means[OfTask(r['task'], n)][plain]
      assert (r[f'mean_{n:g}'], r[f'least_{n:g}'], r[f'most_{n:g}']) == pytest.approx(
          (own.mean(), own.min(), own.max()))
    assert (r['chance'], r['shortcut']) == pytest.approx((chance, shortcut))
  # 0.7 − 0.06 is above .625; without 0.02 it is not.
  assert [r['learned'] for r in table.records] == [16, 16, 0]
  rows = _rows(run, lambda i, n: 0.68 if n == 1 and i < 6 else _score(i, n))
  lower = tables.tasks(run, points.points(run, rows))
  assert [r['learned'] for r in lower.records] == [
      16, 16 - int(plain[:6].sum()), 0]
  cells = shown(table, 'qa1')
  assert list(cells) == ['task', 'chance', 'shortcut', 'learned', 'L', '1.25 L',
                         '1.5 L', '1.75 L', '2 L', '4 L', '8 L']
  own = found.means[OfTask('qa1', 1.5)][plain]
  assert cells['1.5 L'] == f'{own.mean():.3f} ({own.min():.3f} to {own.max():.3f})'
  assert table.note.startswith('Mean over the 16 models without the term, from the ')


def _points_of(line):
  return np.array(line.get_xydata())


def _lines_but_shortcut(axes, used, outcome):
  """Returns the lines of a panel; of the score up to 2 L one more is the shortcut."""
  if outcome != 'score_near':
    return [*axes.lines]
  *lines, shortcut = axes.lines
  assert shortcut.get_label() == 'shortcut'
  assert {*shortcut.get_ydata()} == {used.means['shortcut_near'].mean()}
  return lines


def test_figures_have_a_point_for_each_model(run, found, used):
  made = figures.make(run, found)
  assert list(made) == ['correlations', 'paper', 'term']
  assert setup_of(made['correlations']) == (
      '2 layers of width 64, 12,000 to 15,000 steps, trained at L = 112 or 128 tokens')
  assert setup_of(made['paper']) == 'language models of 6 to 20 billion parameters'
  fields = [(x, y) for y in points.OUTCOMES
            for x in ('training_cross_entropy', 'symmetric_kl')]
  kinds = sorted({(m.positions, m.length) for m in used.models})
  for axes, (x, y) in zip(made['correlations'].axes, fields, strict=True):
    lines = _lines_but_shortcut(axes, used, y)
    seeds, *drawn = map(_points_of, lines)
    means = np.stack([used.means[x], used.means[y]], 1)
    looks = {}
    for line, own, (positions, length) in zip(
        lines[1:], drawn, kinds, strict=True):
      np.testing.assert_array_equal(own, means[[
          (m.positions, m.length) == (positions, length) for m in used.models]])
      assert line.get_label() == f'{positions}, L = {length}'
      assert (line.get_markerfacecolor() == 'white') == (length == 112)
      looks.setdefault((line.get_color(), line.get_marker()), set()).add(positions)
    assert len(looks) == len({m.positions for m in used.models})
    assert all(len(own) == 1 for own in looks.values())
    assert axes.get_xscale() == ('log' if x == 'symmetric_kl' else 'linear')
    np.testing.assert_array_equal(seeds, [
        (used.seeds[x][i][s], used.seeds[y][i][s]) for i in range(16) for s in (0, 1)])
    assert not axes.texts  # of sixteen models
    value, low, high = related.ours(run, used, x, y).spearman
    assert value == pytest.approx(_SPEARMAN(*means.T)) and low < high
    assert axes.get_title() == (
        f'r = {_text(value)} [95 %: {_text(low)}, {_text(high)}]')
  assert [(a.get_xlabel(), a.get_ylabel()) for a in made['correlations'].axes] == [
      ('', 'score up to 2 L'), ('', ''), ('', 'score from 2 L on'), ('', ''),
      ('training loss, nats', 'log perplexity beyond L'), ('symmetric KL at L', '')]
  assert 'numbers' not in made['correlations'].get_label()
  label = made['correlations'].get_label()
  assert '; grey: single seeds; dotted: the score of an answer that takes a ' in label
  assert ', whatever is asked. r: Spearman' in label
  assert len(made['correlations'].legends[0].get_texts()) == len(kinds) + 1
  # Fewer models have numbers, and one seed needs no grey points.
  fewer = figures.of_models(run._replace(num_seeds=1), used.only(np.arange(16) < 15))
  numbers = [str(i + 1) for i, m in enumerate(run.models) if not m.weight][:15]
  for axes, (x, y) in zip(fewer.axes, fields, strict=True):
    means = np.stack([used.means[x], used.means[y]], 1)[:15]
    drawn = map(_points_of, _lines_but_shortcut(axes, used, y))
    assert sorted(map(tuple, np.concatenate([*drawn]))) == sorted(map(tuple, means))
    assert [(t.get_text(), *t.xy) for t in axes.texts] == [
        (i, *mean) for i, mean in zip(numbers, means, strict=True)]
  assert '; numbers: as in the table models; dotted: ' in fewer.get_label()
  few = found.only(np.arange(20) < 0)
  assert list(figures.make(run, few)) == ['paper']


def test_the_figure_of_the_paper_has_its_rows(run):
  figure, columns = figures.of_paper(run), paper.columns()
  fields = [(x, y) for y in ('score', 'nll') for x in ('training loss', 'misalignment')]
  for axes, (x, y) in zip(figure.axes, fields, strict=True):
    [means] = map(_points_of, axes.lines)
    np.testing.assert_array_equal(means, np.stack([columns[x], columns[y]], axis=1))
    assert [t.get_text() for t in axes.texts] == [*'1234567']
    r = tables.published(run, x, y).spearman.value
    assert axes.get_title().startswith(f'r = {_text(r)} [95 %: ')
    # Each predictor has an axis of its own.
    assert np.ptp(axes.get_xlim()) < 1.5 * np.ptp(columns[x])
  assert [(a.get_xlabel(), a.get_ylabel()) for a in figure.axes] == [
      ('', 'LongBench-E'), ('', ''), ('training loss', 'log perplexity at 16k'),
      ('misalignment', '')]
  assert figure.get_label() == (
      'LongBench-E and log perplexity at 16k, against training loss and misalignment, '
      'as the paper prints them: 1: GPT-J-6B, 2: GPT-NeoX-20B, 3: Llama2-7B, 4: '
      "RandomPos, 5: YaRN-8k, 6: Qwen-7B-8k, 7: CLEX-4K. r: Spearman's correlation, "
      'recomputed, with its bootstrap interval over the seven.')


def test_the_figure_of_the_term_has_the_means_over_pairs(run):
  found = _with_term(run)
  figure = figures.of_term(run, found)
  axes, paired = figure.axes
  lines = {line.get_label(): np.array(line.get_xydata()) for line in axes.lines}
  names = _names(found)
  for label, own in zip(('α = 0.1', 'without the term'), zip(*run.pairs, strict=True),
                        strict=True):
    places = [names.index(name) for name in own]
    np.testing.assert_allclose(lines[label], np.stack([run.lengths, [
        found.means[At('score', n)][places].mean() for n in run.lengths]], axis=1))
  assert lines['shortcut'][:, 1] == pytest.approx(0.15)
  difference, zero = paired.lines
  tests = [term.changed(run, found, 0.1, At('score', n)).test for n in run.lengths]
  np.testing.assert_allclose(difference.get_ydata(), [
      test.mean_difference for test in tests])
  assert [*difference.get_xdata()] == [*run.lengths] and not any(zero.get_ydata())
  assert difference.get_ydata()[1] == pytest.approx(0.055)
  [(x, low, high)] = bands(paired).values()
  # At L, all change alike, so there is no interval.
  there = [run.lengths.index(n) for n in x[1:]]
  assert low[0] == high[0] == tests[0].mean_difference == 0
  np.testing.assert_allclose(low[1:], [tests[i].ci_low for i in there], atol=1e-9)
  np.testing.assert_allclose(high[1:], [tests[i].ci_high for i in there], atol=1e-9)
  assert 'means over 4 pairs of models that both learned' in figure.get_label()
  for made in figures.make(run, found).values():
    caption = made.get_label()
    assert len(caption) > 80 and not set(caption) & set('\n*[]$<>')


# The command.


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  folder = tmp_path_factory.mktemp('text')
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.long_context.training_text',
       f'--folder={folder}', '--documents=240', '--vocabulary=400'], cwd=ROOT,
      capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  return [f'--config.text.path={folder}/text.jsonl',
          f'--config.text.tokenizer={folder}']


_SMOKES = ('alibi_short', 'layer_norm', 'rope', 'rope_term')
_SMOKE = '--config=configs/correlation.py:smoke'


def _command(*arguments):
  return [sys.executable, '-m', 'experiments.correlation', _SMOKE, *arguments]


def _done(*arguments):
  return subprocess.run(_command(*arguments), cwd=ROOT, capture_output=True, text=True,
                        check=False, timeout=600)


@pytest.fixture(scope='module')
def whole(tmp_path_factory, fast_compilation, text):
  folder = tmp_path_factory.mktemp('run') / 'whole'
  done = _done(f'--workdir={folder}', *text)
  assert done.returncode == 0, done.stderr
  return folder, done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_a_run_leaves_what_it_says(whole):
  folder, said = whole
  assert 'No verdict: 0 models that learned each task' in said
  assert f'Open {folder}/index.html' in said
  inputs = json.loads((folder / 'config.json').read_text())['config']['inputs']
  assert f'/text.jsonl: 240 documents, {inputs["tokens"]:,} tokens.\n' in said
  for name in ('table_1', 'models', 'tasks', 'term'):
    assert (folder / f'tables/{name}.md').stat().st_size
  assert (folder / 'figures/paper.png').read_bytes()[:4] == b'\x89PNG'
  rows = results.read_rows(folder / 'results.csv')
  assert {(r.arm, r.seed) for r in rows} == {
      (m, s) for m in _SMOKES for s in (0, 1)}
  assert all(np.isfinite(r.value) for r in rows)
  for model, length in ('alibi_short', 96), ('rope', 128):
    own = {(r.metric, r.length) for r in rows if r.arm == model}
    of = lambda metric, own=own: {n for m, n in own if m == metric}
    assert of('nll') == {length, 2 * length}
    assert of('symmetric_kl') == of('js') == {length}
    assert of('score') == {length, 1.5 * length, 2 * length}
  assert {r.experiment for r in rows} == {'correlation', 'niah_single', 'qa1'}
  assert len({r.value for r in rows if r.metric == 'training_cross_entropy'}) == 8
  # Scores can be computed again from the answers.
  for model, length in zip(_SMOKES, (96, 128, 128, 128), strict=True):
    for seed in (0, 1):
      path = folder / f'predictions/{model}_seed_{seed}.jsonl'
      kept = [json.loads(line) for line in path.read_text().splitlines()]
      assert {(x['task'], x['length'], x['index']) for x in kept} == {
          (task, n, 2 * place + i) for place, task in enumerate(('niah_single', 'qa1'))
          for n in (length, 1.5 * length, 2 * length) for i in (0, 1)}
      for r in rows:
        if (r.arm, r.seed, r.metric) == (model, seed, 'score'):
          assert r.value == np.mean([x['score'] for x in kept if (
              x['task'], x['length']) == (r.experiment, r.length)])
  page = (folder / 'index.md').read_text()
  assert '[arXiv 2506.11769](https://arxiv.org/abs/2506.11769), Table 1' in page


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been(whole, tmp_path, text):
  folder = tmp_path / 'killed'
  process = subprocess.Popen(
      _command(f'--workdir={folder}', *text, '--config.train.save_every_seconds=0.0'),
      cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  saved = folder / 'checkpoints/layer_norm/seeds_0_1'
  deadline = time.monotonic() + 300
  while time.monotonic() < deadline and not any(
      path.name in '2468' for path in saved.glob('*')):
    time.sleep(0.02)
  process.kill()
  process.wait()
  assert (folder / 'results.csv').exists() and saved.exists()
  done = _done(f'--workdir={folder}', *text)
  assert done.returncode == 0, done.stderr
  assert '3 of 4 training runs to do' in done.stdout
  expected = (whole[0] / 'results.csv').read_bytes()
  assert (folder / 'results.csv').read_bytes() == expected


@pytest.mark.long
@pytest.mark.slow
def test_models_of_two_folders_are_joined_to_the_run_of_one(whole, tmp_path, text):
  folders = [tmp_path / name for name in ('first', 'second', 'all')]
  for folder, *chosen in (folders[0], 'rope', 'layer_norm'), (
      folders[1], 'alibi_short', 'rope_term'):
    done = _done(f'--workdir={folder}', *text, f'--config.run_models={(*chosen,)}')
    assert done.returncode == 0, done.stderr
    # They are run in the order of the command, and their rows are in that of the names.
    lines = (folder / 'evaluations.jsonl').read_text().splitlines()
    assert [*dict.fromkeys(json.loads(x)['arm'] for x in lines)] == chosen
    rows = results.read_rows(folder / 'results.csv')
    assert [*dict.fromkeys(r.arm for r in rows)] == sorted(chosen)
  join = [sys.executable, '-m', 'experiments.join', f'--workdir={folders[2]}',
          *map(str, folders[:2])]
  done = subprocess.run(join, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  done = _done(f'--workdir={folders[2]}', *text)
  assert '0 of 4 training runs to do' in done.stdout, done.stderr
  lines = [sorted((folder / 'results.csv').read_text().splitlines())
           for folder in (whole[0], folders[2])]
  assert lines[0] == lines[1]
  for path in (*whole[0].glob('predictions/*'), *whole[0].glob('tables/*')):
    assert (folders[2] / path.relative_to(whole[0])).read_bytes() == path.read_bytes()


@pytest.mark.long
@pytest.mark.slow
def test_a_report_is_remade_without_jax(whole, tmp_path):
  copy = tmp_path / 'copy'
  shutil.copytree(whole[0], copy, ignore=shutil.ignore_patterns(
      'checkp*', 'tables', 'figures'))
  program = ('import sys; sys.modules["jax"] = None\n'
             'from experiments.harness import reports\n'
             f'reports.show({str(copy)!r})')
  done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, text=True,
                        capture_output=True, timeout=120, check=False)
  assert done.returncode == 0, done.stderr
  for path in whole[0].glob('[tf][ai]*/*'):
    assert (copy / path.relative_to(whole[0])).read_bytes() == path.read_bytes(), path


def test_a_folder_of_made_rows_is_reported(run, tmp_path):
  results.write_text(tmp_path / 'config.json', json.dumps(
      {'config': _few_of_cpu().to_dict(), 'sessions': []}))
  rows = [r for r in _rows(run) if (r.arm, r.seed) != ('alibi_02', 1)]
  results.write_rows(tmp_path / 'results.csv', rows)
  made = report.write(tmp_path)
  assert made.missing == 'The run is not finished: alibi_02 has 1 of 2 seeds.'
  assert made.title.startswith('Does misalignment tell which models generalize')
  names = ['table_1', 'models', 'tasks', 'measures', 'by_length', 'groups', 'dialects',
           'term']
  assert [table.name for table in made.tables] == names
  assert len(made.figures) == 6
  # There is no verdict, nor one on the term, before the run is finished.
  assert made.answer == answer.answer(run, points.points(run, rows))
  assert [said.partition(':')[0] for said in made.answer] == [
      'No verdict', made.answer[1].partition(':')[0],
      "The paper's seven rows, recomputed"]
  assert made.answer[0] == (
      'No verdict: 39 of 40 seeds of 20 models have results, and it is about all of '
      'them.')
  assert made.answer[1].startswith('16 of 16 models without the misalignment term')
  part = '. Not finished: 39 of 40 seeds of 20 models, not a random part'
  assert all(table.title.endswith(part) for table in made.tables)
  assert len(answer.answer(run, points.points(run, _rows(run)))) == 6


def test_what_is_made_before_the_end_says_of_which_models(run):
  rows = [r for r in _rows(run) if not r.arm.startswith('rope') and (
      r.arm.startswith('low') or not r.arm.endswith('_term'))]
  part = '26 of 40 seeds of 20 models, not a random part, none with RoPE 10,000'
  found = points.points(run, rows)
  assert [table.title.partition('. ')[2] for table in tables.make(run, found)] == (
      8 * [f'Not finished: {part}'])
  assert setup_of(figures.make(run, found)['correlations']).endswith(
      f' = 112 or 128 tokens; not finished: {part}')
  # With no partner, there is no pair, and no table of pairs.
  rows = [r for r in rows if not r.arm.endswith('_term') and r.arm.startswith('low')]
  made = tables.make(run, points.points(run, rows))
  assert 'term' not in [table.name for table in made]
  assert made[0].title.endswith('8 of 40 seeds of 20 models, not a random part, none '
                                'with ALiBi or RoPE 1,000,000 or RoPE 10,000')
  alone = run._replace(num_seeds=1)
  assert unfinished.part(alone, points.points(alone, rows)).startswith('4 of 20 models')
  whole = points.points(run, _rows(run))
  assert unfinished.part(run, whole) == ''
  assert not any('finished' in table.title for table in tables.make(run, whole))


@pytest.mark.parametrize('arguments, says', [
    (['--config.models.rope.positions=learned'], 'positions must be one of rope, al'),
    (['--config.models.rope.length=0.7'],
     'config.models.rope: length and those .* whole numbers of tokens: 1 . 0.7 . 128'),
    (['--config.models.rope.length=1.5'], 'length must be a number in .0, 1.: 1.5'),
    (['--config.seed=4294967290', '--config.models.rope.seed=7'],
     'config.models.rope: config.seed . seed must be less than 2..32: 4294967290 . 7'),
    (["--config.primary.tasks=('passkey',)"],
     'primary.tasks must be some of config.benchmark.tasks .*: .*passkey'),
    (['--config.models.layer_norm.norm=none'],
     'config.models layer_norm and rope would have the same weights'),
    (['--config.models.rope.offsets=(0.5, 0.2)'], 'offsets must be 2 rising numbers'),
    (['--config.models.rope.steps=0.1'], 'warmup_steps must be less than the steps'),
    (['--config.primary.measure=nll'], 'measure must be one of sce, symmetric_kl'),
    (['--config.primary.outcome=accuracy'], 'must be one of score_near, score_f'),
    (['--config.primary.correlation=kendall'], 'must be one of pearson, spearman'),
    (['--config.evaluate.lengths=(2, 4)'], 'evaluate.lengths must have 1 and at leas'),
    (['--config.evaluate.offsets=(0.001,)'], 'config.models.alibi_short: .*offs'),
    (['--config.benchmark.lengths=(1.0, 2.5)'], 'have 1, one that is longer but at mo'),
    (['--config.benchmark.lengths=(1.5, 2.0)'], 'have 1, one that is longer but at mo'),
    (['--config.benchmark.lengths=(1.0, 1.5)'], 'at most 2, and one of at least 2: '),
    (['--config.benchmark.lengths=(1.0, 1.01, 2.0)'], 'whole numbers of tokens: 1.01 '),
    (["--config.benchmark.tasks=('qa9',)"], 'benchmark.tasks must be .*of niah_sin'),
    (['--config.benchmark.answer_tokens=2'],
     'answer_tokens must be at least the tokens of an answer of niah_single, .: 2'),
    (['--config.benchmark.answer_tokens=80'], 'qa1 at 96 tokens, 80 of them'),
    (["--config.run_models=('base',)"],
     'config.run_models must be one or more of alibi_short, layer_norm, rope, rope_te'),
    (['--config.num_seeds=0'], 'num_seeds must be a whole number from 1'),
    (['--config.num_resamples=10'], 'num_resamples must be .* from 100'),
    (['--config.text.path=/nowhere/text.jsonl'],
     '/nowhere/text.jsonl: no such file. The text .*training_text'),
    (['--config.train.num_steps=7'], 'num_steps 7 must be a multiple of'),
    (['--config.model.num_heads=3'], 'config.models.*: .*3'),
])
def test_wrong_input_ends_with_one_line(run_here, arguments, says, tmp_path, text):
  given = [x for x in text if x.partition('=')[0] not in arguments[0]]
  done = run_here('correlation', _SMOKE, f'--workdir={tmp_path}/run', *given,
                  *arguments)
  assert done.returncode == 2, done.stdout + done.stderr
  [line] = done.stderr.splitlines()
  assert line.startswith('Error: ')
  assert re.search(says, line), line
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_lengths_of_prompts_are_checked_under_jit_by_shape(key):
  from vvlen.models.generation import generate

  model = models.make(_config(), 'rope', BYTES)
  params = training.init_params(model, key)
  tokens = jnp.zeros((2, 5), jnp.int32)
  read = jax.jit(lambda lengths: generate(
      model, {'params': params}, tokens, 2, lengths=lengths))
  given = np.array([3, 5], np.int32)
  np.testing.assert_array_equal(
      read(given), generate(model, {'params': params}, tokens, 2, lengths=given))
  for bad in (np.ones(2, np.float32), np.ones(3, np.int32)):
    with pytest.raises(ValueError, match='lengths must be'):
      read(bad)
