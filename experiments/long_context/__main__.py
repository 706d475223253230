r"""What can a checkpoint still do at the end of a long input? Trains nothing.

  python -m experiments.long_context --suite=passkey --checkpoint=DIR \
      --workdir=runs/passkey

Suites are passkey, babilong, longbench and ruler: configs/long_context.py:NAME. The
checkpoint is of the Llama family, in hub layout: a folder, local or gs://, or ORG/NAME
of the Hugging Face Hub. Prompts are encoded by its tokenizer.json; without one, as
bytes, if the vocabulary is that of bytes. --checkpoint, --text, --babi, --data,
--predictions and --dialect are short for --config.checkpoint and so on.

Answers are generated greedily. Each is kept, with the settings of its prompt, as a line
of predictions/TASK_LENGTH.jsonl, and scored in all dialects in results.csv. The same
command resumes a run after the last answer that was written, and writes its report.
More samples may be asked for later: --config.num_samples=200.
"""

import sys

from experiments.harness import command_line, errors
from experiments.long_context.run import full_arguments, main

if __name__ == '__main__':
  with errors.reported():
    sys.argv[1:] = full_arguments(sys.argv[1:])
  command_line.run(main, needs=('suite', 'checkpoint', 'window', 'dialect'))
