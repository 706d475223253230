"""The command of the study of correlations."""

import json
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.conftest import ROOT
from vvlen.reporting import results


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
