"""A small model, files and made-up rows for tests of `experiments.long_context`."""

import json

from configs import long_context as config_file
from experiments.harness import locks
from experiments.long_context import run
from experiments.long_context.tables import Run
from tests.llamas import llama, ROPES, variables_of
from vvlen.models.llama import save_checkpoint
from vvlen.reporting.results import Row
from vvlen.tasks.tokenizers import byte_tokenizer

BYTES = byte_tokenizer()
WINDOW = 70


def save_bytes_model(folder):
  """Saves a tiny model of bytes, with random weights and 70 positions."""
  model = llama(vocab_size=264, rope=ROPES['default'], max_length=WINDOW)
  save_checkpoint(folder, model, variables_of(model))
  return folder


def config_of(variant, **fields):
  config = config_file.get_config(variant)
  config.update_from_flattened_dict({'checkpoint': 'x', **fields})
  return config


def read_lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def files_of(folder):
  """Returns what a run must leave alike: predictions, results, tables and figures."""
  kinds = ('predictions/*.jsonl', 'results.csv', 'tables/*', 'figures/*.png')
  return {path.relative_to(folder): path.read_bytes()
          for kind in kinds for path in folder.glob(kind)}


def flags_of(suite, checkpoint, folder, *more):
  return (f'--suite={suite}_smoke', f'--checkpoint={checkpoint}', f'--workdir={folder}',
          *more)


def said_by_suite(capsys, variant, folder, **fields):
  """Runs a suite in this process, and returns what it prints."""
  try:
    run.main(config_of(variant, **fields), str(folder))
  finally:
    locks.release()
  return capsys.readouterr().out


def inputs_of(folder):
  return json.loads((folder / 'config.json').read_text())['config']['inputs']


def longbench_sample(task, number, **fields):
  return {'input': f'q{number}?', 'context': 'all about it. ' * 40, 'answers': ['it'],
          'length': 3999 + number, 'dataset': task, 'language': 'en',
          'all_classes': None, '_id': f'{task}{number}', **fields}


def write_longbench(folder):
  """Writes files of three tasks with good and bad lines, and returns the folder."""
  folder.mkdir()

  def write(task, lines):
    (folder / f'{task}_e.jsonl').write_text(''.join(
        (line if isinstance(line, str) else json.dumps(line)) + '\n' for line in lines))

  write('qasper', [longbench_sample('qasper', 0), 'no json',
                   longbench_sample('qasper', 1, context='x')])
  write('trec', [longbench_sample('trec', 0, all_classes=['it', 'that', 'b']),
                 longbench_sample('trec', 1, answers='it')])
  write('lcc', ['[]'])
  return folder


def made_rows(suite, values):
  """Rows of {(task, length, depth): [(official, lm_eval, strict, chance), …]}."""
  return [
      Row(suite, task, i, length, metric, value, depth=depth)
      for (task, length, depth), own in values.items()
      for i, sample in enumerate(own)
      for metric, value in zip(
          ('score_official', 'score_lm_eval', 'score_strict', 'chance'), sample,
          strict=True)]


def run_of(suite, values, dialect='official'):
  """Returns a run with such rows, 200 resamples and a window of 512 tokens."""
  return Run(suite, made_rows(suite, values), dialect, 200, 0, 512, 'Weights w.')


QA = {
    ('qa1', 64, 0): [
        (1, 1, 0, 0.25), (1, 1, 1, 0.25), (1, 1, 0, 0.25), (0, 1, 0, 0.25)],
    ('qa1', 128, 0): [(1, 1, 0, 0.2), (1, 1, 0, 0.2), (1, 1, 1, 0.2)],
    ('qa1', 256, 0): [(1, 0, 0, 0.2), (0, 0, 0, 0.2)],
    ('qa2', 64, 25): [(1, 0, 1, 0.5), (0, 0, 1, 0.5)],
    ('qa2', 128, 25): [(1, 0, 0, 0.5), (0, 1, 0, 0.5), (0, 0, 0, 0.5), (0, 1, 0, 0.5)],
    ('qa2', 256, 75): [(0, 0, 0, 0.5), (0, 0, 0, 0.5)],
}


def field_of(table, row, name):
  return table.records[row][name]


LONGBENCH = {
    ('qasper', 100, None): [(0.5, 0.25, 0, 0), (1, 0.75, 1, 0)],
    ('hotpotqa', 4000, None): [(0.2, 0.4, 0, 0), (0.4, 0.4, 0, 0)],
    ('trec', 3999, None): [(1, 1, 0, 0.25), (0, 1, 0, 0.25)],
    ('lcc', 8000, None): [(0.1, 0.3, 0, 0)] * 3,
}


def longbench_run():
  """Returns a run of LONGBENCH, with a second bucket of qasper."""
  rows = made_rows('longbench', LONGBENCH)
  # The second bucket of qasper: samples 2 to 4.
  rows += [row._replace(seed=row.seed + 2) for row in made_rows('longbench', {
      ('qasper', 9000, None): [(0, 0, 0, 0)] * 3})]
  return run_of('longbench', {})._replace(rows=rows)
