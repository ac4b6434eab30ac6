"""List the cells of the paper's experiments at a scale."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from directgp.datasets.problem import Task
from directgp.experiments.cell import METHODS, select_methods
from directgp.experiments.paper.cells import (
    EXACT,
    CurveCell,
    FitCell,
    GradientCell,
    PaperCell,
    ProtocolName,
    RuleFacts,
    SamplerCell,
)
from directgp.experiments.paper.fits import LARGE, paper_parts
from directgp.experiments.paper.scales import Scale
from directgp.training.beta_path import beta_grid

AIRLINE_BETAS = (0.1, 1.0, 10.0)
_SAMPLED_BETA = 0.1
"""β of curves that compare rules."""

_MAX_ROWS = 2000
"""Training rows in classification and count."""

_BATCH = 6000
"""Batch size where there are more rows, in regression."""

_FULL_RATE, _BATCH_RATE, _COUNT_RATE = 0.1, 1e-3, 0.01
"""Learning rates: all rows, batches, and rules compared on counts."""

_GRADIENTS, _SAMPLERS = ("abalone",), ("abalone", "banana")
_TRUTH_SAMPLES = 10_000
_SAMPLES = 10
"""Samples in the study of samplers."""


@final
@dataclass(frozen=True)
class SweepData:
    """The facts of a data set that a sweep depends on."""

    name: str
    task: Task
    num_rows: int
    fingerprint: str
    num_inducing: int
    """The paper's M."""


def sweep(
    scale: Scale, data: Sequence[SweepData], protocol: ProtocolName | None = None, seed: int = 0
) -> tuple[PaperCell, ...]:
    """Return the cells of the experiments on these data sets, in the order of the paper."""
    makers = _Makers(scale, protocol or scale.protocol, seed)
    moderate = [each for each in data if each.name != LARGE]
    return tuple(
        [
            *(cell for each in moderate for cell in makers.fits(each)),
            *(cell for each in moderate for cell in makers.curves(each)),
            *(cell for each in data if each.name == LARGE for cell in makers.airline(each)),
            *(makers.gradients(each) for each in data if each.name in _GRADIENTS),
            *(makers.samplers(each) for each in data if each.name in _SAMPLERS),
        ]
    )


def chosen(
    cells: Iterable[PaperCell], wanted: Sequence[Callable[[PaperCell], bool]]
) -> tuple[PaperCell, ...]:
    """Return the cells that any predicate selects, each after the cell it starts from."""
    found: dict[str, PaperCell] = {}
    for cell in cells:
        if any(uses(cell) for uses in wanted):
            start: Any = cell.start
            if start is not None:
                found.setdefault(start.key, start)
            found.setdefault(cell.key, cell)
    return tuple(found.values())


@final
@dataclass(frozen=True)
class _Makers:
    """Makes the cells of one data set."""

    scale: Scale
    protocol: ProtocolName
    seed: int

    def fits(self, data: SweepData) -> Iterator[FitCell]:
        """Yield every method, size and repeat; the ELBO first."""
        for size in self._sizes(data):
            for repeat in range(self.scale.repeats):
                for method in select_methods(data.task):
                    yield self._fit(data, size, repeat, method.name)

    def _fit(self, data: SweepData, size: int, repeat: int, name: str) -> FitCell:
        method = METHODS[name]
        drawn = self.protocol == "paper" and data.task == "count"
        drawn = drawn and method.objective == "log_loss"
        return FitCell(
            **self._facts(data, size, repeat),
            method=name,
            betas=self._betas(size) if method.chooses_beta else (1.0,),
            protocol=self.protocol,
            rule=RuleFacts(name="bmc", samples=10) if drawn else EXACT,
            max_steps=self.scale.max_steps,
        )

    def curves(self, data: SweepData) -> Iterator[CurveCell]:
        """Yield the comparison of rules: log loss, joint, β = 0.1."""
        for repeat in range(self.scale.curves.repeats):
            for rule in _CURVE_RULES[data.task]:
                yield self._curve(data, repeat, rule)

    def _curve(self, data: SweepData, repeat: int, rule: RuleFacts) -> CurveCell:
        sizes, most = self.scale.curves, self._max_rows(data)
        size = most if sizes.rows is None else min(sizes.rows, most)
        in_batches = data.task == "regression" and size > _BATCH
        full_rate = _COUNT_RATE if data.task == "count" else _FULL_RATE
        return CurveCell(
            **self._facts(data, size, repeat),
            objective="log_loss",
            hyperparameters="joint",
            beta=_SAMPLED_BETA,
            rule=rule,
            learning_rate=_BATCH_RATE if in_batches else full_rate,
            batch_size=_BATCH if in_batches else None,
            steps=sizes.steps,
            every=max(1, sizes.steps // sizes.looks),
            num_test=data.num_rows,
        )

    def airline(self, data: SweepData) -> Iterator[CurveCell]:
        """Yield ELBO and both DLM for every β, and the comparison of rules."""
        sizes, most = self.scale.airline, self._max_rows(data)
        size = most if sizes.rows is None else min(sizes.rows, most)
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
        size = min(self.scale.study_rows, self._max_rows(data))
        return GradientCell(
            **self._facts(data, size),
            rules=_STUDIED_RULES,
            draws=self.scale.draws,
            beta=_SAMPLED_BETA,
            truth_samples=_TRUTH_SAMPLES,
        )

    def samplers(self, data: SweepData) -> SamplerCell:
        """Return the study of product samplers."""
        size = min(self.scale.study_rows, self._max_rows(data))
        return SamplerCell(
            **self._facts(data, size),
            looks=self.scale.looks,
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
            "num_inducing": self._inducing(data, size),
            "repeat": repeat,
            "seed": self.seed,
        }

    def _sizes(self, data: SweepData) -> list[int]:
        wanted = self.scale.sizes if data.task == "regression" else self.scale.other_sizes
        most = self._max_rows(data)
        rows = (round(each * most) if each < 1 else int(each) for each in wanted)
        return sorted({min(each, most) for each in rows})

    def _max_rows(self, data: SweepData) -> int:
        most = paper_parts(data.name, data.task, data.num_rows).training
        return most if data.task == "regression" or data.name == LARGE else min(most, _MAX_ROWS)

    def _inducing(self, data: SweepData, size: int) -> int:
        return min(data.num_inducing, self.scale.max_inducing or data.num_inducing, size)

    def _betas(self, size: int) -> tuple[float, ...]:
        return tuple(beta_grid(size)) if self.scale.betas is None else self.scale.betas


def _rules(name: str, *samples: int) -> tuple[RuleFacts, ...]:
    return tuple(RuleFacts.model_validate({"name": name, "samples": each}) for each in samples)


_BMC, _SMOOTH = _rules("bmc", 1, 10, 100), _rules("smooth-bmc", 1, 10, 100)
_UPS = _rules("ups", 1, 10)

_CURVE_RULES: dict[Task, tuple[RuleFacts, ...]] = {
    "regression": (EXACT, *_BMC),
    "classification": (),
    "count": (EXACT, *_BMC, *_SMOOTH, *_UPS, *_rules("ups-mixed", 1)),
}
_AIRLINE_RULES = (*_BMC, *_UPS, *_rules("smooth-bmc", 10), *_rules("ups-mixed", 1))
_STUDIED_RULES = (*_BMC, *_SMOOTH, *_rules("ups", 1, 10, 100), *_rules("ups-mixed", 1, 10))
