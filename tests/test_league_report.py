"""The report of a league: what it writes, what it refuses."""

import pytest

from experiments.league import effects, needs, report, tables
from experiments.league.answer import answer
from experiments.league.rates import Choice
from tests.cells import cells
from tests.league_cases import (
  make_accuracies,
  make_facts,
  make_rows,
  RATES,
  read_case,
  with_needs,
  write_folder,
)
from vvlen.reporting import plots, results


@pytest.mark.slow
def test_the_report_is_written_and_says_what_is_missing(tmp_path):
  rows = make_rows(make_accuracies())
  write_folder(tmp_path, make_facts(), rows)
  made = report.write(tmp_path)
  assert made.missing == '' and made.tables[0].name == 'league'
  assert {path.name for path in made.figures} == {
      f'{name}.{kind}' for name in ('league', 'league_by_length')
      for kind in ('png', 'pdf')}
  assert all(path.exists() for path in made.figures)
  for kind in ('md', 'csv', 'tex'):
    assert (tmp_path / f'tables/league.{kind}').exists()
  part = [r for r in rows if r.experiment == 'retrieval' and (r.arm, r.seed) != (
      'power', 3)]
  write_folder(tmp_path, make_facts(), part)
  assert report.write(tmp_path).missing == (
      'The run is not finished: seeds of n^p on retrieval, all arms on lookup.')


def test_the_report_has_what_its_rows_say(tmp_path, monkeypatch):
  drawn = {}
  monkeypatch.setattr(plots, 'save', lambda folder, made: drawn.update(made) or {})
  rows, _ = with_needs(make_rows(make_accuracies()))
  rows.append(results.Row('lookup', 'power', 3, 64, 'target_weight', 0.5,
                          learning_rate=RATES['power']))
  write_folder(tmp_path, make_facts(), rows)
  results.write_rows(tmp_path / 'tuning/results.csv', [
      results.Row('lookup', 'log_n', 0, None, 'training_loss', loss, learning_rate=rate)
      for rate, loss in zip(RATES.values(), (0.4, 0.1, 0.2, 0.3), strict=True)])
  made = report.write(tmp_path)
  assert made.missing == '' and [*drawn] == ['league', 'league_by_length', 'needs']
  known, indices, found = read_case(rows)
  choices = {('lookup', 'log_n'): Choice(3e-3, {}, ())}
  league = tables.league_table(found, choices, known)
  laws = tables.laws_table(effects.best_laws(indices, known))
  some = needs.needs_table(needs.measured(indices, known), known)
  gains = needs.gains_table(needs.measured(indices, known), known)
  of = {table.name: table for table in made.tables}
  assert [*of] == ['league', 'by_task', 'laws', 'contrasts', 'needs', 'at_inference',
                   *(f'by_length_{task}' for task in indices), 'targets', 'scalars',
                   'tuning']
  by_task = tables.by_task_table(found, known)
  targets = tables.targets_table(indices, known)
  assert [r['its weight'] for r in cells(targets)] == ['50.0']
  for table in (league, by_task, laws, some, gains, targets, *(
      tables.by_length_table(task, index, known) for task, index in indices.items())):
    assert cells(of[table.name]) == cells(table)
  assert cells(of['tuning'])[0]['chosen'] == '0.003'
  assert made.answer == [*answer(league.records, laws.records, known.chance),
                         *needs.needs_answer(some.records, gains.records)]
  assert len(made.answer) == 5 and 'laws of temperature' in made.answer[2]
  # What is not run.
  part = [r for r in rows if r.experiment == 'retrieval' and (r.arm, r.seed) != (
      'power', 3)]
  write_folder(tmp_path, make_facts(), part)
  assert report.write(tmp_path).missing == (
      'The run is not finished: seeds of n^p on retrieval, all arms on lookup.')


def test_a_changed_family_and_rows_of_another_are_refused(tmp_path):
  facts, rows = make_facts(), make_rows(make_accuracies())
  write_folder(tmp_path, facts, [rows[0]._replace(arm='entmax')])
  with pytest.raises(ValueError, match='a row of another kind of run'):
    report.write(tmp_path)
  write_folder(tmp_path, facts, rows)
  path = tmp_path / 'config.json'
  path.write_text(path.read_text().replace('"level": 0.05', '"level": 0.1'))
  with pytest.raises(ValueError, match='was changed after its results were made'):
    report.write(tmp_path)
