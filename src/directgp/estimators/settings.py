"""Define the settings of a fit: constraints of parameters, `FitSettings`, the device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, Options, StrOptions

from directgp.environment import cores
from directgp.errors import refuse, require
from directgp.estimators.column_kinds import ColumnKinds
from directgp.estimators.progress import FitProgress
from directgp.kernels import Expression
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.api import check_device, named_rule
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.posteriors.prior import MeanName
from directgp.race.race import EFFORTS, Combine
from directgp.registry import KernelName, Task
from directgp.training.callbacks import TimeBudget
from directgp.training.run import LossRange, Monitor, OptimizerName, Recipe, RelativeDecrease

_POSITIVE = Interval(Integral, 1, None, closed="left")

CONSTRAINTS: dict[str, list[Any]] = {
    "beta": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
    "hyperparameters": [StrOptions({"auto", "joint", "fixed"})],
    "kernel": [StrOptions({"auto", *get_args(KernelName)}), Kernel, Expression],
    "ard": [StrOptions({"auto"}), "boolean"],
    "mean": [StrOptions({"auto", "zero", "constant"})],
    "num_inducing": [StrOptions({"auto"}), _POSITIVE],
    "inducing": [StrOptions({"kmeans++", "random"}), "array-like"],
    "num_samples": [_POSITIVE],
    "optimizer": [StrOptions({"auto", "lbfgs", "adam"})],
    "batch_size": [StrOptions({"auto"}), _POSITIVE],
    "max_iter": [_POSITIVE, None],
    "tol": [Interval(Real, 0, None, closed="neither"), None],
    "validation_fraction": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="neither")],
    "validation": [StrOptions({"auto", "random", "forward", "groups"})],
    "standardize": ["boolean"],
    "dtype": [StrOptions({"float32", "float64"}), Options(type, {np.float32, np.float64})],
    "device": [str],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "warm_start": ["boolean"],
    "effort": [StrOptions(set(EFFORTS))],
    "time_budget": [Interval(Real, 0, None, closed="neither"), None],
    "n_jobs": [Integral, None],
    "missing": [StrOptions({"error", "impute"})],
    "combine": [StrOptions({"mixture", "best"})],
    "stack": [StrOptions({"auto", "trees"}), None, HasMethods(["fit"]), "array-like"],
    "columns": [StrOptions({"auto"}), Mapping],
}
"""Constraints of the parameters other than likelihood, objective and rule."""

STRUCTURE = (
    "kernel",
    "ard",
    "mean",
    "likelihood",
    "num_inducing",
    "inducing",
    "standardize",
    "missing",
    "combine",
    "stack",
    "columns",
)
"""Parameters that define the model; a warm start cannot change them."""

DESCRIBED = (*STRUCTURE, "objective", "beta")
"""Parameters whose values of the fit are in summaries and files, whatever is set later."""

_ROWS_FOR_CUDA = 3000
"""Rows from which CUDA is faster than the CPU."""

_WINDOW = 10
"""Steps of L-BFGS whose decrease of the mean loss decides whether it has converged."""

_NATS = 0.005
"""Default tolerance of the decrease of the sum of the losses of all rows."""

_MIN_TOLERANCE = 5e-6
"""Smallest default tolerance of the decrease of the mean loss."""

_ROWS_FOR_TREES = 100
"""Rows from which "auto" tries boosted trees."""

_MIN_INDUCING = 50
"""Smallest number of inducing inputs that "auto" starts with, if there are as many rows."""

_MAX_INDUCING = 100
"""Largest number of inducing inputs that "auto" starts with."""


def auto_inducing(num_rows: int) -> int:
    """Return a quarter of the rows, between 50 and 100; all of them if they are fewer."""
    return min(num_rows, max(_MIN_INDUCING, min(_MAX_INDUCING, num_rows // 4)))


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "beta": float,
    "ard": bool,
    "num_inducing": int,
    "num_samples": int,
    "batch_size": int,
    "max_iter": int,
    "tol": float,
    "validation_fraction": float,
    "standardize": bool,
    "verbose": int,
    "warm_start": bool,
    "time_budget": float,
    "n_jobs": int,
}
"""Types of parameters that a user may give as numbers of NumPy."""


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return validated constructor parameters with numbers of NumPy as numbers of Python."""
    return {
        name: value
        if value is None or isinstance(value, str) or name not in _CONVERTERS
        else _CONVERTERS[name](value)
        for name, value in parameters.items()
    }


@final
@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """All settings of one call of `fit` or `partial_fit`, validated.

    An estimator makes them once, from its constructor parameters (`plain_parameters`) and from the
    targets.
    """

    task: Task
    """Kind of the targets."""

    num_classes: int
    """Number of classes of labels; 2 for targets that are not labels."""

    candidates: tuple[str, ...]
    """Names of the likelihoods to compare; empty for a `Likelihood` object."""

    default_mean: MeanName
    """Prior mean for ``mean="auto"`` where f has the scale of the targets."""

    feature_names: tuple[str, ...] = ()
    """Names of the columns of X."""

    column_kinds: ColumnKinds | None = None
    """Kinds of the columns of X; None if all are plain numbers."""

    class_names: tuple[str, ...] = ()
    """The classes in words; empty for targets that are not labels."""

    betas: tuple[float, ...] = ()
    """Values of β, falling, along which a warm start trains its one member while its validation
    loss falls; empty to train it once."""

    monitors: tuple[Monitor, ...] = ()
    """Callbacks of every run, in addition to the callbacks of `verbose` and `time_budget`."""

    objective: str | PointLoss
    """Training loss, or its name."""

    beta: float | Literal["auto"]
    """Weight of the KL term."""

    hyperparameters: Literal["auto", "joint", "fixed"]
    """Which parameters are trained for the objective."""

    likelihood: str | Likelihood
    """p(y given f), its name, or "auto"."""

    kernel: str | Kernel | Expression
    """Covariance of f, its name, or "auto"."""

    ard: bool | Literal["auto"]
    """Whether each feature has a lengthscale of its own."""

    mean: MeanName | Literal["auto"]
    """Prior mean of f."""

    num_inducing: int | Literal["auto"]
    """Number of inducing inputs."""

    inducing: Any
    """Name of the method that chooses inducing inputs, or an array of them in the units of X."""

    rule: str | Rule
    """Rule for log E[p(y given f)], or its name."""

    num_samples: int
    """Samples of Monte Carlo rules."""

    optimizer: OptimizerName
    """Optimiser of a run."""

    batch_size: int | Literal["auto"]
    """Rows of one step of Adam."""

    max_iter: int | None
    """Largest number of steps of one run."""

    tol: float | None
    """Change of the mean loss below which a run has converged."""

    validation_fraction: float | Literal["auto"]
    """Share of the rows that is held out for validation."""

    validation: Literal["auto", "random", "forward", "groups"]
    """How rows are held out for validation."""

    standardize: bool
    """Whether features and real-valued targets are scaled."""

    dtype: Any
    """Precision of training, a name or a type of NumPy."""

    device: str
    """Name of the device, or "auto"."""

    random_state: Any
    """Seed of inducing inputs, splits and Monte Carlo rules."""

    verbose: int
    """How much of the progress is shown."""

    warm_start: bool
    """Whether training starts from the trained model."""

    effort: str
    """Name of one of `EFFORTS`."""

    time_budget: float | None
    """Seconds after which the best model so far is taken."""

    n_jobs: int | None
    """Number of runs at once, as in scikit-learn."""

    missing: Literal["error", "impute"]
    """What happens with NaN in X."""

    combine: Combine
    """Whether the result is a mixture of candidates, or the best one."""

    stack: Any
    """Models whose out-of-fold predictions are features: None, "auto", "trees" or estimators."""

    columns: Any
    """Kinds of columns by name or number, or "auto"."""

    def stacks(self, num_rows: int) -> tuple[bool, ...]:
        """Return whether candidates see the columns of a stack; the first is preferred.

        "auto" tries boosted trees where β is chosen, too, for tables with enough rows.
        """
        if self.stack is None:
            return (False,)
        if not isinstance(self.stack, str) or self.stack != "auto":
            return (True,)
        # A kernel or inducing inputs of the user are for the features alone.
        plain = isinstance(self.kernel, str) and isinstance(self.inducing, str)
        # Folds of the trees are random: their predictions would know the future, or new groups.
        random = self.validation in ("auto", "random")
        tried = plain and random and self.beta == "auto" and num_rows >= _ROWS_FOR_TREES
        return (True, False) if tried else (False,)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Precision of training."""
        dtype: torch.dtype = getattr(torch, np.dtype(self.dtype).name)
        return dtype

    @property
    def grows(self) -> bool:
        """Whether the search may add inducing inputs."""
        return self.num_inducing == "auto" and isinstance(self.inducing, str)

    @property
    def jobs(self) -> int:
        """Number of threads: one by default, and below 0 all cores but −1 − n_jobs."""
        if self.n_jobs is None:
            return 1
        require(self.n_jobs != 0, "n_jobs", "an integer other than 0, or None", self.n_jobs)
        return self.n_jobs if self.n_jobs > 0 else max(1, cores() + 1 + self.n_jobs)

    def new_seed(self) -> int:
        """Return the seed of this call; a `RandomState` of the user gives another for each call."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def mean_for(self, latent_scale: str) -> MeanName:
        """Return the prior mean of f on this scale."""
        if self.mean != "auto":
            return self.mean
        # Only f on the scale of standardised targets has the mean 0.
        return "constant" if latent_scale else self.default_mean

    def inducing_number(self, num_rows: int) -> int:
        """Return the number of inducing inputs for this number of distinct rows."""
        if not isinstance(self.inducing, str):
            return len(np.asarray(self.inducing))
        if self.num_inducing == "auto":
            return auto_inducing(num_rows)
        return min(self.num_inducing, num_rows)

    def recipe(self, *, num_rows: int, num_inducing: int) -> Recipe:
        """Return objective, rule, optimiser, callbacks and stopping rule."""
        rule = self.rule
        if isinstance(rule, str) and rule != "auto":
            rule = named_rule(rule).with_num_samples(self.num_samples)
        monitors = [*self.monitors]
        if self.verbose:
            monitors.append(FitProgress(self.verbose))
        if self.time_budget is not None:
            monitors.append(TimeBudget(self.time_budget))
        recipe = Recipe(
            objective=self.objective,
            rule=rule,
            optimizer=self.optimizer,
            batch_size=None if self.batch_size == "auto" else self.batch_size,
            max_steps=self.max_iter,
            monitors=monitors,
        )
        return replace(recipe, stopping=self._stopping(recipe, num_rows, num_inducing))

    def _stopping(self, recipe: Recipe, num_rows: int, num_inducing: int) -> Monitor | None:
        """Return the stopping rule; None for the default of Adam."""
        if recipe.chosen_optimizer(num_rows, num_inducing) == "lbfgs":
            default = max(_MIN_TOLERANCE, _NATS / num_rows)
            return RelativeDecrease(_WINDOW, default if self.tol is None else self.tol)
        if self.tol is None:
            return None
        batches = recipe.chosen_batch_size(num_rows, num_inducing) is not None
        noisy = batches or not recipe.point_loss().deterministic
        return LossRange(50, self.tol, smoothing=0.98 if noisy else 0.0)


def device_of(name: str, who: str, num_rows: int | None = None) -> torch.device:
    """Return the device of that name; "auto" is CUDA if available, for many rows."""
    if name == "auto":
        gains = num_rows is None or num_rows >= _ROWS_FOR_CUDA
        return torch.device("cuda" if gains and torch.cuda.is_available() else "cpu")
    owner = f"device of {who}"
    remedy = "Use device='auto' or 'cpu'."
    try:
        device = torch.device(name)
    except RuntimeError:
        refuse(owner, "'auto', 'cpu' or 'cuda'", repr(name), remedy)
    if device.type == "cuda" and not torch.cuda.is_available():
        got = f"{name!r}, and no CUDA device can be used here"
        refuse(owner, "one that this machine has", got, remedy)
    check_device(owner, device)
    return device
