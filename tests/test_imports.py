"""Who may import whom, by reading the imports; and that reports need no JAX."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / 'vvlen').rglob('*.py'))

# What each part of vvlen may import of vvlen, beside itself; others nothing.
_FROM_RESULTS = {'comparison', 'plots', 'results', 'statistics'}
ALLOWED = {
    'models': {'partition', 'sharding', 'stages'},
    'training': {'partition', 'sharding'},
    'evaluation': {'models', 'objectives', 'partition', 'theory', 'sharding'},
    'simulation': {'models', 'objectives', 'theory', 'sharding', 'stages'},
    'results': _FROM_RESULTS,
    'curves': {'board', 'results'},
    'run_folder': {'results'},
    'comparison': _FROM_RESULTS,
    'plots': _FROM_RESULTS,
    'figures': _FROM_RESULTS | {'sample_figures'},
    'sample_figures': _FROM_RESULTS,
    'tables': _FROM_RESULTS,
    'length_tables': _FROM_RESULTS | {'tables'},
    'report': _FROM_RESULTS | {
        'curves', 'figures', 'length_tables', 'run_folder', 'tables'
    },
    'cells': _FROM_RESULTS,
    'tuned': _FROM_RESULTS,
    'sensitivity': _FROM_RESULTS | {
        'cells', 'curves', 'run_folder', 'sensitivity_figures', 'tables', 'tuned'
    },
    'sensitivity_figures': _FROM_RESULTS | {'cells', 'tables', 'tuned'},
    'mechanism': _FROM_RESULTS | {'mechanism_figure', 'run_folder', 'tables'},
    'mechanism_figure': _FROM_RESULTS,
    'recency': _FROM_RESULTS | {
        'recency_cells', 'recency_extensions', 'recency_figures', 'run_folder',
        'tables', 'theory',
    },
    'recency_cells': {'results'},
    'recency_figures': {'recency_cells', 'theory'},
    'counting': _FROM_RESULTS | {
        'counting_cells', 'counting_figures', 'run_folder', 'tables'
    },
    'counting_figures': _FROM_RESULTS | {'counting_cells'},
    'recency_extensions': {'recency_cells'},
    'alignment': _FROM_RESULTS | {
        'alignment_figures', 'alignment_tables', 'curves', 'run_folder', 'tables'
    },
    'alignment_figures': _FROM_RESULTS,
    'alignment_paper': set(),
    'alignment_tables': _FROM_RESULTS | {
        'alignment_figures', 'alignment_paper', 'tables'
    },
    'measurements': _FROM_RESULTS | {
        'measurements_figures', 'measurements_rows', 'measurements_spread',
        'run_folder', 'tables'
    },
    'measurements_figures': _FROM_RESULTS | {
        'measurements_rows', 'measurements_spread'
    },
    'measurements_spread': _FROM_RESULTS | {'measurements_rows', 'tables'},
    'linear_attention': _FROM_RESULTS | {
        'linear_attention_figure', 'linear_attention_tables', 'run_folder', 'tables'
    },
    'linear_attention_tables': _FROM_RESULTS | {'tables', 'theory'},
    'linear_attention_figure': _FROM_RESULTS,
}
WITHOUT_JAX = (
    'statistics', 'results', 'board', 'curves', 'run_folder', 'comparison', 'plots',
    'tables', 'length_tables', 'figures', 'sample_figures', 'report', 'cells', 'tuned',
    'sensitivity', 'sensitivity_figures', 'mechanism', 'mechanism_figure', 'recency',
    'recency_cells', 'recency_extensions', 'recency_figures', 'theory.recency',
    'counting', 'counting_cells', 'counting_figures',
    'alignment', 'alignment_figures', 'alignment_paper', 'alignment_tables',
    'measurements', 'measurements_figures', 'measurements_rows', 'measurements_spread',
    'linear_attention', 'linear_attention_figure', 'linear_attention_tables',
    'theory.linear_attention', 'tasks.documents', 'tasks.tokenizers', 'tasks.text',
)


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
  part = [*_module(path).split('.'), '__init__'][1]
  allowed = [f'vvlen.{name}' for name in {part} | ALLOWED.get(part, set())]
  for name in _imports(path):
    top = name.split('.')[0]
    assert top not in {'absl', 'configs', 'experiments', 'ml_collections', 'tests'}
    if top == 'vvlen':
      assert any(f'{name}.'.startswith(f'{a}.') for a in allowed), name


def test_reading_finds_imports_that_are_there():
  measure = _imports(ROOT / 'vvlen' / 'evaluation' / 'measure.py')
  assert {'vvlen.sharding', 'vvlen.models.temperature', 'jax'} <= measure


def test_models_import_downwards_only():
  below = {
      _module(path): {n for n in _imports(path) if n.startswith('vvlen.models.')}
      for path in FILES if 'models' in path.parts
  }
  while below:  # Take away what rests on nothing, until nothing is left.
    bottom = {name for name, needed in below.items() if not needed & set(below)}
    assert bottom, f'a circle of imports: {sorted(below)}'
    below = {name: x for name, x in below.items() if name not in bottom}


def test_reports_are_made_without_jax():
  modules = ', '.join(f'vvlen.{name}' for name in WITHOUT_JAX)
  program = (
      f'import sys, vvlen, experiments.report, {modules}\n'
      "print(*{'jax', 'jaxlib', 'flax', 'optax', 'orbax'} & set(sys.modules))"
  )
  run = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True, cwd=ROOT,
      timeout=120,
  )
  assert run.returncode == 0, run.stderr
  assert run.stdout.split() == []
