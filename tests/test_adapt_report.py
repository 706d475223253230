"""Whole reports of `experiments.adapt`, from made-up rows."""

import json

import pytest

from experiments.adapt import methods, report, tables
from experiments.adapt.answer import answer
from experiments.language_model.arms import Arm
from tests.adapt_cases import (
    ARMS,
    by_holm,
    compare,
    config_of,
    evaluations_of,
    made_index,
    shown_difference,
)
from tests.artists import bands, lines
from tests.cells import cells, text
from vvlen.reporting import plots, results


@pytest.fixture
def index():
  return made_index()


def test_families_are_methods_with_their_controls():
  config = config_of('study').to_dict()
  found = report.families(report.read_run(config), config)
  assert [f.name for f in found] == ['none', 'pi', 'yarn', 'clex']
  for family in found:
    assert family.control == Arm(family.name, 0.0, (0.0, 0.5), 1.0, 'sce')
    assert family.primary == f'{family.name}_alpha_0_1'
    # Also if another arm with the same α stands before it.
    arms = {name: arm for name, arm in config['arms'].items() if name.startswith(
        family.name) and name != family.primary}
    arms[family.primary] = config['arms'][family.primary]
    changed = {**config, 'arms': arms}
    [again] = report.families(report.read_run(changed), changed)
    assert again.primary == family.primary
    assert [arm.name for arm in family.others] == [f'{family.name}_{end}' for end in (
        'alpha_0_03', 'alpha_0_1', 'alpha_0_3', 'entropy', 'more_steps',
        'symmetric_kl')]
  assert report.read_run(config).endpoint == 2
  config = config_of('longqlora').to_dict()
  _, family = report.families(report.read_run(config), config)
  assert family.title == ('position interpolation, adapters of rank 64 over nf4 '
                          'weights, shifted sparse attention')


def test_a_figure_of_a_method_has_its_weights_and_another_the_controls():
  config = config_of('study').to_dict()
  *_, clex = report.families(report.read_run(config), config)
  drawn = {name: [arm.name for arm in (part.control, *part.others)]
           for name, part in report._in_figures(clex).items()}
  assert drawn == {
      'clex': ['clex', 'clex_alpha_0_03', 'clex_alpha_0_1', 'clex_alpha_0_3'],
      'clex_controls': ['clex', 'clex_alpha_0_1', 'clex_entropy', 'clex_more_steps',
                        'clex_symmetric_kl']}
  weights = clex._replace(others=clex.others[:3])
  assert report._in_figures(weights) == {'clex': weights}
  entropy = clex._replace(others=clex.others[3:4], primary='')
  assert report._in_figures(entropy) == {'clex_controls': entropy}
  assert report._in_figures(clex._replace(others=())) == {}


def test_methods_have_these_names():
  assert report.NAMES == {
      'none': 'fine-tuning alone', 'pi': 'position interpolation', 'ntk': 'NTK',
      'yarn': 'YaRN', 'eabf': 'EABF', 'clex': 'CLEX', 'random': 'random positions',
      'alibi': 'ALiBi'}
  assert {*report.NAMES} == {*methods.METHODS}
  run = report.read_run(config_of('study').to_dict())
  assert run.words == '200 steps of 4 streams'
  assert run.arms['pi_entropy'] == Arm('pi_entropy', 0.1, (0.0, 0.5), 1.0, 'entropy')


def test_the_report_has_what_its_rows_say(index, tmp_path, monkeypatch):
  """No table or figure shows an interval of a difference of YaRN, which did not learn.

  The table of methods once did, so that a page said in its table what its figure and
  its answer do not: a test of models that have not learned tells nothing on lengths.
  """
  drawn = {}
  monkeypatch.setattr(plots, 'save', lambda folder, made: drawn.update(made) or {})
  arms = {arm.name: {'method': arm.name.partition('_')[0], 'weight': arm.weight,
                     'offsets': arm.offsets, 'steps': arm.steps, 'term': arm.term}
          for arm in ARMS.values()}
  config = {**config_of().to_dict(), 'arms': arms, 'num_seeds': 3,
            'inputs': {'original_length': 8, 'pair_nats': 1.71}}
  config['evaluate'] = {**config['evaluate'], 'segment': 3}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  every = [results.Row('adapt', name, seed, n, metric, x)
           for (name, metric, n), values in index.items()
           for seed, x in values.items()]
  results.write_rows(tmp_path / 'results.csv', every)
  found = report.write(tmp_path)
  run = report.read_run(config)
  made = {table.name: table for table in found.tables}
  assert [*made] == ['methods', 'term', 'paper', 'none', 'none_by_length', 'yarn',
                     'yarn_by_length', 'sliding', 'misalignment']
  assert [*drawn] == ['term', 'methods', 'none', 'yarn', 'yarn_controls']
  first, second = cells(made['methods'])
  column = 'Δ log perplexity at 2 L [95 %]'
  assert (first['method'], first[column]) == ('fine-tuning alone', '')
  test = compare(index, 'yarn', 'none')
  assert second[column] == text(test.mean_difference, '+.4f')
  assert 'the checkpoint has 8 tokens' in made['methods'].note
  families = report.families(run, config)
  assert found.answer == answer(families, run, index, 1.71)
  assert 'that of counts of pairs of tokens is 5.53,' in found.answer[-1]
  # YaRN has not learned.
  assert cells(made['term']) == cells(tables.term(families, run, index, ['YaRN']))
  # So its own tables have no test either.
  by_arm, by_length = cells(made['yarn'])[1:], cells(made['yarn_by_length'])
  assert {row['p'] for row in by_arm} == {'not learned'}
  tested = [row for row in by_length if row['Δ log perplexity [95 %]']]
  assert len(tested) == 4 and not any('[' in row['Δ log perplexity [95 %]']
                                      for row in tested)
  assert {row['p: log perplexity'] for row in tested} == {'not learned'}
  alone = [row for row in cells(made['none_by_length']) if '[' in row[
      'Δ log perplexity [95 %]']]
  assert [row['arm'] for row in alone] == ['α = 0.1']
  assert 'not learned' not in alone[0]['p: log perplexity']
  # Figures leave out what tables leave out.
  assert len(bands(drawn['none'].axes[1])) == 1 and not bands(drawn['yarn'].axes[1])
  assert not bands(drawn['methods'].axes[1])
  assert all(name.endswith(', not learned') for name in lines(drawn['yarn'].axes[1]))
  assert 'over segments of 3 L' in made['sliding'].note
  assert found.missing == ''
  # Without a control, an arm, or a seed.
  write = lambda keep: results.write_rows(
      tmp_path / 'results.csv', [row for row in every if keep(row)])
  write(lambda row: row.arm != 'none')
  found = report.write(tmp_path)
  assert [r['label'] for r in found.tables[0].records] == ['YaRN']
  assert cells(found.tables[0])[0][column] == ''
  write(lambda row: row.arm not in ('none_alpha', 'yarn_kl', 'yarn_more'))
  made = {table.name: table for table in report.write(tmp_path).tables}
  assert [*made] == ['methods', 'term', 'paper', 'yarn', 'yarn_by_length', 'sliding',
                     'misalignment']
  assert [r['method'] for r in made['term'].records] == ['yarn']
  assert 'symmetric KL alone [95 %]' not in made['term'].columns
  assert len(made['sliding'].records) == 4
  write(lambda row: (row.arm, row.seed) != ('yarn_kl', 1))
  assert report.write(tmp_path).missing == (
      'The run is not finished: yarn_kl has 2 of 3 seeds.')
  # With measurements after more than one step.
  (tmp_path / 'evaluations.jsonl').write_text(''.join(
      json.dumps(line) + '\n'
      for line in evaluations_of(index, dict.fromkeys(ARMS, (2, 4)))))
  *_, table = report.write(tmp_path).tables
  assert (table.name, len(table.records)) == ('steps', 14)
  assert (tmp_path / 'tables/steps.csv').exists()
  # The steps 0 of fine-tuning alone are of the checkpoint.
  before = [{'arm': 'none', 'step': 0, 'first_seed': 0, 'nll_8': [2.0], 'nll_32': [x]}
            for x in (2.0, 2.1)]
  for line, there in zip(before, (True, False), strict=True):
    (tmp_path / 'evaluations.jsonl').write_text(json.dumps(line) + '\n')
    said = report.write(tmp_path).answer[-1].startswith('At that length the checkpoint')
    assert said == there
  # A pilot is known by the command that started it.
  plain = report.write(tmp_path)
  for variant, pilot in (('study', False), ('study_pilot', True)):
    command = f'python -m experiments.adapt --config=configs/adapt.py:{variant}'
    (tmp_path / 'config.json').write_text(json.dumps({
        'config': config, 'sessions': [{'device': 'cpu'}, {'command': command}]}))
    found = report.write(tmp_path)
    assert found.title == plain.title + ' A pilot' * pilot
    assert found.answer == [report._PILOT.ljust(len(report._PILOT) + 1) * pilot
                            + plain.answer[0], *plain.answer[1:]]
  # L is at which seeds are counted.
  write(lambda row: (row.arm, row.seed, row.length) != ('yarn_kl', 1, 32))
  assert report.write(tmp_path).missing == ''


def test_the_primary_endpoint_is_the_same_test_in_the_table_of_its_method(
    index, tmp_path, monkeypatch):
  """Corrected over methods, as the answer says it.

  The table of a method once had its p and interval without any correction, and called
  them primary too.
  """
  monkeypatch.setattr(plots, 'save', lambda folder, made: {})
  arms = {arm.name: {'method': arm.name.partition('_')[0], 'weight': arm.weight,
                     'offsets': arm.offsets, 'steps': arm.steps, 'term': arm.term}
          for arm in ARMS.values()}
  config = {**config_of().to_dict(), 'arms': arms, 'num_seeds': 3,
            'inputs': {'original_length': 8, 'pair_nats': 4.0}}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  results.write_rows(tmp_path / 'results.csv', [
      results.Row('adapt', name, seed, n, metric, x)
      for (name, metric, n), values in index.items() for seed, x in values.items()])
  made = {table.name: table for table in report.write(tmp_path).tables}
  test = compare(index, 'none_alpha', 'none')
  for name, of_term in zip(('none', 'yarn'), cells(made['term']), strict=True):
    [row] = [row for row in cells(made[name]) if row['arm'] == 'α = 0.1']
    assert row['Δ log perplexity at 2 L [95 %]'] == of_term['misalignment term [95 %]']
    assert row['p'] == f'{of_term["p Holm"]}, primary'
    assert row['smallest detectable'] == of_term['smallest detectable']
    assert 'but for the primary endpoint, over methods (table term).' in made[name].note
  assert of_term['misalignment term [95 %]'] and shown_difference(test) != (
      cells(made['term'])[0]['misalignment term [95 %]'])
  # The others are corrected over their own table alone.
  [entropy] = [row for row in cells(made['yarn']) if 'entropy' in row['arm']]
  three = [(f'yarn_{name}', 'yarn') for name in ('entropy', 'kl', 'more')]
  assert entropy['Δ log perplexity at 2 L [95 %]'] == by_holm(index, *three)[0]


@pytest.mark.slow
def test_a_run_whose_controls_are_missing_has_a_report(index, tmp_path):
  arms = {'yarn_alpha': config_of().arms.yarn_alpha_0_1.to_dict(),
          'yarn': config_of().arms.yarn.to_dict()}
  config = {**config_of().to_dict(), 'arms': arms,
            'inputs': {'original_length': 8, 'pair_nats': 3.0}}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  rows = [results.Row('adapt', 'yarn_alpha', 0, n, 'nll', 1.5) for n in (8, 16, 32)]
  results.write_rows(tmp_path / 'results.csv', rows)
  found = report.write(tmp_path)
  assert found.answer == ['No verdict: no method has results yet.']
  # Here 16; the checkpoint has 8 tokens.
  assert 'L is the length of inputs in fine-tuning' in found.about
  results.write_rows(tmp_path / 'results.csv', [
      *rows, *(row._replace(arm='yarn') for row in rows)])
  names = {table.name for table in report.write(tmp_path).tables}
  assert names == {'methods', 'term', 'paper', 'yarn', 'yarn_by_length', 'sliding',
                   'misalignment'}
  # Without the arm of the primary endpoint.
  results.write_rows(tmp_path / 'results.csv', [
      row._replace(arm='yarn') for row in rows])
  assert {table.name for table in report.write(tmp_path).tables} == {
      'methods', 'sliding', 'misalignment'}


@pytest.mark.slow
def test_methods_are_compared_with_the_method_none(index, tmp_path):
  config = {**config_of().to_dict(),
            'inputs': {'original_length': 8, 'pair_nats': 3.0}}
  (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
  results.write_rows(tmp_path / 'results.csv', [
      results.Row('adapt', name, seed, n, 'nll', x) for name in ('none', 'yarn')
      for n in (8, 16, 32) for seed, x in index[name, 'nll', n].items()])
  first, second = cells(report.write(tmp_path).tables[0])
  column = 'Δ log perplexity at 2 L [95 %]'
  assert (first['method'], first[column]) == ('fine-tuning alone', '')
  assert second[column] == shown_difference(compare(index, 'yarn', 'none'))
