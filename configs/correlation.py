r"""Does misalignment tell which models generalize to longer inputs?

Table 1 of arXiv 2506.11769 in small: models that differ in positions, length, training
and norm; how their training loss and their misalignment correlate with a benchmark's
score and with log perplexity on inputs longer than those of training.

  python -m experiments.long_context.training_text --folder=runs/tasks \
      --documents=150000
  python -m experiments.correlation --config=configs/correlation.py:cpu \
      --workdir=runs/correlation

--config.run_models="('rope_01','alibi_01')" chooses what is trained now, in this order.
The rest may follow in the same folder, or in another that `experiments.join` adds to
it. For a part that is like the whole, let positions take turns.

With the 150,000 documents of the first command, answers cannot be learned by heart;
quick and smoke may do with fewer.

variant  models, seeds  layers x width, L, batch, steps  cost
(none)   96, 5          4 x 256, 128, 32, 10,000         for a GPU, not run yet
cpu      68, 1          2 x 64, 128, 8, 12,000 on        two CPU cores, 5 to 8 hours
                                                         by two processes, each with
                                                         half of run_models
pilot    8, 1           2 x 64, 128, 8, 12,000           5 to 9 minutes a model
quick    6, 2           2 x 64, 128, 16, 300             minutes; too few steps for a
                                                         verdict
smoke    4, 2           1 x 16, 128, 4, 8                checks that it runs

Heads, steps, rate, initial weights and the exercises of the text are chosen by the
scores at L of the pilot and of pilots before it, alone.

The unit of all statistics is a model, the mean over its seeds. Settings of models are
drawn at random, so that intervals may resample them. Fixed before the first look: the
models; the primary comparison, in `primary`: misalignment and training loss, both at
the length of a model's own training, as predictors of the outcome on longer inputs; and
what is compared (experiments/results/correlation/README.md).
"""

import ml_collections
from ml_collections import config_dict
import numpy as np

HALF = (0.0, 0.5)
_POSITIONS = {
    'rope': {}, 'low_base': dict(rope_base=1e3), 'high_base': dict(rope_base=1e6),
    'alibi': dict(positions='alibi'),
}


def get_config(variant: str = 'full') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      seed=0,  # one that is 1,000 or more away gives models of their own
      num_seeds=5,  # of each model; may grow later
      # Of each model, what differs from the others.
      models=_drawn(12),
      run_models=(),  # names of the models to train now; (): all
      primary=dict(
          measure='symmetric_kl',  # of misalignment
          # Of the benchmark beyond L up to 2 L; score_far, from 2 L on; or nll_beyond,
          # log perplexity beyond L.
          outcome='score_near',
          correlation='spearman',  # or pearson
          # Of the benchmark, those that count: the score is their mean, and a model
          # must have learned each.
          tasks=('niah_single', 'niah_multikey'),
      ),
      num_resamples=10_000,  # of models, for each interval
      text=dict(
          # A file, folder or .jsonl file, and the tokenizer.json or its folder: as
          # experiments.long_context.training_text writes them.
          path='runs/tasks/text.jsonl',
          tokenizer='runs/tasks',
          held_out=0.05,  # share of the text that is kept for evaluation
      ),
      model=dict(
          num_layers=4, width=256, mlp_width=688, num_heads=4, num_key_heads=4,
          tied=True,
          init_std=1 / 16,  # of initial weights, 1 / √width
          init_common=2.0,  # spread of what embeddings have in common, in units of it
      ),
      train=dict(
          max_length=128,  # the longest training length
          batch_size=32,  # in streams, of each of which two windows are read
          num_steps=10_000,
          steps_per_call=250,  # learning curves have one point per call
          seeds_at_once=5,  # trained together
          group_size=5,  # the most seeds in one vmap; 1 on a CPU
          save_every_seconds=60.0,
          dtype='float32',  # of matrix products; master weights are float32
          remat=False,
      ),
      optimizer=dict(
          learning_rate=1e-3, warmup_steps=100, weight_decay=0.1, clip_norm=1.0,
          final_rate=0.1,
      ),
      # Lengths are in units of L, the length of a model's own training.
      evaluate=dict(
          lengths=(1, 2, 4, 8),  # of log perplexity and misalignment
          all_windows=True,  # of a segment, not the first alone
          num_segments=256,  # of held-out text, for each seed
          offsets=(0.125, 0.25, 0.375),  # in units of the length
      ),
      # Prompts of the kinds that the text has, answered greedily; the same for all
      # models of one L.
      benchmark=dict(
          tasks=('niah_single', 'niah_multikey', 'passkey', 'qa1'),
          lengths=(1.0, 1.25, 1.5, 1.75, 2.0, 4.0, 8.0),
          num_prompts=96,  # of each task and length
          needle_values='words',  # or numbers
          most_facts=10,  # of a story of BABILong
          answer_tokens=8,  # at the end of each length, at least those of the answer
      ),
  )
  if variant in ('cpu', 'pilot', 'quick'):
    config.model.update(num_layers=2, width=64, mlp_width=172, num_heads=4,
                        num_key_heads=4, init_std=1 / 8)
    config.num_seeds = 1
    config.train.update(batch_size=8, num_steps=12_000, steps_per_call=200,
                        seeds_at_once=1, group_size=1)
    config.optimizer.learning_rate = 1.5e-3
  if variant == 'cpu':
    config.models = _drawn(5)
  elif variant == 'pilot':
    # Seeds and prompts of its own. Its scores at L alone decide anything.
    config.models = {
        **{name: _model(**fields) for name, fields in _POSITIONS.items()},
        'no_positions': _model(positions='none'), 'short': _model(length=0.875),
        'layer_norm': _model(norm='layer_norm'),
        'standardize': _model(norm='standardize')}
    config.seed = 1000
    config.evaluate.lengths = (1, 2)
    config.benchmark.lengths = (1.0, 2.0)
  elif variant == 'quick':
    config.models = _few()
    config.num_seeds = 2
    config.train.update(batch_size=16, num_steps=300, steps_per_call=25,
                        seeds_at_once=2)
    config.optimizer.warmup_steps = 30
    config.evaluate.num_segments = 32
    config.benchmark.num_prompts = 8
  elif variant == 'smoke':
    few = _few()
    config.models = {name: few[name] for name in (
        'rope', 'alibi_short', 'layer_norm', 'rope_term')}
    config.num_seeds = 2
    config.num_resamples = 200
    config.model.update(num_layers=1, width=16, mlp_width=24, num_heads=2,
                        num_key_heads=1, init_std=1 / 4)
    config.train.update(batch_size=4, num_steps=8, steps_per_call=2, seeds_at_once=2,
                        group_size=1)
    config.optimizer.warmup_steps = 2
    config.evaluate.update(lengths=(1, 2), num_segments=4)
    config.primary.tasks = ('niah_single', 'qa1')
    config.benchmark.update(tasks=('niah_single', 'qa1'), lengths=(1.0, 1.5, 2.0),
                            num_prompts=2, most_facts=2, answer_tokens=20)
  elif variant != 'full':
    raise ValueError('variant must be full, cpu, pilot, quick or smoke; '
                     f'without a variant it is full: {variant!r}')
  return config


def _drawn(pairs: int) -> dict[str, dict[str, object]]:
  """Returns 12 models of each of four positions, and partners of some.

  Norms, lengths and steps are in random order, each equally often. A partner differs
  from its model in the misalignment term alone, α = 0.1.

  Args:
    pairs: how many models of each positions have a partner; it changes no other.
  """
  models = {}
  for place, (name, fields) in enumerate(_POSITIONS.items()):
    rng = np.random.default_rng((11769, place))
    norms, lengths, steps = (
        rng.permutation(np.tile(choices, 12 // len(choices))).tolist() for choices in (
            ('none', 'layer_norm', 'standardize'), (0.875, 1.0), (1.0, 1.25)))
    for i in range(12):
      models[f'{name}_{i + 1:02}'] = _model(
          **fields, norm=norms[i], length=lengths[i], steps=steps[i],
          seed=100 * place + i + 1)
  return models | {
      f'{name}_{i + 1:02}_term': dict(models[f'{name}_{i + 1:02}'], weight=0.1)
      for i in range(pairs) for name in _POSITIONS}


def _few() -> dict[str, dict[str, object]]:
  """Returns six models that differ from the first in one thing, or two."""
  return dict(
      rope=_model(), alibi_short=_model(positions='alibi', length=0.75),
      no_positions=_model(positions='none'), layer_norm=_model(norm='layer_norm'),
      fewer_steps=_model(steps=0.75), rope_term=_model(weight=0.1))


def _model(
    positions: str = 'rope', rope_base: float = 10_000.0, norm: str = 'none',
    length: float = 1.0, steps: float = 1.0, weight: float = 0.0,
    offsets: tuple[float, float] = HALF, seed: int = 0,
) -> dict[str, object]:
  """Returns the fields of a model.

  Args:
    positions: 'rope', 'alibi' or 'none'.
    rope_base: of rotary positions.
    norm: right after attention.
    length: L, of the windows it is trained on, as a share of train.max_length.
    steps: as a share of train.num_steps.
    weight: α of the misalignment term in training.
    offsets: range of the term's offsets, in units of L.
    seed: added to config.seed: models have initial weights and batches of their own.
  """
  return dict(positions=positions, rope_base=rope_base, norm=norm, length=length,
              steps=steps, weight=weight, offsets=offsets, seed=seed)
