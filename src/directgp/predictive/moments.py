"""Compute mean and variance of y at new inputs; check the arguments of public functions."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import UnsupportedError, require, require_all
from directgp.integration.adaptive import Adaptive
from directgp.integration.nodes import blocks_by_nodes, step_for
from directgp.likelihoods.base import Likelihood, broadcast_shape
from directgp.likelihoods.capabilities import Classes, ClosedFormMoments, has_two_labels
from directgp.log_expectations.api import check_marginals, resolve_rule
from directgp.shapes import Marginals, Points, Row, Values

NodeColumn = Float[Tensor, "k 1"]

_OPEN_UNIT_INTERVAL = "between 0 and 1, ends excluded"


def wide_marginals(who: str, marginals: Marginals) -> tuple[Values, Values]:
    """Return mean and variance in float64; raise `InvalidInputError` if they are not valid."""
    mean = marginals.mean
    variance = marginals.variance
    alike = f"of the shape of the mean, {tuple(mean.shape)}"
    shape = tuple(variance.shape)
    require(mean.shape == variance.shape, f"variance of {who}", alike, f"shape {shape}")
    remedy = "Reshape it to (1,)."
    require(mean.dim() > 0, f"mean of {who}", "of shape (..., n)", "a scalar", remedy)
    check_marginals(who, mean, variance)
    return mean.double(), variance.double()


def example_rows(likelihood: Likelihood, mean: Values) -> Values:
    """Return the mean of f, or that of the first of several latents: one value an example."""
    return mean if likelihood.num_latent == 1 else mean[..., 0, :]


def wide_targets(who: str, y: Num[Tensor, "..."], rows: Values) -> Values:
    """Return targets in float64; raise `InvalidInputError` if not finite or of a wrong shape."""
    fits = y.shape[-1:] == rows.shape[-1:] and broadcast_shape(y.shape, rows.shape) is not None
    allowed = f"of shape (..., {rows.shape[-1]}), broadcasting with {tuple(rows.shape)}"
    require(fits, f"y of {who}", allowed, f"shape {tuple(y.shape)}", "Flatten a column first.")
    require_all(torch.isfinite(y), y, f"y of {who}", "finite")
    return y.double()


def wide_levels(who: str, levels: Sequence[float] | Values, rows: Values) -> Float[Tensor, "k ..."]:
    """Return levels in float64, followed by as many axes as the rows have."""
    tensor = torch.as_tensor(levels, dtype=torch.float64, device=rows.device)
    name = f"levels of {who}"
    require(tensor.dim() == 1, name, "a list of numbers", f"shape {tuple(tensor.shape)}")
    require_all((tensor > 0) & (tensor < 1), tensor, name, _OPEN_UNIT_INTERVAL)
    return tensor.reshape(-1, *([1] * rows.dim()))


def check_coverage(who: str, coverage: float) -> None:
    """Raise `InvalidInputError` unless 0 < coverage < 1."""
    require(0 < coverage < 1, f"coverage of {who}", _OPEN_UNIT_INTERVAL, coverage)


# With step h the sum errs by growth(d)·e^{−2πd/h} for any d, where growth is the ratio of the
# integrand on the line Im = d to that on the real line (Trefethen and Weideman, SIAM Review, 2014).


DROP = 32.0
"""The sum ends where a density has fallen by e^−32."""

REACH = math.sqrt(2 * DROP)
"""Standard deviations of q on either side, where its density has fallen by e^−32."""


def log_gamma_step(width: Values) -> Values:
    """Return the step for a density like that of log G, G ~ Gamma(a), of width τ = 1/√a.

    growth(d) = (cos d)^−a for d up to π/2, nearly best at d = arctan 8τ.
    """
    x = math.sqrt(2 * DROP) * width
    return 2 * math.pi * torch.arctan(x) / (DROP * (1 + torch.log1p(x**2) / x**2))


def integrate_in_batches(
    integral: Callable[..., Float[Tensor, " r"]],
    likelihood: Likelihood,
    needed: Values,
    *examples: Values,
) -> Values:
    """Call ``integral(number, likelihood, *examples)`` on examples that need about `number` nodes.

    `needed`, of shape (..., n), is the number of nodes of each example, and `examples` broadcast
    with it. The integral returns one value for each of its examples.
    """
    flat = likelihood.take(torch.ones_like(needed, dtype=torch.bool))
    columns = [example.expand(needed.shape).reshape(-1) for example in examples]
    order = []
    parts = []
    for number, index in blocks_by_nodes(needed.reshape(-1)):
        order.append(index)
        parts.append(integral(number, flat.take(index), *(column[index] for column in columns)))
    values = torch.cat(parts)
    return torch.empty_like(values).index_copy(0, torch.cat(order), values).reshape(needed.shape)


def midpoints(number: int, row: Row) -> NodeColumn:
    """Return the midpoints of equal steps from 0 to 1, in dtype and on the device of the row."""
    return (torch.arange(number, dtype=row.dtype, device=row.device)[:, None] + 0.5) / number


def normal_average(
    function: Callable[[Points], Points],
    mean: Row,
    variance: Row,
    z: NodeColumn,
    spacing: NodeColumn | float,
) -> Row:
    """Compute E_q[function(f)] at f = μ + √v·z, for nodes of this spacing; differentiable."""
    weight = torch.exp(-0.5 * z**2) * spacing
    return (weight * function(mean + torch.sqrt(variance) * z)).sum(0) / weight.sum()


def even_nodes(number: int, row: Row, reach: float) -> NodeColumn:
    """Return midpoints of equal steps from −reach to reach, as `midpoints` for this row."""
    return reach * (2 * midpoints(number, row) - 1)


_MOMENT_REACH = 18.0
"""Standard deviations of q on either side; the integrand of E_q[e^f], v = 100, peaks at 10."""


_STEPS_WITHOUT_STRIP = 48
"""Steps from μ to μ + √v for a likelihood that claims no strip, so that may have kinks in f."""


def predictive_mean(likelihood: Likelihood, marginals: Marginals) -> Values:
    """Compute E[y] = E_q[E[y given f]].

    Shape ``(..., n)``, dtype of the mean; differentiable. NaN where the likelihood has no mean.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Logistic
    >>> predictive_mean(Logistic(), Marginals(torch.tensor([2.0]), torch.tensor([4.0])))
    tensor([0.7752])
    """
    mean, variance = wide_marginals("predictive_mean", marginals)
    if isinstance(likelihood, ClosedFormMoments):
        value = likelihood.predictive_mean(mean, variance)
    elif has_two_labels(likelihood):
        value = label_probability(likelihood, 1.0, mean, variance)
    else:
        value = _integrate(_expected, likelihood, mean, variance)
    return value.to(marginals.mean.dtype)


def centre(likelihood: Likelihood, marginals: Marginals) -> Values:
    """Return E[y]; for additive noise, which may have no mean, the mean of f."""
    return marginals.mean if likelihood.additive else predictive_mean(likelihood, marginals)


def square_errors(likelihood: Likelihood, y: Num[Tensor, " n"], marginals: Marginals) -> Row:
    """Return (y − E[y])² of each example; for classes half of Brier's Σ_k (1{y=k} − P(Y=k))²."""
    if isinstance(likelihood, Classes):
        chances = class_log_probabilities(likelihood, marginals).exp()
        chances[y.long(), torch.arange(len(y), device=y.device)] -= 1
        return 0.5 * chances.square().sum(0)
    return (y - centre(likelihood, marginals)).square()


def class_log_probabilities(likelihood: Classes, marginals: Marginals) -> Float[Tensor, "c n"]:
    """Compute log P(Y = k) of every class, in the dtype of the mean; without gradients."""
    mean, variance = wide_marginals("class probabilities", marginals)
    with torch.no_grad():
        return likelihood.log_class_probabilities(mean, variance).to(marginals.mean.dtype)


def predictive_variance(likelihood: Likelihood, marginals: Marginals) -> Values:
    """Compute Var[y] = E_q[Var[y given f]] + Var_q[E[y given f]].

    Shape ``(..., n)``, dtype of the mean; differentiable. Infinite where the likelihood's is.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Gaussian
    >>> marginals = Marginals(torch.tensor([0.0]), torch.tensor([0.75]))
    >>> round(predictive_variance(Gaussian(noise=0.25), marginals).item(), 6)
    1.0
    """
    mean, variance = wide_marginals("predictive_variance", marginals)
    if isinstance(likelihood, ClosedFormMoments):
        value = likelihood.predictive_variance(mean, variance)
    elif has_two_labels(likelihood):
        zero, one = (label_probability(likelihood, y, mean, variance) for y in (0.0, 1.0))
        value = zero * one
    else:
        value = _integrate(_spread, likelihood, mean, variance)
    return value.to(marginals.mean.dtype)


def label_probability(
    likelihood: Likelihood, label: float, mean: Values, variance: Values
) -> Values:
    """Return P(Y = label) for a likelihood of two labels, accurate also where it is tiny."""
    y = torch.full_like(mean, label)
    return torch.exp(resolve_rule("auto", likelihood)(likelihood, y, mean, variance))


def _integrate(
    integral: Callable[..., Values], likelihood: Likelihood, mean: Values, variance: Values
) -> Values:
    """Integrate a function that is analytic in the likelihood's strip over each q."""
    if isinstance(likelihood, Classes):
        raise UnsupportedError(
            f"The mean of y is not defined for the classes of {type(likelihood).__name__}. Use "
            "log_class_probabilities."
        )
    if likelihood.num_latent > 1:
        raise UnsupportedError(
            "Mean and variance of y need predictive_mean(mean, variance) and predictive_variance "
            "(mean, variance) of a likelihood of several latents. "
            f"{type(likelihood).__name__} has none. Give it both."
        )
    deviation = torch.sqrt(variance.detach())
    strip = likelihood.integration.strip_right_of(
        likelihood, mean.detach() - _MOMENT_REACH * deviation
    )
    needed = 2 * _MOMENT_REACH * deviation / step_for(deviation, strip, DROP)
    if isinstance(likelihood.integration, Adaptive):
        needed = needed.clamp(min=2 * math.asinh(_MOMENT_REACH) * _STEPS_WITHOUT_STRIP)
    return integrate_in_batches(integral, likelihood, needed, mean, variance)


def _expected(number: int, likelihood: Likelihood, mean: Values, variance: Values) -> Values:
    """Compute E_q[E[y given f]]."""
    nodes = _nodes(likelihood, number, mean)
    return normal_average(likelihood.conditional_mean, mean, variance, *nodes)


def _spread(number: int, likelihood: Likelihood, mean: Values, variance: Values) -> Values:
    """Compute E_q[Var[y given f] + (E[y given f] − E y)²], which does not cancel."""
    expected = _expected(number, likelihood, mean, variance)

    def square(f: Values) -> Values:
        return likelihood.conditional_variance(f) + (likelihood.conditional_mean(f) - expected) ** 2

    return normal_average(square, mean, variance, *_nodes(likelihood, number, mean))


def _nodes(likelihood: Likelihood, number: int, row: Row) -> tuple[NodeColumn, NodeColumn | float]:
    """Return nodes z and their spacing, up to a factor."""
    if not isinstance(likelihood.integration, Adaptive):
        return even_nodes(number, row, _MOMENT_REACH), 1.0
    # A jump J of the slope in z at a kink errs by J·φ(z)h²/8. With z = sinh t the step h grows as
    # φ falls, and the error is at most J·2.2e-5 for 48 steps.
    t = even_nodes(number, row, math.asinh(_MOMENT_REACH))
    return torch.sinh(t), torch.cosh(t)
