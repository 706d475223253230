"""What the training of one seed reports: progress, learning curves, evaluations."""

from collections.abc import Callable, Mapping
from typing import Any

from etils import epath
import numpy as np

from experiments.harness.progress import Progress
from experiments.harness.run_loop import curves_of
from experiments.language_model import measuring
from vvlen.reporting import results

# parameters -> {metric: {length: value}}
Measure = Callable[[Any], dict[str, Any]]


class SeedReports:
  """The reports of one seed of an arm, for `vvlen.training.loop.train`."""

  def __init__(
      self, folder: epath.Path, name: str, seed: int, steps_per_call: int,
      progress: Progress, measure: Measure,
  ):
    """Begins before the first step, or at the last checkpoint.

    Args:
      folder: of the run.
      name: of the arm.
      seed: the seed.
      steps_per_call: steps between two calls of `on_metrics`.
      progress: counts steps.
      measure: measures a model.
    """
    self._name, self._seed, self._steps_per_call = name, seed, steps_per_call
    self._progress, self._measure = progress, measure
    self._curves = curves_of(folder)
    self._evaluations = curves_of(folder, 'evaluations')
    self._reached = 0  # steps that progress has counted
    self._measured: dict[str, Any] = {}  # at the last evaluation

  def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
    """Adds the metrics up to a step to the learning curves, and shows the progress."""
    if not self._reached:
      self._reached = max(0, step - self._steps_per_call)
      self._progress.skip(self._reached)
    self._curves.add(self._name, step, self._seed,
                     {name: np.array([x]) for name, x in metrics.items()})
    self._progress.show(
        f'{self._name}, seed {self._seed}, loss {metrics["loss"]:.3f}',
        step - self._reached)
    self._reached = step

  def evaluate(self, step: int, state: Any) -> None:
    """Measures the model at a step."""
    with self._progress.measuring(f'{self._name}, seed {self._seed}'):
      self._measured = self._measure(state.params)
    self._evaluations.add(self._name, step, self._seed, {
        f'{metric}_{length}': np.array([value])
        for metric, values in self._measured.items()
        for length, value in values.items()
    })

  def flush(self) -> None:
    """Writes the curves to disk."""
    self._curves.flush()
    self._evaluations.flush()

  def rows(self, experiment: str) -> list[results.Row]:
    """Returns the rows of the seed: its last evaluation, and the end of training."""
    late: dict[str, Any] = {
        f'training_{metric}': {
            None: self._curves.late_mean(self._name, self._seed, metric)[0]}
        for metric in ('loss', 'cross_entropy', 'misalignment')
    }
    return measuring.rows_of(
        self._name, self._seed, {**self._measured, **late}, experiment)
