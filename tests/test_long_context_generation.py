"""Answers of `experiments.long_context`, generated in batches."""

import types

import jax
import numpy as np
import pytest

from experiments.long_context import generation, predictions, run, samples
from tests.long_context_cases import BYTES, save_bytes_model
from vvlen.evaluation import longbench_files, widths
from vvlen.models import generation as library
from vvlen.models.llama import load_checkpoint
from vvlen.sharding import mesh as partition


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_bytes_model(tmp_path_factory.mktemp('checkpoint'))


@pytest.fixture(scope='module')
def subject(checkpoint):
  model, variables = load_checkpoint(checkpoint)
  return generation.Subject(model, variables, BYTES, (), 3)


@pytest.mark.slow
def test_a_batch_of_unequal_prompts_gives_what_each_gives_alone(subject):
  rng = np.random.default_rng(0)
  prompts = [rng.integers(256, size=n).astype(np.int32) for n in (5, 12, 9)]
  found = generation.answer(subject, prompts, 12, 6)
  assert len(set(found)) == 3
  apply = jax.jit(subject.model.apply)
  for prompt, text in zip(prompts, found, strict=True):
    tokens, made = np.zeros((1, 18), np.int32), []
    tokens[0, :len(prompt)] = prompt
    for place in range(len(prompt), len(prompt) + 6):  # without cache or batch
      made.append(int(apply(subject.variables, tokens)[0, place - 1].argmax()))
      tokens[0, place:place + 1] = made[-1]
    assert text == BYTES.decode(made)
    assert generation.answer(subject, [prompt], 12, 6) == [text]
  # An answer ends at any of the tokens that end one.
  for ends in ((made[2],), (263, made[2])):
    short = generation.answer(subject._replace(ends=ends), prompts[2:], 12, 6)
    assert short == [BYTES.decode(made[:made.index(made[2])])]


@pytest.mark.slow
def test_programs_are_compiled_once_for_each_shape(subject):
  library._generate.clear_cache()
  shapes = [(4, 2), (6, 2), (4, 2), (6, 3), (6, 2)]
  prompt = np.arange(3, dtype=np.int32)
  for number, (width, num_tokens) in enumerate(shapes):
    generation.answer(subject, [prompt] * (1 + number % 3), width, num_tokens)
  assert library._generate._cache_size() == len(set(shapes)) == 3


@pytest.mark.parametrize('size, said', [
    (8, ''), (16, ''),
    (5, 'A batch of 5 prompts on 8 devices: 3 of 8 rows, 38% of the work, repeat a '
        'prompt and are not counted.\n'),
])
def test_rows_that_only_fill_devices_are_told(size, said, capsys):
  plan = samples.Plan([samples.Part('one', 'one', [64] * 6, 64, 5, None)], {}, [])
  todo = {'one': widths.batches([64] * 6, size)}
  run._say(plan, todo, {'one': {}}, size, partition.make_mesh(-1))
  assert capsys.readouterr().out.endswith(f'1 program to compile.\n{said}')
  run._say(plan, {'one': []}, {'one': {}}, size, partition.make_mesh(-1))
  assert 'repeat' not in capsys.readouterr().out


def test_each_sample_has_its_own_answer(monkeypatch, tmp_path):
  sample = lambda i: samples.Sample(
      np.full(5 + i, i, np.int32), 60 + i, None, (str(i),), (), (), '', i / 10, {})
  part = samples.Part('niah_single', 'niah_single_60', [9] * 4, 9, 7, sample)
  # Answers begin with those of their prompts; one sample was answered before.
  monkeypatch.setattr(generation, 'answer', lambda subject, prompts, width, most, _: [
      f'{prompt[0]} {width} {most}' for prompt in prompts])
  before = run._record(1, sample(1), 'x')
  path = predictions.path_of(tmp_path, part.name)
  predictions.append(path, [before])
  left = run.batches(part.widths, 2)
  progress = types.SimpleNamespace(show=lambda *_: None)
  rows = run._rows('ruler', str(tmp_path), None, part, left, {1: before}, progress)
  assert {(row.seed, row.length): row.value for row in rows
          if row.metric == 'score_official'} == {
              (0, 60): 1, (1, 61): 0, (2, 62): 1, (3, 63): 1}
  assert [row.value for row in rows if row.metric == 'chance'] == [0, 0.1, 0.2, 0.3]
  assert [row.value for row in rows if row.metric == 'num_tokens'] == [5, 6, 7, 8]
  assert {i: x['pred'] for i, x in predictions.read(path).items()} == {
      1: 'x', 0: '0 9 7', 2: '2 9 7', 3: '3 9 7'}


def test_an_answer_of_one_line_does_not_begin_with_a_newline(subject):
  # All logits are alike, and the first token is a newline.
  params = subject.variables['params']
  params = params | {'final_norm': jax.tree.map(np.zeros_like, params['final_norm'])}
  letters = BYTES._replace(
      encode=lambda text: np.array(['\nabc'.index(x) for x in text], np.int32),
      decode=lambda tokens: ''.join('\nabc'[x] for x in tokens))
  flat = subject._replace(variables={'params': params}, tokenizer=letters)
  prompts = [np.array([3, 2], np.int32)] * 2
  assert generation.answer(flat, prompts, 2, 3) == ['\n\n\n'] * 2
  assert generation.answer(flat, prompts, 2, 3, one_line=True) == ['a'] * 2
  ends = flat._replace(ends=(2, 1))  # nor with a token that ends an answer
  assert generation.answer(ends, prompts, 2, 3, one_line=True) == ['c'] * 2
  # In a token with other text, a newline may come first, and ends what is after it.
  blank = letters._replace(decode=lambda tokens: ''.join(
      ('\n', '\n\nit was', 'b', 'c')[x] for x in tokens))
  assert generation.answer(
      flat._replace(tokenizer=blank), prompts, 2, 3, one_line=True) == [
          '\n\nit was'] * 2


@pytest.mark.parametrize('one_line, expected', [(False, (5, 7)), (True, (5, 7, 10))])
def test_a_batch_stops_when_all_answers_have_ended(
    one_line, expected, subject, monkeypatch):
  asked = []

  def made(*inputs, end, not_first, **more):
    asked.append((end, not_first))
    return jax.numpy.array([[65, 7, 10], [66, 10, 67], [68, 69, 70]])

  monkeypatch.setattr(widths, 'generate', made)
  texts = generation.answer(subject._replace(ends=(5, 7)), [np.zeros(1, np.int32)] * 3,
                            1, 3, one_line)
  assert asked == [(expected, expected if one_line else ())]
  assert texts == ['A', 'B' if one_line else 'B\nC', 'DEF']


def test_only_answers_of_samsum_are_asked_for_as_one_line(monkeypatch, tmp_path):
  sample = lambda i: samples.Sample(
      np.full(5, i, np.int32), 9, None, ('it',), (), (), '', 0.0, {})
  asked = []
  monkeypatch.setattr(generation, 'answer', lambda subject, prompts, *more: (
      asked.append(more), ['it'] * len(prompts))[1])
  progress = types.SimpleNamespace(show=lambda *_: None)
  parts = [samples.Part(task, task, [9] * 4, 9, 7, sample,
                       longbench_files.is_one_line(task)) for task in ('samsum', 'lcc')]
  for part in parts:
    run._rows('longbench', str(tmp_path), None, part, run.batches(part.widths, 4), {},
              progress)
  assert asked == [(9, 7, True), (9, 7, False)]


@pytest.mark.parametrize('one_line', [False, True])
def test_programs_of_answers_of_one_line_are_counted(one_line, capsys):
  parts = [samples.Part('qasper', 'qasper', [64], 64, 128, None),
           samples.Part('samsum', 'samsum', [64], 64, 128, None, one_line)]
  todo = {part.name: widths.batches(part.widths, 8) for part in parts}
  run._say(samples.Plan(parts, {}, []), todo, {name: {} for name in todo}, 8,
           partition.make_mesh(-1))
  assert f'2 batches: {1 + one_line} program' in capsys.readouterr().out
  todo['samsum'] = []
  run._say(samples.Plan(parts, {}, []), todo, {name: {} for name in todo}, 8,
           partition.make_mesh(-1))
  assert 'in 1 batch: 1 program to compile.' in capsys.readouterr().out
