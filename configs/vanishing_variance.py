r"""Tests whether LayerNorm after attention helps at longer inputs (arXiv 2504.02827).

A family of settings that was fixed before any of its results were seen: cells, seeds,
primary endpoint, correction, and the smallest effect of interest.

  python -m experiments.vanishing_variance --config=configs/vanishing_variance.py \
      --workdir=runs/vanishing_variance

variant   cost
(none)    some twelve hours on two CPU cores, minutes on a GPU; resumes after the
          last block of seeds
smoke     checks that it runs; a few minutes, mostly compiling

--config.run="('base',)" chooses cells; without it, all are run. The primary endpoint of
a cell is LN minus Baseline, paired over seeds, in mean accuracy over the test lengths
beyond training: 2^5 to 2^14 (2^9 to 2^14 if lengths grow to 256). It is measured after
the last step, with the final weights, not averaged ones.
"""

import ml_collections
from ml_collections import config_dict

from configs import lookup, retrieval


def get_config(variant: str = 'family') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  if variant not in ('family', 'smoke'):
    raise ValueError(
        'variant must be family or smoke; '
        f'without a variant it is family: {variant!r}')
  base = retrieval.get_config('smoke' if variant == 'smoke' else 'cpu')
  base.seed = 1  # weights and data are new, not those of earlier runs
  base.arms = ('none', 'layer_norm')
  base.evaluate.fit_lengths = ()
  if variant != 'smoke':
    base.train.steps_per_call = 1_000
    base.evaluate.num_sequences = 512
  task = lookup.get_config('smoke' if variant == 'smoke' else 'cpu').task.to_dict()

  # The learning rate is 1e-3 and constant unless `decays`.
  def cell(at_steps, num_seeds=32, l2=0.0, l2_on='kernels', decays=False, **changes):
    if variant == 'smoke':
      at_steps, num_seeds = [10 * (i + 1) for i in range(len(at_steps))], 2
    rate = dict(learning_rate=3e-3, decay_steps=at_steps[-1]) if decays else {}
    train = dict(num_steps=at_steps[-1], averaged_at=tuple(at_steps))
    return changes | dict(
        num_seeds=num_seeds,
        optimizer=dict(l2=l2, l2_on=l2_on, **rate),
        train=train | changes.get('train', {}),
    )

  long = (10_000, 20_000, 40_000, 100_000)
  cells = dict(
      base=cell(long),
      l2=cell(long, l2=1e-3),
      l2_all=cell(long, l2=1e-3, l2_on='all', num_seeds=16),
      decay=cell((100_000,), decays=True, num_seeds=16),
      l2_decay=cell((100_000,), l2=1e-3, decays=True, num_seeds=16),
      output_projection=cell(
          (10_000, 20_000, 40_000), model=dict(output_projection=True)
      ),
      lookup=cell((20_000,), decays=True, task=task),
      lookup_l2=cell((20_000,), l2=1e-3, decays=True, task=task),
      growing=cell(
          (20_000,), decays=True, num_seeds=16,
          train=dict(
              first_max_length=16, max_length=32 if variant == 'smoke' else 256
          ),
      ),
  )
  return config_dict.create(
      base=base,
      cells=cells,  # what each one changes in base; measured at train.averaged_at
      claim=dict(
          control='none', treated='layer_norm', metric='accuracy',
          level=0.05, correction='bonferroni',  # over the cells, at their last step
          equivalence=1.0,  # points: the smallest effect of interest
      ),
      mechanism=dict(
          cells=('base', 'l2', 'lookup', 'lookup_l2'),  # after their last step
          lengths=(16, 32) if variant == 'smoke' else tuple(4**k for k in range(2, 8)),
          num_sequences=64 if variant == 'smoke' else 1024,
          moment_sequences=64 if variant == 'smoke' else 4096,
          select_sequences=64 if variant == 'smoke' else 1024,
      ),
      run=(),  # names of cells; (): all
  )
