"""Learning curves in TensorBoard, read by TensorBoard itself."""

import re
import sys

from etils import epath
import numpy as np
import pytest

from experiments.harness import run_loop
from tests.conftest import check_board, read_board, ROOT
from vvlen.reporting.board import Board
from vvlen.reporting.curves import Curves, read_curves


def test_curves_are_shown_as_means_over_seeds_by_arm(tmp_path):
  pytest.importorskip('tensorboard', reason="needs TensorBoard: pip install '.[test]'")
  board = Board(tmp_path / 'board')
  curves = Curves(tmp_path / 'metrics.jsonl', board=board)
  evaluations = Curves(tmp_path / 'evaluations.jsonl', board=board)
  for step in (10, 20):
    curves.add('none', step, 0, {'loss': np.array([step, step + 1.0])})
  evaluations.add('none', 20, 0, {'nll_8': np.array([3.0]), 'lost': np.array([np.nan])})
  curves.add('layer_norm', 10, 8, {'loss': np.array([np.nan, 4.0, np.inf])})
  assert {p.name for p in (tmp_path / 'board').iterdir()} == {'none', 'layer_norm'}
  assert read_board(tmp_path / 'board/none/seed_0') == {
      'metrics/loss': [(10, 10.5), (20, 20.5)], 'evaluations/nll_8': [(20, 3.0)]
  }
  assert read_board(tmp_path / 'board/layer_norm/seed_8') == {
      'metrics/loss': [(10, 4.0)]}


def test_the_curves_of_all_cells_and_files_are_found_in_the_folder_of_the_run(tmp_path):
  pytest.importorskip('tensorboard', reason="needs TensorBoard: pip install '.[test]'")
  for cell, loss in (('base', 1.0), ('l2', 2.0), ('base', 3.0)):
    curves = run_loop.curves_of(epath.Path(tmp_path) / 'cells' / cell)
    curves.add('none', int(loss), 0, {'loss': np.array([loss, 0.0])})
  found = run_loop.curves_of(epath.Path(tmp_path) / 'cells/base', 'evaluations')
  found.add('none', 3, 0, {'nll_8': np.array([0.5])})
  assert read_board(tmp_path / 'cells/base/tensorboard/none/seed_0') == {
      'metrics/loss': [(1, 0.5), (3, 1.5)], 'evaluations/nll_8': [(3, 0.5)]}
  # TensorBoard shows one file of a folder at a time.
  assert len([*(tmp_path / 'cells/base').rglob('*tfevents*')]) == 1
  check_board(tmp_path)


def test_every_study_has_its_curves_from_the_harness():
  sources = {path: path.read_text() for path in (ROOT / 'experiments').rglob('*.py')}
  makes = {path.parent.name for path, text in sources.items()
           if re.search(r'\b(?:Curves|Board)\(', text)}
  assert makes == {'harness'}
  uses = {path.parent.name for path, text in sources.items() if 'curves_of(' in text}
  assert uses == {'harness', 'length_generalization', 'vanishing_variance', 'league',
                  'sensitivity', 'counting', 'linear_attention', 'language_model'}


def test_of_several_processes_one_writes(tmp_path):
  pytest.importorskip('tensorboard', reason="needs TensorBoard: pip install '.[test]'")
  curves = Curves(
      tmp_path / 'metrics.jsonl', writes=False, board=Board(tmp_path / 'board'))
  curves.add('none', 10, 0, {'loss': np.array([1.0])})
  assert not list(tmp_path.iterdir())


def test_without_tensorboard_only_the_file_is_written(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorboard', None)
  monkeypatch.setitem(sys.modules, 'tensorboard.summary', None)
  curves = Curves(tmp_path / 'metrics.jsonl', board=Board(tmp_path / 'board'))
  curves.add('none', 10, 0, {'loss': np.array([1.0])})
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.jsonl']
  assert len(read_curves(tmp_path / 'metrics.jsonl')) == 1


def test_elsewhere_than_on_this_machine_nothing_is_written(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  Board('gs://bucket/run').add('none', 10, 'metrics', {'loss': np.array([1.0])})
  assert not list(tmp_path.iterdir())
