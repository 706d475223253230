"""Models as points: means over seeds, what is left out, names, from made-up rows."""

import numpy as np

from experiments.correlation import points, tables
from experiments.correlation.points import At, OfTask
from tests import correlation_cases as cases
from tests.correlation_cases import (
  config_of,
  EXCESS,
  KEPT,
  LOSS,
  made_rows,
  names_of,
  ORDER,
  study_of,
)

# Fixtures of this file.
run, found, used = cases.run, cases.found, cases.used


def test_a_model_is_the_mean_of_its_seeds(run, found):
  assert len(run.models) == 20 and names_of(found) == [m.name for m in run.models]
  assert {m.length for m in run.models} == {112, 128}
  assert run.lengths == (1, 1.25, 1.5, 1.75, 2, 4, 8)
  assert run.nll_lengths == (1, 2, 4, 8)
  assert run.near == (1.25, 1.5, 1.75, 2) and run.far == (2, 4, 8)
  means = found.means
  np.testing.assert_allclose(means['training_cross_entropy'], np.array(LOSS) + 0.005)
  # Predictors are at L, the length of a model's own training.
  np.testing.assert_allclose(means['symmetric_kl'], np.array(EXCESS) + 0.0005)
  np.testing.assert_allclose(means['sce'], 6 + np.arange(20) / 3)
  near, far = 0.9 - 0.02 * ORDER - 0.04 * np.mean([[1.25, 1.5, 1.75, 2]]), (
      0.9 - 0.02 * ORDER - 0.04 * 14 / 3)
  np.testing.assert_allclose(means['score_near'], near + 0.0025 - 0.03)
  np.testing.assert_allclose(means['score_far'], far + 0.0025 - 0.03)
  np.testing.assert_allclose(means[At('score', 1)], 0.95 + 0.0025 - 0.03)
  np.testing.assert_allclose(
      means['nll_beyond'], 2 + ORDER**2 / 50 + 14 / 3 / 4 + 0.005)
  np.testing.assert_allclose(means['nll'], 2 + ORDER**2 / 50 + 1 / 4 + 0.005)
  np.testing.assert_allclose(means['chance'], 0.1)
  np.testing.assert_allclose(means['shortcut'], 0.15)
  np.testing.assert_allclose(means[OfTask('qa1', 1, 'shortcut')], 0.25)
  np.testing.assert_allclose(means['shortcut_near'], 0.15 + 0.625 / 200)
  np.testing.assert_allclose(means[OfTask('qa1', 1.5, 'score_strict')],
                             0.84 - 0.02 * ORDER - 0.11 * (np.arange(20) % 3))
  assert found.left_out == []


def test_seeds_that_are_not_finite_or_not_whole_are_left_out(run):
  rows = made_rows(run)
  bad = {('alibi_02', 1): 'nll', ('rope_01', 0): 'js', ('rope_01', 1): 'sce'}
  rows = [r._replace(value=np.nan) if bad.get((r.arm, r.seed)) == r.metric else r
          for r in rows if (r.arm, r.seed, r.metric, r.experiment) !=
          ('rope_02', 0, 'score', 'qa1')]
  found = points.points(run, rows)
  assert found.left_out == [('alibi_02', 1), ('rope_01', 0), ('rope_01', 1)]
  assert names_of(found) == [m.name for m in run.models if m.name != 'rope_01']
  seeds = {name: sorted(x) for name, x in
           zip(names_of(found), found.seeds['score_near'], strict=True)}
  assert seeds == {name: {'alibi_02': [0], 'rope_02': [1]}.get(name, [0, 1])
                   for name in seeds}
  assert 'left out: alibi_02, seed 1; rope_01, seed 0' in tables.table_1(
      run, found).note


def test_compared_are_models_without_the_term_that_learned_each_task(run, found, used):
  assert names_of(used) == sorted(KEPT)
  # Halfway from the shortcuts .05 and .25 to 1: .525 and .625, of means over seeds.
  at = {'rope_01': (0.519, 0.95), 'rope_02': (0.521, 0.95), 'alibi_01': (0.95, 0.684),
        'alibi_02': (0.95, 0.686)}

  def score(of):
    return lambda i, n: at.get(run.models[i].name, (0.95, 0.95))[of]

  one, other = (made_rows(run, score(of)) for of in (0, 1))
  rows = [a if a.experiment == 'niah_single' else b
          for a, b in zip(one, other, strict=True)]
  made = points.points(run, rows)
  of = lambda task: {name for name, ok in zip(
      names_of(made), points.learned(run, made, task), strict=True) if not ok}
  assert of('niah_single') == {'rope_01'} and of('qa1') == {'alibi_01'}
  assert of('') == {'rope_01', 'alibi_01'}
  assert names_of(points.compared(run, made)) == [
      name for name in sorted(KEPT) if name not in ('rope_01', 'alibi_01')]
  cells = {r['model']: r['not_learned'] for r in tables.models(run, made).records}
  assert {name: x for name, x in cells.items() if x} == {
      'rope_01': 'niah_single', 'alibi_01': 'qa1'}
  assert not points.learned(run, made.only(np.zeros(20, bool))).size


def test_models_and_predictors_have_these_names():
  config = config_of('quick')
  labels = {m.name: m.label for m in points.read_run(config.to_dict()).models}
  assert labels == {
      'rope': 'RoPE 10,000', 'alibi_short': 'ALiBi, 0.75 of the length',
      'no_positions': 'no positions', 'layer_norm': 'RoPE 10,000, LN after attention',
      'fewer_steps': 'RoPE 10,000, 0.75 of the steps',
      'rope_term': 'RoPE 10,000, α = 0.1'}
  config.models.rope.update(offsets=(0.25, 1.0), rope_base=1e6, norm='standardize')
  assert 'RoPE 1,000,000, std. after attention, e / L in 0.25..1' in [
      m.label for m in points.read_run(config.to_dict()).models]
  run = points.read_run(config_of('cpu').to_dict())
  assert {m.positions for m in run.models} == {
      'RoPE 10,000', 'RoPE 1,000', 'RoPE 1,000,000', 'ALiBi'}
  assert {m.weight for m in run.models if m.name.endswith('term')} == {0.1}
  assert points.PREDICTORS == {
      'training_cross_entropy': 'training loss',
      'nll': 'log perplexity at L', 'symmetric_kl': 'symmetric KL',
      'sce': 'SCE', 'js': 'Jensen–Shannon',
      'kl_first_second': 'KL(long‖short)', 'kl_second_first': 'KL(short‖long)',
      'entropy_first': 'entropy, long', 'entropy_second': 'entropy, short',
      'top1_agreement': 'top-1 agreement'}
  assert points.OUTCOMES == {
      'score_near': 'score up to 2 L', 'score_far': 'score from 2 L on',
      'nll_beyond': 'log perplexity beyond L'}
  assert (run.measure, run.outcome, run.correlation) == (
      'symmetric_kl', 'score_near', 'spearman')
  assert run.words == '2 layers of width 64, 12,000 to 15,000 steps'
  assert points.outcomes(study_of(**{'primary.outcome': 'nll_beyond'})) == [
      'nll_beyond', 'score_near', 'score_far']
