"""Measure product samplers along a training run."""

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
from directgp.experiments.fit import CellData, GPModel, ScaledRows
from directgp.experiments.paper.cells import Measured, SamplerCell, SamplerLook, SamplerOutcome
from directgp.experiments.paper.curves import EveryStep
from directgp.experiments.paper.fits import paper_model, report_step
from directgp.likelihoods.base import ExactProductSampler, Likelihood, UnimodalInF
from directgp.log_expectations.api import log_expectation, resolve_rule
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.log_expectations.quadrature import peak_of
from directgp.log_expectations.rule import FlatExamples, Rule
from directgp.log_expectations.samplers import build_hat, draw_as_paper
from directgp.shapes import Marginals
from directgp.training.callbacks import Monitor
from directgp.training.train import train


def least_seconds(rivals: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least processor time of each over some repeats, which are interleaved."""
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(repeats):
        for name, rival in rivals.items():
            since = time.process_time()
            rival()
            taken[name].append(time.process_time() - since)
    return {name: min(seconds) for name, seconds in taken.items()}


# The authors' two implementations of product sampling. Both choose the width of the proposals in a
# loop over the examples. The hybrid makes two proposals for all examples at once, takes the first
# success of each, and draws for the others in a loop. `directgp.log_expectations.samplers` has no
# loop over the examples.


Row = Float[Tensor, " n"]

MAX_PROPOSALS = 5_000
"""Proposals for one draw. The time of an example that needs more is underestimated."""

_MAX_WIDTH = 10
_VECTORISED_PROPOSALS = 2
"""Proposals that the hybrid makes for all examples at once."""


@final
@dataclass(frozen=True)
class SampledExamples:
    """SampledExamples to draw for; draws are differences from the means."""

    likelihood: UnimodalInF
    y: Row
    mean: Row
    variance: Row
    log_max: Row
    """Maximum of the log-likelihood over f."""

    @classmethod
    def of(cls, likelihood: UnimodalInF, y: Row, mean: Row, variance: Row) -> "SampledExamples":
        """Return the examples with the maxima of the likelihood."""
        return cls(likelihood, y, mean, variance, likelihood.log_max(y))

    def one_by_one(self, generator: torch.Generator) -> Row:
        """Return a draw from q̃ for each; NaN where all proposals were rejected."""
        examples = map(self._example, range(len(self.y)))
        return torch.cat([one._draw(one._width(), generator) for one in examples])

    def by_hybrid(self, generator: torch.Generator) -> Row:
        """Return the same by the hybrid."""
        width = torch.cat([self._example(i)._width() for i in range(len(self.y))])
        draws, missing = torch.zeros_like(self.mean), torch.ones_like(self.mean).bool()
        for _ in range(_VECTORISED_PROPOSALS):
            delta, hits = self._propose(width, generator)
            draws = torch.where(missing & hits, delta, draws)
            missing = missing & ~hits
        for i in torch.nonzero(missing).flatten().tolist():
            draws[i] = self._example(i)._draw(width[i : i + 1], generator)
        return draws

    def _example(self, i: int) -> "SampledExamples":
        """Return one example."""
        rows = (row[i : i + 1] for row in (self.y, self.mean, self.variance, self.log_max))
        return SampledExamples(self.likelihood.take(torch.tensor([i])), *rows)

    def _width(self) -> Row:
        """Return the largest valid width n of a single example."""
        deviation, log_max = torch.sqrt(self.variance), float(self.log_max)
        near = torch.cat([self.mean - deviation, self.mean + deviation])
        n = 1
        if float(self.likelihood.log_prob(self.y, near).max()) <= log_max - math.log(2):
            n = next(
                filter(lambda n: self._valid(n, deviation, log_max), range(_MAX_WIDTH, 1, -1)), 1
            )
        return torch.full_like(self.mean, n)

    def _valid(self, n: int, deviation: Row, log_max: float) -> bool:
        r = deviation * math.sqrt(math.log(n) / (1 - 1 / n))
        inside = self.likelihood.log_max_between(self.y, self.mean - r, self.mean + r)
        return float(inside) <= log_max - 0.5 * math.log(n)

    def _draw(self, width: Row, generator: torch.Generator) -> Row:
        """Return the first accepted proposal of a single example."""
        for _ in range(MAX_PROPOSALS):
            delta, hit = self._propose(width, generator)
            if bool(hit):
                return delta
        return torch.full_like(self.mean, math.nan)

    def _propose(self, width: Row, generator: torch.Generator) -> tuple[Row, Bool[Tensor, " n"]]:
        """Propose from N(μ, n·v) for each, and accept with the envelope p_max·N(μ, n·v)."""
        z = torch.randn(len(self.y), generator=generator, dtype=self.mean.dtype)
        uniform = torch.rand(len(self.y), generator=generator, dtype=self.mean.dtype)
        delta = torch.sqrt(width * self.variance) * z
        log_ratio = 0.5 * (torch.log(width) - (width - 1) * z**2)
        log_share = self.likelihood.log_prob(self.y, self.mean + delta) + log_ratio
        return delta, torch.log(uniform) <= log_share - self.log_max


_WORK = 2e7
"""Budget of proposals of one measurement."""

_MIN_DRAWS, _MAX_DRAWS = 10, 200
_ROUNDS = 5_000
"""Maximum rounds of the paper's sampler, of four proposals each."""


def expected_proposals(likelihood: UnimodalInF, y: Row, log_z: Row) -> Row:
    """Return p_max / E_q[p], the expected proposals of the paper's sampler at any width."""
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
    """Return the mean number of proposals of the paper's sampler over the examples.

    The error is that of counting, since both widths are measured on the same examples: the number
    of proposals of one draw is geometric, with variance p(p − 1) for mean p. An example with most
    draws still rejected after the last round enters with its expected number.
    """
    num_draws = max(_MIN_DRAWS, min(_MAX_DRAWS, int(_WORK / float(expected.sum()))))
    examples = FlatExamples(likelihood, y, mean, variance)
    draws = draw_as_paper(examples, num_draws, generator, _ROUNDS, widen)
    seen = 2 * (~draws.unfinished).sum(0) >= num_draws
    each = torch.where(seen, draws.proposals, expected)
    variance_of_each = torch.where(seen, each * (each - 1) / draws.accepted, 0.0)
    error = variance_of_each.sum().sqrt() / len(y)
    return Measured(value=float(each.mean()), error=float(error))


def our_proposals(likelihood: Likelihood, y: Row, mean: Row, variance: Row, log_z: Row) -> Measured:
    """Return the mean number of proposals of our sampler: area of the hat over the density's.

    It is exact, and 1 where draws need no rejection.
    """
    if isinstance(likelihood, ExactProductSampler):
        return Measured(value=1.0, error=0.0)
    examples = FlatExamples(likelihood, y, mean, variance)
    hat = build_hat(examples, peak_of(*examples))
    log_area = hat.cap + torch.log(hat.left_scale + hat.left + hat.right + hat.right_scale)
    log_density = log_z - likelihood.log_base(y) + 0.5 * torch.log(2 * math.pi * variance)
    return Measured(value=float(torch.exp(log_area - log_density).mean()), error=0.0)


# The paper's sampler in a loop over the examples is measured beside the authors' hybrid, on as many
# examples as time allows. uPS "of the paper" is our loop-free version of its sampler, with the
# paper's score gradient; it passes examples with many rejections to an exact sampler.


_SWEEPS, _GRADIENTS = 5, 9
"""Repeats of a timing, of which the least counts."""

_ERROR_DRAWS = 20
_LOOP_WORK = 10_000
"""Budget of proposals of a loop over the examples, about half a second."""

_MIN_EXAMPLES = 50


def run_samplers(
    cell: SamplerCell, data: CellData, monitors: Sequence[Monitor] = ()
) -> SamplerOutcome:
    """Train for the log loss by its exact rule, and measure the samplers at some steps.

    The monitors are called at each step of training and after each measurement.
    """
    since = time.process_time()
    looks = []
    X, y = ScaledRows.of(data, cell.task).train
    start = paper_model(cell, X, y)
    for number, step in enumerate(cell.looks):
        model = _trained(cell, start, X, y, step, monitors)
        with torch.no_grad():
            looks.append(_measure(cell, step, SamplerState.of(model, X, y)))
        report_step(monitors, "samplers", number + 1, len(cell.looks))
    return SamplerOutcome(
        samples=cell.samples, looks=tuple(looks), seconds=time.process_time() - since
    )


def _trained(
    cell: SamplerCell, start: GPModel, X: Tensor, y: Tensor, steps: int, monitors: Sequence[Monitor]
) -> GPModel:
    """Return the best model of a run of this many steps; the run is deterministic."""
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
    return GPModel(result.posterior, result.likelihood)


@final
@dataclass(frozen=True)
class SamplerState:
    """Targets and marginals of the training rows at one step of training."""

    likelihood: UnimodalInF
    y: Tensor
    marginals: Marginals
    log_z: Tensor
    """log E_q[p], exact."""

    @classmethod
    def of(cls, model: GPModel, X: Tensor, y: Tensor) -> "SamplerState":
        """Return the state of a model."""
        likelihood = model.likelihood.frozen()
        if not isinstance(likelihood, UnimodalInF):
            raise UnsupportedError(
                "The likelihood of a study of samplers must have one peak in f. "
                f"Got {type(likelihood).__name__}."
            )
        q = model.posterior.predict(X)
        return cls(likelihood, y, q, log_expectation(likelihood, y, q.mean, q.variance))

    def gradient(self, rule: Rule, repeats: int, generator: torch.Generator) -> Tensor:
        """Return draws of the gradient in means and variances, of shape (repeats, 2n)."""
        parts = gradient_draws(rule, self.likelihood, self.y, self.marginals, repeats, generator)
        return torch.cat(parts, dim=-1)

    def sample(self, size: int, generator: torch.Generator) -> SampledExamples:
        """Return a random subset of the examples."""
        some = torch.randperm(len(self.y), generator=generator)[:size]
        q = self.marginals
        return SampledExamples.of(
            self.likelihood.take(some), self.y[some], q.mean[some], q.variance[some]
        )


def _measure(cell: SamplerCell, step: int, state: SamplerState) -> SamplerLook:
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


def _errors(
    state: SamplerState, rules: Mapping[str, Rule], random: torch.Generator
) -> dict[str, float]:
    """Return the mean squared error of one gradient draw of each rule, relative to the exact."""
    exact = state.gradient(resolve_rule("auto", state.likelihood), 1, random)
    norm = exact.square().sum()

    def error(rule: Rule) -> float:
        squares = (state.gradient(rule, _ERROR_DRAWS, random) - exact).square().sum(1)
        return float(squares.mean() / norm)

    return {f"{name}_error": error(rule) for name, rule in rules.items()}


def _loop_seconds(
    state: SamplerState, proposals: float, random: torch.Generator
) -> dict[str, float]:
    """Return the time of a draw for every example, extrapolated from a subset if that is long."""
    n = len(state.y)
    size = min(n, max(_MIN_EXAMPLES, int(_LOOP_WORK / proposals)))
    examples = state.sample(size, random)
    seed = int(torch.randint(2**31, (), generator=random))

    def sweep(way: Callable[[torch.Generator], Tensor]) -> Tensor:
        # The same seed gives every repeat the same rejections.
        return way(torch.Generator().manual_seed(seed))

    rivals = {
        "one_by_one_seconds": partial(sweep, examples.one_by_one),
        "vectorised_seconds": partial(sweep, examples.by_hybrid),
    }
    taken = least_seconds(rivals, _SWEEPS)
    return {name: seconds * n / size for name, seconds in taken.items()}


def _gradient_seconds(
    state: SamplerState, rules: Mapping[str, Rule], random: torch.Generator
) -> dict[str, float]:
    rivals = {
        f"{name}_seconds": partial(state.gradient, rule, 1, random) for name, rule in rules.items()
    }
    return least_seconds(rivals, _GRADIENTS)
