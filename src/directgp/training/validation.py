"""Split examples for validation, and compare candidates by their validation losses."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from directgp.errors import NumericalError, require
from directgp.likelihoods.base import Likelihood
from directgp.objectives.base import PointLoss
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive.moments import square_errors
from directgp.shapes import Row
from directgp.training.checkpoint import fingerprint
from directgp.training.data import Data, check_data
from directgp.training.result import PathPoint, TrainingResult


@final
@dataclass(frozen=True)
class HoldOut:
    """Validate on a random part of the examples, and train on the rest."""

    fraction: float = 0.1
    """Share of the examples to validate on."""

    def __post_init__(self) -> None:
        inside = 0 < self.fraction < 1
        require(inside, "fraction of HoldOut", "between 0 and 1, ends excluded", self.fraction)

    def settings(self) -> str:
        """Return a text that differs for other settings, for the fingerprint of a checkpoint."""
        return repr(self)


@final
@dataclass(frozen=True)
class Folds:
    """Validate each example by a model trained without its fold."""

    number: int = 5
    """Number of folds."""

    def __post_init__(self) -> None:
        require(self.number >= 2, "number of Folds", "at least 2", self.number)

    def settings(self) -> str:
        """Return a text that differs for other settings, for the fingerprint of a checkpoint."""
        return repr(self)


@final
@dataclass(frozen=True)
class Forward:
    """Validate forecasts: train on the rows before an origin in time, validate on the next ones.

    The last rows are cut into blocks of equal size. Each is validated by a model of all rows before
    it.
    """

    column: int
    """Position of the time in the inputs."""

    reversed: bool = False
    """Whether time falls where the column rises."""

    number: int = 3
    """Number of origins."""

    share: float = 0.15
    """Share of the examples in each block."""

    def __post_init__(self) -> None:
        require(self.number >= 1, "number of Forward", "at least 1", self.number)
        valid = 0 < self.number * self.share < 1
        require(valid, "share of Forward", "positive, and below 1/number", self.share)

    def settings(self) -> str:
        """Return a text that differs for other settings, for the fingerprint of a checkpoint."""
        return repr(self)


@final
@dataclass(frozen=True)
class Groups:
    """Validate each group of examples by a model trained without the groups of its fold."""

    column: int
    """Position of the group in the inputs."""

    number: int = 5
    """Number of folds."""

    def __post_init__(self) -> None:
        require(self.number >= 2, "number of Groups", "at least 2", self.number)

    def settings(self) -> str:
        """Return a text that differs for other settings, for the fingerprint of a checkpoint."""
        return repr(self)


@final
@dataclass(frozen=True)
class Given:
    """Validate on these examples."""

    X: Float[Tensor, "v d"]
    """Inputs."""

    y: Num[Tensor, " v"]
    """Targets."""

    likelihood: Likelihood | None = None
    """A likelihood with the row values of these examples; None if they have none."""

    def settings(self) -> str:
        """Return a text that identifies the examples, for the fingerprint of a checkpoint."""
        values = {} if self.likelihood is None else dict(self.likelihood.named_buffers())
        return fingerprint(X=self.X, y=self.y, **values)


Validation = HoldOut | Folds | Forward | Groups | Given


class ValidationScores(NamedTuple):
    """Predictions for validation examples, compared with the targets."""

    losses: Row
    """The loss of each."""

    forecasts: Float[Tensor, "s v"] | None
    """What the loss of a mixture needs to know; None if the losses are enough."""


@final
@dataclass(frozen=True)
class Split:
    """Examples to train on and examples to validate with, each with a likelihood for them."""

    training: Data
    """Examples to train on."""

    likelihood: Likelihood
    """The likelihood with the row values of the training examples."""

    validation: Data
    """Examples to validate with."""

    validation_likelihood: Likelihood
    """The likelihood with the row values of the validation examples."""

    mean_weight: float = 1.0
    """Mean weight of the validation examples of all splits."""

    def examples_for(self, result: TrainingResult) -> tuple[Data, Likelihood]:
        """Return the validation examples, and the likelihood of a result for them."""
        return self.validation, for_rows_of(result.likelihood, self.validation_likelihood)

    @property
    def shares(self) -> Float[Tensor, " v"] | None:
        """Weights of the validation examples over their mean; None without weights."""
        weights = self.validation.weights
        return None if weights is None else weights / self.mean_weight

    def losses(self, result: TrainingResult, loss: PointLoss) -> Float[Tensor, " v"]:
        """Return the loss of each validation example, times its relative weight."""
        losses = self.judged(result, loss).losses
        shares = self.shares
        return losses if shares is None else torch.where(shares > 0, shares * losses, 0.0)

    def squares(self, result: TrainingResult) -> Float[Tensor, " v"]:
        """Return the square error of each validation example, times its relative weight."""
        data, likelihood = self.examples_for(result)
        with torch.no_grad():
            squares = square_errors(likelihood, data.y, result.posterior.predict(data.X))
        return squares if self.shares is None else self.shares * squares

    def judged(self, result: TrainingResult, loss: PointLoss) -> ValidationScores:
        """Return what a model predicts for the validation examples, compared with the targets."""
        data, likelihood = self.examples_for(result)
        marginals = result.posterior.predict(data.X)
        with torch.no_grad():
            return ValidationScores(
                losses=loss(likelihood, data.y, marginals),
                forecasts=loss.forecast(likelihood, marginals),
            )


def for_rows_of(likelihood: Likelihood, of_rows: Likelihood) -> Likelihood:
    """Return a copy of a likelihood with the row values of another one."""
    copied = copy.deepcopy(likelihood)
    copied._buffers = {**likelihood._buffers, **of_rows._buffers}
    return copied


def split(
    validation: Validation,
    data: Data,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    generator: torch.Generator,
) -> list[Split]:
    """Return one split, or one for each fold."""
    if isinstance(validation, Given):
        examples = Data(validation.X, validation.y)
        require(
            validation.likelihood is not None or not likelihood.rows.present(likelihood),
            "likelihood of Given",
            f"given where the training examples have a constant of each row "
            f"({likelihood.rows.argument})",
            "None",
            "Give likelihood.with_row_values(...) of the validation examples.",
        )
        theirs = likelihood
        if validation.likelihood is not None:
            theirs = for_rows_of(likelihood, validation.likelihood)
        check_data("validation", examples, posterior, theirs)
        return [Split(data, likelihood, examples, theirs)]
    allowed = "at least two rows, one to train on and one to validate with"
    require(len(data) >= 2, "X", allowed, len(data), "Give validation data.")
    pairs = _parts(validation, data, likelihood.task == "classification", generator)
    mean_weight = 1.0
    if data.weights is not None:
        mean_weight = float(data.weights[torch.cat([held for _, held in pairs])].double().mean())
    remedy = "Use Folds, or give validation data."
    allowed = "positive for some of the validation examples"
    require(mean_weight > 0, "weights", allowed, "zeros", remedy)
    splits = []
    for rest, held in pairs:
        trainable = data.weights is None or bool((data.weights[rest] > 0).any())
        require(
            trainable, "weights", "positive in every part that is trained on", "a part of zeros"
        )
        ours = likelihood.for_rows(rest)
        theirs = likelihood.for_rows(held)
        splits.append(Split(data.take(rest), ours, data.take(held), theirs, mean_weight))
    return splits


Rows = Int64[Tensor, " _"]
"""Numbers of rows."""


def _parts(
    validation: HoldOut | Folds | Forward | Groups,
    data: Data,
    by_label: bool,
    generator: torch.Generator,
) -> list[tuple[Rows, Rows]]:
    """Return the rows to train on and the rows to validate, of each split."""
    n = len(data)
    device = generator.device
    if isinstance(validation, Forward):
        times = data.X[:, validation.column].to(device)
        return _forward(-times if validation.reversed else times, validation)
    order = torch.randperm(n, generator=generator, device=device)
    if isinstance(validation, Groups):
        return _by_groups(data.X[:, validation.column].to(device), validation, generator)
    # Sort by label and take examples in turn, so that each part has about equal shares of labels.
    if by_label:
        order = order[torch.sort(data.y[order.to(data.y.device)].to(device), stable=True).indices]
    if isinstance(validation, HoldOut):
        number = min(max(1, round(validation.fraction * n)), n - 1)
        spread = (2 * torch.arange(number, device=device) + 1) * n // (2 * number)
        parts = [order[spread] if by_label else order[:number]]
    else:
        number = min(validation.number, n)
        by_turns = [order[first::number] for first in range(number)]
        parts = by_turns if by_label else list(order.tensor_split(number))
    return [(_others(held, n), held) for held in parts]


def _others(held: Rows, n: int) -> Rows:
    """Return the rows that are not held out, in order."""
    mask = torch.ones(n, dtype=torch.bool, device=held.device)
    mask[held] = False
    return mask.nonzero().squeeze(-1)


def _forward(times: Row, validation: Forward) -> list[tuple[Rows, Rows]]:
    """Return the rows before each origin, and the block after it; equal times stay together."""
    ordered, order = times.sort(stable=True)
    n = len(times)
    starts = [
        round(n * (1 - (validation.number - k) * validation.share))
        for k in range(validation.number + 1)
    ]
    ends = [int((ordered < ordered[min(start, n - 1)]).sum()) for start in starts[:-1]] + [n]
    pairs = [(order[:start], order[start:end]) for start, end in pairwise(ends)]
    pairs = [(rest.sort().values, held.sort().values) for rest, held in pairs]
    pairs = [(rest, held) for rest, held in pairs if len(rest) and len(held)]
    require(len(pairs) > 0, "times", "different, to validate forecasts", "one time alone")
    return pairs


def _by_groups(
    groups: Row, validation: Groups, generator: torch.Generator
) -> list[tuple[Rows, Rows]]:
    """Return folds that keep the rows of a group together."""
    levels, index = groups.unique(return_inverse=True)
    require(len(levels) >= 2, "groups", "at least two, to validate by groups", len(levels))
    number = min(validation.number, len(levels))
    place = torch.randperm(len(levels), generator=generator, device=groups.device) % number
    fold = place[index]
    folds = [(fold == k).nonzero().squeeze(-1) for k in range(number)]
    return [(_others(held, len(groups)), held) for held in folds]


@dataclass(frozen=True)
class PairedComparison:
    """The losses of candidates, and their paired differences from the best one."""

    mean: Float[Tensor, " c"]
    """Mean loss of each candidate."""

    error: Float[Tensor, " c"]
    """Standard error of the mean loss."""

    difference: Float[Tensor, " c"]
    """Mean of loss minus loss of the best candidate, over the same examples."""

    difference_error: Float[Tensor, " c"]
    """Standard error of the difference, far smaller than `error`."""

    chosen: int
    """Index of the chosen candidate."""

    def points(self, results: Sequence[TrainingResult]) -> tuple[PathPoint, ...]:
        """Return the candidates with their losses; `results` are in the same order."""
        columns = self.mean, self.error, self.difference, self.difference_error
        rows = torch.stack(columns, -1).tolist()
        return tuple(
            PathPoint(r.beta, r.hyperparameters, r, mean, error, gap, gap_error, r.status.value)
            for r, (mean, error, gap, gap_error) in zip(results, rows, strict=True)
        )


def compare(losses: Float[Tensor, "c n"], threshold: float = 1.0) -> PairedComparison:
    """Choose the first candidate that is not distinguishable from the best one.

    On few or heavy-tailed validation examples the smallest mean is noise. A candidate is not
    distinguishable while its mean difference from the best is at most `threshold` standard errors
    of this difference. Order the candidates from the most to the least regularised. Candidates with
    losses that are not finite are not chosen.
    """
    wide = losses.double()
    finite = torch.isfinite(wide).all(-1)
    if not bool(finite.any()):
        raise NumericalError(
            "No candidate has a finite loss on every validation example. Check the validation "
            "data, or train with other settings."
        )
    mean = torch.where(finite, wide.mean(-1), torch.inf)
    best = int(mean.argmin())
    gap = wide - wide[best]
    difference = torch.where(finite, gap.mean(-1), torch.inf)
    error = torch.where(finite, _standard_error(gap), torch.nan)
    # The difference of the best candidate from itself is 0, even where the error is NaN.
    close = difference <= threshold * error
    close[best] = True
    chosen = int(close.nonzero()[0])
    return PairedComparison(mean, _standard_error(wide), difference, error, chosen)


def _standard_error(values: Float[Tensor, "c n"]) -> Float[Tensor, " c"]:
    n = values.shape[-1]
    return values.std(-1) / n**0.5 if n > 1 else torch.full_like(values[:, 0], torch.inf)
