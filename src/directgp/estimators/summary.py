"""Write the summary of a fitted estimator."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from gpytorch.kernels import Kernel

from directgp.estimators.messages import length_scales
from directgp.objectives.base import PointLoss
from directgp.text import (
    bullet,
    decimals_for,
    duration,
    entry,
    number,
    plural,
    text_table,
    with_error,
)
from directgp.training.result import BetaPath

if TYPE_CHECKING:
    from directgp.estimators.base import SparseGPEstimator


def reason_for_choice(path: BetaPath) -> str:
    """Why the chosen candidate was taken."""
    what = f"by {path.loss} on {path.validation}"
    if len(path.points) == 1:
        return "the only candidate that could be trained"
    chosen = path.points[path.chosen]
    candidates = plural(len(path.points), "candidate")
    if chosen.difference <= 0:
        return f"the best of {candidates} {what}"
    gap = with_error(chosen.difference, chosen.difference_error)
    return f"the safest of {candidates} that cannot be told from the best {what} ({gap} above it)"


def choice_sections(path: BetaPath) -> Iterator[str]:
    """Models, candidates and failures, each where there is something to tell."""
    if len(path.models) > 1:
        yield _models(path)
    if path.points:
        yield _candidates(path)
    if path.failed:
        yield "\n".join(
            ["Could not be trained", *(bullet(str(failure)) for failure in path.failed)]
        )


def _models(path: BetaPath) -> str:
    """Kernels and likelihoods, the best first."""
    best = max(model.evidence for model in path.models)
    ranked = sorted(path.models, key=lambda model: -model.evidence)
    rows = [
        ("→" if i == 0 else "", model.name, number(best - model.evidence, 4) if i else "best")
        for i, model in enumerate(ranked)
    ]
    header = "", "model", "log evidence, below the best"
    return "Models compared\n" + _table(header, rows, right=(2,))


def _with_errors(values: Sequence[float], errors: Sequence[float]) -> list[str]:
    """Format values ± errors with one decimal more than the median error needs."""
    decimals = decimals_for(values, errors) + 1
    return [with_error(*pair, decimals) for pair in zip(values, errors, strict=True)]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    return textwrap.indent(text_table([header, *rows], right), "  ")


def _candidates(path: BetaPath) -> str:
    """The β path, from the most to the least regularised."""
    points = path.points
    losses = _with_errors(
        [point.validation_loss for point in points], [point.validation_error for point in points]
    )
    gaps = _with_errors(
        [point.difference for point in points], [point.difference_error for point in points]
    )
    rows = [
        (
            "→" if i == path.chosen else "",
            f"{point.beta:.3g}",
            point.hyperparameters,
            losses[i],
            gaps[i] if point.difference > 0 else "best",
            point.status,
        )
        for i, point in enumerate(points)
    ]
    header = "", "β", "mode", "validation loss", "above the best", "training"
    return f"Candidates compared, {path.loss}\n" + _table(header, rows, right=(1, 3, 4))


_MOST_FEATURES = 12

_MODES = {
    "joint": "everything trained together for it",
    "fixed": "q(u) trained for it, hyperparameters kept from the ELBO",
    "elbo": "the plain ELBO solution was kept, as none was clearly better",
    "held": "q(u) trained for it, hyperparameters held where they start",
}

_WITHOUT_MODES = ("elbo", "vfe", "fitc")

_STATUS = {"budget": "Out of steps or time"}


@final
@dataclass(frozen=True)
class Facts:
    """What there is to tell of a fitted estimator."""

    estimator: str
    num_rows: int
    num_features: int
    kernel: str
    """With " ARD" where every feature has a length scale of its own."""

    likelihood: str
    num_inducing: int
    objective: str
    """The one that was asked for, also where the ELBO solution was chosen."""

    hyperparameters: str
    """"joint", "fixed", "elbo", or "held" where the first rows were of one class."""

    beta: float
    status: str
    reason: str
    steps: int
    evaluations: int
    seconds: float
    beta_given: bool = False
    """Whether the user named β."""

    num_merged: int = 0
    """Rows that repeat another one."""

    jitter: float = 0.0
    noise: Mapping[str, float] = field(default_factory=dict)
    """Parameters of the likelihood by name, in the user's units."""

    length_scales: tuple[tuple[str, float, float], ...] = ()
    """Name of the feature, its length scale in the user's units, and in deviations of the feature.
    One entry of name "" where all features share one; none where the kernel has none."""

    output_scale: float | None = None
    """Deviation of f under the prior, in the user's units."""

    path: BetaPath | None = None
    warnings: tuple[str, ...] = ()
    """One sentence or two for each."""


def summary_text(facts: Facts) -> str:
    """The facts as plain text of at most 100 columns."""
    return "\n\n".join(_sections(facts))


def _sections(facts: Facts) -> Iterator[str]:
    yield "\n".join([facts.estimator, *_overview(facts)])
    if len(facts.length_scales) > 1:
        yield _length_scale_table(facts.length_scales)
    if facts.path is not None:
        yield from choice_sections(facts.path)
    if facts.warnings:
        yield "\n".join(["Warnings", *map(bullet, facts.warnings)])


def _overview(facts: Facts) -> Iterator[str]:
    yield entry("data", _data(facts))
    yield entry("model", _model(facts))
    yield entry("objective", _objective(facts))
    yield entry("β", f"{facts.beta:.3g}{_reason_for_beta(facts)}")
    if facts.noise:
        words = ", ".join(f"{name} {number(v, 4)}" for name, v in facts.noise.items())
        yield entry("likelihood", words)
    if facts.output_scale is not None:
        yield entry("output scale", number(facts.output_scale, 4))
    if len(facts.length_scales) == 1:
        yield entry("length scale", _one_length_scale(*facts.length_scales[0]))
    yield from _training(facts)


def _data(facts: Facts) -> str:
    rows = plural(facts.num_rows, "row")
    if facts.num_merged:
        rows += f" ({facts.num_merged:,} repeated others and were merged with them)"
    return f"{rows}, {plural(facts.num_features, 'feature')}"


def _model(facts: Facts) -> str:
    kernel = facts.kernel if facts.kernel.endswith("Kernel") else f"{facts.kernel} kernel"
    inducing = plural(facts.num_inducing, "inducing input")
    return f"{kernel}, {facts.likelihood} likelihood, {inducing}"


def _objective(facts: Facts) -> str:
    """With the mode, where the objective leaves a choice of it."""
    mode = facts.hyperparameters
    if facts.objective in _WITHOUT_MODES:
        return facts.objective
    if mode == "elbo" and (facts.path is None or not facts.path.points):
        return f"{facts.objective}, elbo: the plain ELBO solution; nothing was compared with it"
    return f"{facts.objective}, {mode}: {_MODES[mode]}"


def _reason_for_beta(facts: Facts) -> str:
    own = facts.objective in _WITHOUT_MODES
    if facts.hyperparameters == "elbo" and not own:
        words = ", that of the ELBO"
    elif facts.beta_given:
        words = ", as given"
    else:
        words = ", that of the objective itself" if own else ""
    if facts.path is None or not facts.path.points:
        return words
    return f"{words}{';' if words else ','} {reason_for_choice(facts.path)}"


def _one_length_scale(name: str, own: float, in_deviations: float) -> str:
    if name:
        return f"{number(own, 4)}, {number(in_deviations, 4)} standard deviations of {name}"
    return f"{number(in_deviations, 4)} standard deviations, the same for every feature"


def _length_scale_table(scales: tuple[tuple[str, float, float], ...]) -> str:
    """The features on which f depends most first."""
    ranked = sorted(scales, key=lambda scale: scale[2])
    rows = [(name, number(own, 4), number(of, 4)) for name, own, of in ranked[:_MOST_FEATURES]]
    header = "feature", "in its units", "in standard deviations"
    text = _table(header, rows, right=(1, 2))
    more = len(ranked) - _MOST_FEATURES
    title = "Length scales, the most relevant feature first"
    return f"{title}\n{text}" + (f"\n  … and {more:,} more" if more > 0 else "")


def _training(facts: Facts) -> Iterator[str]:
    status = _STATUS.get(facts.status, facts.status.capitalize())
    yield entry("training", f"{status}. {facts.reason}")
    steps, evaluations = plural(facts.steps, "step"), plural(facts.evaluations, "evaluation")
    words = f"{steps}, {evaluations}, {duration(facts.seconds)}"
    yield entry("", f"{words}, jitter up to {facts.jitter:.1g}" if facts.jitter else words)


def facts_of(model: "SparseGPEstimator") -> Facts:
    """The facts of a fitted estimator, in the user's units."""
    result = model.training_result_
    objective = model.objective
    with torch.no_grad():
        parameters = model.likelihood_.description(_in_units(model, 1.0))
    return Facts(
        estimator=type(model).__name__,
        num_rows=model.num_rows_,
        num_features=model.n_features_in_,
        kernel=_kernel(model),
        likelihood=type(model.likelihood_).__name__,
        num_inducing=len(model.posterior_.Z),
        objective=objective.name if isinstance(objective, PointLoss) else objective,
        hyperparameters=model.hyperparameters_,
        beta=model.beta_,
        beta_given=model.beta != "auto",
        status=result.status.value,
        reason=result.reason,
        steps=result.steps,
        evaluations=result.evaluations,
        seconds=model.fit_seconds_,
        num_merged=model.num_merged_,
        jitter=result.jitter,
        noise=parameters,
        length_scales=_length_scales(model),
        output_scale=_in_units(model, float(model.posterior_.prior.scale.detach().sqrt())),
        path=model.beta_path_,
        warnings=model.findings_,
    )


def _kernel(model: "SparseGPEstimator") -> str:
    kernel = model._structure["kernel"]
    if isinstance(kernel, Kernel):
        return type(kernel).__name__
    scales = length_scales(model.posterior_)
    return f"{kernel} ARD" if scales is not None and len(scales) > 1 else str(kernel)


def _in_units(model: "SparseGPEstimator", deviation: float) -> float:
    return float(model._deviation_in_units(np.array([deviation]))[0])


def _length_scales(model: "SparseGPEstimator") -> tuple[tuple[str, float, float], ...]:
    """One for all features, or one for each, in its units and in its deviations."""
    scales = length_scales(model.posterior_)
    if scales is None:
        return ()
    spread = np.abs(model.scalings_.inputs.scale)
    if len(scales) == 1 < model.n_features_in_:
        return (("", float("nan"), float(scales[0])),)
    numbers = [f"column {j}" for j in range(model.n_features_in_)]
    names = getattr(model, "feature_names_in_", numbers)
    return tuple(
        (str(name), float(scale * unit), float(scale))
        for name, scale, unit in zip(names, scales, spread, strict=True)
    )
