"""The study of product samplers along a training: proposals, time and error of the gradients.

The paper's sampler in a loop over the examples is measured beside the authors' hybrid, on as many
examples as time allows; uPS "of the paper" is our version of its sampler, which has no such loop
and hands what it cannot serve soon to an exact sampler, with the paper's score gradient.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from directgp.diagnostics.gradient_comparison import gradient_draws
from directgp.errors import UnsupportedError
from directgp.experiments.models import Model
from directgp.experiments.paper.cells import SamplerCell
from directgp.experiments.paper.every_step import EveryStep
from directgp.experiments.paper.one_by_one import Batch
from directgp.experiments.paper.progress import tell
from directgp.experiments.paper.proposals import (
    expected_proposals,
    our_proposals,
    seen_proposals,
)
from directgp.experiments.paper.results import SamplerLook, SamplerOutcome
from directgp.experiments.paper.starting import scaled, start_of
from directgp.experiments.paper.timing import least_seconds
from directgp.experiments.seeds import generator_of
from directgp.experiments.training_rows import CellData
from directgp.likelihoods.unimodal import UnimodalInF
from directgp.log_expectations.base import Rule
from directgp.log_expectations.evaluate import log_expectation, resolve_rule
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.shapes import Marginals
from directgp.training.monitors import Monitor
from directgp.training.train import train

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
