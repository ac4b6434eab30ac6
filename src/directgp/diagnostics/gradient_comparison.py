"""Draws of a rule's gradient, compared with the exact gradient block by block."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.diagnostics.gradient_statistics import GradientStatistics, block_statistics
from directgp.errors import require
from directgp.likelihoods import Likelihood
from directgp.log_expectations import Rule
from directgp.log_expectations.base import Moment
from directgp.log_expectations.evaluate import resolve_rule
from directgp.shapes import Marginals

Gradients = Mapping[str, Float[Tensor, "r ..."]]
"""Draws of the gradient of each parameter block, along the first axis."""

Pullback = Callable[[Float[Tensor, "r *batch n"], Float[Tensor, "r *batch n"]], Gradients]
"""From draws of ∂_μ and ∂_v to draws of the gradients of named parameter blocks."""

# With a hundred samples a draw, this many elements are 50 MB.
_ELEMENTS_AT_ONCE = 2**16


def marginal_blocks(
    by_mean: Float[Tensor, "r *batch n"], by_variance: Float[Tensor, "r *batch n"]
) -> Gradients:
    """Name the gradients of the marginals themselves ``mean`` and ``variance``: no pullback."""
    return {"mean": by_mean, "variance": by_variance}


def compare_gradients(
    rule: Rule,
    likelihood: Likelihood,
    y: Num[Tensor, "..."],
    marginals: Marginals,
    *,
    repeats: int = 100,
    generator: torch.Generator | None = None,
    pullback: Pullback = marginal_blocks,
    exact: Rule | None = None,
    step: int = 0,
) -> dict[str, GradientStatistics]:
    """Compare draws g of a rule's gradient of Σ_i log E_q[p(y_i given f)] with the exact g*.

    Parameters
    ----------
    rule : Rule
        The rule to judge.
    likelihood : Likelihood
        Its parameters are held fixed.
    y : tensor
        Targets (..., n).
    marginals : Marginals
        Where the gradients are taken, shape (..., n).
    repeats : int
        Number R ≥ 3 of independent draws. All are kept: R numbers for each parameter.
    generator : torch.Generator, optional
        Source of the draws.
    pullback : callable
        Maps draws of the gradients with respect to means and variances, each (r, ..., n), to
        named blocks, each (r, ...), for instance to ``u_mean`` and ``u_chol`` of a posterior. It
        may add the gradient of a KL term.
    exact : Rule, optional
        That gives g*; the closed form or quadrature by default.
    step : int
        Training step, for rules with schedules.

    Returns
    -------
    dict
        `GradientStatistics` of each block.
    """
    require(repeats >= 3, "repeats", "at least 3", repeats)
    judge = exact or resolve_rule("auto", likelihood)
    truth = gradient_draws(judge, likelihood, y, marginals, 1, generator, step)
    draws = gradient_draws(rule, likelihood, y, marginals, repeats, generator, step)
    exact_blocks, blocks = pullback(*truth), pullback(*draws)
    return {
        name: block_statistics(blocks[name].flatten(1), exact_blocks[name].flatten())
        for name in blocks
    }


def gradient_draws(
    rule: Rule,
    likelihood: Likelihood,
    y: Num[Tensor, "..."],
    marginals: Marginals,
    repeats: int = 1,
    generator: torch.Generator | None = None,
    step: int = 0,
) -> tuple[Float[Tensor, "r *batch n"], Float[Tensor, "r *batch n"]]:
    """Draws of a rule's gradient of Σ_i log E_q[p(y_i given f)] in the means and the variances.

    The arguments are those of `compare_gradients`. A deterministic rule is asked once and its
    answer repeated; another one as often as memory wants.
    """
    moment, likelihood = Moment(step, generator), likelihood.frozen()
    drawn = 1 if rule.deterministic else repeats
    at_once = max(1, _ELEMENTS_AT_ONCE // marginals.mean.numel())
    counts = [min(at_once, drawn - start) for start in range(0, drawn, at_once)]
    parts = [_gradients(rule, likelihood, y, marginals, count, moment) for count in counts]
    by_mean, by_variance = torch.cat(parts, dim=1)
    shape = (repeats, *marginals.mean.shape)
    return by_mean.expand(shape), by_variance.expand(shape)


def _gradients(
    rule: Rule,
    likelihood: Likelihood,
    y: Tensor,
    marginals: Marginals,
    count: int,
    moment: Moment,
) -> Float[Tensor, "2 r *batch n"]:
    """Gradients of the sum over examples, from one call of the rule for all repeats."""
    shape = (count, *marginals.mean.shape)
    mean, variance = (
        x.detach().double().expand(shape).clone().requires_grad_()
        for x in (marginals.mean, marginals.variance)
    )
    with torch.enable_grad():
        value = rule(likelihood, y, mean, variance, generator=moment.generator, step=moment.step)
        return torch.stack(torch.autograd.grad(value.sum(), (mean, variance)))
