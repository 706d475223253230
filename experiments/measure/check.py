"""Checks configurations of `experiments.measure`."""

from typing import Any

from experiments.harness import fields, positions
from experiments.harness.fields import flag, one_of, real, several, text, whole

# Numbers of layers or heads; (): all.
_SOME = several(whole(least=0), least=0, once=True)
_MULTIPLES = several(real(above=0, most=fields.INT32))  # lengths in units of L
_FIELDS = {
    'seed': fields.seed(),
    'checkpoint': text(),
    'text': text(),
    'length': whole(least=0),
    'num_resamples': whole(least=1),
    'num_characters': whole(least=1, most=fields.INT64),
    'dtype': one_of(('', *fields.DTYPES)),
    'tokens_at_once': whole(least=1),
    **fields.MESH,
    **positions.FIELDS,
    'perplexity.lengths': _MULTIPLES,
    'perplexity.num_windows': whole(least=1),
    'perplexity.stride': real(above=0, most=1, why='in units of the window'),
    'perplexity.begin': flag(),
    'misalignment.lengths': _MULTIPLES,
    'misalignment.offsets': several(whole(least=1), once=True),
    'misalignment.num_sequences': whole(least=2),
    'spread.layers': _SOME,
    'spread.heads': _SOME,
    'spread.shortest': whole(least=1),
    'spread.longest': real(above=0, most=fields.INT32),
    'spread.num_sequences': whole(least=2),
    'spread.num_queries': whole(least=1),
    'spread.num_components': whole(least=0),
    'entropy.layers': _SOME,
    'entropy.shortest': whole(least=1),
    'entropy.longest': real(above=0, most=fields.INT32),
    'entropy.num_sequences': whole(least=2),
    'recency.layers': _SOME,
    'recency.num_tokens': whole(least=3, why='because triples are compared'),
    'recency.num_queries': whole(least=1),
    'recency.num_sequences': whole(least=2),
}


def check(config: Any) -> None:
  """Raises ValueError if a configuration cannot be run with any checkpoint."""
  fields.check(config, _FIELDS)
  if not config.checkpoint:
    raise ValueError('--checkpoint is missing')
  if config.recency.num_queries > config.recency.num_tokens:
    raise ValueError(
        'config.recency.num_queries must not exceed num_tokens: '
        f'{config.recency.num_queries}, {config.recency.num_tokens}')
