"""Random problems that can break training: extreme scales, degenerate data, combinations."""

import math
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from directgp import train
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from directgp.likelihoods.counts import CountLikelihood
from directgp.objectives import PinballLoss, ZeroOneCost
from directgp.posteriors import SparsePosterior
from directgp.training.result import TrainingResult

_LOG_LOSSES = ("elbo", "log_loss")
_OBJECTIVES: dict[str, tuple[object, ...]] = {
    "Gaussian": (
        *_LOG_LOSSES,
        "vfe",
        "fitc",
        "square_loss",
        "absolute_loss",
        "pinball_loss",
        PinballLoss(0.9),
        "crps",
    ),
    "StudentT": _LOG_LOSSES,
    "Probit": (*_LOG_LOSSES, "square_loss", "zero_one_cost", ZeroOneCost(false_negative=1e3)),
    "Logistic": (*_LOG_LOSSES, "zero_one_cost"),
    "PoissonExp": (*_LOG_LOSSES, "square_loss"),
    "PoissonSoftplus": _LOG_LOSSES,
    "NegativeBinomial": (*_LOG_LOSSES, "square_loss"),
}
_FROZEN_RULES = ("bmc", "smooth_bmc")


@dataclass(frozen=True)
class Problem:
    """A call of `directgp.train`, and what is hostile about it."""

    posterior: SparsePosterior
    likelihood: Likelihood
    X: Tensor
    y: Tensor
    settings: dict[str, Any]
    traits: list[str] = field(default_factory=list)

    def train(self) -> TrainingResult:
        generator = torch.Generator().manual_seed(0)
        return train(
            self.posterior, self.likelihood, self.X, self.y, generator=generator, **self.settings
        )

    def new_inputs(self) -> Tensor:
        """Inputs among the training inputs, beside them, and far away from all."""
        centre, reach = self.X.mean(0), 1 + self.X.abs().max()
        return torch.stack([centre, centre + reach, centre - 1e3 * reach, centre + 1e6 * reach])


def hostile_problem(seed: int) -> Problem:
    """The problem of this seed."""
    draw = _Draw(seed)
    dtype = torch.float32 if draw.chance(0.15) else torch.float64
    n = draw.rng.choice([1, 2, 3, 8, 20, 40])
    X = draw.inputs(n).to(dtype)
    likelihood, y, rough = draw.likelihood(n)
    y = y.to(dtype)
    posterior = draw.posterior(X, rough.to(dtype))
    settings = draw.settings(likelihood, n)
    draw.traits += [
        f"{type(likelihood).__name__} {str(dtype)[6:]} n={n} M={len(posterior.Z)}",
        *(f"{key}={value}" for key, value in settings.items() if key != "weights"),
    ]
    return Problem(posterior, likelihood, X, y, settings, draw.traits)


class _Draw:
    """Draws the parts of a problem, and notes what each has against training."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.traits: list[str] = []

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def one_of(self, *names: str) -> str:
        """One of the names, noted as a trait."""
        name = self.rng.choice(names)
        self.traits.append(name)
        return name

    def power(self, low: float, high: float) -> float:
        return 10 ** self.rng.uniform(low, high)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.torch, dtype=torch.float64)

    def uniform(self, low: float, high: float, n: int) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=self.torch, dtype=torch.float64)

    def inputs(self, n: int) -> Tensor:
        X = self.normal(n, self.rng.choice([1, 2, 3]))
        match self.one_of(
            "plain X",
            "duplicate rows",
            "nearly duplicate rows",
            "one row only",
            "constant feature",
            "feature of rounding errors",
            "dominating feature",
            "X far from 0",
            "row far from the others",
            "lattice",
        ):
            case "duplicate rows":
                X = X[torch.randint(max(1, n // 4), (n,), generator=self.torch)]
            case "nearly duplicate rows":
                X = X[torch.randint(max(1, n // 4), (n,), generator=self.torch)]
                X = X + 1e-9 * self.normal(*X.shape)
            case "one row only":
                X = X[:1].expand(n, -1).clone()
            case "constant feature":
                X[:, -1] = self.power(-8, 8)
            case "feature of rounding errors":
                X[:, -1] = 1e4 * (1 + 1e-16 * X[:, -1])
            case "dominating feature":
                X[:, 0] *= 1e6
            case "X far from 0":
                X += 1e5
            case "row far from the others":
                X[-1] = 1e7
            case "lattice":
                X = X.round()
        return self.power(-8, 8) * X if self.chance(0.6) else X

    def likelihood(self, n: int) -> tuple[Likelihood, Tensor, Tensor]:
        """A likelihood, targets, and rough values of f."""
        signal = torch.sin(3 * self.normal(n)) + 0.1 * self.normal(n)
        name = self.rng.choice([*_OBJECTIVES])
        if name in ("Gaussian", "StudentT"):
            return self._regression(name, signal)
        if name in ("Probit", "Logistic"):
            return self._labels(name, signal)
        return self._counts(name, signal)

    def _regression(self, name: str, y: Tensor) -> tuple[Likelihood, Tensor, Tensor]:
        match self.one_of("plain y", "equal y", "zero y", "outlier", "y far from 0", "two values"):
            case "equal y":
                y = torch.full_like(y, self.rng.choice([-1.0, 1e-3, 7.0]))
            case "zero y":
                y = torch.zeros_like(y)
            case "outlier":
                y[0] = 1e6
            case "y far from 0":
                y = y + 1e6
            case "two values":
                y = y.sign()
        y = self.power(-8, 8) * y if self.chance(0.6) else y
        spread = float(y.std(correction=0)) or 1.0
        noise = self.rng.choice([0.1, 0.1 * spread**2, 1e-8 * spread**2, 1e4 * spread**2])
        if name == "Gaussian":
            return Gaussian(noise), y, y
        return StudentT(self.rng.choice([0.5, 4.0, 1e4]), math.sqrt(noise)), y, y

    def _labels(self, name: str, signal: Tensor) -> tuple[Likelihood, Tensor, Tensor]:
        y = (signal > 0).double()
        match self.one_of("plain labels", "one class", "odd one out", "random labels"):
            case "one class":
                y = torch.full_like(y, float(self.chance(0.5)))
            case "odd one out":
                y = torch.zeros_like(y)
                y[0] = 1.0
            case "random labels":
                y = (self.normal(len(y)) > 0).double()
        return Probit() if name == "Probit" else Logistic(), y, 2 * y - 1

    def _counts(self, name: str, signal: Tensor) -> tuple[Likelihood, Tensor, Tensor]:
        likelihood: CountLikelihood
        if name == "NegativeBinomial":
            likelihood = NegativeBinomial(self.rng.choice([1e-3, 1.0, 1e4]))
        else:
            likelihood = Poisson("exp") if name == "PoissonExp" else Poisson("softplus")
        rate = signal.exp()
        match self.one_of("few counts", "no counts", "thousands", "millions", "one huge count"):
            case "no counts":
                rate = 0 * rate
            case "thousands":
                rate = 1e3 * rate
            case "millions":
                rate = 1e6 * rate
        exposure = torch.ones_like(rate)
        if self.chance(0.4):
            match self.one_of("wide exposures", "huge exposures", "tiny exposures"):
                case "wide exposures":
                    exposure = 10 ** self.uniform(-6, 6, len(rate))
                case "huge exposures":
                    exposure = exposure * 1e12
                case "tiny exposures":
                    exposure = exposure * 1e-8
            likelihood = likelihood.with_exposure(exposure)
        y = torch.poisson(rate, generator=self.torch)
        if "one huge count" in self.traits:
            y[0] = 1e6
        rough = (y + 0.5) / exposure
        return likelihood, y, rough if name == "PoissonSoftplus" else rough.log()

    def posterior(self, X: Tensor, rough: Tensor) -> SparsePosterior:
        values = rough if self.one_of("scale of y", "unit scale") == "scale of y" else None
        posterior = SparsePosterior.from_data(
            X,
            values,
            num_inducing=self.rng.choice([1, 4, 15]),
            kernel=self.rng.choice(["rbf", "rbf", "matern12", "matern32", "matern52"]),
            ard=self.chance(0.5),
            mean=self.rng.choice(["zero", "constant"]),
            generator=self.torch,
        )
        kinds = ("good Z", "good Z", "good Z", "more Z than rows", "nearly equal Z", "equal Z")
        match self.one_of(*kinds):
            case "more Z than rows":
                Z = X[torch.arange(15) % len(X)]
                Z = Z + X.abs().max() * 0.1 * self.normal(*Z.shape).to(X)
            case "nearly equal Z":
                Z = X[torch.arange(10) % min(len(X), 2)]
                Z = Z + X.abs().max() * 1e-9 * self.normal(*Z.shape).to(X)
            case "equal Z":
                Z = X[torch.arange(5) % min(len(X), 2)]
            case _:
                return posterior
        return SparsePosterior(posterior.prior, Z)

    def settings(self, likelihood: Likelihood, n: int) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "objective": self.rng.choice(_OBJECTIVES[type(likelihood).__name__]),
            "beta": self.rng.choice([0.0, 1e-6, 0.01, 1.0, 1.0, 100.0, 1e6]),
            "hyperparameters": self.rng.choice(["joint", "joint", "fixed"]),
            "max_steps": self.rng.choice([1, 15, 40]),
            "optimizer": self.rng.choice(["lbfgs", "lbfgs", "adam"]),
        }
        adam = settings["optimizer"] == "adam"
        if settings["hyperparameters"] == "joint":
            # Adam's ELBO run before takes 300 steps, whatever max_steps says.
            slow = adam and n > 8
            settings["start"] = self.rng.choice(["scratch"] if slow else ["elbo", "scratch"])
        if adam and settings["objective"] not in ("vfe", "fitc") and self.chance(0.5):
            settings["batch_size"] = self.rng.choice([1, 5, 30])
        if adam and self.chance(0.3):
            settings["learning_rate"] = self.rng.choice([1e-3, 0.1, 1.0])
        if settings["objective"] == "log_loss" and self.chance(0.3):
            settings["rule"] = self.rng.choice([*_FROZEN_RULES, "ups"] if adam else _FROZEN_RULES)
        if self.chance(0.3):
            match self.one_of("weights with zeros", "one weight", "wide weights"):
                case "weights with zeros":
                    weights = (self.uniform(0, 1, n) > 0.5).double()
                    weights[0] = 1.0
                case "one weight":
                    weights = torch.zeros(n, dtype=torch.float64)
                    weights[-1] = 1.0
                case _:
                    weights = 10 ** self.uniform(-8, 8, n)
            settings["weights"] = weights
        return settings
