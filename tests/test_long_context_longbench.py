"""Runs of LongBench by `experiments.long_context`."""

import functools
import json
import re

import numpy as np
import pytest

from experiments.long_context import generation, longbench_parts, scores
from experiments.long_context import run as long_context_run
from tests.conftest import lose_rows
from tests.long_context_cases import (
    BYTES,
    config_of,
    files_of,
    inputs_of,
    longbench_sample,
    read_lines,
    said_by_suite,
    save_bytes_model,
    write_longbench,
)
from vvlen.evaluation import longbench_files
from vvlen.reporting import run_folder


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_bytes_model(tmp_path_factory.mktemp('checkpoint'))


@pytest.fixture
def run_suite(run_here, capsys):  # run_here has this process use two devices
  return functools.partial(said_by_suite, capsys)


@pytest.fixture
def data(tmp_path):
  return write_longbench(tmp_path / 'data')


def test_a_plan_knows_which_answers_end_at_a_newline(data):
  (data / 'samsum_e.jsonl').write_text(json.dumps(longbench_sample('samsum', 0)) + '\n')
  plan = longbench_parts.plan(config_of('longbench_smoke', data=str(data)), BYTES, 700)
  assert {part.task: part.one_line for part in plan.parts} == {
      'qasper': False, 'trec': False, 'samsum': True}


@pytest.mark.slow
def test_more_predictions_of_longbench_may_be_scored(tmp_path, run_suite):
  made = tmp_path / 'made'
  made.mkdir()
  for task, count in (('qasper', 5), ('hotpotqa', 3)):
    (made / f'{task}.jsonl').write_text(''.join(json.dumps({
        'pred': 'it' * (i % 2), 'answers': ['it'], 'all_classes': None,
        'length': 3998 + i}) + '\n' for i in range(count)))
  score = lambda folder, number: run_suite(
      'longbench', tmp_path / folder, checkpoint='', predictions=str(made),
      num_samples=number)
  for number, count in ((2, 4), (4, 7), (0, 8)):
    assert f'{count} predictions to score.' in score('grown', number)
    assert inputs_of(tmp_path / 'grown')['samples'] == count
    of_qasper = [row.seed for row in scores.read_rows(tmp_path / 'grown')
                 if (row.arm, row.metric) == ('qasper', 'chance')]
    assert sorted(of_qasper) == [*range(min(number or 5, 5))]
  with pytest.raises(ValueError, match=r'inputs\.samples: 8 there, 7 here \(may only'):
    score('grown', 4)
  score('whole', 0)
  assert files_of(tmp_path / 'grown') == files_of(tmp_path / 'whole')
  assert inputs_of(tmp_path / 'grown') == inputs_of(tmp_path / 'whole')
  assert [*inputs_of(tmp_path / 'whole')['asked_sha256']] == [
      'qasper_0-4k', 'qasper_4-8k', 'hotpotqa_0-4k', 'hotpotqa_4-8k']
  # Other predictions are another run.
  lines = (made / 'qasper.jsonl').read_text()
  (made / 'qasper.jsonl').write_text(lines.replace('"pred": "it"', '"pred": "is"', 1))
  with pytest.raises(ValueError, match=r'inputs\.predictions_sha256: '):
    score('grown', 0)


@pytest.mark.slow
def test_longbench_cuts_the_middle_and_runs_what_can_be_run(
    data, checkpoint, tmp_path, run_suite):
  folder = tmp_path / 'run'
  said = run_suite('longbench_smoke', folder, checkpoint=str(checkpoint),
                   data=str(data))
  for line in ('qasper_e.jsonl line 2: not JSON',
               'trec_e.jsonl line 2: answers must be',
               'lcc_e.jsonl line 1: not an object of JSON'):
    assert re.search(rf'^Not used: .*{line}', said, re.MULTILINE), said
  assert '3 of 3 answers to generate' in said
  assert '\nconfig.window is 600 tokens, beyond the window of the checkpoint' in said
  assert 'Lines that could not be used: 3.' in (folder / 'tables/means.md').read_text()
  lines = {name: read_lines(folder / f'predictions/{name}.jsonl')
           for name in ('qasper', 'trec')}
  first, second = lines['qasper']
  assert (first['length'], second['length']) == (3999, 4000)
  samples, _ = longbench_files.read_samples(data / 'qasper_e.jsonl')
  wholes = [BYTES.encode(longbench_files.prompt(x)) for x in samples]
  # 600 less 500, with BOS on top.
  assert first['num_tokens'] == 101 and first['settings']['kept_tokens'] == 100
  assert first['settings']['prompt_tokens'] == len(wholes[0]) > 600
  config = config_of('longbench_smoke', data=str(data))
  part = longbench_parts.plan(config, BYTES, 600).parts[0]
  np.testing.assert_array_equal(
      part.draw(0).tokens, [256, *wholes[0][:50], *wholes[0][-50:]])
  assert lines['trec'][0]['all_classes'] == ['it', 'that', 'b']
  assert lines['trec'][0]['chance'] == pytest.approx(1 / 3)
  rows = scores.read_rows(folder)
  assert {row.length for row in rows} == {3999, 4000}
  # The predictions are files that LongBench's scorer and ours read.
  again = tmp_path / 'again'
  score = functools.partial(run_suite, 'longbench', again, checkpoint='',
                            predictions=f'{folder}/predictions')
  assert '3 predictions to score.' in score()
  kept = [row for row in rows if row.metric.startswith('score')]
  assert kept == [x for x in scores.read_rows(again) if x.metric.startswith('score')]
  scored, _ = longbench_files.score_folder(folder / 'predictions')
  assert [x.score for x in scored] == [
      row.value for row in kept if row.metric == 'score_official']
  before = files_of(again)
  lose_rows(again)
  score()
  assert files_of(again) == before
  assert 'made elsewhere' in (again / 'tables/means.md').read_text()


class _Killed(Exception):
  """Stands for the end of a process."""


@pytest.mark.slow
def test_longbench_grows_and_resumes_as_an_unbroken_run(
    data, checkpoint, tmp_path, run_suite, monkeypatch):
  long, short = 'all about it. ' * 30, 'all about it. '
  (data / 'qasper_e.jsonl').write_text(''.join(
      json.dumps(longbench_sample('qasper', i, context=(long, short)[i % 2])) + '\n'
      for i in range(7)))
  again = functools.partial(
      run_suite, 'longbench_smoke', checkpoint=str(checkpoint), data=str(data),
      window=1700, batch_size=2)
  real, widths_of, left = generation.answer, [], [99]

  def counted(subject, prompts, width, *more):
    if not left[0]:
      raise _Killed
    left[0] -= 1
    widths_of.append(width)
    return real(subject, prompts, width, *more)

  monkeypatch.setattr(generation, 'answer', counted)
  assert '8 of 8 answers to generate, in 5 batches: 3 programs' in again(
      tmp_path / 'whole', num_samples=0)
  # Those of qasper have two widths.
  assert widths_of[:4] == sorted(widths_of[:4]) and len({*widths_of[:4]}) == 2
  expected = files_of(tmp_path / 'whole')
  # Killed after one batch of the second width; resumed, and killed again.
  for left[0] in (3, 1):
    with pytest.raises(_Killed):
      again(tmp_path / 'killed', num_samples=0)
  left[0] = 99
  assert '1 of 8 answers' in again(tmp_path / 'killed', num_samples=0)
  assert files_of(tmp_path / 'killed') == expected
  # From three samples of each task, of which the last two are of one width, to all.
  assert '4 of 4 answers' in again(tmp_path / 'grown', num_samples=3)
  left[0] = 1
  with pytest.raises(_Killed):
    again(tmp_path / 'grown', num_samples=0)
  left[0] = 99
  again(tmp_path / 'grown', num_samples=0)
  found = files_of(tmp_path / 'grown')
  for own in (found, expected):  # lines are in the order of the answers
    own |= {name: sorted(x.splitlines()) for name, x in own.items()
            if name.suffix == '.jsonl'}
  assert found == expected


def test_files_that_cannot_be_used_are_named_and_the_others_are_read(data):
  (data / 'samsum_e.jsonl').write_text('')
  (data / 'musique_e.jsonl').write_text('{}\n')
  config = config_of('longbench_smoke', data=str(data))
  plan = longbench_parts.plan(config, BYTES, 600)
  assert [part.task for part in plan.parts] == ['qasper', 'trec']
  said = '\n'.join(plan.notes)
  assert re.search(r'^Not used: .*samsum_e\.jsonl is empty$', said, re.MULTILINE)
  assert re.search(r'^Not used: .*musique_e\.jsonl: no task of Lon', said, re.MULTILINE)
  # Only files of the tasks that are named are looked at.
  config.tasks = ('samsum', 'trec')
  plan = longbench_parts.plan(config, BYTES, 600)
  assert [part.task for part in plan.parts] == ['trec'] and len(plan.notes) == 3
  assert plan.notes[2].startswith('Cut in the middle, to fit into the window of 600 t')
  config.tasks = ('samsum',)
  with pytest.raises(ValueError, match=r'can be used\. Not used: .*_e\.jsonl is empty'):
    longbench_parts.plan(config, BYTES, 600)
  (data / 'qasper.jsonl').write_text('')
  (data / 'other.jsonl').write_text('')
  (data / 'lcc.jsonl').write_text(json.dumps(
      {'pred': 'x', 'answers': ['x'], 'all_classes': None, 'length': 3}) + '\n')
  found, notes = longbench_parts.predictions_of(
      config_of('longbench', predictions=str(data)))
  assert [*found] == ['lcc']
  assert any(x.endswith('/other.jsonl: no task of LongBench-E') for x in notes)
  assert any(x.endswith('/qasper.jsonl is empty') for x in notes)


@pytest.mark.parametrize('first, then, fits', [
    (1, 2, True), (1, 0, True), (0, 2, True), (2, 1, False), (0, 1, False)])
def test_more_samples_of_longbench_may_be_asked_for(first, then, fits, data, tmp_path):
  def claim(num_samples):
    config = config_of('longbench_smoke', data=str(data), num_samples=num_samples)
    plan = longbench_parts.plan(config, BYTES, 600)
    own = {**config.to_dict(), 'inputs': {
        **plan.facts, 'samples': sum(len(part.widths) for part in plan.parts)}}
    run_folder.claim(tmp_path / 'run', own, {}, study='long_context',
                     **long_context_run._changes(config))
    return [len(part.widths) for part in plan.parts]

  assert claim(first) == ([2, 1] if first != 1 else [1, 1])
  if fits:
    assert claim(then) == [2, 1]
  else:
    with pytest.raises(ValueError, match=r'inputs\.samples: 3 there, 2 here \(may'):
      claim(then)


def test_answers_that_are_longer_than_the_reserve_have_room(data):
  config = config_of('longbench_smoke', data=str(data), reserve=20)
  part = longbench_parts.plan(config, BYTES, 300).parts[0]
  assert (part.task, part.answer_tokens) == ('qasper', 128)
  assert part.longest == 300 - 128
  assert len(part.draw(0).tokens) == 1 + 2 * 85  # of 171, without BOS
  # How much is cut is told.
  settings = [own.draw(i).settings for own in longbench_parts.plan(
      config, BYTES, 300).parts for i in range(len(own.widths))]
  cut = [(x['prompt_tokens'], x['kept_tokens']) for x in settings
         if x['kept_tokens'] < x['prompt_tokens']]
  share = 100 * sum(kept for _, kept in cut) / sum(whole for whole, _ in cut)
  assert 0 < len(cut) and longbench_parts.plan(config, BYTES, 300).notes[-1] == (
      'Cut in the middle, to fit into the window of 300 tokens less config.reserve: '
      f'{len(cut)} of 3 prompts, of whose tokens {share:.3g} % are kept.')
  assert not any('middle' in x for x in longbench_parts.plan(
      config, BYTES, 10**6).notes)
  # Answers of trec have 64 tokens.
  plan = longbench_parts.plan(config, BYTES, 130)
  assert [part.task for part in plan.parts] == ['trec']
  assert plan.facts['not_run'] == ['qasper'] and plan.facts['bad_lines'] == 3
  assert plan.notes[3:] == [
      'Not run: a window of 130 tokens has no room for prompts of qasper: 129 are left '
      'free. Choose --config.window or config.reserve',
      'Cut in the middle, to fit into the window of 130 tokens less config.reserve: 1 '
      'of 1 prompt, of whose tokens 9.83 % are kept.']
  with pytest.raises(ValueError, match='60 tokens has no room for prompts of qasper'):
    longbench_parts.plan(config, BYTES, 60)
  # The first samples of a file, and predictions made elsewhere.
  config.num_samples = 1
  plan = longbench_parts.plan(config, BYTES, 300)
  assert [len(part.widths) for part in plan.parts] == [1, 1]
  assert plan.parts[0].draw(0).length == 3999
  made = data.parent / 'made'
  made.mkdir()
  (made / 'trec.jsonl').write_text(''.join(json.dumps({
      'pred': text, 'answers': ['it'], 'all_classes': ['it', 'that'], 'length': length}
  ) + '\n' for text, length in (('it', 3999), ('x', 9000))))
  elsewhere = config_of('longbench', predictions=str(made))
  read, _ = longbench_parts.predictions_of(elsewhere)
  assert [(x['index'], x['pred'], x['length'], x['chance']) for x in read['trec']] == [
      (0, 'it', 3999, 0.5), (1, 'x', 9000, 0.5)]
  # Short prompts have a smaller width.
  assert part.widths[0] == 172 and part.widths[1] <= 172
