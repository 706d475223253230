"""Which parts of a run are finished, by the rows that each of them has."""

import pytest

from experiments.harness import finished, seed_blocks
from vvlen.reporting import results

_PART_OF = seed_blocks.part_of


def _rows(arm, seed, count=3):
  return [results.Row('task', arm + suffix, seed, n, 'accuracy', 0.5)
          for n in range(1, count + 1) for suffix in ('', '+adaptive')]


def _write(folder, *parts):
  """Writes the rows of parts, one after the other, as jobs do."""
  rows = []
  for part in parts:
    rows += _rows(*part)
    finished.write_rows(folder, rows, _rows(*part), _PART_OF)
  return rows


def test_a_part_is_finished_while_it_has_all_its_rows(tmp_path):
  rows = _write(tmp_path, ('none', 0), ('none', 1, 2), ('layer_norm', 0))
  every = {('none', 0), ('none', 1), ('layer_norm', 0)}
  assert finished.finished(tmp_path, _PART_OF) == every
  assert finished.lost(tmp_path, _PART_OF) == []
  for i, row in enumerate(rows):  # any of them
    results.write_rows(tmp_path / 'results.csv', rows[:i] + rows[i + 1:])
    assert finished.finished(tmp_path, _PART_OF) == every - {_PART_OF(row)}
    assert finished.lost(tmp_path, _PART_OF) == [_PART_OF(row)]
  (tmp_path / 'results.csv').unlink()
  assert finished.finished(tmp_path, _PART_OF) == set()


def test_rows_lost_before_another_part_was_written_are_still_due(tmp_path):
  rows = _write(tmp_path, ('none', 0), ('none', 1))[1:]
  new = _rows('layer_norm', 0)
  finished.write_rows(tmp_path, rows + new, new, _PART_OF)
  assert finished.lost(tmp_path, _PART_OF) == [('none', 0)]


def test_a_folder_of_an_earlier_version_is_finished_where_it_has_rows(tmp_path):
  results.write_rows(tmp_path / 'results.csv', _rows('none', 0)[:1])
  assert finished.finished(tmp_path, _PART_OF) == {('none', 0)}
  assert finished.lost(tmp_path, _PART_OF) == []
  new = _rows('none', 1)
  finished.write_rows(
      tmp_path, [*_rows('none', 0)[:1], *new], new, _PART_OF)
  assert finished.finished(tmp_path, _PART_OF) == {('none', 0), ('none', 1)}


def test_in_a_folder_of_an_earlier_version_a_part_has_the_rows_of_other_seeds(tmp_path):
  rows = [*_rows('none', 0), *_rows('none', 1), *_rows('layer_norm', 0, 2)]
  every = {('none', 0), ('none', 1), ('layer_norm', 0)}
  for i, row in enumerate(rows):
    results.write_rows(tmp_path / 'results.csv', rows[:i] + rows[i + 1:])
    alone = row.arm.startswith('layer_norm')  # no other seed has the row
    lost = [] if alone else [_PART_OF(row)]
    assert finished.lost(tmp_path, _PART_OF) == lost
    assert finished.finished(tmp_path, _PART_OF) == every - {*lost}
  new = _rows('none', 2)
  finished.write_rows(tmp_path, [*rows[1:], *new], new, _PART_OF)
  results.write_rows(tmp_path / 'results.csv', [*rows[1:], *new])
  assert finished.lost(tmp_path, _PART_OF) == [('none', 0)]  # from now on by rows.json


def test_a_kill_between_the_two_files_leaves_the_part_unfinished(
    tmp_path, monkeypatch
):
  rows, new = _write(tmp_path, ('none', 0)), _rows('none', 1)
  with monkeypatch.context() as patch:
    def killed(*_):
      raise KeyboardInterrupt
    patch.setattr(results, 'write_rows', killed)
    with pytest.raises(KeyboardInterrupt):
      finished.write_rows(tmp_path, rows + new, new, _PART_OF)
  assert finished.finished(tmp_path, _PART_OF) == {('none', 0)}
  assert finished.lost(tmp_path, _PART_OF) == [('none', 1)]


@pytest.mark.parametrize('text', [
    '', '[', '{}x', '[[["a"], 1]]', '[1]', '[["none", 0, "many"]]', '[[]]'])
def test_a_damaged_list_of_parts_is_named(tmp_path, text):
  _write(tmp_path, ('none', 0))
  (tmp_path / 'rows.json').write_text(text)
  with pytest.raises(ValueError, match=r'rows\.json is damaged\. Delete it to'):
    finished.finished(tmp_path, _PART_OF)
