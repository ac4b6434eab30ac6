"""Compute log E_q[p(y|f)] and E_q[log p(y|f)] for public callers, with checked arguments."""

import math

import torch
from jaxtyping import Num
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError, refuse, require_all
from directgp.integration.adaptive import adaptive_gibbs, adaptive_log_expectation
from directgp.integration.contract import ClosedFormGibbs, FlatExamples, has, log_expectations_of
from directgp.integration.gibbs import gibbs_term
from directgp.integration.nodes import NATS
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import Likelihood, broadcast_shape, check_shape
from directgp.likelihoods.capabilities import ClosedFormLogPredictive
from directgp.likelihoods.own import check_smooth, probes, written_by_user
from directgp.log_expectations.rule import ClosedForm, Quadrature, Rule
from directgp.registry import LARGEST, MAX_COUNT, RULES
from directgp.shapes import Targets, Values

_ROOM = 1e4
"""The root of the largest number over this: the sum of 10⁸ squares is finite."""


def resolve_rule(rule: Rule | str, likelihood: Likelihood) -> Rule:
    """Return the rule of that name; "auto" is the closed form if there is one, else quadrature."""
    if rule != "auto":
        return named_rule(rule)
    return ClosedForm() if has(likelihood, ClosedFormLogPredictive) else Quadrature()


def named_rule(rule: Rule | str) -> Rule:
    """Return the rule of that name, with its default settings; a `Rule` as it is."""
    if isinstance(rule, Rule):
        return rule
    if rule not in RULES:
        refuse("rule", f"'auto', one of {sorted(RULES)} or a Rule", repr(rule))
    default: Rule = RULES[rule].make()
    return default


def log_expectation(
    likelihood: Likelihood,
    y: Targets,
    mean: Values,
    variance: Values,
    rule: Rule | str = "auto",
    generator: torch.Generator | None = None,
) -> Values:
    """Compute log E_q[p(y given f)] for each example, with q(f) = N(mean, variance).

    Parameters
    ----------
    likelihood : Likelihood
        p(y given f).
    y : tensor of shape (..., n)
        Targets.
    mean, variance : tensor of shape (..., n)
        Marginals; the three shapes broadcast.
    rule : Rule or {"auto", "closed_form", "quadrature", "bmc", "smooth_bmc", "ups"}
        Method for value and gradient. "auto" is exact; the other names are rules with default
        settings (smooth_bmc with ν = 1e-4, as in the authors' code).
    generator : torch.Generator
        Source of the Monte Carlo rules' draws; freshly seeded by default.

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
    values = resolve_rule(rule, likelihood)(likelihood, y, mean, variance, generator=generator)
    return _defined("log_expectation", values)


def expected_log_prob(likelihood: Likelihood, y: Targets, mean: Values, variance: Values) -> Values:
    """Compute the ELBO's term E_q[log p(y given f)] of each example, by formula or quadrature.

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
    return _defined("expected_log_prob", gibbs_term(likelihood, y, mean, variance))


def _defined(who: str, values: Values) -> Values:
    """Return the values; raise `NumericalError` if one is not finite."""
    undefined = ~torch.isfinite(values)
    if bool(undefined.any()):
        index = tuple(undefined.nonzero()[0].tolist())
        raise NumericalError(
            f"{who} cannot be computed at index {index}: it is beyond {values.dtype}, or so are "
            "numbers on the way to it. Check the target, mean and variance there."
        )
    return values


def check_arguments(
    who: str, likelihood: Likelihood, y: Targets, mean: Values, variance: Values
) -> None:
    """Raise `InvalidInputError` for targets, marginals or shapes out of range."""
    if not isinstance(likelihood, Likelihood):
        name = type(likelihood).__name__
        refuse(f"likelihood of {who}", "a directgp.likelihoods.Likelihood", name)
    shapes = [tuple(tensor.shape) for tensor in (y, mean, variance)]
    # A column y would broadcast to an n × n table.
    lengths = {shape[-1] if shape else 1 for shape in shapes}
    several = likelihood.num_latent > 1
    # Each target has several latents, whose axis it does not have.
    rows = (*shapes[0][:-1], 1, *shapes[0][-1:]) if several else shapes[0]
    shape = broadcast_shape(rows, *shapes[1:])
    if shape is None or len(lengths) > 1 or (several and shape != shapes[1]):
        latents = (
            f"y (..., n), the others (..., {likelihood.num_latent}, n)," if several else "(..., n)"
        )
        raise InvalidInputError(
            f"y, mean and variance of {who} must have shapes {latents} with one n. "
            f"Got {shapes[0]}, {shapes[1]} and {shapes[2]}. Flatten a column y with y.reshape(-1)."
        )
    check_marginals(who, mean, variance)
    if not likelihood.additive:
        # f is a log rate, a logit or, for softplus, a rate: quadrature has no digits beyond.
        most = float(MAX_COUNT)
        require_all(mean.abs() <= most, mean, f"mean of {who}", f"of a magnitude up to {most:.1e}")
        wide = variance.double() <= most**2
        require_all(wide, variance, f"variance of {who}", f"at most {most**2:.1e}")
    likelihood.check_targets(y)
    check_magnitude(f"y of {who}", y)
    check_shape(likelihood, shape)


def check_marginals(who: str, mean: Values, variance: Values) -> None:
    """Raise `InvalidInputError` for marginals not floating, not finite or of a variance ≤ 0."""
    for name, values in (("mean", mean), ("variance", variance)):
        if not values.is_floating_point():
            refuse(f"{name} of {who}", "of a floating dtype", values.dtype)
    check_device(f"device of {who}", mean.device)
    check_magnitude(f"mean of {who}", mean)
    positive = torch.isfinite(variance) & (variance > 0)
    require_all(positive, variance, f"variance of {who}", "positive and finite")
    most = variance.double() <= LARGEST
    require_all(most, variance, f"variance of {who}", f"at most {LARGEST:g}")


def check_device(who: str, device: torch.device) -> None:
    """Raise `InvalidInputError` for a device without float64, such as Apple's MPS."""
    if device.type in ("cpu", "cuda"):
        return
    try:
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, TypeError):
        got = f"{device.type!r}, which has no float64 here"
        remedy = "Integrals need float64, whatever the dtype of training. Use 'cpu' or 'cuda'."
        refuse(who, "one that computes in float64", got, remedy)


def check_magnitude(who: str, values: Num[Tensor, "..."]) -> None:
    """Raise `InvalidInputError` for NaN, infinity and numbers whose squares may overflow."""
    require_all(torch.isfinite(values), values, who, "finite")
    if values.is_floating_point():
        most = min(LARGEST, math.sqrt(torch.finfo(values.dtype).max) / _ROOM)
        remedy = "Give it in another unit."
        require_all(values.abs() <= most, values, who, f"of a magnitude up to {most:.2g}", remedy)


_PROBED = 8
"""Number of targets for which the integrals of a likelihood are checked."""

_VARIANCES = (0.01, 1.0, 9.0)
"""Variances of q for which they are checked."""

_SLACK = 1e-8
"""Largest relative difference of two quadratures; both are right to 1e-9."""


@torch.no_grad()
def check_own(likelihood: Likelihood, y: Targets) -> None:
    """Raise `InvalidInputError` if claims of a user's likelihood are wrong for these targets.

    `TrapezoidSums` are right only if the density has one peak and is analytic in the strip, and
    samplers rely on `log_concave`. Likelihoods of directgp and other integrators are not probed.
    """
    integration = likelihood.integration
    claims = integration.log_concave or integration.summable
    if not claims or likelihood.num_latent > 1:
        return
    if has(likelihood, ClosedFormLogPredictive) and has(likelihood, ClosedFormGibbs):
        return
    if not written_by_user(likelihood):
        return
    rows = torch.linspace(0, y.numel() - 1, _PROBED, device=y.device).round().long().unique()
    subset = likelihood.frozen().for_rows(rows)
    targets = y.reshape(-1)[rows].double()
    check_smooth(subset, targets)
    if not isinstance(integration, TrapezoidSums):
        return
    # q is near the highest point of p: elsewhere both may be 0.
    places = probes(subset, targets)
    heights = subset.log_kernel(targets, places).nan_to_num(nan=-torch.inf)
    mean = places.gather(0, heights.argmax(0, keepdim=True))[0]
    sums = integration.gaussian_sums
    for variance in _VARIANCES:
        examples = FlatExamples(subset, targets, mean, torch.full_like(mean, variance))
        pairs = (
            (log_expectations_of(examples), adaptive_log_expectation(examples)),
            (sums.over_separate_nodes(examples, NATS), adaptive_gibbs(examples)),
        )
        for by_sums, searched in pairs:
            gap = (by_sums.value - searched.value).abs() / (1 + searched.value.abs())
            if not bool((gap < _SLACK).all()):
                name = type(likelihood).__name__
                far = float(gap.nan_to_num(torch.inf).max())
                raise InvalidInputError(
                    f"strip and growth of {name} must be right for p(y given f). Got "
                    f"{integration.strip:.4g} and {integration.growth:.4g}, with which an integral "
                    f"over f is wrong by {far:.1e}. Correct them, or leave integration out."
                )
