"""Define how much of the paper is run, and by which protocol."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch

from directgp.errors import NumericalError
from directgp.experiments.cell import seed_of
from directgp.experiments.fit import Model, ScaledRows, Trained
from directgp.experiments.paper.cells import FitCell, ProtocolName
from directgp.experiments.plan import METHODS
from directgp.training.beta_path import beta_path
from directgp.training.callbacks import LossRange, Monitor
from directgp.training.result import BetaPath, Failure, PathPoint
from directgp.training.validation import Given

ScaleName = Literal["smoke", "small", "full"]


@final
@dataclass(frozen=True)
class CurveSizes:
    """Of learning curves."""

    rows: int | None
    """Trained on at most; None is all."""

    steps: int
    looks: int
    repeats: int


@final
@dataclass(frozen=True)
class AirlineSizes:
    """Of the curves of airline, in batches."""

    rows: int | None
    num_test: int
    num_inducing: int
    batch_size: int
    epochs: int
    all_betas: bool
    """Whether sampling is run for every β, or for 0.1 alone."""


@final
@dataclass(frozen=True)
class Scale:
    """Sizes of everything that is run."""

    name: ScaleName
    about: str
    repeats: int
    sizes: tuple[int | float, ...]
    """Training rows in regression: numbers, or shares of the training part below 1."""

    other_sizes: tuple[int, ...]
    """Training rows in classification and count."""

    most_inducing: int | None
    """None leaves the paper's M."""

    betas: tuple[float, ...] | None
    """None is the paper's grid n, n/2, n/4, …, 0.01."""

    max_steps: int | None
    """Of one run; None is the protocol's own."""

    protocol: ProtocolName
    """Unless another is asked for."""

    curves: CurveSizes
    airline: AirlineSizes
    draws: int
    """Of gradients, in the study of their bias."""

    study_rows: int
    """Rows in the studies of gradients and samplers."""

    looks: tuple[int, ...]
    """Steps of training at which samplers are looked at."""


_DECADES = (100.0, 10.0, 1.0, 0.1, 0.01)

SCALES: dict[str, Scale] = {
    "smoke": Scale(
        name="smoke",
        about="Everything once over in minutes: few rows, few steps, two repeats. Shows that "
        "it runs; its verdicts mean nothing.",
        repeats=2,
        sizes=(150, 400),
        other_sizes=(150,),
        most_inducing=20,
        betas=(10.0, 1.0, 0.1),
        max_steps=30,
        protocol="best",
        curves=CurveSizes(rows=150, steps=40, looks=4, repeats=2),
        airline=AirlineSizes(
            rows=2_000, num_test=2_000, num_inducing=20, batch_size=500, epochs=2, all_betas=False
        ),
        draws=20,
        study_rows=150,
        looks=(0, 50),
    ),
    "small": Scale(
        name="small",
        about="About an hour and a half on two cores: up to 5000 training rows in regression and "
        "1000 else, five repeats, β in powers of ten.",
        repeats=5,
        sizes=(691, 2000, 5000),
        other_sizes=(200, 1000),
        most_inducing=None,
        betas=_DECADES,
        max_steps=None,
        protocol="best",
        curves=CurveSizes(rows=1000, steps=1500, looks=30, repeats=3),
        airline=AirlineSizes(
            rows=100_000,
            num_test=20_000,
            num_inducing=100,
            batch_size=1000,
            epochs=5,
            all_betas=False,
        ),
        draws=200,
        study_rows=1000,
        looks=(0, 50, 200, 500),
    ),
    "full": Scale(
        name="full",
        about="As in the paper: its sizes, grid and optimiser. Days of one machine; for a cluster.",
        repeats=5,
        sizes=(0.05, 0.1, 0.2, 0.4, 0.8),
        other_sizes=(100, 200, 500, 1000, 2000),
        most_inducing=None,
        betas=None,
        max_steps=None,
        protocol="paper",
        curves=CurveSizes(rows=None, steps=3000, looks=60, repeats=5),
        airline=AirlineSizes(
            rows=None,
            num_test=100_000,
            num_inducing=200,
            batch_size=1000,
            epochs=20,
            all_betas=True,
        ),
        draws=1000,
        study_rows=2000,
        looks=(0, 50, 200, 500, 1000, 2000),
    ),
}


_BATCH = 6000
"""Rows of a step where there are more, for the log loss."""

_TOLERANCE = 1e-4
_WINDOW, _OTHER_WINDOW = 50, 20
"""Losses that must lie within the tolerance: regression, and the rest."""


def train_as_paper(
    cell: FitCell, model: Model, rows: ScaledRows, monitors: Sequence[Monitor]
) -> Trained:
    """Every β on its own, each from the model that is given; the smallest validation loss wins.

    The ELBO of regression is the collapsed one, as FITC's objective is, and q(u) of the square loss
    is its closed form. Learning rates (0.1 for all rows, 0.001 for batches) and numbers of steps
    (5000 for regression, 3000 else) are those that `directgp.train` has for Adam.
    """
    seconds = 0.0
    points: list[PathPoint] = []
    failed: list[Failure] = []
    for beta in cell.betas:
        try:
            path = _one(cell, model, rows, beta, monitors)
        except NumericalError as error:
            failed.append(Failure(beta, METHODS[cell.method].hyperparameters, str(error)))
            continue
        seconds += path.seconds
        points += path.points
    if not points:
        raise NumericalError(failed[0].reason)
    losses = [point.validation_loss for point in points]
    chosen = losses.index(min(losses))
    found = BetaPath(tuple(points), chosen, path.loss, seconds, tuple(failed))
    return Trained(found.best, found)


def _one(
    cell: FitCell, model: Model, rows: ScaledRows, beta: float, monitors: Sequence[Monitor]
) -> BetaPath:
    method, regression = METHODS[cell.method], cell.task == "regression"
    collapsed = regression and method.objective == "elbo"
    batches = regression and method.objective == "log_loss" and cell.size > _BATCH
    X, y = rows.train
    return beta_path(
        copy.deepcopy(model.posterior),
        model.likelihood,
        X,
        y,
        betas=[beta],
        validation=Given(*rows.validation),
        objective="vfe" if collapsed else method.objective,
        rule=cell.rule.rule() if method.objective == "log_loss" else "auto",
        hyperparameters=method.hyperparameters,
        start="given",
        optimizer="adam",
        batch_size=_BATCH if batches else None,
        max_steps=cell.max_steps,
        stopping=LossRange(_WINDOW if regression else _OTHER_WINDOW, _TOLERANCE),
        monitors=monitors,
        generator=torch.Generator(X.device).manual_seed(seed_of(cell.seed, cell.repeat)),
    )
