"""The figures of a league, from made-up rows."""

import types

import numpy as np
import pytest
from scipy import stats

from experiments.league import effects, figures, ranking
from experiments.league.names import KINDS, name_of
from tests.artists import lines, shades
from tests.league_cases import (
  endpoints_of,
  GAINS,
  LENGTHS,
  make_accuracies,
  make_facts,
  make_rows,
  RATES,
  read_case,
)
from vvlen.reporting import plots, results
from vvlen.reporting.plots import SMALLEST, WIDTH


def test_the_figure_of_the_league_shows_every_gain_and_its_interval():
  accuracies = make_accuracies()
  known, _, found = read_case(make_rows(accuracies, {('lookup', 'power'): 0.5}))
  with plots.style():
    drawn = figures.league(found, known)
  assert drawn.get_size_inches()[0] == WIDTH == 5.5
  retrieval, _ = drawn.axes
  assert [axes.get_title() for axes in drawn.axes] == ['retrieval', 'lookup']
  gains = lambda task, arm: (
      endpoints_of(accuracies, task, arm) - endpoints_of(accuracies, task, 'softmax'))
  mean = lambda arm: np.mean([gains(task, arm).mean() for task in GAINS])
  order = sorted(GAINS['lookup'], key=lambda arm: -mean(arm))
  assert [t.get_text() for t in retrieval.get_yticklabels()] == [
      name_of(arm).label for arm in order]
  low, high = retrieval.get_ylim()
  assert low > len(order) - 1 and high < 0  # the largest gain is on top, all are seen
  for axes, task in zip(drawn.axes, GAINS, strict=True):
    assert lines(axes) == {} and axes.lines[0].get_xdata() == [0, 0]  # softmax
    assert {c.get_label() for c in axes.containers} == set(order)
    for container in axes.containers:
      arm = container.get_label()
      dot, _, bars = container.lines
      own = gains(task, arm)
      wide = stats.ttest_1samp(own, 0).confidence_interval(1 - 0.05 / 3)
      assert dot.get_xdata()[0] == pytest.approx(own.mean())
      assert dot.get_ydata()[0] == order.index(arm)
      _, colour, marker = KINDS[name_of(arm).kind]
      assert (dot.get_color(), dot.get_marker()) == (colour, marker)
      hollow = (task, arm) == ('lookup', 'power')  # it has not learned
      if hollow:
        assert not bars
      else:
        np.testing.assert_allclose(bars[0].get_segments()[0][:, 0], wide)
      assert dot.get_markerfacecolor() == ('white' if hollow else colour)
  assert [t.get_text() for t in drawn.legends[0].get_texts()] == [
      'law of temperature', 'norm of the output']
  assert {axes.get_xlabel() for axes in drawn.axes} == {'gain (points)'}
  assert drawn.get_label() == (
      'Mean accuracy beyond the training lengths, arm minus softmax in points, paired '
      'over 6 seeds, with 95 % intervals corrected over the 3 arms of a task '
      '(Bonferroni); hollow: no verdict (the table says why), and no interval if the '
      'run or the training is not finished. Softmax is the line at 0; arms are sorted '
      'by their mean over the tasks that all have.')


def test_arms_are_sorted_by_their_mean_over_the_tasks_that_all_have():
  gains = {'log_n': (9, 1, 2), 'power': (4, 4.5, 4.2), 'sink': (-9, 6, 5),
           'entmax': (7, None, 6), 'linear': (None, None, None)}
  effect = lambda arm, gain: types.SimpleNamespace(
      arm=arm, test=None if gain is None else types.SimpleNamespace(
          mean_difference=gain))
  found = {task: [effect(arm, own[i]) for arm, own in gains.items()]
           for i, task in enumerate(('retrieval', 'lookup', 'set_complement'))}
  # All but linear, which has no gain at all, have retrieval and set complement.
  assert ranking.sorted_arms(found) == ['entmax', 'log_n', 'power', 'sink']
  # One arm on lookup alone: then retrieval counts, of which there are more.
  found['lookup'].append(effect('linear', 99))
  assert ranking.sorted_arms(found) == ['log_n', 'entmax', 'power', 'sink', 'linear']
  assert ranking.sorted_arms({}) == []


def test_kinds_of_arms_can_be_told_apart():
  looks = [(colour, marker) for _, colour, marker in KINDS.values()]
  assert len(set(looks)) == len(looks)
  assert len({colour for colour, _ in looks}) == len(looks)
  known = {colour for colour, _ in plots.LOOKS}
  assert {colour for colour, _ in looks} <= known | {'#E69F00'}
  assert KINDS[name_of('layer_norm').kind] != KINDS[name_of('log_n').kind]


def test_accuracy_by_length_shows_softmax_ln_and_the_best_arm_of_each_task():
  accuracies = make_accuracies()
  lookup = [accuracies.pop(('lookup', arm)) for arm in ('log_n', 'power')]
  accuracies['lookup', 'power'], accuracies['lookup', 'log_n'] = lookup
  known, indices, found = read_case(make_rows(accuracies))
  with plots.style():
    drawn = figures.by_length(indices, found, known)
  for axes, task in zip(drawn.axes, GAINS, strict=True):
    drawn_lines = lines(axes)
    assert set(drawn_lines) == {'softmax', 'LN', 'log n', 'n^p', 'chance'}
    assert {*drawn_lines.pop('chance').y} == {10}
    assert len({line.colour for line in drawn_lines.values()}) == 4
    for arm in RATES:
      line = drawn_lines[name_of(arm).label]
      assert line.x == list(LENGTHS)
      np.testing.assert_allclose(line.y, accuracies[task, arm].mean(axis=0))
    [(_, shaded_up_to)] = shades(axes)
    assert (axes.get_title(), shaded_up_to) == (task, 16)
    assert axes.get_xlabel() == 'number of items N'
  assert [axes.get_ylabel() for axes in drawn.axes] == ['accuracy (%)', '']
  assert drawn.get_label() == (
      'Accuracy by number of items N of softmax, LN (where it is among the arms) and '
      'the arms beside LN that gain most on a task (its own first, five lines at most, '
      'arms with a verdict where there are any); mean over 6 seeds, with bands of 95 % '
      'intervals; training lengths are shaded.')
  # An arm without a verdict is not among them, whatever it gains.
  found = {task: [x._replace(verdict=effects.DIVERGED)
                  if x.arm == 'log_n' else x for x in own]
           for task, own in found.items()}
  with plots.style():
    drawn = figures.by_length(indices, found, known)
  assert {*lines(drawn.axes[0])} == {'softmax', 'LN', 'n^p', 'chance'}


def test_few_arms_of_a_second_task_hide_none_of_the_first():
  # As a run is half way: all arms on retrieval; softmax, LN and n^p on lookup.
  accuracies = make_accuracies()
  del accuracies['lookup', 'log_n']
  known, indices, found = read_case(make_rows(accuracies))
  with plots.style():
    drawn = figures.by_length(indices, found, known)
    league = figures.league(found, known)
  assert {*lines(drawn.axes[0])} == {'softmax', 'LN', 'log n', 'n^p', 'chance'}
  assert {*lines(drawn.axes[1])} == {'softmax', 'LN', 'n^p', 'chance'}
  first = lambda arm: -np.mean(endpoints_of(accuracies, 'retrieval', arm))
  order = sorted(('log_n', 'power', 'layer_norm'), key=first)
  assert [x.get_text() for x in league.axes[0].get_yticklabels()] == [
      name_of(arm).label for arm in order]
  assert league.get_label().endswith(
      ' have. An arm without a mark has no result on that task.')


def test_no_panel_has_more_than_five_lines_its_own_best_arm_among_them():
  best = {'retrieval': 'log_n', 'lookup': 'power', 'associative_recall': 'entmax',
          'set_complement': 'sink'}
  arms = ('softmax', 'layer_norm', *best.values())
  rng = np.random.default_rng(0)
  value = lambda task, arm: (best[task] == arm) / 2 + rng.uniform(0, 0.1)
  rows = [results.Row(task, arm, seed, n, 'accuracy', value(task, arm))
          for task in best for arm in arms for seed in range(3) for n in LENGTHS]
  rows += [results.Row(task, arm, seed, None, 'training_accuracy', 1.0)
           for task in best for arm in arms for seed in range(3)]
  known = effects.family_of(make_facts(3, arms, best))
  indices = {task: results.index(r for r in rows if r.experiment == task)
             for task in known.tasks}
  found = effects.read_effects(indices, known)
  assert ranking.best_arms(found) == best
  with plots.style():
    drawn = figures.by_length(indices, found, known)
  shown = {axes.get_title(): lines(axes) for axes in drawn.axes}
  colours = {}
  for title, own in shown.items():
    guess = 'set ignored' if title == 'set complement' else 'chance'
    first = ('log n', 'n^p', 'sink' if title == 'set complement' else 'entmax-1.5')
    assert own.keys() == {'softmax', 'LN', *first, guess}
    for label, line in own.items():
      assert colours.setdefault(label, line.colour) == line.colour
  assert len({colours[label] for label in colours.keys() - {'set ignored'}}) == 7
  ignored = shown['set complement']['set ignored']
  assert (ignored.x[0], ignored.x[-1]) == (LENGTHS[0], LENGTHS[-1]) == (16, 64)
  np.testing.assert_allclose(ignored.y, 100 - 100 * np.array(ignored.x) / 64)
  assert {*shown['associative recall']['chance'].y} == {100 / 64}
  assert {axes.get_ylim()[0] for axes in drawn.axes} == {0}


def test_the_best_arm_of_a_task_has_a_verdict_if_any_has():
  effect = lambda arm, gain, verdict: types.SimpleNamespace(
      arm=arm, verdict=verdict, test=None if gain is None else types.SimpleNamespace(
          mean_difference=gain))
  found = {'retrieval': [effect('layer_norm', 9, effects.AHEAD),
                         effect('log_n', 5, effects.DIVERGED),
                         effect('sink', -1, effects.OPEN),
                         effect('power', -2, effects.BEHIND)],
           'lookup': [effect('log_n', 1, effects.NOT_FINISHED),
                      effect('power', 2, effects.NOT_LEARNED),
                      effect('sink', None, effects.NOT_FINISHED)],
           'set_complement': [effect('log_n', None, effects.NOT_FINISHED)]}
  assert ranking.best_arms(found) == {'retrieval': 'sink', 'lookup': 'power'}


def test_every_text_can_be_read(tmp_path):
  known, indices, found = read_case(make_rows(make_accuracies()))
  with plots.style():
    for drawn in (figures.league(found, known),
                  figures.by_length(indices, found, known)):
      drawn.savefig(tmp_path / 'x.png')
      sizes = [t.get_fontsize() for t in drawn.findobj(lambda a: hasattr(
          a, 'get_fontsize')) if t.get_text()]
      assert min(sizes) >= SMALLEST
