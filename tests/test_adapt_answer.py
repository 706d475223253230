"""Sentences and notes of `experiments.adapt`, from made-up numbers."""

import math

import numpy as np
import pytest

from experiments.adapt import paper_table, tables
from experiments.adapt.answer import answer, weak_methods, without_extension
from experiments.language_model.arms import Arm, Family
from tests.adapt_cases import (
    ARMS,
    compare,
    diverge,
    FAMILIES,
    made_index,
    RUN,
    shown_difference,
)
from tests.cells import cells, text
from vvlen.reporting.numbers import interval_words, p_words
from vvlen.statistics import at_level, holm, paired_t_test


@pytest.fixture
def index():
  return made_index()


def test_a_method_that_did_not_learn_has_no_verdict(index):
  # They have 1.66 and 1.76 nats at L, give or take 0.02.
  found = answer(FAMILIES, RUN, index, 1.71)
  p = holm([compare(index, f'{name}_alpha', name).p for name in ('none', 'yarn')])
  assert '(fine-tuning alone)' in found[0] and '(YaRN)' not in found[0]
  assert p_words(float(p[0])) in found[0]  # as in table term
  assert found[1] == (
      'No verdict on YaRN: it predicts no better than counts of pairs of tokens.')
  assert '; that of counts of pairs of tokens is 5.53, and less counts as' in found[2]
  weak = weak_methods(FAMILIES, RUN, index, 1.71)
  alone, yarn = cells(tables.term(FAMILIES, RUN, index, weak))
  whole, all_of_yarn = cells(tables.term(FAMILIES, RUN, index))
  assert alone == whole
  for name, cell in yarn.items():
    # Differences without their intervals, and no test.
    of_test = name.startswith('p') or name == 'smallest detectable'
    assert cell == ('' if of_test else all_of_yarn[name].partition(' [')[0]), name
  table = tables.term(FAMILIES, RUN, index, weak)
  assert table.note.endswith('Not learned, so that no test is shown: YaRN.')


def test_the_answer_in_whole_sentences(index):
  # In no arm a difference, of which p is between 5 % and 10 % at least once.
  index['none_alpha', 'nll', 32] = {
      seed: index['none', 'nll', 32][seed] + 0.04 + 0.016 * seed for seed in range(3)}
  index['none_alpha', 'nll', 32][1] -= 0.02
  index['yarn_alpha', 'nll', 32] = {
      seed: index['yarn', 'nll', 32][seed] - 0.02 * (-1) ** seed for seed in range(3)}
  tests = [compare(index, f'{name}_alpha', name) for name in ('none', 'yarn')]
  p = [float(x) for x in holm([test.p for test in tests])]
  assert 0.05 < p[0] < 0.1 < p[1]
  part = lambda ends, p, words: (
      f'{text(ends[0], "+.4f")} nats '
      f'{interval_words(*ends[1:], "+.4f")}, {p_words(p)} ({words})')
  # At 2.5 %, since in neither is a difference found.
  ends = [(test.mean_difference, test.ci_low, test.ci_high) for test in (
      at_level(test, 0.025) for test in tests)]
  alone, yarn = part(ends[0], p[0], 'fine-tuning alone'), part(ends[1], p[1], 'YaRN')
  perplexity = lambda length: ', '.join(
      f'{math.exp(np.mean([*index[name, "nll", length].values()])):.3g} ({words})'
      for name, words in (('none', 'fine-tuning alone'), ('yarn', 'YaRN')))
  assert answer(FAMILIES, RUN, index, 3.0) == [
      'At 2 L, 32 tokens, the misalignment term with α = 0.1 was not found to change '
      f'predictions with fine-tuning alone, YaRN: log perplexity changes by {alone}; '
      f'{yarn}. 3 pairs of seeds, p and intervals by Holm over methods.',
      f'Perplexity at the training length, 16 tokens: {perplexity(16)}; that of counts '
      f'of pairs of tokens is 20.1, and less counts as learned. At 2 L, 32 tokens: '
      f'{perplexity(32)}.']
  # A third method, of which nothing is known yet but that it has not learned.
  more = [*FAMILIES, *(Family(name, words, Arm(name, 0.0, (0.0, 0.5), 1.0), ())
                       for name, words in (('pi', 'PI'), ('clex', 'CLEX')))]
  for name in ('pi', 'clex'):
    index |= {(name, 'nll', n): dict.fromkeys(range(3), 3.5) for n in (8, 16, 32)}
  found = answer(more, RUN, index, 3.0)
  assert found[1] == (
      'No verdict on PI, CLEX: they predict no better than counts of pairs of tokens.')
  # The term is tested with pairs of seeds that are not equal alone.
  index['none_alpha', 'nll', 32] = dict(index['none', 'nll', 32])
  found = answer(FAMILIES, RUN, index, 3.0)
  assert '(fine-tuning alone)' not in found[0] and 'Holm' not in found[0]
  assert p_words(tests[1].p) in found[0]


def test_the_answer_has_the_parts_of_the_term_and_what_the_paper_has(index):
  yarn = FAMILIES[1:]
  change = lambda name: shown_difference(compare(index, name, 'yarn'))
  found = answer(yarn, RUN, index, 4.0)
  assert found[1:3] == [
      'What its two parts change, each alone with the same α, in nats [95 %], not '
      f'corrected: entropy alone: {change("yarn_entropy")} (YaRN); symmetric KL alone: '
      f'{change("yarn_kl")} (YaRN).',
      'The paper has −0.040 to −0.009 for the whole term, in single runs of '
      'Llama-2-7B: with CLEX at 2 L, with LongQLoRA and EABF at L.']
  assert math.log(5.88 / 6.12) == pytest.approx(-0.040, abs=5e-4)  # CLEX
  assert math.log(5.77 / 5.82) == pytest.approx(-0.009, abs=5e-4)  # LongQLoRA
  # Where a method has not both parts, neither is told.
  assert len(answer(FAMILIES, RUN, index, 4.0)) == len(found) - 2
  without = yarn[0]._replace(others=tuple(
      arm for arm in yarn[0].others if arm.term != 'symmetric_kl'))
  assert len(answer([without], RUN, index, 4.0)) == len(found) - 2


def test_notes_of_tables_say_how_they_were_made(index):
  table = tables.methods(FAMILIES, ARMS['none'], RUN, index, [], 8)
  assert table.note == (
      '3 seeds [95 %]; L = 16, the checkpoint has 8 tokens. Perplexity in blocks, with '
      'the method applied, before and after fine-tuning. Δ: minus fine-tuning alone; '
      'p: paired t-test; it and the intervals of Δ by Holm over methods.')
  table = tables.term(FAMILIES, RUN, index)
  assert table.note == (
      'Δ log perplexity at 2 L, 32 tokens, minus the same method with α = 0, nats; α = '
      '0.1. p: paired two-sided t-test over 3 seeds [95 %]; it and its interval by '
      'Holm over methods.')
  assert ('what its test finds four times in five at the level of 5 % divided by the '
          'number of methods, whatever the other tests are. The entropy of both '
          'windows and their symmetric KL add up to the misalignment term: each alone, '
          'with the same α, tells what the term does by lowering entropy and what by '
          'aligning. What it does by aligning, besides lowering entropy, is also the '
          'term minus entropy alone.') in table.more
  # What a table does not have is not explained.
  parts = {'entropy': 'lowering entropy', 'symmetric_kl': 'by aligning',
           'steps': 'More steps: ', 'weight': 'Another α '}
  for kind, words in parts.items():
    said = [tables._more_of_term([x for x in parts if x in kinds and x != 'weight'],
                                 [0.3] if 'weight' in kinds else [])
            for kinds in ([kind], [*parts], ())]
    assert [words in x for x in said] == [True, True, False]
    assert ['secondary' in x for x in said] == [True, True, False]
  assert tables.sliding(FAMILIES, RUN, index, 8, 3).note == (
      '3 seeds [95 %]. Perplexity in sliding windows, half a window apart, over '
      'segments of 3 L; no BOS.')
  assert paper_table.published().note == (
      'arXiv 2506.11769, Tables 2, 3, 6, 9 and 10: Llama-2-7B, perplexity after 200 '
      'steps, and after 190, which with the term take as long. Single runs, so without '
      'intervals. All are measured at 8,192 tokens: 2 L of CLEX, L of the others.')


def test_the_answer_is_of_the_term_and_names_no_verdict_without_one(index):
  found = answer(FAMILIES, RUN, index, 3.0)
  test = compare(index, 'yarn_alpha', 'yarn')
  assert f'{text(test.mean_difference, "+.4f")} nats' in found[0]
  assert '(YaRN)' in found[0] and '3 pairs of seeds' in found[0]
  assert found[0].startswith('At 2 L, 32 tokens, the ')
  mean = math.exp(np.mean([*index['yarn', 'nll', 32].values()]))
  assert f'{mean:.3g} (YaRN)' in found[1].split('At 2 L')[1]
  [first, second] = answer(FAMILIES, RUN, index, 1.5)
  assert first == (
      'No verdict: the models predict no better than counts of pairs of tokens.')
  assert second.endswith(f'; that of the counts is {math.exp(1.5):.3g}.')
  alone = [family._replace(primary='', others=()) for family in FAMILIES]
  assert answer(alone, RUN, index, 3.0)[0].startswith(
      'No verdict on the misalignment term')


@pytest.mark.parametrize(('change', 'said'), [
    (0.01, '+0.0100'), (0.0199, '+0.0199'), (-0.5, '−0.5000'), (0.0201, ''), (1.0, '')])
def test_the_answer_says_if_the_checkpoint_needs_no_extension(change, said):
  # At L much may be lost already.
  lines = [{'arm': arm, 'step': step, 'first_seed': seed, 'nll_8': [2.0 + seed],
            'nll_16': [9.0], 'nll_32': [2.0 + seed + other + step + change * seed]}
           for arm, other in (('none', 0), ('yarn', 1)) for step in (0, 4)
           for seed in range(3)]
  said = [f'At that length the checkpoint itself needs no extension: before training, '
          f'without any method, its log perplexity changes by {said} nats from 8 to 32 '
          'tokens.'] if said else []
  say = lambda base, lines: without_extension(base, RUN, lines, 8)
  assert say(ARMS['none'], lines) == said
  assert say(None, lines) == say(ARMS['none'], []) == []
  # A seed that is not finite, or is being measured, does not count.
  lines += [{'arm': 'none', 'step': 0, 'first_seed': seed, 'nll_8': [2.0], **more}
            for seed, more in ((3, {}), (4, {'nll_32': [None]}))]
  assert say(ARMS['none'], lines) == said


def test_seeds_that_are_not_finite_are_named_and_in_no_test(index):
  diverge(index, 'yarn', 2)
  diverge(index, 'yarn_alpha', 1)
  found = tables.methods(FAMILIES, ARMS['none'], RUN, index, [], 8)
  assert found.note.endswith(' Not finite, and left out: YaRN, α = 0, seed 2.')
  left = lambda name, *seeds: [index[name, 'nll', 32][seed] for seed in seeds]
  test = paired_t_test(left('yarn', 0, 1), left('none', 0, 1))
  assert cells(found)[1]['Δ log perplexity at 2 L [95 %]'] == shown_difference(test)
  table = tables.term(FAMILIES, RUN, index)
  both = ' Not finite, and left out: YaRN, α = 0, seed 2; YaRN, α = 0.1, seed 1.'
  assert table.note.endswith(both)
  # One pair of seeds is left.
  assert cells(table)[1]['misalignment term [95 %]'] == ''
  assert tables.sliding(FAMILIES, RUN, index, 8, 3).note.endswith(both)
  said = answer(FAMILIES, RUN, index, 4.0)
  assert '(YaRN)' not in said[0] and '. 3 pairs of seeds' in said[0]
  # A control of which no seed is finite has learned nothing.
  for seed in (0, 1):
    diverge(index, 'yarn', seed)
  assert weak_methods(FAMILIES, RUN, index, 4.0) == ['YaRN']
  alone = tables.methods(FAMILIES[:1], ARMS['none'], RUN, index, [], 8)
  assert 'Not finite' not in alone.note
