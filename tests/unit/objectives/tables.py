"""The table of point losses: their likelihoods and reference values."""

from collections.abc import Callable
from dataclasses import dataclass

from mpmath import mpf

from directgp.objectives import (
    AbsoluteLoss,
    CRPSLoss,
    GibbsLoss,
    LogLoss,
    PinballLoss,
    PointLoss,
    SquareLoss,
    ZeroOneCost,
)
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, Point
from tests.reference import point_losses as reference


@dataclass(frozen=True)
class PointLossRow:
    """One point loss, and what it claims."""

    name: str
    loss: PointLoss
    likelihoods: frozenset[str]
    """Those that it serves, by their names in the table of likelihoods."""

    truth: Callable[[LikelihoodRow, Point], mpf]
    """The loss from its definition."""

    also: frozenset[str] = frozenset()
    """Others that it serves, without a reference here."""

    blind: frozenset[str] = frozenset()
    """Likelihoods under which neither variance nor noise enters."""

    tolerance: float = 1e-12
    """Relative error allowed in float64."""

    remedy: str = "Use Gaussian, or log_loss."
    """What the error for other likelihoods advises."""


EVERY = frozenset(row.name for row in LIKELIHOODS)
GAUSSIAN = frozenset({"gaussian"})
SMOOTH = frozenset({"gaussian_known_noise", "log_normal"})
LABELS = frozenset({"probit", "logistic"})
COSTS = {0.0: 0.1, 1.0: 7.0}


def pinball(level: float) -> Callable[[LikelihoodRow, Point], mpf]:
    return lambda row, point: reference.pinball(level, *point, row.theta["noise"])


def absolute(row: LikelihoodRow, point: Point) -> mpf:
    """The two sides of the median cost the same, 1 a unit."""
    return 2 * reference.pinball(0.5, *point, row.theta["noise"])


def cost(row: LikelihoodRow, point: Point) -> mpf:
    return COSTS[point.y] * reference.wrong_label(row.name, *point)


INFLATED = {"zero_inflated_poisson", "zero_inflated_negative_binomial"}
POINT_LOSSES = [
    PointLossRow("elbo", GibbsLoss(), EVERY, lambda r, p: -r.gibbs_truth(p).value, tolerance=1e-9),
    PointLossRow("log_loss", LogLoss(), EVERY, lambda r, p: -r.truth(p).value, tolerance=1e-9),
    PointLossRow(
        "square_loss",
        SquareLoss(),
        frozenset({"gaussian", "probit", "poisson_exp", "negative_binomial", *INFLATED}),
        lambda row, point: reference.square(row.name, *point),
        also=frozenset({"gaussian_known_noise", "gamma", "log_normal", "ordinal"}),
        blind=GAUSSIAN,
        # 1 − Φ loses digits where the label is nearly certain.
        tolerance=1e-10,
        remedy="log_loss",
    ),
    PointLossRow("absolute_loss", AbsoluteLoss(), GAUSSIAN, absolute, SMOOTH, blind=GAUSSIAN),
    PointLossRow("pinball_median", PinballLoss(), GAUSSIAN, pinball(0.5), SMOOTH, blind=GAUSSIAN),
    PointLossRow("pinball_high", PinballLoss(level=0.9), GAUSSIAN, pinball(0.9), SMOOTH),
    PointLossRow("pinball_low", PinballLoss(level=0.02), GAUSSIAN, pinball(0.02), SMOOTH),
    PointLossRow(
        "zero_one_cost",
        ZeroOneCost(false_positive=COSTS[0.0], false_negative=COSTS[1.0]),
        LABELS,
        cost,
        tolerance=1e-9,
        remedy="Use Probit or Logistic",
    ),
    PointLossRow(
        "crps",
        CRPSLoss(),
        GAUSSIAN,
        lambda row, point: reference.crps(*point, row.theta["noise"]),
        also=SMOOTH | {"tobit", "ordinal"},
    ),
]


def served(losses: list[PointLossRow]) -> list[tuple[PointLossRow, LikelihoodRow]]:
    """Every point loss with every likelihood that it serves."""
    return [(loss, row) for loss in losses for row in LIKELIHOODS if row.name in loss.likelihoods]


def refused(losses: list[PointLossRow]) -> list[tuple[PointLossRow, LikelihoodRow]]:
    """Every point loss with every likelihood that it does not serve."""
    return [
        (loss, row)
        for loss in losses
        for row in LIKELIHOODS
        if row.name not in loss.likelihoods | loss.also
    ]
