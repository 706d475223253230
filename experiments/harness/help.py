"""What can be run: studies, the variants of their configs, and all fields. No JAX."""

import ast
import os
import pathlib
import re
import runpy
import sys
import textwrap
from typing import Any

from vvlen.reporting.run_folder import flatten

# What is no study: what makes reports again, and so on.
_OTHERS = 'report.py', 'join.py', 'compile/__main__.py'
CONFIGS = pathlib.Path(__file__).parent.parent.parent / 'configs'


def show(text: str) -> None:
  """Prints a text whose reader may close the pipe before its end, as `head` does."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    # Python flushes again when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def studies() -> str:
  """Returns the commands, variants and costs of all config files of the repository.

  After them, the commands that are no studies.
  """
  parts = []
  for path in sorted(CONFIGS.glob('*.py')):
    question, *paragraphs = _paragraphs(path)
    shown = [text for text in paragraphs
             if 'python -m ' in text or text.startswith('variant')]
    parts.append('\n\n'.join([f'configs/{path.name}\n{question}', *shown]))
  for name in _OTHERS:
    what, command, *_ = _paragraphs(CONFIGS.parent / 'experiments' / name)
    parts.append(f'experiments/{name}\n{what}\n\n{command}')
  return '\n\n\n'.join(parts)


def fields(words: list[str], text: str) -> str:
  """Returns the docstring and all fields of a config, with their types and defaults.

  Args:
    words: a command line; its --config is shown, a file with a variant if it has one.
    text: without --config, the config file of the first command in this text is shown,
      or else the first that it mentions.
  """
  given = [word.partition('=')[2] for word in words if re.match('--?config=', word)]
  mentioned = (re.findall(r'--config=(configs/\w+\.py)', text)
               or re.findall(r'configs/\w+\.py', text))
  if not given and not mentioned:
    return ''
  name, _, variant = (given or mentioned)[0].partition(':')
  path = pathlib.Path(name) if pathlib.Path(name).exists() else CONFIGS.parent / name
  if not path.exists():
    return ''
  loaded = runpy.run_path(str(path))
  config = loaded['get_config'](*[variant] if variant else []).to_dict()
  lines = [
      textwrap.fill(
          f'--config.{field}={value!r}  ({type(value).__name__})', 80,
          initial_indent=' ' * 2, subsequent_indent=' ' * 8, break_long_words=False,
          break_on_hyphens=False)
      for field, value in flatten(config).items()
  ]
  of = f'{name}:{variant}' if variant else name
  doc = _further(loaded['__doc__'] or '', text)
  return '\n'.join([doc, f'All fields of {of}:', '', *lines])


def _further(doc: str, text: str) -> str:
  """Returns a docstring without its title and command, if a text has the command."""
  paragraphs = doc.split('\n\n')[1:]
  further = [x for x in paragraphs if 'python -m ' not in x or x not in text]
  return doc if len(further) == len(paragraphs) else '\n\n'.join(further)


def _paragraphs(path: pathlib.Path) -> list[Any]:
  """Returns the paragraphs of a file's docstring."""
  return (ast.get_docstring(ast.parse(path.read_text())) or '').split('\n\n')
