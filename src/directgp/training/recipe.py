"""Define how to train: the settings of a run, and the defaults that depend on the data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.objectives.log_losses import GibbsLoss, resolve_point_loss
from directgp.training.callbacks import LossRange, Monitor, Observer, RelativeDecrease
from directgp.training.problems import Eliminated

OptimizerName = Literal["auto", "lbfgs", "adam"]

_FULL_BATCH_ENTRIES = 5 * 10**7
"""Entries of K_uf beyond which "auto" trains on batches."""

_BATCH_SIZE = 1024
"""Examples of a batch chosen by "auto"."""


@dataclass(frozen=True)
class Recipe:
    """The settings of a run; see `directgp.train` for the fields."""

    objective: str | PointLoss = "log_loss"
    rule: Rule | str = "auto"
    optimizer: OptimizerName = "auto"
    batch_size: int | None = None
    learning_rate: float | None = None
    max_steps: int | None = None
    stopping: Monitor | None = None
    monitors: Sequence[Monitor] = ()
    observer: Observer | None = None

    def __post_init__(self) -> None:
        names = ("auto", "lbfgs", "adam")
        require(self.optimizer in names, "optimizer", f"one of {names}", repr(self.optimizer))
        for name in ("batch_size", "max_steps"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "at least 1", value)
        rate = self.learning_rate
        require(rate is None or 0 < rate < float("inf"), "learning_rate", "positive", rate)

    @property
    def name(self) -> str:
        """Name of the objective."""
        return self.objective if isinstance(self.objective, str) else self.objective.name

    @property
    def collapsed(self) -> Literal["vfe", "fitc"] | None:
        """The objective, where it is a collapsed one."""
        if self.objective == "vfe":
            return "vfe"
        return "fitc" if self.objective == "fitc" else None

    def point_loss(self) -> PointLoss:
        """Return the loss of one example; for VFE and FITC that of the ELBO."""
        if self.collapsed is not None:
            require(self.rule == "auto", f"rule for {self.name}", "'auto'", repr(self.rule))
            return GibbsLoss()
        return resolve_point_loss(self.objective, self.rule)

    def validation_loss(self) -> PointLoss:
        """Return the loss that compares candidates: the optimised one, by its exact rule.

        ELBO, VFE and FITC are compared by log loss.
        """
        return self.point_loss().validation_loss()

    def settings(self) -> tuple[object, ...]:
        """Return the fields that decide the result of a run; callbacks do not."""
        return (
            self.objective,
            self.rule,
            self.optimizer,
            self.batch_size,
            self.learning_rate,
            self.max_steps,
        )

    def check(self, likelihood: Likelihood) -> None:
        """Raise an error for settings that do not fit each other or the likelihood."""
        if self.observer is not None:
            allowed = "'adam' with an observer"
            require(self.optimizer == "adam", "optimizer", allowed, repr(self.optimizer))
        loss = self.point_loss()
        loss.check(likelihood)
        if self.collapsed is not None:
            if not isinstance(likelihood, ConjugateLikelihood):
                raise UnsupportedError(
                    f"{self.name} needs the Gaussian likelihood. Got "
                    f"{type(likelihood).__name__}. Use 'elbo' or 'log_loss'."
                )
            self._refuse_batches(f"objective='{self.name}'", "objective='elbo'")
        if self.optimizer == "lbfgs":
            self._refuse_batches("optimizer='lbfgs'", "optimizer='adam'")
            if not loss.smooth:
                raise UnsupportedError(
                    "optimizer='lbfgs' needs a rule whose gradient is that of its value: exact, or "
                    f"bMC with its samples held and no schedule. Got {loss}. Use "
                    "optimizer='adam'."
                )

    def chosen_optimizer(self, num_data: int, num_inducing: int) -> Literal["lbfgs", "adam"]:
        """Return L-BFGS for full batches and a deterministic loss, else Adam."""
        if self.optimizer != "auto":
            return self.optimizer
        batches = self.chosen_batch_size(num_data, num_inducing) is not None
        return "adam" if batches or not self.point_loss().deterministic else "lbfgs"

    def chosen_batch_size(self, num_data: int, num_inducing: int) -> int | None:
        """Return the examples of a step; None for all."""
        if self.batch_size is not None:
            return self.batch_size if self.batch_size < num_data else None
        large = num_data * num_inducing > _FULL_BATCH_ENTRIES
        whole = self.collapsed is not None or self.optimizer == "lbfgs" or not large
        return None if whole else _BATCH_SIZE

    def chosen_learning_rate(self, batches: bool) -> float:
        """Return the paper's rate: 0.1 for all examples at once, 0.001 for batches."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-3 if batches else 0.1

    def chosen_max_steps(self, optimizer: str, likelihood: Likelihood) -> int:
        """Return 500 for L-BFGS, or the paper's 5000 (regression) or 3000 for Adam."""
        if self.max_steps is not None:
            return self.max_steps
        if optimizer == "lbfgs":
            return 500
        return 5000 if isinstance(likelihood, ConjugateLikelihood) else 3000

    def chosen_stopping(
        self, optimizer: str, likelihood: Likelihood, *, noisy: bool, held: bool
    ) -> Monitor:
        """Return the paper's rule for Adam, on a moving average where losses are noisy.

        L-BFGS over q(u) alone, in its scaled coordinates, needs a shorter window.
        """
        if self.stopping is not None:
            return self.stopping
        if optimizer == "lbfgs":
            return RelativeDecrease(10, 5e-6) if held else RelativeDecrease(20, 1e-5)
        window = 50 if isinstance(likelihood, ConjugateLikelihood) else 20
        return LossRange(window, 1e-4, smoothing=0.98 if noisy else 0.0)

    def eliminated(
        self, likelihood: Likelihood, beta: float | Tensor, optimizer: str, batches: bool
    ) -> Eliminated | None:
        """Return how q(u) is eliminated, if a formula exists; for the ELBO only with L-BFGS."""
        if self.collapsed is not None:
            return self.collapsed
        if not isinstance(likelihood, ConjugateLikelihood) or batches:
            return None
        found = self.point_loss().eliminates
        if found == "vfe" and not (optimizer == "lbfgs" and float(beta) > 0):
            return None
        return found

    def _refuse_batches(self, who: str, instead: str) -> None:
        require(
            self.batch_size is None,
            f"batch_size with {who}",
            "None: it needs all examples at once",
            self.batch_size,
            f"Use {instead} for batches.",
        )
