"""A fitted estimator in words: the data, the model, why it is that one, and how training went."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from directgp.estimators.reports.fit_tally import duration
from directgp.estimators.reports.plain_text import count, entry, figure, item, table
from directgp.estimators.reports.record import ChosenPath
from directgp.estimators.reports.summary_path import choice_sections, reason_for_choice

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
    noise: tuple[tuple[str, float], ...] = ()
    """Parameters of the likelihood by name, in the user's units."""

    length_scales: tuple[tuple[str, float, float], ...] = ()
    """Name of the feature, its length scale in the user's units, and in deviations of the feature.
    One entry of name "" where all features share one; none where the kernel has none."""

    output_scale: float | None = None
    """Deviation of f under the prior, in the user's units."""

    path: ChosenPath | None = None
    warnings: tuple[str, ...] = ()
    """One sentence or two for each."""


def summary_text(facts: Facts) -> str:
    """The facts as plain text of at most 100 columns."""
    return "\n\n".join(_sections(facts))


def _sections(facts: Facts) -> Iterator[str]:
    yield "\n".join([facts.estimator, *_overview(facts)])
    if len(facts.length_scales) > 1:
        yield _length_scales(facts.length_scales)
    if facts.path is not None:
        yield from choice_sections(facts.path)
    if facts.warnings:
        yield "\n".join(["Warnings", *map(item, facts.warnings)])


def _overview(facts: Facts) -> Iterator[str]:
    yield entry("data", _data(facts))
    yield entry("model", _model(facts))
    yield entry("objective", _objective(facts))
    yield entry("β", f"{facts.beta:.3g}{_reason_for_beta(facts)}")
    if facts.noise:
        yield entry("likelihood", ", ".join(f"{name} {figure(v)}" for name, v in facts.noise))
    if facts.output_scale is not None:
        yield entry("output scale", figure(facts.output_scale))
    if len(facts.length_scales) == 1:
        yield entry("length scale", _one_length_scale(*facts.length_scales[0]))
    yield from _training(facts)


def _data(facts: Facts) -> str:
    rows = count(facts.num_rows, "row")
    if facts.num_merged:
        rows += f" ({facts.num_merged:,} repeated others and were merged with them)"
    return f"{rows}, {count(facts.num_features, 'feature')}"


def _model(facts: Facts) -> str:
    kernel = facts.kernel if facts.kernel.endswith("Kernel") else f"{facts.kernel} kernel"
    inducing = count(facts.num_inducing, "inducing input")
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
        return f"{figure(own)}, {figure(in_deviations)} standard deviations of {name}"
    return f"{figure(in_deviations)} standard deviations, the same for every feature"


def _length_scales(scales: tuple[tuple[str, float, float], ...]) -> str:
    """The features on which f depends most first."""
    ranked = sorted(scales, key=lambda scale: scale[2])
    rows = [(name, figure(own), figure(of)) for name, own, of in ranked[:_MOST_FEATURES]]
    text = table(("feature", "in its units", "in standard deviations"), rows, left=(0,))
    more = len(ranked) - _MOST_FEATURES
    title = "Length scales, the most relevant feature first"
    return f"{title}\n{text}" + (f"\n  … and {more:,} more" if more > 0 else "")


def _training(facts: Facts) -> Iterator[str]:
    status = _STATUS.get(facts.status, facts.status.capitalize())
    yield entry("training", f"{status}. {facts.reason}")
    steps, evaluations = count(facts.steps, "step"), count(facts.evaluations, "evaluation")
    words = f"{steps}, {evaluations}, {duration(facts.seconds)}"
    yield entry("", f"{words}, jitter up to {facts.jitter:.1g}" if facts.jitter else words)
