"""Write the summary of a fitted estimator, as text, as HTML and as plain values."""

import html
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel
from jaxtyping import Float64

from directgp.estimators.decomposition import LatentParts, stored_shares
from directgp.estimators.explanations import feature_names
from directgp.estimators.kernel_expressions import name_of
from directgp.estimators.outputs import named
from directgp.estimators.predictions import PredictingEstimator
from directgp.likelihoods.capabilities import description
from directgp.objectives.base import PointLoss
from directgp.registry import LOSSES
from directgp.text import (
    bullet,
    decimals_for,
    duration,
    entry,
    finite,
    fixed,
    joined,
    number,
    percent,
    plural,
    text_table,
    visible,
    with_error,
)
from directgp.training.result import BetaPath, PathPoint

_MAX_FEATURES = 12
"""Rows of the table of lengthscales."""

_MODES = {
    "joint": "all parameters trained for this objective",
    "fixed": "q(u) trained for this objective, hyperparameters from the ELBO",
    "elbo": "the plain ELBO solution",
    "held": "q(u) trained for this objective, hyperparameters at their starting values",
}

_BEST = "best"
"""Text for a difference of 0 from the best."""

_STATUS = {"budget": "Out of steps or time"}
"""Texts for statuses whose name is not clear."""


_TERMS = 6
"""Terms of the kernel in one line."""

LengthScale = tuple[str, float, float]
"""Name of a feature, its lengthscale in its units, and in its standard deviations."""


@final
@dataclass(frozen=True)
class TermFacts:
    """A term of a kernel that is an expression."""

    name: str
    """What it is, in words."""

    share: float
    """Variance of its posterior mean over training rows, relative to the sum over the terms."""

    parameters: str
    """Its main parameters, in the units of the user."""

    kernel: str
    """Its expression."""


@final
@dataclass(frozen=True)
class MemberFacts:
    """A member of the mixture."""

    weight: float
    """Weight in the mixture."""

    label: str
    """The model and its training in words."""

    loss: float | None
    """Mean validation loss of the candidate; None without validation."""

    loss_error: float | None
    """Standard error of the validation loss."""

    stacked: bool
    """Whether the columns of the stack are features, too."""

    beta: float
    """Weight of the KL term."""

    hyperparameters: str
    """Mode of training."""

    likelihood: str
    """Name of the class of the likelihood."""

    num_inducing: int
    """Inducing inputs."""


@final
@dataclass(frozen=True)
class Facts:
    """The contents of a summary, in the user's units; `directgp inspect --json` prints them.

    Kernel, likelihood, parameters, β and training are those of the heaviest member.
    """

    estimator: str
    """Name of the class."""

    num_rows: int
    """Training rows."""

    num_features: int
    """Features of the user's table."""

    kernel: str
    """Name of the kernel, or its expression."""

    likelihood: str
    """Name of the class of the likelihood."""

    num_inducing: int
    """Inducing inputs."""

    objective: str
    """Name of the training loss."""

    hyperparameters: str
    """Mode of training."""

    beta: float
    """Weight of the KL term."""

    status: str
    """How training ended."""

    reason: str
    """Why training ended."""

    steps: int
    """Steps of training."""

    evaluations: int
    """Evaluations of the objective."""

    seconds: float
    """Wall time of the fit."""

    beta_given: bool = False
    """Whether the user set β."""

    num_merged: int = 0
    """Rows that repeat another one."""

    num_kernels: int = 1
    """Number of latent functions with their own kernel and inducing inputs."""

    jitter: float = 0.0
    """Largest jitter that was added to a matrix."""

    noise: Mapping[str, float] = field(default_factory=dict)
    """Parameters of the likelihood by name."""

    length_scales: tuple[LengthScale, ...] = ()
    """One for each feature; one without a name if all features share it."""

    relevance: tuple[float, ...] = ()
    """`feature_importances_`, in the order of the lengthscales, if the estimator has them."""

    output_scale: float | None = None
    """Standard deviation of f under the prior."""

    members: tuple[MemberFacts, ...] = ()
    """The members of the mixture, the heaviest first."""

    stack: tuple[str, ...] = ()
    """Names of the columns of the stack, if a member has them as features."""

    path: BetaPath | None = None
    """The candidates; None if nothing was chosen."""

    terms: tuple[TermFacts, ...] = ()
    """The terms of a kernel that is an expression."""

    columns: tuple[tuple[str, str], ...] = ()
    """Kinds of columns, and the names of those columns; without plain numbers."""

    warnings: tuple[str, ...] = ()
    """Warnings of the fit."""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values that JSON can hold; numbers not finite are None."""
        path = None if self.path is None else self.path.to_json()
        plain: dict[str, Any] = finite(asdict(replace(self, path=None)) | {"path": path})
        return plain


def kernel_name(model: PredictingEstimator) -> str:
    """Return the name of the kernel, with "ARD", or its expression; of a kernel object its class.

    A named kernel of a table with levels is an expression, and has its name here.
    """
    kernel = model._fit_params["kernel"]
    if isinstance(kernel, Kernel):
        return type(kernel).__name__
    prior = model.posterior_.prior
    if prior.structure is not None:
        names = [column.name for column in LatentParts(model).columns]
        return name_of(prior.structure.expression, len(names)) or repr(
            prior.structure.expression.named(names)
        )
    trained = prior.kernel
    name = f"matern{round(2 * trained.nu)}2" if isinstance(trained, MaternKernel) else "rbf"
    scales = prior.length_scales()
    return f"{name} ARD" if scales is not None and len(scales) > 1 else name


def _terms(model: PredictingEstimator) -> tuple[TermFacts, ...]:
    """Return the terms of an expression; of several latent functions the mean shares."""
    if model.posterior_.prior.structure is None:
        return ()
    rest = model.likelihood_.units.log_variances
    latents = [k for k in range(model.posterior_.num_latent) if k not in rest]
    parts = LatentParts(model)
    shares = np.mean([stored_shares(model, parts, latent) for latent in latents], axis=0)
    return tuple(
        TermFacts(words.name, float(share), words.parameters, words.text)
        for words, share in zip(parts.descriptions, shares, strict=True)
    )


def facts_of(model: PredictingEstimator) -> Facts:
    """Return the facts of a fitted estimator."""
    result = model.training_result_
    objective = model._fit_params["objective"]
    scales = model.posterior_.prior.length_scales()

    def in_units(deviation: float) -> float:
        return float(model.scalings_.deviations_in_units(np.array([deviation]))[0])

    deviation = float(model.posterior_.prior.scale.detach().mean().sqrt())
    with torch.no_grad():
        parameters = description(model.likelihood_, in_units(1.0))
    return Facts(
        estimator=type(model).__name__,
        num_rows=model.num_rows_,
        num_features=model.n_features_in_,
        kernel=kernel_name(model),
        likelihood=type(model.likelihood_).__name__,
        num_inducing=model.posterior_.num_inducing,
        num_kernels=model.posterior_.Z.shape[:-2].numel(),
        objective=objective.name if isinstance(objective, PointLoss) else objective,
        hyperparameters=model.hyperparameters_,
        beta=model.beta_,
        beta_given=model._fit_params["beta"] != "auto",
        status=result.status.value,
        reason=result.reason,
        steps=result.steps,
        evaluations=result.evaluations,
        seconds=model.fit_seconds_,
        num_merged=model.num_merged_,
        jitter=result.jitter,
        noise=parameters,
        length_scales=() if scales is None else _named_scales(model, scales),
        relevance=tuple(getattr(model, "feature_importances_", ())),
        output_scale=deviation if model.likelihood_.latent_scale else in_units(deviation),
        path=model.beta_path_,
        members=_members(model),
        stack=_stack_columns(model),
        terms=_terms(model),
        columns=() if model.columns_ is None else tuple(model.columns_.in_words()),
        warnings=model.findings_,
    )


def _members(model: PredictingEstimator) -> tuple[MemberFacts, ...]:
    """Return the facts of the members; the path has their validation losses in the same order."""
    path = model.beta_path_
    points = () if path is None else path.members
    validated: Sequence[tuple[float | None, float | None]]
    validated = [(point.validation_loss, point.validation_error) for point in points]
    if len(validated) != len(model.members_):
        validated = [(None, None)] * len(model.members_)
    return tuple(
        MemberFacts(
            weight=weight,
            label=member.label,
            loss=loss,
            loss_error=error,
            stacked=member.stacked,
            beta=member.beta,
            hyperparameters=member.hyperparameters,
            likelihood=type(member.likelihood).__name__,
            num_inducing=member.posterior.num_inducing,
        )
        for member, weight, (loss, error) in zip(
            model.members_, model.weights_.tolist(), validated, strict=True
        )
    )


def _stack_columns(model: PredictingEstimator) -> tuple[str, ...]:
    return () if model.stack_ is None else tuple(model.stack_.names)


def _named_scales(
    model: PredictingEstimator, scales: Float64[np.ndarray, " k"]
) -> tuple[LengthScale, ...]:
    """Return the lengthscales of the features, the indicators and the columns of the stack."""
    deviations = np.abs(model.scalings_.inputs.scale)
    names = feature_names(model, indicators=True)
    if model.members_[0].stacked:
        columns = _stack_columns(model)
        names += [f"{name} of the stack" for name in columns]
        # Its columns have no units that the user knows.
        deviations = np.append(deviations, np.full(len(columns), np.nan))
    if len(scales) == 1 < len(deviations):
        return (("", float("nan"), float(scales[0])),)
    return tuple(zip(names, (scales * deviations).tolist(), scales.tolist(), strict=True))


class Section(NamedTuple):
    """A part of a summary: named lines, a table with its header, or a list of sentences."""

    title: str
    """First line."""

    lines: Sequence[tuple[str, str]] = ()
    """Names and texts."""

    table: Sequence[Sequence[str]] = ()
    """Rows of cells, the header first."""

    right: Sequence[int] = ()
    """Columns of the table that are aligned to the right."""

    more: str = ""
    """Text below the table."""

    sentences: Sequence[str] = ()
    """Points of a list."""

    def text(self) -> str:
        """Return plain text of at most 100 columns."""
        parts = [self.title, *(entry(*line) for line in self.lines)]
        if self.table:
            parts.append(textwrap.indent(text_table(self.table, self.right), "  "))
        parts += [f"  {self.more}"] if self.more else []
        return "\n".join([*parts, *map(bullet, self.sentences)])

    def html(self) -> str:
        """Return HTML in the colours of the surrounding page; all texts are escaped."""
        parts = [f"<p><b>{_escaped(self.title)}</b></p>"]
        rows = [self._row(line, "td", ()) for line in self.lines]
        if self.table:
            rows = [self._row(self.table[0], "th", self.right)]
            rows += [self._row(row, "td", self.right) for row in self.table[1:]]
        parts += [f"<table>{''.join(rows)}</table>"] if rows else []
        parts += [f"<p>{_escaped(self.more)}</p>"] if self.more else []
        points = "".join(f"<li>{_escaped(sentence)}</li>" for sentence in self.sentences)
        return "".join([*parts, f"<ul>{points}</ul>" if points else ""])

    @staticmethod
    def _row(cells: Sequence[str], tag: str, right: Sequence[int]) -> str:
        tags = (
            f"<{tag}{' class=right' if j in right else ''}>{_escaped(cell)}</{tag}>"
            for j, cell in enumerate(cells)
        )
        return f"<tr>{''.join(tags)}</tr>"


def _escaped(text: str) -> str:
    return html.escape(visible(text))


_STYLE = """
.directgp-summary {font-size: 0.9em; line-height: 1.35; overflow-x: auto; color: inherit}
.directgp-summary p {margin: 0.6em 0 0.2em 0}
.directgp-summary table {border-collapse: collapse; margin: 0; background: none}
.directgp-summary tr {background: none !important}
.directgp-summary td, .directgp-summary th {text-align: left; vertical-align: top;
 padding: 0.1em 1.2em 0.1em 0; border: none; color: inherit; background: none; max-width: 60em}
.directgp-summary th {font-weight: normal; opacity: 0.7}
.directgp-summary td.right, .directgp-summary th.right {text-align: right}
.directgp-summary ul {margin: 0.2em 0 0.2em 1.2em; padding: 0}
"""


class Summary(str):
    """The summary of a fitted estimator: a text that a prompt, a notebook and `print` show.

    `to_dict` has the same facts as plain values.
    """

    members: tuple[tuple[str, Facts], ...]
    """Pairs of a title and facts, one for each output; the title of a single output is empty."""

    def __new__(cls, text: str, members: Sequence[tuple[str, Facts]] = ()) -> "Summary":
        """Return a summary of these facts."""
        summary = super().__new__(cls, text)
        summary.members = tuple(members)
        return summary

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the summary for a notebook."""
        sections = (
            section._replace(title=f"{title}{section.title}" if i == 0 else section.title).html()
            for title, facts in self.members
            for i, section in enumerate(sections_of(facts))
        )
        return f'<style>{_STYLE}</style><div class="directgp-summary">{"".join(sections)}</div>'

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values that JSON can hold; numbers not finite are None.

        Of several outputs it is {"outputs": [...]}, in their order.
        """
        outputs = [facts.to_dict() for _, facts in self.members]
        return outputs[0] if len(outputs) == 1 else {"outputs": outputs}


def summary_of(model: PredictingEstimator) -> Summary:
    """Return the summary of a fitted estimator, a block for each of several outputs."""
    several = vars(model).get("outputs_")
    names = getattr(model, "output_names_", None)
    members = (
        [("", facts_of(model))]
        if several is None
        else [(f"Output {named(names, k)}: ", facts_of(member)) for k, member in enumerate(several)]
    )
    blocks = (f"{title}{summary_text(facts)}" for title, facts in members)
    return Summary("\n\n".join(blocks), members)


def summary_text(facts: Facts) -> str:
    """Return the facts as plain text of at most 100 columns."""
    return "\n\n".join(section.text() for section in sections_of(facts))


def sections_of(facts: Facts) -> Iterator[Section]:
    """Yield the parts of a summary."""
    path = facts.path
    yield Section(facts.estimator, [*_overview(facts)])
    if len(facts.members) > 1:
        yield _members_table(facts)
        yield Section(f"Member 1, {_model(facts)}", [*_parameters(facts)])
    if len(facts.terms) > 1:
        yield _terms_table(facts)
    if len(facts.length_scales) > 1:
        yield _length_scale_table(facts)
    if path is not None and path.points:
        yield _candidates(path)
    if path is not None and path.decisions:
        yield Section("Decisions of the race", sentences=path.decisions)
    failures = () if path is None else tuple(map(str, path.failed))
    for title, texts in (("Could not be trained", failures), ("Warnings", facts.warnings)):
        if texts:
            yield Section(title, sentences=texts)


def _overview(facts: Facts) -> Iterator[tuple[str, str]]:
    rows = plural(facts.num_rows, "row")
    if facts.num_merged:
        rows += f" ({facts.num_merged:,} repeated others and were merged with them)"
    yield "data", f"{rows}, {plural(facts.num_features, 'feature')}"
    yield from facts.columns
    if len(facts.members) > 1:
        yield "model", f"mixture of {len(facts.members)} Gaussian processes, its members"
    else:
        yield "model", _model(facts)
    if facts.stack:
        yield "stack", _stack(facts)
    if len(facts.members) > 1:
        yield "objective", facts.objective
        if facts.path is not None and facts.path.points:
            yield from _validation(facts.path)
    else:
        yield from _choices(facts)
        yield from _parameters(facts)
    status = _STATUS.get(facts.status, facts.status.capitalize())
    yield "training", f"{status}. {facts.reason}"
    steps = plural(facts.steps, "step")
    evaluations = plural(facts.evaluations, "evaluation")
    of = " of member 1" if len(facts.members) > 1 else ""
    jitter = f", jitter up to {facts.jitter:.1g}" if facts.jitter else ""
    yield "", f"{steps}, {evaluations}{of}, {duration(facts.seconds)}{jitter}"


def _model(facts: Facts) -> str:
    """Return the model in words, of several members the heaviest."""
    kernel = facts.kernel if facts.kernel.endswith("Kernel") else f"{facts.kernel} kernel"
    several = f"{facts.num_kernels} {kernel}s"
    if facts.kernel.endswith(")"):
        terms = plural(len(facts.terms), "term")
        kernel = f"kernel of {terms}"
        several = f"{facts.num_kernels} kernels of {terms}"
    inducing = plural(facts.num_inducing, "inducing input")
    if facts.num_kernels > 1:
        kernel = several
        inducing = f"{inducing} each"
    return f"{kernel}, {facts.likelihood} likelihood, {inducing}"


def _stack(facts: Facts) -> str:
    """Return what the columns of the stack are, and which members have them as features."""
    several = len(facts.stack) > 1
    columns = f"the out-of-fold predictions of {joined(facts.stack)} are"
    features = "features" if several else "a feature"
    if len(facts.members) == 1:
        return f"{columns} {features}, too"
    number = sum(member.stacked for member in facts.members)
    who = "every member" if number == len(facts.members) else plural(number, "member")
    return f"{columns} {features} of {who}, too"


def _parameters(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the parameters of likelihood and kernel, of several members those of the heaviest."""
    if facts.terms:
        yield "kernel", _in_words(facts.terms)
    if facts.noise:
        values = ", ".join(f"{name} {number(v, 4)}" for name, v in facts.noise.items())
        yield "likelihood", values
    if facts.output_scale is not None:
        yield "output scale", number(facts.output_scale, 4)
    if len(facts.length_scales) == 1:
        ((name, in_units, relative),) = facts.length_scales
        deviations = f"{number(relative, 4)} standard deviations"
        every = f"{deviations}, the same for every feature"
        yield "lengthscale", f"{number(in_units, 4)}, {deviations} of {name}" if name else every


def _in_words(terms: Sequence[TermFacts]) -> str:
    """Return the terms in words: of several with their shares, of one with its parameters."""
    if len(terms) == 1:
        return f"{terms[0].name}: {terms[0].parameters}" if terms[0].parameters else terms[0].name
    ordered = sorted(terms, key=lambda term: -term.share)
    shown = [term for term in ordered[:_TERMS] if fixed(term.share, 2) != fixed(0.0, 2)]
    texts = [f"{term.name} ({fixed(term.share, 2)})" for term in shown]
    texts[0] = f"{ordered[0].name} ({fixed(ordered[0].share, 2)} of the variance)"
    rest = ordered[len(shown) :]
    if rest:
        share = fixed(sum(term.share for term in rest), 2)
        texts.append(f"{plural(len(rest), 'more term')} ({share})")
    return " + ".join(texts)


def _terms_table(facts: Facts) -> Section:
    """Return the table of the terms of the kernel, the largest share first."""
    ordered = sorted(facts.terms, key=lambda term: -term.share)
    rows = [(fixed(t.share, 3), t.name, t.parameters) for t in ordered[:_MAX_FEATURES]]
    more = len(ordered) - len(rows)
    return Section(
        "Terms of the kernel, by the variance of their posterior means over training rows",
        table=[("share", "term", "parameters"), *rows],
        right=(0,),
        more=f"… and {more:,} more" if more > 0 else "",
    )


def _validation(path: BetaPath) -> Iterator[tuple[str, str]]:
    """Yield the validation loss of the mixture, and that of the best candidate."""
    if path.mixture_loss is None:
        return
    best = min(path.points, key=lambda point: point.difference)
    alone = best.validation_loss, best.validation_error
    mixture, single = _with_errors([path.validated, alone])
    yield "validation", f"{path.loss} {mixture} on {path.validation}, with weights of other rows"
    yield "", f"{single} for the best of {plural(len(path.points), 'candidate')} alone"


def _choices(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the objective with its mode, and β with the reason for its value."""
    mode = facts.hyperparameters
    chosen = "" if facts.path is None or not facts.path.points else _reason_for_choice(facts.path)
    source = "as given" if facts.beta_given else ""
    if not chosen and facts.objective in LOSSES and LOSSES[facts.objective].evidence:
        yield "objective", facts.objective
        source = source or "that of the objective itself"
    else:
        text = _MODES[mode]
        if mode == "elbo":
            text = text if chosen else f"{text}, compared with no other"
            source = "that of the ELBO"
        yield "objective", f"{facts.objective}, {mode}: {text}"
    reasons = "; ".join(filter(None, (source, chosen)))
    yield "β", ", ".join(filter(None, (f"{facts.beta:.3g}", reasons)))
    if chosen and facts.path is not None and (trade := _trade(facts.path)):
        yield "trade", trade


def _reason_for_choice(path: BetaPath) -> str:
    """Return why the candidate was chosen."""
    if len(path.points) == 1:
        return "the only candidate that was trained"
    chosen = path.points[path.chosen]
    candidates = plural(len(path.points), "candidate")
    validation = f"by {path.loss} on {path.validation}"
    if chosen.difference <= 0:
        return f"the best of {candidates} {validation}"
    gap = with_error(chosen.difference, chosen.difference_error)
    # Only candidates of earlier versions have both: a gap and an error of predictions.
    earlier = chosen.rmse is None and chosen.weight is None
    reason = "the most regularised within one standard error of" if earlier else "near"
    return f"of {candidates}, {reason} the best {validation} ({gap} above it)"


_MUCH = 1.1
"""Factor of the error of predictions from which a trade is named."""


def _trade(path: BetaPath) -> str:
    """Return how much larger the RMSE of the chosen candidate is; empty if it is little larger."""
    chosen = path.points[path.chosen]
    errors = [point.rmse for point in path.points]
    points = {error: point for error, point in zip(errors, path.points, strict=True) if error}
    if chosen.rmse is None or not points or not chosen.rmse > _MUCH * min(points):
        return ""
    lowest = min(points)
    best = points[lowest]
    worse = number(best.validation_loss - chosen.validation_loss, 3)
    return (
        f"RMSE of the chosen candidate {number(chosen.rmse, 3)}, of {_name(best)} "
        f"{number(lowest, 3)}, whose {path.loss} is higher by {worse}"
    )


def _name(point: PathPoint) -> str:
    """Return a candidate in words."""
    return point.label or (
        "the ELBO" if point.hyperparameters == "elbo" else f"β = {point.beta:.3g}"
    )


def _length_scale_table(facts: Facts) -> Section:
    header = ["feature", "in its units", "in standard deviations"]
    rows = [
        [name, number(length, 4), number(scaled, 4)] for name, length, scaled in facts.length_scales
    ]
    order = np.argsort([scaled for _, _, scaled in facts.length_scales], kind="stable")
    # Indicators of gaps have lengthscales too.
    if facts.relevance and len(facts.relevance) == len(rows):
        header.append("relevance")
        rows = [[*row, percent(share, 1)] for row, share in zip(rows, facts.relevance, strict=True)]
        order = np.argsort(-np.array(facts.relevance), kind="stable")
    ranked = [rows[j] for j in order]
    more = len(ranked) - _MAX_FEATURES
    title = "Lengthscales, the most relevant feature first"
    rest = f"… and {more:,} more" if more > 0 else ""
    return Section(title, table=[header, *ranked[:_MAX_FEATURES]], right=(1, 2, 3), more=rest)


def _members_table(facts: Facts) -> Section:
    """Return the table of members."""
    pairs = [
        (member.loss, member.loss_error)
        for member in facts.members
        if member.loss is not None and member.loss_error is not None
    ]
    rows = [[f"{i}", percent(m.weight, 1), m.label] for i, m in enumerate(facts.members, start=1)]
    header = ["", "weight", "model"]
    if len(pairs) == len(rows):
        losses = _with_errors(pairs)
        rows = [[*row[:2], loss, row[2]] for row, loss in zip(rows, losses, strict=True)]
        header.insert(2, "validation loss")
    return Section("Members", table=[header, *rows], right=range(len(header) - 1))


def _candidates(path: BetaPath) -> Section:
    """Return the table of candidates."""
    title = f"Candidates compared, {path.loss}"
    if any(point.weight is not None for point in path.points):
        return _candidates_of_race(path)._replace(title=f"{title}, the best first")
    return _candidates_of_model(path)._replace(title=title)


def _candidates_of_race(path: BetaPath) -> Section:
    """Return the table of candidates with models of their own, the best first."""
    points = sorted(path.points, key=lambda point: point.difference)
    losses = [point.validation_loss for point in points]
    decimals = decimals_for(losses, [point.validation_error for point in points]) + 1
    gaps = _with_errors([(point.difference, point.difference_error) for point in points])
    # Several classes have no RMSE.
    errors = [number(point.rmse, 4) for point in points if point.rmse is not None]
    columns = {
        "weight": [percent(point.weight, 1) if point.weight else "" for point in points],
        "loss": [fixed(point.validation_loss, decimals) for point in points],
        "above the best": [
            gap if point.difference > 0 else _BEST for point, gap in zip(points, gaps, strict=True)
        ],
        **({"RMSE": errors} if len(errors) == len(points) else {}),
        "candidate": [point.label for point in points],
    }
    rows = zip(*columns.values(), strict=True)
    return Section("", table=[tuple(columns), *rows], right=range(len(columns) - 1))


def _candidates_of_model(path: BetaPath) -> Section:
    """Return the table of candidates of one model, from the most to the least regularised."""
    points = path.points
    # Files of earlier versions have the status of each instead.
    errors = all(point.rmse is not None for point in points)
    losses = _with_errors([(p.validation_loss, p.validation_error) for p in points])
    gaps = _with_errors([(p.difference, p.difference_error) for p in points])
    rows = [
        (
            "→" if i == path.chosen else "",
            f"{point.beta:.3g}",
            point.hyperparameters,
            losses[i],
            gaps[i] if point.difference > 0 else _BEST,
            number(point.rmse, 4) if point.rmse is not None else point.status,
        )
        for i, point in enumerate(points)
    ]
    last = "RMSE" if errors else "training"
    header = "", "β", "mode", "validation loss", "above the best", last
    right = (1, 3, 4, 5) if errors else (1, 3, 4)
    return Section("", table=[header, *rows], right=right)


def _with_errors(pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Format values ± errors with one decimal more than the median error needs."""
    values, errors = zip(*pairs, strict=True)
    decimals = decimals_for(values, errors) + 1
    return [with_error(*pair, decimals) for pair in pairs]
