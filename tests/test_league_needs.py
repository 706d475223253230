"""The temperature that softmax needs: table, figure and sentences."""

import numpy as np
import pytest
from scipy import stats

from experiments.league import needs
from tests.artists import lines, shades
from tests.cells import cells, interval
from tests.league_cases import (
  AT_16,
  indices_of,
  LENGTHS,
  make_accuracies,
  make_rows,
  read_case,
  SEEDS,
  with_needs,
)


def test_every_column_of_the_temperature_that_softmax_needs_is_right():
  rows, powers = with_needs(make_rows(make_accuracies()))
  known, indices, _ = read_case(rows)
  some = needs.measured(indices, known)
  assert [*some] == ['retrieval']
  table = needs.needs_table(some, known)
  [shown] = cells(table)
  assert table.note == (
      'Power: p and q if the least factor of the logits that gives the item asked for '
      'half of the weight grows as n^p or (log n)^q; means over seeds. Found: items '
      'asked for with the largest logit, in %, at the longest test length.')

  def mean(values, form):
    low, high = stats.t.interval(0.95, SEEDS - 1, values.mean(), stats.sem(values))
    return interval(values.mean(), low, high, form)

  gains = 1 + np.arange(SEEDS) / 10
  of_log = stats.linregress(np.log(np.log(LENGTHS)), np.log(LENGTHS)).slope
  assert shown == {
      'task': 'retrieval', 'at lengths': '16 to 64',
      'power of n [95 %]': mean(powers, '.2f'),
      'power of log n [95 %]': mean(of_log * powers, '.2f'),
      'power of n in training [95 %]': mean(powers / 2, '.2f'),
      'found': f'{100 * (1 - 0.032 - 0.025):.1f}', 'seeds': '6'}
  gained = needs.gains_table(some, known)
  assert gained.note == (
      'Accuracy beyond training in points, with the logits of trained softmax models '
      'times (n / n₀)^p, (log n / log n₀)^q or adaptive temperature, less accuracy '
      'without. p and q: means of the powers of the models.')
  assert cells(gained) == [{
      'task': 'retrieval', 'p, q, p of training': '2.05, 3.05, 4.05',
      'n^p [95 %]': mean(5 * gains, '+.1f'),
      '(log n)^q [95 %]': mean(2 * gains, '+.1f'),
      'n^p of training [95 %]': mean(-gains, '+.1f'),
      'adaptive, fitted [95 %]': mean(3 * gains, '+.1f'),
      'adaptive, published [95 %]': mean(4 * gains, '+.1f'), 'seeds': '6'}]
  words = lambda *cell: mean(*cell).replace('[', 'points [95 %: ')
  assert needs.needs_answer(table.records, gained.records) == [
      'On retrieval, the temperature that softmax needs grows from 16 to 64 items as n '
      f'to the power {mean(powers, ".2f").replace("[", "[95 %: ")}. At inference, n^p, '
      f'1 up to the training lengths, gains {words(5 * gains, "+.1f")} with powers '
      'fitted at test lengths, 2.05 on average, which uses the answers, so it is not a '
      f'method, and {words(-gains, "+.1f")} with powers fitted at training lengths '
      'alone, 4.05 on average.']


@pytest.mark.parametrize('none', [np.inf, 0.0])
def test_powers_are_fitted_at_the_lengths_that_all_models_share(none):
  rows, powers = with_needs(make_rows(make_accuracies()))
  # One model has no factor with a logarithm at 64, two have none at 9; growth is
  # steeper there.
  def changed(row):
    if row.metric == 'needed_temperature':
      without = (row.length, row.seed) in ((64, 2), (9, 0), (9, 4))
      return row._replace(value=none if without else row.value * (
          9 if row.length in (9, 64) else 1))
    return row
  known, indices, _ = read_case([*map(changed, rows)])
  [record] = needs.needs_table(needs.measured(indices, known), known).records
  assert (record['power_from'], record['power_to'], record['power_seeds']) == (
      16, 32, SEEDS)
  assert record['power'] == pytest.approx(powers.mean())
  assert record['power_in_training'] == pytest.approx(powers.mean() / 2)


def test_powers_are_fitted_where_every_model_finds_nine_items_in_ten():
  rows, powers = with_needs(make_rows(make_accuracies()))
  def changed(row):  # growth is steeper where one model finds fewer
    if (row.metric, row.length) == ('needed_temperature', 64):
      return row._replace(value=9 * row.value)
    few = (row.metric, row.length, row.seed) == ('found', 64, 2)
    return row._replace(value=0.8999) if few else row
  exactly = lambda row: row._replace(value=0.9) if row.metric == 'found' else row
  known, indices, _ = read_case([*map(exactly, rows)])
  [record] = needs.needs_table(needs.measured(indices, known), known).records
  assert (record['power_from'], record['power_to']) == (16, 64)
  known, indices, _ = read_case([*map(changed, rows)])
  some = needs.measured(indices, known)
  [record] = needs.needs_table(some, known).records
  assert (record['power_from'], record['power_to']) == (16, 32)
  assert record['power'] == pytest.approx(powers.mean())
  [said] = needs.needs_answer([record], needs.gains_table(some, known).records)
  share = 100 * np.mean([1 - 0.032 - seed / 100 for seed in (0, 1, 3, 4, 5)]
                        + [0.8999])
  assert ' grows from 16 to 32 items as n to the power 1.05 [' in said
  assert ('. With more items, fewer than 90 % of those asked for have the largest '
          f'logit in some models; with 64, {share:.1f} % have it. At inference, n^p'
          ) in said


def test_no_sentence_on_a_temperature_of_models_that_have_not_learned():
  rows, _ = with_needs(make_rows(make_accuracies(), {('retrieval', 'softmax'): 0.89}))
  known, indices, _ = read_case(rows)
  some = needs.measured(indices, known)
  records = needs.needs_table(some, known).records
  assert records[0]['training_accuracy'] == pytest.approx(89)
  assert needs.needs_answer(records, needs.gains_table(some, known).records) == []
  # Nor before all seeds are there.
  rows, _ = with_needs(make_rows(make_accuracies()), known=SEEDS - 1)
  assert needs.measured(indices_of(rows), known) == {}


def test_powers_are_of_the_seeds_whose_power_is_known():
  rows, powers = with_needs(make_rows(make_accuracies()))
  def changed(row):
    if (row.seed, row.metric) == (1, 'training_accuracy'):
      return row._replace(value=0.2)
    if (row.seed, row.metric) == (1, 'needed_temperature') and row.length > 16:
      return row._replace(value=np.inf)
    if row.arm == 'softmax+power' and row.seed == 1:
      return row._replace(value=np.nan)
    return row
  known, indices, _ = read_case([*map(changed, rows)])
  table = needs.needs_table(needs.measured(indices, known), known)
  [record] = table.records
  left = np.delete(powers, 1)
  assert record['power'] == pytest.approx(left.mean())
  assert record['power_in_training'] == pytest.approx(left.mean() / 2)
  assert (record['power_seeds'], record['seeds']) == (5, 6)
  assert cells(table)[0]['seeds'] == '5 of 6'
  assert record['training_accuracy'] == pytest.approx(95.7)  # a median
  # No gain without all seeds, or where a law was not measured.
  gained = needs.gains_table(needs.measured(indices, known), known)
  assert cells(gained)[0]['n^p [95 %]'] == ''
  assert cells(gained)[0]['(log n)^q [95 %]'] != ''
  _, indices, _ = read_case([row for row in rows if row.arm != 'softmax+power_of_log'])
  gained_without = needs.gains_table(needs.measured(indices, known), known)
  assert cells(gained_without)[0]['(log n)^q [95 %]'] == ''
  [said] = needs.needs_answer([record | {'learned': True}], gained.records)
  assert 'fitted at test lengths' not in said and said.endswith(
      '] with powers fitted at training lengths alone, 4.05 on average.')


def test_no_power_where_no_model_finds_half_of_the_items():
  rows, _ = with_needs(make_rows(make_accuracies()))
  rows = [r._replace(value=np.inf) if r.metric == 'needed_temperature' else r
          for r in rows]
  known, indices, _ = read_case(rows)
  table = needs.needs_table(needs.measured(indices, known), known)
  [shown] = cells(table)
  assert (shown['at lengths'], shown['power of n [95 %]'], shown['seeds']) == (
      '', 'undefined', '0 of 6')
  gained = needs.gains_table(needs.measured(indices, known), known)
  assert needs.needs_answer(table.records, gained.records) == []


def test_the_figure_of_the_temperature_has_only_lengths_and_laws_that_are_known():
  rows, _ = with_needs(make_rows(make_accuracies()))
  def changed(row):
    if (row.metric, row.length) == ('needed_temperature', 16):
      return row._replace(value=row.value * 4.0 ** row.seed)
    if (row.metric, row.length, row.seed) == ('needed_temperature', 64, 2):
      return row._replace(value=np.inf)
    if (row.arm, row.metric, row.seed) == ('softmax+fitted', 'accuracy', 3):
      return row._replace(value=np.nan)
    return row
  rows = [*map(changed, rows)]
  rows += [row._replace(length=8, value=1.5) for row in rows
           if (row.metric, row.length) == ('needed_temperature', 16)]
  rows += [row._replace(experiment='lookup', value=row.value / 2) for row in rows
           if (row.experiment == 'retrieval' and '+' in row.arm)
           or row.metric.startswith('needed') or row.metric == 'found']
  known, indices, _ = read_case(rows)
  drawn = needs.needs_figure(needs.measured(indices, known), known)
  needed, gained, other, _ = drawn.axes
  shown = lines(needed)
  assert shown['softmax as it is'].x == [5, 8, 9, 16, 32]
  start = AT_16 * 4.0**2.5  # of geometric progressions
  np.testing.assert_allclose(shown['softmax as it is'].y[[1, 3]], [1.5, start])
  assert shown['∝ n'].x == shown['∝ log n'].x == [16, 32]
  np.testing.assert_allclose(shown['∝ n'].y, [start, 2 * start])
  np.testing.assert_allclose(lines(other)['∝ n'].y, [start / 2, start])
  assert 'with adaptive, fitted' not in lines(gained) and 'with n^p' in lines(gained)
  assert [(axes.get_title(), axes.get_ylabel()) for axes in drawn.axes] == [
      ('retrieval', 'factor of the logits'), ('retrieval', 'accuracy (%)'),
      ('lookup', 'factor of the logits'), ('lookup', 'accuracy (%)')]
  assert all((axes.get_xlabel(), shades(axes)[0][1]) == ('number of items N', 16)
             for axes in drawn.axes)
  assert drawn.get_label() == (
      'Left: least factor of the logits of softmax that gives the item asked for half '
      'of the weight, by number of items N, median over sequences, geometric mean over '
      'seeds where all have one. Right: accuracy of the same models with the factor of '
      'a law at inference, fitted to other sequences (where lines lie on each other, '
      'markers lie in each other), and how often the item asked for has the largest '
      'logit, which no factor changes; mean over 6 seeds, with bands of 95 % '
      'intervals; training lengths are shaded.')


def test_the_figure_of_the_temperature_shows_what_is_needed_and_gained():
  rows, powers = with_needs(make_rows(make_accuracies()))
  known, indices, _ = read_case(rows)
  drawn = needs.needs_figure(needs.measured(indices, known), known)
  needed, gained = drawn.axes
  shown = lines(needed)
  assert shown['softmax as it is'].x == [5, 9, *LENGTHS]
  np.testing.assert_allclose(
      shown['softmax as it is'].y[2:],
      [AT_16 * (n / 16) ** powers.mean() for n in LENGTHS])
  of_first = lambda name: np.divide(shown[name].y, AT_16)
  np.testing.assert_allclose(of_first('∝ n'), [1, 2, 4])
  np.testing.assert_allclose(of_first('∝ log n'), [1, 5 / 4, 6 / 4])
  accuracy = {name: line.y for name, line in lines(gained).items()}
  assert {*accuracy.pop('chance')} == {10}
  np.testing.assert_allclose(  # the share that is found, over seeds
      accuracy.pop('largest logit'), [100 * (0.975 - n / 2000) for n in LENGTHS])
  assert len(accuracy) == 5
  assert np.diff([line.get_markersize() for line in gained.lines[:5]]).max() < 0
  for label, gain in (('n^p', 5), ('n^p of training', -1), ('adaptive, fitted', 3),
                      ('adaptive, published', 4)):
    np.testing.assert_allclose(
        accuracy[f'with {label}'] - accuracy['softmax as it is'], 3 * [1.25 * gain])
