"""The study of gradients: draws of each rule's, right after initialisation, around the exact one.

The paper calls the squared error of single draws "bias" and takes bMC with 10,000 samples for the
truth. Here the truth is exact, bias and variance are told apart, and how far the paper's truth is
off is told as well.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from directgp.diagnostics.gradient_comparison import gradient_draws
from directgp.diagnostics.gradient_statistics import EachDraw, Measurement, block_statistics
from directgp.experiments.paper.cells import GradientCell
from directgp.experiments.paper.progress import tell
from directgp.experiments.paper.pullback import ObjectivePullback
from directgp.experiments.paper.results import GradientOutcome, GradientRow, Measured
from directgp.experiments.paper.rules import EXACT, RuleFacts
from directgp.experiments.paper.starting import scaled, start_of
from directgp.experiments.paper.timing import least_seconds
from directgp.experiments.seeds import generator_of
from directgp.experiments.training_rows import CellData
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.evaluate import resolve_rule
from directgp.shapes import Marginals
from directgp.training.monitors import Monitor

Arrays = dict[str, NDArray[np.float32]]
Blocks = Mapping[str, Tensor]

_TIMINGS = 5
_TRUTH, _TIMING, _RULES = range(1, 4)
"""Streams of random numbers."""


def run_gradients(
    cell: GradientCell, data: CellData, monitors: Sequence[Monitor] = ()
) -> tuple[GradientOutcome, Arrays]:
    """Draw gradients of the objective in q(u), and compare them with the exact gradient.

    Parameters
    ----------
    cell : GradientCell
        What to run.
    data : CellData
        Its rows.
    monitors : sequence of Monitor
        Told after each rule.

    Returns
    -------
    tuple
        The outcome, and each draw's statistics under ``{statistic}.{rule label}.{block}``, in the
        units of the outcome's rows.
    """
    since = time.process_time()
    state = State.of(cell, data)
    exact = state.exact()
    seconds = _seconds(cell, state)
    rows: list[GradientRow] = []
    arrays: Arrays = {}
    for number, rule in enumerate(cell.rules):
        draws = state.draws(rule, cell.draws, generator_of(*_seed(cell), _RULES, number))
        for block, truth in exact.items():
            flat = draws[block].flatten(1)
            rows.append(_row(rule, block, flat, truth, seconds[rule.label]))
            arrays |= _arrays(f"{rule.label}.{block}", EachDraw.of(flat, truth))
        tell(monitors, "gradients", number + 1, len(cell.rules))
    truth_error = _truth_error(cell, state, exact)
    outcome = GradientOutcome(
        rows=tuple(rows), truth_error=truth_error, seconds=time.process_time() - since
    )
    return outcome, arrays


@final
@dataclass(frozen=True)
class State:
    """Where gradients are drawn."""

    likelihood: Likelihood
    y: Tensor
    marginals: Marginals
    pullback: ObjectivePullback

    @classmethod
    def of(cls, cell: GradientCell, data: CellData) -> "State":
        """Right after initialisation: first hyperparameters, q(u) at the prior."""
        X, y = scaled(data, cell.task).train
        model = start_of(cell, X, y)
        marginals = model.posterior.predict(X)
        pullback = ObjectivePullback.of(model.posterior, X, cell.beta)
        return cls(model.likelihood, y, marginals, pullback)

    def marginal_draws(
        self, rule: RuleFacts, repeats: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draws of the gradients in means and variances."""
        resolved = resolve_rule(rule.rule(), self.likelihood)
        return gradient_draws(resolved, self.likelihood, self.y, self.marginals, repeats, generator)

    def draws(
        self, rule: RuleFacts, repeats: int, generator: torch.Generator | None = None
    ) -> Blocks:
        """Draws of the gradients in u_mean and u_chol."""
        return self.pullback(*self.marginal_draws(rule, repeats, generator))

    def exact(self) -> Blocks:
        """The exact gradients, flat, of the blocks that have one.

        That of u_chol is 0 where every mean of a probit model is: then nothing can be relative to
        it, and the block is left out.
        """
        blocks = {name: draws[0].flatten() for name, draws in self.draws(EXACT, 1).items()}
        return {name: gradient for name, gradient in blocks.items() if bool(gradient.any())}


def _seed(cell: GradientCell) -> tuple[int, int]:
    return cell.seed, cell.repeat


def _seconds(cell: GradientCell, state: State) -> dict[str, float]:
    """Processor time of one draw of the marginals' gradients, by the rules' labels."""
    generator = generator_of(*_seed(cell), _TIMING)
    rivals = {rule.label: partial(state.marginal_draws, rule, 1, generator) for rule in cell.rules}
    return least_seconds(rivals, _TIMINGS)


def _truth_error(cell: GradientCell, state: State, exact: Blocks) -> dict[str, float]:
    """How far the gradient is off that the paper takes for the truth."""
    paper = RuleFacts(name="bmc", samples=cell.truth_samples)
    draws = state.draws(paper, 1, generator_of(*_seed(cell), _TRUTH))
    return {
        block: float(EachDraw.of(draws[block].flatten(1), truth).squared_error)
        for block, truth in exact.items()
    }


def _row(rule: RuleFacts, block: str, draws: Tensor, exact: Tensor, seconds: float) -> GradientRow:
    found = block_statistics(draws, exact).relative()
    return GradientRow(
        rule=rule,
        block=block,
        alignment=_measured(found.alignment),
        squared_norm=_measured(found.squared_norm_ratio),
        squared_error=_measured(found.squared_error),
        variance=_measured(found.variance),
        squared_bias=_measured(found.squared_bias),
        seconds=seconds,
    )


def _measured(found: Measurement) -> Measured:
    return Measured(value=found.value, error=found.standard_error)


def _arrays(name: str, each: EachDraw) -> Arrays:
    statistics = ("alignment", "squared_norm", "squared_error")
    return {f"{what}.{name}": getattr(each, what).float().numpy() for what in statistics}
