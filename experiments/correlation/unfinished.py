"""Which part of an unfinished study has results. Runs without JAX."""

from experiments.correlation.points import ModelSeed, Points, Run
from vvlen.reporting.numbers import counted


def done(run: Run, points: Points) -> set[ModelSeed]:
  """Returns the seeds of the plan that have been run, also those that are not finite.

  Args:
    run: what was planned.
    points: all models that have results.
  """
  found = {ModelSeed(model.name, seed)
           for place, model in enumerate(points.models)
           for seed in points.seeds['chance'][place]}
  return found.union(points.left_out) & _planned(run)


def _planned(run: Run) -> set[ModelSeed]:
  return {ModelSeed(model.name, seed)
          for model in run.models for seed in range(run.num_seeds)}


def how_many(run: Run, points: Points) -> str:
  """Returns how many models, or seeds of them, have results; '' if all have."""
  count, planned = len(done(run, points)), len(_planned(run))
  of_models = counted(len(run.models), 'model')
  if count == planned:
    return ''
  return (f'{count} of {of_models}' if run.num_seeds == 1
          else f'{count} of {planned} seeds of {of_models}')


def part(run: Run, points: Points) -> str:
  """Returns `how_many`, and the positions of which no model has results; '' if all."""
  count = how_many(run, points)
  names = {own.model for own in done(run, points)}
  there = {model.positions for model in run.models if model.name in names}
  missing = dict.fromkeys(
      model.positions for model in run.models if model.positions not in there)
  none = f', none with {" or ".join(missing)}' * bool(missing)
  return count and f'{count}, not a random part{none}'
