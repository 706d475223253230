r"""What helps a trained model to read longer inputs, and does the term help there?

Fine-tunes a checkpoint in hub layout with methods that extend its context, each with
and without the misalignment term (section 5 and appendix B of arXiv 2506.11769).

  python -m experiments.adapt --config=configs/adapt.py:yarn_quick \
      --workdir=runs/adapt --config.checkpoint=FOLDER

variant        seeds  L, streams, steps  cost
METHOD         2      4096, 8, 200       for a GPU, not run yet
METHOD_paper   1      as in the paper    Llama-2-7B, 64 streams, all arms of its tables;
                                         for a slice of 64 chips
METHOD_quick   2      256, 8, 60         a checkpoint of 64 tokens (that of
                                         configs/language_model.py:quick), 3 minutes
METHOD_smoke   1      16, 4, 4           checks that it runs
study          12     512, 4, 200        stories260K; 28 arms, 30 to 65 minutes a seed
study_pilot    3      512, 4, 200        the spread over seeds, from which the study's
                                         number of seeds is; 8 arms, 29 minutes

METHOD is none, pi, ntk, yarn, eabf, clex, random, alibi, longlora or longqlora. Seeds
are orders of the text; a seed has the same batches in all arms.

--config.run_arms="('yarn','yarn_alpha_0_1')" chooses what is run now. The rest may
follow in the same folder, or in another that `experiments.join` adds to it.
"""

import ml_collections
from ml_collections import config_dict

HALF = (0.0, 0.5)
WEIGHTS = (0.03, 0.1, 0.3)  # α
# Recipes with adapters: arXiv 2311.04879, without double quantization, and 2309.12307,
# as its repository trains (dvlab-research/LongLoRA: README.md, fine-tune.py).
_ADAPTERS = dict(
    longqlora=dict(rank=64, alpha=16.0, dropout=0.05, quantized='nf4'),
    longlora=dict(rank=8, alpha=16.0, targets=('query', 'key', 'value', 'output'),
                  also=('embedding', 'attention_norm', 'mlp_norm', 'final_norm')),
)
# Both warm up for 20 steps, and then keep their rate. LongLoRA clips gradients at the
# default of transformers.
_ADAPTER_RATES = dict(
    longqlora=dict(learning_rate=2e-4, clip_norm=0.3),
    longlora=dict(learning_rate=2e-5, clip_norm=1.0),
)
# What the paper's tables have of a method besides α = 0 and α = 0.1: other α (default:
# its Tables 3 and 6), and ranges of offsets at α = 0.1 (Table 7).
_PAPER_WEIGHTS = dict(clex=(0.3, 0.5, 1.0))
_PAPER_OFFSETS = dict(longqlora=dict(
    quarter=(0.0, 0.25), second_quarter=(0.25, 0.5), whole=(0.0, 1.0)))
# That of the code of CLEX, LongQLoRA and LongLoRA, the default of transformers. Where a
# config has no b2, it is 0.95 (`vvlen.training.optimizer.adamw`).
_B2 = 0.999
_METHODS = ('none', 'pi', 'ntk', 'yarn', 'eabf', 'clex', 'random', 'alibi')
SIZES = ('', 'paper', 'quick', 'smoke')


def get_config(variant: str = 'yarn') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  name, _, size = variant.partition('_')
  is_study = variant in ('study', 'study_pilot')
  if not is_study and (name not in (*_METHODS, *_ADAPTERS) or size not in SIZES):
    known = ', '.join((*_METHODS, *_ADAPTERS))
    raise ValueError(
        f'variant must be study or study_pilot, or one of {known}, alone or with '
        f'_paper, _quick or _smoke; without a variant it is yarn: {variant!r}')
  config = config_dict.create(
      seed=0,
      num_seeds=2,  # may grow later
      checkpoint='',  # folder or ORG/NAME of the model to train further
      arms=_arms(name),
      run_arms=(),  # names of the arms to run now; (): all
      positions=dict(
          # By how much pi, ntk and yarn stretch positions; 0: ⌈L / L₀⌉.
          factor=4.0,
          original_length=0,  # L₀; 0: that of the checkpoint
          largest=16,  # CLEX: the largest t
          highest=2**16,  # random: positions are drawn from this many
          groups=0,  # in training, of shifted sparse attention; 0: full attention
      ),
      adapters=dict(
          rank=0,  # 0: all parameters are trained
          alpha=16.0, dropout=0.0,
          targets=('query', 'key', 'value', 'output', 'gate', 'up', 'down'),
          quantized='',  # 'nf4', 'int8' or '': the kernels that are not trained
          also=(),  # what else is trained
      ),
      text=dict(
          path='',  # a file, folder or .jsonl file; '': sources of the standard library
          tokenizer='',  # tokenizer.json or its folder; '': the checkpoint's, or bytes
          within_documents=False,  # whether each window is of one document
          held_out=0.05,  # share of the text that is kept for evaluation
      ),
      train=dict(
          max_length=4096,  # L; two windows of L tokens are read from each stream
          batch_size=8,  # in streams
          num_steps=200,
          steps_per_call=10,  # learning curves have one point per call
          save_every_steps=50,
          parts=1,  # gradients are accumulated over them
          dtype='float32',  # of matrix products and frozen weights
          remat=False,
          # Layers in a loop, compiled once; with remat what else than its input a layer
          # keeps ('nothing' or 'products'), and the dtype of that input.
          scan_layers=False, remat_keeps='nothing', stream_dtype='float32',
          seeds_at_once=0,  # seeds are trained one at a time
      ),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      optimizer=dict(learning_rate=2e-5, warmup_steps=6, weight_decay=0.0,
                     clip_norm=1.0, final_rate=0.0),
      evaluate=dict(
          every_steps=50,  # an arm of 0.95 of the steps: 47, 95, …
          lengths=(1, 2, 4),  # in units of L
          num_segments=16,  # of held-out text, for each seed
          # Their length, in units of L; 0: the longest of lengths. They are long enough
          # for a second window of the longest length, which the misalignment measures
          # need, and for sliding windows.
          segment=8,
          offsets=(0.125, 0.25, 0.375),  # in units of the length
      ),
  )
  if name == 'eabf':
    # The first layers, whose queries do not grow; in effect 0 in the released code.
    config.positions.exempt_layers = 2
  if name in ('clex', 'random'):
    # Whether both windows of a step have the positions that are drawn, or each its own.
    config.positions.shared = True
  if name in _ADAPTERS:
    config.adapters.update(_ADAPTERS[name])
    config.positions.update(factor=0.0, groups=4)
    config.optimizer.update(
        _ADAPTER_RATES[name], warmup_steps=20, final_rate=1.0, b2=_B2)
  if size == 'paper':
    # CLEX is trained at 4,096 tokens, the others at 8,192, twice Llama-2's L₀.
    config.num_seeds = 1
    if name not in _ADAPTERS:
      config.positions.factor = 2.0
    config.train.update(
        max_length=4096 if name == 'clex' else 8192, batch_size=64, dtype='bfloat16',
        remat=True, scan_layers=True, stream_dtype='bfloat16')
    # As compiled for 64 chips: one copy of the model, in parts.
    config.mesh.update(fsdp=16, tensor=4)
    config.optimizer.b2 = _B2
    config.evaluate.update(lengths=(1, 2), segment=4)
    config.arms.update(_paper_arms(name))
  elif size == 'quick':
    config.train.update(max_length=256, num_steps=60)
    config.optimizer.learning_rate = 5e-4
    config.positions.highest = 2048  # twice the longest test; the published default
    config.evaluate.update(every_steps=30, num_segments=8)
    if name in _ADAPTERS:
      config.adapters.rank = 8  # less than the widths of a small model
  elif size == 'smoke':
    config.num_seeds = 1
    config.train.update(max_length=16, batch_size=4, num_steps=4, steps_per_call=2,
                        save_every_steps=2)
    config.optimizer.warmup_steps = 1
    config.positions.update(highest=64)
    if name in _ADAPTERS:
      config.adapters.rank = 2
    config.evaluate.update(every_steps=2, lengths=(1, 2), num_segments=4, segment=4)
  if is_study:
    config.num_seeds = 12
    config.train.update(max_length=512, batch_size=4)
    config.positions.largest = 8
    # The best of 3e-4, 1e-3 and 3e-3 for fine-tuning alone at the training length, in
    # another seed.
    config.optimizer.learning_rate = 1e-3
    config.evaluate.update(every_steps=200, lengths=(1, 2, 4, 8), num_segments=4,
                           segment=16)
  if variant == 'study_pilot':
    # The primary endpoint alone, in seeds of its own.
    config.update(seed=1000, num_seeds=3)
    config.arms = {name: arm for name, arm in config.arms.items()
                   if name.endswith('_alpha_0_1') or name in _METHODS}
    config.evaluate.lengths = (1, 2)
  return config


def _arms(name: str) -> dict[str, dict[str, object]]:
  """Returns the arms of a variant; the first of a method is its control."""
  if name == 'study':
    arms = {}
    for method in ('none', 'pi', 'yarn', 'clex'):
      arms[method] = _arm(method)
      arms |= {f'{method}_alpha_{weight:g}'.replace('.', '_'): _arm(method, weight)
               for weight in WEIGHTS}
      # Controls: the two parts of the term, entropy and alignment, each alone; and more
      # steps without the term, in the time that it takes.
      arms |= {f'{method}_entropy': _arm(method, 0.1, term='entropy'),
               f'{method}_symmetric_kl': _arm(method, 0.1, term='symmetric_kl'),
               f'{method}_more_steps': _arm(method, steps=1.05)}
    return arms
  method = 'pi' if name in _ADAPTERS else name
  arms = {} if name == 'none' else {'none': _arm('none')}
  return arms | {name: _arm(method), f'{name}_alpha_0_1': _arm(method, 0.1)}


def _paper_arms(name: str) -> dict[str, dict[str, object]]:
  """Returns what the paper's tables have of a method besides α = 0 and α = 0.1."""
  method = 'pi' if name in _ADAPTERS else name
  arms = {f'{name}_alpha_{weight:g}'.replace('.', '_'): _arm(method, weight)
          for weight in _PAPER_WEIGHTS.get(name, (0.5,))}
  arms |= {f'{name}_offsets_{words}': _arm(method, 0.1, offsets=offsets)
           for words, offsets in _PAPER_OFFSETS.get(name, {}).items()}
  # 190 steps, which with the term take the time of 200 without: Tables 9 and 10.
  return arms | {f'{name}_equal_time': _arm(method, 0.1, steps=0.95)}


def _arm(
    method: str, weight: float = 0.0, *, term: str = 'sce',
    offsets: tuple[float, float] = HALF, steps: float = 1.0,
) -> dict[str, object]:
  """Returns an arm: offsets in units of L, steps as a share of train.num_steps."""
  return dict(method=method, weight=weight, term=term, offsets=offsets, steps=steps)
