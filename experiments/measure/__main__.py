r"""How does a checkpoint behave beyond its training length? Trains nothing.

  python -m experiments.measure --checkpoint=DIR --text=FILE --workdir=runs/measure

The checkpoint is of the Llama family, in hub layout: a folder, or ORG/NAME, which is
downloaded from the Hugging Face Hub. The text is a file, a folder or a
.jsonl file, local or gs://; by default it is the source code of Python's standard
library. It is encoded by the checkpoint's tokenizer.json; without one, as bytes, if the
vocabulary is that of bytes. --config is configs/measure.py by default; --checkpoint and
--text are short for --config.checkpoint and --config.text. Measures:

  perplexity    by length of context, in blocks and in sliding windows, and by position
  misalignment  of two windows of the same text, by length and offset, by all measures
  Figure 1      of arXiv 2504.02827: the spread of attention outputs over sequences, by
                length, for random tokens without and with positions and for text; the
                last token, which gives the query, is as it is or held fixed
  recency       attention logits by distance, and the recency probability
  entropy       of attention weights by length
  temperature   that each head needs to keep half of its weight on one key, by length,
                and what it changes in predictions of longer inputs

Attention is measured on text and on the same tokens in random order, because
positions cause a bias too. The same command resumes a run and writes its report.
"""

import sys

from experiments.harness import command_line
from experiments.measure.run import full_arguments, main

if __name__ == '__main__':
  sys.argv[1:] = full_arguments(sys.argv[1:])
  command_line.run(main, needs=('checkpoint', 'text', 'perplexity', 'misalignment',
                                'spread', 'entropy', 'recency'))
