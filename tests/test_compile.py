"""Programs compiled for slices: what is counted, the command, and real small slices."""

import functools
import json
import sys

from etils import epath
from flax.traverse_util import flatten_dict
import jax
from jax.experimental.compilation_cache import compilation_cache
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import pytest

from configs import retrieval
from experiments.compile import (
    chips,
    hlo,
    measure,
    NAMES,
    operations,
    programs,
    report,
)
from experiments.length_generalization import training
from tests.conftest import ROOT
from vvlen import sharding
from vvlen.models.kernels.causal import causal_attention
from vvlen.models.llama import abstract_params
from vvlen.models.llama.lora import is_quantized
from vvlen.sharding import platform
from vvlen.sharding.mesh import axis_sizes

SEEDS = PartitionSpec('seed')


def _over(mesh, function):
  return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=SEEDS, out_specs=SEEDS,
                               check_vma=False))


def _array(mesh, *shape, dtype=jnp.float32, spec=SEEDS):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def _turning(mesh, turns):
  """A loop with a product of [2, 3, 3] matrices and a sum over devices."""

  def body(x, _):
    return jax.lax.psum(x @ x, 'seed'), None

  return _over(mesh, lambda x: jax.lax.scan(body, x, length=turns)[0]), _array(
      mesh, 16, 3, 3)


def test_operations_are_those_of_all_turns_and_devices():
  function, x = _turning(sharding.seed_mesh(jax.devices()), 5)
  product = 2 * 2 * 3 * 3 * 3
  assert operations.operations(function.trace(x).jaxpr) == 8 * 5 * product
  y = jnp.zeros((4, 7))
  count = lambda f: operations.operations(jax.make_jaxpr(f)(y))
  assert count(lambda y: y @ y.T) == 2 * 4 * 4 * 7
  assert count(jnp.exp) == count(lambda y: y.sum()) == 28
  # Of two branches the larger, and what is computed again for a gradient.
  assert count(lambda y: jax.lax.cond(y[0, 0] > 0, jnp.exp, lambda y: y, y)) == 28
  again = lambda f: count(jax.grad(lambda y: f(y).sum()))
  plain = lambda y: jnp.exp(y @ y.T)
  assert again(jax.checkpoint(plain)) - again(plain) >= 2 * 4 * 4 * 7


def test_half_of_the_blocks_of_chunked_attention_are_operations():
  attend = lambda x: causal_attention(x, x, x, implementation='chunked').sum()
  count = lambda f, n: operations.operations(
      jax.make_jaxpr(f)(jnp.zeros((2, n, 3, 64), jnp.bfloat16)))
  # Two products of half of n x n logits forward; five more for the gradient.
  product = lambda n: 2 * 2 * 3 * 64 * n**2 / 2
  for n in (2048, 4096):
    assert 2 < count(attend, n) / product(n) < 2.25
    assert 7 < count(jax.grad(attend), n) / product(n) < 7.75
  # A loop that does not count up to a number has one turn.
  until = lambda x: jax.lax.while_loop(lambda x: x.sum() < 1, lambda x: x @ x, x)
  turns = lambda x: jax.lax.scan(lambda x, _: (until(x), None), x, length=9)[0]
  x = jnp.zeros((3, 3))
  assert operations.operations(jax.make_jaxpr(turns)(x)) == 9 * 2 * 27


@pytest.mark.parametrize('turns', [2, 7])
def test_collectives_and_bytes_are_those_of_all_turns(turns):
  function, x = _turning(sharding.seed_mesh(jax.devices()), turns)
  found = hlo.traffic(function.lower(x).compile().as_text())
  size = 2 * 3 * 3 * 4
  assert found.collectives == {'all-reduce': (turns, turns * size)}
  assert found.unknown_loops == 0
  # At least: each turn reads and writes the matrices, and their sum.
  assert 4 * size * turns <= found.bytes <= 12 * size * turns + 200


def test_a_fusion_that_reads_a_slice_moves_a_slice():
  text = """HloModule m

%body (p.0: f32[100,8], p.1: s32[]) -> f32[8] {
  %p.0 = f32[100,8]{1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %cut = f32[1,8]{1,0} dynamic-slice(%p.0, %p.1), dynamic_slice_sizes={1,8}
  ROOT %r = f32[8]{0} bitcast(%cut)
}

ENTRY %main (a: f32[100,8], i: s32[]) -> f32[8] {
  %a = f32[100,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %near = f32[8]{0:T(128)S(1)} fusion(%a, %i), kind=kLoop, calls=%body
  ROOT %far = f32[8]{0} fusion(%a, %i), kind=kLoop, calls=%body
}
"""
  # The first writes to the core's own memory, which does not count.
  index = 4
  assert hlo.traffic(text).bytes == (32 + index) + (32 + index + 32)


def test_the_turns_of_a_loop_may_be_given_from_outside():
  text = """HloModule m

%body (p: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {
  %p = (s32[], f32[8]{0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %n = s32[] get-tuple-element(%p), index=2
  %y = f32[8]{0} negate(%x)
  ROOT %t = (s32[], f32[8]{0}, s32[]) tuple(%i, %y, %n)
}

%go_on (q: (s32[], f32[8], s32[])) -> pred[] {
  %q = (s32[], f32[8]{0}, s32[]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %m = s32[] get-tuple-element(%q), index=2
  ROOT %less = pred[] compare(%j, %m), direction=LT
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %eleven = s32[] constant(11)
  %start = (s32[], f32[8]{0}, s32[]) tuple(%zero, %a, %eleven)
  %loop = (s32[], f32[8]{0}, s32[]) while(%start), condition=%go_on, body=%body
  ROOT %r = f32[8]{0} get-tuple-element(%loop), index=1
}
"""
  assert hlo.traffic(text) == hlo.Traffic(11 * (32 + 32), {}, 0)


@pytest.mark.parametrize('message, expected', [
    ('Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm. Exceeded hbm '
     'capacity by 4.25G.', 4.25 * 2**30),
    ('the total memory required for HLO temporaries (72.00G) exceeds available HBM '
     '(15.75G).', 56.25 * 2**30),
    ('Exceeded hbm capacity by 512.5M.', 512.5 * 2**20),
    ('Mosaic failed to compile', None),
])
def test_what_is_missing_is_read_from_the_message(message, expected):
  assert measure.exceeds(message) == expected


def _row(**fields):
  return {'experiment': 'one', 'topology': 'v5e:2x2', 'chips': 4, 'chip': 'TPU v5e',
          'memory': 16 * 2**30, 'flops': 197e9, 'steps': 3600, 'note': 'a note',
          'jax': '0.10.2', **fields}


def test_floors_follow_from_published_peaks():
  compiled = {'arguments': 2**30, 'temporaries': 2**31, 'results': 0, 'code': 0,
              'compile_seconds': 7.0, 'collectives': {}}
  assert report.floor(_row(bytes=0, **compiled)) == pytest.approx(1e-3)
  slow = _row(bytes=819e9, **compiled)  # a second, by the bandwidth
  assert report.floor(slow) == pytest.approx(1.0)
  memory, time = (
      [cell.strip() for cell in line.strip('|').split('|')]
      for columns in (report.MEMORY, report.TIME)
      for line in report.table([slow], columns).splitlines()[2:])
  assert memory[2:6] == ['yes', '7 s', '1.0 GiB', '2.0 GiB']
  assert memory[:2] == time[:2] == ['one', 'v5e:2x2 (4 chips)']
  assert time[-3:] == ['3,600', '1', '4']  # steps, hours, chip-hours
  assert report.needs(slow) == 3 * 2**30
  assert '| no, by 2.0 GiB |' in report.table([_row(exceeds=2.0**31)], report.MEMORY)
  assert '| not compiled |' in report.table([_row(arguments=1)], report.MEMORY)


def test_a_row_replaces_one_of_its_name_and_slice(tmp_path):
  for fields in ({'flops': 1.0},
                 {'flops': 2.0, 'commit': 40 * 'a' + '+', 'libtpu': '0.0.52'},
                 {'topology': 'v5e:4x4', 'chips': 16}):
    report.add(tmp_path, report.read(tmp_path), _row(**fields))
  rows = json.loads((tmp_path / 'compiled.json').read_text())
  assert [(x['topology'], x['flops']) for x in rows] == [
      ('v5e:2x2', 2.0), ('v5e:4x4', 197e9)]
  readme = (tmp_path / 'README.md').read_text()
  assert readme.count('| one |') == 4  # in two tables
  assert readme.splitlines()[-2:] == [
      '- one, v5e:2x2: a note. jax 0.10.2, libtpu 0.0.52, commit aaaaaaaaaa+.',
      '- one, v5e:4x4: a note. jax 0.10.2, commit not noted.']


def test_the_committed_page_is_what_its_rows_give(tmp_path):
  folder = epath.Path(ROOT / 'experiments/results/compiled')
  rows = report.read(folder)
  report.add(tmp_path, rows, rows[0])
  for name in ('README.md', 'compiled.json'):
    assert (tmp_path / name).read_text() == (folder / name).read_text(), name


@pytest.mark.parametrize('text', ['{', '[{}]', '{"a": 1}', '[1]'])
def test_a_damaged_file_of_rows_is_named_before_anything_is_compiled(
    text, tmp_path, run_here):
  (tmp_path / 'compiled.json').write_text(text)
  done = run_here('compile', '--topology=v5e:2x2', '--experiment=retrieval',
                  f'--output={tmp_path}')
  assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr
  assert f'{tmp_path}/compiled.json is damaged' in done.stderr
  assert (tmp_path / 'compiled.json').read_text() == text


def test_names_of_the_command_are_those_of_the_programs():
  assert list(programs.EXPERIMENTS) == NAMES


def test_sizes_of_slices_are_their_chips():
  for kind, shapes in chips.SHAPES.items():
    for shape in shapes:
      where = chips.slice_of(f'{kind}:{shape}')
      assert where.chip is chips.CHIPS[kind]
      assert where.compiles == (kind != 'h100')
  assert chips.slice_of('v5p:4x4x4').size == 64
  assert chips.slice_of('h100:8').size == 8


@pytest.mark.slow
def test_eight_gpus_are_counted_by_their_arguments(monkeypatch):
  small = programs.LLAMA_2_7B.clone(width=64, mlp_width=128, num_layers=2, num_heads=2,
                                    num_key_heads=2, vocab_size=64)
  monkeypatch.setattr(programs, 'LLAMA_2_7B', small)
  monkeypatch.setattr(programs, 'BATCH', 8)
  program = programs.llama(16, jax.devices())
  row = measure.count(program, chips.slice_of('h100:8'))
  sizes = [x.size for x in jax.tree.leaves(abstract_params(small))]
  matrices = sum(x for x in sizes if x > 128)
  rest = sum(sizes) - matrices
  # Parameters and two moments in four bytes; vectors are on every device, and so are
  # three counts of steps, a seed and α. A stream has 16 + 7 tokens.
  assert row['arguments'] == 12 * (matrices / 8 + rest) + 23 * 4 + 3 * 4 + 8 + 4
  assert row['flops'] > 6 * matrices * 2 * 16
  # Two layers, two windows of a stream of 16 x 64 numbers on each device.
  assert row['kept'] == 2 * 2 * 16 * 64 * 2 + sum(sizes) * 4 // 8
  row['memory'] = row['arguments'] + row['kept']
  said = report.table([{'experiment': 'llama', **row}], report.MEMORY)
  assert '| perhaps: 188.0 KiB by counting |' in said
  row['memory'] -= 2048
  said = report.table([{'experiment': 'llama', **row}], report.MEMORY)
  assert '| no, by 2.0 KiB at least |' in said


ADAPT = [name for name in NAMES if name.startswith('adapt')]
MEASURING = [name for name in ADAPT if name.endswith('_evaluation')]
SMALL = programs.LLAMA_2_7B.clone(width=256, mlp_width=256, num_layers=2, num_heads=2,
                                  num_key_heads=2, vocab_size=512)


@pytest.mark.slow
@pytest.mark.parametrize('name', MEASURING)
def test_how_adapt_measures_is_a_program_of_llama_2_7b(monkeypatch, name):
  monkeypatch.setattr(programs, 'LLAMA_2_7B', SMALL.clone(max_length=256))
  length = 256 if 'clex' in name else 512  # 7B: 4096 and 8192
  _with_paper(monkeypatch, {
      'mesh.fsdp': 4, 'mesh.tensor': 2, 'train.max_length': length})
  program = programs.EXPERIMENTS[name](jax.devices())
  # 16 segments in 4 calls; before training and after 50, 100, 150 and 200 steps.
  assert (program.steps, program.calls) == (1, 4 * 5)
  assert program.note == (
      f'a step measures 4 segments of {4 * length} tokens, of 16, at up to '
      f'{2 * length} tokens; an arm is measured 5 times; mesh fsdp 4, tensor 2')
  params, segments = program.arguments
  assert segments.shape == (4, 4 * length) and segments.dtype == jnp.int32
  assert segments.sharding.shard_shape(segments.shape) == (1, 4 * length)
  assert any(map(is_quantized, flatten_dict(params).values())) == ('longqlora' in name)
  row = measure.count(program, chips.slice_of('v5p:2x2x2'))
  matrices = sum(x.size for x in jax.tree.leaves(abstract_params(SMALL))) - 512 * 256
  # Forward alone: blocks of L and 2 L tokens, and windows of these half a length apart,
  # 7 of L and 3 of 2 L in a segment.
  assert row['flops'] * 8 > 2 * matrices * 4 * (4 + 4 + 7 + 6) * length


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in ADAPT if name not in MEASURING])
def test_every_method_of_adapt_is_a_program_of_llama_2_7b(monkeypatch, name):
  monkeypatch.setattr(programs, 'LLAMA_2_7B', SMALL)
  monkeypatch.setattr(programs, 'BATCH', 8)
  with pytest.raises(ValueError, match='a mesh of data -1 x fsdp 16 x tensor 4 does '
                                       'not fit the number of devices, 8'):
    programs.EXPERIMENTS[name](jax.devices())
  _with_paper(monkeypatch, {'mesh.fsdp': 4, 'mesh.tensor': 2})
  program = programs.EXPERIMENTS[name](jax.devices())
  length = 4096 if name == 'adapt_clex' else 8192
  assert program.note.endswith(
      f'; 8 streams, 2 windows of {length}, mesh fsdp 4, tensor 2')
  assert (program.steps, program.calls) == (1, 200)
  row = measure.count(program, chips.slice_of('v5p:2x2x2'))
  params = sum(x.size for x in jax.tree.leaves(abstract_params(SMALL)))
  # Forward and backward, of two windows, computed once more for the gradients: 8
  # operations a parameter, 6 where it is frozen, but for the embedding, which is looked
  # up.
  adapters = 'lora' in name
  least = (6 if adapters else 8) * (params - 512 * 256) * 2 * length
  assert least < row['flops'], (row['flops'], least)
  trained = int(program.note.split()[0].replace(',', ''))
  assert (trained < params) if adapters else (params <= trained < params + 10**5)


def _with_paper(monkeypatch, fields):
  """Changes fields of the variants of configs/adapt.py that are compiled."""
  get = programs.adapt_config.get_config

  def changed(variant):
    config = get(variant)
    config.update_from_flattened_dict(fields)
    return config

  monkeypatch.setattr(programs.adapt_config, 'get_config', changed)


@pytest.mark.parametrize('fields, expected', [
    ({}, (jnp.bfloat16, True, True, 'nothing', 'bfloat16')),
    ({'train.dtype': 'float32', 'train.remat_keeps': 'products'},
     (jnp.float32, True, True, 'products', 'bfloat16')),
    ({'train.remat': False, 'train.scan_layers': False},
     (jnp.bfloat16, False, False, 'nothing', None))])
def test_adapt_is_compiled_as_its_config_runs(monkeypatch, fields, expected):

  def seen(config, method, model, mesh):
    assert mesh.shape == {'data': 2, 'fsdp': 4, 'tensor': 1}
    assert (model.dtype, model.remat, model.scan_layers, model.remat_keeps,
            model.stream_dtype) == expected
    raise InterruptedError  # before anything is traced

  monkeypatch.setattr(programs, 'AdaptPrograms', seen)
  _with_paper(monkeypatch, {'mesh.fsdp': 4, 'mesh.tensor': 1, **fields})
  with pytest.raises(InterruptedError):
    programs.adapt('yarn', jax.devices())


def test_the_paper_variants_are_compiled_for_one_copy_on_64_chips():
  config = programs.adapt_config.get_config('pi_paper')
  assert axis_sizes(64, **config.mesh.to_dict()) == (1, 16, 4)
  assert axis_sizes(256, **config.mesh.to_dict()) == (4, 16, 4)
  with pytest.raises(ValueError, match='number of devices, 32'):
    axis_sizes(32, **config.mesh.to_dict())


@pytest.mark.parametrize('arguments, says', [
    (('--topology=v9:2x2', '--experiment=retrieval'), 'one of v5e, v5p, v6e, h100'),
    (('--topology=v5p-64', '--experiment=retrieval'), 'in chips, as in v5e:4x8'),
    (('--topology=v5e:3x3', '--experiment=retrieval'), 'v5e:2x2, v5e:2x4'),
    (('--topology=v5e:2x2', '--experiment=retrival'), '(retrieval?): must be one of'),
    (('--topology=h100:8', '--experiment=retrieval'), 'without a compiler'),
    (('--topology=v5e:2x2', '--experiment=retrieval', '--nonsense'), '--nonsense'),
    (('--topology=v5e:2x2', '--experiment=retrieval'), "pip install '.[compile]'"),
])
def test_wrong_input_ends_with_one_line(run_here, monkeypatch, tmp_path, arguments,
                                        says):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.setitem(sys.modules, 'libtpu', None)  # not installed
  monkeypatch.setattr(jax.config, 'update', lambda *_: None)
  done = run_here('compile', *arguments, f'--output={tmp_path}')
  assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr
  assert says in done.stderr
  assert not list(tmp_path.iterdir())


@pytest.fixture(scope='module')
def tpus():
  """Four chips of a v5e, which can only be compiled for."""
  pytest.importorskip(
      'libtpu', reason="needs the compiler of TPUs: pip install '.[compile]'")
  # Programs for devices that are not there cannot be read from the cache.
  cached = jax.config.jax_enable_compilation_cache
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()
  yield measure.devices_of(chips.slice_of('v5e:2x2'))
  jax.config.update('jax_enable_compilation_cache', cached)
  compilation_cache.reset_cache()


@pytest.mark.slow
def test_an_ensemble_compiles_for_a_slice(tpus):
  config = retrieval.get_config('smoke')
  config.num_seeds = 6
  program = programs._ensemble(
      training.problem(config, 'layer_norm'), config, tpus, 3, 'smoke')
  row = measure.measure(program, chips.slice_of('v5e:2x2'))
  assert row['collectives'] == {}  # seeds never meet
  assert row['unknown_loops'] == 0
  assert row['steps_a_call'] == 5 and row['steps'] == 3 * 20
  assert 0 < row['arguments'] < 2**24 and row['flops'] > 1e6
  said = report.table([{'experiment': 'smoke', **row}], report.MEMORY)
  assert said.count('| yes |') == 1


@pytest.mark.parametrize('precision', [None, 'float32'])
def test_the_attention_kernel_compiles_at_the_precision_of_experiments(tpus, precision):
  mesh, seen = sharding.seed_mesh(tpus), []

  def local(x):
    seen.append(platform.target())
    return jax.grad(lambda x: causal_attention(x, x, x).astype(jnp.float32).sum())(x)

  x = _array(mesh, 4, 512, 2, 128, dtype=jnp.bfloat16)
  with jax.default_matmul_precision(precision):
    text = _over(mesh, local).lower(x).compile().as_text()
  assert set(seen) == {'tpu'}
  assert 'splash_mha_fwd' in text and 'splash_mha_dkv' in text


def test_a_program_that_does_not_fit_says_by_how_much(tpus):
  mesh = sharding.seed_mesh(tpus)
  x = _array(mesh, 4, 3 * 2**30)  # 12 GiB on each chip, twice
  function = jax.jit(lambda x, y: x @ x.T + y.sum())
  program = programs.Program(function, (x, x), mesh, 1, 1, 'too large')
  row = measure.measure(program, chips.slice_of('v5e:2x2'))
  assert row['exceeds'] > 2**30 and 'temporaries' not in row
  assert '| no, by ' in report.table([{'experiment': 'large', **row}], report.MEMORY)


def test_loops_of_a_slice_have_their_turns(tpus):
  for turns in (3, 9):
    function, x = _turning(sharding.seed_mesh(tpus), turns)
    with jax.default_matmul_precision('float32'):
      found = hlo.traffic(function.lower(
          jax.ShapeDtypeStruct((8, 3, 3), jnp.float32, sharding=x.sharding)
      ).compile().as_text())
    assert found.unknown_loops == 0
    assert found.collectives['all-reduce'][0] == turns


@pytest.mark.slow
def test_a_step_of_a_small_llama_compiles_for_a_slice(tpus, monkeypatch):
  small = programs.LLAMA_2_7B.clone(width=256, mlp_width=256, num_layers=2, num_heads=2,
                                    num_key_heads=2, vocab_size=512)
  monkeypatch.setattr(programs, 'LLAMA_2_7B', small)
  monkeypatch.setattr(programs, 'BATCH', 4)
  monkeypatch.setattr(programs, '_AXES', {4: (1, 2, 2)})
  run = functools.partial(measure.measure, where=chips.slice_of('v5e:2x2'))
  row = run(programs.llama(512, tpus))
  assert {'all-gather', 'all-reduce'} <= row['collectives'].keys()
  assert row['unknown_loops'] == 0
  # Parameters and two moments, cut in four.
  params = sum(x.size for x in jax.tree.leaves(abstract_params(small)))
  assert 3 * params <= row['arguments'] <= 3.1 * params + 2**14
