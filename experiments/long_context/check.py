"""Checks configurations of `experiments.long_context`."""

from typing import Any

from experiments.harness import fields, positions
from experiments.harness.fields import flag, one_of, real, several, text, whole
from experiments.long_context.ruler_suites import NEEDLE_VALUES
from experiments.long_context.scores import RULER, SUITES
from vvlen.evaluation.longbench import DIALECTS, METRICS
from vvlen.tasks.babi_stories import TASKS
from vvlen.tasks.babilong_prompts import PARTS

_SHARE = real(least=0, most=1)
_ALL = {
    'suite': one_of(SUITES),
    'seed': fields.seed(),
    'checkpoint': text(),
    'window': whole(least=0),
    'begin': flag(),
    'batch_size': whole(least=1),
    'dtype': one_of(('', *fields.DTYPES)),
    'dialect': one_of(DIALECTS),
    'num_resamples': whole(least=1),
    **fields.MESH,
    **positions.FIELDS,
}
_DRAWN = {
    'lengths': several(whole(least=1), least=0, once=True),
    'multiples': several(real(above=0, most=fields.INT32), least=0, once=True),
    'beyond_window': flag(),
    'num_samples': whole(least=1),
    'text': text(),
    'num_characters': whole(least=1, most=fields.INT64),
    'answer_tokens': whole(least=1),
}
_WORDING = one_of(('short', 'published'))
_FIELDS = {
    'passkey': {
        **_DRAWN, 'depths': several(_SHARE, once=True),
        'digits': whole(least=1, most=18), 'wording': _WORDING},
    'babilong': {
        **_DRAWN, 'tasks': several(one_of(TASKS), once=True), 'babi': text(),
        'predictions': text(),
        'most_facts': whole(least=0),
        'depths': several(several(_SHARE, 2, 2, rising=True), least=0, once=True),
        'length_of': one_of(('prompt', 'context')),
        'parts': several(one_of(PARTS), least=0, once=True)},
    'ruler': {
        **_DRAWN, 'tasks': several(one_of(RULER), once=True), 'wording': _WORDING,
        'predictions': text(),
        'needle_values': one_of((*NEEDLE_VALUES,)),
        'digits': whole(least=1, most=18), 'num_keys': whole(least=1),
        'num_values': whole(least=1), 'num_queries': whole(least=1),
        'num_hops': whole(least=1), 'num_chains': whole(least=1),
        'num_common': whole(least=1), 'common_repeats': whole(least=2),
        'uncommon_repeats': whole(least=1)},
    'longbench': {
        'data': text(), 'predictions': text(),
        'tasks': several(one_of(tuple(METRICS)), least=0, once=True),
        'num_samples': whole(least=0), 'reserve': whole(least=1)},
}


def check(config: Any) -> None:
  """Raises ValueError if a configuration cannot be run with any checkpoint."""
  fields.check({'suite': config.suite}, {'suite': _ALL['suite']})
  fields.check(config, {**_ALL, **_FIELDS[config.suite]})
  if config.suite == 'longbench':
    if not config.data and not config.predictions:
      raise ValueError('--data, the folder of files TASK_e.jsonl, is missing')
    if config.data and config.predictions:
      raise ValueError('either --data or --predictions, not both: '
                       f'{config.data}, {config.predictions}')
  elif not config.lengths and not config.multiples:
    raise ValueError('config.lengths and config.multiples are both (): name lengths')
  scored = config.get('predictions')
  if scored and config.checkpoint:
    raise ValueError('--predictions are scored without a --checkpoint: '
                     f'{config.checkpoint}')
  if not config.checkpoint and not scored:
    raise ValueError('--checkpoint is missing')
