"""Rows, curves and the claim on a folder."""

import json
import lzma
import zlib

import numpy as np
import pytest

from tests.llamas import DEEP
from vvlen.reporting import results, run_folder
from vvlen.reporting.curves import Curves, read_curves
from vvlen.reporting.results import Row

_ROWS = [
    Row('retrieval', 'none', 0, 16, 'accuracy', 0.1 + 0.2),
    Row('retrieval', 'layer_norm+fitted', 12, None, 'training_loss', float('nan')),
    Row('retrieval', 'none', 1, 2**20, 'loss', 1e-30),
]


def test_rows_come_back_to_the_last_bit(tmp_path):
  results.write_rows(tmp_path / 'results.csv', _ROWS)
  assert repr(results.read_rows(tmp_path / 'results.csv')) == repr(_ROWS)
  assert [p.name for p in tmp_path.iterdir()] == ['results.csv']
  assert results.read_rows(tmp_path / 'absent.csv') == []


def test_compressed_rows_are_read_in_their_place(tmp_path):
  path, other = tmp_path / 'results.csv', tmp_path / 'results.csv.xz'
  rows = [_ROWS[0]._replace(seed=seed) for seed in range(1000)]
  results.write_rows(path, rows)
  plain = path.read_bytes()
  assert results.compress(path) == (len(plain), other.stat().st_size)
  assert [p.name for p in tmp_path.iterdir()] == ['results.csv.xz']
  assert lzma.decompress(other.read_bytes()) == plain
  assert len(plain) > 10 * other.stat().st_size
  assert results.read_rows(path) == rows
  assert results.which_of_two(path) == []
  first = other.read_bytes()
  path.write_bytes(plain)
  results.compress(path)
  assert other.read_bytes() == first


def test_of_two_files_the_plain_one_is_used_and_the_other_deleted(tmp_path):
  path, other = tmp_path / 'results.csv', tmp_path / 'results.csv.xz'
  results.write_rows(path, _ROWS)
  results.compress(path)
  # As a run leaves it that was killed before it deleted the compressed file.
  kept = other.read_bytes()
  results.write_rows(path, _ROWS[:1])
  assert not other.exists()
  other.write_bytes(kept)
  assert results.read_rows(path) == _ROWS[:1]
  assert results.which_of_two(path) == [
      f'{path} is used, not results.csv.xz beside it.']
  results.write_rows(path, _ROWS[:1])
  assert not other.exists()


@pytest.mark.parametrize('damage', [
    lambda x: x[:-9], lambda x: b'rows' + x, lambda x: x[:40] + b'?' + x[41:],
    lambda x: b''])
def test_damaged_compressed_rows_are_named(tmp_path, damage):
  results.write_rows(tmp_path / 'results.csv', _ROWS)
  results.compress(tmp_path / 'results.csv')
  path = tmp_path / 'results.csv.xz'
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(ValueError, match=r'results\.csv\.xz is damaged'):
    results.read_rows(tmp_path / 'results.csv')


def test_a_file_has_the_columns_that_its_rows_need(tmp_path):
  path = tmp_path / 'results.csv'
  results.write_rows(path, _ROWS)
  plain = path.read_text()
  assert plain.startswith('experiment,arm,seed,length,metric,value\n')
  rows = [_ROWS[0]._replace(step=10), _ROWS[0]._replace(step=20, head=0), *_ROWS[:1]]
  results.write_rows(path, rows)
  assert path.read_text() == (
      'experiment,arm,seed,length,metric,value,step,head\n'
      f'retrieval,none,0,16,accuracy,{0.1 + 0.2},10,\n'
      f'retrieval,none,0,16,accuracy,{0.1 + 0.2},20,0\n'
      f'retrieval,none,0,16,accuracy,{0.1 + 0.2},,\n')
  assert results.read_rows(path) == rows
  assert len({row.key for row in rows}) == 3
  assert rows[0].key == rows[0]._replace(value=2.0).key


def test_numbers_of_numpy_are_plain_numbers_in_a_file(tmp_path):
  path = tmp_path / 'made' / 'on the way' / 'results.csv'
  results.write_rows(path, [_ROWS[0]._replace(value=np.float32(0.25))])
  assert path.read_bytes().splitlines(keepends=True)[1:] == [
      b'retrieval,none,0,16,accuracy,0.25\n'
  ]


def test_index_groups_by_arm_metric_and_length():
  assert results.index([_ROWS[0], _ROWS[0]._replace(seed=3, value=1.0)]) == {
      ('none', 'accuracy', 16): {0: 0.1 + 0.2, 3: 1.0}
  }


@pytest.mark.parametrize('text, words', [
    ('a,b\n', 'does not begin with experiment,arm'),
    ('experiment,arm,seed,length,metric,value\nretrieval,none,0,16,acc\n', 'line 2'),
    ('experiment,arm,seed,length,metric,value\nr,none,0,16,accuracy,0.12', 'cut short'),
    ('experiment,arm,seed,length,metric,value\nr,none,0,16,accuracy,high\n', 'line 2'),
    ('experiment,arm,seed,length,metric,value\n' + 2 * 'r,none,0,16,accuracy,0.5\n',
     'line 3 is there twice'),
    ('experiment,arm,seed,length,metric,value\nr,none,0,16,accuracy,0.5\n'
     'r,none,0,16,accuracy,0.25\n', 'line 3 is there twice'),
    ('\udcff', 'results.csv is not text'),
    ('experiment,arm,seed,length,metric,value,step\nr,none,0,16,accuracy,0.5\n',
     'line 2'),
    ('experiment,arm,seed,length,metric,value,step\nr,none,0,16,accuracy,0.5,x\n',
     'line 2'),
    ('experiment,arm,seed,length,metric,value,head,step\n', 'does not begin with'),
    ('experiment,arm,seed,length,metric,value,colour\n', 'does not begin with'),
    ('', 'is cut short'),
    (f'{"x" * 200_000}\n', 'is damaged: field larger than field limit'),
])
def test_damaged_rows_are_named(tmp_path, text, words):
  (tmp_path / 'results.csv').write_bytes(text.encode(errors='surrogateescape'))
  with pytest.raises(ValueError, match=words):
    results.read_rows(tmp_path / 'results.csv')


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
  path = tmp_path / 'results.csv'
  results.write_text(path, 'before')

  def disk_full(self, content):
    with open(self, 'wb') as f:
      f.write(content[:3])
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(type(results.epath.Path(path)), 'write_bytes', disk_full)
  with pytest.raises(OSError, match='No space'):
    results.write_text(path, 'after')
  assert path.read_text() == 'before'
  assert [p.name for p in tmp_path.iterdir()] == ['results.csv']


def test_claim_refuses_another_run_and_names_the_fields(tmp_path):
  config = {'num_seeds': 2, 'train': {'num_steps': 10, 'batch_size': 4}}
  run_folder.claim(tmp_path, config, {'commit': 'a'}, ['num_seeds'])
  before = (tmp_path / 'config.json').read_text()
  changed = {'num_seeds': 2, 'train': {'num_steps': 20, 'batch_size': 4}}
  with pytest.raises(ValueError, match=r'\(train.num_steps: 10 there, 20 here\)'):
    run_folder.claim(tmp_path, changed, {}, ['num_seeds'])
  with pytest.raises(ValueError) as smaller:
    run_folder.claim(tmp_path, {**config, 'num_seeds': 1}, {}, ['num_seeds'])
  assert str(smaller.value) == (
      f'{tmp_path} holds a larger run (num_seeds: 2 there, 1 here (may only grow)). '
      'Choose another --workdir, or resume it with --config.num_seeds=2.')
  with pytest.raises(ValueError, match=r'another run .*Choose another --workdir\.$'):
    run_folder.claim(tmp_path, {**changed, 'num_seeds': 1}, {}, ['num_seeds'])
  assert (tmp_path / 'config.json').read_text() == before


@pytest.mark.parametrize('count, words', [
    (6, 'e: 1 there, 2 here; and 1 more field)'),
    (7, 'e: 1 there, 2 here; and 2 more fields)'),
])
def test_claim_names_the_first_fields_that_differ(tmp_path, count, words):
  fields = 'abcdefg'[:count]
  run_folder.claim(tmp_path, dict.fromkeys(fields, 1), {})
  with pytest.raises(ValueError) as refused:
    run_folder.claim(tmp_path, dict.fromkeys(fields, 2), {})
  assert words in str(refused.value)


@pytest.mark.parametrize('changed, words', [
    ({'a': {'b': {'width': 3}}, 'c': {'width': 2}}, 'a.b.width: 1 there, 3 here'),
    ({'a': {'b': {'width': 1}}, 'c': {'width': 3}}, 'c.width: 2 there, 3 here'),
    ({'a': {'b': {'width': 1}}, 'c': {}}, 'c.width: 2 there, None here'),
    ({'a': {'b': {'width': 1}}, 'c': {'width': 2, 'fold': True}},
     'c.fold: None there, True here'),
])
def test_claim_compares_every_field_of_either_run(tmp_path, changed, words):
  run_folder.claim(tmp_path, {'a': {'b': {'width': 1}}, 'c': {'width': 2}}, {})
  with pytest.raises(ValueError, match=rf'\({words}\)'):
    run_folder.claim(tmp_path, changed, {})


def test_a_claim_that_was_cut_off_can_be_made_again(tmp_path):
  (tmp_path / '.config.json.tmp').write_text('{"conf')
  run_folder.claim(tmp_path, {'width': 1}, {})
  assert [p.name for p in tmp_path.iterdir()] == ['config.json']


def test_what_would_be_claimed_is_not_written(tmp_path):
  before, stored = run_folder.claimed(tmp_path / 'run', {'width': 1}, {'commit': 'a'})
  assert before is None
  assert stored == {'config': {'width': 1}, 'sessions': [{'commit': 'a'}]}
  assert not (tmp_path / 'run').exists()
  run_folder.claim(tmp_path / 'run', {'width': 1}, {'commit': 'a'})
  with pytest.raises(ValueError, match='width: 1 there, 2 here'):
    run_folder.claimed(tmp_path / 'run', {'width': 2}, {})


def test_claim_lets_counts_grow_and_keeps_all_sessions(tmp_path):
  config = {'num_seeds': 2, 'lengths': (1, 2), 'save': 1.0}
  before = run_folder.claim(tmp_path, config, {'commit': 'a'}, ['num_seeds'], ['save'])
  assert before is None
  grown = {'num_seeds': 3, 'lengths': (1, 2), 'save': 2.0}
  before = run_folder.claim(tmp_path, grown, {'commit': 'b'}, ['num_seeds'], ['save'])
  assert before == {'num_seeds': 2, 'lengths': [1, 2], 'save': 1.0}
  stored = json.loads((tmp_path / 'config.json').read_text())
  assert stored['config'] == {'num_seeds': 3, 'lengths': [1, 2], 'save': 2.0}
  assert stored['sessions'] == [{'commit': 'a'}, {'commit': 'b'}]
  run_folder.finish(tmp_path, finished='now')
  stored = json.loads((tmp_path / 'config.json').read_text())
  assert stored['sessions'] == [{'commit': 'a'}, {'commit': 'b', 'finished': 'now'}]


def test_another_machine_at_a_later_start_is_told(tmp_path):
  here = {'started': 1, 'commit': 'a', 'python': '3.11.9', 'device': '2 x cpu',
          'versions': {'jax': '0.10.1', 'numpy': '2.0'}}
  run_folder.claim(tmp_path, {'seed': 0}, here)
  assert run_folder.changes(tmp_path) == []
  run_folder.claim(tmp_path, {'seed': 0}, {**here, 'started': 2})
  assert run_folder.changes(tmp_path) == []
  there = {**here, 'commit': 'b', 'device': '8 x TPU v5e',
           'versions': {'jax': '0.10.2', 'numpy': '2.0', 'orbax': '1'}}
  run_folder.claim(tmp_path, {'seed': 0}, there)
  ends = 'at the last start: new results may differ in their last digits.'
  assert run_folder.changes(tmp_path) == [
      f'commit is b, and was a {ends}',
      f'device is 8 x TPU v5e, and was 2 x cpu {ends}',
      f'jax is 0.10.2, and was 0.10.1 {ends}']
  run_folder.claim(tmp_path, {'seed': 0}, there)  # compared with the last start alone
  assert run_folder.changes(tmp_path) == []


def test_claim_takes_a_folder_with_notes_alone(tmp_path):
  (tmp_path / 'README.md').write_text('Hypotheses, before the first run.')
  assert run_folder.claim(tmp_path, {'a': 1}, {}) is None
  assert run_folder.claim(tmp_path, {'a': 1}, {}) == {'a': 1}


def test_claim_refuses_a_folder_with_something_else(tmp_path):
  (tmp_path / 'thesis.tex').write_text('…')
  with pytest.raises(ValueError, match='not empty'):
    run_folder.claim(tmp_path, {}, {})
  assert [p.name for p in tmp_path.iterdir()] == ['thesis.tex']


@pytest.mark.parametrize('text', [
    '{"config": ', '{}', '[]', '{"config": null, "sessions": []}',
    '{"config": [], "sessions": []}', '{"config": {}, "sessions": 1}',
])
def test_claim_refuses_a_damaged_config(tmp_path, text):
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(ValueError, match=r'config.json is not the config.json of a run'):
    run_folder.claim(tmp_path, {}, {})


def test_a_count_that_is_no_number_is_another_run(tmp_path):
  (tmp_path / 'config.json').write_text(
      '{"config": {"num_seeds": "x"}, "sessions": []}')
  with pytest.raises(ValueError, match=r'another run .num_seeds: x there, 2 here'):
    run_folder.claim(tmp_path, {'num_seeds': 2}, {}, may_grow=['num_seeds'])


def test_steps_made_again_replace_their_lines(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  curves = Curves(path)
  for step in (10, 20, 30):
    curves.add('none', step, 0, {'loss': np.array([step, np.nan, np.inf])})
  curves.add('none', 10, 8, {'loss': np.array([0.5])})
  curves.add('layer_norm', 30, 0, {'loss': np.array([0.5])})
  # Resumed after step 10.
  resumed = Curves(path)
  resumed.add('none', 20, 0, {'loss': np.array([7.0, 8.0, 9.0])})
  lines = read_curves(path)
  assert [(x['arm'], x['first_seed'], x['step']) for x in lines] == [
      ('none', 0, 10), ('none', 8, 10), ('layer_norm', 0, 30), ('none', 0, 20)
  ]
  assert lines[0]['loss'] == [10.0, None, None]
  assert lines[3]['loss'] == [7.0, 8.0, 9.0]


def test_lines_are_appended_and_a_cut_one_is_made_again(tmp_path, monkeypatch):
  path = tmp_path / 'metrics.jsonl'
  curves = Curves(path)
  curves.add('none', 10, 0, {'loss': np.array([1.0])})
  monkeypatch.setattr('vvlen.reporting.curves.write_text', None)  # not again
  curves.add('none', 20, 0, {'loss': np.array([2.0])})
  monkeypatch.undo()
  whole = path.read_text()
  path.write_text(whole[:-5])  # killed in the middle of a line
  assert [line['step'] for line in read_curves(path)] == [10]
  resumed = Curves(path)
  resumed.add('none', 20, 0, {'loss': np.array([2.0])})
  resumed.add('none', 30, 0, {'loss': np.array([3.0])})
  assert path.read_text().startswith(whole)
  assert [line['step'] for line in read_curves(path)] == [10, 20, 30]


def test_where_nothing_can_be_appended_lines_wait_for_flush(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  waiting = Curves(path)
  waiting._appends = False  # as of a bucket
  for step in (10, 20):
    waiting.add('none', step, 0, {'loss': np.array([1.0])})
  assert not path.exists()
  waiting.flush()
  assert [line['step'] for line in read_curves(path)] == [10, 20]


def test_late_mean_is_over_the_last_tenth(tmp_path):
  curves = Curves(tmp_path / 'metrics.jsonl')
  for step in range(10, 201, 10):
    curves.add('none', step, 0, {'loss': np.array([step, 1.0])})
  # Other blocks and arms are others.
  curves.add('none', 200, 2, {'loss': np.array([7.0, 8.0])})
  curves.add('layer_norm', 200, 0, {'loss': np.array([7.0, 8.0])})
  np.testing.assert_array_equal(curves.late_mean('none', 0, 'loss'), [195.0, 1.0])
  with pytest.raises(ValueError, match='no lines of standardize, seeds from 0'):
    curves.late_mean('standardize', 0, 'loss')


def test_a_loss_that_was_not_finite_late_has_no_late_mean(tmp_path):
  curves = Curves(tmp_path / 'metrics.jsonl')
  for step, loss in ((191, np.inf), (200, 1.0)):
    curves.add('none', step, 0, {'loss': np.array([loss, 1.0])})
  np.testing.assert_array_equal(curves.late_mean('none', 0, 'loss'), [np.nan, 1.0])


_LINE = '{"arm": "none", "step": 1, "first_seed": 0, "loss": [0.5, null]}\n'


@pytest.mark.parametrize('second', [
    '{"arm": ', '{}', '[]', '1', _LINE.replace('1', '"a"'),
    _LINE.replace('[0.5, null]', '"low"'), _LINE.replace('[0.5, null]', '[0.5]'),
    _LINE.replace('loss', 'accuracy').replace('[0.5, null]', '0.5'),
])
def test_damaged_curves_are_named(tmp_path, second):
  path = tmp_path / 'metrics.jsonl'
  path.write_text(_LINE)
  assert len(read_curves(path)) == 1
  path.write_text(_LINE + second.rstrip('\n') + '\n')
  with pytest.raises(ValueError, match='jsonl line 2 is not a line of learning curves'):
    Curves(path)


@pytest.mark.parametrize('place, value', [
    (0, 0), (30, 255), (150, 255), (-1, None), (-30, 255),
])
def test_damaged_arrays_are_named(tmp_path, place, value):
  path = tmp_path / 'a.npz'
  np.savez_compressed(path, x=np.arange(1000.0))
  assert results.read_arrays(path)['x'].tolist() == list(range(1000))
  content = bytearray(path.read_bytes())
  if value is None:
    del content[place:]
  else:
    content[place] ^= 255
  path.write_bytes(content)
  with pytest.raises(ValueError, match=r'a\.npz is not a file of arrays$'):
    results.read_arrays(path)


def test_arrays_whose_compressed_part_is_damaged_are_named(tmp_path):
  path = tmp_path / 'a.npz'
  np.savez_compressed(path, x=np.random.default_rng(0).normal(size=1000))
  content = bytearray(path.read_bytes())
  content[60:90] = bytes(30)
  path.write_bytes(content)
  with np.load(path) as arrays, pytest.raises(zlib.error):
    _ = arrays['x']  # no ValueError
  with pytest.raises(ValueError, match=r'a\.npz is not a file of arrays$'):
    results.read_arrays(path)


@pytest.mark.parametrize('text', [
    DEEP, '[]', '{}', 'null', '{"config": {"num_seeds": 1e999}}',
    '{"config": {"num_seeds": []}}',
])
def test_a_damaged_config_json_is_named(tmp_path, text):
  path = tmp_path / 'config.json'
  path.write_text(text)
  words = r'config\.json is not the config\.json of a grid \(.*Error'
  with pytest.raises(ValueError, match=words), (
      run_folder.reading(path, of='a grid')) as stored:
    int(stored['config']['num_seeds'])


@pytest.mark.parametrize('line', [
    DEEP, '[]', 'null', '{"arm": "none", "step": 1e999, "first_seed": 0, "loss": [1]}',
])
def test_curves_of_other_things_are_named(tmp_path, line):
  path = tmp_path / 'metrics.jsonl'
  path.write_text(line + '\n')
  with pytest.raises(ValueError, match=r'metrics\.jsonl line 1 is not a line of learn'):
    read_curves(path)


def test_samples_come_back(tmp_path):
  arrays = {'weights_16': np.arange(6.0).reshape(2, 3),
            'components_16': np.ones((4, 2))}
  np.savez(tmp_path / 'none.npz', **arrays)
  np.testing.assert_array_equal(
      results.read_samples(tmp_path)['none']['weights_16'], arrays['weights_16']
  )
  for damaged in (b'PK', b''):
    (tmp_path / 'none.npz').write_bytes(damaged)
    with pytest.raises(ValueError, match='not a file of arrays'):
      results.read_samples(tmp_path)
  np.savez(tmp_path / 'none.npz', other=np.ones(3))
  with pytest.raises(ValueError, match='npz is not a file of arrays'):
    results.read_samples(tmp_path)


@pytest.mark.parametrize('change', [
    dict(experiment='lookup'), dict(arm='batch_norm'), dict(arm='batch_norm+adaptive'),
])
def test_rows_of_another_kind_of_run_are_named(tmp_path, change):
  row = Row('retrieval', 'none+adaptive', 0, 16, 'accuracy', 0.5)
  results.write_rows(tmp_path / 'results.csv', [row])
  read = lambda: results.read_run(tmp_path, 'retrieval|toy', {'none', 'layer_norm'})
  assert read() == [row]
  results.write_rows(tmp_path / 'results.csv', [row, row._replace(**change)])
  with pytest.raises(ValueError, match='a row of another kind of run'):
    read()


def test_a_former_name_of_a_metric_is_read_as_the_present_one(tmp_path):
  rows = [results.Row('text', 'alpha_0', 0, 64, f'excess{end}', 0.25)
          for end in ('', '_low', '_high')]
  results.write_rows(tmp_path / 'results.csv', rows)
  assert [row.metric for row in results.read_rows(tmp_path / 'results.csv')] == [
      'symmetric_kl', 'symmetric_kl_low', 'symmetric_kl_high']
  (tmp_path / 'evaluations.jsonl').write_text(
      '{"arm": "a", "step": 1, "first_seed": 0, "excess_64": [0.5], "loss": [1.0]}\n')
  [line] = read_curves(tmp_path / 'evaluations.jsonl')
  assert line['symmetric_kl_64'] == [0.5] and line['loss'] == [1.0]
