"""Checks a league, and returns the fields that define its family.

The family, that is tasks, arms, seeds, tuning, endpoint and correction, is fixed before
the first result; which of its tasks and arms are run at once may be chosen later.
"""

import json
from typing import Any

import ml_collections

from experiments.harness import fields
from experiments.harness.fields import (
    group,
    Kind,
    one_of,
    real,
    several,
    text,
    whole,
)
from experiments.harness.parts import check_blocks, check_names, chosen, naming
from experiments.league import arms
from experiments.league.names import CONTROL, in_order
from experiments.league.tasks import FIELDS, make_task
from experiments.length_generalization import tasks
from experiments.length_generalization.check import check, table_of

# Fields that may differ between machines; they change results by rounding alone.
# steps_per_call is not among them: learning curves have a point a call, and the tuning
# reads their end.
MACHINE = ('save_every_seconds', 'seeds_at_once', 'group_size')

_FIELDS = {
    'seed': fields.seed(),
    'num_seeds': whole(least=2, most=10**6, why='to test a difference'),
    'tune.seed': fields.seed(),
    'tune.num_seeds': whole(least=1, most=10**6),
    'tune.rates': several(real(above=0), least=2, rising=True),
    'arms.*': text(f'{arms.BUILT_IN!r}, FILE.py:FUNCTION, or empty text'),
    'base': group(),
    'tasks.*': group(),
    # The words of tables and figures are of these.
    'claim.control': one_of((CONTROL,)),
    'claim.metric': one_of(('accuracy',)),
    'claim.level': Kind('0.05', '', lambda value: value == 0.05),
    'claim.correction': one_of(('holm',)),
    'run_tasks': several(text('name'), least=0),
    'run_arms': several(text('name'), least=0),
}
# Fields of length generalization that the league sets itself, or does not need.
_NOT_SET = ('seed', 'num_seeds', 'arms', 'optimizer.learning_rate',
            'optimizer.decay_steps', 'evaluate.fit_lengths', 'evaluate.fit_sequences',
            'evaluate.histogram_lengths', 'evaluate.histogram_sequences',
            'evaluate.weight_sequences')


def task_configs(config: Any) -> dict[str, ml_collections.ConfigDict]:
  """Returns the whole configuration of each task, after checking the league.

  Raises:
    ValueError: if a task cannot be run; the message names task and field.
  """
  fields.check(config, _FIELDS)
  for kind in ('tasks', 'arms'):
    check_names(kind, config[kind])
  if not config.tasks:
    raise ValueError('config.tasks is empty')
  if len(sources(config)) < 2 or config.claim.control not in sources(config):
    raise ValueError(f'config.arms must have {config.claim.control} and another: '
                     f'{", ".join(sources(config))}')
  if config.tune.seed == config.seed:
    raise ValueError('config.tune.seed must differ from config.seed, so that seeds are '
                     f'fresh: {config.seed}')
  chosen_tasks(config), chosen_arms(config)  # raise
  return {name: _task_config(config, name) for name in config.tasks}


def sources(config: Any) -> dict[str, str]:
  """Returns {arm: its source}, softmax first; empty sources are no arms."""
  return {arm: config.arms[arm] for arm in in_order(config.arms) if config.arms[arm]}


def chosen_arms(config: Any) -> tuple[str, ...]:
  """Returns the arms to run, in the user's order if there is one, else softmax first.

  Raises:
    ValueError: if `run_arms` has unknown ones.
  """
  return chosen('run_arms', config.run_arms, tuple(sources(config)))


def chosen_tasks(config: Any) -> tuple[str, ...]:
  """Returns the tasks to run; raises ValueError on unknown ones."""
  return chosen('run_tasks', config.run_tasks, tuple(in_order(config.tasks)))


def facts(config: Any) -> dict[str, Any]:
  """Returns the fields that define the family: all but `run_…` and `MACHINE`."""
  plain = json.loads(json.dumps(config.to_dict()))
  del plain['run_tasks'], plain['run_arms']
  plain['arms'] = {arm: {'source': source, **tasks.identity(source)}
                   for arm, source in sources(config).items()}
  for part in (plain['base'], *plain['tasks'].values()):
    tasks.make_identifying(part, MACHINE)
  return plain


def _task_config(config: Any, name: str) -> ml_collections.ConfigDict:
  """Returns the configuration of a task as length generalization has it."""
  own = fields.changed(config.base, config.tasks[name], f'task {name}')
  table = table_of(own)
  if more := FIELDS.get(str(fields.at(own, 'task.name'))):
    table = {field: kind for field, kind in table.items() if field != 'task.*'} | more
  kinds = {field: kind for field, kind in table.items() if field not in _NOT_SET}
  with naming(f'task {name}'):
    fields.check(own, kinds)
    with own.unlocked():
      own.update(seed=config.seed, num_seeds=config.num_seeds, arms=('none',))
      own.optimizer.update(
          learning_rate=float(config.tune.rates[0]), decay_steps=own.train.num_steps)
      own.evaluate.update(
          fit_lengths=(), fit_sequences=1, weight_sequences=1, histogram_sequences=1,
          histogram_lengths=own.evaluate.lengths)
    # Fewer seeds than are trained at once are one block.
    own.train.seeds_at_once = min(own.train.seeds_at_once, own.num_seeds)
    check(own, make_task)
    _check_for_arms(own)
    check_blocks(own, 'config.num_seeds')
  return own


def _check_for_arms(own: Any) -> None:
  """Raises ValueError if a task cannot have all arms of a league."""
  train = own.train
  if train.max_length < 2:
    raise ValueError('config.train.max_length must be at least 2, since arms divide by '
                     f'its logarithm: {train.max_length}')
  shortest = min(train.min_length, *own.evaluate.lengths)
  if own.task.get('num_queries', 1) > shortest:
    raise ValueError('task.num_queries must not exceed train.min_length and the '
                     f'shortest test length, {shortest}: {own.task.num_queries}')
  if train.get('averaged_at'):
    raise ValueError('train.averaged_at is not supported in a league')
