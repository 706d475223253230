r"""How a checkpoint of the Llama family behaves beyond its training length.

Figure 1 of arXiv 2504.02827; misalignment (arXiv 2506.11769, section 4) by several
measures; perplexity by length and by position; attention logits by distance and the
recency probability of arXiv 2509.21042; entropy of attention weights by length, and
the temperature that heads need to keep half of the weight on one key.

  python -m experiments.measure --checkpoint=DIR --text=FILE --workdir=runs/measure

variant   cost
(none)    a minute for a model of 260,000 parameters and 512 positions, two CPU cores
smoke     checks that it runs

Lengths are in units of L, the training length in tokens according to the checkpoint's
config.json. If windows of up to 8 L are too long, set L, as by --config.length=2048.
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = 'whole') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      seed=0,
      # Folder in hub layout, local or gs://, or ORG/NAME of the Hugging Face Hub; or
      # give --checkpoint.
      checkpoint='',
      text='',  # file, folder or .jsonl; '': Python's standard library; or give --text
      # none: the checkpoint's own positions; or linear, ntk, dynamic, yarn, llama3 or
      # eabf, by a factor, from an original length; 0: the checkpoint's longest input.
      rope=dict(kind='none', factor=1.0, original_length=0),
      length=0,  # L; 0: as config.json of the checkpoint has it
      num_resamples=1_000,  # bootstrap samples of each interval
      num_characters=2_000_000,  # how many are read from the beginning of the text
      dtype='',  # of the weights, float32 or bfloat16; '': as in the files
      tokens_at_once=8_192,  # about as many per batch; fewer need less memory
      mesh=dict(data=-1, fsdp=1, tensor=1),  # of devices; fsdp=-1 for large models
      perplexity=dict(
          lengths=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0),  # of windows, in units of L
          num_windows=8,  # of the longest length; all lengths read the same text
          stride=0.5,  # of sliding windows, in units of their length
          begin=False,  # whether the tokenizer's BOS goes before each window
      ),
      misalignment=dict(
          lengths=(0.25, 0.5, 1.0, 2.0),  # of windows, in units of L
          offsets=(1, 4, 16, 64, 256),  # only those below half of the length are used
          num_sequences=16,
      ),
      spread=dict(  # of the attention output over sequences
          layers=(0,),  # (): all
          heads=(),  # heads that get a curve each; (): all
          shortest=8,  # tokens; then 16, 32, …
          longest=1.0,  # in units of L
          num_sequences=200,
          num_queries=6,  # tokens that are used in turn as the fixed last token
          num_components=4,  # reported singly; means are over all components
      ),
      entropy=dict(  # of the attention weights, and the temperature that heads need
          layers=(),  # (): all
          shortest=8,
          longest=4.0,
          num_sequences=24,
      ),
      recency=dict(  # of the attention logits
          layers=(),  # (): all
          num_tokens=256,
          num_queries=32,  # the last tokens of each sequence
          num_sequences=16,
      ),
  )
  if variant == 'smoke':
    config.length = 16
    config.num_characters = 20_000
    config.num_resamples = 50
    config.perplexity.update(lengths=(0.5, 1.0, 2.0), num_windows=4)
    config.misalignment.update(lengths=(0.5, 1.0), offsets=(1, 4), num_sequences=4)
    config.spread.update(shortest=2, num_sequences=12, num_queries=2)
    config.entropy.update(shortest=2, longest=2.0, num_sequences=4)
    config.recency.update(num_tokens=16, num_queries=4, num_sequences=4)
  elif variant != 'whole':
    raise ValueError(
        'variant must be whole or smoke; '
        f'without a variant it is whole: {variant!r}')
  return config
