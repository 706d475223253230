"""Training seeds together, resuming, or spreading them over devices changes no seed."""

import functools

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
import numpy as np
import optax
import pytest

from vvlen import sharding
from vvlen.models.retriever import Retriever
from vvlen.tasks import retrieval
from vvlen.training import checkpoint, ensemble
from vvlen.training.step import init_state, Problem, train_steps

# Orbax leaves coroutines behind when a checkpoint is damaged.
pytestmark = pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnraisableExceptionWarning'
)

STEPS, PER_CALL = 50, 10


def _regression(features=3, dtype=jnp.float32, optimizer=None):
  """Fits x·w + b to 1."""

  def init(key):
    w = jax.random.normal(key, (features,), dtype)
    return {'w': w, 'b': jnp.zeros((), dtype)}

  def loss(params, x):
    residual = x @ params['w'] + params['b'] - 1
    return jnp.mean(residual**2), {'first': x[0, 0]}

  sample = lambda key, step: jax.random.normal(key, (7, features), dtype)
  return Problem(init, sample, loss, optimizer or optax.adam(0.1))


def _retriever():
  model = Retriever(num_classes=3, width=7, norm='layer_norm', item_encoder='linear')
  sample = lambda key, step: retrieval.sample(
      key, batch_size=5, min_length=2, max_length=5, num_classes=3
  )

  def init(key):
    batch = sample(key, 0)
    # One draw for all kernels compiles in a third of the time.
    shapes = jax.eval_shape(model.init, key, batch.query, batch.items)['params']
    leaves, structure = jax.tree.flatten(shapes)
    ends = np.cumsum([x.size for x in leaves])
    parts = jnp.split(0.5 * jax.random.normal(key, (ends[-1],)), ends[:-1])
    return jax.tree.unflatten(
        structure, [p.reshape(x.shape) for p, x in zip(parts, leaves, strict=True)]
    )

  def loss(params, batch):
    logits = model.apply({'params': params}, batch.query, batch.items, batch.mask)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.target)
    return losses.mean(), {'first': batch.items[0, 0, 0]}

  return Problem(init, sample, loss, optax.adam(3e-3))


PROBLEMS = {
    'regression': _regression(),
    'retriever': _retriever(),
    'frozen': _regression(optimizer=optax.sgd(0.0))._replace(
        init=lambda key: {'w': jnp.ones(3), 'b': jnp.zeros(())}
    ),
}
both = pytest.mark.parametrize('name', ['regression', 'retriever'])


def _keys(first=0, count=8):
  return ensemble.seed_keys(11, first, count)


@functools.cache
def _trainer(name, num_devices=8, group_size=1, steps_per_call=PER_CALL):
  mesh = jax.make_mesh(
      (num_devices,), ('seed',), axis_types=(AxisType.Auto,),
      devices=jax.devices()[:num_devices],
  )
  return ensemble.make_trainer(
      PROBLEMS[name], steps_per_call=steps_per_call, group_size=group_size, mesh=mesh
  )


@functools.cache
def _trained(name, num_devices=8, group_size=1, first=0, count=8):
  """Returns the state after all steps, as numpy."""
  trainer = _trainer(name, num_devices, group_size)
  return jax.device_get(ensemble.train(trainer, _keys(first, count), STEPS))


def _started(name, *layout):
  """Returns the state before the first step, as numpy."""
  trainer = _trainer(name, *layout)
  return jax.device_get(trainer.start(sharding.put(_keys(), trainer.mesh)))


def _seeds(tree, *index):
  return jax.tree.map(lambda x: np.asarray(x)[slice(*index)], tree)


def _assert_close(actual, expected):
  """Asserts that parameters agree to 1e-5 of the largest of each array."""
  assert (actual.step == STEPS).all() and (expected.step == STEPS).all()
  for x, y in zip(
      jax.tree.leaves(actual.params), jax.tree.leaves(expected.params), strict=True
  ):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


def test_a_step_is_a_step_of_gradient_descent(key):
  problem = _regression(optimizer=optax.sgd(0.1))
  state = init_state(problem, key)
  w, b = np.asarray(state.params['w'], np.float64), 0.0
  losses = []
  for step in range(3):
    x = np.asarray(problem.sample(jax.random.fold_in(key, step), step), np.float64)
    residual = x @ w + b - 1
    losses.append(np.mean(residual**2))
    w, b = w - 0.2 * residual @ x / len(x), b - 0.2 * residual.mean()
  state, metrics = jax.jit(functools.partial(train_steps, problem, num_steps=3))(
      state, key
  )
  assert state.step == 3
  np.testing.assert_allclose(state.params['w'], w, rtol=1e-5)
  np.testing.assert_allclose(state.params['b'], b, rtol=1e-5)
  # The loss is that of the parameters before each update.
  np.testing.assert_allclose(metrics['loss'], np.mean(losses), rtol=1e-5)


@pytest.mark.slow  # of programs as users compile them
@both
def test_each_seed_is_bit_for_bit_its_own_run(name):
  problem = PROBLEMS[name]
  start = jax.jit(functools.partial(init_state, problem))
  advance = jax.jit(functools.partial(train_steps, problem, num_steps=PER_CALL))

  def alone(key):
    state = start(ensemble.purpose_key(key, ensemble.INIT))
    for _ in range(STEPS // PER_CALL):
      state, _ = advance(state, ensemble.purpose_key(key, ensemble.TRAIN))
    return state

  root = jax.random.key(11)
  together = _trained(name, num_devices=1)
  for seed in (0, 3, 7):
    own = alone(jax.random.fold_in(root, seed))
    chex.assert_trees_all_equal(
        jax.device_get(own), jax.tree.map(lambda x, s=seed: x[s], together)
    )


def test_a_seed_needs_no_company():
  together = _trained('regression', num_devices=1)
  chex.assert_trees_all_equal(
      _trained('regression', num_devices=1, first=3, count=1), _seeds(together, 3, 4)
  )


@pytest.mark.slow
def test_training_moves_every_parameter():
  start, end = _started('retriever', 1), _trained('retriever', 1)
  for before, after in zip(
      jax.tree.leaves(start.params), jax.tree.leaves(end.params), strict=True
  ):
    assert (before != after).all(axis=tuple(range(1, before.ndim))).all()


@pytest.mark.slow  # of programs as users compile them
@pytest.mark.parametrize('name, num_devices, group_size', [
    ('retriever', 8, 1), ('regression', 2, 4),
])
def test_adding_seeds_changes_none_of_them(name, num_devices, group_size):
  few = _trained(name, num_devices, group_size)
  many = _trained(name, num_devices, group_size, count=16)
  chex.assert_trees_all_equal(_seeds(many, 8), few)
  # It does not matter either which other seeds are trained with a seed.
  others = _trained(name, num_devices, group_size, first=8)
  chex.assert_trees_all_equal(_seeds(many, 8, 16), others)


@pytest.mark.slow
@both
def test_groups_change_nothing_but_rounding(name):
  _assert_close(_trained(name, num_devices=1, group_size=4), _trained(name, 1))


@both
def test_one_and_eight_devices_agree_to_rounding(name):
  _assert_close(_trained(name, num_devices=1), _trained(name, num_devices=8))


@pytest.mark.slow
def test_the_state_lies_on_all_eight_devices():
  keys = _keys(count=16)
  state = ensemble.train(_trainer('regression'), keys, PER_CALL)
  for leaf in jax.tree.leaves(state):
    assert len(leaf.sharding.device_set) == 8
    shards = [shard.data.shape for shard in leaf.addressable_shards]
    assert shards == [(2, *leaf.shape[1:])] * 8


@both
def test_initial_weights_are_the_same_bits_in_any_grouping(name):
  expected = _started(name, 1, 1)
  rows = jax.tree.leaves(expected.params)[-1].reshape(8, -1)
  assert len(np.unique(rows, axis=0)) == 8
  for layout in ((8, 1), (1, 4)):
    chex.assert_trees_all_equal(_started(name, *layout), expected)


@functools.cache
def _frozen(num_devices, group_size):
  """Returns the metrics of ten steps that change no parameter, {name: [10, 8]}."""
  rows = []
  ensemble.train(
      _trainer('frozen', num_devices, group_size, steps_per_call=1), _keys(), 10,
      on_progress=lambda step, metrics: rows.append(metrics),
  )
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_all_seeds_and_steps_draw_different_data():
  assert np.unique(_frozen(8, 1)['loss']).size == 8 * 10


@pytest.mark.slow  # of programs as users compile them
def test_data_are_the_same_bits_in_any_grouping():
  first = lambda key, step: PROBLEMS['frozen'].sample(jax.random.fold_in(
      ensemble.purpose_key(key, ensemble.TRAIN), step
  ), step)[0, 0]
  first = jax.jit(jax.vmap(jax.vmap(first, (0, None)), (None, 0)))
  expected = first(_keys(), jnp.arange(10))
  for layout in ((8, 1), (2, 4)):
    np.testing.assert_array_equal(_frozen(*layout)['first'], expected)


def test_purposes_and_seeds_have_keys_of_their_own():
  keys = [
      ensemble.purpose_key(key, purpose) for key in _keys() for purpose in (
          ensemble.INIT, ensemble.TRAIN, ensemble.TEST, ensemble.VALIDATION
      )
  ]
  data = np.stack([jax.random.key_data(key) for key in keys])
  assert len(np.unique(data, axis=0)) == 8 * 4


def _interrupted(name, folder, last, num_devices=8):
  """Trains until it is stopped at a step, before that step is saved."""

  def stop(step, metrics):
    if step == last:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    ensemble.train(
        _trainer(name, num_devices), _keys(), STEPS, folder=folder,
        save_every_seconds=0, on_progress=stop,
    )


@pytest.mark.slow
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tmp_path):
  folder, steps = tmp_path / 'run', []
  _interrupted('regression', folder, last=30)
  assert sorted(path.name for path in folder.iterdir()) == ['10', '20']
  run = functools.partial(
      ensemble.train, _trainer('regression'), _keys(), STEPS, folder=folder,
      on_progress=lambda step, metrics: steps.append(step),
  )
  chex.assert_trees_all_equal(jax.device_get(run()), _trained('regression'))
  assert steps == [30, 40, 50]
  # The end is saved whenever the last save was; the checkpoint before it is kept.
  assert sorted(path.name for path in folder.iterdir()) == ['20', '50']
  chex.assert_trees_all_equal(jax.device_get(run()), _trained('regression'))
  assert steps == [30, 40, 50]


@pytest.mark.parametrize('before, after', [(8, 1), (1, 8)])
def test_a_checkpoint_restores_on_another_number_of_devices(before, after, tmp_path):
  trainer = _trainer('regression', after)
  like = jax.eval_shape(trainer.start, _keys())
  assert checkpoint.restore(tmp_path / 'run', like, trainer.mesh) == (0, None)
  saved = sharding.put(_trained('regression'), _trainer('regression', before).mesh)
  checkpoint.save(tmp_path / 'run', STEPS, saved)
  step, state = checkpoint.restore(tmp_path / 'run', like, trainer.mesh)
  assert step == STEPS
  chex.assert_trees_all_equal(jax.device_get(state), _trained('regression'))
  for leaf in jax.tree.leaves(state):
    assert len(leaf.sharding.device_set) == after
    assert leaf.addressable_shards[0].data.shape[0] == 8 // after


@pytest.mark.slow
def test_a_run_goes_on_with_fewer_devices(tmp_path):
  _interrupted('regression', tmp_path, last=30, num_devices=8)
  state = ensemble.train(_trainer('regression', 1), _keys(), STEPS, folder=tmp_path)
  _assert_close(jax.device_get(state), _trained('regression'))


@functools.cache
def _rated(rate, scale=1.0, group_size=1):
  """Returns a trainer of the regression with its rate in its state."""
  problem = _regression(optimizer=optax.inject_hyperparams(optax.adam)(rate))
  init = lambda key: jax.tree.map(lambda x: scale * x, problem.init(key))
  return ensemble.make_trainer(
      problem._replace(init=init), steps_per_call=PER_CALL, group_size=group_size,
      mesh=_trainer('regression', 2).mesh,
  )


@pytest.mark.slow
@pytest.mark.parametrize('group_size', [1, 4])
def test_runs_of_one_function_train_together_bit_for_bit_as_alone(group_size):
  trainers = [_rated(rate, scale, group_size)
              for rate, scale in ((0.1, 1.0), (0.3, 1.0), (0.3, 2.0))]
  alone = [ensemble.train(trainer, _keys(), STEPS) for trainer in trainers]
  compiled = trainers[0].advance._cache_size()
  told = []
  together = ensemble.train_together(
      trainers, _keys(), STEPS, on_progress=lambda step, metrics: told.append(metrics)
  )
  assert trainers[0].advance._cache_size() == compiled + 1
  chex.assert_trees_all_equal(*map(jax.device_get, (together, alone)))
  single = []
  ensemble.train(
      trainers[2], _keys(), STEPS, on_progress=lambda _, metrics: single.append(metrics)
  )
  chex.assert_trees_all_equal([parts[2] for parts in told], single)
  assert not np.allclose(alone[0].params['w'], alone[1].params['w'])
  for x, y in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
    assert x.sharding == y.sharding


def test_trainers_that_cannot_go_together_are_refused():
  layouts = _rated(0.1, group_size=4), _trainer('regression', 2), _trainer('frozen', 2)
  for other in layouts:
    with pytest.raises(ValueError, match='trainers must agree in mesh, groups, steps'):
      ensemble.train_together([_rated(0.1), other], _keys(), STEPS)


@pytest.mark.slow
def test_runs_trained_together_are_resumed_alone_and_the_reverse(tmp_path):
  trainers, folders = [_rated(0.1), _rated(0.3)], [tmp_path / 'a', tmp_path / 'b']
  ensemble.train_together(trainers, _keys(), 20, folders=folders)
  for trainer, folder in zip(trainers, folders, strict=True):
    ensemble.train(trainer, _keys(), 30, folder=folder)
  together = ensemble.train_together(trainers, _keys(), STEPS, folders=folders)
  alone = [ensemble.train(trainer, _keys(), STEPS) for trainer in trainers]
  chex.assert_trees_all_equal(*map(jax.device_get, (together, alone)))
  ensemble.train(trainers[0], _keys(), 2 * STEPS, folder=folders[0])
  with pytest.raises(ValueError, match=r'a, .*b are of different steps: \[50, 100\]'):
    ensemble.train_together(trainers, _keys(), 2 * STEPS, folders=folders)


def _saved(tmp_path):
  folder = tmp_path / 'run'
  _train_there(folder)
  return folder


def _train_there(folder, problem='regression'):
  return ensemble.train(_trainer(problem), _keys(), STEPS, folder=folder)


def _damage(paths, keep):
  """Cuts files to a share of their length, or removes them."""
  paths = list(paths)
  assert paths
  for path in paths:
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
      path.write_bytes(content[: int(keep * len(content))])


@pytest.mark.parametrize('name, keep', [
    ('d/*', 0.5), ('d/*', None), ('manifest.ocdbt', 0.5), ('_METADATA', 0.5),
    ('_METADATA', None),
])
def test_a_damaged_checkpoint_is_named(name, keep, tmp_path):
  folder = _saved(tmp_path)
  _damage(folder.glob(f'50/default/{name}'), keep)
  with pytest.raises(ValueError, match=r'Damaged checkpoint .*/run/50\. Delete'):
    _train_there(folder)


@pytest.mark.parametrize('keep', [0.5, None])
def test_a_checkpoint_whose_arrays_alone_are_damaged_is_named(keep, tmp_path):
  # Arrays of more than a kilobyte have a file apart from the tree's.
  state = {'w': np.random.default_rng(0).normal(size=(8, 997))}
  checkpoint.save(tmp_path / 'run', 3, state)
  files = (path for path in tmp_path.rglob('*') if path.is_file())
  _damage([max(files, key=lambda path: path.stat().st_size)], keep)
  like = {'w': jax.ShapeDtypeStruct((8, 997), np.float64)}
  with pytest.raises(ValueError, match=r'Damaged checkpoint .*/run/3\. Delete'):
    checkpoint.restore(tmp_path / 'run', like, sharding.seed_mesh())


@pytest.mark.parametrize('other', [
    _regression(features=5), _regression(dtype=jnp.float16),
    _regression(optimizer=optax.sgd(0.1)), _retriever(),
], ids=['width', 'dtype', 'optimizer', 'model'])
def test_a_checkpoint_of_another_run_is_named(other, tmp_path):
  folder = _saved(tmp_path)
  trainer = ensemble.make_trainer(other, steps_per_call=PER_CALL)
  with pytest.raises(ValueError, match=r'/run/50 is not of this run'):
    ensemble.train(trainer, _keys(), STEPS, folder=folder)
  with pytest.raises(ValueError, match=r'/run/50 is not of this run'):
    ensemble.train(_trainer('regression'), _keys(count=16), STEPS, folder=folder)
  # Nothing of it was lost.
  chex.assert_trees_all_equal(
      jax.device_get(_train_there(folder)), _trained('regression')
  )


def test_a_checkpoint_of_other_seeds_is_named_and_kept(tmp_path):
  folder = _saved(tmp_path)
  with pytest.raises(ValueError, match=r'/run/50 is of other seeds'):
    ensemble.train(_trainer('regression'), _keys(first=8), STEPS, folder=folder)
  chex.assert_trees_all_equal(
      jax.device_get(_train_there(folder)), _trained('regression')
  )


@pytest.mark.parametrize('kind', [PermissionError, jax.errors.JaxRuntimeError])
def test_an_error_that_says_nothing_of_the_files_is_no_damage(
    kind, tmp_path, monkeypatch
):
  folder = _saved(tmp_path)

  def refuse(*_, **__):
    raise kind('not now')

  monkeypatch.setattr(checkpoint.ocp.CheckpointManager, 'restore', refuse)
  with pytest.raises(kind, match='not now'):
    _train_there(folder)


def test_a_checkpoint_that_could_not_be_saved_is_named(tmp_path, monkeypatch):

  def fail(*_, **__):
    raise ValueError('RESOURCE_EXHAUSTED\nand more')

  monkeypatch.setattr(checkpoint.ocp.CheckpointManager, 'save', fail)
  with pytest.raises(OSError, match=r'not save .*/run/50: RESOURCE_EXHAUSTED$'):
    _saved(tmp_path)


def test_what_a_cut_off_save_left_is_cleared_away(tmp_path):
  folder = _saved(tmp_path)
  left = folder / '60.orbax-checkpoint-tmp-17'
  (left / 'd').mkdir(parents=True)
  (left / 'd' / 'half').write_bytes(b'1234')
  chex.assert_trees_all_equal(
      jax.device_get(_train_there(folder)), _trained('regression')
  )
  assert [path.name for path in folder.iterdir()] == ['50']


@pytest.mark.parametrize('layout, count, num_steps, message', [
    ((8, 1), 0, 50, 'num_seeds .* 0'),
    ((8, 1), 8, 35, '35 steps .* 10'),
    ((8, 1), 8, -10, '-10 steps'),
    ((8, 0), 8, 50, 'group_size .* 0'),
])
def test_impossible_sizes_are_named(layout, count, num_steps, message):
  with pytest.raises(ValueError, match=message):
    ensemble.train(_trainer('regression', *layout), _keys(count=count), num_steps)


@pytest.mark.slow
def test_a_seed_that_diverges_leaves_its_group_as_it_was():
  poisoned = jax.random.key_data(ensemble.purpose_key(_keys()[2], ensemble.INIT))
  sound = PROBLEMS['regression']

  def init(key):
    bad = (jax.random.key_data(key) == poisoned).all()
    return jax.tree.map(lambda x: jnp.where(bad, jnp.nan, x), sound.init(key))

  trainer = ensemble.make_trainer(
      sound._replace(init=init), steps_per_call=PER_CALL, group_size=4,
      mesh=_trainer('regression', 2, 4).mesh,
  )
  losses = []
  state = jax.device_get(ensemble.train(
      trainer, _keys(), STEPS, on_progress=lambda _, m: losses.append(m['loss'])
  ))
  others = np.arange(8) != 2
  assert np.isnan(state.params['w'][2]).all()
  np.testing.assert_array_equal(np.isfinite(losses), np.tile(others, (5, 1)))
  chex.assert_trees_all_equal(
      jax.tree.map(lambda x: x[others], state),
      jax.tree.map(lambda x: x[others], _trained('regression', 2, 4)),
  )


@pytest.fixture
def compiled():
  """A list that grows by one with each program that is compiled."""
  events = []

  def listen(event, duration, **_):
    if event.endswith('backend_compile_duration'):
      events.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield events
  jax.monitoring.clear_event_listeners()


def test_training_compiles_once(tmp_path, compiled):
  trainer = ensemble.make_trainer(PROBLEMS['regression'], steps_per_call=PER_CALL)
  train = functools.partial(ensemble.train, trainer, folder=tmp_path)
  counts = []
  # After the first call of `advance`, later calls and another block of seeds.
  ensemble.train(
      trainer, _keys(), STEPS,
      on_progress=lambda step, metrics: counts.append(len(compiled)),
  )
  train(_keys(8), STEPS)
  resumed = len(compiled)
  train(_keys(8), 2 * STEPS)
  assert counts[0] > 0
  assert counts == [counts[0]] * 5
  assert trainer.start._cache_size() == trainer.advance._cache_size() == 1
  assert len(compiled) == resumed


def test_each_batch_is_drawn_for_its_own_step_also_after_a_restart(tmp_path):
  sample = lambda key, step: jnp.float32(step)
  loss = lambda params, step: (jnp.float32(0), {'step': step})
  problem = PROBLEMS['regression']._replace(sample=sample, loss=loss)
  trainer = ensemble.make_trainer(problem, steps_per_call=5)
  means = []
  for num_steps in (10, 20):
    ensemble.train(
        trainer, _keys(), num_steps, folder=tmp_path,
        on_progress=lambda step, metrics: means.append(metrics['step']),
    )
  np.testing.assert_array_equal(np.array(means).T, [[2, 7, 12, 17]] * 8)


def test_what_was_compiled_together_is_not_compiled_again(compiled):
  mesh = sharding.seed_mesh()
  numbers = sharding.put(np.arange(16.0, dtype=np.float32), mesh)
  functions = [
      sharding.over_seeds(lambda x, power=power: x**power, mesh) for power in (2, 3, 4)
  ]
  sharding.compile_together(functions, numbers)
  assert len(compiled) == 3
  for power, function in zip((2, 3, 4), functions, strict=True):
    np.testing.assert_allclose(function(numbers), np.arange(16.0) ** power, rtol=1e-6)
  assert len(compiled) == 3


@pytest.mark.parametrize('seconds', [-1.0, float('nan')])
def test_a_time_between_checkpoints_is_one(seconds):
  # Nothing is ever due after nan seconds.
  with pytest.raises(ValueError, match=f'^save_every_seconds must not .*: {seconds}$'):
    ensemble.train(
        _trainer('regression'), _keys(), PER_CALL, save_every_seconds=seconds)


def test_keys_of_seeds_that_jax_would_wrap_are_refused():
  largest = ensemble.seed_keys(2**32 - 1, 2**32 - 2, 2)
  assert largest.shape == (2,) and largest[0] != largest[1]
  same = jax.random.key(2**33) == jax.random.key(0)
  assert same  # which is why
  for seed in (-1, 2**32, 2**33):
    with pytest.raises(ValueError, match=rf'^seed must be in 0\.\.2\*\*32-1: {seed}$'):
      ensemble.seed_keys(seed, 0, 2)
  for first, count in ((-1, 2), (2**32 - 1, 2), (0, -1)):
    with pytest.raises(ValueError, match=f'^seeds must be in .*: {first} to '):
      ensemble.seed_keys(0, first, count)
  with pytest.raises(TypeError, match='float'):
    ensemble.seed_keys(0.5, 0, 2)
  with pytest.raises(ValueError, match='seeds must be whole numbers: True, 0, 2'):
    ensemble.seed_keys(True, 0, 2)
