"""Define a member of the mixture that an estimator predicts with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior


@final
@dataclass(frozen=True)
class Member:
    """One trained GP of the mixture Σ w_k p_k(y | x)."""

    posterior: SparsePosterior
    """q(f), for scaled inputs and targets."""

    likelihood: Likelihood
    """p(y given f), for scaled targets, without row values."""

    beta: float
    """β of the objective that it was trained for."""

    hyperparameters: str
    """"joint", "fixed", or "elbo" for the plain ELBO solution."""

    label: str = ""
    """Kernel, likelihood, mode and β in words."""

    stacked: bool = False
    """Whether its inputs are the features and then the columns of the stack, or features alone."""

    loss: float | None = None
    """Mean validation loss, in units of the targets; None without validation."""


def set_members(model: Any, members: Sequence[Member], weights: Sequence[float]) -> None:
    """Set the members of a fitted estimator, the heaviest first, and no stack."""
    model.members_ = tuple(members)
    model.weights_ = np.array(weights, dtype=np.float64)
    model.posterior_ = members[0].posterior
    model.likelihood_ = members[0].likelihood
    model.stack_ = None
