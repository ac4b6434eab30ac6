"""Study product samplers along a training run."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from directgp.diagnostics.gradients import gradient_draws
from directgp.errors import UnsupportedError
from directgp.experiments.cell import generator_of
from directgp.experiments.fit import CellData, Model
from directgp.experiments.paper.cells import Measured, SamplerCell, SamplerLook, SamplerOutcome
from directgp.experiments.paper.curves import EveryStep
from directgp.experiments.paper.fits import scaled, start_of, tell
from directgp.likelihoods.base import ExactProductSampler, Likelihood, UnimodalInF
from directgp.log_expectations.api import log_expectation, resolve_rule
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_density import peak_of
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.log_expectations.rule import Rule
from directgp.log_expectations.samplers import build_hat, draw_as_paper
from directgp.shapes import Marginals
from directgp.training.callbacks import Monitor
from directgp.training.train import train


def least_seconds(rivals: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least processor time of each, taken in turn: other programs can only make it longer."""
    taken = [{name: _seconds(rival) for name, rival in rivals.items()} for _ in range(repeats)]
    return {name: min(each[name] for each in taken) for name in rivals}


def _seconds(rival: Callable[[], object]) -> float:
    since = time.process_time()
    rival()
    return time.process_time() - since


# Both choose the width of the proposals example by example and stop at the first that is valid, and
# both loops work on tensors of one row. The hybrid makes two proposals for all examples at once and
# uses the first success of each; those without one are served one by one.
# `directgp.log_expectations.samplers` does the same without any loop over the examples.


Row = Float[Tensor, " n"]

MOST_PROPOSALS = 5_000
"""For one draw. An example that would need more takes less time here than it ought to."""

_WIDEST = 10
_TOGETHER = 2
"""Proposals that the hybrid makes for all examples at once."""


@final
@dataclass(frozen=True)
class Batch:
    """Examples to draw for, as differences from the means."""

    likelihood: UnimodalInF
    y: Row
    mean: Row
    variance: Row
    log_max: Row
    """Of the likelihood."""

    @classmethod
    def of(cls, likelihood: UnimodalInF, y: Row, mean: Row, variance: Row) -> "Batch":
        """With the peaks of the likelihood found beforehand."""
        return cls(likelihood, y, mean, variance, likelihood.log_max(y))

    def one_by_one(self, generator: torch.Generator) -> Row:
        """A draw from q̃ for each; NaN where all proposals were refused."""
        examples = map(self._example, range(len(self.y)))
        return torch.cat([one._draw(one._width(), generator) for one in examples])

    def by_hybrid(self, generator: torch.Generator) -> Row:
        """The same, with two proposals for all of them at once before."""
        width = torch.cat([self._example(i)._width() for i in range(len(self.y))])
        draws, missing = torch.zeros_like(self.mean), torch.ones_like(self.mean).bool()
        for _ in range(_TOGETHER):
            delta, hits = self._propose(width, generator)
            draws = torch.where(missing & hits, delta, draws)
            missing = missing & ~hits
        for i in torch.nonzero(missing).flatten().tolist():
            draws[i] = self._example(i)._draw(width[i : i + 1], generator)
        return draws

    def _example(self, i: int) -> "Batch":
        """One of them."""
        rows = (row[i : i + 1] for row in (self.y, self.mean, self.variance, self.log_max))
        return Batch(self.likelihood.take(torch.tensor([i])), *rows)

    def _width(self) -> Row:
        """`choose_width` for a single example: the widest valid n."""
        deviation, log_max = torch.sqrt(self.variance), float(self.log_max)
        near = torch.cat([self.mean - deviation, self.mean + deviation])
        n = 1
        if float(self.likelihood.log_prob(self.y, near).max()) <= log_max - math.log(2):
            n = next(filter(lambda n: self._valid(n, deviation, log_max), range(_WIDEST, 1, -1)), 1)
        return torch.full_like(self.mean, n)

    def _valid(self, n: int, deviation: Row, log_max: float) -> bool:
        r = deviation * math.sqrt(math.log(n) / (1 - 1 / n))
        inside = self.likelihood.log_max_between(self.y, self.mean - r, self.mean + r)
        return float(inside) <= log_max - 0.5 * math.log(n)

    def _draw(self, width: Row, generator: torch.Generator) -> Row:
        """The first proposal for a single example that is accepted."""
        for _ in range(MOST_PROPOSALS):
            delta, hit = self._propose(width, generator)
            if bool(hit):
                return delta
        return torch.full_like(self.mean, math.nan)

    def _propose(self, width: Row, generator: torch.Generator) -> tuple[Row, Bool[Tensor, " n"]]:
        """From N(μ, n·v) for each, and whether p_max·N(μ, n·v) accepts it."""
        z = torch.randn(len(self.y), generator=generator, dtype=self.mean.dtype)
        uniform = torch.rand(len(self.y), generator=generator, dtype=self.mean.dtype)
        delta = torch.sqrt(width * self.variance) * z
        log_ratio = 0.5 * (torch.log(width) - (width - 1) * z**2)
        log_share = self.likelihood.log_prob(self.y, self.mean + delta) + log_ratio
        return delta, torch.log(uniform) <= log_share - self.log_max


_WORK = 2e7
"""Proposals that one look may make."""

_FEWEST_DRAWS, _MOST_DRAWS = 10, 200
_ROUNDS = 5_000
"""Of the paper's sampler, four proposals each; then an example is given up."""


def expected_proposals(likelihood: UnimodalInF, y: Row, log_z: Row) -> Row:
    """p_max / E_q[p]: of the paper's sampler for each example, whatever the width."""
    return torch.exp(likelihood.log_max(y) - log_z)


def seen_proposals(
    likelihood: UnimodalInF,
    y: Row,
    mean: Row,
    variance: Row,
    expected: Row,
    generator: torch.Generator,
    *,
    widen: bool,
) -> Measured:
    """Of the paper's sampler, mean over the examples.

    The error is that of counting, since another width would serve the same examples: the number of
    proposals of one draw is geometric, of variance p(p − 1) for mean p. An example of which most
    draws are still refused after the last round counts as theory expects.
    """
    num_draws = max(_FEWEST_DRAWS, min(_MOST_DRAWS, int(_WORK / float(expected.sum()))))
    draws = draw_as_paper(likelihood, y, mean, variance, num_draws, generator, _ROUNDS, widen)
    seen = 2 * (~draws.unfinished).sum(0) >= num_draws
    each = torch.where(seen, draws.proposals, expected)
    variance_of_each = torch.where(seen, each * (each - 1) / draws.accepted, 0.0)
    error = variance_of_each.sum().sqrt() / len(y)
    return Measured(value=float(each.mean()), error=float(error))


def our_proposals(likelihood: Likelihood, y: Row, mean: Row, variance: Row, log_z: Row) -> Measured:
    """Of our sampler, mean over the examples: area of the hat over that of the density, no error.

    One where draws are exact without rejection.
    """
    if isinstance(likelihood, ExactProductSampler):
        return Measured(value=1.0, error=0.0)
    hat = build_hat(likelihood, y, mean, variance, peak_of(likelihood, y, mean, variance))
    log_area = hat.cap + torch.log(hat.left_scale + hat.left + hat.right + hat.right_scale)
    log_density = log_z - likelihood.log_base(y) + 0.5 * torch.log(2 * math.pi * variance)
    return Measured(value=float(torch.exp(log_area - log_density).mean()), error=0.0)


# The paper's sampler in a loop over the examples is measured beside the authors' hybrid, on as many
# examples as time allows; uPS "of the paper" is our version of its sampler, which has no such loop
# and hands what it cannot serve soon to an exact sampler, with the paper's score gradient.


_SWEEPS, _GRADIENTS = 5, 9
"""Repetitions of which the least time is taken."""

_ERROR_DRAWS = 20
_LOOP_WORK = 10_000
"""Proposals that a loop over the examples may make, about half a second."""

_FEWEST_EXAMPLES = 50


def run_samplers(
    cell: SamplerCell, data: CellData, monitors: Sequence[Monitor] = ()
) -> SamplerOutcome:
    """Train for the log loss by its exact rule, and look at the samplers at some steps.

    Parameters
    ----------
    cell : SamplerCell
        What to run.
    data : CellData
        Its rows.
    monitors : sequence of Monitor
        See every step of training, and are told after each look.
    """
    since = time.process_time()
    looks = []
    X, y = scaled(data, cell.task).train
    start = start_of(cell, X, y)
    for number, step in enumerate(cell.looks):
        model = _trained(cell, start, X, y, step, monitors)
        with torch.no_grad():
            looks.append(_look(cell, step, State.of(model, X, y)))
        tell(monitors, "samplers", number + 1, len(cell.looks))
    return SamplerOutcome(
        samples=cell.samples, looks=tuple(looks), seconds=time.process_time() - since
    )


def _trained(
    cell: SamplerCell, start: Model, X: Tensor, y: Tensor, steps: int, monitors: Sequence[Monitor]
) -> Model:
    """The best model of so many steps, each time from the start: the run is deterministic."""
    if steps == 0:
        return start
    result = train(
        start.posterior,
        start.likelihood,
        X,
        y,
        objective="log_loss",
        beta=cell.beta,
        start="scratch",
        optimizer="adam",
        learning_rate=cell.learning_rate,
        max_steps=steps,
        stopping=EveryStep(),
        monitors=monitors,
        generator=generator_of(cell.seed, cell.repeat),
    )
    return Model(result.posterior, result.likelihood)


@final
@dataclass(frozen=True)
class State:
    """Targets and marginals of the training rows, in the midst of training."""

    likelihood: UnimodalInF
    y: Tensor
    marginals: Marginals
    log_z: Tensor
    """log E_q[p], exact."""

    @classmethod
    def of(cls, model: Model, X: Tensor, y: Tensor) -> "State":
        """Of a model as it is."""
        likelihood = model.likelihood.frozen()
        if not isinstance(likelihood, UnimodalInF):
            raise UnsupportedError(
                "The likelihood of a study of samplers must have one peak in f. "
                f"Got {type(likelihood).__name__}."
            )
        q = model.posterior.predict(X)
        return cls(likelihood, y, q, log_expectation(likelihood, y, q.mean, q.variance))

    def gradient(self, rule: Rule, repeats: int, generator: torch.Generator) -> Tensor:
        """Draws of the gradient in means and variances, of shape (repeats, 2n)."""
        parts = gradient_draws(rule, self.likelihood, self.y, self.marginals, repeats, generator)
        return torch.cat(parts, dim=-1)

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Some of the examples, at random."""
        some = torch.randperm(len(self.y), generator=generator)[:size]
        q = self.marginals
        return Batch.of(self.likelihood.take(some), self.y[some], q.mean[some], q.variance[some])


def _look(cell: SamplerCell, step: int, state: State) -> SamplerLook:
    random = generator_of(cell.seed, cell.repeat, step)
    rows = state.likelihood, state.y, state.marginals.mean, state.marginals.variance
    expected = expected_proposals(state.likelihood, state.y, state.log_z)
    rules: dict[str, Rule] = {
        "bmc": BiasedMonteCarlo(cell.samples),
        "paper_ups": ProductSampling(cell.samples, sampler="paper", gradient="score"),
        "our_ups": ProductSampling(cell.samples),
    }
    return SamplerLook(
        step=step,
        proposals=seen_proposals(*rows, expected, random, widen=True),
        proposals_narrow=seen_proposals(*rows, expected, random, widen=False),
        proposals_ours=our_proposals(*rows, state.log_z),
        expected_proposals=float(expected.mean()),
        **_errors(state, rules, random),
        **_loop_seconds(state, float(expected.mean()), random),
        **_gradient_seconds(state, rules, random),
    )


def _errors(state: State, rules: Mapping[str, Rule], random: torch.Generator) -> dict[str, float]:
    """Mean squared error of one draw of each rule's gradient, relative to the exact one."""
    exact = state.gradient(resolve_rule("auto", state.likelihood), 1, random)
    norm = exact.square().sum()

    def error(rule: Rule) -> float:
        squares = (state.gradient(rule, _ERROR_DRAWS, random) - exact).square().sum(1)
        return float(squares.mean() / norm)

    return {f"{name}_error": error(rule) for name, rule in rules.items()}


def _loop_seconds(state: State, proposals: float, random: torch.Generator) -> dict[str, float]:
    """Of a draw for every example; measured on some of them where that would take long."""
    n = len(state.y)
    size = min(n, max(_FEWEST_EXAMPLES, int(_LOOP_WORK / proposals)))
    batch = state.batch(size, random)
    seed = int(torch.randint(2**31, (), generator=random))

    def sweep(way: Callable[[torch.Generator], Tensor]) -> Tensor:
        # Rejections take their time by chance: every repetition shall have the same.
        return way(torch.Generator().manual_seed(seed))

    rivals = {
        "one_by_one_seconds": partial(sweep, batch.one_by_one),
        "vectorised_seconds": partial(sweep, batch.by_hybrid),
    }
    taken = least_seconds(rivals, _SWEEPS)
    return {name: seconds * n / size for name, seconds in taken.items()}


def _gradient_seconds(
    state: State, rules: Mapping[str, Rule], random: torch.Generator
) -> dict[str, float]:
    rivals = {
        f"{name}_seconds": partial(state.gradient, rule, 1, random) for name, rule in rules.items()
    }
    return least_seconds(rivals, _GRADIENTS)
