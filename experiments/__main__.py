"""Lists what can be run: every study with its command, variants and their cost.

python -m experiments
"""

from experiments.harness import help as help_texts

if __name__ == '__main__':
  print(help_texts.studies())
