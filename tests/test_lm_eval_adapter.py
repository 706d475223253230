"""lm-evaluation-harness with a Llama of vvlen: its numbers are those of other ways.

They are compared with a forward pass in float64, loop by loop, and, where PyTorch is
installed, with lm_eval's own model of transformers on the same checkpoint.
"""

import functools
import json
import os
import pathlib

import jax
import numpy as np
import pytest

from tests.conftest import NEEDS_REFERENCE
from tests.llamas import llama, numpy_logits, ROPES, variables_of
from vvlen.evaluation.widths import width_of
from vvlen.models import generation
from vvlen.models.llama import ends_of, load_checkpoint, save_checkpoint
from vvlen.sharding import mesh as partition
from vvlen.tasks.tokenizers import byte_tokenizer, load_tokenizer, tokenizer_of

lm_eval = pytest.importorskip(
    'lm_eval', reason="needs lm-evaluation-harness: pip install '.[harness]'")
if lm_eval:
  from lm_eval.api.instance import Instance

  from vvlen.evaluation import lm_eval_adapter
  from vvlen.evaluation.lm_eval_adapter import VvlenLM

pytestmark = pytest.mark.slow  # as CI installs lm_eval for slow tests alone
BYTES = byte_tokenizer()
LENGTH = 12  # the most tokens that the small model reads
_SHARED = os.environ.get('VVLEN_SHARED')
FOLDER = pathlib.Path(_SHARED or '.') / 'data' / 'stories260K'


def _requests(kind, arguments):
  return [Instance(kind, {}, x, i) for i, x in enumerate(arguments)]


def _ask(subject, kind, arguments):
  return getattr(subject, kind)(_requests(kind, arguments), disable_tqdm=True)


@pytest.fixture(scope='module')
def small():
  """A model of bytes with random weights."""
  model = llama(vocab_size=264, rope=ROPES['default'], max_length=LENGTH)
  return model, variables_of(model)


@pytest.fixture(scope='module')
def subject(small):
  return VvlenLM(*small, BYTES, batch_size=3)


@functools.cache
def _log_probabilities(length_dependent, tokens):
  """Returns log p of each word after each token, [n, V] float64."""
  rope = ROPES['dynamic' if length_dependent else 'default']
  model = llama(vocab_size=264, rope=rope, max_length=LENGTH)
  logits = numpy_logits(model, variables_of(model), [tokens])[0]
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _expected(context, continuation, length=LENGTH, length_dependent=False):
  """Returns log p(continuation | context) of lists of tokens, and if it is greedy."""
  read = (context + continuation)[-length - 1:]
  found = _log_probabilities(length_dependent, tuple(read[:-1]))[-len(continuation):]
  return (found[range(len(continuation)), continuation].sum(),
          found.argmax(-1).tolist() == continuation)


def _greedy(tokens, count):
  """Returns the most probable next tokens, one forward pass each."""
  made = []
  for _ in range(count):
    made.append(int(_log_probabilities(False, (*tokens, *made))[-1].argmax()))
  return made


def _bytes(text):
  return list(text.encode())


PAIRS = [
    ('ab', 'c'), ('ab', 'cd'), ('', 'xyz'), ('q', 'w'), ('four', ' five'),
    ('a space at the end ', 'of'), ('much more than it can read', 'ing')]


@pytest.mark.parametrize('begin', [True, False])
def test_log_likelihoods_are_those_of_a_forward_pass(small, begin, caplog):
  subject = VvlenLM(*small, BYTES, batch_size=3, begin=begin)
  found = _ask(subject, 'loglikelihood', PAIRS)
  first = [256] if begin else []
  expected = [_expected(first + _bytes(context) if context else [256], _bytes(more))
              for context, more in PAIRS[:-2]]
  # A space at the end of a context is scored with what follows it. The beginning of
  # what is too long, with BOS, is left out.
  expected += [_expected(_bytes('a space at the end'), _bytes(' of')),
               _expected(_bytes(PAIRS[-1][0]), _bytes('ing'))]
  np.testing.assert_allclose(*[[x[0] for x in y] for y in (found, expected)], atol=1e-4)
  assert {type(x) for pair in found for x in pair} == {float, bool}
  assert '2 of 7 inputs have more than 13 tokens and lose their' in caplog.text


def test_what_is_most_probable_is_found(subject):
  context = _bytes('ab')
  best = _greedy([256, *context], 4)
  other = [*best[:2], (best[2] + 1) % 128, best[3]]
  asked = [(None, [256, *context], x) for x in (best[:1], best, other, other[:2])]
  found = subject._loglikelihood_tokens(asked, disable_tqdm=True)
  assert [x for _, x in found] == [True, True, False, True]
  for (_, before, after), answer in zip(asked, found, strict=True):
    expected = _expected(before, after)
    np.testing.assert_allclose(answer[0], expected[0], atol=1e-4)
    assert answer[1] == expected[1]


def test_rates_of_rotary_positions_are_those_of_each_input(small):
  model = small[0].clone(rope=ROPES['dynamic'])  # its original length is 8
  subject = VvlenLM(model, small[1], BYTES, batch_size=3)
  pairs = [('ab', 'c'), ('abcdefgh', 'c'), ('abcdefghi', 'jk')]  # of 3, 9 and 11
  found = _ask(subject, 'loglikelihood', pairs)
  expected = [_expected([256, *_bytes(a)], _bytes(b), length_dependent=True)
              for a, b in pairs]
  np.testing.assert_allclose(
      [x[0] for x in found], [x[0] for x in expected], atol=1e-4)


def test_rolling_log_likelihoods_are_sums_over_windows(small):
  text = 'a text of 27 bytes is read.'
  tokens = [256, *_bytes(text)]
  assert len(tokens) == 28
  # Windows of 12: two whole ones, and one of which only the last four are scored.
  expected = (_expected([256], tokens[:12])[0]
              + _expected(tokens[11:12], tokens[12:24])[0]
              + _expected(tokens[15:24], tokens[24:])[0])
  short = _expected([256], [256, 97])[0]
  subject = VvlenLM(*small, BYTES, batch_size=2)
  found = _ask(subject, 'loglikelihood_rolling', [(text,), ('a',), (text,)])
  np.testing.assert_allclose(found, [expected, short, expected], atol=1e-4)
  # Without a BOS of its own, a text is scored after BOS alone; one of 28 in one window.
  longer = VvlenLM(*small, BYTES, begin=False, max_length=40)
  found = _ask(longer, 'loglikelihood_rolling', [(text,), ('',)])
  np.testing.assert_allclose(
      found, [_expected([256], tokens[1:], 40)[0], 0], atol=1e-4)


def test_answers_are_greedy_and_end_at_a_stop_string(small, caplog):
  subject = VvlenLM(*small, BYTES, batch_size=2, max_length=20)
  asked = []
  for prompt in ('ab', 'x', 'a prompt of many bytes'):
    kept = [256, *_bytes(prompt)][-(20 - 6):]
    asked.append((prompt, BYTES.decode(_greedy(kept, 6))))
  assert all(len(whole) == 6 for _, whole in asked)
  ask = lambda more: _ask(
      subject, 'generate_until', [(prompt, {'max_gen_toks': 6, **more(whole)})
                                  for prompt, whole in asked])
  whole = [x for _, x in asked]
  assert ask(lambda _: {}) == whole
  assert '1 of 3 inputs have more than 14 tokens and lose their' in caplog.text
  assert ask(lambda x: {'until': x[2:4]}) == [x[:x.index(x[2:4])] for x in whole]
  assert ask(lambda x: {'until': ['', x[4], x[2]]}) == [
      x[:min(x.index(x[4]), x.index(x[2]))] for x in whole]
  assert ask(lambda x: {'until': [x + 'q']}) == whole
  # Numbers of tokens by other names, and answers of several lengths in one call.
  found = _ask(subject, 'generate_until', [
      ('ab', {'max_new_tokens': 2}), ('x', {'max_tokens': 6, 'until': None}),
      ('ab', {'max_completion_tokens': 4, 'do_sample': False, 'temperature': 0.7}),
      ('x', {'max_gen_toks': 2, 'max_tokens': 5, 'temperature': 0.0, 'top_p': 0.9})])
  assert found == [whole[0][:2], whole[1], whole[0][:4], whole[1][:2]]


def test_answers_end_at_a_token_that_ends_a_text(small):
  whole = _greedy([256, *_bytes('ab')], 6)
  for ends in ((whole[2],), (263, whole[2])):
    subject = VvlenLM(*small, BYTES, ends=ends, max_length=20)
    [found] = _ask(subject, 'generate_until', [('ab', {'max_gen_toks': 6})])
    assert found == BYTES.decode(whole[:whole.index(whole[2])])
    assert subject.eot_token_id == ends[0] and subject.prefix_token_id == 256


def test_few_programs_are_compiled(small):
  subject = VvlenLM(*small, BYTES, batch_size=2, max_length=48)
  lm_eval_adapter._scores.clear_cache()
  generation._generate.clear_cache()
  texts = ['x' * n for n in range(1, 48)]
  _ask(subject, 'loglikelihood', [(text, 'y') for text in texts])
  _ask(subject, 'loglikelihood_rolling', [(text,) for text in texts])
  widths = {width_of(n, 48) for n in range(2, 49)}  # 2, 3, 4, 6, 8, 12, 16, 24, …
  assert lm_eval_adapter._scores._cache_size() == len(widths) == 10
  _ask(subject, 'loglikelihood', [(text * 3, 'yz') for text in texts])
  assert lm_eval_adapter._scores._cache_size() == 10
  for fields in ({'max_gen_toks': 2, 'until': ['q']}, {'max_tokens': 2}):
    _ask(subject, 'generate_until', [(text, fields) for text in texts[16:22]])
    assert generation._generate._cache_size() == 1  # 18 to 23 tokens, of at most 46


def test_what_is_computed_goes_to_the_cache_of_lm_eval_at_once(subject):
  class Hook:
    def add_partial(self, kind, arguments, answer):
      kept.append((kind, arguments, answer))

  kept = []
  before = subject.cache_hook
  subject.set_cache_hook(Hook())
  try:
    both = _ask(subject, 'loglikelihood', PAIRS[:2])
    rolling = _ask(subject, 'loglikelihood_rolling', [('abc',)])
    made = _ask(subject, 'generate_until', [('ab', {'max_gen_toks': 1})])
  finally:
    subject.set_cache_hook(before)
  assert sorted(kept, key=str) == sorted([
      *[('loglikelihood', x, y) for x, y in zip(PAIRS[:2], both, strict=True)],
      ('loglikelihood_rolling', ('abc',), rolling[0]),
      ('generate_until', ('ab', {'max_gen_toks': 1}), made[0])], key=str)


def test_weights_may_be_sharded(small, tmp_path):
  model = small[0].clone(vocab_size=264)
  save_checkpoint(tmp_path, *small)
  mesh = partition.make_mesh(data=2, fsdp=2, tensor=2)
  sharded = load_checkpoint(
      tmp_path, functools.partial(partition.shardings, mesh=mesh))[1]
  ask = [('loglikelihood', PAIRS), ('generate_until', [('ab', {'max_gen_toks': 4})])]
  alone = [_ask(VvlenLM(*small, BYTES, batch_size=4), *x) for x in ask]
  with jax.set_mesh(mesh):
    found = [_ask(VvlenLM(model, sharded, BYTES, batch_size=4), *x) for x in ask]
  np.testing.assert_allclose(found[0], alone[0], atol=1e-4)
  assert found[1] == alone[1]


@pytest.mark.parametrize('fields, says', [
    ({'do_sample': True}, "are greedy, but the task asks for samples: {'do_sample'"),
    ({'do_sample': True, 'temperature': 0.0}, 'asks for samples'),
    ({'temperature': 0.7}, 'asks for samples'),
    ({'num_beams': 4}, "the only fields are until, .*: {'num_beams': 4}"),
    ({'repetition_penalty': 1.2}, "the only fields are .*: {'repetition_penalty'"),
    ({'max_gen_toks': 0}, "at least one token: {'max_gen_toks': 0}"),
    ({}, r'256 tokens of an answer leave no room for a prompt in 12: choose another'),
])
def test_answers_that_are_not_greedy_or_too_long_are_refused(subject, fields, says):
  with pytest.raises(ValueError, match=says):
    _ask(subject, 'generate_until', [('ab', {'max_gen_toks': 2}), ('ab', fields)])


@pytest.mark.parametrize('fields, says', [
    ({'batch_size': 0}, 'batch_size must be positive: 0'),
    ({'max_length': -1}, 'max_length must be positive: -1'),
    ({'ends': (2, 264)}, r'ends must lie in 0..263: \[264\]'),
    ({'ends': (-1,)}, r'ends must lie in 0..263: \[-1\]'),
])
def test_numbers_that_cannot_be_are_refused(small, fields, says):
  with pytest.raises(ValueError, match=says):
    VvlenLM(*small, BYTES, **fields)


def test_other_errors_say_what_is_wrong(small, subject):
  with pytest.raises(ValueError, match='tokenizer has 257 tokens, the model 23: it b'):
    VvlenLM(llama(), {}, BYTES)
  with pytest.raises(ValueError, match=r"has 0 tokens, not 1 to 12: \('ab', ''\)"):
    _ask(subject, 'loglikelihood', [('ab', '')])
  with pytest.raises(ValueError, match='a continuation has 13 tokens, not 1 to 12: '):
    _ask(subject, 'loglikelihood', [('ab', 'c' * 13)])
  with pytest.raises(ValueError, match=r'no token is known that ends a text: VvlenLM'):
    _ask(VvlenLM(*small, BYTES._replace(begin=None)), 'loglikelihood', [('', 'a')])


def _task(kind, path, fields):
  """Returns a task of lm_eval whose questions are in a local file."""
  return {
      'task': f'small_{kind}', 'dataset_path': 'json', 'output_type': kind,
      'dataset_kwargs': {'data_files': {'test': str(path)},
                         'cache_dir': f'{pathlib.Path(path).parent}/cache'},
      'test_split': 'test', 'doc_to_text': '{{context}}', 'target_delimiter': '',
      **fields}


@pytest.mark.long
def test_lm_eval_scores_tasks_of_local_files(small, tmp_path, monkeypatch):
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  path = tmp_path / 'questions.jsonl'
  best_of = lambda text: _greedy([256, *_bytes(text)], 1)[0]
  letters = 'abcdefghijklmnopqrstuvwxyz'
  contexts = [x + y for x, y in zip(letters, letters[5:], strict=False)
              if ord(' ') < best_of(x + y) < ord('~')][:3]
  best = [best_of(x) for x in contexts]
  # The right choice is the most probable one, but of the last question.
  rows = [{'context': x, 'choices': [chr(y), chr(y + 1)], 'target': chr(y),
           'answer': int(x == contexts[2])}
          for x, y in zip(contexts, best, strict=True)]
  path.write_text(''.join(json.dumps(x) + '\n' for x in rows))
  choice = _task('multiple_choice', path, {
      'doc_to_choice': '{{choices}}', 'doc_to_target': '{{answer}}',
      'metric_list': [{'metric': 'acc'}]})
  answer = _task('generate_until', path, {
      'doc_to_target': '{{target}}', 'metric_list': [{'metric': 'exact_match'}],
      'generation_kwargs': {'max_gen_toks': 1, 'until': ['\n'], 'do_sample': False}})
  text = _task('loglikelihood_rolling', path, {
      'doc_to_text': '', 'doc_to_target': '{{context}}',
      'metric_list': [{'metric': 'byte_perplexity'}]})
  subject = VvlenLM(*small, BYTES, batch_size=3, about={'checkpoint_sha256': 'ab'})
  evaluate = functools.partial(
      lm_eval.simple_evaluate, subject, bootstrap_iters=0, random_seed=None,
      numpy_random_seed=None, torch_random_seed=None)
  found = evaluate(tasks=[choice, answer, text])
  assert found['results']['small_multiple_choice']['acc,none'] == pytest.approx(2 / 3)
  whole = sum(_expected([256], [256, *_bytes(x)])[0] for x in contexts)
  assert found['results']['small_loglikelihood_rolling'][
      'byte_perplexity,none'] == pytest.approx(np.exp(-whole / 6), rel=1e-4)
  assert found['results']['small_generate_until']['exact_match,none'] == 1
  assert found['config']['max_length'] == LENGTH and found['config']['begin'] is True
  assert found['config']['checkpoint_sha256'] == 'ab'
  with pytest.raises(ValueError, match='chat templates are not supported'):
    evaluate(tasks=[choice], apply_chat_template=True)


# Against lm_eval's own model of transformers, on a real checkpoint.


@pytest.fixture(scope='module')
def theirs():
  """Returns a function from settings to lm_eval's model of the checkpoint."""
  if not _SHARED:
    pytest.skip(NEEDS_REFERENCE)
  for module in ('torch', 'transformers', 'accelerate'):
    pytest.importorskip(module, reason=f'compares with {module}')
  from lm_eval.models.huggingface import HFLM
  return functools.partial(HFLM, str(FOLDER), device='cpu', dtype='float32')


@pytest.fixture(scope='module')
def ours():
  model, variables = load_checkpoint(FOLDER)
  tokenizer = tokenizer_of(FOLDER, model.vocab_size)
  return functools.partial(
      VvlenLM, model, variables, tokenizer, ends=ends_of(FOLDER))


STORY = (FOLDER / 'expected_greedy.txt').read_text() if _SHARED else ''


def test_real_log_likelihoods_are_those_of_lm_eval(theirs, ours):
  tokenizer = load_tokenizer(FOLDER)
  words = STORY.split(' ')
  pairs = [(' '.join(words[:n]), ' ' + ' '.join(words[n:n + 3]))
           for n in (1, 9, 40, 80)]
  pairs += [('', STORY[:50]), ('', 'Lily'), ('The cat said ', 'no'), ('A b', ' car!\n'),
            ('Zażółć', ' gęślą jaźń'), (STORY * 4, ' The end.'), ('A', STORY * 2)]
  assert len(tokenizer.encode(STORY * 4)) > 512
  expected = _ask(theirs(batch_size=3), 'loglikelihood', pairs)
  found = _ask(ours(batch_size=4), 'loglikelihood', pairs)
  np.testing.assert_allclose(
      [x for x, _ in found], [x for x, _ in expected], atol=1e-4, rtol=1e-6)
  assert [x for _, x in found] == [x for _, x in expected]
  assert {x for _, x in found} == {True, False}


@pytest.mark.parametrize('max_length', [None, 61])
def test_real_rolling_log_likelihoods_are_those_of_lm_eval(theirs, ours, max_length):
  texts = [(STORY * 4,), (STORY[:200],), ('Once',), (STORY[:400],)]
  expected = _ask(theirs(batch_size=2, max_length=max_length), 'loglikelihood_rolling',
                  texts)
  found = _ask(ours(max_length=max_length), 'loglikelihood_rolling', texts)
  np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize('fields', [
    {'until': ['.', ' She'], 'max_gen_toks': 40},
    {'until': 'never', 'max_gen_toks': 30, 'do_sample': False, 'temperature': 0.0},
], ids=str)
def test_real_answers_are_those_of_lm_eval(theirs, ours, fields):
  prompts = ['Once upon a time', 'The big dog ', 'Lily and Tom went', STORY * 4]
  ask = lambda subject: _ask(
      subject, 'generate_until', [(x, {**fields}) for x in prompts])
  found = ask(ours(batch_size=2))
  assert found == ask(theirs(batch_size=2))
  assert len(set(found)) == 4 and all(x.strip() for x in found)
