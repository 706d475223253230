"""A checkpoint may be measured with other positions than its own."""

import json

from ml_collections import config_dict
import numpy as np
import pytest

from configs import long_context, measure
from experiments.harness import positions
from tests.llamas import llama, ROPES, variables_of
from vvlen.models.llama import save_checkpoint
from vvlen.models.rope import extended, Rope
from vvlen.reporting import results

_MODEL = llama(vocab_size=264, rope=ROPES['default'])


def _chosen(**fields):
  return config_dict.create(**{
      'kind': 'none', 'factor': 1.0, 'original_length': 0, **fields})


@pytest.mark.parametrize('config', [
    measure.get_config(), *(long_context.get_config(x) for x in long_context.SUITES)])
def test_by_default_they_are_its_own(config):
  assert config.rope == _chosen()
  assert positions.measured_with(config.rope, _MODEL) is _MODEL


@pytest.mark.parametrize('kind', [x for x in positions.KINDS if x != 'none'])
def test_positions_are_extended_from_the_length_of_the_checkpoint_or_a_given_one(kind):
  for given, original in ((0, _MODEL.max_length), (12, 12)):
    chosen = _chosen(kind=kind, factor=3.0, original_length=given)
    made = positions.measured_with(chosen, _MODEL)
    assert made.rope == extended(_MODEL.rope, kind, 3.0, original)
    assert made.clone(rope=_MODEL.rope) == _MODEL


@pytest.mark.parametrize('rope, says', [
    (None, 'no rotary positions'),
    (extended(Rope(), 'linear', 2.0, 8), 'extended already')])
def test_positions_that_cannot_be_extended_are_refused(rope, says):
  with pytest.raises(ValueError, match=f'config.rope.kind yarn: .*{says}'):
    positions.measured_with(_chosen(kind='yarn', factor=2.0), _MODEL.clone(rope=rope))


@pytest.mark.slow
def test_measurements_are_those_of_a_checkpoint_that_has_them(
    tmp_path, fast_compilation, run_here):
  variables = variables_of(_MODEL)
  stretched = _MODEL.clone(rope=extended(_MODEL.rope, 'linear', 4.0, 8))
  for name, model in (('plain', _MODEL), ('stretched', stretched)):
    save_checkpoint(tmp_path / name, model, variables)
  text = tmp_path / 'text.txt'
  text.write_text(' '.join(map(str, range(3000))))

  def values(name, *arguments):
    folder = tmp_path / f'{name}{len(arguments)}'
    done = run_here('measure', '--config=configs/measure.py:smoke',
                    f'--checkpoint={tmp_path / name}', f'--text={text}',
                    f'--workdir={folder}', *arguments)
    assert done.returncode == 0, done.stderr
    rows = results.read_rows(folder / 'results.csv')
    return np.array([row.value for row in rows]), json.loads(
        (folder / 'config.json').read_text())['config']['rope']

  own, _ = values('plain')
  expected, _ = values('stretched')
  found, rope = values('plain', '--config.rope.kind=linear', '--config.rope.factor=4')
  np.testing.assert_array_equal(found, expected)
  assert rope == {'kind': 'linear', 'factor': 4.0, 'original_length': 0}
  assert own.shape == found.shape and not np.array_equal(own, found)
