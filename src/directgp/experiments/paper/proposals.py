"""How many proposals a draw costs: of the paper's sampler, as seen and in theory, and of ours."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.experiments.paper.results import Measured
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ExactProductSampler
from directgp.likelihoods.unimodal import UnimodalInF
from directgp.log_expectations.product_density import peak_of
from directgp.log_expectations.samplers.hat import build_hat
from directgp.log_expectations.samplers.paper import draw_as_paper

Row = Float[Tensor, " n"]

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
