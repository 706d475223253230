"""Lists what can be run: every study with its command, variants and their cost.

python -m experiments
"""

import sys

from experiments.harness import errors
from experiments.harness import help as help_texts

if __name__ == '__main__':
  if sys.argv[1:]:
    errors.refuse(ValueError(
        f'unknown argument {sys.argv[1]!r}: python -m experiments.NAME runs a study'))
  help_texts.show(help_texts.studies())
