"""Timing rounds: each round runs all libraries in a random order."""

import random
from collections.abc import Callable, Mapping

from benchmarks.peers.process import Process

Times = dict[str, list[float]]

_MOST_STEPS = 2000


def steps_a_round(take: Callable[[int], float], seconds: float) -> int:
    """Return the number of steps for the given time; this also warms up.

    `take` takes a number of steps and returns the seconds of all.
    """
    take(2)
    number = 1
    while True:
        taken = take(number)
        if taken > seconds / 8 or number >= _MOST_STEPS:
            return max(1, min(_MOST_STEPS, round(seconds * number / taken)))
        number *= 4


def interleaved(tasks: Mapping[str, Callable[[], float]], rounds: int, seed: int = 0) -> Times:
    """Return the measurements of each task per round, in a new random order each round."""
    times: Times = {name: [] for name in tasks}
    shuffle = random.Random(seed).shuffle
    for _ in range(rounds):
        order = list(tasks)
        shuffle(order)
        for name in order:
            times[name].append(tasks[name]())
    return times


def steps_of(process: Process) -> Callable[[int], float]:
    """Return a function that lets the library take a number of steps and returns the seconds."""
    return lambda number: float(process.ask("steps", number=number)["seconds"])


def times_per_step(
    tasks: Mapping[str, Callable[[int], float]], rounds: int, seconds: float
) -> Times:
    """Return the seconds per step of each task in each round."""
    numbers = {name: steps_a_round(take, seconds) for name, take in tasks.items()}

    def task(name: str) -> Callable[[], float]:
        take, number = tasks[name], numbers[name]
        return lambda: take(number) / number

    return interleaved({name: task(name) for name in tasks}, rounds)


def step_times(processes: Mapping[str, Process], rounds: int, seconds: float) -> Times:
    """Return the seconds per step of each library in each round."""
    tasks = {name: steps_of(process) for name, process in processes.items()}
    return times_per_step(tasks, rounds, seconds)


def prediction_times(processes: Mapping[str, Process], rounds: int, rows: int) -> Times:
    """Return the seconds per row of each library in each round."""

    def task(process: Process) -> Callable[[], float]:
        return lambda: process.ask("predict", rows=rows)["seconds"] / rows

    return interleaved({name: task(process) for name, process in processes.items()}, rounds)
