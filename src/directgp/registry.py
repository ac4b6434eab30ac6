"""Register likelihoods, point losses and rules: one row each, with its name and its class.

This module imports no other library, so the command line can list the names without torch. A row
names its class as ``"module:Class"``, and the class is imported when it is first used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from typing import Any, Literal, TypeVar

from directgp.errors import refuse

Task = Literal["regression", "classification", "count"]
KernelName = Literal["rbf", "matern12", "matern32", "matern52"]

ColumnKind = Literal["number", "time", "category", "group", "place"]
"""What the values of a column are; of a place, latitude or longitude in degrees."""

Missing = Literal["error", "drop", "level", "impute"]
"""What to do with missing values of a table."""

Dates = Literal["error", "days", "dmy", "mdy"]
"""What to do with dates: raise, or days since 1970; of 1/2/2020 the day or the month is first."""


@dataclass(frozen=True)
class Row:
    """A class that users choose by name."""

    name: str
    """The name in estimators, in `directgp.train` and on the command line."""

    source: str
    """``"module:Class"``."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Constructor arguments that the name stands for."""

    @property
    def kind(self) -> str:
        """The name of the class, by which files refer to it."""
        return self.source.rpartition(":")[2]

    def load(self) -> Any:
        """Return the class."""
        return getattr(import_module(self.source.partition(":")[0]), self.kind)

    def make(self) -> Any:
        """Return an instance with the settings of the row."""
        return self.load()(**self.settings)


@dataclass(frozen=True)
class LikelihoodRow(Row):
    """A likelihood; the first row of a task is the default of that task."""

    task: Task = "regression"
    """The kind of the targets."""

    auto: bool = False
    """Whether ``likelihood="auto"`` of the estimators compares it with the others of its task, for
    targets that it `suits`."""

    many_classes: bool = False
    """Whether it is for labels of any number of classes, with their number as first argument."""

    auto_for: Literal["", "positive", "proportion", "changing noise"] = ""
    """Targets for which "auto" compares it, too: skewed positive ones, or proportions, or those
    whose residuals scatter more in some places than in others."""

    conjugate: bool = False
    """Whether the noise is Gaussian, so that square loss, VFE and FITC apply."""

    def make(self, num_classes: int = 2) -> Any:
        """Return an instance with the settings of the row."""
        return self.load()(num_classes) if self.many_classes else super().make()


@dataclass(frozen=True)
class OwnLikelihoodRow(LikelihoodRow):
    """A likelihood that the user has registered in this process."""

    cls: Any = None

    @property
    def kind(self) -> str:
        """The registered name, by which files refer to it."""
        return self.name

    def load(self) -> Any:
        """Return the class."""
        return self.cls


@dataclass(frozen=True)
class LossRow(Row):
    """A point loss."""

    evidence: bool = False
    """Whether, with β = 1, it bounds or approximates the log evidence."""

    collapsed: bool = False
    """Whether q(u) is eliminated from the objective, as in VFE and FITC."""


@dataclass(frozen=True)
class RowConstant:
    """A number that each row of the data brings to its likelihood, besides features and target."""

    name: str
    """The argument of the estimators, and the option of the command line."""

    task: Task
    """The kind of the targets."""

    allowed: str
    """Which values are allowed, in words."""

    valid: Callable[[Any], Any]
    """Returns which values of an array of numpy or torch are allowed."""

    scales: Literal["not", "as target", "as variance"] = "not"
    """How the values change where the targets are standardised."""

    proportional: bool = False
    """Whether the mean of y is proportional to the constant, for a given f."""

    @property
    def of_target(self) -> bool:
        """Whether it is a part of the target, such as its upper end: predictions do not use it."""
        return self.scales == "as target"


MAX_COUNT = 2**53
"""Largest count: float64 does not tell larger ones from their neighbours."""

LARGEST = 1e150
"""Magnitude up to which numbers of the user are taken: float64 has room for the sum of many
squares. Below it every computation is finite; beyond it, the unit of the number is wrong."""

_POSITIVE = (
    f"positive, from {1 / LARGEST:g} to {LARGEST:g}",
    # float32 rounds the limits to 0 and infinity.
    lambda values: (0 < values) & (values < inf) & (1 / LARGEST <= values) & (values <= LARGEST),
)

ROW_CONSTANTS = {
    constant.name: constant
    for constant in (
        RowConstant("exposure", "count", *_POSITIVE, proportional=True),
        RowConstant(
            "trials",
            "count",
            f"whole numbers from 1 to {MAX_COUNT:,}",
            lambda values: (1 <= values) & (values <= MAX_COUNT) & (values % 1 == 0),
            proportional=True,
        ),
        RowConstant("noise", "regression", *_POSITIVE, scales="as variance"),
        RowConstant(
            "upper",
            "regression",
            f"infinity or numbers, of a magnitude up to {LARGEST:g}",
            lambda values: (values > -inf) & ((abs(values) <= LARGEST) | (values == inf)),
            scales="as target",
        ),
    )
}
"""Constants of rows by name; a likelihood uses at most one of them, its `row_argument`."""


SomeRow = TypeVar("SomeRow", bound=Row)


class Registry(dict[str, SomeRow]):
    """Rows by name, in order."""

    def __init__(self, *rows: SomeRow) -> None:
        super().__init__((row.name, row) for row in rows)

    def classes(self) -> dict[str, Any]:
        """Return every class by its name in files."""
        return {row.kind: row.load() for row in self.values()}


_LIKELIHOODS = "directgp.likelihoods"
_LOSSES = "directgp.objectives"
_RULES = "directgp.log_expectations"

LIKELIHOODS = Registry(
    LikelihoodRow("gaussian", f"{_LIKELIHOODS}.gaussian:Gaussian", auto=True, conjugate=True),
    LikelihoodRow("student_t", f"{_LIKELIHOODS}.student_t:StudentT", auto=True),
    LikelihoodRow(
        "heteroscedastic",
        f"{_LIKELIHOODS}.heteroscedastic:HeteroscedasticGaussian",
        auto_for="changing noise",
    ),
    LikelihoodRow("gamma", f"{_LIKELIHOODS}.gamma:Gamma", auto_for="positive"),
    LikelihoodRow("log_normal", f"{_LIKELIHOODS}.log_normal:LogNormal", auto_for="positive"),
    LikelihoodRow("beta", f"{_LIKELIHOODS}.beta:Beta", auto_for="proportion"),
    LikelihoodRow("gaussian_known_noise", f"{_LIKELIHOODS}.gaussian:GaussianKnownNoise"),
    LikelihoodRow("tobit", f"{_LIKELIHOODS}.tobit:Tobit"),
    LikelihoodRow("weibull", f"{_LIKELIHOODS}.weibull:Weibull"),
    LikelihoodRow("probit", f"{_LIKELIHOODS}.bernoulli:Probit", task="classification", auto=True),
    LikelihoodRow("logistic", f"{_LIKELIHOODS}.bernoulli:Logistic", task="classification"),
    LikelihoodRow(
        "softmax",
        f"{_LIKELIHOODS}.softmax:Softmax",
        task="classification",
        auto=True,
        many_classes=True,
    ),
    LikelihoodRow(
        "robust_max",
        f"{_LIKELIHOODS}.softmax:RobustMax",
        task="classification",
        many_classes=True,
    ),
    LikelihoodRow(
        "ordinal",
        f"{_LIKELIHOODS}.ordinal:OrderedProbit",
        task="classification",
        many_classes=True,
    ),
    LikelihoodRow("poisson", f"{_LIKELIHOODS}.counts:PoissonExp", task="count", auto=True),
    LikelihoodRow("poisson_softplus", f"{_LIKELIHOODS}.counts:PoissonSoftplus", task="count"),
    LikelihoodRow(
        "negative_binomial", f"{_LIKELIHOODS}.counts:NegativeBinomial", task="count", auto=True
    ),
    LikelihoodRow(
        "com_poisson",
        f"{_LIKELIHOODS}.conway_maxwell:ConwayMaxwellPoisson",
        task="count",
        auto=True,
    ),
    LikelihoodRow("binomial", f"{_LIKELIHOODS}.binomial:Binomial", task="count"),
    LikelihoodRow(
        "zero_inflated_poisson",
        f"{_LIKELIHOODS}.zero_inflated:ZeroInflatedPoisson",
        task="count",
        auto=True,
    ),
    LikelihoodRow(
        "zero_inflated_negative_binomial",
        f"{_LIKELIHOODS}.zero_inflated:ZeroInflatedNegativeBinomial",
        task="count",
        auto=True,
    ),
)

LOSSES = Registry(
    LossRow("log_loss", f"{_LOSSES}.base:LogLoss"),
    LossRow("square_loss", f"{_LOSSES}.pointwise:SquareLoss"),
    LossRow("elbo", f"{_LOSSES}.base:GibbsLoss", evidence=True),
    LossRow("vfe", f"{_LOSSES}.base:GibbsLoss", evidence=True, collapsed=True),
    LossRow("fitc", f"{_LOSSES}.base:GibbsLoss", evidence=True, collapsed=True),
    LossRow("crps", f"{_LOSSES}.pointwise:CRPSLoss"),
    LossRow("absolute_loss", f"{_LOSSES}.pointwise:AbsoluteLoss"),
    LossRow("pinball_loss", f"{_LOSSES}.pointwise:PinballLoss"),
    LossRow("zero_one_cost", f"{_LOSSES}.pointwise:ZeroOneCost"),
)

RULES = Registry(
    Row("closed_form", f"{_RULES}.rule:ClosedForm"),
    Row("quadrature", f"{_RULES}.rule:Quadrature"),
    Row("bmc", f"{_RULES}.monte_carlo:BiasedMonteCarlo"),
    Row("smooth_bmc", f"{_RULES}.monte_carlo:BiasedMonteCarlo", {"nu": 1e-4}),
    Row("ups", f"{_RULES}.product_sampling:ProductSampling"),
)


def likelihoods_of(task: Task, auto: bool = False, num_classes: int = 2) -> tuple[str, ...]:
    """Return the names of the likelihoods of a task, or those that "auto" compares."""
    many = num_classes > 2
    rows = [row for row in LIKELIHOODS.values() if row.task == task]
    rows = [row for row in rows if row.many_classes or not many]
    if auto:
        rows = [row for row in rows if row.auto and row.many_classes == many]
    return tuple(row.name for row in rows)


def chosen_likelihood(task: Task, name: str | None, num_classes: int = 2) -> str:
    """Return the name, or the default of the task for None; raise if it is of another task."""
    allowed = likelihoods_of(task, num_classes=num_classes)
    if name is not None and name not in allowed:
        what = f"{num_classes} classes" if num_classes > 2 else task
        refuse("likelihood", f"one of {', '.join(allowed)} for {what}", repr(name))
    return name or allowed[0]
