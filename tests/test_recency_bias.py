"""The experiment of recency bias: its cells, tables and figures, and the command."""

import itertools
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from configs import recency_bias as config_file
from experiments.recency_bias import extensions as recency_extensions
from experiments.recency_bias import figures as recency_figures
from experiments.recency_bias import report as recency
from experiments.recency_bias import run as experiment
from experiments.recency_bias.cells import make_cells, Settings, Simulated
from tests.conftest import lose_rows, ROOT, shown
from vvlen.reporting import results
from vvlen.reporting.titles import setup_of
from vvlen.theory.recency import exact_mean_layer1_score, gram_recursion, h

# Few and small cells, for tests that do not check the numbers of a run.
_FEW = tuple(f'--config.{field}=()' for field in (
    'depth.num_tokens', 'depth.num_simulations', 'norms.widths', 'heads.num_heads',
    'positions.anisotropies', 'map.widths'))
_FEW += ('--config.anisotropies=(0.0,)', '--config.panels.widths=(16,)')


def _command(workdir, *arguments, variant='smoke'):
  return [sys.executable, '-m', 'experiments.recency_bias',
          f'--config=configs/recency_bias.py:{variant}', f'--workdir={workdir}',
          *arguments]


def _run(*arguments, **options):
  return subprocess.run(
      _command(*arguments, **options), cwd=ROOT, capture_output=True, text=True,
      timeout=600, check=False)


def _simulated(rise=0.0, num_simulations=100, **fields):
  fields = dict(group='panels', name='d16_LN_a0.5_c0', width=16, num_tokens=5,
                num_layers=4, anisotropy=0.5) | fields
  cell = Settings(num_simulations=num_simulations, **fields)
  n = cell.num_tokens
  mean = np.tril(3 + rise * np.arange(n) * np.ones((n, 1)))
  np.fill_diagonal(mean, 8.0)
  numbers = {}
  for layer in range(1, 5):
    numbers |= {('recency_probability', layer): 0.5 + layer / 100,
                ('recency_probability_error', layer): 0.001,
                ('violation_rate', layer): 0.3,
                ('violation_rate_error', layer): 0.002}
  arrays = {'mean': np.stack(4 * [mean]), 'standard_error': np.full((4, n, n), 0.01),
            'last_row': np.stack(4 * [mean[-1]]), 'num_simulations': num_simulations}
  return Simulated(cell, numbers, arrays)


def _numpy_scores(cell, base):
  """Returns mean logits [layers, n, n] of tokens drawn here, and their errors."""
  n, d, count = cell.num_tokens, cell.width, cell.num_simulations
  draw = lambda tokens: np.random.default_rng(tokens).normal(
      0, d**-0.5, (count, tokens, d))
  x = draw(n) + np.sqrt(cell.anisotropy / (1 - cell.anisotropy)) * draw(1)
  angles = np.arange(n)[:, None] * base ** (-np.arange(d // 2) / (d // 2))
  seen = np.tri(n, dtype=bool) | (cell.layer == 'unmasked')
  found = []
  for _ in range(cell.num_layers):
    z = x - (x.mean(-1, keepdims=True) if cell.layer != 'rms_norm' else 0)
    z = z / np.sqrt((z**2).mean(-1, keepdims=True)) if cell.layer_norm else x
    q = z
    if cell.layer == 'rotary':
      q = (z[..., : d // 2] + 1j * z[..., d // 2 :]) * np.exp(1j * angles)
      q = np.concatenate([q.real, q.imag], axis=-1)
    scores = q @ q.swapaxes(1, 2) / np.sqrt(d)
    weights = np.where(seen, np.exp(scores), 0)
    x = weights / weights.sum(-1, keepdims=True) @ z + cell.residual * x
    found.append(np.tril(scores))
  found = np.stack(found, axis=1)
  return found.mean(0), found.std(0) / count**0.5


@pytest.mark.parametrize('fields', [
    {}, {'layer_norm': False}, {'residual': 1.0}, {'layer': 'unmasked'},
    {'layer': 'rms_norm', 'residual': 1.0}, {'layer': 'rotary'},
], ids=str)
def test_a_cell_is_simulated_as_it_says(fields):
  config = config_file.get_config('smoke')
  config.positions.base = 50.0
  cell = Settings(**dict(
      group='x', name='y', num_simulations=20_000, width=8, num_tokens=4, num_layers=3,
      anisotropy=0.5, dtype='float32') | fields)
  found = experiment._simulate(config, cell, cell.num_simulations, None, lambda _: None)
  mean, error = _numpy_scores(cell, 50.0)
  off = abs(found.mean - mean) / (found.standard_error + error + 1e-6)
  assert off.max() < 5


@pytest.mark.slow
@pytest.mark.parametrize('dtype, least, most', [
    ('float32', 1e-9, 1e-6), ('float64', 0, 1e-14)])
def test_a_cell_is_simulated_in_its_dtype(dtype, least, most):
  cell = Settings('x', 'y', 8, 8, 4, 1, 0.0, dtype=dtype)
  config = config_file.get_config('smoke')
  found = experiment._simulate(config, cell, 8, None, lambda _: None)
  # After LayerNorm |x|² = d; logits are divided by √d.
  off = abs(np.diagonal(found.mean[0]) - np.sqrt(8)).max()
  assert least <= off <= most


@pytest.mark.slow
@pytest.mark.parametrize('tied', [True, False])
def test_tied_heads_have_one_projection_for_queries_and_keys(tied):
  cell = Settings('x', 'y', 8, 8, 4, 1, 0.0, layer='heads', num_heads=2, tied=tied)
  config = config_file.get_config('smoke')
  found = experiment._simulate(config, cell, 8, None, lambda _: None)
  # |Z P|² of all heads is |Z|² = d, and logits are divided by √(d/h).
  logits = np.diagonal(found.mean[0]).mean(axis=0)
  assert np.allclose(logits, np.sqrt(8 / 2)) == tied


def test_the_papers_rows_are_there():
  cells = make_cells(config_file.get_config().to_dict())
  assert len({(cell.group, cell.name) for cell in cells}) == len(cells)
  of = lambda group: [cell for cell in cells if cell.group == group]
  told = [(c.anisotropy, c.layer_norm, c.residual) for c in of('figure_1')]
  assert told == [(0, False, 0), (0, True, 0), (0.5, True, 0), (0.5, True, 1)]
  assert {c.num_simulations for c in of('figure_1')} == {100_000}
  assert [c.anisotropy for c in of('figure_3')] == [0.2, 0.4, 0.6, 0.8]
  assert [c.anisotropy for c in of('figure_4')] == [0, 0.2, 0.4, 0.6, 0.8]
  assert {(c.residual, c.width, c.num_tokens) for c in of('figure_4')} == {(1, 64, 10)}
  assert {c.width for c in of('panels')} == {16, 64, 256, 1024}
  assert {c.num_simulations for c in of('panels')} == {10_000_000}
  assert max(c.num_tokens for c in of('depth')) == 512
  assert {c.num_layers for c in of('depth')} == {32}
  assert {(c.layer, c.residual) for c in of('norms') + of('depth')} == {
      (layer, residual) for layer in ('causal', 'rms_norm') for residual in (0, 1)}
  assert {(c.num_tokens, c.residual) for c in of('depth')} == {
      (n, residual) for n in (8, 32, 128, 512) for residual in (0, 1)}
  assert {c.layer for c in of('positions')} == {
      'causal', 'unmasked', 'rotary', 'rotary_unmasked'}


def test_probabilities_stand_beside_the_published():
  table = recency.probability_table([_simulated()])
  row, = [r for r in table.records if r['layer'] == 2]
  # Published: .6382, printed to four digits, of 10,000,000.
  assert row['published'] == 0.6382
  expected = (0.6382 - 0.52 - 5e-5) / (0.001 * np.sqrt(1 + 100 / 1e7))
  assert row['difference_in_errors'] == pytest.approx(expected)
  assert shown(table, '0.5200 ± 0.0010')['violation rate'] == '0.300 ± 0.002'
  unpublished = recency.probability_table([_simulated(name='d256_x', width=256)])
  assert shown(unpublished, '0.5200 ± 0.0010')['published'] == ''


def test_the_published_probabilities_are_those_of_another_program():
  with np.load(ROOT / 'tests/data/recency.npz') as arrays:
    for (width, name), published in recency.PUBLISHED.items():
      name = name.replace('_c1', '_res').replace('_c0', '')
      np.testing.assert_allclose(arrays[f'd{width}_{name}/rp'], published, atol=5e-4)


@pytest.mark.parametrize('rise, rising, clearly', [
    (0.05, 6, (6, 0)), (0.03, 6, (0, 0)), (-0.05, 0, (0, 6)),
])
def test_neighbours_are_counted(rise, rising, clearly):
  table = recency.score_table([_simulated(rise=rise)])
  row = table.records[0]  # 5 tokens: 1 + 2 + 3 neighbours before the diagonal
  assert (row['rising'], row['neighbours']) == (rising, 6)
  assert (row['clearly_rising'], row['clearly_falling']) == clearly
  assert (row['oldest'], row['newest']) == pytest.approx((3, 3 + 3 * rise))
  limit = gram_recursion(np.eye(5) + 1, 16, 4)[0, -1]
  assert (row['limit_oldest'], row['limit_newest']) == pytest.approx(
      (limit[0], limit[3]))


def test_layer_1_stands_beside_its_exact_mean():
  first, second, *_ = recency.score_table([_simulated()]).records
  assert first['exact'] == exact_mean_layer1_score(16, 0.5)
  assert np.isnan(second['exact'])


def test_heat_maps_show_logits_with_masked_entries_blank():
  figure = recency_figures.heat_maps([_simulated(rise=0.1)])
  panels = [axes for axes in figure.axes if axes.images]
  assert len(panels) == 4
  image = panels[1].images[0]
  shown_entries = np.asarray(image.get_array().filled(np.nan))
  np.testing.assert_array_equal(np.isnan(shown_entries), ~np.tri(5, dtype=bool))
  # Means off the diagonal are 3 to 3.3; colours span 40 of their errors, 0.01 each.
  assert image.get_clim() == pytest.approx((2.95, 3.35))
  assert 'RP 0.5200' in panels[1].texts[0].get_text()
  bar, = [axes for axes in figure.axes if not axes.images]
  assert bar.get_ylabel() == 'mean logit,\nown scale'
  assert 'width d = 16, 100 simulations' in setup_of(figure)
  assert ('100 simulations of n = 5 tokens of width d = 16, a row for each setting and '
          'a column for each layer; masked entries are blank') in figure.get_label()


def test_rows_without_an_order_are_grey():
  colours = []
  for probability in (0.4985, 0.5235, 0.53):
    row = _simulated()
    row.numbers['recency_probability', 3] = 0.5
    for layer in (1, 2, 4):
      row.numbers['recency_probability', layer] = probability
      row.numbers['recency_probability_error', layer] = 0.012 if colours else 0.001
    panel = recency_figures.heat_maps([row]).axes[0]
    colours.append(panel.images[0].get_cmap().name)
  assert colours == ['greys', 'greys', 'viridis']  # two errors are 0.024


def test_curves_are_the_closed_form():
  config = {'num_tokens': 7, 'width': 64, 'anisotropies': (0.0, 0.6, 0.8)}
  for residual in (0.0, 1.0):
    axes, = recency_figures.curves(config, residual).axes
    for line, alpha in zip(axes.lines, config['anisotropies'], strict=True):
      np.testing.assert_array_equal(line.get_ydata(), h(7, 64, alpha, residual))


def test_the_map_has_each_width_and_anisotropy_in_its_place():
  found = [
      _simulated(group='map', name=f'{d} {a}', width=d, anisotropy=a)
      for d in (16, 64) for a in (0.0, 0.3, 0.6)]
  for i, s in enumerate(found):
    s.numbers['recency_probability', 2] = i / 10
  figure = recency_extensions.over_anisotropy_and_width(found)
  mesh = figure.axes[0].collections[0]
  np.testing.assert_allclose(
      np.ravel(mesh.get_array()), [0, 0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize('fields, words', [
    ({'anisotropies': (0.0, 1.0)},
     'config.anisotropies must be one or more numbers in [0, 1), because at 1'),
    ({'panels.widths': (10,)}, 'd10_LN_a0_c0: sampler=\'reduced\' needs a width of at'),
    ({'num_tokens': 2},
     'must be a whole number from 3 to 2**31-1, because triples are compared: 2'),
    ({'num_simulations': 0},
     'config.num_simulations must be a whole number from 1 to 2**53: 0'),
    ({'num_layers': -4}, 'num_layers must be a whole number from 1 to 2**31-1: -4'),
    ({'heads.num_heads': (3,)}, 'heads, h3_tied: 3 heads do not divide a width of 64'),
    ({'panels.widths': (16, 16)}, 'because of LayerNorm, each once: (16, 16)'),
    ({'map.anisotropies': (0.1, 0.1 + 1e-9)}, 'that are equal to six digits'),
    ({'anisotropies': (1 - 1e-9,)}, 'anisotropy is 1 in float32: 0.999999999'),
    ({'width': 63, 'heads.num_heads': (1,)}, 'even width: 63'),
    ({'depth.num_simulations': (1,)}, 'depth.num_simulations must have a number for'),
    ({'seed': -1}, 'config.seed must be a whole number from 0 to 2**32-1: -1'),
    ({'positions.base': 0.0}, 'positions.base must be a finite number above 0: 0.0'),
    ({'positions.anisotropies': (0.2, 0.5)}, 'one value that is not 0: (0.2, 0.5)'),
    ({'anisotropies': ('a',)}, "because at 1 all tokens are equal, each once: ('a',)"),
    ({'anisotropies': ()}, 'config.anisotropies must be one or more numbers in [0, 1)'),
])
def test_a_configuration_that_cannot_run_is_told_before_it_starts(fields, words):
  config = config_file.get_config('smoke')
  config.update_from_flattened_dict(fields)
  with pytest.raises(ValueError, match=re.escape(words)):
    experiment._cells(config)


@pytest.mark.parametrize('arguments, words', [
    (('--config.anisotropies=(0.0,1.0)',), 'config.anisotropies must be one or more'),
    (('--config=configs/recency_bias.py:fast',),
     "without a variant it is paper: 'fast'"),
    (('--config=configs/lookup.py:smoke',), 'is it for another experiment?'),
])
def test_bad_input_is_one_line_and_exit_code_2(run_here, tmp_path, arguments, words):
  done = run_here('recency_bias', *_command(tmp_path / 'run')[3:], *arguments)
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  assert words in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.fixture(scope='module')
def whole(tmp_path_factory, fast_compilation):
  """A whole run of smoke, and what it printed."""
  workdir = tmp_path_factory.mktemp('whole') / 'run'
  done = _run(workdir)
  assert done.returncode == 0, done.stderr
  return workdir, done.stdout


@pytest.mark.slow
def test_a_run_simulates_every_cell_and_draws_every_figure(whole):
  workdir, out = whole
  config = config_file.get_config('smoke').to_dict()
  rows = {(r.experiment, r.arm, r.metric, r.layer): r
          for r in results.read_rows(workdir / 'results.csv')}
  cells = make_cells(config)
  for cell, layer in itertools.chain.from_iterable(
      [(c, i) for i in range(1, c.num_layers + 1)] for c in cells):
    row = rows[cell.group, cell.name, 'recency_probability', layer]
    assert 0 <= row.value <= 1 and row.length == cell.num_tokens
  # Tokens of any kind have no order in layer 1, but for rotary positions.
  for cell in cells:
    if not (cell.layer.startswith('rotary') and cell.anisotropy):
      value, error = (
          rows[cell.group, cell.name, f'recency_probability{x}', 1].value
          for x in ('', '_error'))
      assert abs(value - 0.5) < 5 * error + 0.02, cell
  figures = {path.stem for path in (workdir / 'figures').glob('*.png')}
  assert figures == {
      *(f'figure_{i}' for i in range(1, 6)), 'panels_d16', 'panels_d64', 'depth',
      'norms', 'heads', 'positions', 'map'}
  assert 'Recency probability by width' in out and f'{workdir}/index.html' in out
  claimed = json.loads((workdir / 'config.json').read_text())
  assert claimed['sessions'][-1]['finished']


@pytest.mark.slow
def test_the_report_is_remade_from_the_folder(whole):
  workdir, _ = whole
  made = {p: p.read_bytes() for p in workdir.rglob('*.*') if p.parent.name in (
      'figures', 'tables')}
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.report', f'--workdir={workdir}'], cwd=ROOT,
      capture_output=True, text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stderr
  assert {p: p.read_bytes() for p in made} == made
  path = workdir / 'simulations' / 'figure_1_LN_a0_c0.npz'
  content = path.read_bytes()
  path.write_bytes(content[:200])
  with pytest.raises(ValueError, match=r'LN_a0_c0\.npz is not a file of arrays'):
    recency.write(workdir)
  path.write_bytes(content)
  arrays = results.read_arrays(path)
  del arrays['standard_error']
  np.savez(path, **arrays)
  with pytest.raises(ValueError, match=r'does not have the array standard_error \['):
    recency.write(workdir)
  path.unlink()
  with pytest.raises(ValueError, match=r'LN_a0_c0\.npz is missing'):
    recency.write(workdir)
  path.write_bytes(content)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_killed_or_grows_gives_what_one_run_gives(
    tmp_path, fast_compilation):
  more = '--config.num_simulations=5100', '--config.panels.num_simulations=2100'
  done = _run(tmp_path / 'once', *_FEW, *more)
  assert done.returncode == 0, done.stderr
  table = (tmp_path / 'once' / 'results.csv').read_bytes()
  # Killed when there is something to lose, and then started with more simulations.
  process = subprocess.Popen(
      _command(tmp_path / 'twice', *_FEW), cwd=ROOT, stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL)
  until = time.monotonic() + 300
  while not (tmp_path / 'twice' / 'results.csv').exists():
    assert time.monotonic() < until and process.poll() is None
    time.sleep(0.05)
  process.send_signal(signal.SIGKILL)
  process.wait()
  done = _run(tmp_path / 'twice', *_FEW, *more)
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'twice' / 'results.csv').read_bytes() == table
  lose_rows(tmp_path / 'twice')
  done = _run(tmp_path / 'twice', *_FEW, *more)
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'twice' / 'results.csv').read_bytes() == table
  for path in (tmp_path / 'once' / 'simulations').iterdir():
    twice = results.read_arrays(tmp_path / 'twice' / 'simulations' / path.name)
    for name, values in results.read_arrays(path).items():
      np.testing.assert_array_equal(values, twice[name])
  for arguments, words in (
      ((), 'num_simulations: 5100 there, 200 here (may only grow)'),
      ((*more, '--config.seed=1'), 'seed: 0 there, 1 here'),
  ):
    done = _run(tmp_path / 'once', *_FEW, *arguments)
    assert (done.returncode, done.stdout) == (2, '')
    assert words in done.stderr and done.stderr.count('\n') == 1
  assert (tmp_path / 'once' / 'results.csv').read_bytes() == table
