"""What was run, as pairs of a name and what there is to say of it."""

import math

from directgp.datasets.wording import several
from directgp.experiments.comparison import Comparison
from directgp.reports.findings import Findings
from directgp.reports.numbers import duration, short, whole
from directgp.reports.plain import plain
from directgp.reports.steps import steps_allowed

_MOST_NAMES = 12
"""Of features that are written out."""

_INDUCING = "a quarter of the training rows, from 50 to 100"
_BETAS = "every second of n, n/2, n/4, …, 0.01, and 1"


def data_particulars(findings: Findings) -> dict[str, str]:
    """Of the data."""
    data = findings.comparison.plan.data
    found = {
        "source": plain(data.source, 200),
        "rows": whole(data.num_rows),
        "features": _features(data.feature_names),
        "target": plain(data.target, 200),
    }
    if data.classes:
        found["classes"] = f"{plain(data.classes[0])} and {plain(data.classes[1])}"
    return {**found, "fingerprint": data.fingerprint}


def run_particulars(findings: Findings) -> dict[str, str]:
    """Of splits, settings and the machine."""
    comparison = findings.comparison
    plan, settings = comparison.plan, comparison.plan.settings
    inducing = settings.num_inducing
    versions = (f"{name} {version}" for name, version in comparison.versions.items())
    return {
        "training rows": ", ".join(whole(size) for size in plan.sizes),
        "validation rows": whole(plan.parts.validation),
        "test rows": whole(plan.parts.test),
        "repeats": f"{plan.repeats}, seed {plan.seed}",
        "likelihood": settings.likelihood,
        "kernel": f"{settings.kernel}, {_lengthscales(settings.ard)}",
        "inducing inputs": _INDUCING if inducing is None else whole(inducing),
        "grid of β": _grid(settings.betas),
        "steps": steps_allowed(plan),
        "precision": f"{settings.dtype} on {settings.device}",
        "versions": ", ".join(versions),
        "machine": comparison.machine,
        "began": comparison.began,
        "fits took": _time(comparison),
    }


def _features(names: tuple[str, ...]) -> str:
    shown = ", ".join(plain(name) for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{len(names)}: {shown}{f' and {more} more' if more > 0 else ''}"


def _lengthscales(ard: bool) -> str:
    return "one lengthscale a feature" if ard else "one lengthscale for all features"


def _grid(betas: tuple[float, ...] | None) -> str:
    return _BETAS if betas is None else ", ".join(map(short, betas))


def _time(comparison: Comparison) -> str:
    """Of the fits themselves, whichever run of the command they were finished in."""
    where = "one core" if comparison.plan.settings.device == "cpu" else "the GPU"
    seconds = math.fsum(run.outcome.seconds for run in comparison.runs)
    return f"{duration(seconds)} of {where} in all, for {several(len(comparison.runs), 'fit')}"
