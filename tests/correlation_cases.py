"""A small study and its made-up rows for tests of `experiments.correlation`."""

import numpy as np
import pytest
from scipy import stats

from configs import correlation as config_file
from experiments.correlation import points
from vvlen.reporting.results import Row
from vvlen.tasks.tokenizers import byte_tokenizer

BYTES = byte_tokenizer()


def config_of(variant='smoke', **fields):
  config = config_file.get_config(variant)
  config.update_from_flattened_dict(fields)
  return config


KEPT = [f'{name}_{i:02}' for i in range(1, 5)
        for name in ('rope', 'low_base', 'high_base', 'alibi')]
PARTNERS = [f'{name}_01_term' for name in ('rope', 'low_base', 'high_base', 'alibi')]


def few_of_cpu(**fields):
  """Returns the study with 16 models, four partners and two seeds."""
  config = config_of('cpu', **{
      'benchmark.tasks': ('niah_single', 'qa1', 'passkey'), 'num_resamples': 300,
      'primary.tasks': ('niah_single', 'qa1'), 'num_seeds': 2,
      **fields})
  config.models = {name: config.models[name] for name in (*KEPT, *PARTNERS)}
  return config


def study_of(**fields):
  """Returns the same study as its report reads it."""
  return points.read_run(few_of_cpu(**fields).to_dict())


# Of 20 models; the alphabet puts each partner behind its model.
ORDER = np.random.default_rng(5).permutation(20)
LOSS = [*(1 + (ORDER + np.random.default_rng(6).normal(0, 9, 20)) / 20)]
EXCESS = [*((ORDER + np.random.default_rng(7).normal(0, 4, 20) + 20) / 400)]


def score_of(i, n):
  """Of model i at n L: all have learned, and beyond L they differ."""
  return 0.95 if n == 1 else 0.9 - 0.02 * ORDER[i] - 0.04 * n


def made_rows(run, score=score_of, loss=LOSS, excess=EXCESS, nll=None):
  """Returns rows of two seeds; values of model i differ in every field and length."""
  rows = []
  nll = nll or (lambda i, n: 2 + ORDER[i]**2 / 50 + n / 4)
  for i, model in enumerate(run.models):
    for seed in (0, 1):
      shift = 0.01 * seed
      row = lambda metric, n, value, of='correlation', m=model, s=seed: Row(
          of, m.name, s, n if n is None else m.tokens(n), metric, value)
      rows += [row('training_cross_entropy', None, loss[i] + shift),
               row('training_loss', None, 77.0)]
      for n in run.nll_lengths:
        rows += [row('nll', n, nll(i, n) + shift),
                 row('symmetric_kl', n, excess[i] + shift / 10 + (n - 1)),
                 row('sce', n, 5 + i / 3 + n), row('js', n, 1 / (i + 2)),
                 row('kl_first_second', n, 0.3 + (i - 1) ** 2),
                 row('kl_second_first', n, 0.2 + (i - 3) ** 2),
                 row('entropy_first', n, (i - 2) ** 2 + 0.5),
                 row('entropy_second', n, (i - 4) ** 2 + 0.7),
                 row('top1_agreement', n, 0.5 + i / 50)]
      for n in run.lengths:
        rows += [row('score', n, score(i, n) + shift, 'niah_single'),
                 row('score', n, score(i, n) - 0.06, 'qa1'),
                 *(row(f'score_{dialect}', n, score(i, n) - 0.11 * (i % less), task)
                   for task in ('niah_single', 'qa1')
                   for dialect, less in (('lm_eval', 2), ('strict', 3))),
                 # A task that does not count.
                 *(row(metric, n, 0.3 + i / 100, 'passkey') for metric in (
                     'score', 'score_lm_eval', 'score_strict')),
                 *(row(metric, n, 0.4, 'passkey') for metric in ('chance', 'shortcut')),
                 row('chance', n, 0.0, 'niah_single'),
                 row('chance', n, 0.2 + (n - 1) / 100, 'qa1'),
                 row('shortcut', n, 0.05, 'niah_single'),
                 row('shortcut', n, 0.25 + (n - 1) / 100, 'qa1')]
  return rows


@pytest.fixture(scope='module')
def run():
  return study_of()


@pytest.fixture(scope='module')
def found(run):
  return points.points(run, made_rows(run))


@pytest.fixture(scope='module')
def used(run, found):
  return points.compared(run, found)


def names_of(points):
  return [model.name for model in points.models]


def signed(value):
  """Returns a correlation or difference to two decimals, with its sign."""
  return f'{value:+.2f}'.replace('-', '−') if round(value, 2) else '0.00'


def _scipy(name):
  def statistic(x, y):
    x, y = np.round(x, 12), np.round(y, 12)  # as many right answers share a rank
    with np.errstate(invalid='ignore'):
      return getattr(stats, name)(x, y).statistic if np.ptp(x) and np.ptp(y) else np.nan
  return statistic


PEARSON, SPEARMAN = _scipy('pearsonr'), _scipy('spearmanr')
CLAIMED = {'score_near': -1, 'score_far': -1, 'nll_beyond': 1, 'score': -1, 'nll': 1}


def gain_of(x, y, z, outcome='score', r=SPEARMAN):
  """Losses and misalignment are claimed to fall with scores."""
  return CLAIMED[outcome.partition('_')[0]] * (r(x, y) - r(z, y))


def ends_of(statistic, *items):
  """Returns the percentiles 2.5 and 97.5 over 300 resamples, in a plain loop."""
  draws = np.random.default_rng(0).integers(len(items[0]), size=(300, len(items[0])))
  values = np.array([statistic(*(np.array(x)[d] for x in items)) for d in draws])
  return np.percentile(values[np.isfinite(values)], [2.5, 97.5])


def cells_of(table):
  """Returns the rows of a table as they are shown."""
  return [[column(r) for column in table.columns.values()] for r in table.records]


def less_means(names, values):
  """Returns values less the means of those with the same name."""
  names, values = np.array(names), np.array(values, float)
  return np.array([x - values[names == name].mean()
                   for name, x in zip(names, values, strict=True)])


def kinds_of(points):
  """Returns the positions and L of each model."""
  return [f'{m.positions} {m.length}' for m in points.models]
