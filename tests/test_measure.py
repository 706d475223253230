"""`experiments.measure`: its numbers are those of the functions; what it refuses."""

import collections
import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from etils import epath
import jax
import numpy as np
import pytest

from configs import measure as config_file
from experiments.measure import attention, measurements, predictions, report, tables
from experiments.measure import figures as measurements_figures
from experiments.measure import run as measure
from experiments.measure import spread as measurements_spread
from experiments.measure.rows import (
  BLOCK,
  key_of,
  measurement_of,
  Part,
  SLIDING,
  spread_part,
  TEMPERED,
)
from tests.conftest import free_port, NEEDS_REFERENCE, ROOT, run_two_processes
from tests.llamas import edit_tensors, llama, ROPES, variables_of
from vvlen.evaluation import attention_by_length, perplexity, temperature_law
from vvlen.evaluation import attention_spread as output_spread
from vvlen.evaluation.misalignment import misalignment
from vvlen.evaluation.probe import probe_layer, probe_layers
from vvlen.models.llama import (
    checkpoint_hash,
    fingerprint,
    load_checkpoint,
    save_checkpoint,
)
from vvlen.reporting import results
from vvlen.tasks.tokenizers import byte_tokenizer

WORDS = 'a model reads what is written and tells what comes next to it of all'.split()


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  """A tiny model of bytes, with random weights."""
  folder = tmp_path_factory.mktemp('checkpoint')
  model = llama(vocab_size=264, rope=ROPES['default'])
  save_checkpoint(folder, model, variables_of(model))
  return folder


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  path = tmp_path_factory.mktemp('text') / 'text.txt'
  words = np.random.default_rng(0).choice(WORDS, 600)
  path.write_text(' '.join(words))
  return path


def _run(workdir, *arguments, config='configs/measure.py:smoke', **options):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.measure',
       *([f'--config={config}'] if config else []), f'--workdir={workdir}', *arguments],
      cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
      **options)


@pytest.fixture(scope='module')
def whole(tmp_path_factory, fast_compilation, checkpoint, text):
  """A whole run of smoke, and what it printed."""
  workdir = tmp_path_factory.mktemp('whole') / 'run'
  done = _run(workdir, f'--checkpoint={checkpoint}', f'--text={text}')
  assert done.returncode == 0, done.stderr
  return workdir, done.stdout


def _values(workdir):
  rows = results.read_rows(workdir / 'results.csv')
  assert {row.seed for row in rows} == {0}
  return {key_of(row): row.value for row in rows}


@pytest.mark.slow
def test_a_run_writes_tables_and_figures(whole):
  workdir, out = whole
  page = (workdir / 'index.md').read_text()
  made = {path.relative_to(workdir).as_posix() for path in workdir.rglob('*.*')}
  for name in ('perplexity', 'misalignment', 'figure_1', 'figure_1_heads', 'recency',
               'entropy', 'tempered'):
    assert {f'tables/{name}.md', f'tables/{name}.csv'} <= made
    assert (workdir / 'tables' / f'{name}.md').read_text() in page
  for name in ('perplexity', 'nll_by_position', 'misalignment', 'figure_1',
               'figure_1_components', 'figure_1_heads', 'logits_by_distance',
               'entropy', 'tempered'):
    assert {f'figures/{name}.png', f'figures/{name}.pdf'} <= made
    assert f'(figures/{name}.png)' in page
  assert 'has no tokenizer.json: the text is read as bytes.' in out
  read = f'{len(_stream(whole)):,} tokens of text: perplexity reads the first '
  assert (f'\n{read}128, other measurements all of it. 19 of 19 measurements '
          'to do.') in out
  stored = json.loads((workdir / 'config.json').read_text())
  assert stored['sessions'][-1]['finished'] and len(stored['sessions']) == 1
  inputs = stored['config']['inputs']
  assert inputs['length'] == 16 and inputs['vocab_size'] == 257
  assert inputs['text_tokens'] == len(_stream(whole))
  assert len(inputs['text_sha256']) == len(inputs['checkpoint_sha256']) == 64


@pytest.mark.slow
def test_what_was_measured_is_in_columns(whole):
  rows = results.read_rows(whole[0] / 'results.csv')
  arms = {(row.experiment, row.arm) for row in rows}
  assert arms == {
      ('perplexity', 'block'), ('perplexity', 'sliding'), ('misalignment', 'text'),
      ('spread', 'random_nope'), ('spread', 'random'), ('spread', 'text'),
      ('spread', 'random_nope_fixed'), ('spread', 'random_fixed'),
      ('spread', 'text_fixed'), ('entropy', 'text'), ('entropy', 'shuffled'),
      ('recency', 'text'), ('recency', 'shuffled'), ('tempered', 'text')}
  at = lambda name, **columns: {getattr(row, name) for row in rows if columns.items()
                                <= row._asdict().items()}
  assert at('step') == {None}
  # A column has values where it applies, and nowhere else.
  applies = {'layer': ('spread', 'entropy', 'recency'), 'piece': ('perplexity',),
             'head': ('spread', 'entropy', 'recency'), 'offset': ('misalignment',),
             'component': ('spread',), 'distance': ('perplexity', 'recency')}
  for experiment, _ in arms:
    for name, where in applies.items():
      assert (at(name, experiment=experiment) != {None}) == (experiment in where)
  for experiment in ('spread', 'entropy', 'recency'):
    assert None not in at('layer', experiment=experiment)
  assert at('layer', experiment='entropy', arm='text', head=3) == {0, 1}
  assert at('layer', arm='text_fixed', metric='slope', head=3) == {0}
  assert at('offset', experiment='misalignment') == {1, 4}
  components = at('component') - {None}
  assert len(components) == 4
  assert {(row.metric, row.head) for row in rows
          if row.component in components} == {('std', None)}
  for arm, metric in itertools.product(('block', 'sliding'), ('nll', 'scored')):
    lengths = at('length', experiment='perplexity', arm=arm, metric=metric, piece=3)
    assert lengths == {8, 16, 32}
  assert at('piece', metric='nll') == {None, 0, 1, 2, 3}
  assert at('piece', metric='nll_after') == at('distance', metric='nll') == {None}
  # Windows of each length, by how many tokens are before one.
  for length, last in ((8, 7), (16, 12), (32, 24)):
    distances = at('distance', metric='nll_after', length=length)
    assert (min(distances), max(distances)) == (1, last)
  assert at('length', metric='logit_at') == {16}
  assert at('distance', metric='logit_at') == {*range(8), 8, 12}


@pytest.mark.slow
def test_each_row_belongs_to_the_measurement_that_makes_it(whole, checkpoint):
  model, variables = load_checkpoint(checkpoint)
  config = config_file.get_config('smoke')
  subject = measurements.Subject(model, _stream(whole), 257, 256, 16)
  planned = [one for section in measure._SECTIONS for one in section(config, subject)]
  assert len({str(one.name) for one in planned}) == len(planned) == 19
  assert {str(one.name) for one in planned} >= {
      'perplexity, sliding, 8 tokens', 'spread, text_fixed, layer 0', 'entropy, text'}
  rows = results.read_rows(whole[0] / 'results.csv')
  assert {measurement_of(row) for row in rows} == {one.name for one in planned}
  listed = json.loads((whole[0] / 'rows.json').read_text())
  assert sorted(count for *_, count in listed) == sorted(
      collections.Counter(map(measurement_of, rows)).values())
  for one in (planned[0], planned[-1]):
    found = one.rows(variables)
    assert {measurement_of(row) for row in found} == {one.name}
    assert {row.key for row in found} == {
        row.key for row in rows if measurement_of(row) == one.name}


def _stream(whole):
  """Tokens of the text as the run had them: BOS and its bytes."""
  config = json.loads((whole[0] / 'config.json').read_text())['config']
  text = pathlib.Path(config['text']).read_text()
  tokenizer = byte_tokenizer()
  return np.concatenate([[tokenizer.begin], tokenizer.encode(text)]).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize('fields', [
    {'norm': 'layer_norm', 'rope': None}, {'norm': 'standardize'},
    {'rope': None, 'alibi': True}], ids=str)
def test_a_norm_after_attention_and_other_positions_are_measured(
    text, tmp_path, fast_compilation, run_here, fields):
  model = llama(vocab_size=264, **fields)
  variables = variables_of(model)
  save_checkpoint(tmp_path / 'model', model, variables)
  done = run_here(
      'measure', '--config=configs/measure.py:smoke', f'--workdir={tmp_path}/run',
      f'--checkpoint={tmp_path}/model', f'--text={text}')
  assert done.returncode == 0, done.stderr
  values, stream = _values(tmp_path / 'run'), _stream([tmp_path / 'run'])
  nll = perplexity.block_nll(
      functools.partial(model.apply, variables), stream[: 4 * 32], 16)
  np.testing.assert_allclose(values[BLOCK, 'nll', 16], nll, rtol=1e-4)
  assert any(part.experiment == 'entropy' for part, *_ in values)
  assert any(part == TEMPERED for part, *_ in values) == (not model.alibi)


@pytest.mark.slow
def test_its_numbers_are_those_of_the_functions(whole, checkpoint):
  values, stream = _values(whole[0]), _stream(whole)
  model, variables = load_checkpoint(checkpoint)
  apply = functools.partial(jax.jit(model.apply), variables)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
  read = stream[: 4 * 32]  # four windows of the longest, 2 L
  for length in (8, 16, 32):
    close(values[BLOCK, 'nll', length], perplexity.block_nll(apply, read, length))
    assert values[SLIDING, 'stride', length] == length // 2
    close(values[SLIDING, 'nll', length],
          perplexity.sliding_nll(apply, read, length, length // 2))
    by_position = perplexity.nll_by_position(apply, read, length)
    assert values[BLOCK, 'scored', length] == by_position.size * len(read) // length
    after = lambda distance, length=length: values[
        BLOCK._replace(distance=distance), 'nll_after', length]
    close(after(3), by_position[2])
    if length > 8:  # 8 to 11 tokens before it, or up to the last
      close(after(8), by_position[7:11].mean())
  streams = measurements.spaced(stream, 16 + 4, 4)
  found = misalignment(apply, streams, 16, 4)
  part = Part('misalignment', 'text', offset=4)
  for name, value in found._asdict().items():
    close(values[part, name, 16], value)
    low, high = (values[part, name + end, 16] for end in ('_low', '_high'))
    assert low <= values[part, name, 16] <= high
  assert (part, 'sce', 8) not in values  # not below half of the length
  # Text with its own last token.
  sequences = measurements.spaced(stream, 16, 12)
  outputs = output_spread.spread_by_length(
      probe_layer(model, variables, 0), sequences, [2, 4, 8, 16])
  slope = output_spread.slope([2, 4, 8, 16], outputs, num_resamples=50)
  arm = spread_part('text', 'as_it_is', 0)
  close([values[arm, f'slope{end}', None] for end in ('', '_low', '_high')], slope)
  close(values[arm, 'std', 8], outputs[:, 2].std(0).mean())
  close(values[arm._replace(component=23), 'std', 8], outputs[:, 2, 23].std())
  # The whole table of what there is.
  for order in ('text', 'shuffled'):
    for layer in (0, 1):
      arm = Part('entropy', order, layer)
      for n in (2, 4, 8, 16, 32):
        heads = [values[arm._replace(head=h), 'entropy', n] for h in range(4)]
        close(values[arm, 'entropy', n], np.mean(heads))
        assert 0 <= values[arm, 'entropy', n] <= np.log(n) + 1e-6
      arm = Part('recency', order, layer)
      heads = [values[arm._replace(head=h), 'recency_probability', 16]
               for h in range(4)]
      close(values[arm, 'recency_probability', 16], np.mean(heads))
  # The temperature of the top key, and how it grows.
  lengths = [2, 4, 8, 16, 32]
  [betas] = attention_by_length.by_length(
      probe_layers(model, variables, [0, 1]), measurements.spaced(stream, 32, 4),
      lengths, [attention_by_length.temperature_of_top])
  for layer, head in itertools.product((0, 1), range(4)):
    part = Part('entropy', 'text', layer, head)
    found = [values[part, 'temperature', n] for n in lengths]
    close(found, np.median(betas[:, layer, head], axis=0))
    laws = temperature_law.exponents(lengths, betas[:, layer, head], 50)
    for name, expected in laws._asdict().items():
      close([values[part, f'exponent_{name}{end}', None]
             for end in ('', '_low', '_high')], expected, rtol=1e-3)


@pytest.mark.slow
def test_intervals_of_loss_are_of_the_same_pieces_of_the_text(whole, checkpoint):
  values, stream = _values(whole[0]), _stream(whole)
  model, variables = load_checkpoint(checkpoint)
  apply = functools.partial(jax.jit(model.apply), variables)
  # Four pieces of 32 tokens, as long as the longest window, of all lengths.
  drawn = np.random.default_rng(0).multinomial(4, [1 / 4] * 4, 50)
  pieces = stream[: 4 * 32].reshape(4, 32)

  def check(part, metric, length, means, weights):
    found = [values[part, metric + end, length] for end in ('', '_low', '_high')]
    of_samples = drawn @ (means * weights) / (drawn @ weights)
    expected = [np.average(means, weights=weights),
                *np.quantile(of_samples, (0.025, 0.975))]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found[1] < found[0] < found[2]

  ones = np.ones(4)
  for length in (8, 16, 32):
    assert values[BLOCK, 'pieces', length] == 4
    by_position = np.array(
        [perplexity.nll_by_position(apply, x, length) for x in pieces])
    check(BLOCK, 'nll', length, by_position.mean(1), ones)
    check(BLOCK._replace(distance=3), 'nll_after', length, by_position[:, 2], ones)
    # Where a sliding window scores, what is before it may be of another piece.
    sums, counts = perplexity.sliding_sums(apply, stream[:128], length, length // 2)
    last = length + length // 2 * np.arange(len(sums)) - 1  # which it scores
    of_pieces = [[x[last // 32 == p].sum() for x in (sums, counts)] for p in range(4)]
    total, scored = np.array(of_pieces).T
    check(SLIDING, 'nll', length, total / scored, scored)
    for part, means, weights in ((BLOCK, by_position.mean(1), [length - 1] * 4),
                                 (SLIDING, total / scored, scored)):
      for i in range(4):
        own = part._replace(piece=i)
        np.testing.assert_allclose(values[own, 'nll', length], means[i], rtol=1e-5)
        windows = 32 // length if part == BLOCK else 1
        assert values[own, 'scored', length] == weights[i] * windows
    assert scored.tolist() == [31, 32, 32, 32]
  # Of the quotient of perplexities too, sample by sample.
  table = tables.perplexity(values, 16, False, (50, 0)).records
  for part in (BLOCK, SLIDING):
    of_samples = {}
    for length in (16, 32):
      own = np.array([[values[part._replace(piece=i), name, length] for i in range(4)]
                      for name in ('nll', 'scored')])
      of_samples[length] = drawn @ own.prod(0) / (drawn @ own[1])
      mean = np.average(own[0], weights=own[1])
      np.testing.assert_allclose(mean, values[part, 'nll', length])
    ratio = np.exp(values[part, 'nll', 32] - values[part, 'nll', 16])
    ends = np.exp(np.quantile(of_samples[32] - of_samples[16], (0.025, 0.975)))
    names = [f'{part.arm}_ratio{end}' for end in ('', '_low', '_high')]
    np.testing.assert_allclose([table[2][name] for name in names], [ratio, *ends])
    assert table[1][names[0]] == 1 and np.isnan(table[1][names[1]])
  alone = {key: x for key, x in values.items() if key[0] == BLOCK}
  table = tables.perplexity(alone, 16, False, (50, 0)).records
  assert table[2]['block_ratio'] > 0 and np.isnan(table[2]['block_ratio_low'])
  assert np.isnan(table[2]['sliding_ratio'])
  table = (whole[0] / 'tables' / 'perplexity.md').read_text()
  for part, metric in ((BLOCK, 'log perplexity, blocks'),
                       (SLIDING, 'log perplexity, sliding')):
    low, high = (values[part, f'nll{end}', 16] for end in ('_low', '_high'))
    assert f'{metric} [95 %]' in table and f'[{low:.4f}, {high:.4f}]' in table
  assert 'over 4 pieces of the text.' in table
  assert 'A piece is as long as the longest window' in ' '.join(table.split())
  assert 'covers their mean in 81% of cases' in table


def test_windows_that_are_in_two_pieces_belong_to_one():
  sums, counts = np.arange(1.0, 6.0), np.full(5, 2)
  places = np.array([1, 9, 10, 29, 31])
  means, scored = measurements.by_piece(sums, counts, places, 10, 3)
  np.testing.assert_allclose(means, [3 / 4, 3 / 2, 9 / 4])
  assert scored.tolist() == [4, 2, 4]
  config = config_file.get_config('smoke')
  # One piece alone gives no interval, and a piece may have no value.
  [row] = measurements.interval(config, BLOCK, 1, 'nll', means[:1], scored[:1])
  assert row.value == 3 / 4
  means, scored = np.array([2.0, 0]), np.array([3, 0])
  rows = measurements.interval(config, BLOCK, 1, 'nll', means, scored)
  assert [row.value for row in rows] == [2, 2, 2]


@pytest.mark.slow
def test_the_query_is_held_fixed_and_positions_are_left_out(whole, checkpoint):
  values, stream = _values(whole[0]), _stream(whole)
  model, variables = load_checkpoint(checkpoint)
  config = config_file.get_config('smoke')
  subject = measurements.Subject(model, stream, 257, 256, 16)
  queries = np.random.default_rng([0, attention._QUERIES]).choice(
      257, 2, replace=False)
  random = np.random.default_rng([0, attention._RANDOM]).integers(
      257, size=(12, 16))
  cells = [*attention.spread(config, subject)]
  assert len(cells) == 6 == len({cell.name for cell in cells})
  without = probe_layer(model.clone(rope=None), variables, 0)
  both = [output_spread.spread_by_length(without, random, [2, 4, 8, 16], int(q))
          for q in queries]
  slopes = [output_spread.slope([2, 4, 8, 16], x, num_resamples=0)[0] for x in both]
  arm = spread_part('random_nope', 'fixed', 0)
  np.testing.assert_allclose(values[arm, 'slope', None], np.mean(slopes), rtol=1e-3)
  spread = [x[:, 3].std(0).mean() for x in both]
  np.testing.assert_allclose(
      values[arm, 'std', 16], np.exp(np.mean(np.log(spread))), rtol=1e-4)
  np.testing.assert_allclose(
      [values[arm, 'slope_least', None], values[arm, 'slope_most', None]],
      [min(slopes), max(slopes)], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize('condition', ['random_nope', 'random', 'text'])
@pytest.mark.parametrize('reading', ['as_it_is', 'fixed'])
def test_a_head_has_the_spread_of_its_components(
    whole, checkpoint, condition, reading):
  values, lengths = _values(whole[0]), np.array([2, 4, 8, 16])
  model, variables = load_checkpoint(checkpoint)
  if condition == 'random_nope':
    model = model.clone(rope=None)
  if condition == 'text':
    sequences = measurements.spaced(_stream(whole), 16, 12)
  else:
    sequences = np.random.default_rng([0, 0]).integers(257, size=(12, 16))
  queries = np.random.default_rng([0, 1]).choice(257, 2, replace=False)
  probe = probe_layer(model, variables, 0)
  of_tokens = []  # [Q, S, lengths, heads, w]
  for query in queries if reading == 'fixed' else [None]:
    ends = []
    for n in lengths:
      cut = sequences[:, :n].copy()
      if query is not None:
        cut[:, -1] = query
      ends.append(np.asarray(probe(cut).output)[:, -1])
    of_tokens.append(np.stack(ends, axis=1))
  outputs = np.array(of_tokens, float)
  samples = np.random.default_rng(0).multinomial(12, [1 / 12] * 12, 50)
  tokens = np.random.default_rng([0, 1]).multinomial(
      len(outputs), [1 / len(outputs)] * len(outputs), 50)

  def curve(head, sequences, tokens):
    """Mean over a head's components, geometric mean over tokens."""
    deviation = outputs[..., head, :][tokens][:, sequences].std(1).mean(-1)
    return np.exp(np.log(deviation).mean(0))

  slope = lambda curve: np.polyfit(np.log(lengths), np.log(curve), 1)[0]
  everything = slice(None), slice(None)
  for head in range(4):
    arm = spread_part(condition, reading, 0, head=head)
    drawn = [curve(head, np.repeat(np.arange(12), a),
                   np.repeat(np.arange(len(outputs)), b))
             for a, b in zip(samples, tokens, strict=True)]
    close = functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=1e-4)
    close([values[arm, 'std', n] for n in lengths], curve(head, *everything))
    close(values[arm, 'slope', None], slope(curve(head, *everything)))
    for end, share in (('_low', 0.025), ('_high', 0.975)):
      close([values[arm, 'std' + end, n] for n in lengths],
            np.quantile(drawn, share, axis=0))
      close(values[arm, f'slope{end}', None],
            np.quantile([slope(x) for x in drawn], share))
    each = [slope(curve(head, slice(None), [q])) for q in range(len(outputs))]
    close([values[arm, f'slope_{x}', None] for x in ('least', 'most')],
          [min(each), max(each)])


@pytest.mark.slow
def test_heads_may_be_chosen_and_their_table_shows_those(whole, checkpoint):
  model, variables = load_checkpoint(checkpoint)
  config = config_file.get_config('smoke')
  config.spread.heads = (2,)
  subject = measurements.Subject(model, _stream(whole), 257, 256, 16)
  *_, cell = attention.spread(config, subject)  # text, held fixed
  found = {key_of(row): row.value for row in cell.rows(variables)}
  expected = _values(whole[0])
  for key, value in found.items():
    np.testing.assert_allclose(value, expected[key], rtol=1e-3, atol=1e-4)
  assert {part._replace(component=None) for part, *_ in found} == {
      spread_part('text', 'fixed', 0), spread_part('text', 'fixed', 0, head=2)}
  table = measurements_spread.by_head(found)
  [record] = table.records
  assert (record['layer'], record['last_token'], record['head']) == (0, 'fixed', 2)
  assert record['text_slope'] == found[
      spread_part('text', 'fixed', 0, head=2), 'slope', None]
  # Of a whole run each kind of last token has all heads, in their order.
  records = measurements_spread.by_head(expected).records
  assert [(r['last_token'], r['head']) for r in records] == [
      (x, h) for x in ('as_it_is', 'fixed') for h in range(4)]
  assert records[5]['random_nope_slope_low'] == expected[
      spread_part('random_nope', 'fixed', 0, head=1), 'slope_low', None]


@pytest.mark.slow
def test_windows_may_begin_with_bos(whole, checkpoint):
  model, variables = load_checkpoint(checkpoint)
  stream = _stream(whole)[1:]
  config = config_file.get_config('smoke')
  config.perplexity.begin = True
  subject = measurements.Subject(model, stream, 257, 256, 16)
  block, sliding, *_ = predictions.perplexity(config, subject)
  found = {key_of(row): row.value for row in block.rows(variables)}
  apply, read = functools.partial(model.apply, variables), stream[:128]
  expected = perplexity.block_nll(apply, read, 8, begin=256)
  np.testing.assert_allclose(found[BLOCK, 'nll', 8], expected, rtol=1e-5)
  assert found[BLOCK, 'scored', 8] == 128 // 7 * 7
  row, *_ = sliding.rows(variables)
  expected = perplexity.sliding_nll(apply, read, 8, 4, begin=256)
  np.testing.assert_allclose(row.value, expected, rtol=1e-5)
  with pytest.raises(ValueError, match='the tokenizer has no BOS'):
    [*predictions.perplexity(config, subject._replace(begin=None))]


@pytest.mark.slow
def test_a_report_is_made_again_without_jax_and_is_the_same(whole, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(whole[0], workdir)
  shutil.rmtree(workdir / 'tables')
  shutil.rmtree(workdir / 'figures')
  program = (
      'import sys; sys.modules["jax"] = None\n'
      f'sys.argv = ["report", "--workdir={workdir}"]\n'
      'from experiments import report; report.main()')
  done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, check=False,
                        capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  expected = whole[1][whole[1].index('\nPerplexity'):]
  expected = expected.replace(str(whole[0]), str(workdir))
  assert done.stdout == expected
  for path in whole[0].rglob('*.*'):
    if path.is_file():
      again = (workdir / path.relative_to(whole[0])).read_bytes()
      # A page names its folder.
      assert again.replace(bytes(workdir), bytes(whole[0])) == path.read_bytes(), path


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_and_refuses_another(
    run_here, whole, tmp_path, checkpoint, text):
  workdir = tmp_path / 'run'
  arguments = (f'--checkpoint={checkpoint}', f'--text={text}')
  shutil.copytree(whole[0], workdir)
  path = workdir / 'results.csv'
  before = path.read_bytes()
  rows = results.read_rows(path)
  lost = next(row for row in rows if row.metric == 'nll_after' and row.length == 8)
  results.write_rows(path, [row for row in rows if row != lost and not (
      row.arm == 'sliding' and row.length in (16, 32))])
  missing = report.write(workdir).missing
  assert missing.startswith('The run is not finished: 3 of ')
  # Wherever the same checkpoint and text are.
  moved = tmp_path / 'moved'
  shutil.copytree(checkpoint, moved)
  done = _run(workdir, f'--checkpoint={moved}', arguments[1])
  assert done.returncode == 0, done.stderr
  # The one that has lost a row as well.
  assert '3 of 19 measurements to do' in done.stdout
  assert 'has lost rows of ' in done.stdout
  assert path.read_bytes() == before
  other = tmp_path / 'other.txt'
  other.write_text(text.read_text()[::-1])
  model = llama(vocab_size=264, rope=ROPES['default'])
  save_checkpoint(moved, model, variables_of(model, seed=1))
  for changed, name in (((arguments[0], f'--text={other}'), 'text_sha256'),
                        ((f'--checkpoint={moved}', arguments[1]), 'checkpoint_sha256'),
                        ((*arguments, '--config.seed=1'), 'seed')):
    done = run_here('measure', '--config=configs/measure.py:smoke',
                    f'--workdir={workdir}', *changed)
    assert (done.returncode, done.stderr.count('\n')) == (2, 1)
    assert 'holds another run (' in done.stderr and f'{name}: ' in done.stderr
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_folder_of_an_earlier_version_is_refused(
    run_here, whole, tmp_path, checkpoint, text):
  shutil.copytree(whole[0], tmp_path / 'run')
  path = tmp_path / 'run' / 'results.csv'
  results.write_rows(path, [
      row._replace(experiment='measure') for row in results.read_rows(path)
      if row.metric in ('nll', 'slope') and row.piece is None])
  before = path.read_bytes()
  done = run_here('measure', '--config=configs/measure.py:smoke',
                  f'--workdir={tmp_path}/run', f'--checkpoint={checkpoint}',
                  f'--text={text}')
  assert (done.returncode, done.stderr.count('\n')) == (2, 1)
  assert 'results.csv has a row of an earlier version, whose results' in done.stderr
  assert path.read_bytes() == before
  with pytest.raises(ValueError, match='a row of an earlier version'):
    report.write(tmp_path / 'run')


@pytest.mark.slow
def test_a_finished_run_makes_its_report_only(whole, tmp_path, checkpoint, text):
  workdir = tmp_path / 'run'
  shutil.copytree(whole[0], workdir)
  done = _run(workdir, f'--checkpoint={checkpoint}', '--text', str(text))
  assert done.returncode == 0, done.stderr
  assert '0 of 19 measurements to do' in done.stdout
  assert (workdir / 'results.csv').read_bytes() == (
      whole[0] / 'results.csv').read_bytes()


@pytest.mark.slow
def test_one_of_several_processes_stops_between_measurements_and_goes_on(
    whole, tmp_path, checkpoint, text):
  alone = {'JAX_COORDINATOR_ADDRESS': f'localhost:{free_port()}',
           'JAX_NUM_PROCESSES': '1', 'JAX_PROCESS_ID': '0'}
  arguments = [
      sys.executable, '-m', 'experiments.measure', '--distributed',
      '--config=configs/measure.py:smoke', f'--workdir={tmp_path}/told',
      f'--checkpoint={checkpoint}', f'--text={text}']
  options = {'cwd': ROOT, 'env': {**os.environ, **alone}, 'text': True}
  process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             **options)
  stored = tmp_path / 'told' / 'results.csv'
  deadline = time.monotonic() + 200
  while time.monotonic() < deadline and not stored.exists():
    time.sleep(0.02)
  process.send_signal(signal.SIGTERM)
  _, complaint = process.communicate(timeout=300)
  assert process.returncode == 143, complaint
  told = [line for line in complaint.splitlines() if 'Told to stop' in line]
  [count] = re.fullmatch(r'Told to stop after (\d+) of 19 measurements\. The same '
                         r'command resumes the run\.', *told).groups()
  done = subprocess.run(arguments, capture_output=True, timeout=300, check=False,
                        **options)
  assert done.returncode == 0, done.stderr
  assert f'{19 - int(count)} of 19 measurements to do' in done.stdout
  assert _values(tmp_path / 'told') == _values(whole[0])


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_measure_as_one(whole, tmp_path, checkpoint, text):
  folder = tmp_path / 'two'
  # Each of the four devices has a quarter of most parameters.
  arguments = [
      sys.executable, '-m', 'experiments.measure',
      '--config=configs/measure.py:smoke', f'--workdir={folder}',
      f'--checkpoint={checkpoint}', f'--text={text}', '--config.mesh.data=1',
      '--config.mesh.fsdp=2', '--config.mesh.tensor=2',
  ]
  said = run_two_processes(arguments, num_devices=2)
  assert 'index.html' in said[0] and 'index.html' not in said[1]
  device = json.loads((folder / 'config.json').read_text())['sessions'][0]['device']
  assert device.startswith('4 x')
  one, two = _values(whole[0]), _values(folder)
  assert one.keys() == two.keys()
  for name, value in one.items():
    np.testing.assert_allclose(
        two[name], value, rtol=1e-4, atol=1e-5, err_msg=str(name))


def _no_tokenizer(folder):
  model = llama(vocab_size=512, rope=ROPES['default'])
  save_checkpoint(folder, model, variables_of(model))


def _other_tokenizer(folder):
  import tokenizers

  model = llama(vocab_size=264, rope=ROPES['default'])
  save_checkpoint(folder, model, variables_of(model))
  vocabulary = {f'w{i}': i for i in range(300)}
  tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token='w0')).save(
      str(folder / 'tokenizer.json'))


def _cut_off(folder):
  model = llama(vocab_size=264, rope=ROPES['default'])
  save_checkpoint(folder, model, variables_of(model))
  path = folder / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:-40])


def _one_nan(folder, tied=True):
  model = llama(vocab_size=264, rope=ROPES['default'], tied=tied)
  save_checkpoint(folder, model, variables_of(model))

  def change(tensors):
    tensors['model.embed_tokens.weight'][200, 3] = np.nan

  edit_tensors(folder, change)


def _too_large(folder):
  model = llama(vocab_size=264, rope=ROPES['default'])
  save_checkpoint(folder, model, variables_of(model))
  edit_tensors(folder, lambda tensors: tensors['model.norm.weight'].fill(3e38))


@pytest.mark.parametrize('make, arguments, words', [
    (None, ['--checkpoint='], '--checkpoint is missing'),
    (None, ['--checkpoint=/nowhere'], 'a checkpoint: it does not exist'),
    (None, ['--text=/nowhere'], '/nowhere: no such file or folder'),
    (None, ['--config.num_characters=9'], 'fewer than the longest window, of 32'),
    (None, ['--config.spread.layers=(0, 2)'], 'the model has layers 0 to 1, not 2'),
    (None, ['--config.entropy.layers=(-1,)'],
     'config.entropy.layers must be whole numbers from 0 to 2**31-1, each once: (-1,)'),
    (None, ['--config.spread.heads=(1, 4)'], 'the model has heads 0 to 3, not 4'),
    (None, ['--config.length=1'], 'windows of at least 2 tokens'),
    (None, ['--config.misalignment.offsets=(9,)'], 'below half of the length 8: (9,)'),
    (None, ['--config.perplexity.stride=1.5'],
     'perplexity.stride must be a number in (0, 1], in units of the window: 1.5'),
    (None, ['--config.nonsense=1'], 'nonsense'),
    (_no_tokenizer, [], 'its vocabulary of 512 is not that of bytes, 257 to 264: put '
     'its tokenizer.json into the folder'),
    (_other_tokenizer, [], 'the tokenizer has 300 tokens, the model 264'),
    (_cut_off, [], 'model.safetensors'),
    (_one_nan, [], "/other: the model's logits are not finite, nor are its weights: "
     'embedding'),
    (functools.partial(_one_nan, tied=False), [],  # of a token that is not at the start
     '/other: weights of the model are not finite: embedding'),
    (_too_large, [], "/other: the model's logits are not finite\n"),
])
def test_bad_input_is_one_line_and_exit_code_2(
    run_here, tmp_path, checkpoint, text, make, arguments, words):
  if make is not None:
    checkpoint = tmp_path / 'other'
    make(checkpoint)
  given = {x.partition('=')[0] for x in arguments}
  usual = [x for x in (f'--checkpoint={checkpoint}', f'--text={text}')
           if x.partition('=')[0] not in given]
  done = run_here('measure', '--config=configs/measure.py:smoke',
                  f'--workdir={tmp_path}/run', *usual, *arguments)
  assert done.returncode == 2, done.stderr
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  assert words in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_figures_say_what_their_bands_are(whole):
  figures = measurements_figures.make(_values(whole[0]), 16)
  for name, words in (
      ('misalignment', 'bands of 95 % intervals by bootstrap over them'),
      ('entropy', 'means over heads, with bars of 95 % intervals by bootstrap'),
      ('logits_by_distance', 'recency probability of text, of shuffled'),
      ('figure_1', 'held fixed (mean of 2 tokens, one after another)'),
      ('figure_1_components', 'with the first of those that are held fixed')):
    assert words in figures[name].get_label()
  number = r'(0|[+−]\d)\.\d{3} \[.*\.\d{3}, .*\.\d{3}\]'
  slopes = re.compile(f'.+: {number}, {number}')
  for part in figures['figure_1'].subfigs[::2]:  # of each layer
    *labels, guide = [text.get_text() for text in part.legends[0].get_texts()]
    assert len(labels) == 3 and all(map(slopes.fullmatch, labels)), labels
    assert guide == '1/√N, slope −0.5'


@pytest.mark.slow
def test_results_without_a_finite_loss_are_told(whole, tmp_path):
  shutil.copy(whole[0] / 'config.json', tmp_path)
  rows = results.read_rows(whole[0] / 'results.csv')
  results.write_rows(tmp_path / 'results.csv', [
      row._replace(value=float('nan')) if row.metric == 'nll' else row for row in rows])
  with pytest.raises(ValueError, match=r"results.csv: no log perplexity is finite"):
    report.write(tmp_path)


@pytest.mark.parametrize('content, words', [
    (b'', 'has no text'), (b'a\0b', 'is not a text file: byte 1 is NUL'),
    (b'\xff\xfe\x00', 'is not'),
])
def test_text_that_is_none_is_told(tmp_path, checkpoint, content, words):
  path = tmp_path / 'text.txt'
  path.write_bytes(content)
  config = config_file.get_config('smoke')
  config.update(checkpoint=str(checkpoint), text=str(path))
  model, _ = load_checkpoint(checkpoint)
  with pytest.raises(ValueError, match=words):
    measure.read_subject(config, model)


@pytest.mark.parametrize('fields, words', [
    ({'seed': -1}, 'config.seed must be a whole number from 0 to 2**32-1: -1'),
    ({'recency.num_sequences': 1},
     'config.recency.num_sequences must be a whole number from 2 to 2**31-1: 1'),
    ({'spread.longest': 0.0},
     'config.spread.longest must be a number in (0, 2**31-1]: 0.0'),
    ({'perplexity.lengths': ()},
     'config.perplexity.lengths must be one or more numbers in (0, 2**31-1]: ()'),
    ({'misalignment.lengths': (-1.0,)},
     'misalignment.lengths must be one or more numbers in (0, 2**31-1]: (-1.0,)'),
    ({'misalignment.offsets': (1.5,)},
     'misalignment.offsets must be one or more whole numbers from 1 to 2**31-1, each'),
    ({'dtype': 'int8'}, "config.dtype must be one of '', float32, bfloat16: 'int8'"),
    ({'recency.num_queries': 257}, 'must not exceed num_tokens: 257, 256'),
    ({'spread.layers': (0, -1)}, 'layers must be whole numbers from 0 to'),
])
def test_a_configuration_that_cannot_run_is_told(fields, words):
  config = config_file.get_config()
  config.update_from_flattened_dict({'checkpoint': 'x', **fields})
  with pytest.raises(ValueError, match=re.escape(words)):
    measure.check(config)


def test_long_windows_of_a_large_length_are_told():
  config = config_file.get_config()
  assert measure.long_windows(config, 2048) == ''
  assert measure.long_windows(config, 131_072) == (
      'The longest window has 1,048,576 tokens, because L is 131,072 in config.json; '
      '--config.length=2048 measures shorter ones.\n')
  config.perplexity.lengths = (1.0,)
  assert 'has 524,288 tokens' in measure.long_windows(config, 131_072)  # of entropy
  config.length = 131_072
  assert measure.long_windows(config, 131_072) == ''


def test_arguments_may_be_short():
  full = measure.full_arguments(['--checkpoint=a', '-text', 'b', '--workdir=c'])
  assert full == ['--config=configs/measure.py', '--config.checkpoint=a',
                  '--config.text', 'b', '--workdir=c']
  assert measure.full_arguments(['--config=x:smoke', '--text=y']) == [
      '--config=x:smoke', '--config.text=y']
  assert measure.full_arguments(['--config', 'x'])[0] == '--config'
  assert measure.full_arguments(['--checkpoints=a'])[1] == '--checkpoints=a'


def test_sequences_are_spread_over_the_text_and_do_not_overlap():
  stream = np.arange(100)
  found = measurements.spaced(stream, 10, 4)
  assert found[:, 0].tolist() == [0, 30, 60, 90]
  np.testing.assert_array_equal(found, found[:, :1] + np.arange(10))
  assert measurements.spaced(stream, 30, 50)[:, 0].tolist() == [0, 35, 70]
  with pytest.raises(ValueError, match='100 tokens, fewer than two sequences of 51'):
    measurements.spaced(stream, 51, 2)


def test_bins_are_of_each_number_and_then_of_half_octaves():
  assert measurements.bins(0, 20) == [
      (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 12),
      (12, 16), (16, 20)]
  assert measurements.bins(1, 3) == [(1, 2), (2, 3)]
  assert measurements.bins(1, 49)[-2:] == [(32, 48), (48, 49)]


def test_the_first_characters_may_end_within_a_document():
  assert measure.beginning(['abc', 'def', 'ghi'], 5) == ['abc', 'de']
  assert measure.beginning(['abc', 'def'], 3) == ['abc']
  assert measure.beginning(['abc', 'def'], 99) == ['abc', 'def']


def test_a_checkpoint_is_known_by_its_weights(checkpoint, tmp_path, monkeypatch):
  shutil.copytree(checkpoint, tmp_path / 'same')
  same = epath.Path(tmp_path / 'same')
  before = fingerprint(epath.Path(checkpoint))
  assert fingerprint(same) == before
  monkeypatch.setattr(checkpoint_hash, '_PIECE', 1000)
  assert fingerprint(same) == before
  path = tmp_path / 'same' / 'model.safetensors'
  content = bytearray(path.read_bytes() + bytes(2**19))
  path.write_bytes(content)
  before = fingerprint(same)
  for place in (0, len(content) // 2, -1):
    content[place] ^= 1
    path.write_bytes(content)
    assert fingerprint(same) != before
    content[place] ^= 1
  path.write_bytes(content)
  assert fingerprint(same) == before
  for name in ('tokenizer.json', 'tokenizer_config.json'):
    (tmp_path / 'same' / name).write_text('{}')
    assert fingerprint(same) != before
    (tmp_path / 'same' / name).unlink()


@pytest.mark.long
@pytest.mark.slow
def test_a_real_model_shows_what_is_known_of_it(tmp_path):
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  data = pathlib.Path(os.environ['VVLEN_SHARED'], 'data')
  # Compiled as usual: what `fast_compilation` makes would run for minutes.
  usual = {name: x for name, x in os.environ.items() if name != 'XLA_FLAGS'}
  few = {'num_resamples': 50, 'perplexity.lengths': (1.0, 2.0, 4.0, 8.0),
         'perplexity.num_windows': 4, 'misalignment.num_sequences': 2,
         'entropy.num_sequences': 2, 'entropy.longest': 1.0, 'spread.num_queries': 3}
  done = _run(tmp_path / 'run', f'--checkpoint={data / "stories260K"}',
              f'--text={data / "big.txt"}',
              *(f'--config.{name}={value}' for name, value in few.items()),
              config=None, env=usual)
  assert done.returncode == 0, done.stderr
  values = _values(tmp_path / 'run')
  slope = lambda *arm: values[spread_part(*arm, 0), 'slope', None]
  assert slope('random_nope', 'as_it_is') == pytest.approx(-0.12, abs=0.03)
  assert slope('random', 'as_it_is') == pytest.approx(0.04, abs=0.03)
  assert slope('text', 'as_it_is') == pytest.approx(-0.02, abs=0.03)
  assert slope('random_nope', 'fixed') == pytest.approx(-0.42, abs=0.06)
  loss = lambda part, times: values[part, 'nll', times * 512]
  assert min(loss(BLOCK, times) for times in (1, 2, 4)) > 3.3
  assert loss(BLOCK, 8) > loss(BLOCK, 1) + 0.5
  assert loss(SLIDING, 8) > loss(BLOCK, 8)
  assert values[Part('recency', 'text', 4), 'recency_probability', 256] > 0.6
