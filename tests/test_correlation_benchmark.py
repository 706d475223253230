"""The benchmark of the study of correlations: prompts, answers, scores."""

import contextlib
import json
import re
import types

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.correlation import models, prompts
from experiments.correlation import run as run_of_study
from experiments.correlation.programs import make_answer
from experiments.language_model import training
from experiments.long_context import generation
from experiments.long_context.training_text import Answered
from tests.correlation_cases import BYTES, config_of
from vvlen import sharding
from vvlen.tasks import babi_stories


@pytest.fixture(scope='module')
def asked():
  benchmark = config_of(**{'benchmark.num_prompts': 3,
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
  benchmark = config_of(**{'benchmark.num_prompts': 40,
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
  benchmark = config_of(**{'benchmark.tasks': ('qa1',)}).benchmark
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
      config_of(), 'base', subject, 4, epath.Path(tmp_path), progress)
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
  config = config_of()
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


@pytest.mark.slow
def test_lengths_of_prompts_are_checked_under_jit_by_shape(key):
  from vvlen.models.generation import generate

  model = models.make(config_of(), 'rope', BYTES)
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
