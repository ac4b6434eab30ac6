"""Small comparisons made by hand, with realistic numbers and every prediction drawn by a seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special, stats

from directgp.experiments.cell import (
    FailedRecord,
    method_named,
    methods_to_compare,
    suited_methods,
)
from directgp.experiments.compare_cell import (
    BetaLoss,
    CompareCell,
    ComparedFit,
    CompareOutcome,
    Explanation,
    ModelFacts,
    Predictions,
    Settings,
    StoredMember,
)
from directgp.experiments.plan import Comparison, DataFacts, Plan
from directgp.experiments.splits import Parts
from directgp.registry import Task

NLL: Mapping[str, float] = {
    "elbo": 0.366,
    "beta-elbo": 0.281,
    "fitc": 0.252,
    "log-joint": -0.103,
    "log-fixed": 0.321,
    "square-joint": 0.502,
    "square-fixed": 0.610,
    "elbo-basic": 0.366,
    "auto": 0.0,
    "mean": 1.2,
    "linear": 0.7,
    "boosting": 0.4,
}
SECOND: Mapping[str, float] = {
    "elbo": 0.121,
    "beta-elbo": 0.108,
    "fitc": 0.114,
    "log-joint": 0.117,
    "log-fixed": 0.119,
    "square-joint": 0.093,
    "square-fixed": 0.110,
    "elbo-basic": 0.121,
    "auto": 0.118,
    "mean": 1.0,
    "linear": 0.4,
    "boosting": 0.2,
}
COVERAGE: Mapping[str, float] = {"elbo": 0.957, "log-joint": 0.906, "log-fixed": 0.941}
SPREAD: Mapping[str, float] = {"elbo": 1.3, "log-joint": 1.0, "square-joint": 0.7}
"""How much too wide the predicted distributions are."""

BASIC = {"regression": "gaussian", "classification": "logistic", "count": "poisson"}

BETAS = tuple(5000 / 4.0**k for k in range(10))
SECONDS = {"elbo": 4.1, "fitc": 3.7, "log-joint": 83.0}


@dataclass(frozen=True)
class Recipe:
    """What a comparison is made of."""

    task: Task = "regression"
    repeats: int = 3
    sizes: Sequence[int] = (5000,)
    methods: Sequence[str] | None = None
    nll: Mapping[str, float] = field(default_factory=lambda: NLL)
    second: Mapping[str, float] = field(default_factory=lambda: SECOND)
    coverage: Mapping[str, float] = field(default_factory=lambda: COVERAGE)
    noise: float = 0.008
    """Of each method in a repeat; what repeats share is larger."""

    betas: Sequence[float] = BETAS
    num_test: int = 400
    name: str = "pol"
    target: str = "y"
    source: str = "pol.parquet"
    features: Sequence[str] = ("a", "b", "c")
    classes: tuple[str, ...] = ("no", "yes")
    notes: Sequence[str] = ("The task is regression, since the target has 9,871 different values.",)
    failed: Sequence[tuple[str, int, int, str]] = ()
    """Method, repeat, size, reason."""

    likelihood: str | None = None
    chosen: str | None = None
    """The likelihood of the settings, by default the basic one, and the one of the models."""

    lost: Sequence[str] = ()
    """Candidates of β that could not be trained, in every run."""

    explained: bool = True
    """Whether models have explanations, as they have from version 0.1 on."""


def comparison(recipe: Recipe) -> Comparison:
    """All cells but those that failed."""
    plan = _plan(recipe)
    failed = {(method, repeat, size): why for method, repeat, size, why in recipe.failed}
    cells = plan.cells()
    runs = [_run(recipe, c) for c in cells if (c.method, c.repeat, c.size) not in failed]
    lost = [
        FailedRecord(c, failed[c.method, c.repeat, c.size])
        for c in cells
        if (c.method, c.repeat, c.size) in failed
    ]
    return Comparison(
        plan=plan,
        runs=tuple(runs),
        failed=tuple(lost),
        versions={"directgp": "0.1.0", "Python": "3.12.3", "torch": "2.13.0"},
        machine="a processor of 2 cores, no GPU",
        command="directgp compare pol.parquet --target y --repeats 3 --seed 0",
        began="2026-01-02 03:04 UTC",
        seconds=754.0,
    )


def _plan(recipe: Recipe) -> Plan:
    labels = recipe.task == "classification"
    data = DataFacts(
        name=recipe.name,
        source=recipe.source,
        task=recipe.task,
        target=recipe.target,
        classes=recipe.classes if labels else None,
        num_rows=15000,
        feature_names=tuple(recipe.features),
        fingerprint="8f3a" * 16,
        notes=tuple(recipe.notes),
    )
    basic = BASIC[recipe.task]
    return Plan(
        data=data,
        methods=suited_methods(recipe.task)
        if recipe.methods is None
        else methods_to_compare(recipe.task, recipe.methods, recipe.likelihood or basic),
        repeats=recipe.repeats,
        sizes=tuple(recipe.sizes),
        seed=0,
        settings=Settings(
            likelihood=recipe.likelihood or basic,
            kernel="rbf",
            ard=True,
            num_inducing=None,
            betas=None,
            max_steps=None,
        ),
        parts=Parts(training=10050, validation=1200, test=3750),
    )


def _run(recipe: Recipe, cell: CompareCell) -> ComparedFit:
    known = [cell.repeat, cell.size, *cell.method.encode()]
    random = np.random.default_rng(known)
    shared = np.random.default_rng([cell.repeat, cell.size])
    late = 0.25 * np.log(max(recipe.sizes) / cell.size)
    common = 0.03 * shared.standard_normal() + late
    has_model = recipe.explained and method_named(cell.method).kind != "baseline"
    return ComparedFit(
        cell,
        _outcome(recipe, cell, random, common),
        _predictions(recipe, cell, shared),
        _explanation(recipe, cell.repeat) if has_model else None,
    )


def _explanation(recipe: Recipe, repeat: int) -> Explanation:
    """Importances 0.1, 0.2, …; lines through 0 along the last two features, one of ten points.

    Each of three or more classes has the line of its number.
    """
    d = len(recipe.features)
    many = recipe.task == "classification" and len(recipe.classes) > 2
    weights = np.arange(1.0, d + 1)
    chosen = np.arange(d)[::-1][:2] if repeat == 0 else np.arange(0)
    grid = np.arange(10.0)
    slopes = [[c / 10 for c in range(len(recipe.classes))]] * 2 if many else [[1.0], [2.0]]
    curves = [
        np.stack([grid, *(row for k in own for row in (k * grid, k * grid - 1, k * grid + 1))])
        for own in slopes[: len(chosen)]
    ]
    stacked = np.stack(curves) if curves else np.zeros((0, 4, 0))
    return Explanation(0.1 * weights, weights / weights.sum(), chosen, stacked)


def _outcome(
    recipe: Recipe, cell: CompareCell, random: np.random.Generator, common: float
) -> CompareOutcome:
    nll = recipe.nll[cell.method] + common + recipe.noise * random.standard_normal()
    second = recipe.second[cell.method] * (1 + 0.3 * common + 0.01 * random.standard_normal())
    coverage = recipe.coverage.get(cell.method, 0.93) + 0.003 * random.standard_normal()
    name = {"regression": "mse", "classification": "error", "count": "mre"}[recipe.task]
    third = "brier" if recipe.task == "classification" else "crps"
    scores = {"nll": nll, name: second, third: 1.6 * second}
    if recipe.task == "classification" and len(recipe.classes) > 2:
        scores["ece"] = 0.1 * second
    if recipe.task != "classification":
        scores |= {"rmse": second**0.5, "coverage": coverage}
    chooses = method_named(cell.method).chooses_beta
    chosen = recipe.chosen if cell.method != "elbo-basic" else None
    model = ModelFacts(likelihood=chosen or BASIC[recipe.task], kernel="rbf", ard=True)
    single = method_named(cell.method).kind != "baseline" and cell.method != "auto"
    path = _path(recipe.betas, nll, random) if chooses else ()
    best = min(path, key=lambda point: point.loss).beta if path else 1.0 if single else np.nan
    return CompareOutcome(
        scores={key: float(value) for key, value in scores.items()},
        num_test=recipe.num_test,
        beta=best,
        path=path,
        validation_loss="MSE" if cell.method.startswith("square") else "NLL",
        curve=tuple((k, float(nll + 2 * np.exp(-k / 40))) for k in range(0, 400, 8)),
        status="converged",
        reason="The range of the last 10 losses is below 0.0001.",
        evaluations=431,
        seconds=SECONDS.get(cell.method, 41.0) * cell.size / max(recipe.sizes),
        failed=tuple(recipe.lost),
        model=model if single else None,
        members=_members(2 + cell.repeat % 2) if cell.method == "auto" else (),
    )


def _members(number: int) -> tuple[StoredMember, ...]:
    """The heaviest has half the weight and trees, the others share the rest."""
    label = "matern32 ARD, gaussian, joint, β = 1, 50 inducing inputs"
    rest = StoredMember(label=label, weight=0.5 / (number - 1), stacked=False)
    return (StoredMember(label=f"{label}, with stack", weight=0.5, stacked=True),) + (rest,) * (
        number - 1
    )


def _path(betas: Sequence[float], nll: float, random: np.random.Generator) -> tuple[BetaLoss, ...]:
    place = np.log10(np.maximum(np.array(betas), 1e-3)) - 0.3 * random.standard_normal() + 0.5
    losses = nll + 0.08 * place**2 + 0.004 * random.standard_normal(len(place))
    return tuple(
        BetaLoss(beta=float(b), loss=float(loss), error=0.01)
        for b, loss in sorted(zip(betas, losses, strict=True), reverse=True)
    )


def _predictions(recipe: Recipe, cell: CompareCell, shared: np.random.Generator) -> Predictions:
    signal = shared.standard_normal(recipe.num_test)
    width = SPREAD.get(cell.method, 1.1)
    if recipe.task == "classification":
        if len(recipe.classes) > 2:
            return _of_classes(len(recipe.classes), signal, width, shared)
        return _of_labels(signal, width, shared)
    return (
        _of_counts(signal, width, shared)
        if recipe.task == "count"
        else _of_numbers(signal, width, shared)
    )


def _of_numbers(signal: Any, width: float, random: np.random.Generator) -> Predictions:
    mean, truth, noise = (
        10 * signal,
        10 * signal + 2 * random.standard_normal(len(signal)),
        2 * width,
    )
    cdf = stats.norm.cdf(truth, mean, noise)
    reach = 1.645 * noise
    return Predictions(truth, mean, mean - reach, mean + reach, cdf, cdf)


def _of_counts(signal: Any, width: float, random: np.random.Generator) -> Predictions:
    rate = np.exp(1 + 0.8 * signal)
    y = random.poisson(rate).astype(np.float64)
    wide = rate * width**2
    lower, upper = stats.poisson.interval(0.9, wide)
    return Predictions(
        y, wide, lower, upper, stats.poisson.cdf(y - 1, wide), stats.poisson.cdf(y, wide)
    )


def _of_classes(number: int, signal: Any, width: float, random: np.random.Generator) -> Predictions:
    """Softmax of f with slopes −2 to 2; predicted is that of f/width."""
    f = signal[:, None] * np.linspace(-2, 2, number)
    chances, told = special.softmax(f, 1), special.softmax(f / width, 1)
    y = (random.random((len(f), 1)) > chances.cumsum(1)).sum(1).clip(max=number - 1)
    up_to = np.take_along_axis(told.cumsum(1), y[:, None], 1)[:, 0]
    below = up_to - np.take_along_axis(told, y[:, None], 1)[:, 0]
    ends = np.zeros(len(f)), np.full(len(f), number - 1.0)
    return Predictions(y.astype(np.float64), told @ np.arange(number), *ends, below, up_to, told)


def _of_labels(signal: Any, width: float, random: np.random.Generator) -> Predictions:
    p = 1 / (1 + np.exp(-2 * signal))
    y = (random.random(len(p)) < p).astype(np.float64)
    told = 1 / (1 + np.exp(-2 * signal / width))
    below = np.where(y == 1, 1 - told, 0.0)
    return Predictions(
        y, told, np.zeros_like(y), np.ones_like(y), below, below + np.where(y == 1, told, 1 - told)
    )


SMALL: dict[str, Recipe] = {
    "regression": Recipe(methods=("elbo", "log-joint"), repeats=3, sizes=(500, 5000), num_test=60),
    "classification": Recipe(
        task="classification", methods=("elbo", "log-joint"), repeats=2, num_test=60
    ),
    "count": Recipe(task="count", methods=("elbo", "log-fixed"), repeats=1, num_test=60),
    "classes": Recipe(
        task="classification",
        classes=("a", "$b", "<c>", "d " * 30, "é"),
        methods=("elbo", "log-joint"),
        repeats=2,
        num_test=60,
    ),
}
"""One small report for each task."""
