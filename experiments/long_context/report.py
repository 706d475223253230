"""Writes the tables and figures of a suite. Runs without JAX."""

from typing import Any

from etils import epath

from experiments.harness import finished
from experiments.long_context import (
    dialect_tables,
    figures,
    longbench_tables,
    scores,
    settings,
    tables,
)
from experiments.long_context.answer import answer, longbench_answer
from experiments.long_context.tables import Run
from vvlen.reporting import plots, run_folder
from vvlen.reporting.page import Report
from vvlen.reporting.tables import write_tables

_ABOUT = {
    'passkey': 'A number stands somewhere in filler, and is asked for at the end. '
               'Source: arXiv 2305.16300.',
    'babilong': 'Facts of short stories stand apart from each other in filler, and are '
                'asked for at the end. Source: BABILong, arXiv 2406.10149.',
    'ruler': 'Needles in filler, chains of variables and common words, as in RULER but '
             'from 64 tokens on. Source: RULER, arXiv 2404.06654.',
    'longbench': 'Questions about, and summaries of, long documents, in buckets of '
                 'equal length. Source: LongBench, arXiv 2308.14508.',
}
_QUESTIONS = {
    'passkey': 'From how far back does this checkpoint find a pass key?',
    'babilong': 'Does this checkpoint find facts in a long text, and reason with them?',
    'ruler': 'Which tasks of RULER does this checkpoint do, up to which length?',
    'longbench': 'What does this checkpoint score on LongBench-E?',
}


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of `experiments.long_context`.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='a suite') as stored:
    config = stored['config']
    inputs = config['inputs']
    run = Run(
        suite=config['suite'], rows=(), dialect=config['dialect'],
        num_resamples=int(config['num_resamples']), seed=int(config['seed']),
        window=int(inputs.get('window', 0)), source=_source(config),
        not_run=inputs.get('not_run', ()),
        length_of=config.get('length_of', 'prompt'),
        answer_tokens=int(config.get('answer_tokens', 0)), prompts=_prompts(inputs))
    question, asked = _QUESTIONS[run.suite], int(inputs['samples'])
  run = run._replace(rows=scores.read_rows(folder, run.not_run))
  if run.suite == 'longbench':
    made = longbench_tables.make(run)
    said = longbench_answer(made[0].records, run.dialect, run.window)
  else:
    made = [*tables.make(run), dialect_tables.by_length(run)]
    said = [*answer(tables.effects(run)), *filter(None, [tables.beyond_words(run)])]
  write_tables(folder, made)
  with plots.style():
    paths = plots.save(folder / 'figures', figures.make(run))
  done = len({scores.sample_of(row) for row in run.rows} & finished.finished(
      folder, scores.sample_of))
  unfinished = (f'The run is not finished: {asked - done:,} of {asked:,} answers are '
                'missing.' if done < asked else '')
  bad = int(inputs.get('bad_lines', 0))
  not_used = f'{_not_used(bad)}, named in log.txt.' if bad else ''
  missing = tables.joined(unfinished, tables.left_out(run), not_used)
  return Report(question, said, made, paths, 1, missing, _ABOUT[run.suite])


def _source(config: dict[str, Any]) -> str:
  """Returns a sentence with what identifies the weights, and how they were run."""
  inputs = config['inputs']
  if 'predictions_sha256' in inputs:
    text = f'Predictions {inputs["predictions_sha256"][:12]}, made elsewhere.'
  else:
    changes = ', '.join(settings.changes(run_folder.flatten(config)))
    text = (f'Weights {inputs["checkpoint_sha256"][:12]}'
            f'{f" ({changes})" if changes else ""}.')
  bad = inputs.get('bad_lines', 0)
  return f'{text} {_not_used(bad)}.' if bad else text


def _not_used(bad: int) -> str:
  return f'Lines that could not be used: {bad}'


def _prompts(inputs: dict[str, Any]) -> str:
  """Returns a sentence with what identifies prompts, '' if that is not known."""
  template = inputs.get('template_sha256', '')
  return f'SHA-256 of the template of prompts: {template[:12]}.' if template else ''
