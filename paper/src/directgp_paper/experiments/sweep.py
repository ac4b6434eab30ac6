"""Define the scales of the paper's experiments, and list the cells of each."""

import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, NamedTuple, final

from directgp.datasets import Task
from directgp.experiments import suited_methods, with_starts
from directgp.training import beta_grid
from directgp_paper.experiments.cells import (
    AIRLINE,
    AIRLINE_BETAS,
    BMC,
    EXACT,
    FITC_OF_ELBO,
    SMOOTH_BMC,
    UPS,
    CurveCell,
    FitCell,
    GradientCell,
    PaperCell,
    ProtocolName,
    RuleFacts,
    SamplerCell,
    rules,
)
from directgp_paper.experiments.fits import BATCH, RATE
from directgp_paper.experiments.rows import paper_parts


@final
@dataclass(frozen=True, kw_only=True)
class CurveSizes:
    """Sizes of learning curves."""

    rows: int | None = None
    """Maximum number of training rows; None is all."""

    steps: int
    """Steps in regression."""

    count_steps: int
    """Steps for counts, whose learning rate is smaller."""

    evaluations: int
    """Scorings of the test rows along a curve."""

    repeats: int
    """Random splits."""

    all_betas: bool = False
    """Whether counts have curves for every β of airline, or for 0.1 alone."""


@final
@dataclass(frozen=True, kw_only=True)
class AirlineSizes:
    """Sizes of the learning curves of airline, in batches."""

    rows: int | None = None
    """Maximum number of training rows; None is all."""

    num_test: int
    """Maximum number of test rows."""

    num_inducing: int
    """Inducing inputs."""

    batch_size: int = 1000
    """Rows of a batch."""

    epochs: int
    """Passes over the training rows."""

    repeats: int = 1
    """Random splits."""

    all_betas: bool = False
    """Whether sampling rules are run for every β, or for 0.1 alone."""

    unwhitened: bool = False
    """Whether rules are also compared with q(u) in the authors' parameters."""


@final
@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of all experiments."""

    name: str
    """Name of the scale."""

    about: str
    """Description for the list of scales."""

    judged: bool = True
    """Whether results of this scale may decide a claim."""

    repeats: int = 5
    """Random splits of a fit."""

    sizes: tuple[int | float, ...]
    """Training rows in regression: numbers, or below 1 shares of the training part."""

    other_sizes: tuple[int, ...]
    """Training rows in the other tasks."""

    max_inducing: int | None = None
    """Bound of the number of inducing inputs; None is the paper's M."""

    betas: tuple[float, ...] | None = None
    """Candidates of β; None is n, n/2, n/4, …, if `beta_factor` is 2."""

    beta_factor: int = 2
    """Factor between neighbours in the grid of β."""

    max_steps: int | None = None
    """Steps of the run of each β; None is the paper's number, or enough to converge."""

    largest_only: bool = False
    """Whether fits have only the largest size, and the size of claim C4."""

    protocol: ProtocolName = "best"
    """How fits are trained."""

    curves: CurveSizes
    """Sizes of the learning curves."""

    airline: AirlineSizes
    """Sizes of the learning curves of airline."""

    draws: int
    """Draws of each gradient in the study of gradients."""

    study_rows: int
    """Training rows of the studies of gradients and samplers."""

    sampler_steps: tuple[int, ...]
    """Steps at which samplers are measured."""

    def changed(self, max_steps: int | None, repeats: int | None, largest_only: bool) -> "Scale":
        """Return the scale with other steps and repeats, of fits and curves, or fewer sizes.

        Curves of airline keep their epochs.
        """
        curves = self.curves
        airline = self.airline
        return replace(
            self,
            repeats=repeats or self.repeats,
            max_steps=max_steps or self.max_steps,
            curves=replace(
                curves,
                steps=max_steps or curves.steps,
                count_steps=max_steps or curves.count_steps,
                repeats=repeats or curves.repeats,
            ),
            airline=replace(airline, repeats=repeats or airline.repeats),
            largest_only=largest_only,
        )


def _scale(name: str, facts: dict[str, Any]) -> Scale:
    facts |= {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
    curves = CurveSizes(**facts.pop("curves"))
    airline = AirlineSizes(**facts.pop("airline"))
    return Scale(name=name, curves=curves, airline=airline, **facts)


SCALES: dict[str, Scale] = {
    name: _scale(name, facts)
    for name, facts in tomllib.loads(
        files(__package__).joinpath("scales.toml").read_text(encoding="utf-8")
    ).items()
}


_SAMPLED_BETA = 0.1
"""β of curves that compare rules."""

_MAX_ROWS = 2000
"""Training rows in classification and count."""

_AIRLINE_RATE = 1e-3
"""Learning rate of airline."""

_COUNT_RATE = 0.01
"""Learning rate of rules compared on counts."""

_MAX_STEPS = 20_000
"""Steps of our optimisers, which converge earlier."""

SMALL_SET = "cadata"
"""Data set of the paper's plot of β."""

SMALL_SIZE = 691
"""Training rows of the paper's plot of β."""

_GRADIENTS = ("abalone",)
"""Data sets of the study of gradients."""

_SAMPLERS = ("abalone", "banana", AIRLINE)
"""Data sets of the study of samplers."""

_SAMPLER_ROWS = 100_000
"""Training rows of airline in the study of samplers."""

_TRUTH_SAMPLES = 10_000
"""Samples of the bMC gradient that the paper takes as the truth."""

_SAMPLES = 10
"""Samples in the study of samplers."""


_CURVE_RULES: dict[Task, tuple[RuleFacts, ...]] = {
    "regression": (EXACT, *BMC),
    "classification": (),
    "count": (EXACT, *BMC, *SMOOTH_BMC, *UPS, *rules("ups-mixed", 1), *rules("ups-paper", 10)),
}
_AIRLINE_RULES = (*BMC, *UPS, *SMOOTH_BMC, *rules("ups-mixed", 1))
_UNWHITENED_RULES = (EXACT, *BMC[1:], *UPS)
_STUDIED_RULES = (*BMC, *SMOOTH_BMC, *rules("ups", 1, 10, 100), *rules("ups-mixed", 1, 10))


class SweepData(NamedTuple):
    """The facts of a data set that a sweep depends on."""

    name: str
    task: Task
    num_rows: int
    fingerprint: str
    num_inducing: int


def sweep(
    scale: Scale, data: Sequence[SweepData], protocol: ProtocolName | None = None, seed: int = 0
) -> tuple[PaperCell, ...]:
    """Return the cells of the experiments on these data sets, in the order of the paper."""
    makers = _Makers(scale, protocol or scale.protocol, seed)
    moderate = [dataset for dataset in data if dataset.name != AIRLINE]
    return tuple(
        [
            *(cell for dataset in moderate for cell in makers.fits(dataset)),
            *(cell for dataset in moderate for cell in makers.curves(dataset)),
            *(
                cell
                for dataset in data
                if dataset.name == AIRLINE
                for cell in makers.airline(dataset)
            ),
            *(makers.gradients(dataset) for dataset in data if dataset.name in _GRADIENTS),
            *(makers.samplers(dataset) for dataset in data if dataset.name in _SAMPLERS),
        ]
    )


def chosen(
    cells: Iterable[PaperCell], wanted: Callable[[PaperCell], bool]
) -> tuple[PaperCell, ...]:
    """Return the cells that are wanted, each after the cell it starts from."""
    return tuple({cell.key: cell for cell in with_starts(filter(wanted, cells))}.values())


@final
@dataclass(frozen=True)
class _Makers:
    """Makes the cells of one data set."""

    scale: Scale
    protocol: ProtocolName
    seed: int

    def fits(self, data: SweepData) -> Iterator[FitCell]:
        """Yield every method, size and repeat; the ELBO first."""
        scale = self.scale
        regression = data.task == "regression"
        methods = (*suited_methods(data.task), *([FITC_OF_ELBO] if regression else []))
        limit = None if self.protocol == "paper" else _MAX_STEPS
        for size in self._sizes(data):
            betas = scale.betas or tuple(beta_grid(size, scale.beta_factor))
            for repeat in range(scale.repeats):
                for method in methods:
                    sampled = method.objective == "log_loss" and data.task == "count"
                    yield FitCell(
                        **self._facts(data, size, repeat),
                        method=method.name,
                        betas=betas if method.chooses_beta else (1.0,),
                        protocol=self.protocol,
                        rule=BMC[1] if sampled and self.protocol == "paper" else EXACT,
                        max_steps=scale.max_steps or limit,
                    )

    def _sizes(self, data: SweepData) -> list[int]:
        """Return the training sizes of fits, rising; with `largest_only` the largest, and C4's."""
        wanted = self.scale.sizes if data.task == "regression" else self.scale.other_sizes
        most = self._size(data)
        rows = (round(size * most) if size < 1 else int(size) for size in wanted)
        sizes = sorted({min(size, most) for size in rows})
        if not self.scale.largest_only:
            return sizes
        small = [min(sizes, key=lambda size: abs(math.log(size / SMALL_SIZE)))]
        return sorted({sizes[-1], *(small if data.name == SMALL_SET else ())})

    def curves(self, data: SweepData) -> Iterator[CurveCell]:
        """Yield the comparison of rules: log loss, joint; β = 0.1, or for counts several."""
        sizes = self.scale.curves
        counts = data.task == "count"
        size = self._size(data, sizes.rows)
        steps = sizes.count_steps if counts else sizes.steps
        betas = AIRLINE_BETAS if counts and sizes.all_betas else (_SAMPLED_BETA,)
        for repeat, beta in itertools.product(range(sizes.repeats), betas):
            for rule in _CURVE_RULES[data.task]:
                yield CurveCell(
                    **self._facts(data, size, repeat),
                    objective="log_loss",
                    hyperparameters="joint",
                    beta=beta,
                    rule=rule,
                    learning_rate=_COUNT_RATE if counts else RATE,
                    batch_size=BATCH if data.task == "regression" and size > BATCH else None,
                    steps=steps,
                    every=max(1, steps // sizes.evaluations),
                    num_test=data.num_rows,
                )

    def airline(self, data: SweepData) -> Iterator[CurveCell]:
        """Yield ELBO and both DLM for every β, and the comparison of rules."""
        sizes = self.scale.airline
        size = self._size(data, sizes.rows)
        an_epoch = -(-size // sizes.batch_size)
        for repeat in range(sizes.repeats):
            base = CurveCell(
                **{**self._facts(data, size, repeat), "num_inducing": sizes.num_inducing},
                objective="elbo",
                hyperparameters="joint",
                beta=1.0,
                learning_rate=_AIRLINE_RATE,
                batch_size=sizes.batch_size,
                steps=sizes.epochs * an_epoch,
                every=an_epoch,
                num_test=sizes.num_test,
            )
            dlm = base.replace(objective="log_loss")
            for beta in AIRLINE_BETAS:
                yield base.replace(beta=beta)
                yield dlm.replace(beta=beta)
                yield dlm.replace(beta=beta, hyperparameters="fixed")
            for beta in AIRLINE_BETAS if sizes.all_betas else (_SAMPLED_BETA,):
                for rule in _AIRLINE_RULES:
                    yield dlm.replace(beta=beta, rule=rule)
            for rule in _UNWHITENED_RULES if sizes.unwhitened else ():
                yield dlm.replace(beta=_SAMPLED_BETA, rule=rule, whitened=False)

    def gradients(self, data: SweepData) -> GradientCell:
        """Return the study of bias."""
        return GradientCell(
            **self._facts(data, self._size(data, self.scale.study_rows)),
            rules=_STUDIED_RULES,
            draws=self.scale.draws,
            beta=_SAMPLED_BETA,
            truth_samples=_TRUTH_SAMPLES,
        )

    def samplers(self, data: SweepData) -> SamplerCell:
        """Return the study of product samplers."""
        rows = self.scale.study_rows
        batches = data.name == AIRLINE
        return SamplerCell(
            **self._facts(data, self._size(data, _SAMPLER_ROWS if batches else rows)),
            looks=self.scale.sampler_steps,
            samples=_SAMPLES,
            beta=1.0,
            learning_rate=_AIRLINE_RATE if batches else RATE,
            batch_size=self.scale.airline.batch_size if batches else None,
            examples=rows,
        )

    def _facts(self, data: SweepData, size: int, repeat: int = 0) -> dict[str, Any]:
        """Return the fields that every cell has."""
        return {
            "dataset": data.name,
            "data": data.fingerprint,
            "task": data.task,
            "size": size,
            "num_inducing": min(data.num_inducing, self.scale.max_inducing or size, size),
            "repeat": repeat,
            "seed": self.seed,
        }

    def _size(self, data: SweepData, wanted: int | None = None) -> int:
        """Return the wanted number of training rows, or all available if fewer or for None."""
        most = paper_parts(data.name, data.task, data.num_rows).training
        bounded = data.task != "regression" and data.name != AIRLINE
        return min(most, wanted or most, _MAX_ROWS if bounded else most)
