"""Measure bias and variance of the gradients of each rule."""

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
from directgp.experiments.fit import CellData, ScaledRows
from directgp.experiments.paper.cells import (
    EXACT,
    GradientCell,
    GradientOutcome,
    GradientRow,
    Measured,
    RuleFacts,
)
from directgp.experiments.paper.fits import paper_model, report_step
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
    """Maps gradients in means and variances of f to gradients in q(u), for a fixed posterior."""

    A: Float[Tensor, "m n"]
    u_chol: Float[Tensor, "m m"]
    kl: tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]
    """β times the gradients of KL in u_mean and u_chol."""

    @classmethod
    def of(
        cls, posterior: SparsePosterior, X: Float[Tensor, "n d"], beta: float
    ) -> "ObjectivePullback":
        """Return the map at a posterior for examples X."""
        with torch.enable_grad():
            kl = torch.autograd.grad(beta * posterior.kl(), (posterior.u_mean, posterior.u_chol))
        A = posterior.features(X).A
        return cls(A, posterior.u_chol.detach().tril(), (kl[0], kl[1].tril()))

    def __call__(self, by_mean: Draws, by_variance: Draws) -> dict[str, Float[Tensor, "r ..."]]:
        """Return draws of the gradients in ``u_mean`` and ``u_chol``."""
        n = self.A.shape[-1]
        by_u_mean = self.kl[0] - by_mean @ self.A.mT
        by_u_chol = torch.stack([self.kl[1] - self._chol_slope(g) for g in by_variance])
        return {"u_mean": by_u_mean / n, "u_chol": by_u_chol / n}

    def _chol_slope(self, g: Float[Tensor, " n"]) -> Float[Tensor, "m m"]:
        return 2 * ((self.A * g) @ (self.A.mT @ self.u_chol)).tril()


# The paper calls the squared error of single draws "bias" and takes bMC with 10,000 samples as the
# truth. Here the truth is exact, bias and variance are separated, and the error of the paper's
# truth is measured as well.


Arrays = dict[str, NDArray[np.float32]]
Blocks = Mapping[str, Tensor]

_TIMINGS = 5
_TRUTH, _TIMING, _RULES = range(1, 4)
"""Streams of random numbers."""


def run_gradients(
    cell: GradientCell, data: CellData, monitors: Sequence[Monitor] = ()
) -> tuple[GradientOutcome, Arrays]:
    """Draw gradients of the objective in q(u), and compare them with the exact gradient.

    Returns the outcome, and the statistics of each draw under ``{statistic}.{rule label}.{block}``,
    in the units of the outcome's rows. The monitors are called after each rule.
    """
    since = time.process_time()
    seed = (cell.seed, cell.repeat)
    state = GradientState.of(cell, data)
    exact = state.exact()
    timing = generator_of(*seed, _TIMING)
    rivals = {rule.label: partial(state.marginal_draws, rule, 1, timing) for rule in cell.rules}
    seconds = least_seconds(rivals, _TIMINGS)
    rows: list[GradientRow] = []
    arrays: Arrays = {}
    for number, rule in enumerate(cell.rules):
        draws = state.draws(rule, cell.draws, generator_of(*seed, _RULES, number))
        for block, truth in exact.items():
            flat = draws[block].flatten(1)
            rows.append(_row(rule, block, flat, truth, seconds[rule.label]))
            each = EachDraw.of(flat, truth)
            for statistic in ("alignment", "squared_norm", "squared_error"):
                values = getattr(each, statistic).float().numpy()
                arrays[f"{statistic}.{rule.label}.{block}"] = values
        report_step(monitors, "gradients", number + 1, len(cell.rules))
    paper_truth = RuleFacts(name="bmc", samples=cell.truth_samples)
    draws = state.draws(paper_truth, 1, generator_of(*seed, _TRUTH))
    truth_error = {
        block: float(EachDraw.of(draws[block].flatten(1), truth).squared_error)
        for block, truth in exact.items()
    }
    outcome = GradientOutcome(
        rows=tuple(rows), truth_error=truth_error, seconds=time.process_time() - since
    )
    return outcome, arrays


@final
@dataclass(frozen=True)
class GradientState:
    """The untrained model at which gradients are drawn."""

    likelihood: Likelihood
    y: Tensor
    marginals: Marginals
    pullback: ObjectivePullback

    @classmethod
    def of(cls, cell: GradientCell, data: CellData) -> "GradientState":
        """Return the state right after initialisation, with q(u) at the prior."""
        X, y = ScaledRows.of(data, cell.task).train
        model = paper_model(cell, X, y)
        marginals = model.posterior.predict(X)
        pullback = ObjectivePullback.of(model.posterior, X, cell.beta)
        return cls(model.likelihood, y, marginals, pullback)

    def marginal_draws(
        self, rule: RuleFacts, repeats: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return draws of the gradients in means and variances."""
        resolved = resolve_rule(rule.rule(), self.likelihood)
        return gradient_draws(resolved, self.likelihood, self.y, self.marginals, repeats, generator)

    def draws(
        self, rule: RuleFacts, repeats: int, generator: torch.Generator | None = None
    ) -> Blocks:
        """Return draws of the gradients in u_mean and u_chol."""
        return self.pullback(*self.marginal_draws(rule, repeats, generator))

    def exact(self) -> Blocks:
        """Return the exact gradients, flattened, of the blocks where they are not 0.

        The gradient in u_chol is 0 if all means of a probit model are 0. Then no relative error is
        defined, and the block is left out.
        """
        blocks = {name: draws[0].flatten() for name, draws in self.draws(EXACT, 1).items()}
        return {name: gradient for name, gradient in blocks.items() if bool(gradient.any())}


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
