"""What the command of `experiments.long_context` takes, and what it refuses."""

import numpy as np
import pytest

from configs import long_context as config_file
from experiments.long_context import run
from experiments.long_context.check import check
from tests.llamas import llama, ROPES, variables_of
from tests.long_context_cases import (
    config_of,
    flags_of,
    save_bytes_model,
    write_longbench,
)
from vvlen.models.llama import save_checkpoint


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  return save_bytes_model(tmp_path_factory.mktemp('checkpoint'))


@pytest.fixture
def data(tmp_path):
  return write_longbench(tmp_path / 'data')


def _no_tokenizer(folder, checkpoint, data):
  model = llama(vocab_size=512, rope=ROPES['default'])
  save_checkpoint(folder / 'other', model, variables_of(model))


def _nan(folder, checkpoint, data):
  model = llama(vocab_size=264, rope=ROPES['default'])
  variables = variables_of(model)
  variables['params']['final_norm']['scale'] *= np.nan
  save_checkpoint(folder / 'other', model, variables)


def _bad_lines(folder, checkpoint, data):
  (folder / 'bad').mkdir()
  (folder / 'bad/qasper_e.jsonl').write_text('{}\n')
  (folder / 'bad/qasper.jsonl').write_text('{}\n')
  (folder / 'bad/qa1_4k.csv').write_text('target,output,question\nattic,x,y\n')
  (folder / 'ruler/64/pred').mkdir(parents=True)
  (folder / 'ruler/64/pred/vt.jsonl').write_text('{}\n')


def _empty(folder, checkpoint, data):
  (folder / 'empty').mkdir()
  (folder / 'text').write_text(' \n')


@pytest.mark.parametrize('suite, make, arguments, words', [
    ('passkey', None, ['--checkpoint='], '--checkpoint is missing'),
    ('passkey', None, ['--checkpoint=/nowhere'], '/nowhere is not a checkpoint'),
    ('passkey', _no_tokenizer, ['--checkpoint={}/other'], 'has no tokenizer.json, and'),
    ('passkey', _nan, ['--checkpoint={}/other'],
     'other: weights are not finite: final_norm/scale'),
    ('passkey', None, ['--config.lengths=(20, 21)'],
     'passkey at 20 tokens, sample 0: 20 tokens are too few: facts and what'),
    ('passkey', None, ['--config.beyond_window=False'], 'beyond the window of 70'),
    ('passkey', None, ['--config.lengths=(0,)'], 'config.lengths must be whole'),
    ('passkey', None, ['--config.lengths=()', '--config.multiples=()'],
     'config.lengths and config.multiples are both (): name lengths'),
    ('passkey', None, ['--config.depths=(1.5,)'], 'config.depths must be one or more'),
    ('passkey', None, ['--config.tasks=("qa1",)'], 'config has no field'),
    ('passkey', None, ['--dialect=loose'], 'config.dialect must be one of official'),
    ('passkey', None, ['--text=/nowhere'], '/nowhere: no such file or folder'),
    ('passkey', _empty, ['--text={}/text'], 'text has no text'),
    ('passkey', None, ['--nonsense'], 'nonsense'),
    ('babilong', None, ['--config.length_of=answer'],
     'config.length_of must be one of prompt, context'),
    ('babilong', None, ['--config.tasks=("qa6",)'], 'config.tasks must be one or more'),
    ('babilong', None, ['--config.lengths=(64,)'], 'qa1 at 64 tokens, sample 0: 64'),
    ('babilong', None, ['--config.lengths=(64,)'],
     '. Choose longer --config.lengths, a smaller --config.most_facts or, '),
    ('babilong', None, ['--babi=/nowhere'], '/nowhere: no such folder'),
    ('babilong', _empty, ['--babi={}/empty'], 'must have one file qa1_…_test.txt: 0'),
    ('ruler', None, ['--config.num_keys=0'], 'config.num_keys must be a whole number'),
    ('ruler', None, ['--config.wording=published'], 'tokens are too few'),
    ('babilong', None, ['--predictions=x'], 'scored without a --checkpoint'),
    ('babilong', None, ['--checkpoint=', '--predictions=/nowhere'],
     '/nowhere: no such folder'),
    ('babilong', _empty, ['--checkpoint=', '--predictions={}/empty'],
     'empty has no file TASK.csv'),
    ('babilong', _bad_lines, ['--checkpoint=', '--predictions={}/bad'],
     'no prediction that can be used. Not used: '),
    ('ruler', None, ['--checkpoint=', '--predictions=/nowhere'],
     '/nowhere: no such folder'),
    ('ruler', _empty, ['--checkpoint=', '--predictions={}/empty'],
     'empty has no folder LENGTH/pred, such as 4096/pred'),
    ('ruler', _bad_lines, ['--checkpoint=', '--predictions={}/ruler'],
     'no prediction that can be used. Not used: '),
    ('longbench', None, [], '--data, the folder of files TASK_e.jsonl, is missing'),
    ('longbench', None, ['--data=/nowhere'], '/nowhere: no such folder'),
    ('longbench', _empty, ['--data={}/empty'], 'empty has no file TASK_e.jsonl'),
    ('longbench', _bad_lines, ['--data={}/bad'], 'no sample that can be used. Not us'),
    ('longbench', None, ['--data={}/data', '--config.tasks=("samsum",)'],
     'samsum_e.jsonl: no such file'),
    ('longbench', None, ['--data={}/data', '--config.window=400'],
     'a window of 400 tokens has no room for prompts of qasper: 500 are left free.'),
    ('longbench', None, ['--data={}/data', '--predictions={}/data'],
     'either --data or --predictions, not both'),
    ('longbench', None, ['--predictions={}/data'], 'scored without a --checkpoint'),
    ('longbench', _empty, ['--checkpoint=', '--predictions={}/empty'],
     'empty has no file TASK.jsonl'),
    ('longbench', _bad_lines, ['--checkpoint=', '--predictions={}/bad'],
     'no prediction that can be used. Not used:'),
    ('other', None, [], "variant must be one of passkey, babilong, longbench, ruler"),
])
def test_bad_input_is_one_line_and_exit_code_2(
    run_here, tmp_path, checkpoint, data, suite, make, arguments, words):
  if make is not None:
    make(tmp_path, checkpoint, data)
  given = [x.format(*[tmp_path] * 2) for x in arguments]
  usual = [x for x in flags_of(suite, checkpoint, tmp_path / 'run')
           if x.partition('=')[0] not in {x.partition('=')[0] for x in given}]
  done = run_here('long_context', *usual, *given)
  assert done.returncode == 2, done.stderr
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  assert words in done.stderr
  assert not (tmp_path / 'run').exists()


def test_arguments_may_be_short():
  full = run.full_arguments
  assert full(['--suite=ruler', '--checkpoint=a', '-text', 'b', '--workdir=c']) == [
      '--config=configs/long_context.py:ruler', '--config.checkpoint=a',
      '--config.text', 'b', '--workdir=c']
  assert full(['--workdir=c', '--suite', 'passkey', '--dialect=strict']) == [
      '--config=configs/long_context.py:passkey', '--workdir=c',
      '--config.dialect=strict']
  assert full(['--config=x:smoke', '--data=y', '--suite=z']) == [
      '--config=x:smoke', '--config.data=y', '--suite=z']
  assert full(['--checkpoints=a']) == ['--checkpoints=a']
  with pytest.raises(ValueError, match='--suite is missing, one of passkey, bab'):
    full(['--checkpoint=a', '--workdir=c'])


@pytest.mark.parametrize('variant', [
    f'{suite}{size}' for suite in config_file.SUITES for size in ('', '_smoke')])
def test_configurations_are_checked_field_by_field(variant):
  fields = {'data': 'x'} if 'longbench' in variant else {}
  check(config_of(variant, **fields))
