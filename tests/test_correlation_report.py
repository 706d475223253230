"""Figures and whole reports of the study of correlations."""

import json

import numpy as np
import pytest

from experiments.correlation import (
  answer,
  figures,
  paper,
  points,
  related,
  report,
  tables,
  unfinished,
)
from tests import correlation_cases as cases
from tests.correlation_cases import few_of_cpu, made_rows, signed, SPEARMAN
from vvlen.reporting import results
from vvlen.reporting.titles import setup_of

# Fixtures of this file.
run, found, used = cases.run, cases.found, cases.used


def _points_of(line):
  return np.array(line.get_xydata())


def _lines_but_shortcut(axes, used, outcome):
  """Returns the lines of a panel; of the score up to 2 L one more is the shortcut."""
  if outcome != 'score_near':
    return [*axes.lines]
  *lines, shortcut = axes.lines
  assert shortcut.get_label() == 'shortcut'
  assert {*shortcut.get_ydata()} == {used.means['shortcut_near'].mean()}
  return lines


def test_figures_have_a_point_for_each_model(run, found, used):
  made = figures.make(run, found)
  assert list(made) == ['correlations', 'paper', 'term']
  assert setup_of(made['correlations']) == (
      '2 layers of width 64, 12,000 to 15,000 steps, trained at L = 112 or 128 tokens')
  assert setup_of(made['paper']) == 'language models of 6 to 20 billion parameters'
  fields = [(x, y) for y in points.OUTCOMES
            for x in ('training_cross_entropy', 'symmetric_kl')]
  kinds = sorted({(m.positions, m.length) for m in used.models})
  for axes, (x, y) in zip(made['correlations'].axes, fields, strict=True):
    lines = _lines_but_shortcut(axes, used, y)
    seeds, *drawn = map(_points_of, lines)
    means = np.stack([used.means[x], used.means[y]], 1)
    looks = {}
    for line, own, (positions, length) in zip(
        lines[1:], drawn, kinds, strict=True):
      np.testing.assert_array_equal(own, means[[
          (m.positions, m.length) == (positions, length) for m in used.models]])
      assert line.get_label() == f'{positions}, L = {length}'
      assert (line.get_markerfacecolor() == 'white') == (length == 112)
      looks.setdefault((line.get_color(), line.get_marker()), set()).add(positions)
    assert len(looks) == len({m.positions for m in used.models})
    assert all(len(own) == 1 for own in looks.values())
    assert axes.get_xscale() == ('log' if x == 'symmetric_kl' else 'linear')
    np.testing.assert_array_equal(seeds, [
        (used.seeds[x][i][s], used.seeds[y][i][s]) for i in range(16) for s in (0, 1)])
    assert not axes.texts  # of sixteen models
    value, low, high = related.ours(run, used, x, y).spearman
    assert value == pytest.approx(SPEARMAN(*means.T)) and low < high
    assert axes.get_title() == (
        f'r = {signed(value)} [95 %: {signed(low)}, {signed(high)}]')
  assert [(a.get_xlabel(), a.get_ylabel()) for a in made['correlations'].axes] == [
      ('', 'score up to 2 L'), ('', ''), ('', 'score from 2 L on'), ('', ''),
      ('training loss, nats', 'log perplexity beyond L'), ('symmetric KL at L', '')]
  assert 'numbers' not in made['correlations'].get_label()
  label = made['correlations'].get_label()
  assert '; grey: single seeds; dotted: the score of an answer that takes a ' in label
  assert ', whatever is asked. r: Spearman' in label
  assert len(made['correlations'].legends[0].get_texts()) == len(kinds) + 1
  # Fewer models have numbers, and one seed needs no grey points.
  fewer = figures.of_models(run._replace(num_seeds=1), used.only(np.arange(16) < 15))
  numbers = [str(i + 1) for i, m in enumerate(run.models) if not m.weight][:15]
  for axes, (x, y) in zip(fewer.axes, fields, strict=True):
    means = np.stack([used.means[x], used.means[y]], 1)[:15]
    drawn = map(_points_of, _lines_but_shortcut(axes, used, y))
    assert sorted(map(tuple, np.concatenate([*drawn]))) == sorted(map(tuple, means))
    assert [(t.get_text(), *t.xy) for t in axes.texts] == [
        (i, *mean) for i, mean in zip(numbers, means, strict=True)]
  assert '; numbers: as in the table models; dotted: ' in fewer.get_label()
  few = found.only(np.arange(20) < 0)
  assert list(figures.make(run, few)) == ['paper']


def test_the_figure_of_the_paper_has_its_rows(run):
  figure, columns = figures.of_paper(run), paper.columns()
  fields = [(x, y) for y in ('score', 'nll') for x in ('training loss', 'misalignment')]
  for axes, (x, y) in zip(figure.axes, fields, strict=True):
    [means] = map(_points_of, axes.lines)
    np.testing.assert_array_equal(means, np.stack([columns[x], columns[y]], axis=1))
    assert [t.get_text() for t in axes.texts] == [*'1234567']
    r = tables.published(run, x, y).spearman.value
    assert axes.get_title().startswith(f'r = {signed(r)} [95 %: ')
    # Each predictor has an axis of its own.
    assert np.ptp(axes.get_xlim()) < 1.5 * np.ptp(columns[x])
  assert [(a.get_xlabel(), a.get_ylabel()) for a in figure.axes] == [
      ('', 'LongBench-E'), ('', ''), ('training loss', 'log perplexity at 16k'),
      ('misalignment', '')]
  assert figure.get_label() == (
      'LongBench-E and log perplexity at 16k, against training loss and misalignment, '
      'as the paper prints them: 1: GPT-J-6B, 2: GPT-NeoX-20B, 3: Llama2-7B, 4: '
      "RandomPos, 5: YaRN-8k, 6: Qwen-7B-8k, 7: CLEX-4K. r: Spearman's correlation, "
      'recomputed, with its bootstrap interval over the seven.')


def test_a_folder_of_made_rows_is_reported(run, tmp_path):
  results.write_text(tmp_path / 'config.json', json.dumps(
      {'config': few_of_cpu().to_dict(), 'sessions': []}))
  rows = [r for r in made_rows(run) if (r.arm, r.seed) != ('alibi_02', 1)]
  results.write_rows(tmp_path / 'results.csv', rows)
  made = report.write(tmp_path)
  assert made.missing == 'The run is not finished: alibi_02 has 1 of 2 seeds.'
  assert made.title.startswith('Does misalignment tell which models generalize')
  names = ['table_1', 'models', 'tasks', 'measures', 'by_length', 'groups', 'dialects',
           'term']
  assert [table.name for table in made.tables] == names
  assert len(made.figures) == 6
  # There is no verdict, nor one on the term, before the run is finished.
  assert made.answer == answer.answer(run, points.points(run, rows))
  assert [said.partition(':')[0] for said in made.answer] == [
      'No verdict', made.answer[1].partition(':')[0],
      "The paper's seven rows, recomputed"]
  assert made.answer[0] == (
      'No verdict: 39 of 40 seeds of 20 models have results, and it is about all of '
      'them.')
  assert made.answer[1].startswith('16 of 16 models without the misalignment term')
  part = '. Not finished: 39 of 40 seeds of 20 models, not a random part'
  assert all(table.title.endswith(part) for table in made.tables)
  assert len(answer.answer(run, points.points(run, made_rows(run)))) == 6


def test_what_is_made_before_the_end_says_of_which_models(run):
  rows = [r for r in made_rows(run) if not r.arm.startswith('rope') and (
      r.arm.startswith('low') or not r.arm.endswith('_term'))]
  part = '26 of 40 seeds of 20 models, not a random part, none with RoPE 10,000'
  found = points.points(run, rows)
  assert [table.title.partition('. ')[2] for table in tables.make(run, found)] == (
      8 * [f'Not finished: {part}'])
  assert setup_of(figures.make(run, found)['correlations']).endswith(
      f' = 112 or 128 tokens; not finished: {part}')
  # With no partner, there is no pair, and no table of pairs.
  rows = [r for r in rows if not r.arm.endswith('_term') and r.arm.startswith('low')]
  made = tables.make(run, points.points(run, rows))
  assert 'term' not in [table.name for table in made]
  assert made[0].title.endswith('8 of 40 seeds of 20 models, not a random part, none '
                                'with ALiBi or RoPE 1,000,000 or RoPE 10,000')
  alone = run._replace(num_seeds=1)
  assert unfinished.part(alone, points.points(alone, rows)).startswith('4 of 20 models')
  whole = points.points(run, made_rows(run))
  assert unfinished.part(run, whole) == ''
  assert not any('finished' in table.title for table in tables.make(run, whole))
