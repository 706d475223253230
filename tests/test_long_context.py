"""`experiments.long_context`: samples, answers in batches, scores, and what is kept."""

import csv
import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import types

from etils import epath
import jax
import numpy as np
import pytest

from configs import long_context as config_file
from experiments.harness import locks
from experiments.long_context import (
    answer,
    babilong_suite,
    dialect_tables,
    figures,
    generation,
    longbench_parts,
    longbench_tables,
    official,
    predictions,
    report,
    ruler_suites,
    run,
    samples,
    scores,
    suites,
    tables,
)
from experiments.long_context import run as long_context_run
from experiments.long_context.check import check
from experiments.long_context.tables import Run
from tests.artists import bands
from tests.cells import is_short
from tests.conftest import lose_rows, NEEDS_REFERENCE, ROOT, shown
from tests.llamas import edit, llama, ROPES, variables_of
from vvlen.evaluation import (
    babilong_files,
    longbench,
    longbench_files,
    ruler_files,
    widths,
)
from vvlen.models import generation as library
from vvlen.models.llama import load_checkpoint, save_checkpoint
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.numbers import memory
from vvlen.reporting.results import Row
from vvlen.reporting.titles import setup_of, title_of
from vvlen.sharding import mesh as partition
from vvlen.tasks.haystack import DoesNotFit, split_sentences
from vvlen.tasks.tokenizers import byte_tokenizer
from vvlen.tasks.word_lists import ADJECTIVES

BYTES = byte_tokenizer()
WINDOW = 70
DRAWN = ('passkey', 'babilong', 'ruler')


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
  """A tiny model of bytes, with random weights and 70 positions."""
  folder = tmp_path_factory.mktemp('checkpoint')
  model = llama(vocab_size=264, rope=ROPES['default'], max_length=WINDOW)
  save_checkpoint(folder, model, variables_of(model))
  return folder


def _config(variant, **fields):
  config = config_file.get_config(variant)
  config.update_from_flattened_dict({'checkpoint': 'x', **fields})
  return config


def _lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def _files(folder):
  """Returns what a run must leave alike: predictions, results, tables and figures."""
  kinds = ('predictions/*.jsonl', 'results.csv', 'tables/*', 'figures/*.png')
  return {path.relative_to(folder): path.read_bytes()
          for kind in kinds for path in folder.glob(kind)}


# Samples.


@pytest.mark.parametrize('suite', DRAWN)
def test_samples_depend_on_nothing_but_seed_task_length_and_index(suite):
  one = suites.plan(_config(f'{suite}_smoke'), BYTES, WINDOW)
  longest = 256 if suite == 'babilong' else 96
  two = suites.plan(_config(
      f'{suite}_smoke', num_samples=5, lengths=(longest, 300), batch_size=3), BYTES, 99)
  other = suites.plan(_config(f'{suite}_smoke', seed=1), BYTES, WINDOW)
  parts = {part.name: part for part in two.parts}
  shared = [part for part in one.parts if part.name in parts]
  assert len(shared) == len({part.task for part in one.parts})
  for part, again in itertools.product(shared, range(3)):
    found, expected = parts[part.name].draw(again), part.draw(again)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert found[1:] == expected[1:]
  own = [tuple(part.draw(i).tokens) for part in (*one.parts, *other.parts)
         for i in range(3)]
  assert len(set(own)) == len(own)


@pytest.mark.parametrize('suite', DRAWN)
def test_prompts_have_their_length_and_bos_if_wanted(suite):
  for begin in (True, False):
    plan = suites.plan(_config(f'{suite}_smoke', begin=begin), BYTES, WINDOW)
    for part in plan.parts:
      sample = part.draw(0)
      assert part.name == f'{part.task}_{sample.length}'
      spare = 3 if part.task == 'common_words' else 0  # no room for one word more
      assert 0 <= sample.length + begin - len(sample.tokens) <= spare
      assert (sample.tokens[0] == 256) == begin and 256 not in sample.tokens[1:]
      assert set(part.widths) == {part.longest} == {sample.length + begin}


def test_depths_of_the_pass_key_take_turns():
  config = _config('passkey_smoke', lengths=(300,), num_samples=5,
                   depths=(0.5, 0.0, 1.0))
  part, = suites.plan(config, BYTES, WINDOW).parts
  for index, depth in enumerate((50, 0, 100, 50, 0)):
    sample = part.draw(index)
    assert sample.depth == depth and sample.chance == 1 / 90_000
    text = BYTES.decode(sample.tokens)
    share = text.index('The pass key is ') / (len(text) - 45)
    assert abs(100 * share - depth) < 10
    assert f'The pass key is {sample.answers[0]}.' in text


def test_questions_of_babilong_are_the_same_at_all_lengths():
  config = _config('babilong_smoke', most_facts=6, lengths=(400, 600), num_samples=8,
                   tasks=('qa2', 'qa5'))
  plan = suites.plan(config, BYTES, WINDOW)
  for task in config.tasks:
    short, long = [part for part in plan.parts if part.task == task]
    for index in range(8):
      one, two = short.draw(index), long.draw(index)
      assert (one.question, one.answers) == (two.question, two.answers)
      assert one.settings['facts'] == two.settings['facts']
      text = BYTES.decode(two.tokens)
      assert all(fact in text for fact in two.settings['facts'])
      assert text.endswith(f'Question: {two.question}')
      # The quarter of the first fact that the answer needs.
      context = text[len('<context>\n'):text.index('\n</context>')]
      first = min(two.settings['support'])
      begin = context.index(two.settings['facts'][first]) / len(context)
      assert two.depth == 25 * int(4 * begin)
  # Facts may be kept within a part of the context.
  config = _config('babilong_smoke', lengths=(600,), depths=((0.5, 0.75), (0.0, 0.5)))
  part = suites.plan(config, BYTES, WINDOW).parts[0]
  assert part.draw(0).depth == part.draw(2).depth == 50
  assert part.draw(1).depth in (0, 25)
  assert part.draw(1).settings['between'] == (0.0, 0.5)


@pytest.mark.parametrize('parts', [(), ('instruction', 'examples', 'post_prompt')])
def test_lengths_of_babilong_may_be_those_of_the_context(parts):
  config = _config('babilong', length_of='context', lengths=(400, 500), most_facts=4,
                   num_samples=8, parts=parts, answer_tokens=5)
  plan = suites.plan(config, BYTES, 5_000)
  assert plan.notes == []
  for part in plan.parts:
    for index in range(8):
      sample = part.draw(index)
      text = BYTES.decode(sample.tokens)
      context = text[text.rindex('<context>\n') + 10:text.index('\n</context>')]
      assert len(BYTES.encode(context)) == sample.length
      assert part.name == f'{part.task}_{sample.length}'
      assert part.longest - 64 <= len(sample.tokens) <= part.longest
      assert text.endswith(f'Question: {sample.question}')
    assert set(part.widths) == {part.longest}
  # What surrounds it is counted where the window is.
  longest = max(part.longest for part in plan.parts)
  config.beyond_window = False
  assert suites.plan(config, BYTES, longest + 5).notes == []
  with pytest.raises(ValueError, match=r'With up to \d+ tokens of BOS, answer and what '
                     r'surrounds the context, lengths beyond .*: 500\. Choose'):
    suites.plan(config, BYTES, longest + 4)


def test_official_files_of_babi_give_the_questions():
  if 'VVLEN_SHARED' not in os.environ:
    pytest.skip(NEEDS_REFERENCE)
  folder = pathlib.Path(os.environ['VVLEN_SHARED'], 'data', 'babi')
  config = _config('babilong_smoke', babi=str(folder), most_facts=4, lengths=(500,),
                   num_samples=20)
  plan = suites.plan(config, BYTES, WINDOW)
  for part in plan.parts:
    [path] = folder.glob(f'{part.task}_*_test.txt')
    text = path.read_text()
    drawn = [part.draw(i) for i in range(20)]
    assert len({(x.question, *x.settings['facts']) for x in drawn}) == 20
    for sample in drawn:
      assert f'{sample.question} \t{sample.answers[0]}\t' in text or (
          f'{sample.question}\t{sample.answers[0]}\t' in text)
      assert all(fact in text for fact in sample.settings['facts'])
  assert len(plan.facts['babi_sha256']) == 64


def test_stories_that_cannot_be_read_are_named_and_others_asked(tmp_path):
  story = '1 Mary moved to the hallway.\n2 Where is Mary?\thallway\t1\n'
  (tmp_path / 'qa1_single_test.txt').write_text(
      story + 'garbage\n4 Where is Mary?\thallway\t1\n' + story)
  config = _config('babilong_smoke', babi=str(tmp_path), tasks=('qa1',), lengths=(500,),
                   num_samples=2)
  plan = suites.plan(config, BYTES, 9_000)
  assert plan.facts['bad_lines'] == 1
  assert plan.notes == [
      f'Not used: {tmp_path}/qa1_single_test.txt line 3: a line must be a number, a '
      "space and a text: 'garbage'"]
  config.num_samples = 3
  with pytest.raises(ValueError, match=(
      r'has 2 questions with so few facts, fewer than config\.num_samples 3\. Not '
      'used: .* line 3: a line must')):
    suites.plan(config, BYTES, 9_000)
  assert [plan.parts[0].draw(i).answers for i in range(2)] == 2 * [['hallway']]


def test_a_long_question_of_a_file_has_room(tmp_path):
  asked = f'Where is Mary{", who has a very long name" * 5}?'
  text = ''.join(f'1 Mary moved to the hallway.\n2 {x}\thallway\t1\n'
                 for x in ('Where is Mary?', asked, 'Where was Mary?'))
  (tmp_path / 'qa1_single_test.txt').write_text(text)
  config = _config('babilong_smoke', babi=str(tmp_path), tasks=('qa1',), num_samples=3,
                   lengths=(400,), length_of='context', begin=False)
  [part] = suites.plan(config, BYTES, 9_000).parts
  drawn = [part.draw(i) for i in range(3)]
  assert {x.question for x in drawn} == {'Where is Mary?', asked, 'Where was Mary?'}
  longest = max(len(x.tokens) for x in drawn)
  assert len(asked) + 400 < longest <= part.longest <= longest + 16
  widths.padded([x.tokens for x in drawn], part.longest, 3)
  # Short questions have the room of bAbI's own.
  (tmp_path / 'qa1_single_test.txt').write_text(text.replace(asked, 'Is she here?'))
  [short] = suites.plan(config, BYTES, 9_000).parts
  config.babi = ''
  [simulated] = suites.plan(config, BYTES, 9_000).parts
  assert short.longest == simulated.longest < part.longest


def test_a_question_that_does_not_fit_is_named_by_its_line(tmp_path):
  story = '1 Mary moved to the hallway.\n2 Where is Mary?\thallway\t1\n'
  facts = [f'{i} Mary moved to the hallway.' for i in range(1, 20)]
  path = tmp_path / 'qa1_single_test.txt'
  path.write_text('\n'.join([story * 3 + facts[0], *facts[1:],
                             '20 Where is Mary?\thallway\t19', story]))
  config = _config('babilong_smoke', babi=str(tmp_path), tasks=('qa1',),
                   lengths=(400, 1000), num_samples=5, most_facts=0)
  plan = suites.plan(config, BYTES, 9_000)
  # The others alone would be easier, so that none of them is asked.
  assert [part.name for part in plan.parts] == ['qa1_1000']
  assert plan.facts['not_run'] == ['qa1 at 400 tokens']
  assert re.fullmatch(
      rf'Not run: qa1 at 400 tokens, sample \d: {re.escape(str(path))} line 26: '
      r'400 tokens are too few: facts and what surrounds them take \d+', plan.notes[0])
  assert plan.notes[1].startswith(
      'A task is not run at a length at which one of its prompts does not fit, as the '
      'others alone would be easier. Choose longer --config.lengths, ')
  # Of a simulated story, there is no line to name.
  config.update(babi='', lengths=(90, 1000), num_samples=9, most_facts=2)
  assert re.match(r'Not run: qa1 at 90 tokens, sample \d: 90 tokens are too few: facts',
                  suites.plan(config, BYTES, 9_000).notes[0])


def test_a_text_with_few_places_for_facts_is_told(tmp_path):
  path = tmp_path / 'text.txt'

  def noted(size, **fields):
    # Sentences of so many characters, with a space after each.
    path.write_text(99 * f'{(size // 4 * "abc ")[:size - 1]}. ')
    config = _config('babilong_smoke', text=str(path), tasks=('qa1',), most_facts=2,
                     parts=(), length_of='context', **fields)
    plan = suites.plan(config, BYTES, 9_000)
    return plan, [x for x in plan.notes if x.startswith('Facts have few places')]

  assert noted(20, lengths=(400,))[1] == []
  # Of 600 characters, 52 to 90 are facts: of the text there is one place before, one
  # after and two between its sentences, which begin at 0, 201 and 402.
  plan, [few] = noted(200, lengths=(600,))
  text = BYTES.decode(plan.parts[0].draw(0).tokens)
  assert text.count('c.') == 2
  assert few == (
      'Facts have few places, which are before, between and after sentences of the '
      'text, so their depths say little: on average 4.0 in qa1 at 600 tokens. Choose '
      'longer --config.lengths, or a --text of shorter sentences.')
  # Those of other lengths are told too, up to one that has enough.
  plan, [few] = noted(100, lengths=(300, 500, 1600, 3200))
  assert re.search('average [345].. in qa1 at 300 tokens, [567].. in qa1 at 500 tokens.'
                   ' Choose', few)
  assert len(plan.parts) == 4
  # Texts that are longer than one with enough are not drawn for this.
  asked = []
  places = lambda task, length: (asked.append((task, length)), length / 100)[1]
  [few] = babilong_suite._few_places(
      places, [('qa1', 300), ('qa1', 900), ('qa1', 1000), ('qa2', 100)])
  assert 'average 3.0 in qa1 at 300 tokens, 1.0 in qa2 at 100 tokens. Ch' in few
  assert asked == [('qa1', 300), ('qa1', 900), ('qa2', 100)]


def test_facts_stand_apart_in_the_default_text():
  config = _config('babilong', tasks=('qa1',), parts=(), most_facts=4, lengths=(700,),
                   num_samples=60)
  plan = suites.plan(config, BYTES, 9_000)
  assert plan.notes == []
  first = [part.settings['depths'][0] for part in map(plan.parts[0].draw, range(60))]
  assert np.mean([x == 0 for x in first]) < 0.25 and np.std(first) > 0.15


def test_a_wrong_answer_in_a_file_of_babi_is_named_and_others_asked(tmp_path):
  story = '1 Mary moved to the hallway.\n2 Where is Mary?\t{}\t1\n'
  path = tmp_path / 'qa1_single_test.txt'
  path.write_text(''.join(map(story.format, ('hallway', 'halway', 'Hallway'))))
  config = _config('babilong_smoke', babi=str(tmp_path), tasks=('qa1',), lengths=(500,),
                   num_samples=2)
  plan = suites.plan(config, BYTES, 9_000)
  assert plan.notes == [
      f'Not used: {path} line 4: the answer must be one of bathroom, bedroom, garden, '
      "hallway, kitchen, office: 'halway'"]
  assert {plan.parts[0].draw(i).answers[0] for i in range(2)} == {'hallway', 'Hallway'}


@pytest.mark.parametrize('variant, fields, says', [
    ('ruler', {'uncommon_repeats': 5},
     'common_words at 64 tokens, sample 0: common words must be repeated more than 5'),
    ('ruler', {'num_keys': 30, 'digits': 1, 'needle_values': 'numbers'},
     'niah_multikey at 64 tokens, sample 0: there are not 30 numbers of 1 digits'),
    ('babilong', {'most_facts': 2, 'tasks': ('qa1', 'qa3')},
     'qa3 at 192 tokens, sample 0: no question of qa3 follows 2 facts or fewer')])
def test_settings_that_contradict_each_other_are_refused(variant, fields, says):
  # Longer prompts would not help, so the other tasks are not run without this one.
  with pytest.raises(ValueError, match=says):
    suites.plan(_config(f'{variant}_smoke', **fields), BYTES, 9_000)


def test_the_text_around_is_read_as_far_as_it_is_used(tmp_path):
  texts = ['A dog. A cat.', '', 'Two birds. ' * 9, 'The end.']
  path = tmp_path / 'text.jsonl'
  lines = [json.dumps({'text': text}) for text in texts]
  path.write_text('\n'.join([*lines, 'no json']))
  whole = '\n'.join(filter(None, texts))
  for most in (3, 13, 14, 15, len(texts[0]) + len(texts[2])):
    config = _config('passkey_smoke', text=str(path), num_characters=most)
    assert samples.sentences_of(config, lambda: ()) == split_sentences(whole[:most])
  with pytest.raises(ValueError, match='line 5'):
    samples.sentences_of(_config(
        'passkey_smoke', text=str(path), num_characters=10**6), lambda: ())


def test_a_run_goes_on_if_a_later_sample_does_not_fit(tmp_path):
  claim = lambda **inputs: run_folder.claim(
      tmp_path, {'suite': 'babilong', 'inputs': inputs}, {}, study='long_context',
      **long_context_run._changes({'suite': 'babilong'}))
  claim(samples=20)
  claim(samples=100, not_run=['qa2 at 1,024 tokens'])
  stored = json.loads((tmp_path / 'config.json').read_text())
  assert stored['config']['inputs']['not_run'] == ['qa2 at 1,024 tokens']
  with pytest.raises(ValueError, match=r'inputs\.window'):
    claim(samples=100, window=3)


def test_all_prompts_of_the_shortest_length_are_drawn_before_a_run(monkeypatch):
  drawn, draw = [], ruler_suites.short_ruler.passkey

  def kept(rng, length, *args, **fields):
    drawn.append(length)
    return draw(rng, length, *args, **fields)

  monkeypatch.setattr(ruler_suites.short_ruler, 'passkey', kept)
  suites.plan(_config('passkey_smoke', lengths=(400, 300), num_samples=4), BYTES, 70)
  assert drawn == [300] * 4 + [400]


def test_a_task_and_length_whose_prompts_do_not_fit_is_left_out_and_named(monkeypatch):
  config = _config('babilong_smoke', lengths=(120, 1000))
  plan = suites.plan(config, BYTES, 9_000)
  whole = suites.plan(_config('babilong_smoke', lengths=(1000,)), BYTES, 9_000)
  assert whole.notes == [] and 'not_run' not in whole.facts
  assert [part.name for part in plan.parts] == [
      'qa1_120', 'qa1_1000', 'qa4_1000']
  assert plan.facts == {**whole.facts, 'not_run': ['qa4 at 120 tokens']}
  four, rule, few = plan.notes
  assert few.startswith('Facts have few places')
  assert re.fullmatch(r'Not run: qa4 at 120 tokens, sample 0: 120 tokens are too few: '
                      r'facts and what surrounds them take \d+', four)
  assert rule == (
      'A task is not run at a length at which one of its prompts does not fit, as the '
      'others alone would be easier. Choose longer --config.lengths, a smaller '
      '--config.most_facts or, to leave out instruction and examples, '
      '--config.parts="()".')
  # One prompt of four is too long for 300 tokens, so those of 400 are all looked at.
  drawn, draw = [], ruler_suites.short_ruler.passkey

  def kept(rng, length, *args, **fields):
    drawn.append(length)
    if drawn == [300] * 3:
      raise DoesNotFit('too few')
    return draw(rng, length, *args, **fields)

  monkeypatch.setattr(ruler_suites.short_ruler, 'passkey', kept)
  plan = suites.plan(
      _config('passkey', lengths=(300, 400, 500), num_samples=4), BYTES, 9_000)
  assert drawn == [300] * 3 + [400] * 4 + [500]
  assert [part.name for part in plan.parts] == ['passkey_400', 'passkey_500']
  assert plan.notes == [
      'Not run: passkey at 300 tokens, sample 2: too few',
      'A task is not run at a length at which one of its prompts does not fit, as the '
      'others alone would be easier. Choose longer --config.lengths.']


def test_a_list_of_more_words_than_there_are_is_left_out_and_named(monkeypatch):
  config = _config('ruler', lengths=(80, 2000), num_samples=2)
  whole = suites.plan(config, BYTES, 9_000)
  assert whole.notes == [] and len(whole.parts) == 12
  pairs = ruler_suites.short_ruler.PAIRS[::99]
  monkeypatch.setattr(ruler_suites.short_ruler, 'PAIRS', pairs)
  plan = suites.plan(config, BYTES, 9_000)
  assert [part.name for part in plan.parts] == [
      part.name for part in whole.parts if part.name != 'common_words_2000']
  for one, other in itertools.product(plan.parts, whole.parts):
    if one.name == other.name:
      np.testing.assert_array_equal(one.draw(1).tokens, other.draw(1).tokens)
  assert plan.facts == {**whole.facts, 'not_run': ['common_words at 2,000 tokens']}
  assert plan.notes == [
      f'Not run: common_words at 2,000 tokens, sample 0: {len(pairs)} words are too '
      'few for 2,000 tokens, where 2 occur 3 times and the others 1',
      'A list of words is not run at a length that takes more words than there are. '
      'Choose shorter --config.lengths, or larger --config.uncommon_repeats and '
      '--config.common_repeats, which change the lists of all lengths.']
  # As it says; and alone, such a list is refused with what to do.
  more = _config('ruler', lengths=(80, 2000), num_samples=2, uncommon_repeats=2,
                 common_repeats=4)
  assert suites.plan(more, BYTES, 9_000).notes == []
  alone = _config('ruler', lengths=(2000,), tasks=('common_words',))
  with pytest.raises(ValueError, match=r'the others 1\. Choose shorter --config\.len'):
    suites.plan(alone, BYTES, 9_000)
  # Both reasons are told.
  both = suites.plan(_config(
      'ruler', lengths=(30, 80, 2000), tasks=('common_words',), num_samples=2), BYTES,
      9_000)
  assert [part.name for part in both.parts] == ['common_words_80']
  assert [note[:40] for note in both.notes] == [
      'Not run: common_words at 30 tokens, samp',
      'Not run: common_words at 2,000 tokens, s',
      'A task is not run at a length at which o',
      'A list of words is not run at a length t']


def test_each_template_has_a_hash_of_its_own(data):
  hashes = [
      plan.facts['template_sha256'] for plan in (
          suites.plan(_config(variant, lengths=(2000,), num_samples=1, **fields),
                      BYTES, WINDOW)
          for variant, fields in (
              ('passkey', {}), ('passkey', {'wording': 'published'}),
              ('ruler', {'tasks': ('niah_single',)}),
              ('ruler', {'tasks': ('niah_single',), 'wording': 'published'}),
              ('babilong', {'tasks': ('qa1',)}), ('babilong', {'tasks': ('qa4',)}),
              ('babilong', {'tasks': ('qa1',), 'parts': ('instruction',)})))]
  hashes += [
      longbench_parts.plan(_config('longbench', data=str(data), tasks=tasks), BYTES, 900
                           ).facts['template_sha256'] for tasks in (('qasper',), ())]
  assert len(set(hashes)) == len(hashes) == 9


def test_chance_is_that_of_a_guess_of_the_right_kind():
  plan = suites.plan(_config('ruler', lengths=(200,), num_samples=1), BYTES, WINDOW)
  chance = {part.task: part.draw(0).chance for part in plan.parts}
  numbers = 900
  assert chance == pytest.approx({
      'niah_single': 1 / numbers, 'niah_multikey': 1 / numbers,
      'niah_multivalue': 4 / numbers, 'niah_multiquery': 4 / numbers,
      'variable_tracking': 5 / 260, 'common_words': 2 / 114})
  [words] = [part for part in suites.plan(_config(
      'ruler', lengths=(1000,), num_samples=1), BYTES, WINDOW).parts
             if part.task == 'common_words']
  assert words.draw(0).chance == 2 / 16_758 and '-' in words.draw(0).answers[0]
  config = _config('ruler', lengths=(200,), num_samples=1, needle_values='words',
                   tasks=('niah_multivalue',))
  [part] = suites.plan(config, BYTES, WINDOW).parts
  assert part.draw(0).chance == pytest.approx(4 / len(ADJECTIVES))
  assert {*part.draw(0).answers} <= {*ADJECTIVES}
  ask = babilong_suite.guess
  assert ask('qa1', 'Where is Mary?', 'kitchen') == 1 / 6
  assert ask('qa3', 'Where was the milk before the office?', 'kitchen') == 1 / 5
  assert ask('qa5', 'Who gave the milk to Fred?', 'Bill') == 1 / 3
  assert ask('qa5', 'What did Bill give to Fred?', 'milk') == 1 / 3
  assert ask('qa5', 'Who gave the milk?', 'Bill') == 1 / 4
  assert longbench_parts.chance('trec', ['a', 'b', 'c', 'd']) == 1 / 4
  assert longbench_parts.chance('passage_retrieval_en', []) == 1 / 30
  assert longbench_parts.chance('qasper', []) == 0


def test_lengths_are_in_tokens_or_in_units_of_the_window():
  config = _config('passkey', multiples=(2.0, 0.125, 1.0))
  assert suites.lengths_of(config, 512) == [64, 512, 1024]
  config.lengths = (70, 64)
  assert suites.lengths_of(config, 512) == [64, 70]


def test_what_exceeds_the_window_is_named_or_refused():
  config = _config('passkey_smoke', lengths=(64, 65, 66), answer_tokens=5)
  plan = suites.plan(config, BYTES, 70)
  assert plan.notes == ['With up to 6 tokens of BOS and answer, lengths beyond the '
                        'window of 70 tokens: 65, 66.']
  config.beyond_window = False
  with pytest.raises(ValueError, match=r'tokens: 65, 66\. Choose shorter ones, or'):
    suites.plan(config, BYTES, 70)
  assert suites.plan(config, BYTES, 72).notes == []
  config.begin = False
  assert suites.plan(config, BYTES, 71).notes == []


def test_a_window_beyond_that_of_the_checkpoint_is_named():
  assert run._on_window(2048, 512) == [
      'config.window is 2,048 tokens, beyond the window of the checkpoint, 512.']
  assert run._on_window(512, 512) == run._on_window(100, 512) == []


# Answers.


@pytest.fixture(scope='module')
def subject(checkpoint):
  model, variables = load_checkpoint(checkpoint)
  return generation.Subject(model, variables, BYTES, (), 3)


@pytest.mark.slow
def test_a_batch_of_unequal_prompts_gives_what_each_gives_alone(subject):
  rng = np.random.default_rng(0)
  prompts = [rng.integers(256, size=n).astype(np.int32) for n in (5, 12, 9)]
  found = generation.answer(subject, prompts, 12, 6)
  assert len(set(found)) == 3
  apply = jax.jit(subject.model.apply)
  for prompt, text in zip(prompts, found, strict=True):
    tokens, made = np.zeros((1, 18), np.int32), []
    tokens[0, :len(prompt)] = prompt
    for place in range(len(prompt), len(prompt) + 6):  # without cache or batch
      made.append(int(apply(subject.variables, tokens)[0, place - 1].argmax()))
      tokens[0, place:place + 1] = made[-1]
    assert text == BYTES.decode(made)
    assert generation.answer(subject, [prompt], 12, 6) == [text]
  # An answer ends at any of the tokens that end one.
  for ends in ((made[2],), (263, made[2])):
    short = generation.answer(subject._replace(ends=ends), prompts[2:], 12, 6)
    assert short == [BYTES.decode(made[:made.index(made[2])])]


@pytest.mark.slow
def test_programs_are_compiled_once_for_each_shape(subject):
  library._generate.clear_cache()
  shapes = [(4, 2), (6, 2), (4, 2), (6, 3), (6, 2)]
  prompt = np.arange(3, dtype=np.int32)
  for number, (width, num_tokens) in enumerate(shapes):
    generation.answer(subject, [prompt] * (1 + number % 3), width, num_tokens)
  assert library._generate._cache_size() == len(set(shapes)) == 3


# Runs.


@pytest.mark.parametrize('size, said', [
    (8, ''), (16, ''),
    (5, 'A batch of 5 prompts on 8 devices: 3 of 8 rows, 38% of the work, repeat a '
        'prompt and are not counted.\n'),
])
def test_rows_that_only_fill_devices_are_told(size, said, capsys):
  plan = samples.Plan([samples.Part('one', 'one', [64] * 6, 64, 5, None)], {}, [])
  todo = {'one': widths.batches([64] * 6, size)}
  run._say(plan, todo, {'one': {}}, size, partition.make_mesh(-1))
  assert capsys.readouterr().out.endswith(f'1 program to compile.\n{said}')
  run._say(plan, {'one': []}, {'one': {}}, size, partition.make_mesh(-1))
  assert 'repeat' not in capsys.readouterr().out


def test_each_sample_has_its_own_answer(monkeypatch, tmp_path):
  sample = lambda i: samples.Sample(
      np.full(5 + i, i, np.int32), 60 + i, None, (str(i),), (), (), '', i / 10, {})
  part = samples.Part('niah_single', 'niah_single_60', [9] * 4, 9, 7, sample)
  # Answers begin with those of their prompts; one sample was answered before.
  monkeypatch.setattr(generation, 'answer', lambda subject, prompts, width, most, _: [
      f'{prompt[0]} {width} {most}' for prompt in prompts])
  before = run._record(1, sample(1), 'x')
  path = predictions.path_of(tmp_path, part.name)
  predictions.append(path, [before])
  left = run.batches(part.widths, 2)
  progress = types.SimpleNamespace(show=lambda *_: None)
  rows = run._rows('ruler', str(tmp_path), None, part, left, {1: before}, progress)
  assert {(row.seed, row.length): row.value for row in rows
          if row.metric == 'score_official'} == {
              (0, 60): 1, (1, 61): 0, (2, 62): 1, (3, 63): 1}
  assert [row.value for row in rows if row.metric == 'chance'] == [0, 0.1, 0.2, 0.3]
  assert [row.value for row in rows if row.metric == 'num_tokens'] == [5, 6, 7, 8]
  assert {i: x['pred'] for i, x in predictions.read(path).items()} == {
      1: 'x', 0: '0 9 7', 2: '2 9 7', 3: '3 9 7'}


def test_an_answer_of_one_line_does_not_begin_with_a_newline(subject):
  # All logits are alike, and the first token is a newline.
  params = subject.variables['params']
  params = params | {'final_norm': jax.tree.map(np.zeros_like, params['final_norm'])}
  letters = BYTES._replace(
      encode=lambda text: np.array(['\nabc'.index(x) for x in text], np.int32),
      decode=lambda tokens: ''.join('\nabc'[x] for x in tokens))
  flat = subject._replace(variables={'params': params}, tokenizer=letters)
  prompts = [np.array([3, 2], np.int32)] * 2
  assert generation.answer(flat, prompts, 2, 3) == ['\n\n\n'] * 2
  assert generation.answer(flat, prompts, 2, 3, one_line=True) == ['a'] * 2
  ends = flat._replace(ends=(2, 1))  # nor with a token that ends an answer
  assert generation.answer(ends, prompts, 2, 3, one_line=True) == ['c'] * 2
  # In a token with other text, a newline may come first, and ends what is after it.
  blank = letters._replace(decode=lambda tokens: ''.join(
      ('\n', '\n\nit was', 'b', 'c')[x] for x in tokens))
  assert generation.answer(
      flat._replace(tokenizer=blank), prompts, 2, 3, one_line=True) == [
          '\n\nit was'] * 2


@pytest.mark.parametrize('one_line, expected', [(False, (5, 7)), (True, (5, 7, 10))])
def test_a_batch_stops_when_all_answers_have_ended(
    one_line, expected, subject, monkeypatch):
  asked = []

  def made(*inputs, end, not_first, **more):
    asked.append((end, not_first))
    return jax.numpy.array([[65, 7, 10], [66, 10, 67], [68, 69, 70]])

  monkeypatch.setattr(widths, 'generate', made)
  texts = generation.answer(subject._replace(ends=(5, 7)), [np.zeros(1, np.int32)] * 3,
                            1, 3, one_line)
  assert asked == [(expected, expected if one_line else ())]
  assert texts == ['A', 'B' if one_line else 'B\nC', 'DEF']


def test_only_answers_of_samsum_are_asked_for_as_one_line(monkeypatch, tmp_path):
  sample = lambda i: samples.Sample(
      np.full(5, i, np.int32), 9, None, ('it',), (), (), '', 0.0, {})
  asked = []
  monkeypatch.setattr(generation, 'answer', lambda subject, prompts, *more: (
      asked.append(more), ['it'] * len(prompts))[1])
  progress = types.SimpleNamespace(show=lambda *_: None)
  parts = [samples.Part(task, task, [9] * 4, 9, 7, sample,
                       longbench_files.is_one_line(task)) for task in ('samsum', 'lcc')]
  for part in parts:
    run._rows('longbench', str(tmp_path), None, part, run.batches(part.widths, 4), {},
              progress)
  assert asked == [(9, 7, True), (9, 7, False)]


@pytest.mark.parametrize('one_line', [False, True])
def test_programs_of_answers_of_one_line_are_counted(one_line, capsys):
  parts = [samples.Part('qasper', 'qasper', [64], 64, 128, None),
           samples.Part('samsum', 'samsum', [64], 64, 128, None, one_line)]
  todo = {part.name: widths.batches(part.widths, 8) for part in parts}
  run._say(samples.Plan(parts, {}, []), todo, {name: {} for name in todo}, 8,
           partition.make_mesh(-1))
  assert f'2 batches: {1 + one_line} program' in capsys.readouterr().out


def test_a_plan_knows_which_answers_end_at_a_newline(data):
  (data / 'samsum_e.jsonl').write_text(json.dumps(_sample('samsum', 0)) + '\n')
  plan = longbench_parts.plan(_config('longbench_smoke', data=str(data)), BYTES, 700)
  assert {part.task: part.one_line for part in plan.parts} == {
      'qasper': False, 'trec': False, 'samsum': True}


def _flags(suite, checkpoint, folder, *more):
  return (f'--suite={suite}_smoke', f'--checkpoint={checkpoint}', f'--workdir={folder}',
          *more)


@pytest.fixture(scope='module')
def whole(tmp_path_factory, checkpoint, fast_compilation):
  """A whole run of passkey_smoke, and what it printed."""
  folder = tmp_path_factory.mktemp('whole') / 'run'
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.long_context',
       *_flags('passkey', checkpoint, folder)],
      cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
  assert done.returncode == 0, done.stderr
  return folder, done.stdout


@pytest.mark.slow
def test_a_run_leaves_what_it_says(whole, checkpoint):
  folder, said = whole
  assert ('With up to 5 tokens of BOS and answer, lengths beyond the window of 70 '
          'tokens: 96.\n'
          '6 of 6 answers to generate, in 4 batches: 2 programs to compile.') in said
  told = re.search(r'^The largest cache of keys and values, (\d) × 101 tokens, takes '
                   r'(\S+ MB)\.$', said, re.MULTILINE)
  model, variables = load_checkpoint(checkpoint)
  size = library.cache_bytes(model, variables, int(told[1]), 101)
  assert told[2] == memory(size)
  [session] = json.loads((folder / 'config.json').read_text())['sessions']
  assert session['bytes of the largest cache'] == size
  assert 'No verdict on pass key' in said and '| 64 tokens ' in said
  page = (folder / 'index.md').read_text()
  for name in ('scores', 'effective_length', 'depth', 'dialects'):
    assert (folder / f'tables/{name}.md').read_text() in page
    assert (folder / f'tables/{name}.csv').exists()
  for name in ('scores', 'depth'):
    assert (folder / f'figures/{name}.pdf').exists()
    assert f'(figures/{name}.png)' in page
  inputs = json.loads((folder / 'config.json').read_text())['config']['inputs']
  assert inputs['window'] == 70 and inputs['samples'] == 6 and inputs['ends'] == []
  # A hash of weights and template beside every score.
  for path in (folder / 'tables').glob('*.md'):
    for name in ('checkpoint_sha256', 'template_sha256'):
      assert inputs[name][:12] in path.read_text() and len(inputs[name]) == 64
  rows = results.read_rows(folder / 'results.csv')
  assert {(row.experiment, row.arm) for row in rows} == {('passkey', 'passkey')}
  assert {row.metric for row in rows} == {
      'score_official', 'score_lm_eval', 'score_strict', 'chance', 'shortcut',
      'num_tokens'}
  assert len(rows) == 6 * 6


@pytest.mark.slow
def test_predictions_hold_settings_and_what_the_model_says(whole, checkpoint):
  model, variables = load_checkpoint(checkpoint)
  subject = generation.Subject(model, variables, BYTES, (), 2)
  config = _config('passkey_smoke')
  for part in suites.plan(config, BYTES, WINDOW).parts:
    lines = _lines(whole[0] / f'predictions/{part.name}.jsonl')
    assert [line['index'] for line in lines] == [0, 1, 2]
    for line in lines:
      sample = part.draw(line['index'])
      assert line['answers'] == list(sample.answers) and line['others'] == []
      assert (line['length'], line['depth']) == (sample.length, sample.depth)
      assert line['num_tokens'] == len(sample.tokens) == sample.length + 1
      assert line['settings'] == sample.settings and line['chance'] == 1 / 90_000
      assert [line['pred']] == generation.answer(
          subject, [sample.tokens], part.longest, 4)


@pytest.fixture
def run_suite(run_here, capsys):
  """Returns a function that runs a suite here, and returns what it prints."""

  def run_suite(variant, folder, **fields):
    try:
      run.main(_config(variant, **fields), str(folder))
    finally:
      locks.release()
    return capsys.readouterr().out

  return run_suite


@pytest.mark.slow
def test_a_torn_line_and_lost_rows_are_made_again(
    whole, checkpoint, tmp_path, run_suite):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  expected = _files(folder)
  again = lambda: run_suite('passkey_smoke', folder, checkpoint=str(checkpoint))
  assert '\n0 of 6 answers to generate, in 0 batches: 0 programs' in again()
  assert _files(folder) == expected
  # Killed within a line of the second batch of a length, before any row was written.
  path = folder / 'predictions/passkey_64.jsonl'
  for cut in (-1, -20, len(path.read_bytes()) // 4):
    path.write_bytes(expected[path.relative_to(folder)][:cut])
    lose_rows(folder)
    said = again()
    assert f'{1 if cut < 0 else 3} of 6 answers to generate' in said
    assert _files(folder) == expected
  path.unlink()
  assert '3 of 6 answers to generate' in again()
  assert _files(folder) == expected
  (folder / 'results.csv').unlink()
  assert '\n0 of 6 answers to generate' in again()
  assert _files(folder) == expected


@pytest.mark.slow
def test_more_samples_may_be_asked_for(whole, checkpoint, tmp_path, run_suite):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  before = _files(folder)
  again = functools.partial(
      run_suite, 'passkey_smoke', folder, checkpoint=str(checkpoint))
  said = again(num_samples=5)
  # Two batches of 2 and 1, each length; one of their answers was there.
  assert '4 of 10 answers to generate' in said
  assert ' 2 answers in their batches are generated again, and kept as they' in said
  for name in ('passkey_64', 'passkey_96'):
    path = pathlib.Path('predictions', f'{name}.jsonl')
    content = (folder / path).read_bytes()
    assert content.startswith(before[path]) and content.count(b'\n') == 5
  rows = results.read_rows(folder / 'results.csv')
  assert len(rows) == 6 * 10
  assert {*before[pathlib.Path('results.csv')].splitlines()} < {
      *(folder / 'results.csv').read_bytes().splitlines()}
  with pytest.raises(ValueError, match=r'num_samples: 5 there, 3 here \(may only'):
    again()


@pytest.mark.slow
def test_another_dialect_only_changes_the_tables(
    whole, checkpoint, tmp_path, run_suite):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  before = _files(folder)
  said = run_suite('passkey_smoke', folder, checkpoint=str(checkpoint),
                   dialect='strict')
  assert '\n0 of 6 answers to generate' in said
  assert 'Dialect: strict.' in (folder / 'tables/scores.md').read_text()
  after = _files(folder)
  for name in ('results.csv', 'predictions/passkey_64.jsonl'):
    assert after[pathlib.Path(name)] == before[pathlib.Path(name)]


@pytest.mark.slow
@pytest.mark.parametrize('suite', ['babilong', 'ruler'])
def test_other_suites_run(suite, checkpoint, tmp_path, run_here):
  done = run_here('long_context', *_flags(suite, checkpoint, tmp_path / 'run'))
  assert done.returncode in (0, None), done.stderr
  said = done.stdout
  config = config_file.get_config(f'{suite}_smoke')
  number = len(config.tasks) * len(config.lengths) * 3
  assert f'{number} of {number} answers' in said and '2 programs' in said
  names = {path.stem for path in (tmp_path / 'run/predictions').iterdir()}
  assert names == {f'{task}_{n}' for task in config.tasks for n in config.lengths}
  rows = scores.read_rows(tmp_path / 'run')
  assert scores.tasks_of(rows) == list(config.tasks)
  made = {path.name for path in (tmp_path / 'run/tables').glob('*.md')}
  assert ('depth.md' in made) == (suite == 'babilong')
  assert {'scores.md', 'effective_length.md', 'dialects.md'} <= made


def _scores_of(folder):
  return {(x.arm, x.length, x.seed, x.metric): x.value
          for x in scores.read_rows(folder) if x.metric.startswith('score')}


@pytest.mark.slow
@pytest.mark.parametrize('suite', ['babilong', 'ruler'])
def test_official_files_of_a_run_have_its_scores(
    suite, checkpoint, tmp_path, run_suite):
  config = config_file.get_config(f'{suite}_smoke')
  folder, again = tmp_path / 'run', tmp_path / 'again'
  run_suite(f'{suite}_smoke', folder, checkpoint=str(checkpoint))
  made = {str(path.relative_to(folder / 'official'))
          for path in (folder / 'official').rglob('*.*')}
  if suite == 'babilong':
    form = 'instruction_no_examples_no_post_prompt_no_chat_template_no_system_prompt_no'
    assert made == {f'{task}_{n}_{form}.{kind}' for task in config.tasks
                    for n in config.lengths for kind in ('csv', 'json')}
    settings = json.loads((folder / f'official/qa1_192_{form}.json').read_text())
    assert settings['prompt']['template'] == (
        '<context>\n{context}\n</context>\n\nQuestion: {question}')
    assert settings['generate_kwargs']['max_new_tokens'] == 4
    kept = _lines(folder / 'predictions/qa4_192.jsonl')
    read, _ = babilong_files.read_predictions(folder / f'official/qa4_192_{form}.csv')
    assert read == [(*x['answers'], x['pred'], x['question']) for x in kept]
  else:
    names = {x: ruler_files.NAMES.get(x, x) for x in config.tasks}
    assert made == {'hashes.json'} | {
        f'{n}/pred/{name}.jsonl' for name in names.values() for n in config.lengths}
    kept = _lines(folder / 'predictions/common_words_64.jsonl')
    read, _ = ruler_files.read_predictions(folder / 'official/64/pred/cwe.jsonl')
    assert read == [('cwe', x['pred'], tuple(x['answers'])) for x in kept]
  score = functools.partial(
      run_suite, f'{suite}_smoke', again, checkpoint='',
      predictions=str(folder / 'official'))
  number = len(config.tasks) * len(config.lengths) * 3
  assert f'{number} predictions to score.' in score()
  expected = _scores_of(folder)
  if suite == 'ruler':  # whose files do not say what is wrong, as strict asks
    expected = {(names[task], *rest): value for (task, *rest), value in expected.items()
                if rest[2] != 'score_strict'}
  found = _scores_of(again)
  assert {key: found[key] for key in expected} == expected
  assert {key[3] for key in found.keys() - expected.keys()} <= {'score_strict'}
  # A run that lost rows is completed.
  before = _files(again)
  lose_rows(again)
  score()
  assert _files(again) == before
  text = (again / 'tables/scores.md').read_text()
  assert 'A length is that in the name of a file or folder.' in text
  assert 'made elsewhere' in text and not (again / 'tables/depth.md').exists()


@pytest.mark.slow
def test_published_files_are_scored_and_bad_lines_named(tmp_path, run_suite):
  def asked(target, output):
    folder = tmp_path / f'{target}_{output}'
    folder.mkdir()
    (folder / 'qa1_4k.csv').write_text(f'target,output,question\n{target},{output},x\n')
    run_suite('babilong', folder / 'run', checkpoint='', predictions=str(folder))
    return _inputs(folder / 'run')['asked_sha256']

  first = asked('garden', 'attic')
  assert asked('garden', 'hall') == first != asked('office', 'attic')
  assert [*first] == ['qa1_4000'] and re.fullmatch('[0-9a-f]{12}', first['qa1_4000'])
  folder = tmp_path / 'published'
  folder.mkdir()
  for length, answers in (('0k', 'garden garden'), ('4k', 'garden attic')):
    rows = ''.join(f'{i},garden,In the {x}.,Where is Mary?\n'
                   for i, x in enumerate(answers.split()))
    (folder / f'qa1_{length}_examples_yes.csv').write_text(
        f',target,output,question\n{rows}2,attic,x,Where?\n')
  # All of them are scored: their number is not that of samples to draw.
  said = run_suite('babilong', tmp_path / 'run', checkpoint='', predictions=str(folder),
                   num_samples=1)
  assert re.search(r'^Not used: .*qa1_0k_examples_yes\.csv row 3: the ', said, re.M)
  assert '4 predictions to score.' in said
  found = _scores_of(tmp_path / 'run')
  assert [found['qa1', n, i, 'score_official'] for n in (0, 4000) for i in (0, 1)] == [
      1, 1, 1, 0]
  page = (tmp_path / 'run/index.html').read_text()
  assert 'A length of 0 tokens is not drawn.' in page
  chance = [x.value for x in scores.read_rows(tmp_path / 'run') if x.metric == 'chance']
  assert chance == pytest.approx([1 / 6] * 4)
  # RULER: parts of a task, and answers of which one is enough.
  lines = [ruler_files.line_of(7, text, ['Paris', 'France']) for text in ('PARIS', 'x')]
  for length, name in ((4096, 'qa_1-0'), (4096, 'qa_1-1'), (8192, 'qa_1')):
    path = tmp_path / f'ruler/{length}/pred/{name}.jsonl'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(lines))
  again = tmp_path / 'ruled'
  assert '6 predictions to score.' in run_suite(
      'ruler', again, checkpoint='', predictions=str(tmp_path / 'ruler'))
  found = _scores_of(again)
  assert [found['qa_1', 4096, i, 'score_official'] for i in range(4)] == [1, 0, 1, 0]
  assert [found['qa_1', 8192, 0, x] for x in ('score_lm_eval', 'score_strict')] == [
      0.5, 1]


def test_what_each_task_and_length_asks_has_a_hash_of_its_own():
  record = {'index': 0, 'length': 100, 'answers': ['x'], 'pred': 'a'}
  every = {'vt': [record, {**record, 'length': 200}], 'cwe': [record]}
  found = run._asked('ruler', every)
  assert [*found] == ['vt_100', 'vt_200', 'cwe_100']
  assert found['vt_100'] == found['cwe_100'] != found['vt_200']
  # One task and length is another in all but what is generated.
  for name, value in (('pred', 'b'), ('answers', ['y']), ('index', 1), ('chance', 0.1)):
    again = run._asked('ruler', every | {'vt': [{**record, name: value},
                                                every['vt'][1]]})
    same = {key for key in found if found[key] == again[key]}
    assert same == ({*found} if name == 'pred' else {'vt_200', 'cwe_100'})
  # Of LongBench, a bucket has one, in which all samples count.
  of_length = lambda *lengths: run._asked('longbench', {'qasper': [
      {**record, 'length': n} for n in lengths]})
  assert [*of_length(9000, 3999, 10, 4000)] == [
      'qasper_8k+', 'qasper_0-4k', 'qasper_4-8k']
  assert of_length(10, 3999) != of_length(10) != of_length(3999)


def _inputs(folder):
  return json.loads((folder / 'config.json').read_text())['config']['inputs']


@pytest.mark.slow
def test_more_predictions_of_longbench_may_be_scored(tmp_path, run_suite):
  made = tmp_path / 'made'
  made.mkdir()
  for task, count in (('qasper', 5), ('hotpotqa', 3)):
    (made / f'{task}.jsonl').write_text(''.join(json.dumps({
        'pred': 'it' * (i % 2), 'answers': ['it'], 'all_classes': None,
        'length': 3998 + i}) + '\n' for i in range(count)))
  score = lambda folder, number: run_suite(
      'longbench', tmp_path / folder, checkpoint='', predictions=str(made),
      num_samples=number)
  for number, count in ((2, 4), (4, 7), (0, 8)):
    assert f'{count} predictions to score.' in score('grown', number)
    assert _inputs(tmp_path / 'grown')['samples'] == count
    of_qasper = [row.seed for row in scores.read_rows(tmp_path / 'grown')
                 if (row.arm, row.metric) == ('qasper', 'chance')]
    assert sorted(of_qasper) == [*range(min(number or 5, 5))]
  with pytest.raises(ValueError, match=r'inputs\.samples: 8 there, 7 here \(may only'):
    score('grown', 4)
  score('whole', 0)
  assert _files(tmp_path / 'grown') == _files(tmp_path / 'whole')
  assert _inputs(tmp_path / 'grown') == _inputs(tmp_path / 'whole')
  assert [*_inputs(tmp_path / 'whole')['asked_sha256']] == [
      'qasper_0-4k', 'qasper_4-8k', 'hotpotqa_0-4k', 'hotpotqa_4-8k']
  # Other predictions are another run.
  lines = (made / 'qasper.jsonl').read_text()
  (made / 'qasper.jsonl').write_text(lines.replace('"pred": "it"', '"pred": "is"', 1))
  with pytest.raises(ValueError, match=r'inputs\.predictions_sha256: '):
    score('grown', 0)


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_run_ends_as_an_unbroken_one(checkpoint, tmp_path, fast_compilation):
  command = lambda folder: [
      sys.executable, '-m', 'experiments.long_context',
      *_flags('ruler', checkpoint, folder, '--config.num_samples=40')]
  run_whole = functools.partial(
      subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True, timeout=900)
  run_whole(command(tmp_path / 'whole'))
  killed = tmp_path / 'killed'
  seen = 0
  for share in (0.1, 0.6):  # in two starts, then to the end
    process = subprocess.Popen(command(killed), cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
      there = sum(path.read_bytes().count(b'\n')
                  for path in killed.glob('predictions/*.jsonl'))
      if there > share * 480:
        break
      time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = sum(path.read_bytes().count(b'\n')
                for path in killed.glob('predictions/*.jsonl'))
    assert seen < there < 480
    seen = there
  said = run_whole(command(killed)).stdout
  left = int(re.search(r'(\d+) of 480 answers to generate', said)[1])
  assert 480 - seen <= left < 480 - seen + 2
  assert _files(killed) == _files(tmp_path / 'whole')


@pytest.mark.slow
def test_a_report_is_made_again_without_jax(whole, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  expected = _files(folder)
  shutil.rmtree(folder / 'tables')
  shutil.rmtree(folder / 'figures')
  program = (
      'import sys; sys.modules["jax"] = None\n'
      f'sys.argv = ["report", "--workdir={folder}"]\n'
      'from experiments import report; report.main()')
  done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, check=False,
                        capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  assert _files(folder) == expected


# LongBench.


def _sample(task, number, **fields):
  return {'input': f'q{number}?', 'context': 'all about it. ' * 40, 'answers': ['it'],
          'length': 3999 + number, 'dataset': task, 'language': 'en',
          'all_classes': None, '_id': f'{task}{number}', **fields}


@pytest.fixture
def data(tmp_path):
  """Files of three tasks with good and bad lines."""
  folder = tmp_path / 'data'
  folder.mkdir()

  def write(task, lines):
    (folder / f'{task}_e.jsonl').write_text(''.join(
        (line if isinstance(line, str) else json.dumps(line)) + '\n' for line in lines))

  write('qasper', [_sample('qasper', 0), 'no json', _sample('qasper', 1, context='x')])
  write('trec', [_sample('trec', 0, all_classes=['it', 'that', 'b']),
                 _sample('trec', 1, answers='it')])
  write('lcc', ['[]'])
  return folder


@pytest.mark.slow
def test_longbench_cuts_the_middle_and_runs_what_can_be_run(
    data, checkpoint, tmp_path, run_suite):
  folder = tmp_path / 'run'
  said = run_suite('longbench_smoke', folder, checkpoint=str(checkpoint),
                   data=str(data))
  for line in ('qasper_e.jsonl line 2: not JSON',
               'trec_e.jsonl line 2: answers must be',
               'lcc_e.jsonl line 1: not an object of JSON'):
    assert re.search(rf'^Not used: .*{line}', said, re.MULTILINE), said
  assert '3 of 3 answers to generate' in said
  assert '\nconfig.window is 600 tokens, beyond the window of the checkpoint' in said
  assert 'Lines that could not be used: 3.' in (folder / 'tables/means.md').read_text()
  lines = {name: _lines(folder / f'predictions/{name}.jsonl')
           for name in ('qasper', 'trec')}
  first, second = lines['qasper']
  assert (first['length'], second['length']) == (3999, 4000)
  samples, _ = longbench_files.read_samples(data / 'qasper_e.jsonl')
  wholes = [BYTES.encode(longbench_files.prompt(x)) for x in samples]
  # 600 less 500, with BOS on top.
  assert first['num_tokens'] == 101 and first['settings']['kept_tokens'] == 100
  assert first['settings']['prompt_tokens'] == len(wholes[0]) > 600
  config = _config('longbench_smoke', data=str(data))
  part = longbench_parts.plan(config, BYTES, 600).parts[0]
  np.testing.assert_array_equal(
      part.draw(0).tokens, [256, *wholes[0][:50], *wholes[0][-50:]])
  assert lines['trec'][0]['all_classes'] == ['it', 'that', 'b']
  assert lines['trec'][0]['chance'] == pytest.approx(1 / 3)
  rows = scores.read_rows(folder)
  assert {row.length for row in rows} == {3999, 4000}
  # The predictions are files that LongBench's scorer and ours read.
  again = tmp_path / 'again'
  score = functools.partial(run_suite, 'longbench', again, checkpoint='',
                            predictions=f'{folder}/predictions')
  assert '3 predictions to score.' in score()
  kept = [row for row in rows if row.metric.startswith('score')]
  assert kept == [x for x in scores.read_rows(again) if x.metric.startswith('score')]
  scored, _ = longbench_files.score_folder(folder / 'predictions')
  assert [x.score for x in scored] == [
      row.value for row in kept if row.metric == 'score_official']
  before = _files(again)
  lose_rows(again)
  score()
  assert _files(again) == before
  assert 'made elsewhere' in (again / 'tables/means.md').read_text()


class _Killed(Exception):
  """Stands for the end of a process."""


@pytest.mark.slow
def test_longbench_grows_and_resumes_as_an_unbroken_run(
    data, checkpoint, tmp_path, run_suite, monkeypatch):
  long, short = 'all about it. ' * 30, 'all about it. '
  (data / 'qasper_e.jsonl').write_text(''.join(
      json.dumps(_sample('qasper', i, context=(long, short)[i % 2])) + '\n'
      for i in range(7)))
  again = functools.partial(
      run_suite, 'longbench_smoke', checkpoint=str(checkpoint), data=str(data),
      window=1700, batch_size=2)
  real, widths_of, left = generation.answer, [], [99]

  def counted(subject, prompts, width, *more):
    if not left[0]:
      raise _Killed
    left[0] -= 1
    widths_of.append(width)
    return real(subject, prompts, width, *more)

  monkeypatch.setattr(generation, 'answer', counted)
  assert '8 of 8 answers to generate, in 5 batches: 3 programs' in again(
      tmp_path / 'whole', num_samples=0)
  # Those of qasper have two widths.
  assert widths_of[:4] == sorted(widths_of[:4]) and len({*widths_of[:4]}) == 2
  expected = _files(tmp_path / 'whole')
  # Killed after one batch of the second width; resumed, and killed again.
  for left[0] in (3, 1):
    with pytest.raises(_Killed):
      again(tmp_path / 'killed', num_samples=0)
  left[0] = 99
  assert '1 of 8 answers' in again(tmp_path / 'killed', num_samples=0)
  assert _files(tmp_path / 'killed') == expected
  # From three samples of each task, of which the last two are of one width, to all.
  assert '4 of 4 answers' in again(tmp_path / 'grown', num_samples=3)
  left[0] = 1
  with pytest.raises(_Killed):
    again(tmp_path / 'grown', num_samples=0)
  left[0] = 99
  again(tmp_path / 'grown', num_samples=0)
  found = _files(tmp_path / 'grown')
  for own in (found, expected):  # lines are in the order of the answers
    own |= {name: sorted(x.splitlines()) for name, x in own.items()
            if name.suffix == '.jsonl'}
  assert found == expected


def test_files_that_cannot_be_used_are_named_and_the_others_are_read(data):
  (data / 'samsum_e.jsonl').write_text('')
  (data / 'musique_e.jsonl').write_text('{}\n')
  config = _config('longbench_smoke', data=str(data))
  plan = longbench_parts.plan(config, BYTES, 600)
  assert [part.task for part in plan.parts] == ['qasper', 'trec']
  said = '\n'.join(plan.notes)
  assert re.search(r'^Not used: .*samsum_e\.jsonl is empty$', said, re.MULTILINE)
  assert re.search(r'^Not used: .*musique_e\.jsonl: no task of Lon', said, re.MULTILINE)
  # Only files of the tasks that are named are looked at.
  config.tasks = ('samsum', 'trec')
  plan = longbench_parts.plan(config, BYTES, 600)
  assert [part.task for part in plan.parts] == ['trec'] and len(plan.notes) == 3
  assert plan.notes[2].startswith('Cut in the middle, to fit into the window of 600 t')
  config.tasks = ('samsum',)
  with pytest.raises(ValueError, match=r'can be used\. Not used: .*_e\.jsonl is empty'):
    longbench_parts.plan(config, BYTES, 600)
  (data / 'qasper.jsonl').write_text('')
  (data / 'other.jsonl').write_text('')
  (data / 'lcc.jsonl').write_text(json.dumps(
      {'pred': 'x', 'answers': ['x'], 'all_classes': None, 'length': 3}) + '\n')
  found, notes = longbench_parts.predictions_of(
      _config('longbench', predictions=str(data)))
  assert [*found] == ['lcc']
  assert any(x.endswith('/other.jsonl: no task of LongBench-E') for x in notes)
  assert any(x.endswith('/qasper.jsonl is empty') for x in notes)


@pytest.mark.parametrize('first, then, fits', [
    (1, 2, True), (1, 0, True), (0, 2, True), (2, 1, False), (0, 1, False)])
def test_more_samples_of_longbench_may_be_asked_for(first, then, fits, data, tmp_path):
  def claim(num_samples):
    config = _config('longbench_smoke', data=str(data), num_samples=num_samples)
    plan = longbench_parts.plan(config, BYTES, 600)
    own = {**config.to_dict(), 'inputs': {
        **plan.facts, 'samples': sum(len(part.widths) for part in plan.parts)}}
    run_folder.claim(tmp_path / 'run', own, {}, study='long_context',
                     **long_context_run._changes(config))
    return [len(part.widths) for part in plan.parts]

  assert claim(first) == ([2, 1] if first != 1 else [1, 1])
  if fits:
    assert claim(then) == [2, 1]
  else:
    with pytest.raises(ValueError, match=r'inputs\.samples: 3 there, 2 here \(may'):
      claim(then)


def test_answers_that_are_longer_than_the_reserve_have_room(data):
  config = _config('longbench_smoke', data=str(data), reserve=20)
  part = longbench_parts.plan(config, BYTES, 300).parts[0]
  assert (part.task, part.answer_tokens) == ('qasper', 128)
  assert part.longest == 300 - 128
  assert len(part.draw(0).tokens) == 1 + 2 * 85  # of 171, without BOS
  # How much is cut is told.
  settings = [own.draw(i).settings for own in longbench_parts.plan(
      config, BYTES, 300).parts for i in range(len(own.widths))]
  cut = [(x['prompt_tokens'], x['kept_tokens']) for x in settings
         if x['kept_tokens'] < x['prompt_tokens']]
  share = 100 * sum(kept for _, kept in cut) / sum(whole for whole, _ in cut)
  assert 0 < len(cut) and longbench_parts.plan(config, BYTES, 300).notes[-1] == (
      'Cut in the middle, to fit into the window of 300 tokens less config.reserve: '
      f'{len(cut)} of 3 prompts, of whose tokens {share:.3g} % are kept.')
  assert not any('middle' in x for x in longbench_parts.plan(
      config, BYTES, 10**6).notes)
  # Answers of trec have 64 tokens.
  plan = longbench_parts.plan(config, BYTES, 130)
  assert [part.task for part in plan.parts] == ['trec']
  assert plan.facts['not_run'] == ['qasper'] and plan.facts['bad_lines'] == 3
  assert plan.notes[3:] == [
      'Not run: a window of 130 tokens has no room for prompts of qasper: 129 are left '
      'free. Choose --config.window or config.reserve',
      'Cut in the middle, to fit into the window of 130 tokens less config.reserve: 1 '
      'of 1 prompt, of whose tokens 9.83 % are kept.']
  with pytest.raises(ValueError, match='60 tokens has no room for prompts of qasper'):
    longbench_parts.plan(config, BYTES, 60)
  # The first samples of a file, and predictions made elsewhere.
  config.num_samples = 1
  plan = longbench_parts.plan(config, BYTES, 300)
  assert [len(part.widths) for part in plan.parts] == [1, 1]
  assert plan.parts[0].draw(0).length == 3999
  made = data.parent / 'made'
  made.mkdir()
  (made / 'trec.jsonl').write_text(''.join(json.dumps({
      'pred': text, 'answers': ['it'], 'all_classes': ['it', 'that'], 'length': length}
  ) + '\n' for text, length in (('it', 3999), ('x', 9000))))
  elsewhere = _config('longbench', predictions=str(made))
  read, _ = longbench_parts.predictions_of(elsewhere)
  assert [(x['index'], x['pred'], x['length'], x['chance']) for x in read['trec']] == [
      (0, 'it', 3999, 0.5), (1, 'x', 9000, 0.5)]
  # Short prompts have a smaller width.
  assert part.widths[0] == 172 and part.widths[1] <= 172


# Tables.


def _rows(suite, values):
  """Rows of {(task, length, depth): [(official, lm_eval, strict, chance), …]}."""
  return [
      Row(suite, task, i, length, metric, value, depth=depth)
      for (task, length, depth), own in values.items()
      for i, sample in enumerate(own)
      for metric, value in zip(
          ('score_official', 'score_lm_eval', 'score_strict', 'chance'), sample,
          strict=True)]


def _run(suite, values, dialect='official'):
  return Run(suite, _rows(suite, values), dialect, 200, 0, 512, 'Weights w.')


QA = {
    ('qa1', 64, 0): [
        (1, 1, 0, 0.25), (1, 1, 1, 0.25), (1, 1, 0, 0.25), (0, 1, 0, 0.25)],
    ('qa1', 128, 0): [(1, 1, 0, 0.2), (1, 1, 0, 0.2), (1, 1, 1, 0.2)],
    ('qa1', 256, 0): [(1, 0, 0, 0.2), (0, 0, 0, 0.2)],
    ('qa2', 64, 25): [(1, 0, 1, 0.5), (0, 0, 1, 0.5)],
    ('qa2', 128, 25): [(1, 0, 0, 0.5), (0, 1, 0, 0.5), (0, 0, 0, 0.5), (0, 1, 0, 0.5)],
    ('qa2', 256, 75): [(0, 0, 0, 0.5), (0, 0, 0, 0.5)],
}


def _field(table, row, name):
  return table.records[row][name]


def test_scores_by_length_are_means_of_samples():
  table = tables.by_length(_run('babilong', QA))
  assert [r['task'] for r in table.records] == ['qa1', 'qa2', 'mean']
  assert [[r[f'samples_{n}'] for n in (64, 128, 256)] for r in table.records] == [
      [4, 3, 2], [2, 4, 2], [6, 7, 4]]
  found = [[r[f'score_{n}'] for n in (64, 128, 256)] for r in table.records]
  np.testing.assert_allclose(found, [[75, 100, 50], [50, 25, 0], [62.5, 62.5, 25]])
  drawn = np.random.default_rng(0).multinomial(4, [1 / 4] * 4, 200) @ [1, 1, 1, 0] / 4
  np.testing.assert_allclose(
      [_field(table, 0, f'score_64_{x}') for x in ('low', 'high')],
      100 * np.quantile(drawn, (0.025, 0.975)))
  # The mean: both tasks, each drawn again by itself.
  other = np.random.default_rng(1).multinomial(2, [1 / 2] * 2, 200) @ [1, 0] / 2
  np.testing.assert_allclose(
      [_field(table, 2, f'score_64_{x}') for x in ('low', 'high')],
      100 * np.quantile((drawn + other) / 2, (0.025, 0.975)))
  # Groups of one size are not drawn alike.
  groups = [np.array([1.0, 0, 0]), np.array([0.0, 1, 1])]
  drawn = [np.random.default_rng(seed).multinomial(3, [1 / 3] * 3, 200) @ x / 3
           for seed, x in zip((7, 8), groups, strict=True)]
  np.testing.assert_allclose(
      scores.mean_interval(groups, 200, 7),
      [0.5, *np.quantile(np.mean(drawn, axis=0), (0.025, 0.975))])
  cells = shown(table, 'qa2')
  assert cells['samples'] == '2 to 4' and cells['128 tokens'].startswith('25.0 [')
  assert shown(table, 'mean')['samples'] == '4 to 7'
  assert list(cells) == ['task', 'samples', '64 tokens', '128 tokens', '256 tokens']
  strict = tables.by_length(_run('babilong', QA, 'strict'))
  assert _field(strict, 0, 'score_64') == 25 and 'Dialect: strict.' in strict.note
  lm_eval = tables.by_length(_run('babilong', QA, 'lm_eval'))
  assert _field(lm_eval, 1, 'score_128') == 50
  # A task that lacks a length has an empty cell, and there is no mean there.
  part = {key: x for key, x in QA.items() if key != ('qa2', 256, 75)}
  cells = shown(tables.by_length(_run('babilong', part)), 'mean')
  assert cells['256 tokens'] == '' and cells['128 tokens'].startswith('62.5')
  assert cells['samples'] == '6 to 7'  # where there is a mean


def test_the_effective_length_is_the_longest_without_a_gap():
  can = lambda share, n=100: [(float(i < share * n), 0, 0, 0.1) for i in range(n)]
  values = {('qa1', 64, 0): can(0.8), ('qa1', 128, 0): can(0.68),
            ('qa1', 256, 0): can(0.67), ('qa1', 512, 0): can(0.9),
            ('qa2', 64, 0): can(0.12), ('qa2', 128, 0): can(0.9)}
  made = _run('babilong', values)
  table = tables.effective_lengths(made)
  one, two, mean = table.records
  assert (one['base_length'], one['effective_length']) == (64, 128)
  assert one['base_score'] == pytest.approx(80) and one['chance'] == pytest.approx(10)
  assert one['base_score_low'] < 80 < one['base_score_high']
  np.testing.assert_allclose([one[f'change_{n}'] for n in (64, 128, 256, 512)],
                             [0, -15, -16.25, 12.5])
  cells = shown(table, 'qa1')
  # The samples of all lengths are drawn again together, as the questions are the same.
  drawn = np.random.default_rng(0).multinomial(100, [1 / 100] * 100, 200)
  own = [drawn @ (np.arange(100) < count) for count in (80, 68, 67, 90)]
  ends = [int(n) for n in np.quantile(
      [(64, 128, 256, 512)[next(
          (i for i in range(3) if x[i + 1] < 0.85 * x[0] - 1e-9), 3)]
       for x in np.transpose(own)], (0.025, 0.975), method='inverted_cdf')]
  assert [one['effective_length_low'], one['effective_length_high']] == ends
  assert ends == [64, 512]
  assert cells['effective length [95 %]'] == '128 [64, 512]'
  assert cells['change at 256'] == '−16'
  assert cells['chance, shortcut'] == '10.0, unknown' and cells['base'] == '64'
  assert cells['change at 512'] == '+12' and 'change at 64' not in cells
  assert cells['score at the base [95 %]'].startswith('80.0 [')
  # 12 % is not above 10 %.
  assert not two['well_above_guess'] and np.isnan(two['effective_length'])
  cells = shown(table, 'qa2')
  assert cells['effective length [95 %]'] == 'not well above a guess'
  assert cells['change at 128'] == cells['change at 512'] == ''
  # The mean is over lengths that both have; its interval is that of the mean score.
  assert (mean['task'], mean['base_length'], mean['effective_length']) == (
      'mean', 64, 128)
  assert mean['change_128'] == pytest.approx(100 * (0.79 / 0.46 - 1))
  assert np.isnan(mean['change_256']) and mean['chance'] == pytest.approx(10)
  same = tables.by_length(made).records[-1]
  assert [mean[f'base_score{end}'] for end in ('', '_low', '_high')] == [
      same[f'score_64{end}'] for end in ('', '_low', '_high')]
  falls = {**values, ('qa1', 128, 0): can(0.1), ('qa2', 128, 0): can(0.1)}
  falls = tables.effective_lengths(_run('babilong', falls)).records[-1]
  assert (falls['task'], falls['effective_length']) == ('mean', 64)
  # Tasks with other shortest lengths have no mean.
  apart = {key: x for key, x in values.items() if key != ('qa2', 64, 0)}
  assert [r['task'] for r in tables.effective_lengths(
      _run('babilong', apart)).records] == ['qa1', 'qa2']
  said = answer.answer(tables.effects(made))
  assert said[0].startswith('qa1: 80 % [95 %: 7')
  assert said[0].endswith(
      'at least 85 % of that up to 128 [95 %: 64, 512], and 90 % at 512.')
  assert said[1] == ('No verdict on qa2 (12 %): at 64 tokens, the base length, its '
                     'interval does not lie 10 points above a guess or a shortcut.')
  strict = tables.effective_lengths(made._replace(dialect='strict')).records
  assert strict[0]['base_score'] == 0 and not strict[0]['well_above_guess']
  # Up to the longest, and of one length alone.
  values = {key: x for key, x in values.items() if key[0] == 'qa1' and key[1] < 200}
  [said] = answer.answer(tables.effects(_run('babilong', values)))
  assert said.endswith(
      ', and at least 85 % of that up to 128 [95 %: 64, 128], the longest.')
  [said] = answer.answer(tables.effects(_run('babilong', {
      ('qa1', 64, 0): can(0.8)})))
  assert said.endswith('] at 64 tokens.')
  [said, _] = answer.answer(tables.effects(_run('babilong', {
      ('qa1', 64, 0): can(0.8), ('qa2', 64, 0): can(0.9), ('qa3', 64, 0): can(0)})))
  assert said == (
      'Mean of the 2 tasks that can be done at 64 tokens: 85 % there (qa1, qa2).')
  # Of several tasks, those that it can do.
  more = _run('babilong', {
      ('qa1', 64, 0): can(0.8), ('qa2', 64, 0): can(0.6), ('qa5', 64, 0): can(0.7),
      ('qa1', 128, 0): can(0.7), ('qa2', 128, 0): can(0.2), ('qa5', 128, 0): can(0.6),
      ('qa3', 64, 0): can(0.0), ('qa3', 128, 0): can(0.5)})
  assert answer.answer(tables.effects(more)) == [
      'Mean of the 3 tasks that can be done at 64 tokens: 70 % there, and 50 % at 128. '
      'Each stays at or above 85 % of its own score there: qa1 up to 128 [95 %: 64, '
      '128], qa2 up to 64 [95 %: 64, 64], qa5 up to 128 [95 %: 64, 128].',
      'No verdict on qa3 (0 %): at 64 tokens, the base length, its interval does not '
      'lie 10 points above a guess or a shortcut.']
  [said] = answer.answer(tables.effects(_run('babilong', {
      ('qa1', 64, 0): can(0.8), ('qa1', 128, 0): can(0.2)})))
  assert said.endswith(
      'at least 85 % of that up to 64 [95 %: 64, 64], and 20 % at 128.')
  # Of one sample, nothing is known about others.
  effect, = tables.effects(_run('babilong', {
      ('qa1', 64, 0): can(0.8), ('qa1', 128, 0): can(0.8)[:1]}))
  assert effect.able and np.isnan(effect.effective_low)
  assert answer.answer([effect])[0].endswith(
      ', and at least 85 % of that up to 128, the longest.')


def test_a_shortcut_has_no_effective_length():
  half = [(float(i % 2), 0, 0, 1 / 6) for i in range(100)]
  made = _run('babilong', {('qa1', n, 0): half for n in (64, 128, 256)})
  named_last = [Row('babilong', 'qa1', i, n, 'shortcut', value, depth=0)
                for n in (64, 128, 256) for i, (value, *_) in enumerate(half)]
  known = made._replace(rows=[*made.rows, *named_last])
  table = tables.effective_lengths(known)
  assert shown(table, 'qa1')['chance, shortcut'] == '16.7, 50.0'
  assert shown(table, 'qa1')['effective length [95 %]'] == 'not well above a guess'
  assert answer.answer(tables.effects(known)) == [
      'No verdict on qa1 (50 %): at 64 tokens, the base length, its interval does not '
      'lie 10 points above a guess or a shortcut.']
  # Where it is not known, a reader is told.
  words = 'the room that is named last answers half of the stories of qa1'
  assert words not in table.more
  table = tables.effective_lengths(made)
  assert shown(table, 'qa1')['effective length [95 %]'] == '256 [256, 256]'
  assert words in table.more
  # A pass key is the only number of its prompt.
  table = tables.effective_lengths(_run('passkey', {
      ('passkey', 64, 0): [(1, 0, 0, 0.01)] * 2}))
  assert shown(table, 'pass key')['chance, shortcut'] == '1.0, 1.0'
  assert words not in table.more


def test_lengths_beyond_the_window_have_a_star():
  made = _run('babilong', QA)._replace(window=132, answer_tokens=4)
  words = ('From 256 tokens on, prompts with BOS and answers of up to 4 tokens exceed '
           'the window, 132 tokens.')
  assert tables.beyond_window(made) == [256] and tables.beyond_words(made) == words
  for table, header in ((tables.by_length(made), '{} tokens'),
                        (tables.by_depth(made), '{} tokens'),
                        (tables.effective_lengths(made), 'change at {}')):
    names = [*table.columns]
    assert {header.format(128), f'{header.format(256)} *'} <= {*names}
    assert f'* {words}' in table.more
  # What the model read counts, with BOS and what stands around a context.
  read = [Row('babilong', 'qa1', 0, 128, 'num_tokens', 129.0, depth=0)]
  assert tables.beyond_window(made._replace(rows=[*made.rows, *read])) == [128, 256]
  inside = made._replace(window=260)
  assert not tables.beyond_window(inside) and not tables.beyond_words(inside)
  assert '256 tokens' in tables.by_length(inside).columns
  assert '*' not in tables.by_length(inside).more
  # The window of predictions made elsewhere is not known; LongBench cuts prompts.
  assert not tables.beyond_window(made._replace(window=0))
  assert not tables.beyond_window(_longbench()._replace(window=9))


def test_a_few_right_answers_beyond_chance_give_no_effective_length():
  can = lambda share: [(float(i < share * 100), 0, 0, 0.001) for i in range(100)]
  made = _run('babilong', {
      ('qa1', 64, 0): can(0.04), ('qa1', 128, 0): can(0.04),
      ('qa2', 64, 0): can(0.3), ('qa2', 128, 0): can(0.3)})
  few, many, _ = tables.effective_lengths(made).records
  # Both are above chance, and only one well above it.
  assert 0.1 < few['base_score_low'] < 10.1 < many['base_score_low']
  assert np.isnan([few['effective_length'], few['change_128']]).all()
  assert many['effective_length'] == 128 and many['change_128'] == 0
  effect = tables.Effect(
      'qa1', [64], np.ones(1), 0.19, 0.3, 0.1, np.nan, 64, np.nan, np.nan)
  assert not effect.able and effect._replace(low=0.21).able
  assert not effect._replace(low=0.59, shortcut=0.5).able
  assert effect._replace(low=0.61, shortcut=0.5).able


def test_sentences_on_tasks_of_other_lengths_are_their_own():
  can = lambda share, n=100: [(float(i < share * n), 0, 0, 0.1) for i in range(n)]
  made = _run('babilong', {
      ('qa1', 4000, 0): can(0.8), ('qa1', 8000, 0): can(0.4),
      ('qa1', 16000, 0): can(0.6), ('qa2', 4000, 0): can(0.6),
      ('qa2', 16000, 0): can(0.2), ('qa3', 4000, 0): can(0.5),
      ('qa3', 8000, 0): can(0.3), ('qa4', 8000, 0): can(0.1),
      ('qa5', 4000, 0): can(0.0), ('qa5', 8000, 0): can(0.9)})
  effects = {x.task: x for x in tables.effects(made)}
  low, high = 100 * effects['qa3'].low, 100 * effects['qa3'].high
  assert answer.answer([*effects.values()]) == [
      'Mean of the 2 tasks that can be done at 4,000 tokens: 70 % there, and 40 % at '
      '16,000. Each stays at or above 85 % of its own score there: qa1 up to 4,000 '
      '[95 %: 4,000, 4,000], qa2 up to 4,000 [95 %: 4,000, 4,000].',
      f'qa3: 50 % [95 %: {low:.0f}, {high:.0f}] at 4,000 tokens, at least 85 % of that '
      'up to 4,000 [95 %: 4,000, 4,000], and 30 % at 8,000.',
      'No verdict on qa4 (10 %): at 8,000 tokens, the base length, its '
      'interval does not lie 10 points above a guess or a shortcut.',
      'No verdict on qa5 (0 %): at 4,000 tokens, the base length, its '
      'interval does not lie 10 points above a guess or a shortcut.']
  [said] = answer.answer([effects['qa1']])
  low, high = 100 * effects['qa1'].low, 100 * effects['qa1'].high
  assert said == (
      f'qa1: 80 % [95 %: {low:.0f}, {high:.0f}] at 4,000 tokens, at least 85 % of that '
      'up to 4,000 [95 %: 4,000, 4,000], and 60 % at 16,000.')
  assert answer.answer([effects['qa4']]) == answer.answer([*effects.values()])[2:3]


def test_one_sample_gives_no_verdict():
  values = {('passkey', 64, 0): [(1, 1, 1, 0)]}
  effect, = tables.effects(_run('passkey', values))
  assert not effect.able and np.isnan(effect.low)
  assert answer.answer([effect]) == [
      'No verdict on pass key (100 %): at 64 tokens, the base length, a single sample.']


def test_scores_by_depth_are_of_the_samples_there():
  values = {
      ('passkey', 64, 0): [(1, 0, 0, 0), (0, 0, 0, 0)],
      ('passkey', 64, 50): [(1, 0, 1, 0)] * 3, ('passkey', 64, 100): [(0, 0, 0, 0)],
      ('passkey', 96, 100): [(1, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)]}
  rows = []  # one number a sample of a length
  for length in (64, 96):
    own = [(key, x) for key, all_ in values.items() if key[1] == length for x in all_]
    for i, (key, sample) in enumerate(own):
      rows += [row._replace(seed=i) for row in _rows('passkey', {key: [sample]})]
  made = _run('passkey', {})._replace(rows=rows)
  table = tables.by_depth(made)
  assert [(r['depth'], r['samples_64'], r['samples_96']) for r in table.records] == [
      (0, 2, 0), (50, 3, 0), (100, 1, 4)]
  assert shown(table, '100 %')['64 tokens'] == '0'  # one sample has no interval
  assert [r['score_64'] for r in table.records] == [50, 100, 0]
  assert _field(table, 2, 'score_96') == 25
  assert 0 <= _field(table, 2, 'score_96_low') < 25 < _field(table, 2, 'score_96_high')
  cells = shown(table, '50 %')
  assert cells['task'] == 'pass key' and cells['96 tokens'] == ''
  assert cells['64 tokens'] == '100.0 [100.0, 100.0]'
  assert _field(tables.by_depth(made._replace(dialect='strict')), 0, 'score_64') == 0
  assert shown(tables.by_depth(_run('babilong', QA)), '75–100 %')['task'] == 'qa2'
  figure = figures.by_depth(made)
  texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
  # By column and row, those of lengths and depths.
  assert texts == {(0, 0): '50', (0, 1): '100', (0, 2): '0', (1, 2): '25'}
  np.testing.assert_array_equal(
      figure.axes[0].images[0].get_array().filled(np.nan),
      [[50, np.nan], [100, np.nan], [0, 25]])
  assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == (
      'tokens of the prompt', 'depth, % of the context')
  assert table.more == 'Depth: the share of the text before the key.'
  # Each task has a panel of the same lengths and depths.
  several = figures.by_depth(_run('babilong', {
      **QA, ('qa3', 128, 0): [(0, 0, 0, 0)]}))
  shown_in = {axes.get_title(): axes for axes in several.axes if axes.images}
  assert list(shown_in) == ['qa1', 'qa2', 'qa3']
  of = lambda task: shown_in[task].images[0].get_array().filled(np.nan)
  np.testing.assert_array_equal(of('qa1'), [
      [75, 100, 50], [np.nan] * 3, [np.nan] * 3])
  np.testing.assert_array_equal(of('qa2'), [
      [np.nan] * 3, [50, 25, np.nan], [np.nan, np.nan, 0]])
  np.testing.assert_array_equal(of('qa3')[0], [np.nan, 0, np.nan])
  assert [axes.get_xlabel() for axes in shown_in.values()] == [
      '', *2 * ['tokens of the prompt']]
  assert 'stands, a panel for each task. Empty: no sample. Weights w.' in (
      several.get_label())
  assert [x.get_text() for x in shown_in['qa1'].get_yticklabels()] == [
      '0–25', '25–50', '75–100']
  labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
  assert labels == ['0', '50', '100']
  assert [x.get_text() for x in figure.axes[0].get_xticklabels()] == ['64', '96']


def test_notes_of_tables_say_what_is_shown():
  made = _run('babilong', QA)
  table = tables.by_length(made)
  assert table.note == (
      'Mean score in % of the samples of each length [95 %: bootstrap over samples]. '
      'Dialect: official. Weights w.')
  assert table.more.startswith(
      'A length is that of a prompt, without BOS. Answers are greedy. Samples: of each '
      'length, from the fewest to the most. The mean is that over tasks, whose samples '
      'are drawn again task by task.')
  assert tables.by_length(made._replace(window=0)).more.startswith(
      'A length is that in the name of a file or folder. Samples')
  assert tables.by_length(made._replace(length_of='context')).more.startswith(
      'A length is that of a context, without BOS. Answers are greedy. Samples')
  assert tables.effective_lengths(made).note == (
      'Up to the effective length, means are at least 85 % of the base, the shortest '
      'length [95 %: bootstrap over samples]. Dialect: official. Weights w.')
  assert tables.effective_lengths(made).more.startswith(
      'Change: (S_L − S_base) / S_base, in %. Chance: the mean score in % of a guess '
      'of the right kind that ignores the context, 0 where it is not known, as in '
      'predictions of RULER made elsewhere. Shortcut: that of an answer that takes a '
      'fitting word of the context whatever is asked: of four needles any one, of a '
      'story the label that it names last; chance if there is one word alone. A task '
      'whose interval at the base length does not lie 10 points above both has no '
      'effective length and no changes. For the interval of the effective length, the '
      'samples of all lengths are drawn again. The mean is that over tasks, at the '
      'lengths that all of them have. Where the score of a shortcut is unknown, ')
  assert tables.by_depth(made).more == (
      'Depth: the quarter of the context where the first fact that is needed stands.')
  # The longest note of each table is short enough, whatever a run changes.
  long = (f'Weights {"a" * 12} (dynamic by 16 from 131,072 tokens, bfloat16, window '
          '2,097,152 tokens).')
  for one in (*tables.make(made._replace(source=long)),
              dialect_tables.by_length(made._replace(source=long)),
              *longbench_tables.make(_longbench()._replace(source=long))):
    assert is_short(one.note), one.name
  assert tables.NAMES == {
      'passkey': 'pass key', 'niah_single': 'single needle',
      'niah_multikey': 'several keys', 'niah_multivalue': 'several values',
      'niah_multiquery': 'several queries', 'variable_tracking': 'variable tracking',
      'common_words': 'common words'}
  # Chance is that of the task at its base length, of which a length is shown.
  records = tables.effective_lengths(made).records
  assert [r['chance'] for r in records] == [25, 50, 37.5]


def test_settings_of_the_suites_are_those_of_their_papers():
  config = {suite: config_file.get_config(suite) for suite in config_file.SUITES}
  assert {(x.dialect, x.begin, x.num_resamples) for x in config.values()} == {
      ('official', True, 1_000)}
  assert config['longbench'].reserve == 500
  babilong = config['babilong']
  assert babilong.tasks == ('qa1', 'qa2', 'qa3', 'qa4', 'qa5')
  assert (babilong.answer_tokens, babilong.num_samples) == (20, 100)
  assert babilong.parts == ('instruction', 'examples', 'post_prompt')
  assert babilong.length_of == 'prompt'
  assert config['passkey'].digits == 5
  assert config['passkey'].depths == (0, 0.25, 0.5, 0.75, 1)
  ruler = config['ruler']
  assert (ruler.num_keys, ruler.num_values, ruler.num_queries) == (4, 4, 4)
  assert (ruler.num_hops, ruler.num_chains) == (4, 1) and len(ruler.tasks) == 6
  for suite in DRAWN:
    assert config[suite].multiples == (0.25, 0.5, 1, 2)
    assert config[suite].beyond_window and config[suite].num_samples == 100


def _prediction(index, **fields):
  return {'index': index, 'length': 64, 'depth': None, 'num_tokens': 65, 'others': [],
          'all_classes': [], 'question': '', 'chance': 0.5, 'settings': {}, **fields}


def test_official_files_have_what_was_predicted(tmp_path):
  config = _config('babilong_smoke', answer_tokens=7)
  hashes = {'checkpoint_sha256': 'ab', 'template_sha256': 'cd'}
  for folder in (tmp_path, tmp_path / 'ruler'):
    run_folder.claim(folder, {'inputs': {**hashes, 'window': 9}}, {})
  predictions.append(predictions.path_of(tmp_path, 'qa5_64'), [
      _prediction(i, answers=[target], question=question, pred=text)
      for i, (target, text, question) in enumerate((
          ('milk', ' Milk.', 'What did Bill give to Fred?'),
          ('Bill', ' Mary.', 'Who gave the milk to Fred?')))])
  official.write(config, tmp_path, [('qa5', 'qa5_64')])
  name = babilong_files.name_of('qa5', 64, ())
  folder = tmp_path / 'official'
  assert {path.name for path in folder.iterdir()} == {f'{name}.csv', f'{name}.json'}
  read, _ = babilong_files.read_predictions(folder / f'{name}.csv')
  assert read == [('milk', ' Milk.', 'What did Bill give to Fred?'),
                  ('Bill', ' Mary.', 'Who gave the milk to Fred?')]
  settings = json.loads((folder / f'{name}.json').read_text())
  assert {x: settings[x] for x in settings if 'sha256' in x} == hashes
  assert settings['caveat'] == (
      'The stories are simulated, the text around them may be another one, and lengths '
      'are in tokens of the prompt by the tokenizer of this model: do not compare '
      'scores with published ones.')
  assert settings['prompt']['template'] == (
      '<context>\n{context}\n</context>\n\nQuestion: {question}')
  assert settings['generate_kwargs'] == {
      'max_new_tokens': 7, 'num_beams': 1, 'do_sample': False}
  config.predictions = str(folder)
  found, bad = official.predictions_of(config)
  assert [*found] == ['qa5'] and bad == []
  assert [(x['answers'], x['pred'], x['question'], x['chance'], x['length'])
          for x in found['qa5']] == [
              (['milk'], ' Milk.', 'What did Bill give to Fred?', 1 / 3, 64),
              (['Bill'], ' Mary.', 'Who gave the milk to Fred?', 1 / 3, 64)]
  # RULER.
  config = _config('ruler_smoke', predictions=str(tmp_path / 'ruler/official'))
  predictions.append(predictions.path_of(tmp_path / 'ruler', 'niah_multivalue_64'), [
      _prediction(3, answers=['12', '34'], pred=' 34, 56')])
  official.write(config, tmp_path / 'ruler', [
      ('niah_multivalue', 'niah_multivalue_64')])
  path = tmp_path / 'ruler/official/64/pred/niah_multivalue.jsonl'
  assert json.loads((tmp_path / 'ruler/official/hashes.json').read_text()) == hashes
  [line] = _lines(path)
  assert {name: line[name] for name in ('index', 'pred', 'outputs', 'length')} == {
      'index': 3, 'pred': ' 34, 56', 'outputs': ['12', '34'], 'length': 65}
  # A length whose folder has nothing to read is named, and the others are read.
  (tmp_path / 'ruler/official/96/pred').mkdir(parents=True)
  (tmp_path / 'ruler/official/128/pred').mkdir(parents=True)
  (tmp_path / 'ruler/official/128/pred/vt.jsonl').write_text('')
  found, bad = official.predictions_of(config)
  assert [re.sub('.*official', '', x) for x in bad] == [
      '/96/pred has no file TASK.jsonl', '/128/pred/vt.jsonl is empty']
  assert all(x.startswith('Not used: ') for x in bad) and [*found] == [
      'niah_multivalue']
  [one] = found['niah_multivalue']
  assert (one['answers'], one['pred'], one['length'], one['chance']) == (
      ['12', '34'], ' 34, 56', 64, 0)


def test_the_report_says_what_the_rows_are_of(tmp_path, monkeypatch):
  monkeypatch.setattr(plots, 'save', lambda folder, made: {})

  def reported(variant, rows, fields=types.MappingProxyType({}), **inputs):
    config = _config(variant, dialect='strict', **fields).to_dict() | {'inputs': inputs}
    (tmp_path / 'config.json').write_text(json.dumps({'config': config}))
    results.write_rows(tmp_path / 'results.csv', rows)
    return report.write(tmp_path)

  hashes = {'checkpoint_sha256': 'a' * 64, 'template_sha256': 'b' * 64}
  rows = _rows('babilong', QA)
  made = reported('babilong', rows, samples=20, window=512, **hashes)
  run = Run('babilong', rows, 'strict', 1_000, 0, 512, '')
  assert made.answer == answer.answer(tables.effects(run))
  assert made.tables[0].more.endswith('SHA-256 of the template of prompts: '
                                      f'{"b" * 12}.')
  beyond = reported('babilong', rows, samples=20, window=140, **hashes)
  assert beyond.answer == [
      *made.answer, 'From 128 tokens on, prompts with BOS and answers of up to 20 '
      'tokens exceed the window, 140 tokens.']
  changed = reported('babilong', rows, {
      'rope.kind': 'yarn', 'rope.factor': 4.0, 'dtype': 'bfloat16', 'window': 512},
                     samples=20, window=512, **hashes)
  assert changed.tables[0].note.endswith(
      ' Weights aaaaaaaaaaaa (yarn by 4, bfloat16, window 512 tokens).')
  assert [r['score_64'] for r in made.tables[0].records] == [25, 100, 62.5]
  assert made.missing == 'The run is not finished: 3 of 20 answers are missing.'
  assert made.title == (
      'Does this checkpoint find facts in a long text, and reason with them?')
  assert made.tables[0].note.endswith(
      ' Dialect: strict. Weights aaaaaaaaaaaa.')
  assert 'A length is that of a prompt' in made.tables[0].more
  made = reported('babilong', rows, {'length_of': 'context'}, samples=20, window=512,
                  **hashes)
  assert 'A length is that of a context' in made.tables[0].more
  # What was left out is named, and in the tables that lack it. It may have been run
  # before a sample was added that does not fit.
  made = reported('babilong', rows, samples=13, window=512, **hashes,
                  not_run=['qa1 at 64 tokens'])
  assert made.missing == 'Not run, as not all prompts could be made: qa1 at 64 tokens.'
  [of_qa1] = [r for r in made.tables[0].records if r['task'] == 'qa1']
  assert np.isnan(of_qa1['score_64']) and of_qa1['score_128'] >= 0
  made = reported('babilong', rows, samples=20, window=512, **hashes,
                  not_run=['qa1 at 32 tokens', 'qa3 at 64 tokens'])
  words = ('Not run, as not all prompts could be made: qa1 at 32 tokens, qa3 at 64 '
           'tokens.')
  assert made.missing == (
      f'The run is not finished: 3 of 20 answers are missing. {words}')
  assert [table.name for table in made.tables if words in table.more] == [
      'scores', 'effective_length', 'depth', 'dialects']
  made = reported('babilong', rows, samples=17, predictions_sha256='c' * 64,
                  bad_lines=2)
  assert made.missing == 'Lines that could not be used: 2, named in log.txt.'
  assert made.tables[0].note.endswith(
      ' Predictions cccccccccccc, made elsewhere. Lines that could not be used: 2.')
  made = reported('longbench', _longbench().rows, samples=12, window=600, **hashes)
  run = _longbench()._replace(dialect='strict', window=600)
  assert made.answer == answer.longbench_answer(
      longbench_tables.means(run).records, 'strict', 600)
  assert made.answer[0].startswith(
      'Mean score of LongBench-E with a window of 600 tokens: 5 % over tasks (4)')
  made = reported('longbench', _longbench().rows, samples=12, window=600, **hashes,
                  not_run=['gov_report'])
  words = 'Not run, as not all prompts could be made: gov_report.'
  assert made.missing == words
  assert [table.name for table in made.tables if words in table.more] == [
      'means', 'scores', 'dialects']
  made = reported('passkey', _rows('passkey', {
      ('passkey', 64, 0): [(1, 1, 1, 0)] * 3}), samples=3, window=0, **hashes)
  assert made.title == 'From how far back does this checkpoint find a pass key?'
  # Of as many digits as config.digits says.
  assert made.about == ('A number stands somewhere in filler, and is asked for at the '
                        'end. Source: arXiv 2305.16300.')


def test_dialects_are_compared_sample_by_sample():
  values = {
      ('qa1', 64, 0): [(1, 1, 0, 0.2), (1, 0, 0, 0.2), (0, 0, 1, 0.2), (1, 1, 1, 0.2)],
      ('qa2', 64, 0): [(1, 1, 1, 0.2)] * 2, ('qa1', 128, 0): [(1, 0, 0, 0.2)]}
  table = dialect_tables.by_length(_run('babilong', values))
  assert [(r['place'], r['task']) for r in table.records] == [
      (64, 'qa1'), (64, 'qa2'), (128, 'qa1')]
  first = table.records[0]
  assert [first[name] for name in longbench.DIALECTS] == [75, 50, 50]
  assert first['difference_lm_eval'] == first['difference_strict'] == -25
  # Intervals of differences are those of pairs: of these four, −1, −1, +1 and 0.
  drawn = np.random.default_rng(0).multinomial(4, [1 / 4] * 4, 200)
  np.testing.assert_allclose(
      [first[f'difference_strict_{end}'] for end in ('low', 'high')],
      100 * np.quantile(drawn @ [-1, -1, 1, 0] / 4, (0.025, 0.975)))
  assert [*table.columns] == ['length', 'task', *longbench.DIALECTS,
                              'lm_eval − official', 'strict − official']
  cells = shown(table, 'qa2')
  assert cells['strict − official'] == '0' and cells['length'] == '64'
  # Samples of which a row is lost are in no difference.
  lost = _run('babilong', values)
  lost = lost._replace(rows=[row for row in lost.rows if (
      row.arm, row.length, row.seed, row.metric) != ('qa1', 64, 2, 'score_official')])
  record = dialect_tables.by_length(lost).records[0]
  assert record['difference_strict'] == pytest.approx(-200 / 3)
  assert [cell(table.records[2]) for cell in table.columns.values()] == [
      '128', 'qa1', '100.0', '0', '0', '−100.0', '−100.0']
  for one in (table, longbench_tables.dialects(_longbench())):
    assert one.note == (
        'Mean score in % of the same predictions in three dialects, and differences in '
        'points [95 %: bootstrap over samples]. Weights w.')
    assert 'experiments.long_context.ranking' in one.more


def test_files_of_ruler_have_a_weaker_strict():
  made = _run('ruler', {('niah_single', 64, None): [(1, 1, 1, 0)] * 2})
  words = 'Files of RULER do not list wrong answers, so here strict does not check that'
  assert words in dialect_tables.by_length(made._replace(window=0)).more
  assert words not in dialect_tables.by_length(made).more
  assert words not in dialect_tables.by_length(
      _run('babilong', QA)._replace(window=0)).more


LONGBENCH = {
    ('qasper', 100, None): [(0.5, 0.25, 0, 0), (1, 0.75, 1, 0)],
    ('hotpotqa', 4000, None): [(0.2, 0.4, 0, 0), (0.4, 0.4, 0, 0)],
    ('trec', 3999, None): [(1, 1, 0, 0.25), (0, 1, 0, 0.25)],
    ('lcc', 8000, None): [(0.1, 0.3, 0, 0)] * 3,
}


def _longbench():
  rows = _rows('longbench', LONGBENCH)
  # The second bucket of qasper: samples 2 to 4.
  rows += [row._replace(seed=row.seed + 2) for row in _rows('longbench', {
      ('qasper', 9000, None): [(0, 0, 0, 0)] * 3})]
  return _run('longbench', {})._replace(rows=rows)


def test_three_means_are_those_of_the_library():
  made = _longbench()
  expected = longbench.summarize([
      longbench.Scored(row.arm, row.length, row.value) for row in made.rows
      if row.metric == 'score_official'])
  table = longbench_tables.means(made)
  found = {r['mean']: r['official'] for r in table.records}
  assert found == pytest.approx({
      'over_tasks': 100 * expected.over_tasks, 'over_cells': 100 * expected.over_cells,
      'over_categories': 100 * expected.over_categories})
  assert found == pytest.approx({  # qasper: 0.3 of 5 samples, of cells 0.75 and 0
      'over_tasks': 100 * (0.3 + 0.3 + 0.5 + 0.1) / 4,
      'over_cells': 100 * (0.75 + 0 + 0.3 + 0.5 + 0.1) / 5,
      'over_categories': 100 * (0.3 + 0.3 + 0.5 + 0.1) / 4})
  assert [r['count'] for r in table.records] == [4, 5, 4]
  assert [r['lm_eval'] for r in table.records] == pytest.approx(
      [100 * (0.2 + 0.4 + 1 + 0.3) / 4, 100 * (0.5 + 0 + 0.4 + 1 + 0.3) / 5,
       100 * (0.2 + 0.4 + 1 + 0.3) / 4])
  assert table.records[0]['strict'] == pytest.approx(100 * 0.2 / 4)
  for r in table.records:
    assert r['official_low'] < r['official'] < r['official_high']
  assert shown(table, 'over tasks')['of'] == '4'
  # Each cell is drawn again by itself, in alphabetical order.
  drawn = []
  for seed, own in enumerate(([0.2, 0.4], [0.1] * 3, [0.5, 1], [0] * 3, [1, 0])):
    n = len(own)
    drawn.append(np.random.default_rng(seed).multinomial(n, [1 / n] * n, 200) @ own / n)
  ends = [table.records[1][f'official_{end}'] for end in ('low', 'high')]
  np.testing.assert_allclose(
      ends, 100 * np.quantile(np.mean(drawn, axis=0), (0.025, 0.975)))
  # Two tasks of one category are one.
  more = longbench_tables.means(made._replace(rows=[*made.rows, *_rows(
      'longbench', {('multifieldqa_en', 10, None): [(0.9, 0, 0, 0)]})]))
  by_name = {r['mean']: (r['official'], r['count']) for r in more.records}
  mean, count = by_name['over_categories']
  assert mean == pytest.approx(100 * (0.6 + 0.3 + 0.5 + 0.1) / 4) and count == 4
  # A cell of one sample has no variance that is known, nor has any of the means.
  for r in more.records:
    assert np.isnan([r['official_low'], r['official_high']]).all()
  assert shown(more, 'over tasks')['official'] == '42.0'
  assert by_name['over_tasks'][1] == 5
  [said] = answer.longbench_answer(table.records, 'official', 512)
  assert said == ('Mean score of LongBench-E with a window of 512 tokens: 30 % over '
                  'tasks (4), 33 % over task × bucket cells (5), 30 % over categories '
                  '(4).')
  [said] = answer.longbench_answer(table.records, 'lm_eval', 0)
  assert said == (
      'Mean score of LongBench-E: 47.5 % over tasks (4), 44 % over task × bucket cells '
      '(5), 47.5 % over categories (4).')
  assert [table.columns['mean'](r) for r in table.records] == [
      'over tasks', 'over task × bucket cells', 'over categories']
  assert table.more == (
      'Tasks, cells and categories without samples count for nothing, not as 0: a mean '
      'over some tasks is not that over all 13. There is no interval if a cell has a '
      'single sample.')


def test_sums_over_tasks_are_in_alphabetical_order():
  # Small numbers are lost if they are added to a large one, and not if they come first.
  small = 2.0**-54
  found = {(task, '0-4k'): np.full(2, 1.0 if task == 'samsum' else small)
           for task in longbench.METRICS}
  total = 0.0
  for task in sorted(longbench.METRICS):
    total += found[task, '0-4k'][0]
  assert total not in (1.0, sum(sorted(x[0] for x in found.values())))
  means = longbench_tables.three_means(found, 10, 0)
  assert means['over_tasks'][0] == means['over_cells'][0] == total / 13


def test_longbench_scores_by_bucket():
  made = _longbench()
  table = longbench_tables.by_bucket(made)
  by_task = {r['task']: r for r in table.records}
  assert [*by_task] == ['qasper', 'hotpotqa', 'trec', 'lcc']
  qasper = by_task['qasper']
  assert (qasper['0-4k'], qasper['8k+'], qasper['all']) == pytest.approx((75, 0, 30))
  assert np.isnan(qasper['4-8k']) and qasper['chance'] == 0
  # From 75 to 0; without a base there is no change, nor from one that is chance.
  assert qasper['change_8k+'] == -100 and np.isnan(qasper['change_4-8k'])
  assert np.isnan(by_task['lcc']['change_8k+'])
  assert shown(table, 'qasper')['change at 8k+'] == '−100'
  assert shown(table, 'hotpotqa')['change at 4-8k'] == ''
  # A base whose interval is not 10 points above chance gives no change.
  def changes(base, chance):
    values = {('qasper', 9, None): [(base, 0, 0, chance)] * 2,
              ('qasper', 9000, None): [(0.1, 0, 0, chance)] * 2}
    rows = [row._replace(seed=row.seed + (row.length == 9000) * 2)
            for row in _rows('longbench', values)]
    [record] = longbench_tables.by_bucket(made._replace(rows=rows)).records
    return record['change_8k+']

  assert changes(0.5, 0.3) == pytest.approx(-80)
  assert np.isnan([changes(0.5, 0.45), changes(0.09, 0)]).all()
  assert [qasper[f'samples_{x}'] for x in (*longbench.BUCKETS, 'all')] == [2, 0, 3, 5]
  assert by_task['hotpotqa']['4-8k'] == pytest.approx(30)
  assert by_task['trec']['0-4k'] == 50 and by_task['trec']['chance'] == 25
  cells = shown(table, 'hotpotqa')
  assert cells['0-4k words'] == '' and cells['samples'] == '0, 2, 0'
  assert cells['4-8k words'].startswith('30.0 [') and cells['all'].startswith('30.0 [')
  assert shown(table, 'trec')['chance'] == '25.0'
  found = {r['task']: (r['official'], r['lm_eval'], r['difference_lm_eval'])
           for r in longbench_tables.dialects(made).records}
  assert found['trec'] == (50, 100, 50)
  assert found['hotpotqa'] == pytest.approx((30, 40, 10))
  assert shown(table, 'qasper')['samples'] == '2, 0, 3'
  # Of a dialect, its scores.
  lm_eval = longbench_tables.by_bucket(made._replace(dialect='lm_eval'))
  assert _field(lm_eval, 0, '0-4k') == 50 and 'Dialect: lm_eval.' in lm_eval.note
  assert table.more.startswith('Chance: of a guess of a class or paragraph, else 0.')
  # All samples of a task are in the table of dialects.
  records = longbench_tables.dialects(made).records
  assert records[0]['official'] == pytest.approx(30)


def test_the_figure_of_longbench_has_a_marker_for_each_task_and_bucket():
  # Two samples more, so that an interval is not alike on both sides.
  made = _longbench()
  made = made._replace(rows=[*made.rows, *(
      row._replace(seed=row.seed + 2) for row in _rows('longbench', {
          ('hotpotqa', 4000, None): [(1, 0, 0, 0), (0.2, 0, 0, 0)]}))])
  figure = figures.by_bucket(made)
  axes, = figure.axes
  labels = [x.get_text() for x in axes.get_yticklabels()]
  assert labels == ['qasper', 'hotpotqa', 'trec', 'lcc']
  assert [*axes.get_yticks()] == [0, 1, 2, 3]
  low, high = axes.get_ylim()
  assert low > high and axes.get_xlabel() == 'score, %'  # the first task is on top
  records = {r['task']: r for r in longbench_tables.by_bucket(made).records}
  assert [x.get_label() for x in axes.containers] == [
      '0-4k words', '4-8k words', '8k+ words']
  for place, (bucket, tasks) in enumerate((
      ('0-4k', ('qasper', 'trec')), ('4-8k', ('hotpotqa',)),
      ('8k+', ('qasper', 'lcc')))):
    dots, _, (bars,) = axes.containers[place].lines
    assert dots.get_color() == plots.LOOKS[place][0]
    np.testing.assert_allclose(dots.get_ydata(), [
        labels.index(task) + 0.2 * (place - 1) for task in tasks])
    np.testing.assert_allclose(
        dots.get_xdata(), [records[task][bucket] for task in tasks], atol=1e-9)
    np.testing.assert_allclose(
        [bar[:, 0] for bar in bars.get_segments()],
        [[records[task][f'{bucket}_{end}'] for end in ('low', 'high')]
         for task in tasks], atol=1e-9)
  assert figure.get_label() == (
      'Mean score in %, a line for each task, a marker for each bucket of lengths of '
      'texts in words; bars: 95 % intervals by bootstrap over samples; 0 is the score '
      'of an empty answer. Weights w.')


def test_figures_show_scores_with_chance():
  made = _run('babilong', QA)
  figure = figures.by_length(made)
  panels = {axes.get_title(): axes for axes in figure.axes}
  assert [*panels] == ['qa1', 'qa2']
  score, chance = panels['qa1'].lines[:2]
  assert score.get_xdata().tolist() == [64, 128, 256]
  np.testing.assert_allclose(score.get_ydata(), [75, 100, 50])
  np.testing.assert_allclose(chance.get_ydata(), 100 * (4 * 0.25 + 5 * 0.2) / 9)
  assert 'chance' in chance.get_label() and score.get_label() == 'score'
  records = {r['task']: r for r in tables.by_length(made).records}
  for task, axes in panels.items():
    drawn = axes.lines[0]
    np.testing.assert_allclose(
        drawn.get_ydata(), [records[task][f'score_{n}'] for n in (64, 128, 256)])
    [band] = bands(axes).values()
    assert band[0] == [64, 128, 256]
    np.testing.assert_allclose(band[1:], [
        [records[task][f'score_{n}_{end}'] for n in (64, 128, 256)]
        for end in ('low', 'high')])
  assert [axes.get_ylabel() for axes in figure.axes] == ['score, %', '']
  assert {axes.get_xlabel() for axes in figure.axes} == {'tokens of the prompt'}
  assert figure.get_label() == (
      'Mean score in % by number of tokens of the prompt, a panel for each task; '
      'bands: 95 % intervals by bootstrap over samples; dotted: chance, the score of a '
      'guess without the context. The window of the model is 512 tokens. Weights w.')
  of_context = figures.by_length(made._replace(length_of='context'))
  assert {axes.get_xlabel() for axes in of_context.axes} == {'tokens of the context'}
  assert title_of(of_context) == 'Score by length of the context'
  assert of_context.get_label().startswith(
      'Mean score in % by number of tokens of the context, a panel')
  of_depth = figures.by_depth(made._replace(length_of='context'))
  assert of_depth.axes[0].get_xlabel() == 'tokens of the context'
  strict = figures.by_length(made._replace(dialect='strict'))
  np.testing.assert_allclose(strict.axes[0].lines[0].get_ydata(), [25, 100 / 3, 0])
  with_bands = 'bands: 95 % intervals by bootstrap over samples'
  assert setup_of(strict) == (
      f'2 to 4 samples of each task and length, dialect strict; {with_bands}')
  assert setup_of(figure) == (
      f'2 to 4 samples of each task and length, dialect official; {with_bands}')
  assert setup_of(of_depth) == (
      '2 to 4 samples of each cell, dialect official')
  assert len(panels['qa1'].lines) == 2  # a window of 512 tokens lies beyond
  *_, window = figures.by_length(made._replace(window=128)).axes[0].lines
  assert window.get_xdata() == [128, 128] and window.get_label() == 'window, 128'
  assert [*figures.make(made)] == ['scores', 'depth']
  assert [*figures.make(_run('ruler', {
      ('niah_single', 64, None): [(1, 1, 1, 0)] * 2}))] == ['scores']


def test_scores_of_predictions_by_hand(tmp_path):
  path = tmp_path / 'predictions/niah_single_64.jsonl'
  record = {'length': 64, 'depth': None, 'num_tokens': 65, 'all_classes': [],
            'question': '', 'chance': 0.5, 'settings': {}}
  predictions.append(path, [
      {**record, 'index': 1, 'answers': ['71', '22'], 'others': [], 'pred': ' 71 é'},
      {**record, 'index': 0, 'answers': ['71'], 'others': [], 'pred': '4711'}])
  predictions.append(path, [
      {**record, 'index': 2, 'answers': ['71'], 'others': ['5'], 'pred': '71, 5'}])
  read = predictions.read(epath.Path(path))
  assert [*read] == [1, 0, 2] and read[1]['pred'] == ' 71 é'
  rows = scores.rows_of('ruler', 'niah_single', predictions.in_order(read))
  at = lambda metric: [row.value for row in rows if row.metric == metric]
  assert at('score_official') == at('score_lm_eval') == [1, 0.5, 1]
  assert at('score_strict') == [0, 0, 0] and at('chance') == [0.5] * 3
  assert at('shortcut') == [0.5, 0.5, 0.5]  # chance, and one of two values
  assert [row.seed for row in rows if row.metric == 'num_tokens'] == [0, 1, 2]
  qa = {**record, 'index': 3, 'answers': ['kitchen'], 'others': [],
        'question': 'Where is Mary?', 'pred': 'Kitchen. Not the garden',
        'settings': {'facts': ['Mary went to the kitchen.',
                               'John went to the garden.']}}
  rows = scores.rows_of('babilong', 'qa1', [qa])
  assert [row.value for row in rows[:3]] == [1, 1, 0]
  # Whoever is asked for, the room that is named last is the garden.
  shortcut = lambda suite, task, one: [
      row.value for row in scores.rows_of(suite, task, [one])
      if row.metric == 'shortcut']
  assert shortcut('babilong', 'qa1', qa) == [0]
  assert shortcut('babilong', 'qa1', {**qa, 'answers': ['Garden']}) == [1]
  assert shortcut('ruler', 'niah_multikey', {
      **record, 'index': 0, 'answers': ['71'], 'others': ['1', '2', '3'],
      'pred': ''}) == [0.25]
  elsewhere = {k: x for k, x in qa.items() if k != 'settings'}
  assert shortcut('babilong', 'qa1', elsewhere) == []
  trec = {**record, 'index': 4, 'answers': ['a b'], 'all_classes': ['a b', 'c'],
          'pred': 'a b or c\nc'}
  rows = scores.rows_of('longbench', 'trec', [trec])
  assert [row.value for row in rows[:3]] == [0.5, 0.5, 0]
  # What a question names is no answer of it; the best of several answers counts.
  given = {**qa, 'question': 'Where was it before the garden?',
           'pred': 'kitchen, not the garden'}
  assert scores.score('babilong', 'qa3', given, 'official') == 1
  hotpotqa = {**record, 'answers': ['x', 'by the sea'], 'pred': 'By the sea!'}
  assert scores.score('longbench', 'hotpotqa', hotpotqa, 'strict') == 1
  one_of = {**record, 'answers': ['Paris', 'France'], 'others': [],
            'pred': 'in paris'}
  assert [scores.score('ruler', task, one_of, 'official')
          for task in ('qa_1', 'niah_multivalue')] == [1, 0.5]
  # Rows are of the length of the prompt, without BOS.
  assert {row.length for row in scores.rows_of('babilong', 'qa1', [qa])} == {64}
  assert [row.value for row in scores.rows_of('babilong', 'qa1', [qa])
          if row.metric == 'num_tokens'] == [65]
  # One sample of one group gives no interval of the mean.
  mean, low, high = scores.mean_interval([np.ones(1), np.zeros(3)], 200, 0)
  assert mean == 0.5 and np.isnan([low, high]).all()
  # What is not a line of such a file is named.
  path.write_text(path.read_text() + '{"index": 9}\n')
  with pytest.raises(ValueError, match=r'line 4 has no length: delete the file'):
    predictions.read(epath.Path(path))
  path.write_text('x\n')
  with pytest.raises(ValueError, match=r'line 1 is damaged: delete the file'):
    predictions.read(epath.Path(path))


# What is refused.


def _no_tokenizer(folder, checkpoint, data):
  model = llama(vocab_size=512, rope=ROPES['default'])
  save_checkpoint(folder / 'other', model, variables_of(model))


def _nan(folder, checkpoint, data):
  model = llama(vocab_size=264, rope=ROPES['default'])
  variables = variables_of(model)
  variables['params']['final_norm']['scale'] *= np.nan
  save_checkpoint(folder / 'other', model, variables)


def _bad_lines(folder, checkpoint, data):
  (folder / 'bad').mkdir()
  (folder / 'bad/qasper_e.jsonl').write_text('{}\n')
  (folder / 'bad/qasper.jsonl').write_text('{}\n')
  (folder / 'bad/qa1_4k.csv').write_text('target,output,question\nattic,x,y\n')
  (folder / 'ruler/64/pred').mkdir(parents=True)
  (folder / 'ruler/64/pred/vt.jsonl').write_text('{}\n')


def _empty(folder, checkpoint, data):
  (folder / 'empty').mkdir()
  (folder / 'text').write_text(' \n')


@pytest.mark.parametrize('suite, make, arguments, words', [
    ('passkey', None, ['--checkpoint='], '--checkpoint is missing'),
    ('passkey', None, ['--checkpoint=/nowhere'], '/nowhere is not a checkpoint'),
    ('passkey', _no_tokenizer, ['--checkpoint={}/other'], 'has no tokenizer.json, and'),
    ('passkey', _nan, ['--checkpoint={}/other'],
     'other: weights are not finite: final_norm/scale'),
    ('passkey', None, ['--config.lengths=(20, 21)'],
     'passkey at 20 tokens, sample 0: 20 tokens are too few: facts and what'),
    ('passkey', None, ['--config.beyond_window=False'], 'beyond the window of 70'),
    ('passkey', None, ['--config.lengths=(0,)'], 'config.lengths must be whole'),
    ('passkey', None, ['--config.lengths=()', '--config.multiples=()'],
     'config.lengths and config.multiples are both (): name lengths'),
    ('passkey', None, ['--config.depths=(1.5,)'], 'config.depths must be one or more'),
    ('passkey', None, ['--config.tasks=("qa1",)'], 'config has no field'),
    ('passkey', None, ['--dialect=loose'], 'config.dialect must be one of official'),
    ('passkey', None, ['--text=/nowhere'], '/nowhere: no such file or folder'),
    ('passkey', _empty, ['--text={}/text'], 'text has no text'),
    ('passkey', None, ['--nonsense'], 'nonsense'),
    ('babilong', None, ['--config.length_of=answer'],
     'config.length_of must be one of prompt, context'),
    ('babilong', None, ['--config.tasks=("qa6",)'], 'config.tasks must be one or more'),
    ('babilong', None, ['--config.lengths=(64,)'], 'qa1 at 64 tokens, sample 0: 64'),
    ('babilong', None, ['--config.lengths=(64,)'],
     '. Choose longer --config.lengths, a smaller --config.most_facts or, '),
    ('babilong', None, ['--babi=/nowhere'], '/nowhere: no such folder'),
    ('babilong', _empty, ['--babi={}/empty'], 'must have one file qa1_…_test.txt: 0'),
    ('ruler', None, ['--config.num_keys=0'], 'config.num_keys must be a whole number'),
    ('ruler', None, ['--config.wording=published'], 'tokens are too few'),
    ('babilong', None, ['--predictions=x'], 'scored without a --checkpoint'),
    ('babilong', None, ['--checkpoint=', '--predictions=/nowhere'],
     '/nowhere: no such folder'),
    ('babilong', _empty, ['--checkpoint=', '--predictions={}/empty'],
     'empty has no file TASK.csv'),
    ('babilong', _bad_lines, ['--checkpoint=', '--predictions={}/bad'],
     'no prediction that can be used. Not used: '),
    ('ruler', None, ['--checkpoint=', '--predictions=/nowhere'],
     '/nowhere: no such folder'),
    ('ruler', _empty, ['--checkpoint=', '--predictions={}/empty'],
     'empty has no folder LENGTH/pred, such as 4096/pred'),
    ('ruler', _bad_lines, ['--checkpoint=', '--predictions={}/ruler'],
     'no prediction that can be used. Not used: '),
    ('longbench', None, [], '--data, the folder of files TASK_e.jsonl, is missing'),
    ('longbench', None, ['--data=/nowhere'], '/nowhere: no such folder'),
    ('longbench', _empty, ['--data={}/empty'], 'empty has no file TASK_e.jsonl'),
    ('longbench', _bad_lines, ['--data={}/bad'], 'no sample that can be used. Not us'),
    ('longbench', None, ['--data={}/data', '--config.tasks=("samsum",)'],
     'samsum_e.jsonl: no such file'),
    ('longbench', None, ['--data={}/data', '--config.window=400'],
     'a window of 400 tokens has no room for prompts of qasper: 500 are left free.'),
    ('longbench', None, ['--data={}/data', '--predictions={}/data'],
     'either --data or --predictions, not both'),
    ('longbench', None, ['--predictions={}/data'], 'scored without a --checkpoint'),
    ('longbench', _empty, ['--checkpoint=', '--predictions={}/empty'],
     'empty has no file TASK.jsonl'),
    ('longbench', _bad_lines, ['--checkpoint=', '--predictions={}/bad'],
     'no prediction that can be used. Not used:'),
    ('other', None, [], "variant must be one of passkey, babilong, longbench, ruler"),
])
def test_bad_input_is_one_line_and_exit_code_2(
    run_here, tmp_path, checkpoint, data, suite, make, arguments, words):
  if make is not None:
    make(tmp_path, checkpoint, data)
  given = [x.format(*[tmp_path] * 2) for x in arguments]
  usual = [x for x in _flags(suite, checkpoint, tmp_path / 'run')
           if x.partition('=')[0] not in {x.partition('=')[0] for x in given}]
  done = run_here('long_context', *usual, *given)
  assert done.returncode == 2, done.stderr
  assert done.stderr.startswith('Error: ') and done.stderr.count('\n') == 1
  assert words in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_folder_of_another_run_or_checkpoint_is_refused(
    whole, checkpoint, tmp_path, run_suite):
  folder, other = tmp_path / 'run', tmp_path / 'other'
  shutil.copytree(whole[0], folder)
  shutil.copytree(checkpoint, other)
  assert '\n0 of 6 answers' in run_suite(
      'passkey_smoke', folder, checkpoint=str(other))
  before = _files(folder)
  (other / 'generation_config.json').write_text('{"eos_token_id": [5, 6]}')
  with pytest.raises(ValueError, match=r'inputs\.ends: \[\] there, \[5, 6\] here'):
    run_suite('passkey_smoke', folder, checkpoint=str(other))
  edit(other, rope_theta=20_000.0)
  for variant, fields, name in (
      ('passkey', {'checkpoint': str(other)}, 'checkpoint_sha256: '),
      ('passkey', {'checkpoint': str(checkpoint), 'seed': 1}, 'seed: '),
      ('ruler', {'checkpoint': str(checkpoint)}, 'more fields')):
    with pytest.raises(ValueError, match=rf'holds another run \(.*{name}'):
      run_suite(f'{variant}_smoke', folder, **fields)
  assert _files(folder) == before


@pytest.mark.slow
def test_a_report_of_an_unfinished_run_says_so(whole, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(whole[0], folder)
  lose_rows(folder)
  assert report.write(folder).missing == (
      'The run is not finished: 2 of 6 answers are missing.')
  (folder / 'results.csv').unlink()
  with pytest.raises(ValueError, match=r'has no results\.csv with results'):
    report.write(folder)


def test_arguments_may_be_short():
  full = run.full_arguments
  assert full(['--suite=ruler', '--checkpoint=a', '-text', 'b', '--workdir=c']) == [
      '--config=configs/long_context.py:ruler', '--config.checkpoint=a',
      '--config.text', 'b', '--workdir=c']
  assert full(['--workdir=c', '--suite', 'passkey', '--dialect=strict']) == [
      '--config=configs/long_context.py:passkey', '--workdir=c',
      '--config.dialect=strict']
  assert full(['--config=x:smoke', '--data=y', '--suite=z']) == [
      '--config=x:smoke', '--config.data=y', '--suite=z']
  assert full(['--checkpoints=a']) == ['--checkpoints=a']
  with pytest.raises(ValueError, match='--suite is missing, one of passkey, bab'):
    full(['--checkpoint=a', '--workdir=c'])


@pytest.mark.parametrize('variant', [
    f'{suite}{size}' for suite in config_file.SUITES for size in ('', '_smoke')])
def test_configurations_are_checked_field_by_field(variant):
  fields = {'data': 'x'} if 'longbench' in variant else {}
  check(_config(variant, **fields))


@pytest.mark.slow
def test_tables_as_csv_have_every_number(whole):
  with (whole[0] / 'tables/depth.csv').open() as file:
    rows = [*csv.DictReader(file)]
  assert [row['depth'] for row in rows] == ['0', '100']
  assert [row['samples_64'] for row in rows] == ['2', '1']
