"""Compute log E_q[p(y|f)] and E_q[log p(y|f)] for public callers, with checked arguments."""

import numpy as np
import torch

from directgp.errors import InvalidInputError, require
from directgp.likelihoods.base import ClosedFormLogPredictive, Likelihood
from directgp.log_expectations.closed_form import ClosedForm
from directgp.log_expectations.elbo_term import gibbs_term
from directgp.log_expectations.quadrature import Quadrature
from directgp.log_expectations.rule import Rule
from directgp.registry import RULES
from directgp.shapes import Targets, Values, require_all

_AUTO_RULES: dict[type[Likelihood], Rule] = {}


def resolve_rule(rule: Rule | str, likelihood: Likelihood) -> Rule:
    """The rule of that name; "auto" is the closed form where there is one, else quadrature."""
    if isinstance(rule, Rule):
        return rule
    if rule == "auto":
        kind = type(likelihood)
        if kind not in _AUTO_RULES:
            # Asked once for each kind: a protocol is slow to answer.
            exact = isinstance(likelihood, ClosedFormLogPredictive)
            _AUTO_RULES[kind] = ClosedForm() if exact else Quadrature()
        return _AUTO_RULES[kind]
    return named_rule(rule)


def named_rule(rule: Rule | str) -> Rule:
    """Return the rule of that name, with its default settings, or the rule that is given."""
    if isinstance(rule, Rule):
        return rule
    allowed = f"'auto', one of {sorted(RULES.names())} or a Rule"
    require(rule in RULES, "rule", allowed, repr(rule))
    found: Rule = RULES[rule].make()
    return found


def log_expectation(
    likelihood: Likelihood,
    y: Targets,
    mean: Values,
    variance: Values,
    rule: Rule | str = "auto",
    generator: torch.Generator | None = None,
) -> Values:
    """log E_q[p(y given f)] for each example, with q(f) = N(mean, variance).

    Parameters
    ----------
    likelihood : Likelihood
        p(y given f).
    y : tensor of shape (..., n)
        Targets.
    mean, variance : tensor of shape (..., n)
        Marginals; the three shapes broadcast.
    rule : Rule or {"auto", "closed_form", "quadrature", "bmc", "smooth_bmc", "ups"}
        How to get value and gradient; "auto" is exact, the other names are rules as by default
        (smooth_bmc with ν = 1e-4, as in the paper).
    generator : torch.Generator
        Randomness of the Monte Carlo rules; freshly seeded when none is given.

    Returns
    -------
    tensor of shape (..., n)
        Differentiable in mean, variance and the likelihood's parameters, in the dtype of mean.

    Examples
    --------
    >>> import torch, directgp
    >>> from directgp.likelihoods import Poisson
    >>> y, mean, variance = torch.tensor([300.0]), torch.tensor([0.5]), torch.tensor([0.3])
    >>> directgp.log_expectation(Poisson(), y, mean, variance)
    tensor([-50.6238])
    """
    check_arguments("log_expectation", likelihood, y, mean, variance)
    return resolve_rule(rule, likelihood)(likelihood, y, mean, variance, generator=generator)


def expected_log_prob(likelihood: Likelihood, y: Targets, mean: Values, variance: Values) -> Values:
    """E_q[log p(y given f)] for each example: the ELBO's term, by formula or quadrature.

    Arguments and result are those of `log_expectation`.

    Examples
    --------
    >>> import torch, directgp
    >>> from directgp.likelihoods import Probit
    >>> one = torch.ones(1)
    >>> directgp.expected_log_prob(Probit(), one, one, one)
    tensor([-0.3593])
    """
    check_arguments("expected_log_prob", likelihood, y, mean, variance)
    return gibbs_term(likelihood, y, mean, variance)


def check_arguments(
    who: str, likelihood: Likelihood, y: Targets, mean: Values, variance: Values
) -> None:
    """Refuse targets, marginals and shapes that cannot be meant."""
    require(
        isinstance(likelihood, Likelihood),
        f"likelihood of {who}",
        "a directgp.likelihoods.Likelihood",
        type(likelihood).__name__,
    )
    shapes = [tuple(tensor.shape) for tensor in (y, mean, variance)]
    if len(set(shapes)) > 1:
        _check_broadcast(who, shapes)
    for name, values in (("mean", mean), ("variance", variance)):
        floating = values.is_floating_point()
        require(floating, f"{name} of {who}", "of a floating dtype", values.dtype)
    likelihood.check_targets(y)
    likelihood.check_shape(np.broadcast_shapes(*shapes))
    require_all(torch.isfinite(mean), mean, f"mean of {who}", "finite")
    positive = torch.isfinite(variance) & (variance > 0)
    require_all(positive, variance, f"variance of {who}", "positive and finite")


def _check_broadcast(who: str, shapes: list[tuple[int, ...]]) -> None:
    """Refuse shapes that do not broadcast, and a column that would make an n × n table."""
    lengths = {shape[-1] if shape else 1 for shape in shapes}
    try:
        np.broadcast_shapes(*shapes)
        fits = len(lengths) == 1
    except ValueError:
        fits = False
    if not fits:
        raise InvalidInputError(
            f"y, mean and variance of {who} must have shapes (..., n) with one n. "
            f"Got {shapes[0]}, {shapes[1]} and {shapes[2]}. Flatten a column y with y.reshape(-1)."
        )
