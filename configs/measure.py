r"""What a checkpoint of the Llama family does beyond the lengths of its training.

Figure 1 of arXiv 2504.02827; misalignment, on all scales, of arXiv 2506.11769, section
4; perplexity by length and by position; logits by distance with the recency probability
of arXiv 2509.21042; entropy of attention by length.

  python -m experiments.measure --checkpoint=DIR --text=FILE --workdir=runs/measure

variant   cost
(none)    a minute for a model of 260,000 parameters and 512 positions, two CPU cores
smoke     shows that it runs

Lengths are in units of L, the tokens that the model was trained on as its config.json
has it. Where windows, of up to 8 L, are more than can be read: --config.length=2048.
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = 'whole') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  config = config_dict.create(
      seed=0,
      checkpoint='',  # a folder in hub layout, local or gs://; --checkpoint for short
      text='',  # file, folder or .jsonl; none: Python's standard library; --text
      length=0,  # L; 0: what the checkpoint says
      num_resamples=1_000,  # of sequences, by which intervals are made
      num_characters=2_000_000,  # of the text, its first, are read
      dtype='',  # of the weights, float32 or bfloat16; none: as they are in the files
      tokens_at_once=8_192,  # about so many are read at once; less needs less memory
      mesh=dict(data=-1, fsdp=1, tensor=1),  # of devices; fsdp=-1 for large models
      perplexity=dict(
          lengths=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0),  # of windows, times L
          num_windows=8,  # of the longest; all lengths read the same text
          stride=0.5,  # of the sliding window, times its length
          begin=False,  # whether the tokenizer's BOS goes before each window
      ),
      misalignment=dict(
          lengths=(0.25, 0.5, 1.0, 2.0),  # of windows, times L
          offsets=(1, 4, 16, 64, 256),  # those below half of the length
          num_sequences=16,
      ),
      spread=dict(  # of the attention output over sequences
          layers=(0,),  # none: all
          heads=(),  # of which there are curves of their own; none: all
          shortest=8,  # tokens; then 16, 32, …
          longest=1.0,  # times L
          num_sequences=200,
          num_queries=6,  # last tokens that are held fixed, one after the other
          num_components=4,  # kept one by one; means are over all
      ),
      entropy=dict(  # of the attention weights
          layers=(),  # none: all
          shortest=8,
          longest=4.0,
          num_sequences=24,
      ),
      recency=dict(  # of the attention logits
          layers=(),  # none: all
          num_tokens=256,
          num_queries=32,  # the last of them
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
    raise ValueError(f'variant is whole or smoke, not {variant!r}')
  return config
