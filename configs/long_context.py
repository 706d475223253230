r"""What can a checkpoint of the Llama family still do at the end of a long input?

Long-context benchmarks, greedily answered: a pass key by length and depth (arXiv
2305.16300), BABILong (2406.10149), LongBench-E (2308.14508), and tasks of RULER
(2404.06654) from 64 tokens on. Needs no download but LongBench's own files.

  python -m experiments.long_context --suite=passkey --checkpoint=DIR \
      --workdir=runs/passkey

variant      answers  cost
passkey      400      20 s for a model of 260,000 parameters, with a window of 512
                      tokens, on two CPU cores
babilong     2,000    qa1 to qa5; for the same model, 19 s for the 300 that fit
ruler        2,400    six tasks; for the same model, 1 min 22 s
longbench    all      needs the files of LongBench-E: --config.data=DIR
NAME_smoke   few      checks that it runs

--suite=NAME stands for --config=configs/long_context.py:NAME. A length is the number of
tokens of a prompt, or of BABILong's context with length_of='context'; BOS and the
answer, and what surrounds such a context, come on top. Lengths are `lengths`, or if
these are (), `multiples` of the window, the checkpoint's training length according to
its config.json. Lengths beyond the window are the point of this study: they are run,
and a line names them; with beyond_window=False they are refused. No prompt is cut,
except in LongBench, whose prompts lose their middle, as published. A task is not run at
a length that is too short for one of its prompts, since the score of the shorter ones
alone would be too high; a line names task, length and, of a file of bAbI, the line.
"""

import ml_collections
from ml_collections import config_dict

SUITES = ('passkey', 'babilong', 'longbench', 'ruler')


def get_config(variant: str = 'passkey') -> ml_collections.ConfigDict:
  """Returns the configuration of one variant."""
  suite, _, size = variant.partition('_')
  if suite not in SUITES or size not in ('', 'smoke'):
    raise ValueError(f'variant must be one of {", ".join(SUITES)}, alone or with '
                     f'_smoke; without a variant it is passkey: {variant!r}')
  config = config_dict.create(
      suite=suite,
      seed=0,
      # Folder in hub layout, local or gs://, or ORG/NAME of the Hugging Face Hub; or
      # give --checkpoint.
      checkpoint='',
      # none: the checkpoint's own positions; or linear, ntk, dynamic, yarn, llama3 or
      # eabf, by a factor, from an original length; 0: the checkpoint's longest input.
      rope=dict(kind='none', factor=1.0, original_length=0),
      window=0,  # tokens; 0: as config.json of the checkpoint has it
      begin=True,  # whether the tokenizer's BOS, if it has one, goes before each prompt
      batch_size=8,  # prompts at once
      dtype='',  # of the weights, float32 or bfloat16; '': as in the files
      dialect='official',  # of scores in tables, or lm_eval or strict; all are kept
      num_resamples=1_000,  # bootstrap samples of each interval
      mesh=dict(data=-1, fsdp=1, tensor=1),  # of devices; fsdp=-1 for large models
  )
  if suite == 'longbench':
    config.update(
        data='',  # folder of files TASK_e.jsonl
        predictions='',  # folder of files TASK.jsonl, which are scored instead
        tasks=(),  # (): all that have a file
        num_samples=0,  # the first of each task; 0: all
        reserve=500,  # tokens that prompts leave free, or more if answers take more
    )
  else:
    config.update(
        lengths=(),  # tokens of a prompt; (): as `multiples`
        multiples=(0.25, 0.5, 1.0, 2.0),  # in units of the window
        beyond_window=True,
        num_samples=100,  # of each task and length; may grow later
        # File, folder or .jsonl with the text around what is asked for; '': the
        # published sentences, in BABILong the lines of Python's standard library. Facts
        # stand between sentences: a line is printed where a context has few of them.
        text='',
        num_characters=2_000_000,  # how many are read from the beginning of the text
    )
  if suite == 'passkey':
    config.update(
        depths=(0.0, 0.25, 0.5, 0.75, 1.0),  # of the text before the key, in turn
        digits=5,
        wording='short',  # or published
        answer_tokens=12,
    )
  elif suite == 'babilong':
    config.update(
        tasks=('qa1', 'qa2', 'qa3', 'qa4', 'qa5'),
        # Folder of files TASK_LENGTH_….csv, all of which are scored instead.
        predictions='',
        babi='',  # folder of the files qa1_…_test.txt; '': simulated stories
        most_facts=0,  # of a question; 0: any number
        depths=(),  # pairs, in turn: all facts lie between these shares; (): anywhere
        # What has so many tokens as `lengths` say: prompt, or context, as published.
        # The published length L stands for a context of L − 300 tokens of GPT-2.
        length_of='prompt',
        # Before the context; without them, a prompt may be shorter than 500 tokens.
        parts=('instruction', 'examples', 'post_prompt'),
        answer_tokens=20,
    )
  elif suite == 'ruler':
    config.update(
        tasks=('niah_single', 'niah_multikey', 'niah_multivalue', 'niah_multiquery',
               'variable_tracking', 'common_words'),
        # Folder of folders LENGTH/pred, all of whose files are scored instead.
        predictions='',
        wording='short',  # or published, which needs longer prompts
        needle_values='numbers',  # or words
        digits=3,  # of numbers; RULER has 7
        num_keys=4, num_values=4, num_queries=4,  # of the tasks with several
        num_hops=4, num_chains=1,  # of variables
        num_common=2, common_repeats=3, uncommon_repeats=1,  # of words
        answer_tokens=32,
    )
  if size == 'smoke':
    config.num_resamples = 50
    if suite == 'longbench':
      config.update(num_samples=2, window=600)
    else:
      config.update(num_samples=3, lengths=(64, 96), batch_size=2, answer_tokens=4)
    if suite == 'passkey':
      config.depths = (0.0, 1.0)
    elif suite == 'babilong':
      config.update(tasks=('qa1', 'qa4'), parts=(), most_facts=2, lengths=(192, 256))
    elif suite == 'ruler':
      config.update(num_queries=2, num_keys=2)
  return config
