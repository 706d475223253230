"""Tables that say what the fields of a configuration must be."""

import importlib
import math
import re

import jax
import ml_collections
from ml_collections import config_dict
import numpy as np
import pytest

from experiments.correlation import check as correlation
from experiments.counting import run as counting
from experiments.harness import fields, parts
from experiments.harness.fields import (
    flag,
    group,
    one_of,
    optional,
    or_none,
    real,
    several,
    text,
    whole,
    zero_or,
)
from experiments.language_model import check as language_model
from experiments.league import family as league
from experiments.length_generalization import check as length_generalization
from experiments.linear_attention import run as linear_attention
from experiments.measure import check as measure
from experiments.recency_bias import run as recency_bias
from experiments.sensitivity import check as sensitivity
from experiments.vanishing_variance import family
from tests.conftest import ROOT

_TABLE = {
    'seed': fields.seed(),
    'name': text(),
    'norm': one_of(('', 'layer_norm')),
    'train.steps': whole(least=1, why='or nothing is learned'),
    'train.rate': real(above=0),
    'train.remat': flag(),
    'train.clip': optional(or_none(real(above=0))),
    'train.stretch': optional(zero_or(real(least=1))),
    'lengths': several(whole(least=1)),
    'arms.*.weight': real(least=0, most=1),
    'arms.*.offsets': several(real(least=0, below=1), 2, 2, rising=True),
    'base': group(),
}


def _config(**changes):
  """Returns fields that the table allows, but for changes of 'group__name'."""
  config = dict(
      seed=0, name='', norm='', train=dict(steps=1, rate=1e-3, remat=False),
      lengths=(1, 1), base=dict(anything=object()),
      arms=dict(plain=dict(weight=0, offsets=[0.0, 0.5])),
  )
  for name, value in changes.items():
    *groups, last = name.split('__')
    inside = config
    for each in groups:
      inside = inside[each]
    inside[last] = value
  return config


@pytest.mark.parametrize('changes', [
    {}, {'seed': 2**32 - 1}, {'norm': 'layer_norm'}, {'lengths': [2**31 - 1]},
    {'train__clip': None}, {'train__clip': 3}, {'train__stretch': 0},
    {'train__stretch': 0.0}, {'train__stretch': 1.5}, {'train__rate': 5e-324},
    {'train__rate': 1.7e308}, {'train__rate': np.float64(0.5)}, {'arms': {}},
    {'arms__plain__weight': 1.0}, {'arms__plain__offsets': (0, 0.999)},
])
def test_what_a_table_says_is_accepted(changes):
  fields.check(_config(**changes), _TABLE)
  fields.check(ml_collections.ConfigDict(_config(**changes)), _TABLE)


@pytest.mark.parametrize('changes, words', [
    # Whole numbers.
    ({'seed': -1}, 'config.seed must be a whole number from 0 to 2**32-1: -1'),
    ({'seed': 2**32}, 'config.seed must be a whole number from 0 to 2**32-1: 42949'),
    ({'seed': True}, 'config.seed must be a whole number from 0 to 2**32-1: True'),
    ({'seed': None}, 'config.seed must be a whole number from 0 to 2**32-1: None'),
    ({'seed': '0'}, "config.seed must be a whole number from 0 to 2**32-1: '0'"),
    ({'train__steps': 1.0}, 'config.train.steps must be a whole number from 1 to '
     '2**31-1, or nothing is learned: 1.0'),
    ({'train__steps': 2**31}, 'config.train.steps must be a whole number from 1 to'),
    ({'train__steps': np.int64(5)}, 'config.train.steps must be a whole number'),
    ({'seed': {'first': 0}}, "must be a whole number from 0 to 2**32-1: {'first': 0}"),
    # Real ones.
    ({'train__stretch': 0.5}, 'config.train.stretch must be a finite number of at '
     'least 1, or 0: 0.5'),
    ({'train__stretch': False}, 'a finite number of at least 1, or 0: False'),
    ({'train__rate': 0}, 'config.train.rate must be a finite number above 0: 0'),
    ({'train__rate': math.nan}, 'train.rate must be a finite number above 0: nan'),
    ({'train__rate': math.inf}, 'train.rate must be a finite number above 0: inf'),
    ({'train__rate': 10**400}, 'train.rate must be a finite number above 0: 1000'),
    ({'train__rate': True}, 'config.train.rate must be a finite number above 0: True'),
    ({'train__clip': -1}, 'train.clip must be a finite number above 0, or None: -1'),
    ({'arms__plain__weight': 1.5}, 'arms.plain.weight must be a number in [0, 1]: 1.5'),
    ({'arms__plain__weight': -0.1}, 'plain.weight must be a number in [0, 1]: -0.1'),
    # Names and flags.
    ({'norm': 'x'}, "config.norm must be one of '', layer_norm: 'x'"),
    ({'norm': ['']}, "config.norm must be one of '', layer_norm: ['']"),
    ({'name': 3}, 'config.name must be a text: 3'),
    ({'train__remat': 1}, 'config.train.remat must be True or False: 1'),
    # Several.
    ({'lengths': ()}, 'config.lengths must be one or more whole numbers from 1 to'),
    ({'lengths': 5},
     'config.lengths must be one or more whole numbers from 1 to 2**31-1: 5'),
    ({'lengths': (5, True)}, 'config.lengths must be one or more whole numbers from 1'),
    ({'arms__plain__offsets': (0.5, 0.5)},
     'config.arms.plain.offsets must be 2 rising numbers in [0, 1): (0.5, 0.5)'),
    ({'arms__plain__offsets': (0.5,)}, 'must be 2 rising numbers in [0, 1): (0.5,)'),
    ({'arms__plain__offsets': (0.5, 1)}, 'be 2 rising numbers in [0, 1): (0.5, 1)'),
    # Missing fields, and fields that should not exist.
    ({'train__step': 5}, 'config has no field train.step: is it train.steps?'),
    ({'colour': 5}, 'config has no field colour: remove it'),
    ({'train': None}, 'config.train must have fields, such as train.steps: None'),
    ({'train': {}}, 'config lacks a field: train.steps, which must be a whole number'),
    ({'arms': 3}, 'config.arms must have fields, such as arms.*.weight: 3'),
    ({'arms__plain': 3}, 'config.arms.plain must have fields, such as arms.pl'),
    ({'arms__other': {'weight': 0}}, 'config lacks a field: arms.other.offsets, which'),
    ({'base': 3}, 'config.base must be fields of its own: 3'),
])
def test_what_it_does_not_say_is_refused_by_name(changes, words):
  config = _config(**changes)
  with pytest.raises(ValueError, match='^' + '.*'.join(
      map(re.escape, ('', words)))) as refused:
    fields.check(config, _TABLE)
  assert '\n' not in str(refused.value)


@pytest.mark.parametrize('name', ['seed', 'train.steps', 'train', 'lengths', 'base'])
def test_a_field_that_is_missing_is_named(name):
  config = _config()
  *groups, last = name.split('.')
  del (config[groups[0]] if groups else config)[last]
  with pytest.raises(ValueError, match=f'^config lacks a field: {name}.*must be '):
    fields.check(config, _TABLE)


def test_each_once():
  table = {'arms': several(one_of(('none', 'layer_norm')), once=True)}
  fields.check({'arms': ('layer_norm', 'none')}, table)
  words = r"arms must be one or more of none, layer_norm, each once: \('none', 'none'\)"
  with pytest.raises(ValueError, match=words):
    fields.check({'arms': ('none', 'none')}, table)
  fields.check({'arms': ()}, {'arms': several(text('name'), least=0)})
  with pytest.raises(ValueError, match=r'arms must be names: \(1,\)'):
    fields.check({'arms': (1,)}, {'arms': several(text('name'), least=0)})


def test_where_a_configuration_is_is_told():
  with pytest.raises(ValueError, match=r'^config\.base\.seed must be a whole number'):
    fields.check({'seed': -1}, {'seed': fields.seed()}, 'config.base')
  with pytest.raises(ValueError, match=r'^config\.base lacks a field: seed'):
    fields.check(ml_collections.ConfigDict(), {'seed': fields.seed()}, 'config.base')


def test_multiples_are_named():
  config = {'train': {'num_steps': 20, 'steps_per_call': 5}, 'width': 7}
  fields.check_multiples(config, ('train.num_steps', 'train.steps_per_call'))
  words = r'^config\.train\.num_steps 20 must be a multiple of config\.width 7$'
  with pytest.raises(ValueError, match=words):
    fields.check_multiples(config, ('train.num_steps', 'width'))


def test_no_field_has_the_name_of_a_method():
  """Such a field, `values` for example, would be written and never read."""
  files = [path.stem for path in (ROOT / 'configs').glob('[a-z]*.py')]
  suites = [('long_context', suite) for suite in ('babilong', 'longbench', 'ruler')]
  assert len(files) > 10
  for file, *variant in [*((file,) for file in files), *suites]:
    config = importlib.import_module(f'configs.{file}').get_config(*variant)
    names = {key.key for path, _ in jax.tree_util.tree_leaves_with_path(
        config.to_dict()) for key in path if isinstance(key, jax.tree_util.DictKey)}
    assert len(names) > 3, file
    assert not names & {*dir(ml_collections.ConfigDict)}, (file, variant)


def test_chosen_parts_are_in_the_order_of_the_user():
  assert parts.chosen('run', ('c', 'a', 'c'), ['a', 'b', 'c']) == ('c', 'a')
  assert parts.chosen('run', (), ['b', 'a']) == ('b', 'a')
  with pytest.raises(ValueError, match=r'^config\.run must be one or .* a, b: c, d$'):
    parts.chosen('run', ('a', 'c', 'd'), ['a', 'b'])


@pytest.mark.parametrize('file, check, prefix', [
    ('correlation', correlation.check, ''),
    ('counting', counting.check, ''),
    ('language_model', language_model.check, ''),
    ('league', league.task_configs, ''),
    ('linear_attention', linear_attention.check, ''),
    ('lookup', length_generalization.check, ''),
    ('measure', measure.check, ''),
    ('recency_bias', recency_bias._cells, ''),
    ('retrieval', length_generalization.check, ''),
    ('sensitivity', sensitivity.check, 'base.'),
    ('vanishing_variance', family.cell_configs, 'base.'),
])
@pytest.mark.parametrize('seed', [-1, 2**32, 2**33, 0.0])
def test_no_study_takes_a_seed_that_jax_would_wrap(file, check, prefix, seed):
  config = importlib.import_module(f'configs.{file}').get_config('smoke')
  with config.ignore_type():
    config.update_from_flattened_dict({f'{prefix}seed': seed})
  with pytest.raises(ValueError, match=(
      rf'config\.{prefix}seed must be a whole number from 0 to 2\*\*32-1: {seed}$')):
    check(config)


@pytest.mark.parametrize('file, check, field', [
    ('correlation', correlation.check, 'model.width'),
    ('counting', counting.check, 'model.width'),
    ('counting', counting.check, 'model.mlp_factor'),
    ('counting', counting.check, 'evaluate.max_length'),
    ('language_model', language_model.check, 'model.width'),
    ('language_model', language_model.check, 'model.mlp_width'),
    ('linear_attention', linear_attention.check, 'model.width'),
    ('retrieval', length_generalization.check, 'model.width'),
])
def test_no_study_takes_a_size_at_which_the_compiler_overflows(file, check, field):
  config = importlib.import_module(f'configs.{file}').get_config('smoke')
  config.update_from_flattened_dict({field: 2**24 + 1})
  with pytest.raises(ValueError, match=(
      rf'config\.{field} must be a whole number from [12] to 2\*\*24: 16777217$')):
    check(config)


@pytest.mark.parametrize('file, check, changes, words', [
    ('counting', counting.check, {'model.width': 2**24, 'model.mlp_factor': 2},
     r'width times config\.model\.mlp_factor must be at most 2\*\*24: 16777216 x 2$'),
    ('retrieval', length_generalization.check, {'num_seeds': 2**31 - 2},
     'config.num_seeds must be a whole number from 2 to 1000000, to test'),
    ('retrieval', length_generalization.check, {'evaluate.lengths': (16, 2**31 - 1)},
     r'config.evaluate.lengths must be one or more whole numbers from 1 to 2\*\*24'),
    ('linear_attention', linear_attention.check, {'evaluate.max_length': 2**31 - 1},
     'config.evaluate.max_length must be a whole number from 2 to 65536: 2147483647'),
])
def test_sizes_that_no_run_ends_at_are_refused(file, check, changes, words):
  config = importlib.import_module(f'configs.{file}').get_config('smoke')
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=words):
    check(config)


@pytest.mark.parametrize('changes', [{'train': 5}, {'seed': {'train': 5}}])
def test_a_group_is_not_changed_into_a_value_nor_a_value_into_a_group(changes):
  base = config_dict.create(seed=1, train=dict(steps=2))
  with pytest.raises(ValueError, match=r'^cell a: .+'):
    fields.changed(base, config_dict.ConfigDict(changes), 'cell a')
  found = fields.changed(
      base, config_dict.create(train=dict(size=3)), 'cell a').to_dict()
  assert found == {'seed': 1, 'train': {'steps': 2, 'size': 3}}
  assert base.to_dict() == {'seed': 1, 'train': {'steps': 2}}
