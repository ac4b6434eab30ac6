"""Train one model with several processes: time of a step, and the objective.

``torchrun --nproc-per-node 2 benchmarks/distributed.py`` trains on all synthetic rows in each step
and prints the wall time of a step and the last loss. Run it with 1 and with 2 processes, one
thread each (OMP_NUM_THREADS=1).
"""

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import directgp
from directgp.likelihoods import Gaussian
from directgp.posteriors import SparsePosterior
from directgp.training import Processes, SmallGradient, TrainingResult


def main() -> None:
    """Train twice; the first time is a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--num-inducing", type=int, default=100)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    random = torch.Generator().manual_seed(0)
    X = torch.randn(arguments.rows, 8, generator=random, dtype=torch.float64)
    noise = torch.randn(arguments.rows, generator=random, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * noise
    posterior = SparsePosterior.from_data(
        X[:5000], y[:5000], num_inducing=arguments.num_inducing, ard=True, generator=random
    )
    with Processes.from_torchrun() as processes:

        def train(steps: int) -> TrainingResult:
            return directgp.train(
                posterior.to(processes.device),
                Gaussian(0.1).to(processes.device),
                X.to(processes.device),
                y.to(processes.device),
                start="scratch",
                learning_rate=0.01,
                max_steps=steps,
                stopping=SmallGradient(0.0),
                processes=processes,
            )

        train(3)
        since = time.perf_counter()
        result = train(arguments.steps)
        seconds = time.perf_counter() - since
        if processes.rank == 0:
            step = f"{1000 * seconds / arguments.steps:.1f} ms a step"
            print(f"{processes.size} processes: {step}, loss {result.history[-1]:.15f}")


if __name__ == "__main__":
    main()
