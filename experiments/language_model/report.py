"""Writes the tables and figures of language models. Runs without JAX.

The outcome is perplexity at multiples of the training length L, compared by its
logarithm, in nats per token. The primary endpoint is that at 4 L (or at the longest
length, if 4 L is not measured), α = 0.1 minus α = 0, paired over seeds, with a
two-sided t-test at 5 %. Everything else is secondary and corrected by Holm: other arms
over their table; other lengths, and misalignment at each length, in separate tables.
"""

from etils import epath

from experiments.language_model import figures, step_figures, tables
from experiments.language_model.answer import answer
from experiments.language_model.arms import families, read_run, without_learning
from vvlen.reporting import plots, results, run_folder
from vvlen.reporting.curves import read_curves
from vvlen.reporting.page import missing_seeds, Report, unfinished
from vvlen.reporting.tables import write_tables

EXPERIMENT = 'language_model'
BYTES = 256  # words of a text that is read as bytes
_ABOUT = ('The loss of a language model is its cross-entropy plus α times the '
          'misalignment term, the symmetric cross-entropy (SCE) of its predictions of '
          'the same token from a context and from one that is shorter by the offset '
          'e. L is the training length. Paper: long-short alignment, arXiv '
          '2506.11769, section 5.')


def write(workdir: epath.PathLike) -> Report:
  """Writes tables and figures of a run into its folder.

  Args:
    workdir: a folder with config.json and results.csv of language models.

  Returns:
    What the run has found.

  Raises:
    ValueError: if there are no results, or they are damaged.
  """
  folder = epath.Path(workdir)
  with run_folder.reading(folder / 'config.json', of='language models') as stored:
    run = read_run(stored['config'])
    alone = not stored['config'].get('checkpoint')
    words = BYTES if alone and not stored['config']['text'].get('tokenizer') else None
  rows = results.read_run(folder, EXPERIMENT, run.arms)
  index = results.index(rows)
  have = {name: len(index.get((name, 'nll', run.length), ())) for name in run.arms}
  present = families(run, {name for name, seeds in have.items() if seeds})
  made = [table for family in present for table in (
      tables.by_arm(family, run, index, words),
      tables.by_length(family, run, index, words))]
  evaluations = read_curves(folder / 'evaluations.jsonl')
  with plots.style():
    most = tables.most_to_learn(words)
    drawn = {family.name: figures.by_length(family, run, index, most)
             for family in present}
    if evaluations:
      drawn['evaluations'] = step_figures.by_step(
          present, run, evaluations, without_learning(run, index, most))
    paths = plots.save(folder / 'figures', drawn)
  found = answer(present[0], run, index, words) if present else []
  write_tables(folder, made)
  return Report(
      'Does aligning short and long contexts help language models at longer ones?',
      found, made, paths, 1,
      unfinished(missing_seeds(have, run.num_seeds)), _ABOUT)
