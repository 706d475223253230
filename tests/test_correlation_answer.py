"""Verdicts and sentences of the study of correlations, from made-up rows."""

import re

import numpy as np
import pytest

from experiments.correlation import answer, points, related, tables
from experiments.correlation.points import At
from tests import correlation_cases as cases
from tests.correlation_cases import (
  ends_of,
  gain_of,
  kinds_of,
  less_means,
  made_rows,
  ORDER,
  PEARSON,
  score_of,
  signed,
  SPEARMAN,
  study_of,
)
from vvlen import statistics

# Fixtures of this file.
run, found = cases.run, cases.found


@pytest.mark.slow
@pytest.mark.parametrize('loss, misalignment, share', [
    (0.3, 0.85, 0.77), (0.56, 0.85, 0.38), (0.0, 0.0, 0.0), (-0.5, 0.0, 0.02)])
def test_verdicts_are_as_frequent_as_the_plan_says(rng, loss, misalignment, share):
  """Of 36 models in experiments/results/correlation/README.md."""
  between = {0.85: 0.3 if loss == 0.3 else 0.5}.get(misalignment, 0.0)
  covariance = [[1, misalignment, loss], [misalignment, 1, between], [loss, between, 1]]
  root, kinds = np.linalg.cholesky(covariance), np.arange(36) % 8
  gain = related.gain(statistics.spearman, (1.0, 1.0))
  interval = lambda statistic, *items: statistics.bootstrap(
      statistic, *items, num_resamples=400, seed=0)
  none, found = related._NONE, []
  for _ in range(100):
    draw = lambda *shape: rng.normal(size=(*shape, 3)) @ root.T
    y, x, z = (0.6**0.5 * draw(8)[kinds] + 0.4**0.5 * draw(36)).T
    r = interval(statistics.spearman, x, y), interval(statistics.spearman, z, y)
    among = interval(related._within(gain), x, y, z, kinds.astype(float))
    found.append(answer._verdict(
        related.Related(none, r[0], none, none, interval(gain, x, y, z)),
        related.Related(none, none, none, none, among), [own.ci_low > 0 for own in r],
        (True, True)))
  made = np.mean([text.startswith('misalignment predicts it better') for text in found])
  assert abs(made - share) < (0.14 if share > 0.1 else 0.04)
  assert np.mean([text.startswith('training loss') for text in found]) < 0.04


def test_what_is_primary_is_what_the_configuration_says(found):
  run = study_of(**{'primary.measure': 'sce', 'primary.outcome': 'nll_beyond',
                    'primary.correlation': 'pearson'})
  used = points.compared(run, found)
  table = tables.table_1(run, found)
  assert [r['outcome'] for r in table.records[:6:2]] == [
      'nll_beyond', 'score_near', 'score_far']
  sce, loss, y = (used.means[x] for x in (
      'sce', 'training_cross_entropy', 'nll_beyond'))
  ours = table.records[1]
  assert (ours['predictor'], ours['source']) == ('misalignment', 'ours')
  assert ours['gain'] == pytest.approx(PEARSON(sce, y) - PEARSON(loss, y))
  assert 'of misalignment and log perplexity beyond L' in table.more
  said = answer.answer(run, found)
  assert said[0].startswith('Log perplexity beyond L over 16 models: ')
  assert said[2].startswith('Secondary: score up to 2 L over 16 models: ')
  value = f'r = {signed(PEARSON(sce, y))} [95 %'
  assert value in said[0] and 'with misalignment (SCE at L' in said[0]


# Orders of 20 models, by how much they are like that of scores.
_STRONG = [*(ORDER / 20)]
_WEAK = [*(np.random.default_rng(8).permutation(20) / 20)]
_SAME = 'over all models and among those with the same positions and L'
_UNSURE = 'undecided whether misalignment or training loss predicts it better'


def _only_positions(values):
  """Returns values of 20 models that are those of their positions, with noise."""
  rank = {'RoPE 10,000': 0, 'RoPE 1,000': 1, 'ALiBi': 2, 'RoPE 1,000,000': 3}
  noise = np.random.default_rng(values).normal(size=20) / 9
  return [float(rank[m.positions] + x)
          for m, x in zip(study_of().models, noise, strict=True)]


@pytest.mark.parametrize('loss, excess, score, says', [
    (_WEAK, _STRONG, None,
     f'misalignment predicts it better than training loss, {_SAME}'),
    (_STRONG, _WEAK, None,
     f'training loss predicts it better than misalignment, {_SAME}'),
    # Against the direction that is claimed: training loss does not predict it either.
    (_WEAK, [-x for x in _STRONG], None,
     'neither misalignment nor training loss is found to predict it'),
    # Nor does misalignment, if training loss has the other sign.
    ([-x for x in _STRONG], _WEAK, None,
     'neither misalignment nor training loss is found to predict it'),
    ([x + 0.5 * y for x, y in zip(_STRONG, _WEAK, strict=True)],
     [x + 0.5 * y for x, y in zip(_STRONG, _WEAK[::-1], strict=True)], None, _UNSURE),
    ([x + 0.01 * (-1)**i for i, x in enumerate(_STRONG)], _STRONG, None,
     'misalignment and training loss predict it equally well'),
    (_WEAK, _only_positions(1), _only_positions(2),
     'undecided, as misalignment predicts it better than training loss over all models '
     'but not among those with the same positions and L'),
])
def test_the_answer_is_what_the_intervals_say(loss, excess, score, says):
  run = study_of()
  of = score_of if score is None else (
      lambda i, n: 0.95 if n == 1 else 0.8 - 0.1 * score[i] - 0.01 * n)
  made = points.points(run, made_rows(run, of, loss, excess))
  used = points.compared(run, made)
  first, _, second, third, *_ = answer.answer(run, made)
  assert first.startswith(f'Score up to 2 L over 16 models: {says}. r = '), first
  assert second.startswith('Secondary: score from 2 L on over 16 models: ')
  assert third.startswith('Secondary: log perplexity beyond L over 16 models: ')
  x, z, y = (used.means[n] for n in (
      'symmetric_kl', 'training_cross_entropy', 'score_near'))
  odd = ', against the direction that is claimed, with '
  for words, predictor in (('misalignment', x), ('training loss', z)):
    sure = ends_of(SPEARMAN, predictor, y)[0] > 0
    assert (f'{odd}{words}' in first) == sure
  words = re.search(
      r'\. r = (\S+) \[95 %: [^]]*\].* with misalignment .* r = (\S+) \[[^]]*\].* with '
      r'training loss; r of misalignment minus that of training loss, both in the '
      r'direction that is claimed, is (\S+) \[95 %: ([^]]*), ([^]]*)\]\. ',
      first).groups()
  low, high = ends_of(gain_of, x, y, z)
  assert words == tuple(map(signed, (
      SPEARMAN(x, y), SPEARMAN(z, y), gain_of(x, y, z), low, high)))
  among = re.search(
      r' positions and L, (\d+) models: r = (\S+) \[.*\] and r = (\S+) \[.*\], '
      r'and the difference is (\S+) \[95 %: ', first).groups()
  rest = used.only([kinds_of(used).count(kind) > 1 for kind in kinds_of(used)])
  x, z, y = (less_means(kinds_of(rest), rest.means[n]) for n in (
      'symmetric_kl', 'training_cross_entropy', 'score_near'))
  assert among == (str(len(rest.models)), *map(signed, (
      SPEARMAN(x, y), SPEARMAN(z, y), gain_of(x, y, z))))


def test_each_verdict_is_that_of_its_intervals():
  made = lambda low, high: related.Related(
      *4 * [statistics.Estimate(0.5, 0.4, 0.6)],
      statistics.Estimate((low + high) / 2, low, high))
  of = lambda one, other, *predict, alike=(True, True): answer._verdict(
      made(*one), made(*other), predict or (True, True), alike)
  up, down, both = (0.01, 0.5), (-0.5, -0.01), (-0.3, 0.3)
  better = 'misalignment predicts it better than training loss'
  worse = 'training loss predicts it better than misalignment'
  assert of(up, up) == f'{better}, {_SAME}' and of(down, down) == f'{worse}, {_SAME}'
  but = ' over all models but not among those with the same positions and L'
  assert of(up, down) == of(up, both) == f'undecided, as {better}{but}'
  assert of(down, both) == of(down, up) == f'undecided, as {worse}{but}'
  assert of(both, up) == of((-0.3, 0.1), both) == of((-0.1, 0.3), both) == _UNSURE
  equal = 'misalignment and training loss predict it equally well'
  though = ' over all models, though among those with the same positions and L '
  assert of((-0.19, 0.19), both) == of((0.01, 0.1), both) == equal
  assert of((0.01, 0.1), up) == f'{equal}{though}{better}'
  assert of((0.01, 0.1), down) == f'{equal}{though}{worse}'
  # Who is better must predict it at all; who is equal, both.
  assert of(up, up, True, False) == f'{better}, {_SAME}'
  assert of(down, down, False, True) == f'{worse}, {_SAME}'
  assert of(up, up, False, True) == of(down, down, True, False) == _UNSURE
  assert of((-0.1, 0.1), up, True, False) == _UNSURE
  assert of(up, (np.nan, np.nan)) == (
      f'undecided, as {better} over all models, without a control')
  none = 'neither misalignment nor training loss is found to predict it'
  assert of(up, both, False, False) == of((-0.1, 0.1), both, False, False) == none
  assert of(both, up, False, False, alike=(True, False)) == f'{none}{though}{better}'
  assert of(up, down, False, False, alike=(False, True)) == f'{none}{though}{worse}'
  # Who is better there must predict it there.
  assert of(both, up, False, False, alike=(False, True)) == none
  assert of(up, down, False, False, alike=(True, False)) == none


def test_a_predictor_predicts_if_r_is_surely_in_the_direction_that_is_claimed():
  made = lambda low, high: related.Related(
      statistics.Estimate(9, 9, 9), statistics.Estimate(0, low, high),
      *3 * [statistics.Estimate(9, 9, 9)])
  run = study_of()
  for low, high, sign, known in ((0.1, 0.5, 1, True), (-0.1, 0.5, 1, False),
                                 (-0.5, -0.1, -1, True), (-0.5, 0.1, -1, False),
                                 (0.1, 0.5, -1, False), (np.nan, np.nan, 1, False)):
    assert answer._predicts(run, made(low, high), sign) == known


def test_the_paper_is_the_last_sentence(run, found):
  last = answer.answer(run, found)[-1]
  score, nll = (tables.published(run, 'misalignment', x).gain for x in ('score', 'nll'))
  of = lambda x: f'{signed(x.value)} [95 %: {signed(x.ci_low)}, {signed(x.ci_high)}]'
  assert last == (
      "The paper's seven rows, recomputed: r of misalignment, in the direction that is "
      f'claimed, minus that of training loss is {of(score)} for LongBench-E, {of(nll)} '
      'for log perplexity; seven models do not decide it.')
  assert signed(score.value) == '+0.38'


def test_there_is_no_verdict_without_models_that_learned_and_differ(run):
  def first(score, rows=None):
    return answer.answer(run, points.points(run, rows or made_rows(run, score)))[0]

  some = [r for r in made_rows(run) if r.arm not in ('rope_01', 'alibi_01_term')]
  assert first(None, some) == (
      'No verdict: 36 of 40 seeds of 20 models have results, and it is about all of '
      'them.')
  # A model with one seed of two is not done.
  for left in (0, 1):
    some = [r for r in made_rows(run) if r.seed == left or r.arm == 'alibi_01']
    assert first(None, some).startswith('No verdict: 21 of 40 seeds of 20 models have ')
  alone = run._replace(num_seeds=1)
  some = [r for r in made_rows(run) if r.arm != 'rope_01' and r.seed == 0]
  assert answer.answer(alone, points.points(alone, some))[0] == (
      'No verdict: 19 of 20 models have results, and it is about all of them.')
  # Seeds beyond the plan count for no other.
  more = [r for r in made_rows(run) if r.arm != 'rope_01']
  assert answer.answer(alone, points.points(alone, more))[0].startswith(
      'No verdict: 19 of 20 models')
  # A seed with a value that is not finite has been run.
  lost = [r._replace(value=np.inf) if (r.arm, r.metric) == ('rope_01', 'nll') else r
          for r in made_rows(run)]
  assert first(None, lost).startswith('Score up to 2 L over 15 models')
  few = lambda i, n: 0.3 if n == 1 and i < 7 else score_of(i, n)
  kept = sum(not m.weight for m in run.models[7:])
  assert kept < 12 and first(few) == (
      f'No verdict: {kept} models that learned each task that counts, without the '
      'misalignment term, fewer than 12.')
  assert answer.FEWEST == 12
  # Beyond L they have 0.24 on average, shortcuts 0.153.
  floor = lambda i, n: 0.95 if n == 1 else 0.1 + 0.02 * ORDER[i]
  low = points.compared(run, points.points(run, made_rows(run, floor)))
  mean = low.means['score_near'].mean()
  assert 0.05 < mean - 0.153 < 0.1 and first(floor) == (
      f'No verdict: the mean score up to 2 L, {mean:.3f}, is less than 0.1 above that '
      'of shortcuts.')
  alike = lambda i, n: 0.95 if n == 1 else 0.6 + 0.005 * ORDER[i]
  spread = points.compared(run, points.points(run, made_rows(run, alike))).means[
      'score_near'].std(ddof=1)
  assert 0.02 < spread < 0.05 and first(alike) == (
      'No verdict: scores up to 2 L hardly differ: their standard deviation over '
      f'models is {spread:.3f}, less than 0.05.')
  assert first(lambda i, n: 0.95 if n == 1 else 0.6 + 0.012 * ORDER[i]).startswith(
      'Score up to 2 L over 16 models')
  assert answer.answer(run, points.points(run, [])) == [
      'No verdict: 0 of 40 seeds of 20 models have results, and it is about all of '
      'them.',
      answer._of_paper(run)]


def test_the_answer_says_what_models_have_learned(run):
  rows = made_rows(run, lambda i, n: 0.3 if n == 1 and i < 3 else score_of(i, n))
  made = points.points(run, rows)
  count = sum(not m.weight for m in run.models[3:])
  used = points.compared(run, made)
  assert len(used.models) == count < 16
  mean = {f: used.means[f].mean() for f in (At('score', 1), 'score_near', 'score_far')}
  assert answer.answer(run, made)[1] == (
      f'{count} of 16 models without the misalignment term have learned each task that '
      'counts, niah_single and qa1, that is, have at L, the length of their training, '
      'scores at least halfway from those of shortcuts to 1. Mean score of these: '
      f'{mean[At("score", 1)]:.3f} at L, '
      f'{mean["score_near"]:.3f} up to 2 L, {mean["score_far"]:.3f} from 2 L on; '
      'shortcuts have 0.150 at L and 0.153 up to 2 L.')
  # Two diverged, and one of the term, which is not counted here.
  lost = [r._replace(value=np.inf)
          if r.arm in ('rope_01', 'alibi_01', 'rope_01_term') and r.metric == 'nll'
          else r for r in made_rows(run)]
  said = answer.answer(run, points.points(run, lost))[1]
  assert said.startswith('14 of 14 models without')
  assert ' to 1. 2 more models had a value that is not finite. Mean score of' in said
  nobody = answer.answer(run, points.points(run, made_rows(run, lambda i, n: 0.2)))[1]
  assert nobody.startswith('0 of 16 models') and 'Mean score of all: 0.173' in nobody


def test_a_correlation_that_is_undefined_has_no_verdict(run):
  same = points.points(run, made_rows(run, excess=[1.0] * 20))
  assert answer.answer(run, same)[0] == (
      'Score up to 2 L over 16 models: no verdict, as a correlation is undefined.')
