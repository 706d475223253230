"""What interventions have found, in sentences. Runs without JAX."""

from collections.abc import Sequence
import math

from vvlen.reporting.endpoints import LEARNED
from vvlen.reporting.tables import number, p_words, Record


def answer(records: Sequence[Record], shortest: dict[str, float]) -> list[str]:
  """Says, for each arm, which change of the attention output restores most accuracy.

  Args:
    records: of the table `mechanism`.
    shortest: {arm: accuracy in % at the shortest length}.
  """
  said = []
  for arm, accuracy in shortest.items():
    if accuracy < 100 * LEARNED:
      said.append(f'{arm}: no verdict, {number(accuracy, ".1f")} % right at the '
                  'shortest length is too little to lose.')
      continue
    own = [r for r in records if r['arm'] == arm and math.isfinite(r['p_holm'])]
    if not own:
      said.append(f'{arm}: no verdict, fewer than two seeds that differ.')
      continue
    best = max(own, key=lambda r: r['difference'])
    ends = ', '.join(number(best[name], '+.1f') for name in ('ci_low', 'ci_high'))
    found = '' if best['p_holm'] < 0.05 else ', no difference found'
    lost = ('' if math.isnan(best['restored_percent']) else
            f', {number(best["restored_percent"], ".0f")} % of what is lost')
    said.append(
        f'{arm}: of all changes of the attention output, "{best["intervention"]}" '
        f'restores most accuracy beyond the training lengths, '
        f'{number(best["difference"], "+.1f")} points [95 %: {ends}]{lost}, '
        f'{p_words(best["p_holm"])} by Holm{found}.')
  return said
