"""Define the Gaussian process prior: kernel, output scale, mean and their starting values."""

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal, cast, final, get_args

import numpy as np
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean, ZeroMean
from jaxtyping import Float, Float64, Int64, Num
from torch import Tensor, nn
from torch.nn import functional

from directgp.errors import UnsupportedError, require
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import Expression
from directgp.kernels.profiles import RBF, stationary
from directgp.kernels.structured import StructuredGradient, StructuredKernel
from directgp.numerics.special import softplus, softplus_inverse
from directgp.posteriors.marginals import KernelGradient, Natural, Stationary
from directgp.registry import KernelName
from directgp.shapes import BatchedRow, Inputs, Row, Values

_SHORTENING_ROWS = 500
"""Largest number of rows in the leave-one-out predictions."""

_MIN_ROWS = 20
"""Smallest number of rows for which shorter lengthscales are tried."""

_FACTORS = (1 / 4, 1 / 16)
"""Candidate factors of the lengthscale."""

_NOISE = 0.1
"""Noise variance relative to the variance of the values."""

_LOW_SHARE = 0.1
"""If the lengthscale explains less than this share of the variance, shorter ones are tried:
training would explain everything by noise."""

_HIGH_SHARE = 0.4
"""A shorter lengthscale is used if it explains more than this share of the variance."""


def shortening(X: Inputs, values: Row, lengthscale: Values) -> float:
    """Return a factor of the lengthscale, below 1 if a shorter one explains far more variance.

    If f cannot follow the values at the start, training ends in the optimum where everything is
    noise.
    """
    if len(X) < _MIN_ROWS or not bool(values.std() > 0):
        return 1.0
    rows = evenly_spaced(len(X), _SHORTENING_ROWS, X.device)
    distances = torch.cdist(*2 * (X[rows].double() / lengthscale.double(),)).square()
    centred = values[rows].double() - values[rows].double().mean()
    if _explained_share(distances, centred) > _LOW_SHARE:
        return 1.0
    shares = {_explained_share(distances / factor**2, centred): factor for factor in _FACTORS}
    return shares[max(shares)] if max(shares) > _HIGH_SHARE else 1.0


def evenly_spaced(n: int, most: int, device: torch.device) -> Int64[Tensor, " k"]:
    """Return at most that many of the row numbers 0 to n − 1, the first and the last among them.

    In integers: float32 has none of the odd numbers beyond 2²⁴.
    """
    k = min(n, most)
    return torch.arange(k, device=device) * (n - 1) // max(1, k - 1)


def _explained_share(distances: Float[Tensor, "n n"], values: Row) -> float:
    """Return the share of the variance that leave-one-out predictions explain.

    With P = (K + noise)⁻¹, the error of leaving out row i is (P y)_i / P_ii.
    """
    K = torch.exp(-0.5 * distances)
    precision = torch.linalg.inv(K + _NOISE * torch.eye(len(K)).to(K))
    errors = (precision @ values) / precision.diagonal()
    return float(1 - errors.square().mean() / values.square().mean())


_MEDIAN_ROWS = 1000
"""Largest number of rows whose distances are computed."""


def _lengthscale(X: Inputs, ard: bool) -> Values:
    """Return √d standard deviations of each feature, or the median distance of two rows over √2.

    The two are equal for independent features of equal spread.
    """
    spread = X.std(0, correction=0)
    if ard:
        return _or_one(spread * X.shape[-1] ** 0.5)
    rows = X[evenly_spaced(len(X), _MEDIAN_ROWS, X.device)]
    distances = torch.pdist(rows)
    if len(distances) == 0:
        return X.new_ones(())
    median = _or_one(distances.median() / 2**0.5)
    return median if bool(distances.median() > 0) else _or_one(spread.square().sum().sqrt())


def _or_one(values: Values) -> Values:
    """Replace values that are not positive and finite by 1."""
    return torch.where((values > 0) & torch.isfinite(values), values, 1.0)


MeanName = Literal["zero", "constant"]
"""Mean functions of `Prior.from_data`."""

_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Maps the name of a Matérn kernel to ν."""


def _named_kernel(kernel: KernelName, X: Inputs, values: Row | None, ard: bool) -> Kernel:
    """Return the kernel of that name, with lengthscales from the data."""
    names = ["rbf", *_SMOOTHNESS]
    require(kernel in names, "kernel", f"one of {names}, or an expression", repr(kernel))
    dims = X.shape[-1] if ard else None
    covariance: Kernel = RBFKernel(ard_num_dims=dims)
    if kernel != "rbf":
        covariance = MaternKernel(_SMOOTHNESS[kernel], ard_num_dims=dims)
    lengthscale = _lengthscale(X, ard)
    if values is not None:
        lengthscale = lengthscale * shortening(X, values, lengthscale)
    covariance = covariance.to(X)
    covariance.lengthscale = lengthscale
    return covariance


@final
class Prior(nn.Module):
    """f ~ GP(mean(x), output_scale · kernel(x, x′)).

    Parameters
    ----------
    kernel : gpytorch kernel or StructuredKernel
        Any kernel of gpytorch that works on inputs of shape (n, d), or an expression of parts.
    mean : gpytorch mean
        Zero by default.
    output_scale : float
        Factor of the kernel, trained unless the kernel is a `ScaleKernel` with its own.
    dtype : torch.dtype
        Precision of the parameters; kernel and mean are converted.

    Examples
    --------
    >>> import gpytorch, torch
    >>> X = torch.linspace(-1, 1, 3, dtype=torch.float64).reshape(-1, 1)
    >>> prior = Prior(gpytorch.kernels.PeriodicKernel(), output_scale=2.0)
    >>> prior.variance(X)
    tensor([2., 2., 2.], dtype=torch.float64, grad_fn=<MulBackward0>)
    """

    def __init__(
        self,
        kernel: Kernel | StructuredKernel,
        mean: Mean | None = None,
        output_scale: float = 1.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        is_kernel = isinstance(kernel, Kernel | StructuredKernel)
        require(is_kernel, "kernel of Prior", "a kernel of gpytorch or an expression", kernel)
        positive = 0 < output_scale < math.inf
        require(positive, "output_scale of Prior", "positive and finite", output_scale)
        self.kernel: Any = kernel
        self.mean_function = ZeroMean() if mean is None else mean
        raw = softplus_inverse(torch.tensor(output_scale, dtype=dtype))
        self.raw_output_scale = nn.Parameter(raw, not isinstance(kernel, ScaleKernel))
        self.to(dtype)

    @classmethod
    def from_data(
        cls,
        X: Inputs,
        y: Num[Tensor, " n"] | None = None,
        *,
        kernel: KernelName | Expression = "rbf",
        ard: bool = False,
        mean: MeanName = "zero",
        columns: Sequence[ColumnFacts] | None = None,
    ) -> "Prior":
        """Return a prior with this kernel and mean, and starting values from the data.

        Parameters
        ----------
        X : tensor of shape (n, d)
            Training inputs; their spread gives the lengthscales.
        y : tensor of shape (n,)
            Rough values of f for output scale and constant mean: the targets of a regression,
            log(y + ½) for counts. Without them the scale is 1 and the mean 0.
        kernel : {"rbf", "matern12", "matern32", "matern52"} or Expression
            Covariance.
        ard : bool
            A lengthscale for each feature, or one for all; not for an expression.
        mean : {"zero", "constant"}
            Mean.
        columns : sequence of ColumnFacts
            What the columns of X are, for an expression; by default numbers named "x0", "x1", ….
        """
        require(mean in ("zero", "constant"), "mean", "'zero' or 'constant'", repr(mean))
        values = None if y is None else y.to(X.dtype)
        covariance: Kernel | StructuredKernel
        if isinstance(kernel, Expression):
            facts = columns or [ColumnFacts(f"x{j}") for j in range(X.shape[-1])]
            covariance = StructuredKernel.from_data(kernel, X, facts)
        else:
            covariance = _named_kernel(kernel, X, values, ard)
        prior = cls(covariance, ZeroMean() if mean == "zero" else ConstantMean(), dtype=X.dtype)
        scale = X.new_ones(())
        if values is not None:
            centre = values.mean() if mean == "constant" else values.new_zeros(())
            scale = _or_one((values - centre).square().mean())
            if mean == "constant":
                prior.mean_function.constant = centre
        with torch.no_grad():
            prior.raw_output_scale.copy_(softplus_inverse(scale))
        return prior.to(X)

    @property
    def kernel_name(self) -> KernelName:
        """The name by which `from_data` makes a kernel of this kind."""
        smoothness = {"rbf": RBF, **_SMOOTHNESS}
        for name in get_args(KernelName):
            if smoothness[name] == self._smoothness:
                return cast(KernelName, name)
        kind = type(self.kernel).__name__
        raise UnsupportedError(f"Only RBF and Matérn kernels have a name. Got {kind}.")

    @property
    def output_scale(self) -> Float[Tensor, "*batch"]:
        """The factor of the kernel."""
        return softplus(self.raw_output_scale)

    @property
    def scale(self) -> Float[Tensor, "*batch"]:
        """The output scale, times the scale of a `ScaleKernel`."""
        if isinstance(self.kernel, ScaleKernel):
            scale: Tensor = self.output_scale * self.kernel.outputscale
            return scale
        return self.output_scale

    @property
    def structure(self) -> StructuredKernel | None:
        """The kernel if it is an expression; else None."""
        return self.kernel if isinstance(self.kernel, StructuredKernel) else None

    @property
    def fused(self) -> bool:
        """Whether `natural` exists: RBF or Matérn on all features, or an expression; constant mean.

        Parameters must have gpytorch's usual constraints: positive by softplus, or none.
        """
        mean = self.mean_function
        plain = self._smoothness is not None or self.structure is not None
        if (
            not plain
            or type(mean) not in (ZeroMean, ConstantMean)
            or hasattr(mean, "raw_constant_constraint")
        ):
            return False
        kernel = self.kernel
        return isinstance(kernel, StructuredKernel) or all(
            type(constraint) is Positive and isinstance(constraint._transform, nn.Softplus)
            for constraint in kernel.constraints()
        )

    def natural(self) -> Natural:
        """Return the natural parameters, outside any graph."""
        mean = self.mean_function
        structure = self.structure
        with torch.no_grad():
            constant = mean.raw_constant.detach() if type(mean) is ConstantMean else None
            if structure is not None:
                return Natural(structure.natural(), self.scale, constant)
            nu = cast(float, self._smoothness)
            lengthscale = functional.softplus(self._inner().raw_lengthscale)
            return Natural(Stationary(nu, lengthscale), self.scale, constant)

    def raw_gradients(
        self, kernel: KernelGradient, log_scale: Values, constant: Values
    ) -> list[tuple[nn.Parameter, Values]]:
        """Return the gradient in each raw parameter from gradients in natural parameters."""
        mean = self.mean_function
        gradients: list[tuple[nn.Parameter, Values]]
        structure = self.structure
        if isinstance(kernel, StructuredGradient):
            gradients = [] if structure is None else structure.raw_gradients(kernel)
        else:
            raw_lengthscale = self._inner().raw_lengthscale
            slope = torch.sigmoid(raw_lengthscale.detach()).mul_(kernel)
            gradients = [(raw_lengthscale, slope)]
        scales = [self.raw_output_scale]
        if isinstance(self.kernel, ScaleKernel):
            scales.append(self.kernel.raw_outputscale)
        for parameter in scales:
            raw = parameter.detach()
            # Multiply by d log s(ρ) / dρ = σ(ρ) / s(ρ), s = log(1 + e^ρ).
            gradients.append((parameter, torch.sigmoid(raw).div_(softplus(raw)).mul_(log_scale)))
        if type(mean) is ConstantMean:
            gradients.append((mean.raw_constant, constant))
        return gradients

    def summed(
        self, kernel: KernelGradient, log_scale: Values, constant: Values
    ) -> tuple[KernelGradient, Values, Values]:
        """Sum gradients in natural parameters over latents that share the parameter."""
        natural = self.natural()
        if isinstance(natural.kernel, Stationary) and isinstance(kernel, Tensor):
            # `StructuredKernel.raw_gradients` sums by itself.
            kernel = kernel.sum_to_size(natural.kernel.lengthscale.shape)
        prior_mean = natural.constant
        if prior_mean is not None:
            constant = constant.sum_to_size(prior_mean.shape)
        return kernel, log_scale.sum_to_size(natural.scale.shape), constant

    def length_scales(self) -> Float64[np.ndarray, " k"] | None:
        """Return the lengthscale, or one for each feature; None for a kernel without lengthscales.

        For several latents it is the harmonic mean of their lengthscales.
        """
        kernel: Kernel = self.kernel
        if self.structure is not None:
            return None
        while isinstance(kernel, ScaleKernel) and kernel.active_dims is None:
            kernel = kernel.base_kernel
        if not kernel.has_lengthscale or kernel.active_dims is not None:
            return None
        scales = kernel.lengthscale.detach().double()
        if scales.dim() > 2:
            scales = 1 / (1 / scales).reshape(-1, scales.shape[-1]).mean(0)
        return np.asarray(scales.cpu().numpy().ravel())

    def mean(self, X: Float[Tensor, "*#batch n d"]) -> BatchedRow:
        """Return the prior mean at each input."""
        if type(self.mean_function) is ConstantMean:
            # gpytorch's own would import a compiler, for half a second.
            constant: Tensor = self.mean_function.constant.unsqueeze(-1)
            return constant.expand(np.broadcast_shapes(constant.shape, X.shape[:-1]))
        values: Tensor = self.mean_function(X)
        return values

    def variance(self, X: Float[Tensor, "*#batch n d"]) -> BatchedRow:
        """Return k(x_i, x_i)."""
        structure = self.structure
        if structure is not None:
            return self.scale.unsqueeze(-1) * structure.variance(X)
        if self._smoothness is not None:
            scale = self.scale
            batch = np.broadcast_shapes(scale.shape, X.shape[:-2])
            return scale.unsqueeze(-1).expand(*batch, X.shape[-2])
        diagonal: Tensor = self.kernel(X, diag=True)
        return self.output_scale.unsqueeze(-1) * diagonal

    def covariance(
        self, X1: Float[Tensor, "*#batch m d"], X2: Float[Tensor, "*#batch n d"]
    ) -> Float[Tensor, "*batch m n"]:
        """Return k(x, x′) for every pair."""
        nu = self._smoothness
        if nu is not None:
            inner = self._inner()
            a = X1 / inner.lengthscale
            b = X2 / inner.lengthscale
            return self.scale[..., None, None] * stationary(a, b, nu)
        structure = self.structure
        if structure is not None:
            return self.scale[..., None, None] * structure.covariance(X1, X2)
        dense: Tensor = self.kernel(X1, X2).to_dense()
        return self.output_scale[..., None, None] * dense

    def gram(self, Z: Float[Tensor, "*#batch m d"]) -> Float[Tensor, "*batch m m"]:
        """Return k(z, z′) for every pair of one set of inputs, in float64."""
        nu = self._smoothness
        structure = self.structure
        if structure is not None:
            wide = Z.double()
            return self.scale.double()[..., None, None] * structure.covariance(wide, wide)
        if nu is None:
            return self.covariance(Z, Z).double()
        scaled = Z.double() / self._inner().lengthscale.double()
        return self.scale.double()[..., None, None] * stationary(scaled, scaled, nu)

    def rescaled(self, factor: float) -> "Prior":
        """Return this prior with its covariance multiplied by a factor."""
        twin = copy.deepcopy(self)
        with torch.no_grad():
            twin.raw_output_scale.copy_(softplus_inverse(factor * self.output_scale))
        return twin

    def with_unit_scale(self) -> "Prior":
        """Return this prior with the output scale fixed at 1, for losses that do not determine it.

        A `ScaleKernel` is fixed at 1 too; scales inside a sum or product of kernels do not change.
        """
        twin = copy.deepcopy(self)
        if isinstance(twin.kernel, ScaleKernel):
            twin.kernel.outputscale = torch.ones_like(twin.kernel.outputscale)
            twin.kernel.raw_outputscale.requires_grad_(False)
        with torch.no_grad():
            twin.raw_output_scale.copy_(softplus_inverse(torch.ones_like(twin.output_scale)))
        twin.raw_output_scale.requires_grad_(False)
        return twin

    def repeated(self, number: int) -> "Prior":
        """Return a batch of copies of this prior."""
        twin = copy.deepcopy(self)
        # Repeat each parameter: `Kernel.expand_batch` ignores the parts of sums and products, and
        # returns views of one number, which an optimiser cannot write to.
        for part in twin.kernel.modules():
            if isinstance(part, Kernel | StructuredKernel):
                part.batch_shape = torch.Size([number])
                for name, value in list(part.named_parameters(recurse=False)):
                    setattr(part, name, repeated_parameter(value, number))
        twin.mean_function = _repeat_mean(twin.mean_function, number)
        twin.raw_output_scale = repeated_parameter(self.raw_output_scale, number)
        return twin

    def latent(self, index: int) -> "Prior":
        """Return the prior of one of several latents."""
        twin = copy.deepcopy(self)
        for part in twin.kernel.modules():
            if isinstance(part, Kernel | StructuredKernel) and part.batch_shape:
                part.batch_shape = torch.Size()
                for name, value in list(part.named_parameters(recurse=False)):
                    parameter = nn.Parameter(value.detach()[index].clone(), value.requires_grad)
                    setattr(part, name, parameter)
        if type(self.mean_function) is ConstantMean:
            constant = self.mean_function.constant.detach()
            twin.mean_function = ConstantMean().to(constant)
            twin.mean_function.constant = constant.reshape(-1)[index]
            twin.mean_function.requires_grad_(self.mean_function.raw_constant.requires_grad)
        elif type(self.mean_function) is ZeroMean:
            twin.mean_function = ZeroMean()
        scale = self.raw_output_scale
        if scale.dim():
            twin.raw_output_scale = nn.Parameter(scale.detach()[index].clone(), scale.requires_grad)
        return twin

    def with_starts(self, starts: Sequence[tuple[float, float]]) -> "Prior":
        """Return latents with copies of this kernel, and these constant means and scales."""
        twin = copy.deepcopy(self)
        if type(twin.mean_function) is ZeroMean:
            twin.mean_function = ConstantMean().to(self.raw_output_scale)
        twin = twin.repeated(len(starts))
        values = torch.tensor(starts, dtype=torch.float64)
        constants, scales = values.to(self.raw_output_scale).unbind(1)
        twin.mean_function.constant = constants
        with torch.no_grad():
            twin.raw_output_scale.copy_(softplus_inverse(scales))
        return twin

    def with_means(self, number: int) -> "Prior":
        """Return this prior with a mean for each of several latents, which share the kernel."""
        twin = copy.deepcopy(self)
        twin.mean_function = _repeat_mean(twin.mean_function, number)
        return twin

    @property
    def _smoothness(self) -> float | None:
        """ν of a plain Matérn kernel, or `RBF`; None for other kernels."""
        if self.structure is not None:
            return None
        inner = self._inner()
        if type(inner) not in (RBFKernel, MaternKernel) or inner.active_dims is not None:
            return None
        nu: float = RBF if type(inner) is RBFKernel else inner.nu
        return nu

    def _inner(self) -> Kernel:
        """Return the base of a `ScaleKernel` on all features, else the kernel."""
        outer = self.kernel
        if type(outer) is not ScaleKernel or outer.active_dims is not None:
            return outer
        return outer.base_kernel


def repeated_parameter(value: nn.Parameter, number: int) -> nn.Parameter:
    """Return copies of a parameter along a new first axis."""
    many = value.detach().unsqueeze(0).repeat(number, *(1 for _ in value.shape))
    return nn.Parameter(many, value.requires_grad)


def _repeat_mean(mean: Mean, number: int) -> Mean:
    if isinstance(mean, ZeroMean):
        return ZeroMean(batch_shape=torch.Size([number]))
    if isinstance(mean, ConstantMean):
        twin = ConstantMean(batch_shape=torch.Size([number]))
        twin.to(mean.constant)
        twin.constant = mean.constant.detach()
        return twin
    raise UnsupportedError(
        f"A batch of models needs a zero or a constant mean. Got {type(mean).__name__}. "
        "Train one model at a time."
    )
