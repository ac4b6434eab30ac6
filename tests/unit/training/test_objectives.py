"""Both optimisers reduce every objective."""

import pytest
import torch
from torch import Tensor

import directgp
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from directgp.objectives import PinballLoss, PointLoss
from directgp.training import Status
from directgp.training.run import OptimizerName
from tests.unit.training.models import counts, labels, regression, seeded, start, tensors

TASKS: list[tuple[str | PointLoss, str]] = [
    *((objective, "gaussian") for objective in ("log_loss", "elbo", "vfe", "fitc", "crps")),
    *((objective, "gaussian") for objective in ("square_loss", "absolute_loss", "pinball_loss")),
    (PinballLoss(0.9), "gaussian"),
    *(("log_loss", family) for family in ("probit", "logistic", "poisson", "softplus")),
    *(("log_loss", family) for family in ("negative_binomial", "student_t")),
    *(("elbo", family) for family in ("probit", "logistic", "poisson", "student_t")),
    *(("square_loss", family) for family in ("probit", "poisson", "negative_binomial")),
    *(("zero_one_cost", family) for family in ("probit", "logistic")),
]


def task(family: str) -> tuple[Tensor, Tensor, Likelihood]:
    if family in ("gaussian", "student_t"):
        return *regression(), Gaussian(0.1) if family == "gaussian" else StudentT(4.0, 0.3)
    if family in ("probit", "logistic"):
        return *labels(), Probit() if family == "probit" else Logistic()
    X, y, exposure = counts()
    made = {
        "poisson": Poisson(),
        "softplus": Poisson(link="softplus"),
        "negative_binomial": NegativeBinomial(2.0),
    }[family]
    return X, y, made.with_exposure(exposure)


# Adam has one step for all likelihoods; what it asks of an objective differs.
BY_ADAM = [
    *(task for task in TASKS if task[1] == "gaussian"),
    *(("log_loss", "poisson"), ("elbo", "logistic"), ("zero_one_cost", "probit")),
]


@pytest.mark.parametrize(
    ("objective", "family", "optimizer"),
    [*((*task, "lbfgs") for task in TASKS), *((*task, "adam") for task in BY_ADAM)],
    ids=str,
)
def test_both_optimizers_lower_the_loss(
    objective: str | PointLoss, family: str, optimizer: OptimizerName
) -> None:
    X, y, likelihood = task(family)
    result = directgp.train(
        start(X),
        likelihood,
        X,
        y,
        objective=objective,
        start="scratch",
        optimizer=optimizer,
        max_steps=3,
        generator=seeded(7),
    )
    assert result.loss < result.history[0] - 1e-3 or result.status is Status.CONVERGED
    assert all(bool(value.isfinite().all()) for value in tensors(result).values())
    predicted = result.posterior.predict(X)
    assert bool(predicted.mean.isfinite().all()) and bool((predicted.variance > 0).all())


def test_no_objective_is_left_out() -> None:
    with pytest.raises(directgp.errors.InvalidInputError) as caught:
        directgp.train(*untrained(), objective="none")
    named = {objective for objective, _ in TASKS if isinstance(objective, str)}
    known = named - {"vfe", "fitc"}
    assert f"objective must be one of {sorted(known)} or a PointLoss" in str(caught.value)


def untrained() -> tuple[directgp.posteriors.SparsePosterior, Likelihood, Tensor, Tensor]:
    X, y = regression()
    return start(X), Gaussian(torch.tensor(0.1)), X, y
