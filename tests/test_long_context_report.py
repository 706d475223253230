"""Reports of `experiments.long_context`: notes of tables, and whole folders."""

import json
import types

import numpy as np

from experiments.long_context import (
    answer,
    dialect_tables,
    longbench_tables,
    report,
    tables,
)
from experiments.long_context.tables import Run
from tests.cells import is_short
from tests.long_context_cases import config_of, longbench_run, made_rows, QA, run_of
from vvlen.reporting import plots, results


def test_notes_of_tables_say_what_is_shown():
  made = run_of('babilong', QA)
  table = tables.by_length(made)
  assert table.note == (
      'Mean score in % of the samples of each length [95 %: bootstrap over samples]. '
      'Dialect: official. Weights w.')
  assert table.more.startswith(
      'A length is that of a prompt, without BOS. Answers are greedy. Samples: of each '
      'length, from the fewest to the most. The mean is that over tasks, whose samples '
      'are drawn again task by task.')
  assert tables.by_length(made._replace(window=0)).more.startswith(
      'A length is that in the name of a file or folder. Samples')
  assert tables.by_length(made._replace(length_of='context')).more.startswith(
      'A length is that of a context, without BOS. Answers are greedy. Samples')
  assert tables.effective_lengths(made).note == (
      'Up to the effective length, means are at least 85 % of the base, the shortest '
      'length [95 %: bootstrap over samples]. Dialect: official. Weights w.')
  assert tables.effective_lengths(made).more.startswith(
      'Change: (S_L − S_base) / S_base, in %. Chance: the mean score in % of a guess '
      'of the right kind that ignores the context, 0 where it is not known, as in '
      'predictions of RULER made elsewhere. Shortcut: that of an answer that takes a '
      'fitting word of the context whatever is asked: of four needles any one, of a '
      'story the label that it names last; chance if there is one word alone. A task '
      'whose interval at the base length does not lie 10 points above both has no '
      'effective length and no changes. For the interval of the effective length, the '
      'samples of all lengths are drawn again. The mean is that over tasks, at the '
      'lengths that all of them have. Where the score of a shortcut is unknown, ')
  assert tables.by_depth(made).more == (
      'Depth: the quarter of the context where the first fact that is needed stands.')
  # The longest note of each table is short enough, whatever a run changes.
  long = (f'Weights {"a" * 12} (dynamic by 16 from 131,072 tokens, bfloat16, window '
          '2,097,152 tokens).')
  for one in (*tables.make(made._replace(source=long)),
              dialect_tables.by_length(made._replace(source=long)),
              *longbench_tables.make(longbench_run()._replace(source=long))):
    assert is_short(one.note), one.name
  assert tables.NAMES == {
      'passkey': 'pass key', 'niah_single': 'single needle',
      'niah_multikey': 'several keys', 'niah_multivalue': 'several values',
      'niah_multiquery': 'several queries', 'variable_tracking': 'variable tracking',
      'common_words': 'common words'}
  # Chance is that of the task at its base length, of which a length is shown.
  records = tables.effective_lengths(made).records
  assert [r['chance'] for r in records] == [25, 50, 37.5]


def test_the_report_says_what_the_rows_are_of(tmp_path, monkeypatch):
  monkeypatch.setattr(plots, 'save', lambda folder, made: {})

  def reported(variant, rows, fields=types.MappingProxyType({}), **inputs):
    config = config_of(variant, dialect='strict', **fields).to_dict() | {
        'inputs': inputs}
    (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
    results.write_rows(tmp_path / 'results.csv', rows)
    return report.write(tmp_path)

  hashes = {'checkpoint_sha256': 'a' * 64, 'template_sha256': 'b' * 64}
  rows = made_rows('babilong', QA)
  made = reported('babilong', rows, samples=20, window=512, **hashes)
  run = Run('babilong', rows, 'strict', 1_000, 0, 512, '')
  assert made.answer == answer.answer(tables.effects(run))
  assert made.tables[0].more.endswith('SHA-256 of the template of prompts: '
                                      f'{"b" * 12}.')
  beyond = reported('babilong', rows, samples=20, window=140, **hashes)
  assert beyond.answer == [
      *made.answer, 'From 128 tokens on, prompts with BOS and answers of up to 20 '
      'tokens exceed the window, 140 tokens.']
  changed = reported('babilong', rows, {
      'rope.kind': 'yarn', 'rope.factor': 4.0, 'dtype': 'bfloat16', 'window': 512},
                     samples=20, window=512, **hashes)
  assert changed.tables[0].note.endswith(
      ' Weights aaaaaaaaaaaa (yarn by 4, bfloat16, window 512 tokens).')
  assert [r['score_64'] for r in made.tables[0].records] == [25, 100, 62.5]
  assert made.missing == 'The run is not finished: 3 of 20 answers are missing.'
  assert made.title == (
      'Does this checkpoint find facts in a long text, and reason with them?')
  assert made.tables[0].note.endswith(
      ' Dialect: strict. Weights aaaaaaaaaaaa.')
  assert 'A length is that of a prompt' in made.tables[0].more
  made = reported('babilong', rows, {'length_of': 'context'}, samples=20, window=512,
                  **hashes)
  assert 'A length is that of a context' in made.tables[0].more
  # What was left out is named, and in the tables that lack it. It may have been run
  # before a sample was added that does not fit.
  made = reported('babilong', rows, samples=13, window=512, **hashes,
                  not_run=['qa1 at 64 tokens'])
  assert made.missing == 'Not run, as not all prompts could be made: qa1 at 64 tokens.'
  [of_qa1] = [r for r in made.tables[0].records if r['task'] == 'qa1']
  assert np.isnan(of_qa1['score_64']) and of_qa1['score_128'] >= 0
  made = reported('babilong', rows, samples=20, window=512, **hashes,
                  not_run=['qa1 at 32 tokens', 'qa3 at 64 tokens'])
  words = ('Not run, as not all prompts could be made: qa1 at 32 tokens, qa3 at 64 '
           'tokens.')
  assert made.missing == (
      f'The run is not finished: 3 of 20 answers are missing. {words}')
  assert [table.name for table in made.tables if words in table.more] == [
      'scores', 'effective_length', 'depth', 'dialects']
  made = reported('babilong', rows, samples=17, predictions_sha256='c' * 64,
                  bad_lines=2)
  assert made.missing == 'Lines that could not be used: 2, named in log.txt.'
  assert made.tables[0].note.endswith(
      ' Predictions cccccccccccc, made elsewhere. Lines that could not be used: 2.')
  made = reported('longbench', longbench_run().rows, samples=12, window=600, **hashes)
  run = longbench_run()._replace(dialect='strict', window=600)
  assert made.answer == answer.longbench_answer(
      longbench_tables.means(run).records, 'strict', 600)
  assert made.answer[0].startswith(
      'Mean score of LongBench-E with a window of 600 tokens: 5 % over tasks (4)')
  made = reported('longbench', longbench_run().rows, samples=12, window=600, **hashes,
                  not_run=['gov_report'])
  words = 'Not run, as not all prompts could be made: gov_report.'
  assert made.missing == words
  assert [table.name for table in made.tables if words in table.more] == [
      'means', 'scores', 'dialects']
  made = reported('passkey', made_rows('passkey', {
      ('passkey', 64, 0): [(1, 1, 1, 0)] * 3}), samples=3, window=0, **hashes)
  assert made.title == 'From how far back does this checkpoint find a pass key?'
  # Of as many digits as config.digits says.
  assert made.about == ('A number stands somewhere in filler, and is asked for at the '
                        'end. Source: arXiv 2305.16300.')
