"""Perplexities printed in arXiv 2506.11769, to compare with ours. Runs without JAX.

Single runs of Llama-2-7B after 50, 100 and 200 steps; CLEX is trained at L = 4,096 and
measured at 8,192. From Tables 7, 9 and 10, and from Tables 2, 3 and 6 as far as our
copy of the paper has them.
"""

from collections.abc import Mapping
import math

Steps = tuple[float, float, float]

# setting -> α -> perplexity after 50, 100 and 200 steps.
ALPHA: Mapping[str, Mapping[str, Steps]] = {
    'CLEX on RedPajama-Book': {
        '0': (7.21, 6.56, 6.12), '0.1': (6.89, 6.24, 5.88), '0.3': (6.95, 6.35, 5.98),
        '0.5': (7.44, 7.01, 6.54), '1': (16.21, 14.12, 12.92),
    },
    'CLEX on PG19': {
        '0': (8.92, 7.89, 7.45), '0.1': (8.95, 7.92, 7.35), '0.5': (9.42, 8.59, 8.21),
    },
    'LongQLoRA': {
        '0': (6.82, 6.41, 5.82), '0.1': (6.72, 6.39, 5.77), '0.5': (7.07, 6.62, 5.92),
    },
    'EABF': {
        '0': (6.89, 6.52, 6.01), '0.1': (6.92, 6.43, 5.91), '0.5': (7.14, 6.78, 6.34),
    },
}
# range of e -> perplexity after 50, 100 and 200 steps; LongQLoRA, α = 0.1.
OFFSETS: Mapping[str, Steps] = {
    'e up to L/2': (6.72, 6.39, 5.77), 'up to L/4': (6.77, 6.29, 5.81),
    'L/4 to L/2': (6.82, 6.47, 5.94), 'up to L': (15.65, 13.59, 12.52),
}
# setting -> perplexity at α = 0.1 after 47, 95 and 190 steps.
EQUAL_TIME: Mapping[str, Steps] = {
    'CLEX on RedPajama-Book': (6.92, 6.27, 5.91), 'CLEX on PG19': (9.02, 8.01, 7.39),
    'LongQLoRA': (6.79, 6.42, 5.74), 'EABF': (7.01, 6.48, 5.86),
}
_SINGLE = 'perplexity after 50 / 100 / 200 steps, single runs'


# Method of `experiments.adapt` -> settings of `ALPHA`.
_METHODS = {'clex': ('CLEX on RedPajama-Book', 'CLEX on PG19'),
            'longqlora': ('LongQLoRA',), 'eabf': ('EABF',)}


def changes() -> tuple[float, float]:
  """Returns the least and the largest change of log perplexity by α = 0.1, in `ALPHA`.

  After 200 steps, in nats.
  """
  found = [math.log(by_alpha['0.1'][-1] / by_alpha['0'][-1])
           for by_alpha in ALPHA.values()]
  return min(found), max(found)


def note(family: str) -> str:
  """Returns the paper's results for a family of arms; '' if it has none."""
  if family in _METHODS:
    settings = '. '.join(
        f'{name}: {_rows(ALPHA[name], "α = ")}; α = 0.1 after 47 / 95 / 190 steps, in '
        f'equal time: {_steps(EQUAL_TIME[name])}' for name in _METHODS[family])
    return f'The paper (Llama-2-7B, {_SINGLE}). {settings}.'
  if family == 'alpha':
    settings = '. '.join(f'{name}: {_rows(rows, "α = ")}' for name, rows in
                         ALPHA.items())
    return (f'The paper (Tables 2, 3 and 6, Llama-2-7B, {_SINGLE}; CLEX at 8,192, '
            f'twice its L). {settings}.')
  if family == 'offsets':
    return f'The paper (Table 7, LongQLoRA, α = 0.1, {_SINGLE}): {_rows(OFFSETS)}.'
  if family == 'equal_time':
    pairs = '; '.join(f'{name} {_steps(ALPHA[name]["0"])}, {_steps(steps)}'
                      for name, steps in EQUAL_TIME.items())
    return ('In as much time as its baseline the paper trains 0.95 of the steps; so '
            'does this arm (what the term costs here: '
            'experiments/benchmarks/regularizer_cost.py). The paper (Tables 9 and 10, '
            'perplexity, single runs), α = 0 after 50 / 100 / 200 steps, then 0.1 '
            f'after 47 / 95 / 190: {pairs}.')
  return ''


def _rows(rows: Mapping[str, Steps], prefix: str = '') -> str:
  return prefix + '; '.join(f'{name} {_steps(steps)}' for name, steps in rows.items())


def _steps(steps: Steps) -> str:
  return ' / '.join(f'{x:.2f}' for x in steps)
