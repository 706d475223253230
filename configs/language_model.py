r"""Does aligning short and long contexts help language models at longer ones?

Our experiments for section 5 of arXiv 2506.11769, compared with its Tables 2, 6, 7, 9
and 10.

  python -m experiments.language_model --config=configs/language_model.py:quick \
      --workdir=runs/language_model

variant     seeds  layers x width, L, batch, steps  cost
(none)      5      4 x 256, 128, 32, 10,000         the paper's three ablations; for a
                                                    GPU, not run yet
cpu         6      2 x 128, 64, 16, 2,000           the same on two busy CPU cores, 111
                                                    minutes
quick       4      2 x 128, 64, 16, 600             α = 0 and α = 0.1, 4 minutes
smoke       2      1 x 16, 8, 4, 8                  checks that it runs
finetune    2      config.checkpoint, one seed at a time, over a mesh of all devices;
                   not measured yet

If config.train.seeds_at_once is positive, seeds are trained together, on windows that
begin anywhere in the text. If it is 0, they are trained one at a time, on blocks of the
text, which Grain shuffles differently for each seed. Without config.text.path the
corpus is the source code of the Python standard library, which differs by version: do
not compare results across versions of Python.
"""

import ml_collections
from ml_collections import config_dict

HALF = (0.0, 0.5)


def get_config(variant: str = 'full') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      seed=0,
      num_seeds=5,  # may grow later
      control='alpha_0',
      # α, range of offsets as fractions of L, steps as a share of train.num_steps.
      arms=dict(
          alpha_0=_arm(0.0),
          alpha_0_1=_arm(0.1),
          alpha_0_3=_arm(0.3),
          alpha_0_5=_arm(0.5),
          alpha_1=_arm(1.0),
          offsets_quarter=_arm(0.1, offsets=(0.0, 0.25)),
          offsets_second_quarter=_arm(0.1, offsets=(0.25, 0.5)),
          offsets_whole=_arm(0.1, offsets=(0.0, 1.0)),
          # As many steps as the control's time allows: in the paper 190 instead of
          # 200. This is about right here too: a step with the term takes 4.7 to 6.4 %
          # longer than the fastest step without it
          # (experiments/benchmarks/regularizer_cost.py).
          equal_time=_arm(0.1, steps=0.95),
      ),
      # Folder or ORG/NAME of a model to train further, only for seeds one at a time.
      checkpoint='',
      text=dict(
          path='',  # a file, folder or .jsonl file; '': sources of the standard library
          tokenizer='',  # tokenizer.json or its folder; '': the checkpoint's, or bytes
          # Whether each window is of one document; only for seeds one at a time.
          within_documents=False,
          held_out=0.05,  # share of the text that is kept for evaluation
      ),
      model=dict(
          num_layers=4, width=256, mlp_width=688, num_heads=4, num_key_heads=4,
          norm='none', rope_base=10_000.0, tied=True,
      ),
      train=dict(
          max_length=128,  # L; two windows of L tokens are read from each stream
          batch_size=32,  # in streams
          num_steps=10_000,
          steps_per_call=250,  # learning curves have one point per call
          seeds_at_once=5,  # trained together; 0: one at a time, over config.mesh
          group_size=5,  # the most seeds in one vmap; 1 on a CPU
          save_every_seconds=60.0,
          save_every_steps=500,  # for seeds one at a time
          parts=1,  # gradients are accumulated over them; for seeds one at a time
          dtype='float32',  # of matrix products; master weights are float32
          remat=False,
      ),
      mesh=dict(data=-1, fsdp=1, tensor=1),  # for seeds one at a time
      optimizer=dict(
          learning_rate=1e-3, warmup_steps=100, weight_decay=0.1, clip_norm=1.0,
          final_rate=0.1,
      ),
      evaluate=dict(
          every_steps=2_500,
          lengths=(1, 2, 4, 8),  # in units of L
          num_segments=64,  # of held-out text, of the longest length, for each seed
          offsets=(0.125, 0.25, 0.375),  # in units of the length
      ),
  )
  if variant in ('cpu', 'quick'):
    config.model.update(num_layers=2, width=128, mlp_width=344, num_heads=4,
                        num_key_heads=4)
    config.num_seeds = 6
    config.train.update(max_length=64, batch_size=16, num_steps=2_000,
                        steps_per_call=50, seeds_at_once=6, group_size=1)
    config.evaluate.every_steps = 1_000
  if variant == 'quick':
    config.num_seeds = config.train.seeds_at_once = 4
    config.arms = {name: config.arms[name] for name in ('alpha_0', 'alpha_0_1')}
    config.train.num_steps = 600
    config.evaluate.every_steps = 300
  elif variant == 'smoke':
    config.num_seeds = config.train.seeds_at_once = 2
    config.arms = {n: config.arms[n] for n in ('alpha_0', 'alpha_0_1', 'offsets_whole')}
    config.model.update(num_layers=1, width=16, mlp_width=24, num_heads=2,
                        num_key_heads=1)
    config.train.update(max_length=8, batch_size=4, num_steps=8, steps_per_call=2,
                        group_size=1, save_every_steps=4)
    config.optimizer.warmup_steps = 2
    config.evaluate.update(every_steps=4, lengths=(1, 2, 4), num_segments=4)
  elif variant == 'finetune':
    del config.model  # the checkpoint has its own
    config.num_seeds = 2
    config.arms = {name: config.arms[name] for name in ('alpha_0', 'alpha_0_1')}
    config.train.update(max_length=512, batch_size=8, num_steps=200, seeds_at_once=0,
                        save_every_steps=50, steps_per_call=10)
    # For large models: layers in a loop, compiled once, and with remat what else than
    # its input a layer keeps ('nothing' or 'products'), and the dtype of that input.
    config.train.update(
        scan_layers=False, remat_keeps='nothing', stream_dtype='float32')
    config.optimizer.update(learning_rate=2e-5, warmup_steps=6, weight_decay=0.0)
    config.evaluate.update(every_steps=50, num_segments=16)
  elif variant not in ('full', 'cpu'):
    raise ValueError(
        'variant must be full, cpu, quick, smoke or finetune; '
        f'without a variant it is full: {variant!r}')
  return config


def _arm(
    weight: float, offsets: tuple[float, float] = HALF, steps: float = 1.0
) -> dict[str, object]:
  return dict(weight=weight, offsets=offsets, steps=steps)
