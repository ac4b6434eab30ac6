"""Compute exact scores of predictions for test rows; they do not depend on the training rule."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.predictive.mixture import PredictiveMixture
from directgp.shapes import Marginals, Row

__all__ = [
    "BINS",
    "BRIER",
    "COVERAGE",
    "COVERED",
    "CRPS",
    "ECE",
    "ERROR",
    "MRE",
    "MSE",
    "NLL",
    "RMSE",
    "SCORES",
    "Judged",
    "Reliability",
    "Score",
    "judge",
    "judge_mixture",
    "one_against_rest",
    "reliability",
]

Column = NDArray[np.float64]
Chances = Float[Tensor, "n c"]

COVERAGE = 0.9
"""Probability of the intervals whose coverage is reported."""

BINS = 10
"""Bins of equal width into which predicted probabilities of classes are sorted."""


@final
@dataclass(frozen=True)
class Score:
    """Description of a score."""

    name: str
    """Key of the score in tables and files."""

    label: str
    """Name of the score in reports."""

    about: str
    """The definition, and how to read a value."""

    better: Literal["lower", "nominal"] = "lower"
    """"nominal" if values near `COVERAGE` are better."""

    share: bool = False
    """Whether the score is a share of the rows."""


NLL = Score(
    "nll",
    "NLL",
    "Negative log-likelihood: the mean of −log of the predicted probability (or density) of the "
    "actual value, in nats. Lower is better; it evaluates the mean and the uncertainty together, "
    "and a difference of 0.1 is a factor of 1.1 in probability.",
)
RMSE = Score(
    "rmse", "RMSE", "Root of the mean squared error of the predicted mean, in the target's units."
)
MSE = Score("mse", "MSE", "Mean squared error of the predicted mean.")
ERROR = Score(
    "error", "error", "Share of rows whose most probable class is not the true one.", share=True
)
MRE = Score("mre", "MRE", "Mean of |predicted mean − y| / max(1, y).")
CRPS = Score(
    "crps",
    "CRPS",
    "Continuous ranked probability score: the distance of the predicted distribution from the "
    "actual value, in the units of the target. Lower is better; it is less sensitive to outliers "
    "than NLL.",
)
BRIER = Score(
    "brier",
    "Brier",
    "Mean of half the sum of (probability − 1 or 0)² over the classes, 1 for the true one.",
)
ECE = Score(
    "ece",
    "ECE",
    f"Expected calibration error: mean distance of the predicted probability of a class from its "
    f"observed share, over {BINS} bins of equal width, with every class of every row.",
)
COVERED = Score(
    "coverage",
    "coverage",
    "Share of test rows inside their central 90 % interval; a count at its end counts in part. It "
    "should be near 90 %; more means that the intervals are too wide, less that they are too "
    "narrow.",
    "nominal",
    True,
)

SCORES = {
    "regression": (NLL, RMSE, MSE, CRPS, COVERED),
    "classification": (NLL, ERROR, BRIER, ECE),
    "count": (NLL, RMSE, MRE, CRPS, COVERED),
}
"""Scores by task; NLL first, then those common for the task."""


@final
@dataclass(frozen=True)
class Reliability:
    """Predicted probabilities in bins of equal width, without empty bins."""

    count: Column
    """Number of probabilities in each bin."""

    predicted: Column
    """Mean probability in each bin."""

    observed: Column
    """Share of ones in each bin."""

    @property
    def expected_error(self) -> float:
        """Mean distance of predicted and observed, weighted by counts (ECE)."""
        distance = np.abs(self.predicted - self.observed)
        return float(np.average(distance, weights=self.count))

    def error_by_chance(self, times: float = 1.0) -> float:
        """Return a bound that the expected error of calibrated probabilities seldom exceeds.

        The distance of a bin is |N(0, σ²)| with σ² = p(1 − p)/n: the bound is the mean of their
        sum plus two standard deviations. Rows that occur several times, as in repeats that share
        them, carry less information: σ² grows by `times`.
        """
        share = self.count / self.count.sum()
        spread = self.predicted * (1 - self.predicted)
        part = share * np.sqrt(times * spread / self.count)
        mean = math.sqrt(2 / math.pi) * part.sum()
        variance = (1 - 2 / math.pi) * (part**2).sum()
        return float(mean + 2 * math.sqrt(variance))


def reliability(ones: Column, probability: Column, bins: int = BINS) -> Reliability:
    """Return the share of ones for each bin of predicted probabilities."""
    index = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins).astype(np.float64)
    filled = count > 0
    predicted, observed = (
        np.bincount(index, weights=column, minlength=bins)[filled] / count[filled]
        for column in (probability, ones)
    )
    return Reliability(count[filled], predicted, observed)


def one_against_rest(labels: Column, chances: NDArray[np.float64]) -> tuple[Column, Column]:
    """Return 1 or 0 and its probability for each class of each row; of two classes the second.

    The first of two would add nothing: its distances are the same.
    """
    if chances.shape[1] == 2:
        return labels, chances[:, 1]
    is_class = labels[:, None] == np.arange(chances.shape[1])
    return is_class.astype(np.float64).ravel(), chances.ravel()


@final
@dataclass(frozen=True)
class Judged:
    """Test rows and their predictions, each of shape (n,), in the units of y."""

    actual: Row
    """Targets y."""

    mean: Row
    """Predicted mean; for labels the probability of class 1, or the mean of the class number."""

    lower: Row
    """Lower end of the interval of probability `COVERAGE`."""

    upper: Row
    """Upper end of the interval."""

    below: Row
    """P(Y < y)."""

    up_to: Row
    """P(Y ≤ y)."""

    scores: dict[str, Row]
    """Values of each row, by the name of the score; RMSE has the squares, of the name "mse"."""

    chances: Chances | None = None
    """Probabilities of three or more classes."""

    def means(self) -> dict[str, float]:
        """Return the mean of each score, the root of the mean squared error, and the ECE."""
        means = {name: float(values.mean()) for name, values in self.scores.items()}
        if "brier" in means:
            two = torch.stack([1 - self.mean, self.mean], 1)
            chances = (two if self.chances is None else self.chances).numpy()
            pairs = one_against_rest(self.actual.numpy(), chances)
            finite = bool(np.isfinite(pairs[1]).all())
            means["ece"] = reliability(*pairs).expected_error if finite else math.nan
        return {"rmse": math.sqrt(means["mse"]), **means} if "mse" in means else means


@torch.no_grad()
def judge(
    task: str,
    likelihood: Likelihood,
    y: Row,
    marginals: Marginals,
    offset: float = 0.0,
    scale: float = 1.0,
) -> Judged:
    """Score predictions of y, whose units are ``offset + scale·y``, in float64."""
    wide = Marginals(marginals.mean.double(), marginals.variance.double())
    return judge_mixture(PredictiveMixture.of([1.0], [likelihood], [wide]), y, offset, scale)


@torch.no_grad()
def judge_mixture(
    mixture: PredictiveMixture, y: Row, offset: float = 0.0, scale: float = 1.0
) -> Judged:
    """Score predictions of y by a mixture of models, in the units of `judge`."""
    y = y.double()
    task = mixture.task
    predict = _of_classes if task == "classification" else _of_numbers
    mean, lower, upper, below, up_to, chances = predict(mixture, y)
    every: dict[str, Callable[[], Row]] = {
        "nll": lambda: math.log(scale) - mixture.log_density(y),
        "mse": lambda: (scale * (mean - y)).square(),
        "error": lambda: _wrong(y, mean, chances).to(mean),
        "mre": lambda: (mean - y).abs() / y.clamp(min=1),
        "crps": lambda: scale * mixture.crps(y),
        "brier": lambda: _squares(y, mean, chances),
        "coverage": lambda: (
            central_share(below, up_to)
            if task == "count"
            else ((lower <= y) & (y <= upper)).to(mean)
        ),
    }
    names = ["mse" if score is RMSE else score.name for score in SCORES[task]]

    def in_units(values: Row) -> Row:
        return offset + scale * values

    return Judged(
        actual=in_units(y),
        mean=in_units(mean),
        lower=in_units(lower),
        upper=in_units(upper),
        below=below,
        up_to=up_to,
        scores={name: every[name]() for name in names if name in every},
        chances=chances,
    )


class _Predicted(NamedTuple):
    """As in `Judged`, in the units of training."""

    mean: Row
    lower: Row
    upper: Row
    below: Row
    up_to: Row
    chances: Chances | None = None


def _of_numbers(mixture: PredictiveMixture, y: Row) -> _Predicted:
    up_to = mixture.cdf(y)
    below = up_to if mixture.task == "regression" else mixture.cdf(y - 1)
    return _Predicted(mixture.point_prediction(), *mixture.interval(COVERAGE), below, up_to)


def _of_classes(mixture: PredictiveMixture, y: Row) -> _Predicted:
    """Return the distribution of the class number, from the probabilities of the classes."""
    chances = mixture.label_log_probabilities().exp().mT.contiguous()
    last = chances.shape[1] - 1
    mean = chances @ torch.arange(last + 1).to(chances)
    total = chances.cumsum(1)
    place = y.long()[:, None]
    # The sum of all may be below 1 by rounding.
    lower, upper = ((total[:, :last] < level).sum(1).to(mean) for level in _ENDS)
    up_to = total.gather(1, place)[:, 0]
    below = up_to - chances.gather(1, place)[:, 0]
    return _Predicted(mean, lower, upper, below, up_to, chances if last > 1 else None)


_ENDS = (0.5 * (1 - COVERAGE), 0.5 * (1 + COVERAGE))


def central_share(below: Row, up_to: Row) -> Row:
    """Return the share of P(Y < y) to P(Y ≤ y) that is central; its mean is 0.9 if calibrated.

    The interval itself has whole counts, and so a larger probability than 0.9.
    """
    low, high = _ENDS
    probability = up_to - below
    central = (up_to.clamp(max=high) - below.clamp(min=low)).clamp(min=0)
    # A count without probability is central or not as a whole.
    whole = ((low <= up_to) & (up_to <= high)).to(up_to)
    return torch.where(probability > 0, central / probability, whole)


def _wrong(y: Row, mean: Row, chances: Chances | None) -> Tensor:
    return (mean > 0.5) != (y > 0.5) if chances is None else chances.argmax(1) != y


def _squares(y: Row, mean: Row, chances: Chances | None) -> Row:
    if chances is None:
        return (mean - y).square()
    # ½ Σ_k (P(Y = k) − 1{y = k})².
    is_class = torch.nn.functional.one_hot(y.long(), chances.shape[1])
    return 0.5 * (chances - is_class).square().sum(1)
