"""The names and kinds of arms in tables and figures; `arms` defines the arms.

Runs without JAX.
"""

from collections.abc import Iterable
from typing import NamedTuple

CONTROL = 'softmax'
# The tasks, in the order of tables and figures; those of the user follow.
TASKS = ('retrieval', 'lookup', 'associative_recall', 'set_complement')

# What multiplies the logits of trained softmax models: suffix of the arm -> label.
AT_INFERENCE = {
    'power': 'n^p', 'power_of_log': '(log n)^q', 'trained_power': 'n^p of training',
    'fitted': 'adaptive, fitted', 'adaptive': 'adaptive, published',
}

# Of β = s ln n with a learned s and β = ln n / ln n₀: W_Q and W_K can hold the factor.
SAME_LAW = ('ssmax', 'log_n')

# Kind -> what it changes, for legends, with its colour and marker.
KINDS = {
    'temperature': ('law of temperature', '#D55E00', 'o'),
    'norm': ('norm of the output', '#009E73', '^'),
    'both': ('temperature + LN', '#CC79A7', 'D'),
    'weights': ('other weights', '#56B4E9', 's'),
    'other': ('QK-norm, gate', '#E69F00', 'v'),
    'own': ('of the user', '#000000', 'X'),
    'control': ('softmax', '#0072B2', 'o'),
}


class Name(NamedTuple):
  """How an arm is shown."""

  label: str
  kind: str  # of KINDS


TEMPERATURES = {
    'ssmax': 'SSMax', 'log_n': 'log n', 'sqrt_log_n': '√log n', 'power': 'n^p',
    'linear': 'β ∝ n', 'adaptive': 'trained adaptive',
}
NAMES = {
    CONTROL: Name('softmax', 'control'),
    'layer_norm': Name('LN', 'norm'),
    'standardize': Name('standardized', 'norm'),
    'rms_norm': Name('RMSNorm', 'norm'),
    **{name: Name(label, 'temperature') for name, label in TEMPERATURES.items()},
    'l2_softmax': Name('L2 softmax', 'weights'),
    'entmax': Name('entmax-1.5', 'weights'),
    'sigmoid': Name('sigmoid', 'weights'),
    'sink': Name('sink', 'weights'),
    'qk_norm': Name('QK-norm', 'other'),
    'qk_norm_log_n': Name('QK-norm × log n', 'other'),
    'gated': Name('gated', 'other'),
    **{f'{name}_layer_norm': Name(f'{label} + LN', 'both')
       for name, label in TEMPERATURES.items()},
}


def name_of(arm: str) -> Name:
  """Returns how an arm is shown; one that is not in `NAMES` is of the user."""
  return NAMES.get(arm, Name(arm, 'own'))


def in_words(task: str) -> str:
  """Returns how a task is shown, such as 'set complement'."""
  return task.replace('_', ' ')


def in_order(names: Iterable[str]) -> list[str]:
  """Returns arms in the order of `NAMES`, or tasks in that of `TASKS`, others last."""
  places = {name: i for i, name in enumerate((*NAMES, *TASKS))}
  return sorted(names, key=lambda name: (places.get(name, len(places)), name))
