r"""Does misalignment tell which models generalize to longer inputs?

Table 1 of arXiv 2506.11769 in small: models that differ in positions, length, training
and norm; how their training loss and their misalignment correlate with log perplexity
and with a benchmark's score on inputs longer than those of training.

  python -m experiments.long_context.training_text --folder=runs/tasks
  python -m experiments.correlation --config=configs/correlation.py:cpu \
      --workdir=runs/correlation

--config.run_models="('base','alibi')" chooses what is trained now. The rest may follow
in the same folder, or in another that `experiments.join` adds to it.

The plan of cpu and term is withdrawn: experiments/results/correlation/README.md.

For all but quick and smoke, give the first command --documents=150000: then answers
cannot be learned by heart.

variant  models, seeds  layers x width, L, batch, steps  cost
(none)   30, 5          4 x 256, 128, 32, 10,000         for a GPU, not run yet
cpu      30, 2          2 x 64, 128, 8, 12,000           two CPU cores, 8 to 12 hours by
                                                         the time of pilot, 7 minutes a
                                                         seed with little else running
term     2, 8           2 x 64, 128, 8, 12,000           the misalignment term alone, by
                                                         8 pairs of seeds; 2 to 3 hours,
                                                         as for cpu
pilot    1, 2           2 x 64, 128, 8, 12,000           what one model learns at L
quick    6, 2           2 x 64, 128, 16, 300             minutes; too few steps for a
                                                         verdict
smoke    3, 2           1 x 16, 128, 4, 8                checks that it runs

Heads, steps, rate, initial weights and the exercises of the text are chosen by the
scores at L of the pilot and of pilots before it, alone.

The unit of all statistics is a model, the mean over its seeds. Fixed before the first
look: models and seeds; the primary comparison, in `primary`: misalignment, measured at
the length of each model's own training, and training loss, as predictors of the outcome
on inputs longer than any model was trained on.
"""

import itertools

import ml_collections
from ml_collections import config_dict

HALF = (0.0, 0.5)


def get_config(variant: str = 'full') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      seed=0,
      num_seeds=5,  # of each model; may grow later
      # Of each model, what differs from the others.
      models=_models(),
      run_models=(),  # names of the models to train now; (): all
      primary=dict(
          measure='symmetric_kl',  # of misalignment
          outcome='score',  # of the benchmark, or nll, log perplexity
          correlation='pearson',  # or spearman
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
          max_length=128,  # L, the longest training length
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
      evaluate=dict(
          lengths=(1, 2, 4, 8),  # in units of L, the same for all models
          num_segments=256,  # of held-out text, for each seed
          offsets=(0.125, 0.25, 0.375),  # in units of the length
      ),
      # Prompts of the kinds that the text has, answered greedily; the same for all
      # models and seeds.
      benchmark=dict(
          tasks=('niah_single', 'niah_multikey', 'passkey', 'qa1'),
          num_prompts=64,  # of each task and length
          needle_values='words',  # or numbers
          most_facts=10,  # of a story of BABILong
          answer_tokens=20,  # at the end of each length, at least those of the answer
      ),
  )
  if variant in ('cpu', 'term', 'pilot', 'quick'):
    config.model.update(num_layers=2, width=64, mlp_width=172, num_heads=4,
                        num_key_heads=4, init_std=1 / 8)
    config.num_seeds = 2
    config.train.update(batch_size=8, num_steps=12_000, steps_per_call=200,
                        seeds_at_once=1, group_size=1)
    config.optimizer.learning_rate = 1.5e-3
  if variant == 'term':
    _keep(config, 'base', 'alpha_0_1')
    config.num_seeds = 8
  elif variant == 'pilot':
    # Seeds and prompts of its own. Its scores at L alone decide anything.
    _keep(config, 'base')
    config.seed = 1000
    config.evaluate.lengths = (1, 2)
  elif variant == 'quick':
    _keep(config, 'base', 'alibi', 'no_positions', 'half_length', 'layer_norm',
          'alpha_0_1')
    config.train.update(batch_size=16, num_steps=300, steps_per_call=25,
                        seeds_at_once=2)
    config.optimizer.warmup_steps = 30
    config.evaluate.num_segments = 32
    config.benchmark.num_prompts = 8
  elif variant == 'smoke':
    _keep(config, 'base', 'alibi_half_length', 'layer_norm')
    config.num_seeds = 2
    config.num_resamples = 200
    config.model.update(num_layers=1, width=16, mlp_width=24, num_heads=2,
                        num_key_heads=1, init_std=1 / 4)
    config.train.update(batch_size=4, num_steps=8, steps_per_call=2, seeds_at_once=2,
                        group_size=1)
    config.optimizer.warmup_steps = 2
    config.evaluate.update(lengths=(1, 2), num_segments=4)
    config.benchmark.update(tasks=('niah_single', 'qa1'), num_prompts=2, most_facts=2)
  elif variant not in ('full', 'cpu'):
    raise ValueError(
        'variant must be full, cpu, term, pilot, quick or smoke; '
        f'without a variant it is full: {variant!r}')
  return config


def _models() -> dict[str, dict[str, object]]:
  """Returns 30 models, of which no two have the same weights.

  24 have all combinations of positions, norm after attention and training length; the
  others differ from `base` in one thing, but `yarn` in its steps too.
  """
  positions = dict(base={}, rope_100=dict(rope_base=100.0),
                   alibi=dict(positions='alibi'), no_positions=dict(positions='none'))
  models = {}
  for (name, fields), norm, shorter in itertools.product(
      positions.items(), ('none', 'layer_norm', 'standardize'), (1, 2)):
    parts = [name] * (name != 'base') + [norm] * (norm != 'none') + [
        'half_length'] * (shorter > 1)
    models['_'.join(parts) or name] = _model(**fields, norm=norm, shorter=shorter)
  return models | dict(
      rope_1m=_model(rope_base=1e6),
      yarn=_model(steps=0.75, stretched='yarn'),
      half_steps=_model(steps=0.5),
      quarter_steps=_model(steps=0.25),
      alpha_0_1=_model(weight=0.1),
      alpha_0_3=_model(weight=0.3),
  )


def _keep(config: ml_collections.ConfigDict, *names: str) -> None:
  config.models = {name: config.models[name] for name in names}


def _model(
    positions: str = 'rope', rope_base: float = 10_000.0, stretched: str = 'none',
    norm: str = 'none', shorter: int = 1, steps: float = 1.0, weight: float = 0.0,
    offsets: tuple[float, float] = HALF,
) -> dict[str, object]:
  """Returns the fields of a model.

  Args:
    positions: 'rope', 'alibi' or 'none'.
    rope_base: of rotary positions.
    stretched: how rotary positions are changed when the model is measured, at all
      lengths, by the longest length over that of training; 'none' for not at all.
    norm: right after attention.
    shorter: it is trained on windows of L / shorter tokens.
    steps: as a share of train.num_steps.
    weight: α of the misalignment term in training.
    offsets: range of the term's offsets, in units of the training length.
  """
  return dict(positions=positions, rope_base=rope_base, stretched=stretched, norm=norm,
              shorter=shorter, steps=steps, weight=weight, offsets=offsets)
