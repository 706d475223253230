r"""What does a checkpoint do beyond the lengths of its training? Trains nothing.

  python -m experiments.measure --checkpoint=DIR --text=FILE --workdir=runs/measure

The checkpoint is of the Llama family, in hub layout. The text may be a file, a folder
or a .jsonl file, local or gs://; without one it is Python's standard library. It is
encoded by the checkpoint's tokenizer.json, or, where it has none and the vocabulary is
that of bytes, as bytes. --config is configs/measure.py unless said otherwise. Measured:

  perplexity    by length of context, in blocks and in sliding windows, and by position
  misalignment  of two windows of the same text, by length and offset, on all scales
  Figure 1      of arXiv 2504.02827: the spread of attention outputs over sequences, by
                length: random tokens without and with positions, and text, with the
                last token, whose query it is, as it is and held fixed
  recency       attention logits by distance, and the recency probability
  entropy       of attention weights by length

The last two of text and of the same tokens in random order, as positions have a bias of
their own. The same command again computes what is missing and makes the report.
"""

import sys

from experiments.harness import command_line
from experiments.measure.run import full_arguments, main

if __name__ == '__main__':
  sys.argv[1:] = full_arguments(sys.argv[1:])
  command_line.run(
      main, needs=('checkpoint', 'text', 'perplexity', 'misalignment', 'spread',
                   'entropy', 'recency')
  )
