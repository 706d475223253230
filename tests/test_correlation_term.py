"""What the misalignment term changes in the study of correlations."""

import numpy as np
import pytest
from scipy import stats

from experiments.correlation import answer, figures, points, tables, term
from experiments.correlation.points import At, OfTask
from tests import correlation_cases as cases
from tests.artists import bands
from tests.correlation_cases import (
  cells_of,
  config_of,
  few_of_cpu,
  made_rows,
  names_of,
  PARTNERS,
  score_of,
)
from vvlen import statistics

# Fixtures of this file.
run, found = cases.run, cases.found


_GAINS = {'rope': 0.03, 'low_base': 0.08, 'high_base': 0.05, 'alibi': 0.06}


def _with_term(run, gains=_GAINS, more=None):
  """Returns points of which the partners' scores beyond L are larger by their gain."""
  name = lambda i: run.models[i].name
  place = {m.name: i for i, m in enumerate(run.models)}

  def score(i, n):
    own = name(i).removesuffix('_term')
    larger = name(i) != own and n > 1
    return (0.95 if n == 1 else 0.5 + place[own] / 100) + larger * gains[own[:-3]] + (
        0.01 if name(i) != own and more else 0)

  return points.points(run, made_rows(run, score))


def test_models_that_differ_in_the_weight_alone_are_pairs(run, found):
  assert set(run.pairs) == {(name, name.removesuffix('_term')) for name in PARTNERS}
  names = names_of(found)
  assert {(names[a], names[b]) for a, b in term.pairs(run, found, 0.1)} == {*run.pairs}
  assert term.pairs(run, found, 0.3) == []
  quick = lambda **fields: points.read_run(config_of('quick', **fields).to_dict()).pairs
  assert quick() == (('rope_term', 'rope'),)
  assert quick(**{'models.rope_term.offsets': (0.0, 1.0)}) == ()
  assert quick(**{'models.rope_term.seed': 1}) == ()
  assert quick(**{'models.rope.weight': 0.2}) == ()
  # Both must have learned, with the term and without.
  for which, kept in (('alibi_01', 3), ('alibi_01_term', 3), ('alibi_02', 4)):
    low = points.points(run, made_rows(run, lambda i, n, x=which: (
        0.3 if n == 1 and run.models[i].name == x else score_of(i, n))))
    assert len(term.pairs(run, low, 0.1)) == kept
  # A model without results is in no pair.
  assert len(term.pairs(run, low, 0.1, None)) == 4
  rows = [r for r in made_rows(run) if r.arm != 'rope_01']
  assert len(term.pairs(run, points.points(run, rows), 0.1)) == 3


def test_every_cell_of_what_the_term_changes(run):
  found = _with_term(run, more=True)
  table = tables.make(run, found)[-1]
  assert table.name == 'term'
  fields = ['score_near', 'all_pairs', 'all_pairs_1', 'carried', 'score_far',
            'nll_beyond', 'niah_single_near', 'qa1_near', 'passkey_near',
            'symmetric_kl', 'sce',
            *(f'score_{n:g}' for n in run.lengths),
            *(f'nll_{n:g}' for n in run.nll_lengths)]
  assert [r['field'] for r in table.records] == fields
  places = {m.name: i for i, m in enumerate(run.models)}
  with_it, without = ([places[name] for name in names] for names in zip(
      *run.pairs, strict=True))
  means = found.means
  values = {**means, 'carried': means['score_near'] - means[At('score', 1)],
            'all_pairs': means['score_near'], 'all_pairs_1': means[At('score', 1)],
            **{f'{task}_near': means[OfTask(task, 'near')] for task in run.tasks},
            **{f'score_{n:g}': means[At('score', n)] for n in run.lengths},
            **{f'nll_{n:g}': means[At('nll', n)] for n in run.nll_lengths}}
  words = {'carried': 'score up to 2 L less that at L', 'score_1': 'score at L',
           'symmetric_kl': 'symmetric KL at L', 'nll_2': 'log perplexity at 2 L',
           'score_1.25': 'score at 1.25 L', 'score_near': 'score up to 2 L',
           'all_pairs': 'score up to 2 L, all pairs', 'qa1_near': 'qa1 up to 2 L',
           'all_pairs_1': 'score at L, all pairs', 'sce': 'SCE at L'}
  for r, cells in zip(table.records, cells_of(table), strict=True):
    a, b = values[r['field']][with_it], values[r['field']][without]
    assert cells[1] == words.get(r['field'], cells[1])
    # Pass keys have not been learned.
    assert cells[0] == '0.1' and cells[6] == str(4 * (r['field'] != 'passkey_near'))
    if r['field'] == 'passkey_near':
      continue
    assert cells[2:4] == [f'{x.mean():.3f}'.replace('-', '−') for x in (b, a)]
    if np.ptp(a - b) > 1e-9:
      test = stats.ttest_rel(a, b)
      low, high = test.confidence_interval()
      assert (r['difference'], r['ci_low'], r['ci_high'], r['p']) == (
          pytest.approx(((a - b).mean(), low, high, test.pvalue)))
      assert r['smallest_detectable'] == pytest.approx(
          statistics.smallest_detectable(np.std(a - b, ddof=1), 4))
  # At L all gain .01, so less is carried over than is gained beyond.
  gains = [r['difference'] for r in table.records[:4]]
  assert gains == pytest.approx([0.065, 0.065, 0.01, 0.055])
  low = points.points(run, made_rows(run, lambda i, n: (
      0.3 if n == 1 and run.models[i].name == 'rope_01' else score_of(i, n))))
  assert [r['pairs'] for r in term.table(run, low).records] == [
      3, 4, 4, 3, 3, 3, 3, 3, 0, *13 * [3]]
  assert table.note == (
      'Pairs of models that both learned each task that counts; p: paired two-sided '
      't-test. Primary: score up to 2 L, α = 0.1; all else is secondary and not '
      'corrected. All pairs: learned or not; of a task: that learned it.')


def test_seeds_that_one_model_of_a_pair_lacks_are_in_no_difference(run):
  rows = [r._replace(value=r.value + 9 * (r.metric == 'nll' and r.seed == 1))
          for r in made_rows(run) if (r.arm, r.seed) != ('alibi_01_term', 1)]
  found = points.points(run, rows)
  changed = term.changed(run, found, 0.1, At('nll', 2))
  assert len(changed.treated) == 4
  assert abs(changed.treated - changed.control).max() < 8.5
  rows = [r for r in rows if (r.arm, r.seed) != ('alibi_01', 0)]
  assert len(term.changed(run, points.points(run, rows), 0.1, 'carried').treated) == 3


def test_other_weights_of_the_term_follow_the_primary_one():
  config = few_of_cpu()
  for name in ('rope_01', 'alibi_01'):
    config.models[f'{name}_more'] = dict(config.models[name], weight=0.05)
  run = points.read_run(config.to_dict())
  rows = made_rows(run, lambda i, n: 0.9, [1.0] * 22, [0.1] * 22, lambda i, n: 2.0)
  records = term.table(run, points.points(run, rows)).records
  assert [(r['weight'], r['pairs']) for r in records] == [
      *8 * [(0.1, 4)], (0.1, 0), *13 * [(0.1, 4)],
      *8 * [(0.05, 2)], (0.05, 0), *13 * [(0.05, 2)]]


def test_the_answer_says_what_the_term_changes(run):
  said = answer.answer(run, _with_term(run))[4]
  gains = [*_GAINS.values()]
  test = stats.ttest_1samp(gains, 0)
  (low, high), p = test.confidence_interval(), f'{test.pvalue:.3f}'[1:]
  assert said == (
      'The misalignment term with α = 0.1 changes the score up to 2 L by +0.055 [95 %: '
      f'+{low:.3f}, +{high:.3f}], p = {p}, 4 of 4 pairs of models, those that learned '
      'each task that counts. The score at L it changes by 0.000; over all pairs, that '
      f'up to 2 L by +0.055 [95 %: +{low:.3f}, +{high:.3f}].')
  of = lambda *values: term.sentence(run, _with_term(
      run, dict(zip(_GAINS, values, strict=True))))
  unsure = of(-0.03, 0.05, 0.01, -0.02)
  assert 'by +0.003 [95 %: −0.05' in unsure
  least = statistics.smallest_detectable(np.std([-3, 5, 1, -2], ddof=1) / 100, 4)
  assert ('; no difference was found, and one of '
          f'{least:.3f} would be found four times in five. The score at L') in unsure
  # Of p = 8 %.
  nearly = (0.01, 0.08, 0.02, 0.08)
  assert 0.05 < stats.ttest_1samp(nearly, 0).pvalue < 0.1
  assert 'no difference was found' in of(*nearly)
  one = points.points(run, [r for r in made_rows(run) if not (
      r.arm.endswith('_term') and r.arm != 'rope_01_term')])
  none = ('The misalignment term with α = 0.1: no verdict, as fewer than two pairs '
          'learned each task that counts, or all changed alike.')
  assert of(*4 * [0.02]) == (
      f'{none} Over all pairs, it changes the score up to 2 L by +0.020.')
  assert term.sentence(run, one) == f'{none} Of 3 pairs, a value is not finite.'
  lost = points.points(run, [
      r._replace(value=np.nan) if (r.arm, r.metric) == ('rope_01_term', 'nll') else r
      for r in made_rows(run)])
  assert ', 3 of 4 pairs of models, those' in term.sentence(run, lost)
  assert term.sentence(run, lost).endswith('. Of 1 pair, a value is not finite.')
  # Nothing is said of a study that is not finished.
  assert not any('misalignment term with' in x for x in answer.answer(run, one))
  both = points.points(run, made_rows(run, lambda i, n: score_of(i, n) - 0.3 * (
      n == 1 and run.models[i].name == 'alibi_01') - 0.1 * (
          n == 1 and run.models[i].name == 'rope_01')))
  assert ', 3 of 4 pairs of models, those' in term.sentence(run, both)
  at = term.changed(run, both, 0.1, At('score', 1)).test
  of_all = term.changed(run, both, 0.1, 'score_near', None).test
  by = lambda test: (f'{test.mean_difference:+.3f} [95 %: {test.ci_low:+.3f}, '
                     f'{test.ci_high:+.3f}]').replace('-', '−')
  assert term.sentence(run, both).endswith(
      f'The score at L it changes by {by(at)}; over all pairs, that up to 2 L by '
      f'{by(of_all)}.') and at.mean_difference > 0.03
  other = run._replace(pairs=())
  assert term.sentence(other, one) == ''
  assert len(answer.answer(other, _with_term(run))) == 5


def test_the_figure_of_the_term_has_the_means_over_pairs(run):
  found = _with_term(run)
  figure = figures.of_term(run, found)
  axes, paired = figure.axes
  lines = {line.get_label(): np.array(line.get_xydata()) for line in axes.lines}
  names = names_of(found)
  for label, own in zip(('α = 0.1', 'without the term'), zip(*run.pairs, strict=True),
                        strict=True):
    places = [names.index(name) for name in own]
    np.testing.assert_allclose(lines[label], np.stack([run.lengths, [
        found.means[At('score', n)][places].mean() for n in run.lengths]], axis=1))
  assert lines['shortcut'][:, 1] == pytest.approx(0.15)
  difference, zero = paired.lines
  tests = [term.changed(run, found, 0.1, At('score', n)).test for n in run.lengths]
  np.testing.assert_allclose(difference.get_ydata(), [
      test.mean_difference for test in tests])
  assert [*difference.get_xdata()] == [*run.lengths] and not any(zero.get_ydata())
  assert difference.get_ydata()[1] == pytest.approx(0.055)
  [(x, low, high)] = bands(paired).values()
  # At L, all change alike, so there is no interval.
  there = [run.lengths.index(n) for n in x[1:]]
  assert low[0] == high[0] == tests[0].mean_difference == 0
  np.testing.assert_allclose(low[1:], [tests[i].ci_low for i in there], atol=1e-9)
  np.testing.assert_allclose(high[1:], [tests[i].ci_high for i in there], atol=1e-9)
  assert 'means over 4 pairs of models that both learned' in figure.get_label()
  for made in figures.make(run, found).values():
    caption = made.get_label()
    assert len(caption) > 80 and not set(caption) & set('\n*[]$<>')
