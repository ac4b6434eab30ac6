"""Define the scales at which the paper's experiments are run."""

from dataclasses import dataclass
from typing import Literal, final

from directgp.experiments.paper.cells import ProtocolName

ScaleName = Literal["smoke", "small", "full"]


@final
@dataclass(frozen=True)
class CurveSizes:
    """Sizes of learning curves."""

    rows: int | None
    """Maximum number of training rows; None is all."""

    steps: int
    looks: int
    repeats: int


@final
@dataclass(frozen=True)
class AirlineSizes:
    """Sizes of the learning curves of airline, in batches."""

    rows: int | None
    num_test: int
    num_inducing: int
    batch_size: int
    epochs: int
    all_betas: bool
    """Whether sampling rules are run for every β, or for 0.1 alone."""


@final
@dataclass(frozen=True)
class Scale:
    """Sizes of all experiments."""

    name: ScaleName
    about: str
    repeats: int
    sizes: tuple[int | float, ...]
    """Training rows in regression: numbers, or below 1 shares of the training part."""

    other_sizes: tuple[int, ...]
    """Training rows in classification and count."""

    max_inducing: int | None
    """Bound of the number of inducing inputs; None is the paper's M."""

    betas: tuple[float, ...] | None
    """Candidates of β; None is the paper's grid n, n/2, n/4, …, 0.01."""

    max_steps: int | None
    """Steps of one run; None is the default of the protocol."""

    protocol: ProtocolName
    """Default protocol."""

    curves: CurveSizes
    airline: AirlineSizes
    draws: int
    """Draws of each gradient in the study of their bias."""

    study_rows: int
    """Training rows in the studies of gradients and samplers."""

    looks: tuple[int, ...]
    """Steps of training at which samplers are measured."""


_DECADES = (100.0, 10.0, 1.0, 0.1, 0.01)

SCALES: dict[str, Scale] = {
    "smoke": Scale(
        name="smoke",
        about="Everything once over in minutes: few rows, few steps, two repeats. Shows that "
        "it runs; its verdicts mean nothing.",
        repeats=2,
        sizes=(150, 400),
        other_sizes=(150,),
        max_inducing=20,
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
        max_inducing=None,
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
        max_inducing=None,
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
