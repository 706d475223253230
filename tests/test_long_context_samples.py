"""Samples of `experiments.long_context`: what is asked, at which lengths."""

import itertools
import json
import os
import pathlib
import re

import numpy as np
import pytest

from configs import long_context as config_file
from experiments.long_context import (
    babilong_suite,
    longbench_parts,
    ruler_suites,
    run,
    samples,
    suites,
)
from experiments.long_context import run as long_context_run
from tests.conftest import NEEDS_REFERENCE
from tests.long_context_cases import BYTES, config_of, WINDOW, write_longbench
from vvlen.evaluation import widths
from vvlen.reporting import run_folder
from vvlen.tasks.haystack import DoesNotFit, split_sentences
from vvlen.tasks.word_lists import ADJECTIVES


@pytest.fixture
def data(tmp_path):
  return write_longbench(tmp_path / 'data')


DRAWN = ('passkey', 'babilong', 'ruler')


@pytest.mark.parametrize('suite', DRAWN)
def test_samples_depend_on_nothing_but_seed_task_length_and_index(suite):
  one = suites.plan(config_of(f'{suite}_smoke'), BYTES, WINDOW)
  longest = 256 if suite == 'babilong' else 96
  two = suites.plan(config_of(
      f'{suite}_smoke', num_samples=5, lengths=(longest, 300), batch_size=3), BYTES, 99)
  other = suites.plan(config_of(f'{suite}_smoke', seed=1), BYTES, WINDOW)
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
    plan = suites.plan(config_of(f'{suite}_smoke', begin=begin), BYTES, WINDOW)
    for part in plan.parts:
      sample = part.draw(0)
      assert part.name == f'{part.task}_{sample.length}'
      spare = 3 if part.task == 'common_words' else 0  # no room for one word more
      assert 0 <= sample.length + begin - len(sample.tokens) <= spare
      assert (sample.tokens[0] == 256) == begin and 256 not in sample.tokens[1:]
      assert set(part.widths) == {part.longest} == {sample.length + begin}


def test_depths_of_the_pass_key_take_turns():
  config = config_of('passkey_smoke', lengths=(300,), num_samples=5,
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
  config = config_of('babilong_smoke', most_facts=6, lengths=(400, 600), num_samples=8,
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
  config = config_of('babilong_smoke', lengths=(600,), depths=((0.5, 0.75), (0.0, 0.5)))
  part = suites.plan(config, BYTES, WINDOW).parts[0]
  assert part.draw(0).depth == part.draw(2).depth == 50
  assert part.draw(1).depth in (0, 25)
  assert part.draw(1).settings['between'] == (0.0, 0.5)


@pytest.mark.parametrize('parts', [(), ('instruction', 'examples', 'post_prompt')])
def test_lengths_of_babilong_may_be_those_of_the_context(parts):
  config = config_of('babilong', length_of='context', lengths=(400, 500), most_facts=4,
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
  config = config_of('babilong_smoke', babi=str(folder), most_facts=4, lengths=(500,),
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
  config = config_of('babilong_smoke', babi=str(tmp_path), tasks=('qa1',),
                     lengths=(500,), num_samples=2)
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
  config = config_of('babilong_smoke', babi=str(tmp_path), tasks=('qa1',),
                     num_samples=3, lengths=(400,), length_of='context', begin=False)
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
  config = config_of('babilong_smoke', babi=str(tmp_path), tasks=('qa1',),
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
    config = config_of('babilong_smoke', text=str(path), tasks=('qa1',), most_facts=2,
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
  config = config_of('babilong', tasks=('qa1',), parts=(), most_facts=4, lengths=(700,),
                     num_samples=60)
  plan = suites.plan(config, BYTES, 9_000)
  assert plan.notes == []
  first = [part.settings['depths'][0] for part in map(plan.parts[0].draw, range(60))]
  assert np.mean([x == 0 for x in first]) < 0.25 and np.std(first) > 0.15


def test_a_wrong_answer_in_a_file_of_babi_is_named_and_others_asked(tmp_path):
  story = '1 Mary moved to the hallway.\n2 Where is Mary?\t{}\t1\n'
  path = tmp_path / 'qa1_single_test.txt'
  path.write_text(''.join(map(story.format, ('hallway', 'halway', 'Hallway'))))
  config = config_of('babilong_smoke', babi=str(tmp_path), tasks=('qa1',),
                     lengths=(500,), num_samples=2)
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
    suites.plan(config_of(f'{variant}_smoke', **fields), BYTES, 9_000)


def test_the_text_around_is_read_as_far_as_it_is_used(tmp_path):
  texts = ['A dog. A cat.', '', 'Two birds. ' * 9, 'The end.']
  path = tmp_path / 'text.jsonl'
  lines = [json.dumps({'text': text}) for text in texts]
  path.write_text('\n'.join([*lines, 'no json']))
  whole = '\n'.join(filter(None, texts))
  for most in (3, 13, 14, 15, len(texts[0]) + len(texts[2])):
    config = config_of('passkey_smoke', text=str(path), num_characters=most)
    assert samples.sentences_of(config, lambda: ()) == split_sentences(whole[:most])
  with pytest.raises(ValueError, match='line 5'):
    samples.sentences_of(config_of(
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
  suites.plan(config_of('passkey_smoke', lengths=(400, 300), num_samples=4), BYTES, 70)
  assert drawn == [300] * 4 + [400]


def test_a_task_and_length_whose_prompts_do_not_fit_is_left_out_and_named(monkeypatch):
  config = config_of('babilong_smoke', lengths=(120, 1000))
  plan = suites.plan(config, BYTES, 9_000)
  whole = suites.plan(config_of('babilong_smoke', lengths=(1000,)), BYTES, 9_000)
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
      config_of('passkey', lengths=(300, 400, 500), num_samples=4), BYTES, 9_000)
  assert drawn == [300] * 3 + [400] * 4 + [500]
  assert [part.name for part in plan.parts] == ['passkey_400', 'passkey_500']
  assert plan.notes == [
      'Not run: passkey at 300 tokens, sample 2: too few',
      'A task is not run at a length at which one of its prompts does not fit, as the '
      'others alone would be easier. Choose longer --config.lengths.']


def test_a_list_of_more_words_than_there_are_is_left_out_and_named(monkeypatch):
  config = config_of('ruler', lengths=(80, 2000), num_samples=2)
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
  more = config_of('ruler', lengths=(80, 2000), num_samples=2, uncommon_repeats=2,
                   common_repeats=4)
  assert suites.plan(more, BYTES, 9_000).notes == []
  alone = config_of('ruler', lengths=(2000,), tasks=('common_words',))
  with pytest.raises(ValueError, match=r'the others 1\. Choose shorter --config\.len'):
    suites.plan(alone, BYTES, 9_000)
  # Both reasons are told.
  both = suites.plan(config_of(
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
          suites.plan(config_of(variant, lengths=(2000,), num_samples=1, **fields),
                      BYTES, WINDOW)
          for variant, fields in (
              ('passkey', {}), ('passkey', {'wording': 'published'}),
              ('ruler', {'tasks': ('niah_single',)}),
              ('ruler', {'tasks': ('niah_single',), 'wording': 'published'}),
              ('babilong', {'tasks': ('qa1',)}), ('babilong', {'tasks': ('qa4',)}),
              ('babilong', {'tasks': ('qa1',), 'parts': ('instruction',)})))]
  hashes += [
      longbench_parts.plan(
          config_of('longbench', data=str(data), tasks=tasks), BYTES, 900
      ).facts['template_sha256'] for tasks in (('qasper',), ())]
  assert len(set(hashes)) == len(hashes) == 9


def test_chance_is_that_of_a_guess_of_the_right_kind():
  plan = suites.plan(config_of('ruler', lengths=(200,), num_samples=1), BYTES, WINDOW)
  chance = {part.task: part.draw(0).chance for part in plan.parts}
  numbers = 900
  assert chance == pytest.approx({
      'niah_single': 1 / numbers, 'niah_multikey': 1 / numbers,
      'niah_multivalue': 4 / numbers, 'niah_multiquery': 4 / numbers,
      'variable_tracking': 5 / 260, 'common_words': 2 / 114})
  [words] = [part for part in suites.plan(config_of(
      'ruler', lengths=(1000,), num_samples=1), BYTES, WINDOW).parts
             if part.task == 'common_words']
  assert words.draw(0).chance == 2 / 16_758 and '-' in words.draw(0).answers[0]
  config = config_of('ruler', lengths=(200,), num_samples=1, needle_values='words',
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
  config = config_of('passkey', multiples=(2.0, 0.125, 1.0))
  assert suites.lengths_of(config, 512) == [64, 512, 1024]
  config.lengths = (70, 64)
  assert suites.lengths_of(config, 512) == [64, 70]


def test_what_exceeds_the_window_is_named_or_refused():
  config = config_of('passkey_smoke', lengths=(64, 65, 66), answer_tokens=5)
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
