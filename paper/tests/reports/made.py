"""Results of the paper's experiments made by hand, with realistic numbers drawn by a seed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from directgp.experiments.cell import Circumstances, Record
from directgp.metrics import SCORES
from directgp.registry import Task
from directgp_paper.experiments.cells import (
    EXACT,
    PAPER_METHODS,
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
    PaperCell,
    PaperOutcome,
    PaperRecord,
    Results,
    RuleFacts,
    SamplerCell,
    SamplerOutcome,
    SamplerPoint,
)
from directgp_paper.experiments.claims.base import Claim, ClaimReading, Finding, Part
from directgp_paper.experiments.run import DataRow, Reproduction
from directgp_paper.experiments.sweep import SCALES

TASKS: dict[str, Task] = {
    **dict.fromkeys(("pol", "cadata", "sarcos", "song"), "regression"),
    **dict.fromkeys(("banana", "thyroid", "twonorm", "ringnorm", "airline"), "classification"),
    **dict.fromkeys(("abalone", "peds1", "peds1_dir0", "peds1_dir1", "peds1_dir2"), "count"),
}
BASE = {
    "elbo": 0.36,
    "beta-elbo": 0.28,
    "fitc": 0.25,
    "fitc-of-elbo": 0.31,
    "log-joint": -0.10,
    "log-fixed": 0.20,
    "square-joint": 0.50,
    "square-fixed": 0.61,
}
SQUARED = {**dict.fromkeys(BASE, 0.12), "square-joint": 0.09, "square-fixed": 0.10}
SAMPLED = [RuleFacts(name="bmc", samples=n) for n in (1, 10, 100)]
SMOOTH = [RuleFacts(name="smooth-bmc", samples=n) for n in (1, 10, 100)]
PRODUCT = [RuleFacts(name="ups", samples=n) for n in (1, 10)]
MIXED = RuleFacts(name="ups-mixed", samples=1)
PAPER_SAMPLER = RuleFacts(name="ups-paper", samples=10)
HERE = Circumstances(
    versions={"python": "3.12.3", "directgp": "0.1.0", "torch": "2.13.0"},
    machine="a processor of 2 cores, no GPU",
    device="cpu",
    finished="2026-01-02 03:04 UTC",
)


@dataclass(frozen=True)
class Recipe:
    """Which results are made."""

    fits: Sequence[str] = ()
    """Data sets."""

    sizes: Sequence[int] = (250, 691, 2000)
    methods: Sequence[str] = tuple(PAPER_METHODS)
    airline: bool = False
    counts: Sequence[str] = ()
    regression: Sequence[str] = ()
    gradients: bool = False
    samplers: Sequence[str] = ()
    repeats: int = 3
    points: int = 21


EVERYTHING = Recipe(
    fits=tuple(each for each in TASKS if each != "airline" and "dir" not in each),
    sizes=(173, 346, 691, 1383, 2766, 5532, 11063),
    airline=True,
    counts=("abalone", "peds1"),
    regression=("pol", "cadata", "sarcos", "song"),
    gradients=True,
    samplers=("abalone", "banana"),
    repeats=5,
)
SMALL = Recipe(fits=("sarcos",), sizes=(346, 691), samplers=("abalone",), repeats=2)


def results(recipe: Recipe) -> Results:
    """All of it."""
    return Results(tuple(record(cell, recipe) for cell in cells(recipe)))


def cells(recipe: Recipe) -> Iterator[PaperCell]:
    """In order."""
    for repeat in range(recipe.repeats):
        for dataset in recipe.fits:
            yield from _fits(dataset, recipe, repeat)
        if recipe.airline:
            yield from _airline(repeat)
        for dataset in (*recipe.counts, *recipe.regression):
            yield from _curves(dataset, repeat)
        if recipe.gradients:
            rules = (*SAMPLED, *SMOOTH, *PRODUCT)
            known = _known("abalone", repeat, 2000)
            yield GradientCell(**known, rules=rules, draws=400, beta=1.0, truth_samples=10000)
        for dataset in recipe.samplers:
            known = _known(dataset, repeat, 1000)
            known |= {"looks": (0, 10, 100, 1000), "samples": 10, "examples": 500}
            yield SamplerCell(**known, beta=1.0, learning_rate=0.01)


def _known(dataset: str, repeat: int, size: int) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "data": "8f3a" * 16,
        "task": TASKS[dataset],
        "size": size,
        "num_inducing": 50,
        "repeat": repeat,
        "seed": 17 + repeat,
    }


def _fits(dataset: str, recipe: Recipe, repeat: int) -> Iterator[FitCell]:
    for size in recipe.sizes:
        for name in recipe.methods:
            method = PAPER_METHODS[name]
            if method.gaussian_only and TASKS[dataset] != "regression":
                continue
            grid = tuple(size / 4.0**k for k in range(9)) if method.chooses_beta else (1.0,)
            known = _known(dataset, repeat, size)
            yield FitCell(**known, method=name, betas=grid, protocol="best")


def _curve(dataset: str, repeat: int, **given: Any) -> CurveCell:
    return CurveCell(
        **_known(dataset, repeat, 100_000),
        **{
            "objective": "log_loss",
            "hyperparameters": "joint",
            "learning_rate": 0.001,
            "batch_size": 1000,
            "steps": 2000,
            "every": 100,
            "num_test": 10,
            **given,
        },
    )


def _airline(repeat: int) -> Iterator[CurveCell]:
    for beta in (0.1, 1.0, 10.0):
        yield _curve("airline", repeat, objective="elbo", beta=beta)
        yield _curve("airline", repeat, hyperparameters="fixed", beta=beta)
        for rule in (EXACT, *SAMPLED, *PRODUCT):
            yield _curve("airline", repeat, beta=beta, rule=rule)
    for rule in SMOOTH:
        yield _curve("airline", repeat, beta=0.1, rule=rule)
    for rule in (EXACT, SAMPLED[1], *PRODUCT):
        yield _curve("airline", repeat, beta=0.1, rule=rule, whitened=False)


def _curves(dataset: str, repeat: int) -> Iterator[CurveCell]:
    counts = (*SMOOTH, *PRODUCT, MIXED, PAPER_SAMPLER)
    other = counts if TASKS[dataset] == "count" else ()
    for rule in (EXACT, *SAMPLED, *other):
        yield _curve(dataset, repeat, beta=0.1, rule=rule, batch_size=None)


def record(cell: PaperCell, recipe: Recipe) -> PaperRecord:
    """A cell with what may come of it."""
    random = np.random.default_rng([int(cell.key[:8], 16)])
    shared = 0.03 * np.random.default_rng([cell.repeat, cell.size]).standard_normal()
    arrays: dict[str, Any] = {}
    outcome: PaperOutcome
    if isinstance(cell, FitCell):
        outcome = _fit(cell, random, shared)
    elif isinstance(cell, CurveCell):
        outcome = _looks(cell, recipe.points, random, shared)
        arrays = {"losses": np.zeros((recipe.points, 3), np.float32)}
    elif isinstance(cell, GradientCell):
        arrays = _draws(cell, random)
        outcome = _gradients(cell, arrays)
    else:
        outcome = _samplers(cell, random)
    return Record(cell, outcome, HERE, arrays)


def _fit(cell: FitCell, random: np.random.Generator, shared: float) -> FitOutcome:
    late = 0.25 * math.log(11063 / cell.size)
    nll = BASE[cell.method] + late + shared + 0.01 * random.standard_normal()
    names = [score.name for score in SCORES[cell.task]]
    scores = {name: 0.5 + 0.1 * nll for name in names} | {"nll": nll}
    if "mse" in scores:
        scores["mse"] = SQUARED[cell.method] * (1 + late + 0.02 * random.standard_normal())
    path = _path(cell, nll, random) if PAPER_METHODS[cell.method].chooses_beta else ()
    return FitOutcome(
        scores={name: float(value) for name, value in scores.items()},
        num_test=1000,
        num_training=11063,
        beta=min(path, key=lambda point: point.validation).beta if path else 1.0,
        path=path,
        history=((0, 1.0), (100, nll)),
        status="converged",
        reason="The range of the last 50 losses is below 0.0001.",
        evaluations=431,
        seconds=12.5,
    )


def _path(cell: FitCell, nll: float, random: np.random.Generator) -> tuple[BetaScores, ...]:
    points = []
    for beta in cell.betas:
        away = math.log10(beta) - 0.5 + 0.2 * random.standard_normal()
        loss = float(nll + 0.06 * away**2)
        points.append(BetaScores(beta=beta, validation=loss, error=0.01, test={"nll": loss + 0.01}))
    return tuple(points)


def _looks(
    cell: CurveCell, points: int, random: np.random.Generator, shared: float
) -> CurveOutcome:
    bound = 0.01 if cell.objective == "elbo" else 0.0
    held = 0.004 if cell.hyperparameters == "fixed" else 0.0
    few = 0.02 / cell.rule.samples**0.7 if cell.rule.samples else 0.0
    few *= 0.4 if cell.rule.name == "ups" else 1.0
    end = 0.57 + bound + held + few + 0.003 * math.log10(cell.beta) + 0.1 * shared
    slow = 4.0 if cell.rule.name == "ups-paper" else 1.0
    every = cell.steps // max(points - 1, 1)
    found = []
    for k in range(points):
        nll = end + 0.12 * math.exp(-k / 3) + 0.0005 * random.standard_normal()
        scores = {"nll": float(nll), "error": float(0.5 * nll), "mse": float(nll)}
        seconds = 3.0 * slow * k
        found.append(CurvePoint(step=k * every, epoch=float(k), scores=scores, seconds=seconds))
    return CurveOutcome(
        points=tuple(found),
        num_test=10,
        status="done",
        reason="All steps were made.",
        seconds=60.0,
    )


def _draws(cell: GradientCell, random: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rule in cell.rules:
        spread = {"bmc": 0.9, "smooth-bmc": 0.6, "ups": 0.25}[rule.name] / math.sqrt(rule.samples)
        for block in ("u_mean", "u_chol"):
            scatter = random.standard_normal((cell.draws, 5)) * spread
            one, norm = 1 + scatter[:, 0], (1 + scatter[:, 0]) ** 2 + (scatter[:, 1:] ** 2).sum(1)
            for name, values in (
                ("alignment", one),
                ("squared_norm", norm),
                ("squared_error", (scatter**2).sum(1)),
            ):
                found[f"{name}.{rule.label}.{block}"] = values.astype(np.float32)
    return found


def _gradients(cell: GradientCell, arrays: dict[str, Any]) -> GradientOutcome:
    some = Measured(value=0.5, error=0.01)
    rows = [
        GradientRow(
            rule=rule,
            block=block,
            alignment=some,
            squared_norm=some,
            squared_error=some,
            variance=some,
            squared_bias=some,
            seconds=0.01,
        )
        for rule in cell.rules
        for block in ("u_mean", "u_chol")
    ]
    return GradientOutcome(rows=tuple(rows), truth_error={"u_mean": 0.001}, seconds=5.0)


def _samplers(cell: SamplerCell, random: np.random.Generator) -> SamplerOutcome:
    looks = []
    for k, step in enumerate(cell.looks):
        much = (30.0, 6.0, 3.2, 2.9)[k] * (1 + 0.03 * random.standard_normal())
        looks.append(
            SamplerPoint(
                step=step,
                proposals=Measured(value=much, error=0.1),
                proposals_narrow=Measured(value=1.01 * much, error=0.1),
                proposals_ours=Measured(value=1.1, error=0.01),
                expected_proposals=0.99 * much,
                one_by_one_seconds=0.2 * much,
                vectorised_seconds=0.04 * much,
                bmc_seconds=0.002,
                paper_ups_seconds=0.05 * much,
                our_ups_seconds=0.004,
                bmc_error=0.3,
                paper_ups_error=0.9,
                our_ups_error=0.01,
            )
        )
    return SamplerOutcome(samples=cell.samples, looks=tuple(looks), seconds=30.0)


def odd(record: PaperRecord, value: float) -> PaperRecord:
    """With scores, losses and draws that are not finite, of a run that reached its limit."""
    outcome: Any = record.outcome
    arrays = {name: np.full_like(each, value) for name, each in record.arrays.items()}
    changes: dict[str, Any] = {}
    if outcome.kind == "fit":
        history = ((0, value), (50, value), (100, value))
        scores = dict.fromkeys(outcome.scores, value)
        changes = {"scores": scores, "status": "budget", "history": history}
    elif outcome.kind == "curve":
        scores = dict.fromkeys(outcome.points[-1].scores, value)
        changes = {"points": tuple(p.model_copy(update={"scores": scores}) for p in outcome.points)}
    return replace(record, outcome=outcome.model_copy(update=changes), arrays=arrays)


FINDINGS = {
    "taken together": Finding(
        "held",
        "On all 2 sets that were run DLM is better, by 0.451 ± 0.012 NLL or more (p = 0.0004).",
        (
            Part("sarcos, 2,766 rows: DLM against ELBO", "held", -0.4512, 0.0123, 0.0004, "NLL"),
            Part("song", "not decided", math.nan, math.nan, math.nan, "NLL", "song was not run."),
            Part("abalone", "held", -0.02, math.nan, 0.03, "NLL", decides=False),
        ),
    ),
    "strict": Finding(
        "not held",
        "sarcos: joint DLM 0.07 ± 0.01 above FITC in NLL.",
        (Part("sarcos: joint DLM against FITC", "not held", 0.07, 0.01, 0.002, "NLL"),),
    ),
    "the chosen β": Finding(
        "not held",
        "The median β is 0.67 for log-loss DLM (joint).",
        (Part("cadata, 691 rows: β of DLM", "not held", 0.17, 0.05, 0.2, "log10 β"),),
    ),
    "squared bias": Finding("no difference", "The bias of uPS is equal to that of bMC.", ()),
    "proposals": Finding(
        "not decided",
        "The number of rejected draws varies too much.",
        (
            Part(
                "abalone: draws",
                "not decided",
                *(0.1, 0.4, 0.8, "draws"),
                remedy="About 14 repeats would decide it, 2 h more: --repeats 14.",
            ),
            Part(
                "banana: draws",
                "not decided",
                *(0.2, 0.4, 0.7, "draws"),
                decides=False,
                remedy="About 90 repeats would decide it: --repeats 90.",
            ),
        ),
    ),
    "the width has no effect": Finding("held", "It changes nothing.", ()),
}


def _reading(name: str, criterion: str, why: str, **facts: Any) -> ClaimReading:
    given = {"of": "paper", **facts}
    return ClaimReading(name, criterion=criterion, why=why, judge=lambda _: FINDINGS[name], **given)


CLAIMS = (
    Claim(
        "C1",
        "Log-loss DLM has lower test NLL than ELBO, β-ELBO and FITC in regression.",
        "Log-loss DLM dominates all other methods.",
        "fig. 1a",
        ("1a", "2"),
        lambda cell: isinstance(cell, FitCell),
        (
            _reading(
                "taken together",
                "Held if the better variant of DLM beats each of the three on every set, p < 5 %.",
                "The paper has two variants, and says that the better one wins.",
            ),
            _reading(
                "strict",
                "Held if joint DLM beats each of the three on every set, p < 5 %.",
                "It is the sentence, word by word.",
            ),
        ),
    ),
    Claim(
        "C4",
        "On cadata with 691 training examples the best β is above 1 for all methods.",
        "We observe that the optimal β is larger than 1.",
        "fig. 1c",
        ("1c", "2"),
        lambda cell: isinstance(cell, FitCell),
        (
            _reading(
                "the chosen β",
                "Held if the median of log10 β is above 0 for all methods.",
                "It is about the β that validation selects.",
            ),
        ),
    ),
    Claim(
        "C8",
        "uPS has lower gradient bias than bMC, smooth-bMC lies between.",
        "The bias for bMC is significantly larger than uPS.",
        "fig. 1g, 1h",
        ("1g", "1h", "9"),
        lambda cell: isinstance(cell, GradientCell),
        (
            _reading(
                "squared bias",
                "Held if the squared bias of uPS is below that of bMC at equal samples.",
                "The claim is about bias.",
            ),
        ),
    ),
    Claim(
        "C13",
        "The paper's sampler rejects about 2 draws on average after the first iterations.",
        "The average number of rejected samples is low (approximately 2 in our evaluation).",
        "appendix",
        ("S1",),
        lambda cell: isinstance(cell, SamplerCell),
        (
            _reading(
                "proposals",
                "Held if the mean of rejected draws is from 1 to 3.",
                "1 to 3 is about 2.",
            ),
            _reading(
                "the width has no effect",
                "Held if wide and narrow proposals need as many draws.",
                "The paper optimises the width.",
                of="ours",
            ),
        ),
    ),
)
SARCOS = DataRow(
    name="sarcos",
    task="regression",
    rows=7432,
    features=21,
    fingerprint="8f3a" * 16,
    paper_rows=48933,
    paper_features=21,
    num_inducing=100,
    origin="sarcos.parquet",
    licence="none stated",
    source="http://gaussianprocess.org/gpml/data/",
    differences="A subset of 7,432 rows.",
)
POL = {"name": "pol", "rows": 15000, "features": 26, "paper_rows": 15000, "paper_features": 26}
PLAIN = {"origin": "pol.parquet", "licence": "", "source": "", "differences": ""}
DATA = SARCOS, SARCOS.model_copy(update=POL | PLAIN)


def reproduction(found: Results, **changes: Any) -> Reproduction:
    """What a report tells of these results."""
    told = Reproduction(
        results=found,
        claims=tuple(claim.assess(found) for claim in CLAIMS),
        data=DATA,
        scale=replace(
            SCALES["small"], about="fewer rows and repeats than in the paper, about an hour."
        ),
        protocol="best",
        command="directgp reproduce --scale small --data-dir data",
        began="2026-01-02 03:04 UTC",
        seconds=3725.0,
        machine="a processor of 2 cores, no GPU",
    )
    return replace(told, **changes)
