"""Cost-sensitive classification: the expected cost of a wrong label."""

import math
from dataclasses import dataclass
from typing import final

import torch
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Binary, ClosedFormLogPredictive
from directgp.log_expectations.evaluate import resolve_rule
from directgp.objectives.base import DeterministicLoss, Values


@final
@dataclass(frozen=True)
class ZeroOneCost(DeterministicLoss):
    """c_y·E_q[p(1−y given f)]: what y costs when the label is drawn from the predictive.

    Linear in the predictive probability, so that training on it drives probabilities towards the
    cheaper label, 0 or 1: they say what to decide, not how likely a label is.

    Parameters
    ----------
    false_positive : float
        c_0 > 0, the cost of saying 1 where y = 0.
    false_negative : float
        c_1 > 0, the cost of saying 0 where y = 1.

    Examples
    --------
    >>> import torch
    >>> from directgp import Marginals
    >>> from directgp.likelihoods import Probit
    >>> q = Marginals(torch.zeros(2), torch.ones(2))
    >>> ZeroOneCost(false_negative=10.0)(Probit(), torch.tensor([0.0, 1.0]), q)
    tensor([0.5000, 5.0000])
    """

    false_positive: float = 1.0
    false_negative: float = 1.0

    name = "zero_one_cost"

    def __post_init__(self) -> None:
        """Refuse costs that cannot be meant."""
        for key in ("false_positive", "false_negative"):
            cost = getattr(self, key)
            allowed = 0 < cost < math.inf
            require(allowed, f"{key} of ZeroOneCost", "positive and finite", cost)

    @property
    def threshold(self) -> float:
        """c_0/(c_0 + c_1): predict 1 where P(y = 1) exceeds it.

        With p = P(y = 1), saying 1 costs c_0(1 − p) on average and saying 0 costs c_1·p. The first
        is less where p > c_0/(c_0 + c_1). This asks for a p that is right, as after log-loss DLM.
        """
        return 1 / (1 + self.false_negative / self.false_positive)

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        return isinstance(likelihood, ClosedFormLogPredictive)

    @override
    def check(self, likelihood: Likelihood) -> None:
        _with_labels(likelihood)

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values
    ) -> Values:
        wrong = _with_labels(likelihood).complement(y)
        log_chance = resolve_rule("auto", likelihood)(likelihood, wrong, mean, variance)
        cost = self.false_negative * y + self.false_positive * wrong
        return cost * torch.exp(log_chance)


def _with_labels(likelihood: Likelihood) -> Binary:
    """The likelihood, refused where its targets are not two labels."""
    if isinstance(likelihood, Binary):
        return likelihood
    raise UnsupportedError(
        f"ZeroOneCost needs a likelihood of two labels. Got {type(likelihood).__name__}. "
        f"Use Probit or Logistic; for real targets or counts, square_loss or log_loss."
    )
