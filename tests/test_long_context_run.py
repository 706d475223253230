"""Runs of `experiments.long_context`: what they leave, and how they resume."""

import csv
import functools
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from configs import long_context as config_file
from experiments.long_context import generation, report, scores, suites
from tests.conftest import lose_rows, ROOT
from tests.llamas import edit
from tests.long_context_cases import (
    BYTES,
    config_of,
    files_of,
    flags_of,
    read_lines,
    said_by_suite,
    save_bytes_model,
    WINDOW,
)
from vvlen.models import generation as library
from vvlen.models.llama import load_checkpoint
from vvlen.reporting import results
from vvlen.reporting.numbers import memory


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_bytes_model(tmp_path_factory.mktemp('checkpoint'))


@pytest.fixture
def run_suite(run_here, capsys):  # run_here has this process use two devices
  return functools.partial(said_by_suite, capsys)


@pytest.fixture(scope='module')
def whole(tmp_path_factory, checkpoint, fast_compilation):
  """A whole run of passkey_smoke, and what it printed."""
  folder = tmp_path_factory.mktemp('whole') / 'run'
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.long_context',
       *flags_of('passkey', checkpoint, folder)],
      cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
  assert done.returncode == 0, done.stderr
  return folder, done.stdout


@pytest.mark.slow
def test_a_run_leaves_what_it_says(whole, checkpoint):
  folder, said = whole
  assert ('With up to 5 tokens of BOS and answer, lengths beyond the window of 70 '
          'tokens: 96.\n'
          '6 of 6 answers to generate, in 4 batches: 2 programs to compile.') in said
  told = re.search(r'^The largest cache of keys and values, (\d) × 101 tokens, takes '
                   r'(\S+ MB)\.$', said, re.MULTILINE)
  model, variables = load_checkpoint(checkpoint)
  size = library.cache_bytes(model, variables, int(told[1]), 101)
  assert told[2] == memory(size)
  [session] = json.loads((folder / 'config.json').read_text())['sessions']
  assert session['bytes of the largest cache'] == size
  assert 'No verdict on pass key' in said and '| 64 tokens ' in said
  page = (folder / 'index.md').read_text()
  for name in ('scores', 'effective_length', 'depth', 'dialects'):
    assert (folder / f'tables/{name}.md').read_text() in page
    assert (folder / f'tables/{name}.csv').exists()
  for name in ('scores', 'depth'):
    assert (folder / f'figures/{name}.pdf').exists()
    assert f'(figures/{name}.png)' in page
  inputs = json.loads((folder / 'config.json').read_text())['config']['inputs']
  assert inputs['window'] == 70 and inputs['samples'] == 6 and inputs['ends'] == []
  # A hash of weights and template beside every score.
  for path in (folder / 'tables').glob('*.md'):
    for name in ('checkpoint_sha256', 'template_sha256'):
      assert inputs[name][:12] in path.read_text() and len(inputs[name]) == 64
  rows = results.read_rows(folder / 'results.csv')
  assert {(row.experiment, row.arm) for row in rows} == {('passkey', 'passkey')}
  assert {row.metric for row in rows} == {
      'score_official', 'score_lm_eval', 'score_strict', 'chance', 'shortcut',
      'num_tokens'}
  assert len(rows) == 6 * 6


@pytest.mark.slow
def test_predictions_hold_settings_and_what_the_model_says(whole, checkpoint):
  model, variables = load_checkpoint(checkpoint)
  subject = generation.Subject(model, variables, BYTES, (), 2)
  config = config_of('passkey_smoke')
  for part in suites.plan(config, BYTES, WINDOW).parts:
    lines = read_lines(whole[0] / f'predictions/{part.name}.jsonl')
    assert [line['index'] for line in lines] == [0, 1, 2]
    for line in lines:
      sample = part.draw(line['index'])
      assert line['answers'] == list(sample.answers) and line['others'] == []
      assert (line['length'], line['depth']) == (sample.length, sample.depth)
      assert line['num_tokens'] == len(sample.tokens) == sample.length + 1
      assert line['settings'] == sample.settings and line['chance'] == 1 / 90_000
      assert [line['pred']] == generation.answer(
          subject, [sample.tokens], part.longest, 4)


@pytest.mark.slow
def test_a_torn_line_and_lost_rows_are_made_again(
    whole, checkpoint, tmp_path, run_suite):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  expected = files_of(folder)
  again = lambda: run_suite('passkey_smoke', folder, checkpoint=str(checkpoint))
  assert '\n0 of 6 answers to generate, in 0 batches: 0 programs' in again()
  assert files_of(folder) == expected
  # Killed within a line of the second batch of a length, before any row was written.
  path = folder / 'predictions/passkey_64.jsonl'
  for cut in (-1, -20, len(path.read_bytes()) // 4):
    path.write_bytes(expected[path.relative_to(folder)][:cut])
    lose_rows(folder)
    said = again()
    assert f'{1 if cut < 0 else 3} of 6 answers to generate' in said
    assert files_of(folder) == expected
  path.unlink()
  assert '3 of 6 answers to generate' in again()
  assert files_of(folder) == expected
  (folder / 'results.csv').unlink()
  assert '\n0 of 6 answers to generate' in again()
  assert files_of(folder) == expected


@pytest.mark.slow
def test_more_samples_may_be_asked_for(whole, checkpoint, tmp_path, run_suite):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  before = files_of(folder)
  again = functools.partial(
      run_suite, 'passkey_smoke', folder, checkpoint=str(checkpoint))
  said = again(num_samples=5)
  # Two batches of 2 and 1, each length; one of their answers was there.
  assert '4 of 10 answers to generate' in said
  assert ' 2 answers in their batches are generated again, and kept as they' in said
  for name in ('passkey_64', 'passkey_96'):
    path = pathlib.Path('predictions', f'{name}.jsonl')
    content = (folder / path).read_bytes()
    assert content.startswith(before[path]) and content.count(b'\n') == 5
  rows = results.read_rows(folder / 'results.csv')
  assert len(rows) == 6 * 10
  assert {*before[pathlib.Path('results.csv')].splitlines()} < {
      *(folder / 'results.csv').read_bytes().splitlines()}
  with pytest.raises(ValueError, match=r'num_samples: 5 there, 3 here \(may only'):
    again()


@pytest.mark.slow
def test_another_dialect_only_changes_the_tables(
    whole, checkpoint, tmp_path, run_suite):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  before = files_of(folder)
  said = run_suite('passkey_smoke', folder, checkpoint=str(checkpoint),
                   dialect='strict')
  assert '\n0 of 6 answers to generate' in said
  assert 'Dialect: strict.' in (folder / 'tables/scores.md').read_text()
  after = files_of(folder)
  for name in ('results.csv', 'predictions/passkey_64.jsonl'):
    assert after[pathlib.Path(name)] == before[pathlib.Path(name)]


@pytest.mark.slow
@pytest.mark.parametrize('suite', ['babilong', 'ruler'])
def test_other_suites_run(suite, checkpoint, tmp_path, run_here):
  done = run_here('long_context', *flags_of(suite, checkpoint, tmp_path / 'run'))
  assert done.returncode in (0, None), done.stderr
  said = done.stdout
  config = config_file.get_config(f'{suite}_smoke')
  number = len(config.tasks) * len(config.lengths) * 3
  assert f'{number} of {number} answers' in said and '2 programs' in said
  names = {path.stem for path in (tmp_path / 'run/predictions').iterdir()}
  assert names == {f'{task}_{n}' for task in config.tasks for n in config.lengths}
  rows = scores.read_rows(tmp_path / 'run')
  assert scores.tasks_of(rows) == list(config.tasks)
  made = {path.name for path in (tmp_path / 'run/tables').glob('*.md')}
  assert ('depth.md' in made) == (suite == 'babilong')
  assert {'scores.md', 'effective_length.md', 'dialects.md'} <= made


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_run_ends_as_an_unbroken_one(checkpoint, tmp_path, fast_compilation):
  command = lambda folder: [
      sys.executable, '-m', 'experiments.long_context',
      *flags_of('ruler', checkpoint, folder, '--config.num_samples=40')]
  run_whole = functools.partial(
      subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True, timeout=900)
  run_whole(command(tmp_path / 'whole'))
  killed = tmp_path / 'killed'
  seen = 0
  for share in (0.1, 0.6):  # in two starts, then to the end
    process = subprocess.Popen(command(killed), cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
      there = sum(path.read_bytes().count(b'\n')
                  for path in killed.glob('predictions/*.jsonl'))
      if there > share * 480:
        break
      time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = sum(path.read_bytes().count(b'\n')
                for path in killed.glob('predictions/*.jsonl'))
    assert seen < there < 480
    seen = there
  said = run_whole(command(killed)).stdout
  left = int(re.search(r'(\d+) of 480 answers to generate', said)[1])
  assert 480 - seen <= left < 480 - seen + 2
  assert files_of(killed) == files_of(tmp_path / 'whole')


@pytest.mark.slow
def test_a_report_is_made_again_without_jax(whole, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  expected = files_of(folder)
  shutil.rmtree(folder / 'tables')
  shutil.rmtree(folder / 'figures')
  program = (
      'import sys; sys.modules["jax"] = None\n'
      f'sys.argv = ["report", "--workdir={folder}"]\n'
      'from experiments import report; report.main()')
  done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, check=False,
                        capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  assert files_of(folder) == expected


@pytest.mark.slow
def test_a_folder_of_another_run_or_checkpoint_is_refused(
    whole, checkpoint, tmp_path, run_suite):
  folder, other = tmp_path / 'run', tmp_path / 'other'
  shutil.copytree(whole[0], folder)
  shutil.copytree(checkpoint, other)
  assert '\n0 of 6 answers' in run_suite(
      'passkey_smoke', folder, checkpoint=str(other))
  before = files_of(folder)
  (other / 'generation_config.json').write_text('{"eos_token_id": [5, 6]}')
  with pytest.raises(ValueError, match=r'inputs\.ends: \[\] there, \[5, 6\] here'):
    run_suite('passkey_smoke', folder, checkpoint=str(other))
  edit(other, rope_theta=20_000.0)
  for variant, fields, name in (
      ('passkey', {'checkpoint': str(other)}, 'checkpoint_sha256: '),
      ('passkey', {'checkpoint': str(checkpoint), 'seed': 1}, 'seed: '),
      ('ruler', {'checkpoint': str(checkpoint)}, 'more fields')):
    with pytest.raises(ValueError, match=rf'holds another run \(.*{name}'):
      run_suite(f'{variant}_smoke', folder, **fields)
  assert files_of(folder) == before


@pytest.mark.slow
def test_a_report_of_an_unfinished_run_says_so(whole, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  lose_rows(folder)
  assert report.write(folder).missing == (
      'The run is not finished: 2 of 6 answers are missing.')
  (folder / 'results.csv').unlink()
  with pytest.raises(ValueError, match=r'has no results\.csv with results'):
    report.write(folder)


@pytest.mark.slow
def test_tables_as_csv_have_every_number(whole):
  with (whole[0] / 'tables/depth.csv').open() as file:
    rows = [*csv.DictReader(file)]
  assert [row['depth'] for row in rows] == ['0', '100']
  assert [row['samples_64'] for row in rows] == ['2', '1']
