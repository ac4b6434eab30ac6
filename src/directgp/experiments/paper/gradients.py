"""Study the gradients of each rule around the exact gradient."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from directgp.diagnostics.gradients import EachDraw, Measurement, block_statistics, gradient_draws
from directgp.experiments.cell import generator_of
from directgp.experiments.fit import CellData
from directgp.experiments.paper.cells import (
    EXACT,
    GradientCell,
    GradientOutcome,
    GradientRow,
    Measured,
    RuleFacts,
)
from directgp.experiments.paper.fits import scaled, start_of, tell
from directgp.experiments.paper.samplers import least_seconds
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.api import resolve_rule
from directgp.posteriors.sparse import SparsePosterior
from directgp.shapes import Marginals
from directgp.training.callbacks import Monitor

# With A = L_uu⁻¹ K_uf and S = u_chol, q(f) has the means Aᵀm and the variances diag(AᵀSSᵀA), up to
# constants. A draw (g_μ, g_v) of the gradient of Σ_i log E_q[p(y_i given f)] gives the objective
# per example, −(1/n)·Σ_i log E_q[p(y_i given f)] + (β/n)·KL, the gradients
#
# u_mean:  −A g_μ / n + (β/n)·∂_m KL u_chol:  −2 tril(A diag(g_v) Aᵀ S) / n + (β/n)·∂_S KL.


Draws = Float[Tensor, "r n"]


@final
@dataclass(frozen=True)
class ObjectivePullback:
    """What is constant of a posterior while gradients are drawn; a `Pullback` of diagnostics."""

    A: Float[Tensor, "m n"]
    u_chol: Float[Tensor, "m m"]
    kl: tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]
    """β times the gradients of KL in u_mean and u_chol."""

    @classmethod
    def of(
        cls, posterior: SparsePosterior, X: Float[Tensor, "n d"], beta: float
    ) -> "ObjectivePullback":
        """At a posterior as it is, for examples X."""
        with torch.enable_grad():
            kl = torch.autograd.grad(beta * posterior.kl(), (posterior.u_mean, posterior.u_chol))
        A = posterior.features(X).A
        return cls(A, posterior.u_chol.detach().tril(), (kl[0], kl[1].tril()))

    def __call__(self, by_mean: Draws, by_variance: Draws) -> dict[str, Float[Tensor, "r ..."]]:
        """Draws of the gradients in ``u_mean`` and ``u_chol``."""
        n = self.A.shape[-1]
        by_u_mean = self.kl[0] - by_mean @ self.A.mT
        by_u_chol = torch.stack([self.kl[1] - self._chol_slope(g) for g in by_variance])
        return {"u_mean": by_u_mean / n, "u_chol": by_u_chol / n}

    def _chol_slope(self, g: Float[Tensor, " n"]) -> Float[Tensor, "m m"]:
        return 2 * ((self.A * g) @ (self.A.mT @ self.u_chol)).tril()


# The paper calls the squared error of single draws "bias" and takes bMC with 10,000 samples for the
# truth. Here the truth is exact, bias and variance are told apart, and how far the paper's truth is
# off is told as well.


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
