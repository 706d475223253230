r"""Does aligning short and long contexts carry language models to longer ones?

Trains a Llama, from scratch or from a checkpoint, with and without the misalignment
term of arXiv 2506.11769 on the same two windows of the same text, and measures it at
multiples of the training length.

  python -m experiments.language_model --config=configs/lm.py:quick --workdir=runs/lm
"""

import math
from typing import Any

from etils import epath
import jax

from experiments import (
    _language_model,
    _lm_sharded,
    _lm_together,
    _run,
    _training,
    report,
)
from experiments._check import naming_fields
from vvlen import partition, results, run_folder, sharding
from vvlen.models.llama_model import check_model
from vvlen.models.norm import KINDS as NORMS
from vvlen.objectives.windows import offset_range
from vvlen.tasks.tokenizers import byte_tokenizer


def main(config: Any, workdir: str) -> None:
  """Runs the experiment, or what is left of it, and writes tables and figures."""
  with naming_fields():
    check(config)
  together = config.train.seeds_at_once > 0
  _run.use_devices(
      config.train.seeds_at_once // config.train.group_size if together else None)
  text = _language_model.read_text(config)
  model = _language_model.make_model(config, text.tokenizer)
  if together:
    mesh = sharding.seed_mesh()
    sharding.check_divisible(config.train.seeds_at_once, mesh, config.train.group_size)
  else:
    mesh = partition.make_mesh(**config.mesh.to_dict())
    _lm_sharded.check(config, mesh)
  folder, first = epath.Path(workdir), jax.process_index() == 0
  _run.first_of_processes(lambda: _claim(config, workdir, text.facts))
  rows = {row[:-1]: row for row in results.read_rows(folder / 'results.csv')}
  done = {(row.arm, row.seed) for row in rows.values()}
  blocks = _training.blocks(config) if together else range(config.num_seeds)
  at_once = config.train.seeds_at_once if together else 1
  todo = [
      (name, block) for name in config.arms for block in blocks
      if any((name, seed) not in done
             for seed in range(block, min(block + at_once, config.num_seeds)))
  ]
  steps = (_lm_together if together else _lm_sharded).num_steps
  total = at_once * sum(steps(config, config.arms[name]) for name, _ in todo)
  print(f'{len(todo)} of {len(config.arms) * len(blocks)} trainings to do. '
        f'{"Compiling first." if todo else ""}', flush=True)
  with _run.Progress(total, 'seed-steps') as progress:
    for name, block in todo:
      if together:
        new = _lm_together.run_arm(
            config, name, [block], model, text, mesh, folder, progress)
      else:
        new = _lm_sharded.run_seed(
            config, name, block, model, text, mesh, folder, progress)
      rows |= {row[:-1]: row for row in new}
      if first:
        results.write_rows(folder / 'results.csv', _sorted(config, rows))
  if first:
    report.show(workdir)
    run_folder.finish(workdir, finished=_run.now())


def _claim(config: Any, workdir: str, facts: dict[str, Any]) -> None:
  """Makes the folder this run's, or raises."""
  _run.lock(workdir)
  before = run_folder.claim(
      workdir, config.to_dict(), {**_run.session(), **facts}, may_grow=['num_seeds'],
      may_differ=['train.save_every_seconds', 'train.save_every_steps', 'mesh.data',
                  'mesh.fsdp', 'mesh.tensor'],
  )
  if before and before['num_seeds'] < config.num_seeds:
    print(_training.SEEDS_ADDED)


def _sorted(config: Any, rows: dict[Any, results.Row]) -> list[results.Row]:
  """Returns rows in an order that does not depend on that of computing."""
  arms = list(config.arms)
  return sorted(rows.values(), key=lambda row: (
      arms.index(row.arm), row.seed, row.length or 0, row.metric))


def check(config: Any) -> None:
  """Raises ValueError on a configuration that cannot run."""
  _check_numbers(config)
  length = config.train.max_length
  if config.control not in config.arms:
    raise ValueError(f'config.control {config.control!r} is none of config.arms')
  for name, arm in config.arms.items():
    if not name.replace('_', '').isalnum():
      raise ValueError(f'config.arms: a name has letters, digits and _: {name!r}')
    offset_range(length, tuple(arm.offsets))
    if not 0 <= arm.weight < math.inf:
      raise ValueError(f'config.arms.{name}.weight must be finite and not negative: '
                       f'{arm.weight}')
    if not 0 < arm.steps <= 10:
      raise ValueError(f'config.arms.{name}.steps must lie in 0..10: {arm.steps}')
  if config.train.dtype not in ('float32', 'bfloat16'):
    raise ValueError('config.train.dtype must be float32 or bfloat16: '
                     f'{config.train.dtype!r}')
  if config.model.norm not in NORMS:
    raise ValueError(f'config.model.norm must be of {", ".join(NORMS)}: '
                     f'{config.model.norm!r}')
  lengths = list(config.evaluate.lengths)
  if not lengths or sorted(set(lengths)) != lengths or lengths[0] < 1:
    raise ValueError(f'config.evaluate.lengths must be rising multiples: {lengths}')
  for share in config.evaluate.offsets:
    if not 1 <= int(share * length) <= length // 2 - 1:
      raise ValueError('config.evaluate.offsets must be shares of the length that '
                       f'leave 1..{length // 2 - 1} of {length}: {share}')
  for name, steps in (('train.num_steps', config.train.num_steps),
                      ('evaluate.every_steps', config.evaluate.every_steps)):
    if config.train.seeds_at_once and steps % config.train.steps_per_call:
      raise ValueError(f'config.{name} {steps} must be a multiple of '
                       f'config.train.steps_per_call {config.train.steps_per_call}')
  if not config.checkpoint:
    check_model(_language_model.make_model(config, byte_tokenizer()))


_LEAST = {
    'num_seeds': 2, 'seed': 0, 'train.max_length': 4, 'train.batch_size': 1,
    'train.num_steps': 1, 'train.steps_per_call': 1, 'train.seeds_at_once': 0,
    'train.group_size': 1, 'train.save_every_steps': 1, 'train.parts': 1,
    'evaluate.every_steps': 1, 'evaluate.num_segments': 1, 'optimizer.warmup_steps': 0,
    'model.num_layers': 1, 'model.width': 1, 'model.mlp_width': 1,
    'model.num_heads': 1, 'model.num_key_heads': 1,
}


def _check_numbers(config: Any) -> None:
  fields = run_folder.flatten(config.to_dict())
  for name, least in _LEAST.items():
    value = fields[name]
    if type(value) is not int or value < least:
      raise ValueError(
          f'config.{name} must be a whole number from {least} on: {value!r}')


if __name__ == '__main__':
  _run.run(main, needs=('arms', 'text', 'model', 'train', 'optimizer', 'evaluate'))
