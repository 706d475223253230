"""A task of one's own: the example in docs/examples, and what is refused."""

import hashlib
import runpy
import shutil

import jax
import numpy as np
import pytest

from configs.retrieval import get_config
from configs.vanishing_variance import get_config as family_config
from experiments.harness import machine
from experiments.length_generalization import run, tasks
from experiments.length_generalization.check import check
from experiments.length_generalization.own_task import check_own_task
from experiments.mechanism.run import check_lengths
from experiments.vanishing_variance import family
from tests.conftest import ROOT
from vvlen.reporting import results

EXAMPLE = f'{ROOT}/docs/examples/second_largest.py'


def _config(name):
  config = get_config('smoke')
  config.task.name = name
  return config


def test_the_target_is_the_class_of_the_item_with_the_second_highest_priority():
  task = tasks.make_task(_config(f'{EXAMPLE}:make_task'))
  assert task.name == 'second_largest'
  batch = task.sample(jax.random.key(0), batch_size=64, min_length=2, max_length=9)
  lengths = set()
  for items, mask, target, index in zip(
      np.asarray(batch.items), np.asarray(batch.mask), batch.target,
      batch.target_index, strict=True,
  ):
    places = np.flatnonzero(mask)
    second = places[np.argsort(items[places, 0])[-2]]
    assert (index, target) == (second, items[second, 1:].argmax())
    lengths.add(len(places))
  assert lengths == set(range(2, 10))


@pytest.mark.slow
@pytest.mark.usefixtures('fast_compilation')
def test_it_is_trained_measured_and_reported_under_its_name(tmp_path, monkeypatch):
  # The tests have already chosen their devices.
  monkeypatch.setattr(machine, 'use_devices', lambda most: None)
  config = _config(f'{EXAMPLE}:make_task')
  config.model.width = config.train.batch_size = 8
  config.train.num_steps = config.train.steps_per_call = 2
  config.train.seeds_at_once = jax.device_count()
  config.arms = ('none', 'layer_norm')
  config.evaluate.lengths, config.evaluate.histogram_lengths = (16, 32), (16,)
  config.evaluate.fit_lengths = ()
  run.main(config, str(tmp_path))
  rows = results.read_rows(tmp_path / 'results.csv')
  assert {row.experiment for row in rows} == {'second_largest'}
  assert {(row.arm, row.seed, row.length) for row in rows if row.metric == 'accuracy'
          } >= {(arm, seed, length) for arm in config.arms for seed in (0, 1)
                for length in (16, 32)}
  assert list((tmp_path / 'tables').glob('*.md'))
  assert list((tmp_path / 'figures').glob('*.png'))


def test_a_task_that_was_changed_is_another_one(tmp_path):
  path = tmp_path / 'own.py'
  shutil.copy(EXAMPLE, path)
  config = tasks.identified(_config(f'{path}:make_task'))
  assert config.task.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
  check(config)
  assert tasks.make_task(config).name == 'second_largest'
  assert tasks.identified(config).to_dict() == config.to_dict()
  path.write_text(path.read_text() + '\n')
  with pytest.raises(ValueError, match=r'own.py:make_task is another file than'):
    tasks.make_task(config)
  built_in = get_config('smoke')
  assert tasks.identified(built_in) is built_in


def test_interventions_need_the_classes_of_items():
  config = _config(f'{EXAMPLE}:make_task')
  with pytest.raises(ValueError, match='task second_largest has no item_class'):
    check_lengths((16, 32), config, 'config.lengths')


@pytest.mark.parametrize('text, told', [
    (None, 'where the file exists'),
    ('make = 3', "has no function 'make'"),
    ('def make(task:\n  return', 'own.py cannot be run: SyntaxError: .*line 1'),
    ('raise SystemExit(3)', 'own.py cannot be run: SystemExit: 3, line 1'),
    ('x = 1\n\ndef make(): pass\ny = z', "NameError: name 'z' is not defined, line 4"),
    ('def make(task): return task', 'must take two arguments, the fields of task'),
    ('def make(task, model): return task', 'make must return a Task whose name'),
    ('from experiments.length_generalization.tasks import Task\n'
     'make = lambda *fields: Task("two words", *[None] * 6)', 'return a Task whose'),
], ids=['no_file', 'no_function', 'syntax', 'exit', 'no_name', 'arguments', 'no_task',
        'name'])
def test_what_is_no_task_is_refused(tmp_path, text, told):
  path = tmp_path / 'own.py'
  if text is not None:
    path.write_text(text)
  with pytest.raises(ValueError, match=told):
    tasks.make_task(_config(f'{path}:make'))


def _check_refused_with(path, change, told):
  """Asserts that a task is refused, and accepted without the change in its file."""
  config = _config(f'{path}:make')
  config.train.batch_size = 8
  with pytest.raises(ValueError, match=told):
    check_own_task(config)
  path.write_text(path.read_text().replace(change, ''))
  check_own_task(config)


@pytest.mark.parametrize('change, told', [
    ('target=batch.target + 1', r'target of a batch must be in 0\.\.9, .*: 1 to 10'),
    ('target=batch.target - 1', r'target of a batch must be in 0\.\.9, .*: -1 to 8'),
    ('target=batch.target[:, None]', r'target .* be \[8\], as .*: int32 \[8, 1\]'),
    ('target=batch.items[:, 0, :3]', r'target .* be \[8, 10\] .*: float32 \[8, 3\]'),
    ('target_index=batch.target_index * 1.0', r'target_index .* be int, \[8\]'),
    ('target_index=batch.target_index + 16', r'target_index .* be in 0\.\.15'),
    ('target_index=batch.mask.argmin(-1)', 'target_index .* be of items in the mask'),
    ('mask=batch.mask * 1', r'mask .* be bool, \[8, 16\]: int32 \[8, 16\]'),
    ('mask=batch.mask.T', r'mask .* be bool, \[8, 16\]: bool \[16, 8\]'),
])
def test_batches_that_cannot_be_trained_on_are_refused(tmp_path, change, told):
  path = tmp_path / 'own.py'
  path.write_text(
      'from vvlen.tasks import retrieval\n'
      'from experiments.length_generalization.tasks import Task, make_task\n'
      'import jax\n'
      'from configs.retrieval import get_config\n'
      'def make(task, model):\n'
      '  task = make_task(get_config("smoke"))\n'
      '  def sample(key, **sizes):\n'
      '    batch = task.sample(key, **sizes)\n'
      f'    return batch._replace({change})\n'
      '  return task._replace(sample=sample)\n')
  _check_refused_with(path, change, told)
  check_own_task(get_config('smoke'))


@pytest.mark.parametrize('change, told', [
    ('fixed_query=np.zeros(2)', r'fixed_query must be one query, \[1\]: \[2\]'),
    ('order=lambda batch, weights: batch.items',
     r'order\(batch, weights\) must be \[8, 16\]: \[8, 16, 11\]'),
    ('vocabulary=lambda: np.zeros((4, 3))',
     r'vocabulary\(\) must be of items, \[M, 11\]: \[4, 3\]'),
    ('sample=lambda *a, **k: (lambda b: b._replace(target=b.items[:, 0, 1:]))('
     'task.sample(*a, **k))', r'target of a batch must be int, one class, for temp'),
])
def test_what_would_fail_after_training_is_refused_before(tmp_path, change, told):
  path = tmp_path / 'own.py'
  path.write_text(
      'import numpy as np\n'
      'from experiments.length_generalization.tasks import make_task\n'
      'from configs.retrieval import get_config\n'
      'def make(task, model):\n'
      '  task = make_task(get_config("smoke"))\n'
      f'  return task._replace({change})\n')
  _check_refused_with(path, change, told)


def test_the_example_has_thirty_lines_or_so():
  assert callable(runpy.run_path(EXAMPLE)['make_task'])
  with open(EXAMPLE) as file:
    assert len(file.readlines()) < 40


def test_a_family_is_of_the_file_of_its_task():
  config = family_config('smoke')
  built_in = family.facts(config)
  assert 'sha256' not in str(built_in)
  config.base.task.name = f'{EXAMPLE}:make_task'
  with open(EXAMPLE, 'rb') as file:
    known = hashlib.file_digest(file, 'sha256').hexdigest()
  assert family.facts(config)['base']['task']['sha256'] == known
