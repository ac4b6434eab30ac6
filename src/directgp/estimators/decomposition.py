"""Split the latent function of a fitted estimator into the terms of its kernel."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy import stats
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from directgp.errors import refuse, require
from directgp.estimators.explanations import feature_names
from directgp.estimators.kernel_expressions import column_facts
from directgp.estimators.members import Member
from directgp.estimators.predictions import PredictingEstimator
from directgp.estimators.preprocessing import Column, Columns, ColumnScaling
from directgp.estimators.validation import ArrayLike, check_whole
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.parts import Additive
from directgp.kernels.structured import StructuredKernel
from directgp.kernels.summands import (
    Summand,
    factors_of,
    positions_of,
    split_part,
    summands_of,
)
from directgp.kernels.words import Description, describe
from directgp.posteriors.prior import evenly_spaced
from directgp.posteriors.sparse import SparsePosterior
from directgp.posteriors.summands import SummandPosterior
from directgp.predictive.moments import check_coverage
from directgp.text import fixed, joined, listed, number, percent, plural, text_table

Rows = Float64[np.ndarray, "t n"]
"""A number for each summand and row."""

_SHARE_ROWS = 2000
"""Training rows over which shares are computed."""

_TABLE_ROWS = 20
"""Largest number of terms of the table of a decomposition."""

_TABLE_SHARE = 5e-4
"""Share from which a term is in the table, if there are more than a few."""

_FEW = 8
"""Number of terms that are all in the table."""


class Moments(NamedTuple):
    """Posterior moments of summands, in the units of the reported f."""

    mean: Rows
    """Mean of each summand at each row."""

    deviation: Rows
    """Standard deviation of each summand at each row."""


@final
class LatentParts:
    """The summands of one latent function, over the members of a mixture with the same kernel.

    Moments of several members are those of their mixture.
    """

    def __init__(self, model: PredictingEstimator, latent: int = 0) -> None:
        heaviest = model.members_[0]
        self._model = model
        self._latent = latent
        self.posterior = _latent_of(heaviest, latent)
        """q(f) of the heaviest member."""
        alike = [
            (weight, member)
            for weight, member in model._weighted()
            if self._is_like(member, heaviest)
        ]
        self.weight = float(sum(weight for weight, _ in alike))
        """Weight of the members that the summands describe."""
        self._members = [
            (weight / self.weight, SummandPosterior(_latent_of(member, latent)))
            for weight, member in alike
        ]
        self.summands = self._members[0][1].summands
        """The summands of the kernel of the heaviest member."""

    def _is_like(self, member: Member, heaviest: Member) -> bool:
        """Return whether f of a member has the scale and the terms of that of the heaviest one."""
        if member is heaviest:
            return True
        scales = {each.likelihood.latent_scale for each in (member, heaviest)}
        in_units = self._model._task == "regression" and self._latent == 0 and scales == {""}
        same = type(member.likelihood) is type(heaviest.likelihood)
        return (in_units or same) and _signature(member) == _signature(heaviest)

    @property
    def structure(self) -> StructuredKernel | None:
        """The kernel of the heaviest member; None if it is no expression."""
        return self.posterior.prior.structure

    @cached_property
    def columns(self) -> list[ColumnFacts]:
        """The columns of the inputs of the heaviest member."""
        model = self._model
        stacked = model.members_[0].stacked and model.stack_ is not None
        number_stacked = len(model.stack_.names) if stacked and model.stack_ is not None else 0
        return column_facts(feature_names(model), model.columns_, model.scalings_, number_stacked)

    @cached_property
    def scaling(self) -> ColumnScaling:
        """Scaling between the reported f and the latent function of training."""
        return self._model.scalings_.of_latent(self._model.likelihood_, self._latent)

    @property
    def unit(self) -> float:
        """Units of the reported f for 1 in training."""
        return float(self.scaling.scale[0])

    @cached_property
    def constant(self) -> float:
        """The part of the reported f that is in no summand: the prior mean."""
        mean = sum(
            weight * float(parts.constant(parts.posterior.Z.detach()[:1]))
            for weight, parts in self._members
        )
        return float(self.scaling.backward(np.array([[mean]]))[0, 0])

    @cached_property
    def descriptions(self) -> list[Description]:
        """The summands in words."""
        structure = self.structure
        if structure is None:
            names = [column.name for column in self.columns]
            shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more columns"]
            kernel = type(self.posterior.prior.kernel).__name__
            deviation = float(self.posterior.prior.scale.detach().mean().sqrt()) * self.unit
            sd = f"sd {number(deviation)}"
            return [Description(f"effect of {joined(shown)}", sd, kernel)]
        deviation = float(self.posterior.prior.scale.detach().sqrt()) * self.unit
        return describe(structure, self.summands, self.columns, deviation)

    def positions(self, summand: Summand) -> list[int]:
        """Return the positions of the columns that a summand looks at."""
        structure = self.structure
        return (
            [*range(len(self.columns))] if structure is None else positions_of(structure, summand)
        )

    def inputs(self, X: Columns) -> Float[Tensor, "n d"]:
        """Return scaled inputs, with columns of the stack if a member has them."""
        members = [member for _, member in self._model._weighted()]
        widest = max(members, key=lambda member: member.stacked)
        (inputs,) = self._model._member_inputs(X, [widest])
        return inputs

    def representatives(self) -> Float[Tensor, "m d"]:
        """Return the inducing inputs of the heaviest member, as `inputs` of rows."""
        Z = self.posterior.Z.detach()
        widest = max(parts.posterior.Z.shape[-1] for _, parts in self._members)
        # Members with the same expression of several terms look at the same columns.
        return torch.nn.functional.pad(Z, (0, widest - Z.shape[-1]))

    def moments(self, inputs: Float[Tensor, "n d"], summands: Sequence[Summand]) -> Moments:
        """Return mean and deviation of summands at scaled inputs.

        Over members with weights w: mean Σ w μ, variance Σ w (v + μ²) − mean².
        """
        pairs = []
        for weight, parts in self._members:
            q = parts.marginals(self._own(inputs, parts), summands)
            pairs.append((weight, q.mean.cpu().numpy(), q.variance.cpu().numpy()))
        mean = np.add.reduce([weight * each for weight, each, _ in pairs])
        variance = np.add.reduce([weight * (v + (each - mean) ** 2) for weight, each, v in pairs])
        return Moments(self.unit * mean, abs(self.unit) * np.sqrt(variance))

    def means(self, inputs: Float[Tensor, "n d"], summands: Sequence[Summand]) -> Rows:
        """Return the means of `moments`, in a fraction of the time."""
        means = [
            weight * parts.means(self._own(inputs, parts), summands).cpu().numpy()
            for weight, parts in self._members
        ]
        return np.asarray(self.unit * np.add.reduce(means))

    def _own(self, inputs: Tensor, parts: SummandPosterior) -> Tensor:
        """Return the columns that a member has."""
        return inputs[:, : parts.posterior.Z.shape[-1]]

    def shares(
        self, inputs: Float[Tensor, "n d"], weights: Column | None = None
    ) -> Float64[np.ndarray, " t"]:
        """Return the variance over rows of the mean of each summand, relative to their sum."""
        means = self.means(inputs, self.summands)
        centre = np.average(means, axis=1, weights=weights)
        squares = np.average((means - centre[:, None]) ** 2, axis=1, weights=weights)
        return np.asarray(_relative(squares))

    def sobol(self) -> Float64[np.ndarray, " t"] | None:
        """Return the Sobol index of each effect of an Additive part, and NaN for other summands.

        It is the variance of the effect's posterior mean, with columns drawn independently from
        their distributions in training, relative to the sum over the effects of the part. As
        effects are orthogonal there, the sum is the variance of the part. None without such a part.
        """
        structure = self.structure
        if structure is None:
            return None
        indices = np.full(len(self.summands), np.nan)
        for term in range(len(structure.terms)):
            if not isinstance(split_part(structure, term), Additive):
                continue
            own = [i for i, each in enumerate(self.summands) if each.terms == (term,)]
            squares = [self._variance(structure, self.summands[i]) for i in own]
            indices[own] = _relative(np.array(squares))
        return None if np.isnan(indices).all() else indices

    def _variance(self, structure: StructuredKernel, summand: Summand) -> float:
        """Return the variance of the mean of an effect over the nodes of its columns."""
        index = structure.terms[summand.terms[0]][0]
        values = structure.natural().values[index]
        columns = [(values["nodes"][k], values["weights"][k]) for k in summand.effect]
        used = [(nodes[weights > 0], weights[weights > 0]) for nodes, weights in columns]
        grids = torch.meshgrid(*(nodes for nodes, _ in used), indexing="ij")
        weights = torch.meshgrid(*(weights for _, weights in used), indexing="ij")
        inputs = torch.zeros(grids[0].numel(), len(self.columns)).to(grids[0])
        (part,) = factors_of(structure, summand)
        for position, grid in zip(part.columns, grids, strict=True):
            inputs[:, int(position)] = grid.flatten()
        probability = torch.stack([*weights]).prod(0).flatten().cpu().numpy()
        mean = self.means(inputs, [summand])[0]
        centre = float(np.average(mean, weights=probability))
        return float(np.average((mean - centre) ** 2, weights=probability))


def _relative(values: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, " t"]:
    """Return values relative to their sum; equal ones if all are 0."""
    total = values.sum()
    return values / total if total > 0 else np.full(len(values), 1 / len(values))


def _latent_of(member: Member, latent: int) -> SparsePosterior:
    """Return q(f) of one latent function of a member."""
    posterior = member.posterior
    return posterior.latent(latent) if posterior.num_latent > 1 else posterior


def _signature(member: Member) -> str:
    """Return a text that is equal for members with the same summands; empty for a single one."""
    structure = member.posterior.prior.structure
    if structure is None or len(summands_of(structure)) == 1:
        return ""
    return repr(structure.expression)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Term:
    """A term of the kernel of a fitted model, and its part of f at some rows."""

    name: str
    """What it is, in words."""

    kernel: str
    """Its expression."""

    parameters: str
    """Its main parameters, in the units of the user."""

    columns: tuple[str, ...]
    """Names of the columns that it looks at."""

    share: float
    """Variance of its posterior mean over training rows, relative to the sum over the terms."""

    sobol: float | None
    """Sobol index of an effect of an Additive part; None for other terms."""

    mean: Column
    """Posterior mean at each row."""

    lower: Column
    """Lower end of the central posterior interval at each row."""

    upper: Column
    """Upper end of the central posterior interval at each row."""

    def __repr__(self) -> str:
        ends = " to ".join(number(float(end)) for end in (self.mean.min(), self.mean.max()))
        return f"{self.name}: mean from {ends}, {percent(self.share)} of the variance"


@final
@dataclass(frozen=True, eq=False, repr=False)
class Decomposition:
    """The latent function f at some rows as a constant and a part for each term of the kernel.

    It is a sequence of terms, which are also found by name. Its text is a table.
    """

    terms: tuple[Term, ...]
    """The terms, in the order of the kernel; effects of single columns before those of pairs."""

    constant: float
    """The prior mean of f, which is in no term."""

    coverage: float
    """Probability of the intervals."""

    scale: str
    """What f is: "y", "log y", …"""

    weight: float = 1.0
    """Weight of the members of the mixture that are described, those with the same kernel."""

    def __len__(self) -> int:
        return len(self.terms)

    def __iter__(self) -> Iterator[Term]:
        return iter(self.terms)

    def __getitem__(self, key: int | str) -> Term:
        """Return a term by its number or its name."""
        if isinstance(key, str):
            names = [term.name for term in self.terms]
            if key not in names:
                refuse("term of a Decomposition", f"among {listed(names)}", repr(key))
            return self.terms[names.index(key)]
        return self.terms[key]

    def to_dict(self) -> dict[str, list[float]]:
        """Return a column for the constant, and three for each term, for a table of any library.

        The columns of a term are its name, and the name with "lower" and "upper".
        """
        rows = len(self.terms[0].mean)
        columns = {"constant": [self.constant] * rows}
        for term in self.terms:
            columns[term.name] = term.mean.tolist()
            columns[f"{term.name} lower"] = term.lower.tolist()
            columns[f"{term.name} upper"] = term.upper.tolist()
        return columns

    def __repr__(self) -> str:
        header = ["term", "share", "mean", "parameters"]
        indices = any(term.sobol is not None for term in self.terms)
        if indices:
            header.insert(2, "Sobol index")
        order = sorted(self.terms, key=lambda term: -term.share)
        if len(order) > _FEW:
            order = [term for term in order[:_TABLE_ROWS] if term.share >= _TABLE_SHARE]
        rows = []
        for term in order:
            ends = " to ".join(number(float(end)) for end in (term.mean.min(), term.mean.max()))
            row = [term.name, fixed(term.share, 3), ends, term.parameters]
            if indices:
                row.insert(2, "" if term.sobol is None else fixed(term.sobol, 3))
            rows.append(row)
        more = len(self.terms) - len(rows)
        notes = [f"… and {plural(more, 'more term')}"] if more else []
        notes += [
            f"f = {number(self.constant, 4)} + the terms, on the scale of {self.scale}",
            "share: variance of the posterior mean over training rows, relative to the sum over"
            " terms",
        ]
        if self.weight < 1:
            notes.append(f"of members with {percent(self.weight)} of the weight of the mixture")
        right = range(1, len(header) - 2)
        return "\n".join([text_table([header, *rows], right=[*right]), *notes])


def decompose(
    model: PredictingEstimator, X: ArrayLike, coverage: float, latent: int
) -> Decomposition:
    """Return the terms of one latent function at rows of the user."""
    check_is_fitted(model)
    who = model._who("decompose")
    check_coverage(who, coverage)
    check_latent(model, latent, who)
    parts = LatentParts(model, latent)
    inputs = parts.inputs(model._inputs(X, who))
    q = parts.moments(inputs, parts.summands)
    width = float(stats.norm.ppf(0.5 + 0.5 * coverage)) * q.deviation
    sobol = parts.sobol()
    shares = stored_shares(model, parts, latent)
    names = [column.name for column in parts.columns]
    terms = [
        Term(
            name=words.name,
            kernel=words.text,
            parameters=words.parameters,
            columns=tuple(names[j] for j in parts.positions(summand)),
            share=float(shares[t]),
            sobol=None if sobol is None or np.isnan(sobol[t]) else float(sobol[t]),
            mean=q.mean[t],
            lower=q.mean[t] - width[t],
            upper=q.mean[t] + width[t],
        )
        for t, (summand, words) in enumerate(zip(parts.summands, parts.descriptions, strict=True))
    ]
    scale = scale_of_latent(model, latent)
    return Decomposition(tuple(terms), parts.constant, coverage, scale, parts.weight)


def check_latent(model: PredictingEstimator, latent: int, who: str) -> None:
    """Raise `InvalidInputError` unless the model has a latent function of this number."""
    check_whole(latent, 0, f"latent of {who}")
    several = model.posterior_.num_latent
    require(latent < several, f"latent of {who}", f"below {several}, the number of them", latent)


def scale_of_latent(model: PredictingEstimator, latent: int) -> str:
    """Return what a latent function is: "y", "log y", "the log odds of y"."""
    likelihood = model.likelihood_
    if latent in likelihood.units.log_variances:
        return "the log of the noise variance"
    if model._task == "regression":
        return {"": "y", "log": "log y", "logit": "log(y/(1 − y))"}[likelihood.latent_scale]
    name = type(likelihood).__name__
    if model._task == "count":
        return f"f of {name}, for an exposure of 1"
    classes = getattr(model, "classes_", ())
    if model.posterior_.num_latent == len(classes) > 2:
        return f"f of {name} for class {classes[latent]}"
    return f"f of {name}"


def training_shares(
    model: PredictingEstimator,
    inputs: Float[Tensor, "n d"],
    weights: Float[Tensor, " n"] | None,
) -> list[list[float]] | None:
    """Return the share of each summand over training rows, for each latent; None for a single one.

    `inputs` are scaled, with the columns of the stack if there are some. Of many rows, 2,000 evenly
    spaced ones count.
    """
    rows = evenly_spaced(len(inputs), _SHARE_ROWS, inputs.device)
    counts = None if weights is None else weights[rows].double().cpu().numpy()
    shares = []
    for latent in range(model.posterior_.num_latent):
        parts = LatentParts(model, latent)
        if len(parts.summands) == 1:
            return None
        shares.append(parts.shares(inputs[rows], counts).tolist())
    return shares


def stored_shares(
    model: PredictingEstimator, parts: LatentParts, latent: int
) -> Float64[np.ndarray, " t"]:
    """Return the shares over training rows, which `fit` computed.

    Without these, inducing inputs stand for the rows.
    """
    if len(parts.summands) == 1:
        return np.ones(1)
    shares = model._term_shares
    if shares is None:
        return parts.shares(parts.representatives())
    return np.array(shares[latent])
