"""Compute the data term of the ELBO, E_q[log p(y|f)], by formula or by the integrator."""

from typing import cast

import torch

from directgp.integration.contract import (
    ClosedFormGibbs,
    Density,
    GibbsSlopes,
    IntegrationMethod,
    has,
)
from directgp.integration.evaluate import Rows, estimate_rows, evaluate, of_one_shape
from directgp.integration.nodes import NATS
from directgp.numerics.autograd import Slopes
from directgp.shapes import Targets, Values

NATS_OF_FLOAT32 = 21.0
"""Values err by some 1e-9, and slopes by less than the precision of float32, 1e-7."""


def gibbs_term(likelihood: Density, y: Targets, mean: Values, variance: Values) -> Values:
    """Compute E_q[log p(y given f)] for q(f) = N(mean, variance), by closed form or quadrature.

    Computed in float64, returned in the dtype of the mean; targets are not checked.
    """
    rows = of_one_shape(y, mean, variance, likelihood.num_latent)
    if has(likelihood, ClosedFormGibbs):
        return cast(ClosedFormGibbs, likelihood).expected_log_prob(*rows)
    return evaluate(_method(likelihood, mean.dtype), likelihood, rows)


def gibbs_slopes(likelihood: Density, rows: Rows) -> Slopes | None:
    """Return E_q[log p(y given f)] and slopes without a graph, or None where they need one."""
    if not has(likelihood, ClosedFormGibbs):
        return estimate_rows(_method(likelihood, rows[1].dtype), likelihood, rows)
    if not has(likelihood, GibbsSlopes):
        return None
    wide = (row.double() for row in rows)
    return cast(GibbsSlopes, likelihood).expected_log_prob_slopes(*wide)


def gibbs_fixed_work(likelihood: Density) -> bool:
    """Return whether `gibbs_term` does the same operations for all numbers."""
    integration = likelihood.integration
    if not integration.fixed_work:
        return False
    closed = has(likelihood, ClosedFormGibbs)
    return closed or integration.of_log_density(likelihood, NATS).fixed_work


def _method(likelihood: Density, dtype: torch.dtype) -> IntegrationMethod:
    """Return the method for E_q[log p], as accurate as the dtype of the mean needs."""
    nats = NATS_OF_FLOAT32 if dtype == torch.float32 else NATS
    return likelihood.integration.of_log_density(likelihood, nats)
