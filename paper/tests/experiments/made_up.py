"""Made-up results with a known verdict on each claim."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from directgp.experiments.cell import Circumstances, Record
from directgp_paper.experiments.cells import (
    EXACT,
    BetaScores,
    CurveCell,
    CurveOutcome,
    CurvePoint,
    FitCell,
    FitOutcome,
    GradientCell,
    GradientOutcome,
    GradientRow,
    Measured,
    PaperOutcome,
    PaperRecord,
    Results,
    RuleFacts,
    SamplerCell,
    SamplerOutcome,
    SamplerPoint,
)
from directgp_paper.experiments.claims import CLAIMS
from directgp_paper.experiments.claims.base import Finding

TASKS: dict[str, Literal["regression", "classification", "count"]] = {
    **dict.fromkeys(("pol", "cadata", "sarcos", "song"), "regression"),
    **dict.fromkeys(("banana", "thyroid", "twonorm", "ringnorm", "airline"), "classification"),
    **dict.fromkeys(("abalone", "peds1", "peds1_dir0", "peds1_dir1", "peds1_dir2"), "count"),
}

SPLITS = (0.0, 0.3, -0.2, 0.1, -0.1)
"""What a split does to every method alike: much more than the methods differ."""

_CIRCUMSTANCES = Circumstances(versions={}, machine="", device="cpu", finished="")
_LOOKS = (0, 10, 20, 30)
"""Steps; ten are an epoch."""


def judge(claim: str, found: Results, reading: str = "") -> Finding:
    """What the results say about a reading of a claim, by default the first."""
    readings = {each.name: each for each in CLAIMS[claim].readings}
    return (readings[reading] if reading else CLAIMS[claim].readings[0]).judge(found)


def record(cell: Any, outcome: PaperOutcome, arrays: dict[str, Any] | None = None) -> PaperRecord:
    return Record(cell, outcome, _CIRCUMSTANCES, arrays or {})


def fit_cell(dataset: str, method: str, repeat: int = 0, **changes: Any) -> FitCell:
    task = TASKS[dataset]
    sampled = task == "count" and "elbo" not in method
    facts: dict[str, Any] = {
        "dataset": dataset,
        "data": dataset,
        "task": task,
        "size": 2000,
        "num_inducing": 50,
        "repeat": repeat,
        "seed": 0,
        "method": method,
        "betas": (1.0,) if method in ("elbo", "fitc") else (10.0, 1.0, 0.1),
        "protocol": "paper",
        "rule": RuleFacts(name="bmc", samples=10) if sampled else EXACT,
    }
    return FitCell.model_validate({**facts, **changes})


def fit(
    cell: FitCell, scores: dict[str, float], beta: float = 1.0, num_training: int = 4000
) -> PaperRecord:
    """The validation loss is the test score of the kind that is optimised."""
    loss = scores.get("mse" if cell.method.startswith("square") else "nll", 0.0)
    point = BetaScores(beta=beta, validation=loss, error=0.0, test=scores)
    outcome = FitOutcome(
        scores=scores,
        num_test=1000,
        num_training=num_training,
        beta=beta,
        path=(point,) if len(cell.betas) > 1 else (),
        history=(),
        status="converged",
        reason="",
        evaluations=1,
        seconds=1.0,
    )
    return record(cell, outcome)


def scored(
    dataset: str,
    method: str,
    level: float,
    score: str = "nll",
    repeats: int = 5,
    jitter: float = 0.0005,
    others: dict[str, float] | None = None,
    **changes: Any,
) -> list[PaperRecord]:
    """A method whose score has this level on average, and a jitter of its own about the splits.

    Other scores are the same everywhere.
    """
    own = np.random.default_rng(sum(map(ord, method))).normal(size=repeats)
    noise = jitter * stats.zscore(own) if repeats > 1 else np.zeros(1)
    splits = np.array(SPLITS[:repeats])
    values = level + splits - splits.mean() + noise
    plain = {"nll": 0.0, "mse": 0.0, "error": 0.1, "mre": 0.2}
    return [
        fit(
            fit_cell(dataset, method, repeat, **changes),
            {**plain, **(others or {}), score: float(values[repeat])},
        )
        for repeat in range(repeats)
    ]


def fit_of(record: PaperRecord) -> tuple[FitCell, FitOutcome]:
    """Both of a record that is known to be of a fit."""
    assert isinstance(record.cell, FitCell) and isinstance(record.outcome, FitOutcome)
    return record.cell, record.outcome


def many(levels: dict[str, float], datasets: Sequence[str], **settings: Any) -> list[PaperRecord]:
    """Methods by their levels, on several data sets."""
    return [
        each
        for dataset in datasets
        for method, level in levels.items()
        for each in scored(dataset, method, level, **settings)
    ]


def results(*records: PaperRecord | Sequence[PaperRecord]) -> Results:
    flat: list[PaperRecord] = []
    for each in records:
        flat.extend([each] if isinstance(each, Record) else each)
    return Results(tuple(flat))


def curve_cell(dataset: str, rule: RuleFacts = EXACT, **changes: Any) -> CurveCell:
    facts: dict[str, Any] = {
        "dataset": dataset,
        "data": dataset,
        "task": TASKS[dataset],
        "size": 4000,
        "num_inducing": 50,
        "repeat": 0,
        "seed": 0,
        "objective": "log_loss",
        "hyperparameters": "joint",
        "beta": 0.1,
        "rule": rule,
        "learning_rate": 0.001 if dataset == "airline" else 0.01,
        "batch_size": 400,
        "steps": _LOOKS[-1],
        "every": 10,
        "num_test": 400,
    }
    return CurveCell.model_validate({**facts, **changes})


def curve(
    cell: CurveCell,
    level: float | Sequence[float],
    noise: float = 0.01,
    looks: Sequence[int] = _LOOKS,
) -> PaperRecord:
    """NLL of 400 rows around a level, one a look or one for all; rows vary much, cells little."""
    levels = [level] * len(looks) if isinstance(level, float) else list(level)
    common = np.random.default_rng(cell.repeat).normal(1.0, 1.0, 400)
    own = np.random.default_rng(int(cell.key[:8], 16)).normal(0.0, noise, (len(looks), 400))
    # The mean of a cell's own noise is taken away: its level is what it was made with.
    own -= own.mean(1, keepdims=True)
    losses: NDArray[np.float32] = (common - common.mean() + own + np.array(levels)[:, None]).astype(
        np.float32
    )
    points = tuple(
        CurvePoint(step=step, epoch=step / 10, scores={"nll": float(x)}, seconds=1.0)
        for step, x in zip(looks, levels, strict=True)
    )
    outcome = CurveOutcome(
        points=points, num_test=400, num_training=1600, status="done", reason="", seconds=1.0
    )
    return record(cell, outcome, {"losses": losses})


def gradients(
    biases: Mapping[tuple[str, int], float], error: float = 0.01, **changes: Any
) -> PaperRecord:
    """Squared biases by rule and number of samples, alike in both blocks; squared errors of 1."""
    facts: dict[str, Any] = {
        "dataset": "abalone",
        "data": "abalone",
        "task": "count",
        "size": 1000,
        "num_inducing": 41,
        "repeat": 0,
        "seed": 0,
        "rules": (),
        "draws": 100,
        "beta": 0.1,
        "truth_samples": 10000,
    }
    nothing = Measured(value=1.0, error=0.01)
    rows = tuple(
        GradientRow(
            rule=RuleFacts.model_validate({"name": name, "samples": samples}),
            block=block,
            alignment=nothing,
            squared_norm=nothing,
            squared_error=Measured(value=1.0 + value, error=error),
            variance=nothing,
            squared_bias=Measured(value=value, error=error),
            seconds=1.0,
        )
        for (name, samples), value in biases.items()
        for block in ("u_mean", "u_chol")
    )
    outcome = GradientOutcome(rows=rows, truth_error={}, seconds=1.0)
    return record(GradientCell.model_validate({**facts, **changes}), outcome)


def look(step: int = 100, **changes: Any) -> SamplerPoint:
    """Two rejections, a tenth of the time by vectors, uPS ten times dearer but far more exact."""
    facts: dict[str, Any] = {
        "step": step,
        "proposals": Measured(value=3.0, error=0.02),
        "proposals_narrow": Measured(value=3.01, error=0.02),
        "proposals_ours": Measured(value=1.13, error=0.01),
        "expected_proposals": 3.0,
        "one_by_one_seconds": 1.0,
        "vectorised_seconds": 0.1,
        "bmc_seconds": 0.001,
        "paper_ups_seconds": 0.01,
        "our_ups_seconds": 0.003,
        "bmc_error": 0.5,
        "paper_ups_error": 1.0,
        "our_ups_error": 0.01,
    }
    return SamplerPoint.model_validate({**facts, **changes})


def samplers(dataset: str, looks: Sequence[SamplerPoint], repeat: int = 0) -> PaperRecord:
    cell = SamplerCell(
        dataset=dataset,
        data=dataset,
        task=TASKS[dataset],
        size=1000,
        num_inducing=41,
        repeat=repeat,
        seed=0,
        looks=tuple(each.step for each in looks),
        samples=10,
        beta=0.1,
        learning_rate=0.01,
        examples=1000,
    )
    return record(cell, SamplerOutcome(samples=10, looks=tuple(looks), seconds=1.0))
