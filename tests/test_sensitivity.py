"""The grid of choices: its table and figure, its cells, its bad input."""

import re
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from configs import retrieval
from configs import sensitivity as config_file
from experiments import sensitivity as experiment
from tests.conftest import ROOT
from vvlen import plots, results, sensitivity
from vvlen.results import Row
from vvlen.statistics import holm

_LENGTHS = (16, 32, 64)


def _rows(gains, steps=(10, 20), num_seeds=6):
  """Returns rows whose gain of LN grows to that of each cell, with noise."""
  rng = np.random.default_rng(0)
  rows = []
  for cell, gain in gains.items():
    for step in steps:
      for arm in ('none', 'layer_norm'):
        add = lambda seed, length, metric, value, arm=arm, cell=cell, step=step: (
            rows.append(Row(f'{cell}@{step}', arm, seed, length, metric, value)))
        for seed in range(num_seeds):
          add(seed, None, 'training_loss', 0.1)
          for length in _LENGTHS:
            value = 0.5 + gain * (arm == 'layer_norm') * step / 20
            add(seed, length, 'accuracy', value + rng.normal(0, 0.01))
            add(seed, length, 'target_weight', 0.25 if arm == 'none' else 0.5)
  return rows


def test_cells_are_tested_at_their_last_step_and_corrected_together():
  rows = _rows({'b': 0.2, 'a': 0.0, 'c': -0.1})
  cells = sensitivity.read_cells(rows, trained_up_to=16)
  assert [(c.name, c.step) for c in cells] == [
      ('a', 10), ('a', 20), ('b', 10), ('b', 20), ('c', 10), ('c', 20)]
  expected = []
  for name in 'abc':
    endpoint = {
        arm: [np.mean([r.value for r in rows if (r.experiment, r.arm, r.seed, r.metric)
                       == (f'{name}@20', arm, seed, 'accuracy') and r.length > 16])
              for seed in range(6)]
        for arm in ('layer_norm', 'none')
    }
    expected.append(stats.ttest_rel(endpoint['layer_norm'], endpoint['none']).pvalue)
  np.testing.assert_allclose(
      [c.holm_p for c in cells if c.step == 20], holm(expected), rtol=1e-6)
  assert np.isnan([c.holm_p for c in cells if c.step == 10]).all()


def test_table_and_figure_say_where_it_helps_and_where_it_hurts():
  cells = sensitivity.read_cells(
      _rows({'a': 0.0, 'b': 0.2, 'c': -0.1}), trained_up_to=16)
  table = sensitivity.table(cells)
  last = {r['cell']: r for r in table.records if r['step'] == 20}
  assert last['b']['difference'] == pytest.approx(20, abs=2)
  assert last['b']['target_weight_layer_norm_32'] == 0.5
  assert last['b']['target_weight_none_32'] == 0.25
  with plots.style():
    left, right = sensitivity.figure(cells).axes
  colours = [line.get_color() for line in left.lines if line.get_marker() == 'o']
  assert colours == ['#777777', plots.ARMS['layer_norm'][1], '#D55E00']
  assert [t.get_text() for t in left.get_yticklabels()] == ['a, 20', 'b, 20', 'c, 20']
  assert [list(line.get_xdata()) for line in right.lines[:3]] == [[10, 20]] * 3


def test_every_cell_is_a_change_of_the_base_that_can_run():
  for variant in ('paper', 'cpu', 'quick', 'smoke'):
    config = config_file.get_config(variant)
    assert config.base.num_seeds == (
        8 if variant == 'quick' else retrieval.get_config(variant).num_seeds)
    for name in experiment.names(config):
      cell = experiment.cell_config(config, name)
      assert (cell == experiment.cell_config(config, 'base')) == (name == 'base')
      assert cell.train.num_steps == config.at_steps[-1]


def _sensitivity(workdir, *arguments):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.sensitivity', f'--workdir={workdir}',
       '--config=configs/sensitivity.py:smoke', *arguments],
      cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize('arguments, words', [
    (["--config.run=('base','colour')"], 'config.run must be of base, classes_32'),
    (['--config.at_steps=(20,10)'], 'at_steps must be positive and increase'),
    (['--config.at_steps=(7,)'], '[7] are no multiples'),
    (['--config.cells.lookup.task.num_keys=8', "--config.run=('lookup',)"],
     'cell lookup: config.task.num_keys must not be less than any length: 8 < 64'),
    (["--config.base.arms=('none',)"], 'cell base: needs the arms none and layer_norm'),
])
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, arguments, words):
  done = _sensitivity(tmp_path / 'run', *arguments)
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  assert words in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_cells_equal_single_runs_and_may_be_added(tmp_path, monkeypatch):
  monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', str(tmp_path / 'cache'))
  small = ('--config.base.model.width=8', '--config.base.train.batch_size=8',
           '--config.base.evaluate.lengths=(16,32)')
  done = _sensitivity(tmp_path / 'grid', *small, "--config.run=('base',)")
  assert done.returncode == 0, done.stderr
  base = results.read_rows(tmp_path / 'grid/results.csv')
  done = _sensitivity(tmp_path / 'grid', *small, "--config.run=('base','l2')")
  assert done.returncode == 0, done.stderr
  rows = results.read_rows(tmp_path / 'grid/results.csv')
  assert [r for r in rows if r.experiment.startswith('base@')] == base
  assert re.search(r'\| l2 +\| 20 ', done.stdout)

  # The cell l2 is retrieval's own configuration.
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.length_generalization',
       f'--workdir={tmp_path}/single', '--config=configs/retrieval.py:smoke',
       '--config.model.width=8', '--config.train.batch_size=8',
       '--config.evaluate.lengths=(16,32)', '--config.evaluate.histogram_lengths=(16,)',
       "--config.arms=('none','layer_norm')"],
      cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stderr
  alone = results.read_rows(tmp_path / 'single/results.csv')
  single = {r[1:-1]: r.value for r in alone}
  cell = {r[1:-1]: r.value for r in rows if r.experiment == 'l2@20'}
  assert len(cell) > 40
  for key, value in cell.items():
    assert value == pytest.approx(single[key], rel=1e-5, abs=1e-7), key
