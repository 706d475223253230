"""Scores of predictions, and files in the formats of BABILong and RULER."""

import functools
import json
import re

from etils import epath
import numpy as np
import pytest

from configs import long_context as config_file
from experiments.long_context import official, predictions, run, scores
from tests.conftest import lose_rows
from tests.long_context_cases import (
    config_of,
    files_of,
    inputs_of,
    read_lines,
    said_by_suite,
    save_bytes_model,
)
from vvlen.evaluation import babilong_files, ruler_files
from vvlen.reporting import run_folder


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_bytes_model(tmp_path_factory.mktemp('checkpoint'))


@pytest.fixture
def run_suite(run_here, capsys):  # run_here has this process use two devices
  return functools.partial(said_by_suite, capsys)


def _scores_of(folder):
  return {(x.arm, x.length, x.seed, x.metric): x.value
          for x in scores.read_rows(folder) if x.metric.startswith('score')}


@pytest.mark.slow
@pytest.mark.parametrize('suite', ['babilong', 'ruler'])
def test_official_files_of_a_run_have_its_scores(
    suite, checkpoint, tmp_path, run_suite):
  config = config_file.get_config(f'{suite}_smoke')
  folder, again = tmp_path / 'run', tmp_path / 'again'
  run_suite(f'{suite}_smoke', folder, checkpoint=str(checkpoint))
  made = {str(path.relative_to(folder / 'official'))
          for path in (folder / 'official').rglob('*.*')}
  if suite == 'babilong':
    form = 'instruction_no_examples_no_post_prompt_no_chat_template_no_system_prompt_no'
    assert made == {f'{task}_{n}_{form}.{kind}' for task in config.tasks
                    for n in config.lengths for kind in ('csv', 'json')}
    settings = json.loads((folder / f'official/qa1_192_{form}.json').read_text())
    assert settings['prompt']['template'] == (
        '<context>\n{context}\n</context>\n\nQuestion: {question}')
    assert settings['generate_kwargs']['max_new_tokens'] == 4
    kept = read_lines(folder / 'predictions/qa4_192.jsonl')
    read, _ = babilong_files.read_predictions(folder / f'official/qa4_192_{form}.csv')
    assert read == [(*x['answers'], x['pred'], x['question']) for x in kept]
  else:
    names = {x: ruler_files.NAMES.get(x, x) for x in config.tasks}
    assert made == {'hashes.json'} | {
        f'{n}/pred/{name}.jsonl' for name in names.values() for n in config.lengths}
    kept = read_lines(folder / 'predictions/common_words_64.jsonl')
    read, _ = ruler_files.read_predictions(folder / 'official/64/pred/cwe.jsonl')
    assert read == [('cwe', x['pred'], tuple(x['answers'])) for x in kept]
  score = functools.partial(
      run_suite, f'{suite}_smoke', again, checkpoint='',
      predictions=str(folder / 'official'))
  number = len(config.tasks) * len(config.lengths) * 3
  assert f'{number} predictions to score.' in score()
  expected = _scores_of(folder)
  if suite == 'ruler':  # whose files do not say what is wrong, as strict asks
    expected = {(names[task], *rest): value for (task, *rest), value in expected.items()
                if rest[2] != 'score_strict'}
  found = _scores_of(again)
  assert {key: found[key] for key in expected} == expected
  assert {key[3] for key in found.keys() - expected.keys()} <= {'score_strict'}
  # A run that lost rows is completed.
  before = files_of(again)
  lose_rows(again)
  score()
  assert files_of(again) == before
  text = (again / 'tables/scores.md').read_text()
  assert 'A length is that in the name of a file or folder.' in text
  assert 'made elsewhere' in text and not (again / 'tables/depth.md').exists()


@pytest.mark.slow
def test_published_files_are_scored_and_bad_lines_named(tmp_path, run_suite):
  def asked(target, output):
    folder = tmp_path / f'{target}_{output}'
    folder.mkdir()
    (folder / 'qa1_4k.csv').write_text(f'target,output,question\n{target},{output},x\n')
    run_suite('babilong', folder / 'run', checkpoint='', predictions=str(folder))
    return inputs_of(folder / 'run')['asked_sha256']

  first = asked('garden', 'attic')
  assert asked('garden', 'hall') == first != asked('office', 'attic')
  assert [*first] == ['qa1_4000'] and re.fullmatch('[0-9a-f]{12}', first['qa1_4000'])
  folder = tmp_path / 'published'
  folder.mkdir()
  for length, answers in (('0k', 'garden garden'), ('4k', 'garden attic')):
    rows = ''.join(f'{i},garden,In the {x}.,Where is Mary?\n'
                   for i, x in enumerate(answers.split()))
    (folder / f'qa1_{length}_examples_yes.csv').write_text(
        f',target,output,question\n{rows}2,attic,x,Where?\n')
  # All of them are scored: their number is not that of samples to draw.
  said = run_suite('babilong', tmp_path / 'run', checkpoint='', predictions=str(folder),
                   num_samples=1)
  assert re.search(r'^Not used: .*qa1_0k_examples_yes\.csv row 3: the ', said, re.M)
  assert '4 predictions to score.' in said
  found = _scores_of(tmp_path / 'run')
  assert [found['qa1', n, i, 'score_official'] for n in (0, 4000) for i in (0, 1)] == [
      1, 1, 1, 0]
  page = (tmp_path / 'run/index.html').read_text()
  assert 'A length of 0 tokens is not drawn.' in page
  chance = [x.value for x in scores.read_rows(tmp_path / 'run') if x.metric == 'chance']
  assert chance == pytest.approx([1 / 6] * 4)
  # RULER: parts of a task, and answers of which one is enough.
  lines = [ruler_files.line_of(7, text, ['Paris', 'France']) for text in ('PARIS', 'x')]
  for length, name in ((4096, 'qa_1-0'), (4096, 'qa_1-1'), (8192, 'qa_1')):
    path = tmp_path / f'ruler/{length}/pred/{name}.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(lines))
  again = tmp_path / 'ruled'
  assert '6 predictions to score.' in run_suite(
      'ruler', again, checkpoint='', predictions=str(tmp_path / 'ruler'))
  found = _scores_of(again)
  assert [found['qa_1', 4096, i, 'score_official'] for i in range(4)] == [1, 0, 1, 0]
  assert [found['qa_1', 8192, 0, x] for x in ('score_lm_eval', 'score_strict')] == [
      0.5, 1]


def test_what_each_task_and_length_asks_has_a_hash_of_its_own():
  record = {'index': 0, 'length': 100, 'answers': ['x'], 'pred': 'a'}
  every = {'vt': [record, {**record, 'length': 200}], 'cwe': [record]}
  found = run._asked('ruler', every)
  assert [*found] == ['vt_100', 'vt_200', 'cwe_100']
  assert found['vt_100'] == found['cwe_100'] != found['vt_200']
  # One task and length is another in all but what is generated.
  for name, value in (('pred', 'b'), ('answers', ['y']), ('index', 1), ('chance', 0.1)):
    again = run._asked('ruler', every | {'vt': [{**record, name: value},
                                                every['vt'][1]]})
    same = {key for key in found if found[key] == again[key]}
    assert same == ({*found} if name == 'pred' else {'vt_200', 'cwe_100'})
  # Of LongBench, a bucket has one, in which all samples count.
  of_length = lambda *lengths: run._asked('longbench', {'qasper': [
      {**record, 'length': n} for n in lengths]})
  assert [*of_length(9000, 3999, 10, 4000)] == [
      'qasper_8k+', 'qasper_0-4k', 'qasper_4-8k']
  assert of_length(10, 3999) != of_length(10) != of_length(3999)


def _prediction(index, **fields):
  return {'index': index, 'length': 64, 'depth': None, 'num_tokens': 65, 'others': [],
          'all_classes': [], 'question': '', 'chance': 0.5, 'settings': {}, **fields}


def test_official_files_have_what_was_predicted(tmp_path):
  config = config_of('babilong_smoke', answer_tokens=7)
  hashes = {'checkpoint_sha256': 'ab', 'template_sha256': 'cd'}
  for folder in (tmp_path, tmp_path / 'ruler'):
    run_folder.claim(folder, {'inputs': {**hashes, 'window': 9}}, {})
  predictions.append(predictions.path_of(tmp_path, 'qa5_64'), [
      _prediction(i, answers=[target], question=question, pred=text)
      for i, (target, text, question) in enumerate((
          ('milk', ' Milk.', 'What did Bill give to Fred?'),
          ('Bill', ' Mary.', 'Who gave the milk to Fred?')))])
  official.write(config, tmp_path, [('qa5', 'qa5_64')])
  name = babilong_files.name_of('qa5', 64, ())
  folder = tmp_path / 'official'
  assert {path.name for path in folder.iterdir()} == {f'{name}.csv', f'{name}.json'}
  read, _ = babilong_files.read_predictions(folder / f'{name}.csv')
  assert read == [('milk', ' Milk.', 'What did Bill give to Fred?'),
                  ('Bill', ' Mary.', 'Who gave the milk to Fred?')]
  settings = json.loads((folder / f'{name}.json').read_text())
  assert {x: settings[x] for x in settings if 'sha256' in x} == hashes
  assert settings['caveat'] == (
      'The stories are simulated, the text around them may be another one, and lengths '
      'are in tokens of the prompt by the tokenizer of this model: do not compare '
      'scores with published ones.')
  assert settings['prompt']['template'] == (
      '<context>\n{context}\n</context>\n\nQuestion: {question}')
  assert settings['generate_kwargs'] == {
      'max_new_tokens': 7, 'num_beams': 1, 'do_sample': False}
  config.predictions = str(folder)
  found, bad = official.predictions_of(config)
  assert [*found] == ['qa5'] and bad == []
  assert [(x['answers'], x['pred'], x['question'], x['chance'], x['length'])
          for x in found['qa5']] == [
              (['milk'], ' Milk.', 'What did Bill give to Fred?', 1 / 3, 64),
              (['Bill'], ' Mary.', 'Who gave the milk to Fred?', 1 / 3, 64)]
  # RULER.
  config = config_of('ruler_smoke', predictions=str(tmp_path / 'ruler/official'))
  predictions.append(predictions.path_of(tmp_path / 'ruler', 'niah_multivalue_64'), [
      _prediction(3, answers=['12', '34'], pred=' 34, 56')])
  official.write(config, tmp_path / 'ruler', [
      ('niah_multivalue', 'niah_multivalue_64')])
  path = tmp_path / 'ruler/official/64/pred/niah_multivalue.jsonl'
  assert json.loads((tmp_path / 'ruler/official/hashes.json').read_text()) == hashes
  [line] = read_lines(path)
  assert {name: line[name] for name in ('index', 'pred', 'outputs', 'length')} == {
      'index': 3, 'pred': ' 34, 56', 'outputs': ['12', '34'], 'length': 65}
  # A length whose folder has nothing to read is named, and the others are read.
  (tmp_path / 'ruler/official/96/pred').mkdir(parents=True)
  (tmp_path / 'ruler/official/128/pred').mkdir(parents=True)
  (tmp_path / 'ruler/official/128/pred/vt.jsonl').write_text('')
  found, bad = official.predictions_of(config)
  assert [re.sub('.*official', '', x) for x in bad] == [
      '/96/pred has no file TASK.jsonl', '/128/pred/vt.jsonl is empty']
  assert all(x.startswith('Not used: ') for x in bad) and [*found] == [
      'niah_multivalue']
  [one] = found['niah_multivalue']
  assert (one['answers'], one['pred'], one['length'], one['chance']) == (
      ['12', '34'], ' 34, 56', 64, 0)


def test_scores_of_predictions_by_hand(tmp_path):
  path = tmp_path / 'predictions/niah_single_64.jsonl'
  record = {'length': 64, 'depth': None, 'num_tokens': 65, 'all_classes': [],
            'question': '', 'chance': 0.5, 'settings': {}}
  predictions.append(path, [
      {**record, 'index': 1, 'answers': ['71', '22'], 'others': [], 'pred': ' 71 é'},
      {**record, 'index': 0, 'answers': ['71'], 'others': [], 'pred': '4711'}])
  predictions.append(path, [
      {**record, 'index': 2, 'answers': ['71'], 'others': ['5'], 'pred': '71, 5'}])
  read = predictions.read(epath.Path(path))
  assert [*read] == [1, 0, 2] and read[1]['pred'] == ' 71 é'
  rows = scores.rows_of('ruler', 'niah_single', predictions.in_order(read))
  at = lambda metric: [row.value for row in rows if row.metric == metric]
  assert at('score_official') == at('score_lm_eval') == [1, 0.5, 1]
  assert at('score_strict') == [0, 0, 0] and at('chance') == [0.5] * 3
  assert at('shortcut') == [0.5, 0.5, 0.5]  # chance, and one of two values
  assert [row.seed for row in rows if row.metric == 'num_tokens'] == [0, 1, 2]
  qa = {**record, 'index': 3, 'answers': ['kitchen'], 'others': [],
        'question': 'Where is Mary?', 'pred': 'Kitchen. Not the garden',
        'settings': {'facts': ['Mary went to the kitchen.',
                               'John went to the garden.']}}
  rows = scores.rows_of('babilong', 'qa1', [qa])
  assert [row.value for row in rows[:3]] == [1, 1, 0]
  # Whoever is asked for, the room that is named last is the garden.
  shortcut = lambda suite, task, one: [
      row.value for row in scores.rows_of(suite, task, [one])
      if row.metric == 'shortcut']
  assert shortcut('babilong', 'qa1', qa) == [0]
  assert shortcut('babilong', 'qa1', {**qa, 'answers': ['Garden']}) == [1]
  assert shortcut('ruler', 'niah_multikey', {
      **record, 'index': 0, 'answers': ['71'], 'others': ['1', '2', '3'],
      'pred': ''}) == [0.25]
  elsewhere = {k: x for k, x in qa.items() if k != 'settings'}
  assert shortcut('babilong', 'qa1', elsewhere) == []
  trec = {**record, 'index': 4, 'answers': ['a b'], 'all_classes': ['a b', 'c'],
          'pred': 'a b or c\nc'}
  rows = scores.rows_of('longbench', 'trec', [trec])
  assert [row.value for row in rows[:3]] == [0.5, 0.5, 0]
  # What a question names is no answer of it; the best of several answers counts.
  given = {**qa, 'question': 'Where was it before the garden?',
           'pred': 'kitchen, not the garden'}
  assert scores.score('babilong', 'qa3', given, 'official') == 1
  hotpotqa = {**record, 'answers': ['x', 'by the sea'], 'pred': 'By the sea!'}
  assert scores.score('longbench', 'hotpotqa', hotpotqa, 'strict') == 1
  one_of = {**record, 'answers': ['Paris', 'France'], 'others': [],
            'pred': 'in paris'}
  assert [scores.score('ruler', task, one_of, 'official')
          for task in ('qa_1', 'niah_multivalue')] == [1, 0.5]
  # Rows are of the length of the prompt, without BOS.
  assert {row.length for row in scores.rows_of('babilong', 'qa1', [qa])} == {64}
  assert [row.value for row in scores.rows_of('babilong', 'qa1', [qa])
          if row.metric == 'num_tokens'] == [65]
  # One sample of one group gives no interval of the mean.
  mean, low, high = scores.mean_interval([np.ones(1), np.zeros(3)], 200, 0)
  assert mean == 0.5 and np.isnan([low, high]).all()
  # What is not a line of such a file is named.
  path.write_text(path.read_text() + '{"index": 9}\n')
  with pytest.raises(ValueError, match=r'line 4 has no length: delete the file'):
    predictions.read(epath.Path(path))
  path.write_text('x\n')
  with pytest.raises(ValueError, match=r'line 1 is damaged: delete the file'):
    predictions.read(epath.Path(path))
