r"""Mean, length and sum of bits: which positions and targets generalize to longer ones?

Figures 1a-c, 4, 5 and 6 of arXiv 2506.11769, with intervals and tests.

  python -m experiments.counting --config=configs/counting.py:quick \
      --workdir=runs/counting

variant   seeds  layers x width, batch, steps  cost
(none)    100    4 x 128, 256, 20,000          for a GPU; not run yet
cpu       8      2 x 64, 64, 5,000             84 minutes on two busy CPU cores
quick     4      2 x 64, 64, 5,000             mean, three encodings, 2 to 5 minutes
smoke     2      2 x 16, 8, 20                 checks that it runs; mostly compiling
TASK      100    4 x 128, 256, 20,000          for a GPU; not run yet
cpu_TASK  8      2 x 64, 64, 5,000             one task of cpu; not measured alone yet

Models are trained on pairs of strings that have N + 1 bits together
(`vvlen.tasks.counting.sample_packed`): all lengths from 1 to N are equally likely, but
the two lengths of a pair depend on each other.

TASK is mean, length or sum: the figures of one task alone. smoke_TASK is the same for
smoke, and quick_mean is quick. The paper reports neither sizes nor optimizer.
"""

import ml_collections
from ml_collections import config_dict

TASKS = ('mean', 'length', 'sum')
POSITIONS = ('none', 'learned', 'alibi', 'rope')
REPARAMETERIZATIONS = ('identity', 'sqrt', 'log', 'inverse_sqrt')
TRAIN_LENGTHS = (5, 10, 20, 40)


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  size, _, task = variant.rpartition('_')
  if task not in TASKS:
    size, task = variant, ''
  size = size or 'paper'
  config = config_dict.create(
      seed=0,
      num_seeds=100,  # may grow later
      figures=dict(
          figure_1a=_figure('mean', positions=POSITIONS),
          figure_1b=_figure('length', positions=POSITIONS),
          figure_1c=_figure('length', reparameterizations=REPARAMETERIZATIONS),
          figure_4_length=_figure('length', train_lengths=TRAIN_LENGTHS),
          figure_4_sum=_figure('sum', train_lengths=TRAIN_LENGTHS),
          figure_5=_figure('sum', reparameterizations=REPARAMETERIZATIONS),
          figure_6=_figure('mean', counts='uniform', positions=POSITIONS),
      ),
      model=dict(num_layers=4, width=128, num_heads=4, mlp_factor=4, norm='none'),
      train=dict(
          batch_size=256,  # strings, two to a row (`vvlen.tasks.counting`)
          num_steps=20_000,
          steps_per_call=500,  # learning curves have one point per call
          seeds_at_once=100,  # trained together, divided among the devices
          group_size=100,  # the most seeds in one vmap; 1 on a CPU
          save_every_seconds=60.0,  # at most this much is lost to a crash
      ),
      optimizer=dict(
          learning_rate=1e-3,  # decays to 0 at the last step, by a cosine schedule
          weight_decay=0.01,  # decoupled, on kernels alone
      ),
      evaluate=dict(
          max_length=50,  # all lengths from 1 to this one are tested
          num_sequences=2000,  # per seed, shared by its arms; all strings up to 10 bits
          # At these numbers of bits, the temperature that each head needs, and what it
          # changes beyond training; None: none.
          temperature_lengths=config_dict.placeholder(tuple),
      ),
  )
  if size in ('cpu', 'quick'):
    config.num_seeds = 8
    config.model.update(num_layers=2, width=64)
    config.train.update(batch_size=64, num_steps=5_000, steps_per_call=250,
                        seeds_at_once=8, group_size=1)
  if size == 'quick':
    config.num_seeds = config.train.seeds_at_once = 4
    encodings = ('none', 'alibi', 'rope')
    config.evaluate.temperature_lengths = (10, 20, 35, 50)
    config.figures = dict(figure_1a=_figure('mean', positions=encodings))
  elif size == 'smoke':
    config.num_seeds = 2
    config.model.update(num_layers=2, width=16)
    config.train.update(batch_size=8, num_steps=20, steps_per_call=5, seeds_at_once=2,
                        group_size=1)
    config.evaluate.update(
        max_length=12, num_sequences=40, temperature_lengths=(5, 10, 12))
    config.figures = dict(
        figure_1a=_figure('mean', positions=POSITIONS),
        figure_4_length=_figure('length', train_lengths=(5, 10)),
        figure_5=_figure('sum', reparameterizations=('identity', 'inverse_sqrt')),
    )
  elif size not in ('paper', 'cpu'):
    raise ValueError(
        f'variant must be paper, cpu, quick or smoke, a task ({", ".join(TASKS)}), or '
        f'both as in cpu_length; without a variant it is paper: {variant!r}')
  if task:
    config.figures = {n: f for n, f in config.figures.items() if f.task == task}
    if not config.figures:
      raise ValueError(f'{size} has no figure of {task}')
  return config


def _figure(
    task: str,
    counts: str = 'fair',
    positions: tuple[str, ...] = ('none',),
    reparameterizations: tuple[str, ...] = ('identity',),
    train_lengths: tuple[int, ...] = (10,),
) -> dict[str, object]:
  """Returns one figure; the field that has several values gives it its lines."""
  return dict(task=task, counts=counts, positions=positions,
              reparameterizations=reparameterizations, train_lengths=train_lengths)
