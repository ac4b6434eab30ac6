"""Choose the structure of a kernel: add parts to a sum while the validation loss falls."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast, final

import numpy as np
import torch

from directgp.errors import NumericalError
from directgp.kernels import (
    RBF,
    Additive,
    Categorical,
    ColumnFacts,
    Expression,
    Group,
    Linear,
    Matern32,
    Matern52,
    Periodic,
    Sphere,
    Sum,
)
from directgp.kernels.structured import StructuredKernel
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.starts import rough_latent, starting_likelihood
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.race.periods import Period, periods_of
from directgp.shapes import Row
from directgp.text import number
from directgp.training.data import Data
from directgp.training.result import TrainingResult
from directgp.training.train import train
from directgp.training.validation import Split

# A structure is judged by Gaussian models with the q(u) of the ELBO in closed form, on rough values
# of f: cheap, and the kernel that explains them is the kernel for other likelihoods, too.

_STEPS = 40
"""Steps of a candidate."""

_INDUCING = 80
"""Inducing inputs of a candidate."""

_ROWS = 2000
"""Training rows of a candidate."""

_ROUNDS = 5
"""Largest number of parts."""

_GAIN = 0.01
"""Smallest fall of the validation loss that keeps a part, in nats."""

_ERRORS = 2.0
"""A part also has to lower the loss by as many standard errors."""

_MANY = 6
"""Number of numeric columns from which effects of single columns are tried."""

_MOST_CODED = 3
"""Largest number of categories and groups that are tried."""

_NEW_SHARE = 0.1
"""Share of a new part in the variance at its start."""


def rough_split(part: Split, likelihood: Likelihood) -> Split:
    """Return a split whose targets are rough values of f, for a Gaussian model."""
    training, validation = (_rough(data, likelihood) for data in (part.training, part.validation))
    return replace(part, training=training, validation=validation)


def _rough(data: Data, likelihood: Likelihood) -> Data:
    latent = rough_latent(likelihood, data.y)
    # The classes of labels are numbers; a kernel that explains class 0 explains the others, too.
    values = (data.y > 0).to(data.X) if latent is None else latent
    return Data(data.X, values.to(data.X), data.weights)


class Trial(NamedTuple):
    """A structure, trained on every split."""

    expression: Expression
    """The kernel, with positions of columns."""

    results: list[TrainingResult]
    """The trained model of each split."""

    losses: Row
    """The loss of each validation example."""

    @property
    def loss(self) -> float:
        """Mean validation loss."""
        mean = float(self.losses.mean())
        return mean if math.isfinite(mean) else math.inf


@final
@dataclass
class StructureSearch:
    """Greedy search: each round adds the part that lowers the validation loss most."""

    splits: Sequence[Split]
    """The splits of the rows; targets are rough values of f."""

    columns: Sequence[ColumnFacts]
    """What the columns of the inputs are."""

    deadline: float = math.inf
    """`time.perf_counter` after which no further structure is tried."""

    decisions: list[str] = field(default_factory=list, init=False)
    """What was decided and why, in sentences."""

    _trials: list[Trial] = field(default_factory=list, init=False)

    def run(self) -> list[Trial]:
        """Return the best structure and the next best one, unless it is clearly worse.

        The next best one has no more parts. A mixture of the two forecasts better than one of them.
        The list is empty if no structure is better than the plain kernel of all columns.
        """
        plain = Matern52(*range(len(self.columns)))
        best = self._grow(plain)
        if best is None or best.expression == plain:
            return []
        size = len(best.expression.terms())
        others = [
            each
            for each in sorted(self._trials, key=lambda trial: trial.loss)
            if each is not best and len(each.expression.terms()) <= size
        ]
        others = [each for each in others if each.expression != plain]
        return [best, *(each for each in others[:1] if not self._pays(each, best))]

    def _keep(self, trial: Trial | None) -> list[Trial]:
        """Keep a trial that could be trained, and return it in a list."""
        kept = [] if trial is None or not math.isfinite(trial.loss) else [trial]
        self._trials += kept
        return kept

    def _grow(self, plain: Expression) -> Trial | None:
        """Add parts to the best structure while the loss falls clearly, and return it.

        The plain kernel is a structure of one part.
        """
        pool = [plain, *(self._series() or self._parts())]
        best: Trial | None = None
        for _ in range(_ROUNDS):
            trials = [
                kept for part in pool for kept in self._keep(self.trial(_sum(best, part), best))
            ]
            if not trials:
                break
            leader = min(trials, key=lambda trial: trial.loss)
            if best is not None and not self._pays(best, leader):
                break
            self._record(best, leader)
            held = {repr(leaf) for leaf in leader.expression.leaves()}
            pool = [
                part
                for part in self._parts()
                if not held.issuperset(repr(leaf) for leaf in part.leaves())
            ]
            best = leader
        return best

    def _pays(self, before: Trial, after: Trial) -> bool:
        """Return whether the loss falls clearly."""
        fall = (before.losses - after.losses).double()
        if not bool(fall.isfinite().all()):
            return math.isfinite(after.loss)
        error = float(fall.std()) / len(fall) ** 0.5 if len(fall) > 1 else math.inf
        return float(fall.mean()) > max(_GAIN, _ERRORS * error)

    def _record(self, before: Trial | None, after: Trial) -> None:
        names = [column.name for column in self.columns]
        text = repr(after.expression.named(names))
        if before is None:
            self.decisions.append(f"Kernel: {text}, with the lowest loss of the first structures.")
        else:
            fall = number(before.loss - after.loss, 2)
            self.decisions.append(f"Kernel: {text}. The last part lowers the loss by {fall}.")

    def trial(self, expression: Expression, before: Trial | None = None) -> Trial | None:
        """Train a structure, from the parameters of the one it extends; None if that fails."""
        if self._trials and time.perf_counter() > self.deadline:
            return None
        results = []
        losses = []
        try:
            for k, part in enumerate(self.splits):
                start = None if before is None else before.results[k]
                result = self._trained(expression, part, start)
                marginals = result.posterior.predict(part.validation.X)
                with torch.no_grad():
                    likelihood = cast(Gaussian, result.likelihood)
                    variance = marginals.variance + likelihood.noise
                    squares = (part.validation.y - marginals.mean).square()
                    losses.append(0.5 * (torch.log(2 * math.pi * variance) + squares / variance))
                results.append(result)
        except NumericalError:
            return None
        return Trial(expression, results, torch.cat(losses))

    def _trained(
        self, expression: Expression, part: Split, start: TrainingResult | None
    ) -> TrainingResult:
        """Return a structure after a few steps on the training rows of a split."""
        data = _thinned(part.training)
        X, y = data.X, data.y
        generator = torch.Generator().manual_seed(0)
        posterior = SparsePosterior.from_data(
            X,
            y,
            num_inducing=min(_INDUCING, len(X)),
            kernel=expression,
            mean="constant",
            columns=self.columns,
            generator=generator,
        )
        likelihood = starting_likelihood(Gaussian, y).to(X)
        if start is not None:
            _copy_kernel(posterior.prior, start.posterior.prior)
            likelihood.load_state_dict(start.likelihood.state_dict())
        return train(
            posterior, likelihood, X, y, objective="vfe", weights=data.weights, max_steps=_STEPS
        )

    # Parts

    def _parts(self) -> Iterator[Expression]:
        """Yield the parts that the kinds of the columns suggest."""
        kinds = [column.kind for column in self.columns]
        numbers = [j for j, kind in enumerate(kinds) if kind in ("number", "place")]
        times = [j for j, kind in enumerate(kinds) if kind == "time"]
        plain = [j for j, kind in enumerate(kinds) if kind != "time"]
        for j in times:
            yield from _trends(j)
            for period in self._periods(j):
                yield from _seasons(j, period)
        if plain and times:
            yield Matern52(*plain)
        if numbers and len(numbers) < len(plain):
            yield Matern52(*numbers)
        places = [j for j, kind in enumerate(kinds) if kind == "place"]
        if len(places) == 2:
            yield Sphere(*sorted(places, key=lambda j: self.columns[j].unit != "degrees north"))
        for j in self._coded():
            kind = kinds[j]
            if kind == "category":
                yield Categorical(j)
                if numbers:
                    yield Matern52(*numbers) * Categorical(j)
            else:
                yield Group(j)
                for time in times or numbers[:_MANY]:
                    yield Group(j) * Linear(time)
        if len(numbers) >= _MANY:
            yield Additive(*numbers)

    def _coded(self) -> list[int]:
        """Return the columns of levels whose means explain most of the targets."""
        data = self.splits[-1].training
        shares = {
            j: _explained(data.X[:, j], data.y)
            for j, column in enumerate(self.columns)
            if column.coded
        }
        return sorted(shares, key=lambda j: -shares[j])[:_MOST_CODED]

    def _series(self) -> list[Expression]:
        """Return trends with a season: either part alone may explain the other one's share."""
        return [
            Sum(trend, season)
            for j, column in enumerate(self.columns)
            if column.kind == "time"
            for period in self._periods(j)[:1]
            for season in _seasons(j, period)
            for trend in _trends(j)
        ]

    def _periods(self, column: int) -> list[Period]:
        """Return the periods that the targets may have in a column of times."""
        data = self.splits[-1].training
        times, values = (v.double().cpu().numpy() for v in (data.X[:, column], data.y))
        facts = self.columns[column]
        in_units = times * facts.scale + facts.shift
        return periods_of(in_units, values, in_days=facts.unit == "days")


def _explained(levels: Row, y: Row) -> float:
    """Return the share of the variance of y that means of levels explain, less that of noise."""
    _, index = levels.unique(return_inverse=True)
    number = int(index.max()) + 1
    counts = torch.bincount(index, minlength=number)
    means = torch.zeros(number).to(y).index_add(0, index, y) / counts
    free = len(y) - number
    total = float(y.var())
    if free < 1 or not total > 0:
        return 0.0
    return 1 - float((y - means[index]).square().sum()) / free / total


def _sum(best: Trial | None, part: Expression) -> Expression:
    return part if best is None else Sum(best.expression, part)


def _trends(column: int) -> tuple[Expression, ...]:
    """Return trends: a line, smooth or rough ones that end, and lines with rough deviations."""
    return (
        Linear(column),
        RBF(column),
        Matern32(column),
        Linear(column) + Matern32(column),
        Linear(column) + RBF(column) + Matern32(column),
    )


def _seasons(column: int, period: Period) -> Iterator[Expression]:
    """Yield a season, and one that changes slowly."""
    length: float | str = period.text or float(np.format_float_scientific(period.length, 6))
    yield Periodic(column, period=length)
    yield Periodic(column, period=length) * RBF(column)


def _thinned(data: Data) -> Data:
    """Return at most `_ROWS` of the rows, evenly spread."""
    n = len(data)
    if n <= _ROWS:
        return data
    return data.take(torch.arange(_ROWS, device=data.X.device) * n // _ROWS)


def _copy_kernel(prior: Prior, before: Prior) -> None:
    """Start the parts that a smaller sum has, too, from its parameters."""
    kernel, smaller = prior.structure, before.structure
    if not isinstance(kernel, StructuredKernel) or not isinstance(smaller, StructuredKernel):
        return
    values = dict(smaller.named_parameters())
    with torch.no_grad():
        for name, parameter in kernel.named_parameters():
            if name in values and name != "raw_shares":
                parameter.copy_(values[name])
        shares = smaller.shares
        more = len(kernel.terms) - len(shares)
        added = shares.new_full((more,), _NEW_SHARE / max(1, more))
        kernel.raw_shares.copy_(torch.log(torch.cat([(1 - _NEW_SHARE) * shares, added])))
        prior.raw_output_scale.copy_(before.raw_output_scale)
