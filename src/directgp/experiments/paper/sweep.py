"""Define the scales of the paper's experiments, and list the cells of each."""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple, final

from directgp.experiments.cell import suited_methods, with_starts
from directgp.experiments.paper.cells import (
    AIRLINE,
    AIRLINE_BETAS,
    BMC,
    EXACT,
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
from directgp.experiments.paper.fits import BATCH, paper_parts
from directgp.registry import Task
from directgp.training.beta_path import beta_grid


@final
@dataclass(frozen=True, kw_only=True)
class CurveSizes:
    """Sizes of learning curves."""

    rows: int | None = None
    """Maximum number of training rows; None is all."""

    steps: int
    evaluations: int
    repeats: int


@final
@dataclass(frozen=True, kw_only=True)
class AirlineSizes:
    """Sizes of the learning curves of airline, in batches."""

    rows: int | None = None
    num_test: int
    num_inducing: int
    batch_size: int = 1000
    epochs: int
    all_betas: bool = False
    """Whether sampling rules are run for every β, or for 0.1 alone."""


@final
@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of all experiments."""

    name: str
    about: str
    repeats: int = 5
    sizes: tuple[int | float, ...]
    other_sizes: tuple[int, ...]
    """Training rows in regression, numbers or below 1 shares of the training part, and in the other
    tasks."""

    max_inducing: int | None = None
    """Bound of the number of inducing inputs; None is the paper's M."""

    betas: tuple[float, ...] | None = None
    max_steps: int | None = None
    """Candidates of β, and steps of one run; None is the paper's grid, or the default of the
    protocol."""

    protocol: ProtocolName = "best"
    curves: CurveSizes
    airline: AirlineSizes
    draws: int
    study_rows: int
    sampler_steps: tuple[int, ...]
    """Draws of each gradient, training rows of both studies, and steps at which samplers are
    measured."""


def _scale(name: str, facts: dict[str, Any]) -> Scale:
    facts |= {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
    curves, airline = CurveSizes(**facts.pop("curves")), AirlineSizes(**facts.pop("airline"))
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

_FULL_RATE, _BATCH_RATE, _COUNT_RATE = 0.1, 1e-3, 0.01
"""Learning rates: all rows, batches, and rules compared on counts."""

_GRADIENTS, _SAMPLERS = ("abalone",), ("abalone", "banana")
"""Data sets of the two studies."""

_TRUTH_SAMPLES = 10_000
_SAMPLES = 10
"""Samples in the study of samplers."""


_CURVE_RULES: dict[Task, tuple[RuleFacts, ...]] = {
    "regression": (EXACT, *BMC),
    "classification": (),
    "count": (EXACT, *BMC, *SMOOTH_BMC, *UPS, *rules("ups-mixed", 1)),
}
_AIRLINE_RULES = (*BMC, *UPS, *rules("smooth-bmc", 10), *rules("ups-mixed", 1))
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
    moderate = [each for each in data if each.name != AIRLINE]
    return tuple(
        [
            *(cell for each in moderate for cell in makers.fits(each)),
            *(cell for each in moderate for cell in makers.curves(each)),
            *(cell for each in data if each.name == AIRLINE for cell in makers.airline(each)),
            *(makers.gradients(each) for each in data if each.name in _GRADIENTS),
            *(makers.samplers(each) for each in data if each.name in _SAMPLERS),
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
        regression = data.task == "regression"
        wanted = self.scale.sizes if regression else self.scale.other_sizes
        most = self._size(data)
        rows = (round(each * most) if each < 1 else int(each) for each in wanted)
        for size in sorted({min(each, most) for each in rows}):
            betas = tuple(beta_grid(size)) if self.scale.betas is None else self.scale.betas
            for repeat in range(self.scale.repeats):
                for method in suited_methods(data.task):
                    sampled = method.objective == "log_loss" and data.task == "count"
                    yield FitCell(
                        **self._facts(data, size, repeat),
                        method=method.name,
                        betas=betas if method.chooses_beta else (1.0,),
                        protocol=self.protocol,
                        rule=BMC[1] if sampled and self.protocol == "paper" else EXACT,
                        max_steps=self.scale.max_steps,
                    )

    def curves(self, data: SweepData) -> Iterator[CurveCell]:
        """Yield the comparison of rules: log loss, joint, β = 0.1."""
        sizes = self.scale.curves
        size = self._size(data, sizes.rows)
        in_batches = data.task == "regression" and size > BATCH
        full_rate = _COUNT_RATE if data.task == "count" else _FULL_RATE
        for repeat in range(sizes.repeats):
            for rule in _CURVE_RULES[data.task]:
                yield CurveCell(
                    **self._facts(data, size, repeat),
                    objective="log_loss",
                    hyperparameters="joint",
                    beta=_SAMPLED_BETA,
                    rule=rule,
                    learning_rate=_BATCH_RATE if in_batches else full_rate,
                    batch_size=BATCH if in_batches else None,
                    steps=sizes.steps,
                    every=max(1, sizes.steps // sizes.evaluations),
                    num_test=data.num_rows,
                )

    def airline(self, data: SweepData) -> Iterator[CurveCell]:
        """Yield ELBO and both DLM for every β, and the comparison of rules."""
        sizes = self.scale.airline
        size = self._size(data, sizes.rows)
        an_epoch = -(-size // sizes.batch_size)
        base = CurveCell(
            **{**self._facts(data, size), "num_inducing": sizes.num_inducing},
            objective="elbo",
            hyperparameters="joint",
            beta=1.0,
            ard=True,
            learning_rate=_BATCH_RATE,
            batch_size=sizes.batch_size,
            steps=sizes.epochs * an_epoch,
            every=an_epoch,
            num_test=sizes.num_test,
        )
        for beta in AIRLINE_BETAS:
            yield base.replace(beta=beta)
            yield base.replace(beta=beta, objective="log_loss")
            yield base.replace(beta=beta, objective="log_loss", hyperparameters="fixed")
        for beta in AIRLINE_BETAS if sizes.all_betas else (_SAMPLED_BETA,):
            for rule in _AIRLINE_RULES:
                yield base.replace(beta=beta, objective="log_loss", rule=rule)

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
        return SamplerCell(
            **self._facts(data, self._size(data, self.scale.study_rows)),
            looks=self.scale.sampler_steps,
            samples=_SAMPLES,
            beta=1.0,
            learning_rate=_FULL_RATE,
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
        """Return the wanted number of training rows, at most those available; None wants all."""
        most = paper_parts(data.name, data.task, data.num_rows).training
        bounded = data.task != "regression" and data.name != AIRLINE
        return min(most, wanted or most, _MAX_ROWS if bounded else most)
