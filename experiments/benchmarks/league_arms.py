"""How much longer is a step of training with each arm of the league than with softmax?

One seed of a task of configs/league.py:cpu is trained by each arm in turn, in one
process, some steps a round. The ratio of an arm is the median over rounds of its time
to that of softmax in the same round; `processor_ratios` have processor seconds in place
of the time. On a shared machine both vary by a tenth or more from run to run. Training
lengths alone are timed; at longer inputs, entmax sorts and adaptive reads twice.

  python -m experiments.benchmarks.league_arms
"""

import argparse
import statistics
import time

import jax

from configs import league
from experiments.benchmarks import _rounds
from experiments.harness import machine
from experiments.league import arms, family, training
from experiments.league.names import CONTROL
from experiments.league.tasks import make_task
from experiments.length_generalization.training import problem
from vvlen.training.step import init_state, Problem, train_steps


def make_problem(task: str, arm: str) -> Problem:
  """Returns the training of an arm on a task of configs/league.py:cpu."""
  cell = family.task_configs(league.get_config('cpu'))[task]
  fields = arms.built_in(cell.train.max_length)[arm]
  return problem(cell, arm, training.changed_task(make_task(cell), fields, task))


def main() -> None:
  """Measures, and prints a table and, as the last line, JSON."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--task', default='retrieval')
  parser.add_argument('--arms', nargs='+', default=[
      arm for arm in league.ARMS if not arm.endswith('_layer_norm')])
  parser.add_argument('--steps', type=int, default=50)
  parser.add_argument('--rounds', type=int, default=9)
  parser.add_argument('--output', help='also write the JSON to this file')
  args = parser.parse_args()
  names = list(dict.fromkeys([CONTROL, *args.arms]))
  processor: dict[str, list[float]] = {name: [] for name in names}
  key = jax.random.key(0)

  def run(name):
    made = make_problem(args.task, name)
    advance = jax.jit(lambda state: train_steps(made, state, key, args.steps))
    state = init_state(made, key)

    def advance_once(number):
      start = time.process_time()
      jax.block_until_ready(advance(state))
      if number:  # the first one compiles
        processor[name].append(time.process_time() - start)

    return advance_once

  seconds, about = _rounds.in_turns({name: run(name) for name in names}, args.rounds)
  ratio = lambda name, of: round(statistics.median(
      x / y for x, y in zip(of[name], of[CONTROL], strict=True)), 2)
  for name in names:
    print(f'{name:14} {ratio(name, processor):5.2f} times the processor seconds, '
          f'{1e3 * statistics.median(seconds[name]) / args.steps:.2f} ms a step')
  _rounds.report({
      'processor_ratios': {name: ratio(name, processor) for name in names},
      'time_ratios': {name: ratio(name, seconds) for name in names},
      'task': args.task, 'steps': args.steps,
      'rounds': {k: [float(f'{x:.4g}') for x in v] for k, v in seconds.items()},
      'device': machine.device(),
  } | about, args.output)


if __name__ == '__main__':
  main()
