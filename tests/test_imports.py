"""Which modules may import which, and that reports need no JAX."""

import ast
import configparser
import importlib
import pathlib
import subprocess
import sys

from packaging import requirements
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted(
    path for top in ('vvlen', 'experiments') for path in (ROOT / top).rglob('*.py')
)

# What each package of vvlen may import from vvlen, besides itself.
ROOMS: dict[str, set[str]] = {
    'statistics': set(), 'tasks': set(), 'objectives': set(), 'theory': set(),
    'sharding': set(),
    'models': {'sharding'},
    'training': {'sharding'},
    'reporting': {'statistics'},
    'evaluation': {'models', 'objectives', 'theory', 'sharding', 'statistics'},
    'simulation': {'models', 'objectives', 'theory', 'sharding'},
}
# A study may import the harness; these are built on another study.
BUILT_ON = {
    'adapt': {'language_model'},
    'correlation': {'language_model', 'long_context'},
    'join': {'adapt', 'correlation'},
    'league': {'length_generalization'},
    'sensitivity': {'length_generalization'},
    'mechanism': {'length_generalization'},
    'vanishing_variance': {'length_generalization', 'mechanism'},
}
# Rooms that no study imports, since they use all studies.
FOR_ALL = {'benchmarks', 'compile'}
NOT_IN_LIBRARY = {'absl', 'configs', 'experiments', 'ml_collections', 'tests'}


def _module(path):
  """Returns a file's module name: vvlen/models/norm.py -> vvlen.models.norm."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


MODULES = {_module(path) for path in FILES}


def _imports(path):
  """Returns the names of all modules that a file imports, anywhere in it."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: relative import'
      for alias in node.names:
        name = f'{node.module}.{alias.name}'
        names.add(name if name in MODULES else node.module)
  return names


@pytest.mark.parametrize('path', FILES, ids=_module)
def test_each_module_imports_what_its_place_allows(path):
  top, room, *_ = [*_module(path).split('.'), '', '']
  for name in _imports(path):
    other, other_room, *_ = [*name.split('.'), '', '']
    if top == 'vvlen':
      assert other not in NOT_IN_LIBRARY, name
      if room and other == 'vvlen':
        assert other_room in ROOMS[room] | {room}, name
    elif other == 'experiments' and room not in FOR_ALL:
      allowed = {room, 'harness'} | BUILT_ON.get(room, set())
      assert other_room in allowed, name


def test_the_harness_knows_no_study():
  for path in (ROOT / 'experiments/harness').glob('*.py'):
    own = {name for name in _imports(path) if name.startswith('experiments.')}
    assert all(name.startswith('experiments.harness') for name in own), own


def test_reading_finds_imports_that_are_there():
  ensemble = _imports(ROOT / 'vvlen/evaluation/retriever/ensemble.py')
  assert {'vvlen.sharding', 'vvlen.models.temperature', 'jax'} <= ensemble


@pytest.mark.slow
def test_imports_go_in_no_circle():
  for room in ROOMS:
    below = {
        _module(path): {
            n for n in _imports(path)
            if n.startswith(f'vvlen.{room}.') and path.name != '__init__.py'
        }
        for path in FILES if _module(path).startswith(f'vvlen.{room}.')
    }
    while below:  # Remove modules without remaining imports until none are left.
      bottom = {name for name, needed in below.items() if not needed & set(below)}
      assert bottom, f'a circle of imports: {sorted(below)}'
      below = {name: x for name, x in below.items() if name not in bottom}


@pytest.mark.slow
def test_reports_are_made_without_jax():
  names = ('report', 'answer', 'tables', 'parts_tables', 'figures', 'sample_figures',
           'extensions', 'spread', 'setting', 'effects', 'parts', 'tuned', 'cells',
           'rows', 'paper')
  modules = sorted(
      name for path in FILES for name in [_module(path)]
      if name.startswith(('vvlen.reporting', 'vvlen.statistics'))
      or (name.startswith('experiments.') and name.split('.')[-1] in names)
      or 'ithout JAX' in (ast.get_docstring(ast.parse(path.read_text())) or '')
  )
  assert {'experiments.harness.locks', 'experiments.measure.rows',
          'experiments.compile.chips'} <= set(modules)
  assert len(modules) > 50
  program = (
      f'import sys, vvlen, {", ".join(modules)}\n'
      "print(*{'jax', 'jaxlib', 'flax', 'optax', 'orbax'} & set(sys.modules))"
  )
  run = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True, cwd=ROOT,
      timeout=120,
  )
  assert run.returncode == 0, run.stderr
  assert run.stdout.split() == []


@pytest.mark.slow
def test_one_module_imports_lm_eval():
  found = [_module(path) for path in FILES
           if any(name.split('.')[0] == 'lm_eval' for name in _imports(path))]
  assert found == ['vvlen.evaluation.lm_eval_adapter']


def test_without_lm_eval_a_line_says_what_to_install(monkeypatch):
  name = 'vvlen.evaluation.lm_eval_adapter'
  monkeypatch.setitem(sys.modules, 'lm_eval', None)
  monkeypatch.setitem(sys.modules, 'lm_eval.api.model', None)
  monkeypatch.delitem(sys.modules, name, raising=False)
  with pytest.raises(ImportError, match=r"is missing: pip install 'vvlen\[harness\]'"):
    importlib.import_module(name)


def test_no_pair_of_flax_and_jax_is_allowed_that_does_not_work():
  # Up to Python 3.11 there is no jax after 0.10.2, from 0.11.1 on flax 0.12.8 fails.
  config = configparser.ConfigParser()
  config.read(ROOT / 'setup.cfg')
  wanted = [requirements.Requirement(line) for line in
            config['options']['install_requires'].splitlines() if line]
  for python, allowed in (('3.11', True), ('3.12', False), ('3.13', False)):
    [flax] = [x for x in wanted if x.name == 'flax'
              and x.marker.evaluate({'python_version': python})]
    assert ('0.12.8' in flax.specifier) == allowed
    assert '0.12.9' in flax.specifier and '0.13.0' not in flax.specifier
  jax = {str(x.specifier) for line in config['options.extras_require'].values()
         for x in map(requirements.Requirement, filter(None, line.splitlines()))
         if x.name == 'jax'}
  assert jax == {str(x.specifier) for x in wanted if x.name == 'jax'}
