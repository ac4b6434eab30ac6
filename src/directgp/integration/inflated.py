"""Integrate densities with extra zeros by the integrals of the density without them."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
from typing_extensions import override

from directgp.integration.adaptive import POINTS
from directgp.integration.contract import (
    NEEDED_NODES,
    Density,
    Estimate,
    ExtraZeros,
    FlatExamples,
    IntegrationMethod,
    Integrator,
    Nodes,
)
from directgp.integration.evaluate import gather
from directgp.integration.gaussian_sums import GaussianSums
from directgp.integration.gibbs import gibbs_slopes
from directgp.integration.nodes import recorded_nodes
from directgp.shapes import Row


@final
@dataclass(frozen=True, kw_only=True)
class InflatedIntegrals(Integrator):
    """Integrals of a density with `ExtraZeros`.

    E_q[p(0)] = π + (1−π) E_q[p₀(0)], so that log E_q[p] is a function of log E_q[p₀]. The log of
    p(y) for y > 0 differs from that of p₀(y) by a constant; E_q[log p(0)] is summed over q.

    Parameters
    ----------
    zeros : GaussianSums
        The sums over q of log p(0 given f).
    """

    zeros: GaussianSums = field()

    @override
    def of_density(self, density: Density, nodes: Nodes = NEEDED_NODES) -> IntegrationMethod:
        return IntegrationMethod(POINTS, partial(self._of_density, nodes=nodes))

    @override
    def of_log_density(self, density: Density, nats: float) -> IntegrationMethod:
        return IntegrationMethod(recorded_nodes(), partial(self._of_log_density, nats=nats))

    def _of_density(self, examples: FlatExamples, nodes: Nodes) -> Estimate:
        likelihood: Any = examples.likelihood
        base: Density = likelihood.base
        without = base.integration.of_density(base, nodes).estimate(
            examples._replace(likelihood=base)
        )
        return inflated(likelihood, examples.y, without)

    def _of_log_density(self, examples: FlatExamples, nats: float) -> Estimate:
        zero = examples.y == 0
        parts = []
        for mask in (zero, ~zero):
            index = mask.nonzero().squeeze(-1)
            if not len(index):
                continue
            subset = examples.take(index)
            if mask is zero:
                parts.append((index, self.zeros.over_separate_nodes(subset, nats).columns))
                continue
            likelihood: Any = subset.likelihood
            base = Estimate.of(gibbs_slopes(likelihood.base, subset[1:]) or ())
            value, _, by_odds = likelihood.inflate(subset.y, base.value)
            parameters = (by_odds, *base.parameters) if likelihood.learned() else ()
            parts.append((index, (value, *base.columns[1:3], *parameters)))
        if not parts:
            return self.zeros.over_separate_nodes(examples, nats)
        return Estimate.of(gather(parts))


def inflated(likelihood: ExtraZeros, y: Row, base: Estimate) -> Estimate:
    """Return log E_q[p] of a density with extra zeros, given that of its base."""
    density: Any = likelihood
    value, weight, by_odds = likelihood.inflate(y, base.value)
    estimate = base.transformed(value, weight)
    if not density.learned():
        return estimate
    parameters = estimate.parameters
    if parameters and parameters[0].requires_grad:
        with torch.enable_grad():
            parameters = (parameters[0] + by_odds.detach() * likelihood.zero_odds,)
    else:
        parameters = by_odds.detach(), *parameters
    return replace(estimate, parameters=parameters)
