"""Measure the gradient estimators and the product samplers of the paper."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from directgp import log_expectation, train
from directgp.experiments import Circumstances, Record, generator_of
from directgp.likelihoods import UnimodalInF
from directgp.log_expectations import (
    BiasedMonteCarlo,
    FlatExamples,
    ProductSampling,
    Rule,
    draw_as_paper,
    proposals_per_draw,
    resolve_rule,
)
from directgp.posteriors import SparsePosterior
from directgp.training import Monitor
from directgp_paper.diagnostics.gradients import EachDraw, block_statistics, gradient_draws
from directgp_paper.experiments.cells import (
    EXACT,
    GradientCell,
    GradientOutcome,
    GradientRow,
    Measured,
    RuleFacts,
    SamplerCell,
    SamplerOutcome,
    SamplerPoint,
)
from directgp_paper.experiments.fits import EveryStep, report_step
from directgp_paper.experiments.models import PaperModel, paper_model
from directgp_paper.experiments.rows import PaperRows, ScaledRows

Row = Float[Tensor, " n"]
Draws = Float[Tensor, "r n"]

Blocks = dict[str, Tensor]
"""Gradients by block of parameters."""


def least_seconds(functions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least processor time of each function; their repeats alternate."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            since = time.process_time()
            function()
            taken[name].append(time.process_time() - since)
    return {name: min(seconds) for name, seconds in taken.items()}


# Gradients. The paper calls the squared error of single draws "bias" and takes bMC with 10,000
# samples as the truth. Here the truth is exact, bias and variance are separated, and the error of
# the paper's truth is measured as well.


def objective_pullback(
    posterior: SparsePosterior, X: Float[Tensor, "n d"], beta: float
) -> Callable[[Draws, Draws], Blocks]:
    """Return the map from gradients in means and variances of f to gradients in q(u).

    With A = L_uu⁻¹ K_uf and S = u_chol, q(f) has the means Aᵀm and the variances diag(AᵀSSᵀA), up
    to constants. A draw (g_μ, g_v) of the gradient of Σ_i log E_q[p(y_i given f)] gives the
    objective per example, −(1/n)·Σ_i log E_q[p(y_i given f)] + (β/n)·KL, the gradients

    u_mean: −A g_μ / n + (β/n)·∂_m KL,  u_chol: −2 tril(A diag(g_v) Aᵀ S) / n + (β/n)·∂_S KL.
    """
    with torch.enable_grad():
        kl = torch.autograd.grad(beta * posterior.kl(), (posterior.u_mean, posterior.u_chol))
    A = posterior.features(X).A
    S = posterior.u_chol.detach().tril()
    n = A.shape[-1]

    def pullback(by_mean: Draws, by_variance: Draws) -> Blocks:
        slopes = [2 * ((A * g) @ (A.mT @ S)).tril() for g in by_variance]
        by_chol = torch.stack([kl[1].tril() - slope for slope in slopes])
        return {"u_mean": (kl[0] - by_mean @ A.mT) / n, "u_chol": by_chol / n}

    return pullback


_STATISTICS = {
    **{name: name for name in ("alignment", "squared_error", "variance", "squared_bias")},
    "squared_norm": "squared_norm_ratio",
}
"""Fields of `GradientRow`, and of the statistics of a block."""

_TIMINGS = 5
"""Repeats of the timing of a gradient, of which the least counts."""

_TRUTH, _TIMING, _RULES = range(1, 4)
"""Numbers of the streams of random numbers."""


def run_gradients(
    cell: GradientCell, data: PaperRows, monitors: Sequence[Monitor] = ()
) -> Record[GradientCell, GradientOutcome]:
    """Draw gradients right after initialisation, and compare them with the exact gradient."""
    since = time.process_time()
    seed = (cell.seed, cell.repeat)
    X, y = ScaledRows.of(data, cell.task).train
    model = paper_model(cell, X, y)
    likelihood = model.likelihood
    marginals = model.posterior.predict(X)
    pullback = objective_pullback(model.posterior, X, cell.beta)

    def marginal_draws(
        rule: RuleFacts, repeats: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        resolved = resolve_rule(rule.rule(), likelihood)
        return gradient_draws(resolved, likelihood, y, marginals, repeats, generator)

    # The gradient in u_chol is 0 if all means of a probit model are 0. Then no relative error is
    # defined, and the block is left out.
    gradients = pullback(*marginal_draws(EXACT, 1))
    exact = {
        name: gradient[0].flatten() for name, gradient in gradients.items() if bool(gradient.any())
    }
    timing = generator_of(*seed, _TIMING)
    functions = {rule.label: partial(marginal_draws, rule, 1, timing) for rule in cell.rules}
    seconds = least_seconds(functions, _TIMINGS)
    rows: list[GradientRow] = []
    arrays: dict[str, NDArray[np.float32]] = {}
    for number, rule in enumerate(cell.rules):
        drawn = marginal_draws(rule, cell.draws, generator_of(*seed, _RULES, number))
        draws = pullback(*drawn)
        for block, truth in exact.items():
            flat = draws[block].flatten(1)
            statistics = block_statistics(flat, truth).relative()
            numbers = {name: getattr(statistics, of) for name, of in _STATISTICS.items()}
            measured: dict[str, Any] = {
                name: Measured(value=m.value, error=m.standard_error) for name, m in numbers.items()
            }
            each_seconds = seconds[rule.label]
            rows.append(GradientRow(rule=rule, block=block, seconds=each_seconds, **measured))
            per_draw = EachDraw.of(flat, truth)
            for statistic in ("alignment", "squared_norm", "squared_error"):
                values = getattr(per_draw, statistic).float().numpy()
                arrays[f"{statistic}.{rule.label}.{block}"] = values
        report_step(monitors, "gradients", number + 1, len(cell.rules))
    paper_truth = RuleFacts(name="bmc", samples=cell.truth_samples)
    draws = pullback(*marginal_draws(paper_truth, 1, generator_of(*seed, _TRUTH)))
    truth_error = {
        block: float(EachDraw.of(draws[block].flatten(1), truth).squared_error)
        for block, truth in exact.items()
    }
    taken = time.process_time() - since
    outcome = GradientOutcome(rows=tuple(rows), truth_error=truth_error, seconds=taken)
    return Record(cell, outcome, Circumstances.here("cpu"), {**arrays})


# Samplers. The paper's sampler in a loop over the examples is measured beside the authors' hybrid,
# on as many examples as time allows. uPS "of the paper" is our loop-free version of its sampler,
# with the paper's score gradient; it passes examples with many rejections to an exact sampler.

MAX_PROPOSALS = 5_000
"""Proposals for one draw. The time of an example that needs more is underestimated."""

_MAX_WIDTH = 10
"""Largest width n of a proposal N(μ, n·v)."""

_VECTORISED_PROPOSALS = 2
"""Proposals that the hybrid makes for all examples at once."""


@final
@dataclass(frozen=True)
class SampledExamples:
    """Examples, and the authors' two ways to draw for them; draws are differences from the means.

    Both choose the width of the proposals in a loop over the examples. The hybrid makes two
    proposals for all examples at once, takes the first success of each, and draws for the others
    in a loop. The samplers of `ProductSampling` have no loop over the examples.
    """

    likelihood: UnimodalInF
    """The likelihood of the examples."""

    y: Row
    """Targets."""

    mean: Row
    """Means of q(f)."""

    variance: Row
    """Variances of q(f)."""

    log_max: Row
    """Maximum of the log-likelihood over f."""

    @classmethod
    def of(cls, likelihood: UnimodalInF, y: Row, mean: Row, variance: Row) -> "SampledExamples":
        """Return the examples with the maxima of the likelihood."""
        return cls(likelihood, y, mean, variance, likelihood.log_max(y))

    @property
    def flat(self) -> FlatExamples:
        """The examples as the rules take them."""
        return FlatExamples(self.likelihood, self.y, self.mean, self.variance)

    def one_by_one(self, generator: torch.Generator) -> Row:
        """Return a draw from q̃ for each; NaN where all proposals were rejected."""
        examples = map(self._example, range(len(self.y)))
        return torch.cat([one._draw(one._width(), generator) for one in examples])

    def by_hybrid(self, generator: torch.Generator) -> Row:
        """Return a draw from q̃ for each by the hybrid; NaN where all proposals were rejected."""
        width = torch.cat([self._example(i)._width() for i in range(len(self.y))])
        draws = torch.zeros_like(self.mean)
        missing = torch.ones_like(self.mean).bool()
        for _ in range(_VECTORISED_PROPOSALS):
            delta, hits = self._propose(width, generator)
            draws = torch.where(missing & hits, delta, draws)
            missing = missing & ~hits
        for i in torch.nonzero(missing).flatten().tolist():
            draws[i] = self._example(i)._draw(width[i : i + 1], generator)
        return draws

    def _example(self, i: int) -> "SampledExamples":
        rows = (row[i : i + 1] for row in (self.y, self.mean, self.variance, self.log_max))
        return SampledExamples(self.likelihood.take(torch.tensor([i])), *rows)

    def _width(self) -> Row:
        """Return the largest valid width n of a single example."""
        deviation = torch.sqrt(self.variance)
        log_max = float(self.log_max)

        def is_valid(n: int) -> bool:
            r = deviation * math.sqrt(math.log(n) / (1 - 1 / n))
            inside = self.likelihood.log_max_between(self.y, self.mean - r, self.mean + r)
            return float(inside) <= log_max - 0.5 * math.log(n)

        n = 1
        near = torch.cat([self.mean - deviation, self.mean + deviation])
        if float(self.likelihood.log_prob(self.y, near).max()) <= log_max - math.log(2):
            n = next(filter(is_valid, range(_MAX_WIDTH, 1, -1)), 1)
        return torch.full_like(self.mean, n)

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

_MIN_DRAWS = 10
"""Least draws for each example."""

_MAX_DRAWS = 200
"""Most draws for each example."""

_ROUNDS = 5_000
"""Maximum rounds of the paper's sampler, of four proposals each."""


def expected_proposals(examples: SampledExamples, log_z: Row) -> Row:
    """Return p_max / E_q[p], the expected proposals of the paper's sampler at any width."""
    return torch.exp(examples.log_max - log_z)


def seen_proposals(
    examples: SampledExamples, expected: Row, generator: torch.Generator, *, widen: bool
) -> Measured:
    """Return the mean number of proposals of the paper's sampler over the examples.

    The standard error is of counting alone, since both widths have the same examples: the number
    of proposals of one draw is geometric, with variance p(p − 1) for mean p. An example with most
    draws still rejected after the last round enters with its expected number.
    """
    num_draws = max(_MIN_DRAWS, min(_MAX_DRAWS, int(_WORK / float(expected.sum()))))
    draws = draw_as_paper(examples.flat, num_draws, generator, _ROUNDS, widen)
    seen = 2 * (~draws.unfinished).sum(0) >= num_draws
    proposals = torch.where(seen, draws.proposals, expected)
    variance_of_each = torch.where(seen, proposals * (proposals - 1) / draws.accepted, 0.0)
    error = variance_of_each.sum().sqrt() / len(examples.y)
    return Measured(value=float(proposals.mean()), error=float(error))


def our_proposals(examples: SampledExamples, log_z: Row) -> Measured:
    """Return the mean number of proposals of our sampler, which is exact."""
    return Measured(value=float(proposals_per_draw(examples.flat, log_z).mean()), error=0.0)


_SWEEPS = 5
"""Repeats of the timing of a draw, of which the least counts."""

_GRADIENTS = 9
"""Repeats of the timing of a gradient, of which the least counts."""

_ERROR_DRAWS = 20
"""Draws of a gradient, of which the mean squared error is taken."""

_LOOP_WORK = 10_000
"""Budget of proposals of a loop over the examples, about half a second."""

_MIN_EXAMPLES = 50


def run_samplers(
    cell: SamplerCell, data: PaperRows, monitors: Sequence[Monitor] = ()
) -> Record[SamplerCell, SamplerOutcome]:
    """Train for the log loss by its exact rule, and measure the samplers at some steps."""
    since = time.process_time()
    points = []
    X, y = ScaledRows.of(data, cell.task).train
    start = paper_model(cell, X, y)
    for number, step in enumerate(cell.looks):
        model = start
        if step > 0:
            # A new run from the start, with the same random numbers.
            result = train(
                *(start.posterior, start.likelihood, X, y),
                objective="log_loss",
                beta=cell.beta,
                start="scratch",
                optimizer="adam",
                batch_size=cell.batch_size,
                learning_rate=cell.learning_rate,
                max_steps=step,
                stopping=EveryStep(),
                monitors=monitors,
                generator=generator_of(cell.seed, cell.repeat),
            )
            model = PaperModel.of(result)
        with torch.no_grad():
            points.append(_measure(cell, step, model, X[: cell.examples], y[: cell.examples]))
        report_step(monitors, "samplers", number + 1, len(cell.looks))
    taken = time.process_time() - since
    outcome = SamplerOutcome(samples=cell.samples, looks=tuple(points), seconds=taken)
    return Record(cell, outcome, Circumstances.here("cpu"))


def _measure(cell: SamplerCell, step: int, model: PaperModel, X: Tensor, y: Tensor) -> SamplerPoint:
    random = generator_of(cell.seed, cell.repeat, step)
    # The likelihoods of all three tasks have one peak in f.
    likelihood = cast(UnimodalInF, model.likelihood.frozen())
    q = model.posterior.predict(X)
    examples = SampledExamples.of(likelihood, y, q.mean, q.variance)
    log_z = log_expectation(likelihood, y, q.mean, q.variance)
    expected = expected_proposals(examples, log_z)
    rules: dict[str, Rule] = {
        "bmc": BiasedMonteCarlo(cell.samples),
        "paper_ups": ProductSampling(cell.samples, sampler="paper", gradient="score"),
        "our_ups": ProductSampling(cell.samples),
    }

    def gradient(rule: Rule, repeats: int = 1) -> Float[Tensor, "r two_n"]:
        """Return draws of the gradient in means and variances."""
        return torch.cat(gradient_draws(rule, likelihood, y, q, repeats, random), dim=-1)

    def errors() -> dict[str, float]:
        """Return the mean squared error of one draw of each rule, relative to the exact one."""
        exact = gradient(resolve_rule("auto", likelihood))
        squares = {n: (gradient(r, _ERROR_DRAWS) - exact).square().sum(1) for n, r in rules.items()}
        return {f"{n}_error": float(s.mean() / exact.square().sum()) for n, s in squares.items()}

    functions = {f"{name}_seconds": partial(gradient, rule) for name, rule in rules.items()}
    return SamplerPoint(
        step=step,
        proposals=seen_proposals(examples, expected, random, widen=True),
        proposals_narrow=seen_proposals(examples, expected, random, widen=False),
        proposals_ours=our_proposals(examples, log_z),
        expected_proposals=float(expected.mean()),
        **errors(),
        **_loop_seconds(examples, float(expected.mean()), random),
        **least_seconds(functions, _GRADIENTS),
    )


def _loop_seconds(
    examples: SampledExamples, proposals: float, random: torch.Generator
) -> dict[str, float]:
    """Return the time of a draw for every example, extrapolated from a subset if that is long."""
    n = len(examples.y)
    size = min(n, max(_MIN_EXAMPLES, int(_LOOP_WORK / proposals)))
    index = torch.randperm(n, generator=random)[:size]
    rows = (row[index] for row in (examples.y, examples.mean, examples.variance))
    subset = SampledExamples.of(examples.likelihood.take(index), *rows)
    seed = int(torch.randint(2**31, (), generator=random))

    def sweep(way: Callable[[torch.Generator], Tensor]) -> Tensor:
        # The same seed gives every repeat the same rejections.
        return way(torch.Generator().manual_seed(seed))

    functions = {
        "one_by_one_seconds": partial(sweep, subset.one_by_one),
        "vectorised_seconds": partial(sweep, subset.by_hybrid),
    }
    return {name: seconds * n / size for name, seconds in least_seconds(functions, _SWEEPS).items()}
