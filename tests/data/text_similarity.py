"""Computes text_similarity.json again, for the same pairs of texts.

It needs rouge==1.0.1 rouge_score==0.1.2 fuzzywuzzy==0.18.0 Levenshtein==0.27.5:

  python tests/data/text_similarity.py
"""

import difflib
import json
import pathlib

from fuzzywuzzy import fuzz
from fuzzywuzzy.StringMatcher import StringMatcher
from rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer

FILE = pathlib.Path(__file__).with_suffix('.json')


def rouge(prediction: str, answer: str) -> float:
  """Returns ROUGE-L by the package rouge, 0 where it fails, as LongBench takes it."""
  try:
    return Rouge().get_scores([prediction], [answer], avg=True)['rouge-l']['f']
  except ValueError:  # a text has no sentence
    return 0.0


def ratio(matcher: type, prediction: str, answer: str) -> float:
  """Returns fuzz.ratio / 100, by one of the two matchers that fuzzywuzzy may use."""
  fuzz.SequenceMatcher = matcher
  return fuzz.ratio(prediction, answer) / 100


def main() -> None:
  """Writes the file."""
  stored = json.loads(FILE.read_text())
  scorer = RougeScorer(['rougeL'])
  pairs = {
      'rouge': [[p, a, rouge(p, a), scorer.score(a, p)['rougeL'].fmeasure]
                for p, a, *_ in stored['rouge']],
      'ratio': [[p, a, ratio(difflib.SequenceMatcher, p, a), ratio(StringMatcher, p, a)]
                for p, a, *_ in stored['ratio']]}
  text = json.JSONEncoder(ensure_ascii=False).encode
  lists = [f'"{name}": [\n  ' + ',\n  '.join(map(text, rows)) + ']'
           for name, rows in pairs.items()]
  packages = '"packages": ' + text(stored['packages'])
  FILE.write_text('{' + ',\n'.join([packages, *lists]) + '}\n')


if __name__ == '__main__':
  main()
