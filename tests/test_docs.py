"""README and docs: links, code, commands, names and metrics; the book and its tour."""

import argparse
import ast
import csv
import html.parser
import importlib.util
import json
import lzma
import os
import pathlib
import pkgutil
import re
import shlex
import subprocess
import sys
import urllib.parse

import jax
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.llamas import save_llama

DOCS = ROOT / 'docs'
PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted(DOCS.glob('*.md'))]
# Python examples of each page; those of the first two are run by test_readme.py.
EXAMPLES = {'README.md': 3, 'in_your_code.md': 7, 'league.md': 1, 'own_norm.md': 3,
            'own_task.md': 1, 'seeds.md': 1}
# Programs that no test runs, with what they need; and those of a shell.
CLOUD = {'gcloud': 'an account of Google Cloud', 'hf': 'the network',
         'sbatch': 'a cluster', 'sky': 'a cloud', 'ssh-add': 'keys', 'xpk': 'a cluster',
         'xprof': 'a browser'}
SHELL = {'$EDITOR', '.', '[', 'git', 'grep', 'mypy', 'python3', 'ruff', 'tensorboard'}
PLACEHOLDERS = {'…', 'NAME', 'STUDY', 'EXPERIMENT', 'FLAG'}


def _of_page(path):
  return path.name


def _blocks(path, language):
  return re.findall(rf'^```{language}\n(.*?)^```', path.read_text(), re.S | re.M)


def _without_code(text):
  return re.sub(r'^```.*?^```', '', text, flags=re.S | re.M)



def _anchors(path):
  """Returns what a link may have after #: slugs of headings, or names in a module."""
  if path.suffix == '.py':
    nodes = ast.parse(path.read_text()).body
    return {x.name for x in nodes if isinstance(x, (ast.FunctionDef, ast.ClassDef))}
  headings = re.findall(r'^#+ (.*)$', _without_code(path.read_text()), re.M)
  return {re.sub(r'[^\w\- ]', '', heading.strip().lower()).replace(' ', '-')
          for heading in headings}


def _dead(path):
  """Returns the relative links of a page that lead nowhere."""
  text = _without_code(path.read_text())
  links = re.findall(r'\]\(([^)#\s]*)(?:#([^)\s]*))?\)', text)
  dead = []
  for target, anchor in links:
    if re.match(r'https?:|mailto:', target):
      continue
    there = (path.parent / target).resolve() if target else path
    if not there.exists() or (anchor and anchor not in _anchors(there)):
      dead.append(f'{target}#{anchor}')
  return dead


@pytest.mark.parametrize(
    'path', [*PAGES, *sorted((ROOT / 'experiments/results').glob('*/README.md'))],
    ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_are_there(path):
  assert _dead(path) == []


def test_a_dead_link_or_anchor_is_found(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text(f'# One (two)\n[a](#one-two) [b](#one) [c](no.md) '
                  f'[d]({DOCS}/seeds.md#any-problem-of-your-own) '
                  f'[e]({ROOT}/vvlen/models/norm.py#standardise)')
  assert _dead(page) == ['#one', 'no.md#', f'{ROOT}/vvlen/models/norm.py#standardise']


def test_the_readme_has_at_most_200_lines():
  assert len((ROOT / 'README.md').read_text().splitlines()) <= 200


def test_the_authors_have_one_name():
  authors = {'CITATION.cff': '\nauthors:\n  - name: "The vvlen authors"\n',
             'docs/conf.py': "\nauthor = 'The vvlen authors'\n",
             'LICENSE': 'Copyright 2026 The vvlen authors\n'}
  for name, line in authors.items():
    assert line in (ROOT / name).read_text(), name


def test_each_equation_names_what_computes_it():
  text = (DOCS / 'equations.md').read_text()
  named = re.findall(r'\.\./(vvlen/[\w/]+\.py)#(\w+)', text)
  assert len(set(named)) > 50
  parts = re.split(r'^### ', text, flags=re.M)[1:]
  assert [part.splitlines()[0] for part in parts if '.py' not in part] == []



@pytest.mark.parametrize('path', PAGES, ids=_of_page)
def test_names_of_the_library_exist(path):
  for name in set(re.findall(r'`(vvlen(?:\.\w+)+)`', path.read_text())):
    assert pkgutil.resolve_name(name) is not None


def test_every_python_example_is_run():
  found = {path.name: len(_blocks(path, 'python')) for path in PAGES}
  assert {name: count for name, count in found.items() if count} == EXAMPLES


def _run(path, number):
  scope = {}
  exec(compile(_blocks(path, 'python')[number], path.name, 'exec'), scope)
  return scope


@pytest.mark.slow
def test_a_norm_of_ones_own(capsys):
  with jax.numpy_rank_promotion('allow'):  # of nn.RMSNorm
    scope = _run(DOCS / 'own_norm.md', 0)
  x = jax.random.normal(jax.random.key(0), (3, 5))
  lengths = np.linalg.norm(scope['unit_norm'](x), axis=-1)
  np.testing.assert_allclose(lengths, 5**0.5, rtol=1e-5)
  function, module = capsys.readouterr().out.splitlines()
  assert 'norm' not in function and "'norm'" in module


@pytest.mark.slow
def test_a_temperature_of_ones_own():
  scope = _run(DOCS / 'own_norm.md', 1)
  beta = scope['log_length'](np.zeros((2, 64)), np.arange(64) < np.array([[8], [64]]))
  np.testing.assert_allclose(beta, [[1], [1.5]], rtol=1e-6)
  assert not np.allclose(scope['plain'], scope['sharper'])


def test_weights_of_ones_own(capsys):
  scope = _run(DOCS / 'own_norm.md', 2)
  mask = np.arange(4) < np.array([[2], [4]])
  weights = scope['relu_over_n'](np.float32([[1, -3, 2, 0]] * 2), mask)
  np.testing.assert_allclose(weights, [[1, 0, 0, 0], [0.5, 0, 0.75, 0.25]])
  assert 'Array(1., dtype=float32)' in capsys.readouterr().out


@pytest.mark.slow
def test_a_task_of_ones_own(monkeypatch):
  monkeypatch.syspath_prepend(ROOT)
  scope = _run(DOCS / 'own_task.md', 0)
  batch = scope['batch']
  priorities = np.where(batch.mask, batch.items[..., 0], -1)
  assert (np.argsort(priorities, axis=1)[:, -2] == batch.target_index).all()


def test_an_arm_of_ones_own():
  text = _blocks(DOCS / 'league.md', 'python')[0]
  assert (DOCS / 'examples/my_attention.py').read_text().endswith(text)
  weights = _run(DOCS / 'league.md', 0)['attend'](np.float32([[1, -3, 0]]))
  np.testing.assert_allclose(weights, [[0.8, 0, 0.2]], atol=1e-5)


@pytest.mark.slow
def test_hundreds_of_seeds(capsys):
  scope = _run(DOCS / 'seeds.md', 0)
  assert scope['test'].num_pairs == 256
  # The larger rate has more noise in its last steps.
  assert scope['test'].ci_low > 0
  assert 'would have been found four times in five' in capsys.readouterr().out



def _commands(path):
  """Returns the commands of a page, each a list of words, in order."""
  text = path.read_text()
  lines = [line for block in _blocks(path, 'sh')
           for line in block.replace('\\\n', ' ').splitlines()]
  for span in re.findall(r'`([^`]+)`', _without_code(text)):
    span = ' '.join(span.split())
    if re.match(r'python -m |pip install |tpu_scripts/|hf |sbatch ', span):
      lines.append(span)
  commands = []
  for line in lines:
    line = re.sub(r'\{ (.*); \}', r'\1', line).replace('.venv/bin/', '')
    words = ['&&' if x == '||' else x for x in shlex.split(line, comments=True)]
    while '&&' in words:
      commands.append(words[:words.index('&&')])
      words = words[words.index('&&') + 1:]
    commands.append(words)
  return [_without_variables(words) for words in commands if words]


def _without_variables(words):
  while re.match(r'[A-Z_]+=', words[0]):
    words = words[1:]
  return words


_ALL = sorted({tuple(words) for path in PAGES for words in _commands(path)})
_OF_MODULES = [words for words in _ALL if words[:2] == ('python', '-m')]
# tpu_scripts/run.sh NAME FLAG… runs python -m experiments.NAME FLAG… on each worker.
_OF_STUDIES = [
    (f'experiments.{words[1]}', *words[2:]) for words in _ALL
    if words[0] == 'tpu_scripts/run.sh' and len(words) > 1
] + [words[2:] for words in _OF_MODULES]


def _is_template(words):
  return any(placeholder in word for word in words for placeholder in PLACEHOLDERS)


def test_programs_and_scripts_exist():
  for program, *words in _ALL:
    if program == 'pip':
      words = [word for word in words if word != '-q']
      extras = re.search(r"\[(.*)\]", words[1])
      known = re.findall(r'^(\w+) =', (ROOT / 'setup.cfg').read_text(), re.M)
      if words[1].startswith('.') and extras:
        assert set(extras[1].split(',')) <= set(known), words
    elif program.startswith('tpu_scripts/'):
      assert (ROOT / program).exists(), program
      assert os.access(ROOT / program, os.X_OK) or not program.endswith('.sh'), program
    elif program != 'python':
      assert program in CLOUD.keys() | SHELL, program


class _Parsed(Exception):
  """The arguments of a command were accepted."""


@pytest.fixture
def accepts(run_here, monkeypatch, tmp_path):
  """Returns a function that parses a command, and checks its configuration."""
  parse, environment = argparse.ArgumentParser.parse_args, dict(os.environ)
  save_llama(tmp_path / 'llama')
  (tmp_path / 'text').write_text('one two')

  def parse_only(self, *arguments):
    raise _Parsed(parse(self, *arguments))

  def accepts(module, *words):
    given = {'--checkpoint=DIR': f'--checkpoint={tmp_path}/llama',
             '--text=FILE': f'--text={tmp_path}/text'}
    words = [given.get(word, word) for word in words]
    words = [f'--workdir={tmp_path}/run' if word.startswith('--workdir=') else word
             for word in words]
    parsed = []
    monkeypatch.setattr(argparse.ArgumentParser, 'parse_args', parse_only)
    study = f'{module}.run'
    if importlib.util.find_spec(module).submodule_search_locations and (
        importlib.util.find_spec(study)):

      def main(config, workdir):
        if importlib.util.find_spec(f'{module}.check'):
          importlib.import_module(f'{module}.check').check(config)
        parsed.append(workdir)

      monkeypatch.setattr(f'{study}.main', main)
    try:
      done = run_here(module.removeprefix('experiments.'), *words)
      return (done.returncode in (0, None) and bool(parsed)), done.stderr
    except _Parsed:
      return True, ''
    finally:
      os.environ.clear()
      os.environ.update(environment)

  return accepts


@pytest.mark.parametrize('words', _OF_STUDIES, ids=' '.join)
def test_commands_are_accepted(words, accepts):
  module, *arguments = words
  if module == 'sphinx' or _is_template([module]):  # sphinx: the book below
    return
  assert importlib.util.find_spec(module), module
  if module == 'pytest':
    assert all((ROOT / x).exists() for x in arguments if x.endswith('.py')), words
  elif module.startswith('experiments.') and not _is_template(arguments):
    good, message = accepts(module, *arguments)
    assert good, message



# What runs each command of experiments, here without --workdir and variant: a run of
# it in this file, with flags that make it small; or another test.
RUN_HERE = {
    'experiments': '',
    'experiments.benchmarks.league_arms': '--rounds=1 --steps=2 --arms log_n',
    'experiments.benchmarks.checkpoint_loading': '--rounds=1',
    'experiments.benchmarks.embedding_updates': '--rounds=1',
    'experiments.benchmarks.text_memory': '--gigabytes 0.001 0.002',
    'experiments.benchmarks.accelerator --minutes=25':
        '--tiny --only=chunked_loss --workdir={folder}',
    'experiments.benchmarks.lora_step': '--length=8 --rank=2 --rounds=1',
    'experiments.benchmarks.counting_training': '--tiny --rounds=1 --seconds=0.1',
    'experiments.benchmarks.retrieval_evaluation':
        '--sequences=1 --long_sequences=1 --rounds=1 --seconds=0.1',
    'experiments.benchmarks.llama_training': '--tiny --rounds=1',
    'experiments.benchmarks.quick': '--variant=smoke',
}
# Packages that some of these need.
NEEDS = {'experiments.benchmarks.lora_step': ('qwix',),
         'experiments.benchmarks.llama_training': ('torch', 'transformers')}
_RETRIEVAL = 'experiments.length_generalization --config=configs/retrieval.py'
_MECHANISM = 'experiments.mechanism --config=configs/mechanism.py'
_EVERY_ROW = 'test_accelerator.py::test_every_row_runs'
_LONGBENCH = ('test_long_context_longbench.py::'
              'test_longbench_cuts_the_middle_and_runs_what_can_be_run')
RUN_BY = {
    'experiments.adapt --config=configs/adapt.py '
    '--config.checkpoint=runs/language_model/models/alpha_0/seed_0':
        'test_adapt.py::test_the_command_runs_and_measures_lost_rows_again',
    'experiments.adapt --config=configs/adapt.py '
    '--config.checkpoint=runs/language_model/models/alpha_0/seed_0 '
    '--config.arms.yarn_alpha_0_1.weight=0.3':
        'test_adapt.py::test_an_arm_may_have_another_weight',
    'experiments.adapt --config=configs/adapt.py '
    '--config.checkpoint=runs/stories260K --config.text.path=runs/war_and_peace.txt':
        'test_adapt.py::test_arms_of_two_folders_are_joined_to_the_run_of_one',
    'experiments.import_llama2c stories260K.bin tok512.bin runs/stories260K':
        'test_llama2c.py::test_the_real_model_and_its_tokenizer',
    'experiments.join runs/first runs/second':
        'test_join.py::test_the_committed_family_is_the_same_after_it_was_divided',
    'experiments.report':
        'test_recency_bias.py::test_the_report_is_remade_from_the_folder',
    'experiments.benchmarks.chunked_loss': _EVERY_ROW,
    'experiments.benchmarks.llama_generation': _EVERY_ROW,
    'experiments.benchmarks.recency_simulation': _EVERY_ROW,
    'experiments.benchmarks.retrieval_training': _EVERY_ROW,
    'experiments.benchmarks.retrieval_training --task=lookup': _EVERY_ROW,
    'experiments.benchmarks.scaling':
        'test_benchmarks.py::test_two_processes_share_the_seeds_of_one_run',
    'experiments.benchmarks.time_of_run recency_bias --config=configs/recency_bias.py':
        'test_benchmarks.py::test_a_run_is_divided_into_parts',
    'experiments.compile --topology=v5e:4x8 --experiment=retrieval':
        'test_compile.py::test_an_ensemble_compiles_for_a_slice',
    'experiments.compile --topology=v5p:4x4x4 --experiment=llama_2_7b_4096':
        'test_compile.py::test_a_step_of_a_small_llama_compiles_for_a_slice',
    'experiments.correlation --config=configs/correlation.py':
        'test_correlation.py::test_a_run_leaves_what_it_says',
    'experiments.counting --config=configs/counting.py':
        'test_counting_experiment.py::test_a_run_writes_its_numbers_tables_and_figures',
    'experiments.language_model --config=configs/language_model.py':
        'test_language_model.py::test_a_run_leaves_what_it_says',
    'experiments.language_model --config=configs/language_model.py '
    '--config.train.seeds_at_once=0':
        'test_language_model.py::test_eight_devices_train_as_one',
    'experiments.length_generalization --config=configs/lookup.py':
        'test_mechanism.py::test_a_trained_run_is_measured_as_it_is',
    _RETRIEVAL: 'test_readme.py::test_readme_first_command',
    f'{_RETRIEVAL} --config.num_seeds=64':
        'test_length_generalization.py::'
        'test_adding_seeds_changes_nothing_and_compiles_nothing_twice',
    f'{_RETRIEVAL} --config.task.name=docs/examples/second_largest.py':
        'test_own_task.py::test_it_is_trained_measured_and_reported_under_its_name',
    f'{_RETRIEVAL} --config.num_seeds=8 --config.train.seeds_at_once=8':
        'test_padding.py::test_results_are_the_same_on_any_number_of_devices',
    'experiments.league --config=configs/league.py':
        'test_league.py::test_a_league_runs_and_resumes_to_the_same_results',
    'experiments.league --config=configs/league.py '
    '--config.arms.mine=docs/examples/my_attention.py':
        'test_league.py::test_a_league_runs_and_resumes_to_the_same_results',
    'experiments.linear_attention --config=configs/linear_attention.py':
        'test_linear_attention_experiment.py::'
        'test_a_run_writes_its_numbers_tables_and_figure',
    **{f'experiments.long_context --suite={suite} --checkpoint=DIR{more}':
       f'test_long_context_run.py::{test}' for suite, more, test in (
           ('passkey', '', 'test_a_run_leaves_what_it_says'),
           ('babilong', '', 'test_other_suites_run'),
           ('babilong', ' --config.parts=() --config.most_facts=4 '
            '--config.lengths=(192,256,512,1024)', 'test_other_suites_run'),
           ('ruler', '', 'test_other_suites_run'))},
    'experiments.long_context --suite=longbench --checkpoint=DIR --data=FOLDER':
        _LONGBENCH,
    'experiments.long_context --suite=longbench --predictions=FOLDER': _LONGBENCH,
    **{f'experiments.long_context --suite={suite} --predictions=FOLDER':
       'test_long_context_official.py::test_official_files_of_a_run_have_its_scores'
       for suite in ('babilong', 'ruler')},
    'experiments.long_context.ranking runs/ruler runs/other_ruler '
    '--output=runs/ranking':
        'test_ranking.py::test_the_command_prints_and_writes_its_table_without_jax',
    'experiments.long_context.training_text --folder=runs/tasks --documents=150000':
        'test_training_text.py::test_a_model_is_trained_on_it_and_asked',
    'experiments.measure --checkpoint=DIR --text=FILE':
        'test_measure.py::test_a_real_model_shows_what_is_known_of_it',
    f"{_MECHANISM} --config.arms=('none','layer_norm') --config.trained=runs/retrieval":
        'test_mechanism.py::test_a_trained_run_is_measured_as_it_is',
    f'{_MECHANISM} --config.trained=runs/sensitivity/cells/base '
    "--config.arms=('none','layer_norm')":
        'test_vanishing_variance.py::test_a_family_runs_and_goes_on_elsewhere',
    'experiments.recency_bias --config=configs/recency_bias.py':
        'test_recency_bias.py::test_a_run_simulates_every_cell_and_draws_every_figure',
    'experiments.sensitivity --config=configs/sensitivity.py':
        'test_sensitivity.py::test_cells_equal_single_runs_and_may_be_added',
    'experiments.vanishing_variance --config=configs/vanishing_variance.py':
        'test_vanishing_variance.py::test_a_family_runs_and_goes_on_elsewhere',
}


@pytest.mark.slow
def test_every_command_of_experiments_is_run_once():
  found = set()
  for module, *flags in _OF_STUDIES:
    flags = [re.sub(r'\.py:\w+$', '.py', word) for word in flags
             if not word.startswith('--workdir=')]
    if module.startswith('experiments') and not _is_template([module, *flags]):
      found.add(' '.join([module, *flags]))
  assert found == RUN_HERE.keys() | RUN_BY.keys()
  assert len(found) == len(RUN_HERE) + len(RUN_BY)
  for place in RUN_BY.values():
    file, test = place.split('::')
    assert test in _anchors(ROOT / 'tests' / file), place


@pytest.mark.slow
@pytest.mark.parametrize('command', RUN_HERE)
def test_commands_run(command, tmp_path):
  for package in NEEDS.get(command, ()):
    pytest.importorskip(
        package, reason=f"needs {package}: pip install '.[lora,oracle]'")
  words = [*command.split(), *RUN_HERE[command].format(folder=tmp_path).split()]
  done = subprocess.run([sys.executable, '-m', *words], cwd=ROOT, capture_output=True,
                        text=True, check=False, timeout=300)
  assert done.returncode == 0, done.stderr
  if command.startswith('experiments.benchmarks.'):  # one JSON object, at the end
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.get('processor') or told['rows']['chunked_loss'] == 'done', told


@pytest.mark.parametrize('words, says', [
    (('experiments.counting', '--config=configs/counting.py:quik', '--workdir=runs/c'),
     'quik'),
    (('experiments.counting', '--config=configs/counting.py', '--workdir=runs/c',
      '--config.num_seed=3'), 'num_seed'),
    (('experiments.adapt', '--config=configs/adapt.py', '--workdir=runs/a',
      '--config.checkpoint=FOLDER', '--config.arms.yarn.method=ntk'),
     'method yarn needs one arm with weight 0'),
    (('experiments.measure', '--checkpoint=DIR', '--txt=FILE', '--workdir=runs/m'),
     'txt'),
])
def test_a_wrong_command_is_found(words, says, accepts):
  good, message = accepts(*words)
  assert not good and says in message


@pytest.mark.slow
def test_python_commands_print_what_the_pages_say():
  found = {}
  for words in _ALL:
    if words[:2] == ('python', '-c'):
      done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True,
                            text=True, check=False, timeout=300)
      assert done.returncode == 0, done.stderr
      found['numpy' in words[2]] = done.stdout
  # Table 1 of arXiv 2506.11769, as docs/long_short_alignment.md has it.
  assert all(number in found[True] for number in ('0.889', '-0.846', '0.616', '-0.557'))
  # The recency probability by layer, as docs/recency_bias.md has it.
  share = [float(x) for x in re.findall(r'\d\.\d+', found[False])]
  np.testing.assert_allclose(share, [0.499, 0.5, 0.114, 0.013], atol=6e-4)



def test_every_metric_and_column_is_explained():
  page = (DOCS / 'metrics.md').read_text()
  names = set(re.findall(r'`(\w+)`', page))
  metrics, columns = set(), set()
  paths = sorted((ROOT / 'experiments/results').glob('*/results.csv*'))
  assert {path.suffix for path in paths} == {'.csv', '.xz'}
  for path in paths:
    with (lzma.open if path.suffix == '.xz' else open)(path, 'rt') as file:
      header, *rows = csv.reader(file)
    metrics |= {row[header.index('metric')] for row in rows}
    columns |= set(header)
  known = {name + end for name in names for end in ('', '_low', '_high', '_error')}
  assert metrics - known == set()
  assert [column for column in columns if column not in page] == []


def test_the_index_leads_to_every_page():
  index = (DOCS / 'index.md').read_text()
  listed = set(re.findall(r'^(\w+)$', index, re.M))
  assert {path.stem for path in DOCS.glob('*.md')} - {'index'} <= listed



class _Page(html.parser.HTMLParser):
  """The local links of a page, and what can be linked to in it."""

  def __init__(self, path):
    super().__init__()
    self.links, self.anchors = [], set()
    self.feed(path.read_text())

  def handle_starttag(self, tag, attributes):
    attributes = dict(attributes)
    self.anchors |= {attributes.get('id'), attributes.get('name')}
    for name in ('href', 'src'):
      if attributes.get(name):
        self.links.append(attributes[name])


def _dead_in_book(folder):
  pages = {path: _Page(path) for path in folder.rglob('*.html')
           if '_static' not in path.parts}
  dead = []
  for path, page in pages.items():
    for link in page.links:
      url = urllib.parse.urlsplit(link)
      if url.scheme or link.startswith('//'):
        continue
      there = path.parent / urllib.parse.unquote(url.path) if url.path else path
      there = pathlib.Path(os.path.normpath(there))
      anchors = pages[there].anchors if there in pages else set()
      if not there.exists() or (url.fragment and there.suffix == '.html'
                                and url.fragment not in anchors):
        dead.append(f'{path.relative_to(folder)}: {link}')
  return dead


@pytest.fixture(scope='module')
def book(tmp_path_factory, fast_compilation):
  """The built book; its tour has been run."""
  for module in ('latex2mathml', 'myst_nb', 'sphinx', 'sphinx_book_theme'):
    pytest.importorskip(module, reason=f"needs {module}: pip install '.[docs]'")
  folder = tmp_path_factory.mktemp('book')
  done = subprocess.run(
      [sys.executable, '-m', 'sphinx', '-W', '-n', '--keep-going', '-q', 'docs',
       f'{folder}/html'],
      cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
  assert done.returncode == 0, done.stderr
  return folder / 'html'


@pytest.mark.slow
def test_the_book_has_no_dead_links(book):
  assert _dead_in_book(book) == []
  source = (book / '_modules/vvlen/objectives/misalignment.html').read_text()
  assert 'id="misalignment_loss"' in source


@pytest.mark.slow
def test_equations_need_no_network(book):
  page = (book / 'equations.html').read_text()
  assert page.count('<math ') > 60
  assert not re.search('<script[^>]*mathjax', page, re.I)
  # TeX that the converter does not know is left as it is.
  for equation in re.findall('<math .*?</math>', page, re.S):
    assert '\\' not in equation and '<mi>&' not in equation.replace('&#', '')


@pytest.mark.slow
def test_what_the_tour_says_is_what_it_prints(book):
  tour = json.loads((book.parent / 'jupyter_execute/tour.ipynb').read_text())
  cells = [cell for cell in tour['cells'] if cell['cell_type'] == 'code']
  assert len(cells) == 10
  printed = ''.join(''.join(output['text']) for cell in cells
                    for output in cell['outputs'] if output['output_type'] == 'stream')
  numbers = lambda start: [float(x) for x in re.findall(
      r'-?\d+\.\d+', re.search(f'{start}.*', printed)[0].removeprefix(start))]
  [slope], = [numbers('slope of the variance from N = 256 on')]
  assert -1.2 < slope < -0.8
  baseline, layer_norm = (numbers(f'{norm}: variance over features after the norm')
                          for norm in ('none', 'layer_norm'))
  assert baseline[1] < 0.7 * baseline[0] and layer_norm[1] > 0.9 * layer_norm[0]
  assert numbers('Baseline, adaptive temperature:')[0] > 0
  without, norm = numbers('without LayerNorm'), numbers('with LayerNorm')
  assert max(without[2:]) < 0.2
  assert 0.5 < norm[1] - 0.04 < norm[2] - 0.08 < norm[3] - 0.1
  plain, term = (np.array([numbers(f'weight {weight}, {metric}') for metric in
                           ('sce', 'symmetric_kl')]) for weight in ('0.0', '0.1'))
  assert (term[0] < plain[0]).all()
  assert (plain[1] < plain[0] / 50).all() and (term[1] < term[0] / 50).all()
  assert not (term[1] < plain[1]).all()
  assert sum(output['output_type'] == 'display_data' for cell in cells
             for output in cell['outputs']) == 5
