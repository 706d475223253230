"""What can be run is listed, with the fields that there really are."""

import os
import re
import runpy
import subprocess
import sys

import pytest

from experiments.harness import help as help_texts
from tests.conftest import ROOT
from vvlen.reporting.run_folder import flatten


def test_every_study_and_its_variants_are_listed():
  text = help_texts.studies()
  files = [path.name for path in (ROOT / 'configs').glob('*.py')]
  assert sorted(re.findall(r'^configs/(\w+\.py)\n.+[.?]$', text, re.MULTILINE)) == (
      sorted(files))
  modules = {*re.findall(r'python -m experiments\.(\w+) ', text)}
  others = {'report', 'join', 'compile'}
  assert modules >= others
  studies = modules - others
  assert studies == {path.parent.name
                     for path in (ROOT / 'experiments').glob('*/report.py')
                     if path.parent.name != 'compile'}
  for name in ('retrieval', 'lookup'):
    listed = text.partition(f'configs/{name}.py')[2].partition('\n\n\n')[0]
    for variant in ('growing', 'cpu_growing', 'quick_growing', 'smoke_growing'):
      assert re.search(rf'^{variant} +\d+ ', listed, re.MULTILINE)
  assert re.search(r'^quick +8 +\S+ +.*minutes', text, re.MULTILINE)
  assert max(map(len, text.splitlines())) <= 88


@pytest.mark.parametrize('name, variant', [
    ('counting', 'quick'), ('retrieval', ''), ('language_model', 'finetune')])
def test_help_lists_the_fields_of_a_variant(name, variant):
  given = f'configs/{name}.py' + (f':{variant}' if variant else '')
  text = help_texts.fields(['x', f'--config={given}'], 'configs/lookup.py')
  make = runpy.run_path(str(ROOT / f'configs/{name}.py'))['get_config']
  config = flatten(make(*[variant] * bool(variant)).to_dict())
  joined = re.sub(r'\n {8}', ' ', text)  # long values go on in the next line
  listed = dict(re.findall(
      r'^  --config\.(\S+?)=(.*)  \(\w+\)$', joined, re.MULTILINE))
  assert listed == {field: repr(value) for field, value in config.items()}
  assert max(map(len, text.splitlines())) <= 88
  assert f'All fields of {given}:' in text and 'variant' in text


def test_without_a_config_the_one_of_the_command_is_shown():
  text = help_texts.fields(['x', '--help'], 'such as configs/lookup.py:quick')
  assert 'All fields of configs/lookup.py:' in text
  assert '--config.num_seeds=100  (int)' in text
  assert help_texts.fields(['x', '--config=nowhere.py'], '') == ''


def test_a_command_that_the_study_has_shown_is_not_repeated():
  command = '  python -m experiments.mechanism --config=configs/mechanism.py \\\n'
  text = help_texts.fields(['x'], 'configs/mechanism.py')
  assert text.startswith('Which change') and command in text
  shown = text.partition('\n\n')[2].partition('\n\n')[0]  # its command
  less = help_texts.fields(['x'], f'What helps?\n\n{shown}')
  assert 'Which change' not in less and command not in less
  assert less in text and 'variant' in less and 'All fields of' in less


@pytest.mark.slow
def test_help_of_an_unknown_variant_is_one_line():
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.counting', '--help',
       '--config=configs/counting.py:huge'], cwd=ROOT, capture_output=True, text=True,
      check=False)
  assert (done.returncode, done.stdout) == (2, '')
  assert len(done.stderr.splitlines()) == 1 and 'huge' in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('command', [
    'experiments', 'experiments.length_generalization --help'])
def test_a_reader_may_close_the_pipe_as_head_does(command):
  read, write = os.pipe()
  os.close(read)
  done = subprocess.run(
      [sys.executable, '-m', *command.split()], cwd=ROOT, stdout=write,
      stderr=subprocess.PIPE, text=True, check=False)
  os.close(write)
  assert (done.returncode, done.stderr) == (0, '')
