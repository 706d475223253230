"""Learning curves in TensorBoard, read by TensorBoard itself."""

import sys

import numpy as np
import pytest

from vvlen.reporting.board import Board
from vvlen.reporting.curves import Curves, read_curves


def _read(folder):
  """Returns {tag: [(step, value)]} of a run's folder."""
  accumulator = pytest.importorskip(
      'tensorboard.backend.event_processing.event_accumulator')
  events = accumulator.EventAccumulator(str(folder))
  events.Reload()
  return {
      tag: [(x.step, x.tensor_proto.float_val[0]) for x in events.Tensors(tag)]
      for tag in events.Tags()['tensors']
  }


def test_curves_are_shown_as_means_over_seeds_by_arm(tmp_path):
  pytest.importorskip('tensorboard')
  board = Board(tmp_path / 'board')
  curves = Curves(tmp_path / 'metrics.jsonl', board=board)
  evaluations = Curves(tmp_path / 'evaluations.jsonl', board=board)
  for step in (10, 20):
    curves.add('none', step, 0, {'loss': np.array([step, step + 1.0])})
  evaluations.add('none', 20, 0, {'nll_8': np.array([3.0]), 'lost': np.array([np.nan])})
  curves.add('layer_norm', 10, 8, {'loss': np.array([np.nan, 4.0, np.inf])})
  assert {p.name for p in (tmp_path / 'board').iterdir()} == {'none', 'layer_norm'}
  assert _read(tmp_path / 'board/none/seed_0') == {
      'metrics/loss': [(10, 10.5), (20, 20.5)], 'evaluations/nll_8': [(20, 3.0)]
  }
  assert _read(tmp_path / 'board/layer_norm/seed_8') == {'metrics/loss': [(10, 4.0)]}


def test_of_several_processes_one_writes(tmp_path):
  pytest.importorskip('tensorboard')
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
