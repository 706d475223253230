r"""Which change of attention carries to longer inputs, and which temperature?

  python -m experiments.league --config=configs/league.py:quick --workdir=runs/league

variant   seeds  steps    cost
(none)    100    20,000   for a GPU; not measured yet
cpu       32     4,000    retrieval some 3 hours on two CPU cores; the others, from the
                          time of a step, some 2, 4 and 8 to 11 hours: not run yet
quick     8      2,000    six arms, retrieval; 5.4 minutes on two CPU cores
smoke     2      20       three arms, retrieval; checks that it runs

First, the learning rate of each arm is chosen on seeds of their own, by the loss at the
training lengths; then fresh seeds are trained at that rate. The primary endpoint of an
arm is arm minus softmax, paired over seeds, in mean accuracy over the test lengths
beyond training; p by Holm over the arms of a task. All of it is fixed beforehand: a
folder of another family is refused.

--config.run_tasks="('retrieval',)" and --config.run_arms="('softmax','log_n')" choose
what is run now. --config.arms.mine=docs/examples/my_attention.py:attend adds an arm, of
another family. Checkpoints are deleted when a block of seeds is measured.
"""

import ml_collections
from ml_collections import config_dict

from configs import retrieval

# What they are: experiments/league/arms.py.
ARMS = (
    'softmax', 'layer_norm', 'standardize', 'rms_norm', 'ssmax', 'log_n', 'sqrt_log_n',
    'power', 'linear', 'adaptive', 'l2_softmax', 'entmax', 'sigmoid', 'sink', 'qk_norm',
    'qk_norm_log_n', 'gated', 'ssmax_layer_norm', 'log_n_layer_norm',
    'sqrt_log_n_layer_norm', 'power_layer_norm', 'linear_layer_norm',
    'adaptive_layer_norm',
)
FEW = ('softmax', 'layer_norm', 'log_n', 'power', 'entmax', 'linear')


def get_config(variant: str = 'paper') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  if variant not in ('paper', 'cpu', 'quick', 'smoke'):
    raise ValueError(
        'variant must be paper, cpu, quick or smoke; '
        f'without a variant it is paper: {variant!r}')
  arms = {'quick': FEW, 'smoke': ('softmax', 'layer_norm', 'power')}.get(variant, ARMS)
  tasks = dict(
      retrieval=dict(task=dict(name='retrieval', num_classes=10)),
      lookup=dict(task=dict(name='lookup', num_classes=10, num_keys=16384)),
      associative_recall=dict(task=dict(
          name='associative_recall', num_classes=64, num_keys=16384, num_queries=4)),
      # 64 symbols, so that sets have fewer.
      set_complement=dict(
          task=dict(name='set_complement', num_classes=64),
          evaluate=dict(lengths=(16, 24, 32, 40, 48, 56, 60))),
  )
  paper = retrieval.get_config()
  config = config_dict.create(
      seed=2,  # of the contest: weights and data are new, not those of earlier runs
      num_seeds=100,  # pairs in the tests
      tune=dict(
          seed=3,  # of the tuning
          num_seeds=8,  # so that a rate at which some seeds collapse seldom looks best
          rates=(3e-4, 1e-3, 3e-3, 1e-2),  # decaying linearly to 0
      ),
      # 'built in', or FILE.py:FUNCTION of one's own; mine='' is none.
      arms=dict({arm: 'built in' for arm in arms}, mine=''),
      base=dict(
          model=paper.model.to_dict(),
          train=paper.train.to_dict() | dict(num_steps=20_000),
          optimizer=dict(l2=0.0),
          evaluate=dict(
              lengths=paper.evaluate.lengths,
              num_sequences=paper.evaluate.num_sequences,
          ),
      ),
      tasks=tasks,  # what each one changes in base
      claim=dict(
          control='softmax', metric='accuracy',
          level=0.05, correction='holm',  # over the arms of a task
      ),
      run_tasks=(),  # names of tasks; (): all
      run_arms=(),  # names of arms; (): all
  )
  base = config.base
  if variant == 'cpu':
    config.num_seeds = 32
    # As many as are tuned at once: one program for both.
    base.train.update(
        num_steps=4_000, steps_per_call=200, seeds_at_once=32, group_size=1,
        save_every_seconds=300.0)  # 400 MB in lookup
    base.evaluate.num_sequences = 512
  elif variant == 'quick':
    config.num_seeds, config.tune.num_seeds = 8, 2
    base.train.update(
        num_steps=2_000, steps_per_call=100, seeds_at_once=8, group_size=1)
    base.evaluate.update(lengths=tuple(4**k for k in range(2, 8)), num_sequences=128)
  elif variant == 'smoke':
    config.num_seeds, config.tune.num_seeds = 2, 1
    config.tune.rates = (1e-3, 3e-3)
    base.train.update(num_steps=20, steps_per_call=5, seeds_at_once=2, group_size=1)
    base.evaluate.update(lengths=(16, 32, 64), num_sequences=64)
  if variant in ('quick', 'smoke'):
    with config.unlocked():
      config.tasks = dict(retrieval=tasks['retrieval'])
  return config
