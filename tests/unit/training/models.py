"""Small data and models that the tests of training share."""

from collections.abc import Iterable

import torch
from torch import Tensor

from directgp.likelihoods import Likelihood
from directgp.posteriors import SparsePosterior
from directgp.training.result import Progress, Status, Stop, TrainingResult
from directgp.training.run import Monitor

N, M = 40, 6


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def inputs(n: int = N, seed: int = 1) -> Tensor:
    """In the plane, the second feature of no use."""
    return normal(n, 2, seed=seed)


def latent(X: Tensor) -> Tensor:
    return torch.sin(2 * X[:, 0])


def regression(n: int = N, seed: int = 1, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    X = inputs(n, seed)
    return X, latent(X) + noise * normal(n, seed=seed + 1000)


def labels(n: int = N, seed: int = 1) -> tuple[Tensor, Tensor]:
    X, y = regression(n, seed)
    return X, (y > 0).double()


def counts(n: int = N, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, counts and exposures from 1/2 to 4."""
    X = inputs(n, seed)
    exposure = torch.exp2(-1 + 3 * torch.rand(n, generator=seeded(seed), dtype=torch.float64))
    rate = exposure * torch.exp(latent(X))
    return X, torch.poisson(rate, generator=seeded(seed + 2)), exposure


def start(X: Tensor, y: Tensor | None = None, m: int = M) -> SparsePosterior:
    return SparsePosterior.from_data(X, y, num_inducing=m, generator=seeded(3))


def examples(X: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in X.tolist()}


def tensors(result: TrainingResult) -> dict[str, Tensor]:
    """Every parameter of a trained model."""
    return {**named("posterior", result.posterior), **named("likelihood", result.likelihood)}


def named(prefix: str, model: SparsePosterior | Likelihood) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": p.detach().clone() for name, p in model.named_parameters()}


class StopAt(Monitor):
    """Ends a run after so many steps of all its stages together."""

    def __init__(self, steps: int, status: Status = Status.CANCELLED) -> None:
        self.left = steps
        self.seen = 0
        self.closed = 0
        self.stop = Stop(status, "Enough.")

    def __call__(self, progress: Progress) -> Stop | None:
        self.seen += 1
        return self.stop if self.seen >= self.left else None

    def reset(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


def largest(differences: Iterable[float]) -> float:
    return max(abs(difference) for difference in differences)
