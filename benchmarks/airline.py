"""Two million flights, 20 epochs: log-loss DLM with a probit likelihood.

``python benchmarks/airline.py --data FOLDER --device cuda`` trains on all flights but 100,000 and
prints the seconds of training (without the evaluations after each epoch) and the mean log loss of
these test rows.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import directgp
from benchmarks.datasets import load
from benchmarks.models import facts, write
from benchmarks.rules import show
from directgp.likelihoods import Likelihood, Probit
from directgp.posteriors import SparsePosterior
from directgp.training import Observer, SmallGradient

TEST_ROWS = 100_000


class Looks:
    """Test losses after each epoch, and the time of training without them."""

    def __init__(self, X: Tensor, y: Tensor, every: int) -> None:
        self._X, self._y, self._every = X, y, every
        self._since, self._looking = self._now(), 0.0
        self.points: list[dict[str, object]] = []

    def see(self, step: int, posterior: SparsePosterior, likelihood: Likelihood) -> None:
        """Record the test loss of the current model."""
        now = self._now()
        loss = test_loss(posterior, likelihood, self._X, self._y)
        seconds = now - self._since - self._looking
        epoch = step // self._every
        self.points.append({"epoch": epoch, "seconds": round(seconds, 2), "NLL": round(loss, 5)})
        print(self.points[-1], flush=True)
        self._looking += self._now() - now

    def _now(self) -> float:
        if self._X.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def test_loss(posterior: SparsePosterior, likelihood: Likelihood, X: Tensor, y: Tensor) -> float:
    """Mean of −log p(y), exact."""
    marginals = posterior.predict(X)
    with torch.no_grad():
        found = directgp.log_expectation(likelihood, y, marginals.mean, marginals.variance)
    return -float(found.double().mean())


def main() -> None:
    """Train, compute the test loss after each epoch, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float32")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--num-inducing", type=int, default=200)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--objective", default="log_loss")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / "airline.json")
    arguments = parser.parse_args()
    X, y = load(arguments.data, "airline")
    order = np.random.default_rng(arguments.seed).permutation(len(y))
    test, training = order[:TEST_ROWS], order[TEST_ROWS:]
    X = (X - X[training].mean(0)) / X[training].std(0)
    dtype = getattr(torch, arguments.dtype)
    parts = [
        torch.tensor(values[rows]).to(arguments.device, dtype)
        for rows in (training, test)
        for values in (X, y)
    ]
    X_train, y_train, X_test, y_test = parts
    posterior = SparsePosterior.from_data(
        X_train[:20_000].cpu(),
        num_inducing=arguments.num_inducing,
        ard=True,
        mean="constant",
        generator=torch.Generator().manual_seed(arguments.seed),
    ).to(arguments.device)
    steps = -(-len(training) // arguments.batch_size)
    looks = Looks(X_test, y_test, steps)
    result = directgp.train(
        posterior,
        Probit(),
        X_train,
        y_train,
        objective=arguments.objective,
        beta=arguments.beta,
        start="scratch",
        optimizer="adam",
        batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
        max_steps=arguments.epochs * steps,
        stopping=SmallGradient(0.0),
        observer=Observer(steps, looks.see),
        generator=torch.Generator(arguments.device).manual_seed(arguments.seed),
    )
    about = facts(arguments.device) | {
        key: value for key, value in vars(arguments).items() if key not in ("data", "out")
    }
    write(arguments.out, {**about, "rows": len(training), "looks": looks.points})
    last = looks.points[-1]
    rate = result.steps / float(str(last["seconds"]))
    show("Airline", [{"rows": len(training), "steps": result.steps, **last, "steps/s": rate}])


if __name__ == "__main__":
    main()
