"""Any GPyTorch likelihood of one latent value, through its log p(y given f)."""

from typing import Any, final

import gpytorch
import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint
from typing_extensions import override

from directgp.checks import require_all
from directgp.errors import UnsupportedError
from directgp.likelihoods.base import Derivatives, Likelihood, check_finite

Values = Float[Tensor, "..."]


@final
class Adapted(Likelihood):
    """log p(y given f) = ``source(f).log_prob(y)``, in float64 and with derivatives by autograd.

    Parameters
    ----------
    source : gpytorch.likelihoods.Likelihood
        Gives a distribution of the shape of f. Its parameters broadcast with f.
    args, kwargs
        What else its ``forward`` is given.
    """

    # Not known to be; nor are derivatives beyond the first, for there may be kinks.
    log_concave = False

    def __init__(
        self, source: gpytorch.likelihoods.Likelihood, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        super().__init__()
        self.source = source
        self._args, self._kwargs = args, kwargs

    @override
    def take(self, index: Tensor) -> "Adapted":
        if all(constant.numel() == 1 for constant in self._constants()):
            return self
        twin = Adapted(self.source, self._args, self._kwargs)
        twin._taken, twin._frozen = (*self._taken, index), self._frozen
        return twin

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        value: Tensor = self._given(f).log_prob(y)
        return value

    @override
    def value_and_slope(self, y: Values, f: Values) -> tuple[Values, Values]:
        with torch.enable_grad():
            f = f.detach().requires_grad_()
            value = self.log_kernel(y, f)
            (slope,) = torch.autograd.grad(value.sum(), f)
        return value.detach(), slope

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        with torch.enable_grad():
            f = f.detach().requires_grad_()
            value = self.log_kernel(y, f)
            (first,) = torch.autograd.grad(value.sum(), f, create_graph=True)
            # A slope that does not depend on f, as that of Laplace's density, has no graph.
            (second,) = (
                torch.autograd.grad(first.sum(), f, allow_unused=True, materialize_grads=True)
                if first.requires_grad
                else (torch.zeros_like(f),)
            )
        return Derivatives(value.detach(), first.detach(), second)

    @override
    def conditional_mean(self, f: Values) -> Values:
        mean: Tensor = self._given(f).mean
        return mean

    @override
    def conditional_variance(self, f: Values) -> Values:
        variance: Tensor = self._given(f).variance
        return variance

    @override
    def check_targets(self, y: Num[Tensor, "..."] | Bool[Tensor, "..."]) -> None:
        support = getattr(self._conditional(torch.zeros_like(y).double()), "support", None)
        name = type(self.source).__name__
        if isinstance(support, Constraint):
            inside = support.check(y.double())
            require_all(inside, y, f"y of {name}", "in the support of the likelihood")
        check_finite(y, name)

    def _given(self, f: Values) -> Distribution:
        """p(y given f), refused where it is not one for each f."""
        given = self._conditional(f)
        if not isinstance(given, Distribution) or given.batch_shape != f.shape:
            raise UnsupportedError(
                f"The likelihood must be one of one latent value, whose p(y given f) has the shape "
                f"of f, {tuple(f.shape)}. Got {type(self.source).__name__}, whose p(y given f) is "
                f"{_described(given)}. Use gpytorch.mlls for likelihoods of several latent values."
            )
        return given

    def _conditional(self, f: Values) -> Any:
        """What the source makes of f, with the constants of the examples at hand, in float64."""
        named = dict((*self.source.named_parameters(), *self.source.named_buffers()))
        constants = {name: self._of_examples(value) for name, value in named.items()}
        args = tuple(self._of_examples(value) for value in self._args)
        kwargs = {name: self._of_examples(value) for name, value in self._kwargs.items()}
        return torch.func.functional_call(self.source, constants, (f, *args), kwargs)

    def _of_examples(self, value: Any) -> Any:
        """A parameter or argument for the examples taken, where it is a tensor of numbers."""
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return self._per_example(value.double()) if floating else value

    def _constants(self) -> list[Tensor]:
        """All tensors that may differ from example to example."""
        given = (*self._args, *self._kwargs.values())
        tensors = [value for value in given if isinstance(value, Tensor)]
        return [*self.source.parameters(), *self.source.buffers(), *tensors]


def _described(given: object) -> str:
    """What came in place of a distribution of the shape of f."""
    if isinstance(given, Distribution):
        return f"a {type(given).__name__} of shape {tuple(given.batch_shape + given.event_shape)}"
    return f"a {type(given).__name__}"
