"""Define `SparsePosterior`: q(u) at inducing inputs, and the q(f) it implies everywhere."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from directgp.errors import NumericalError, require
from directgp.kernels import ColumnFacts, Expression
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.linalg import Cholesky, jittered_cholesky
from directgp.numerics.random import fresh_generator, standard_normal
from directgp.posteriors.inducing import InducingName, choose_inducing
from directgp.posteriors.marginals import KernelMarginals, Stationary
from directgp.posteriors.prior import MeanName, Prior, repeated_parameter
from directgp.posteriors.projection import project, project_whitened, residual_variance, whiten
from directgp.posteriors.stationary import StationaryMarginals
from directgp.posteriors.structured import StructuredMarginals
from directgp.registry import KernelName
from directgp.shapes import BatchedRow, Inputs, Marginals

_BLOCK_VALUES = 2**24
"""Entries of K_uf in one block of predictions, 128 MB in float64."""

_CACHED_VALUES = 2**17
"""Entries of K_uf in one block on a CPU, where arrays stay in the cache."""

_CENTRE_ROWS = 15
"""Number of inputs whose median is the centre."""

_GROWTH_ROWS = 5000
"""Rows from which new inducing inputs are chosen."""

_NUGGET = {torch.float64: 1e-8, torch.float32: 1e-5}
"""Default nugget of each precision."""


class Cross(NamedTuple):
    """Prior moments of examples and inducing variables, with the result of `factor`."""

    L: Float[Tensor, "*batch m m"]
    """Lower Cholesky factor of K_uu."""

    Kuf: Float[Tensor, "*batch m n"]
    """Covariance of u and f."""

    k_diag: BatchedRow
    """Prior variance of each f_i."""

    mean: BatchedRow
    """Prior mean of each f_i."""

    jitter: Float[Tensor, "*batch"]
    """Jitter of K_uu beyond the nugget."""


@dataclass(frozen=True)
class Joint:
    """Mean and covariance of q(f) at several inputs."""

    mean: BatchedRow
    """Mean of f at each input."""

    covariance: Float[Tensor, "*batch n n"]
    """Covariance of f at each pair of inputs."""


class Features(NamedTuple):
    """Constants of the marginals of examples for given hyperparameters."""

    A: Float[Tensor, "*batch m n"]
    """L⁻¹ K_uf."""

    residual: BatchedRow
    """Variance of each f_i given u."""

    mean: BatchedRow
    """Prior mean of each f_i."""


@final
class SparsePosterior(nn.Module):
    """q(f) = ∫ p(f given u) q(u) du, with q(u) free and whitened.

    u = L w, w ~ N(u_mean, u_chol u_cholᵀ).
    L Lᵀ = K_uu + nugget·diag(K_uu): the inducing variables are f(Z) plus noise of relative variance
    `nugget`, which keeps the factorisation and its derivative accurate. This is a definition of the
    inducing variables and no approximation: q(f) is exact for them, and no variance gets jitter.

    `with_latents` gives P independent processes, whose marginals have shape (P, n).

    Parameters
    ----------
    prior : Prior
        Kernel and mean.
    Z : tensor of shape (m, d)
        Inducing inputs.
    nugget : float
        Relative variance of the noise of u; 1e-8 by default (1e-5 in float32).

    Examples
    --------
    >>> import torch
    >>> X = torch.linspace(-1, 1, 5, dtype=torch.float64).reshape(-1, 1)
    >>> posterior = SparsePosterior(Prior.from_data(X), X[::2])
    >>> posterior.marginals(X).mean
    tensor([0., 0., 0., 0., 0.], dtype=torch.float64, grad_fn=<AddBackward0>)
    >>> posterior.kl().item()
    0.0
    """

    num_latent: int = 1
    """Number of latent functions; with several, the first axis of q(u)."""

    def __init__(
        self, prior: Prior, Z: Float[Tensor, "*batch m d"], nugget: float | None = None
    ) -> None:
        super().__init__()
        who = "Z of SparsePosterior"
        shape = f"shape {tuple(Z.shape)}"
        require(Z.ndim >= 2 and Z.shape[-2] >= 1, who, "of shape (m, d) with m ≥ 1", shape)
        require(bool(torch.isfinite(Z).all()), who, "finite", "NaN or infinity")
        dtype = prior.raw_output_scale.dtype
        require(Z.dtype == dtype, who, f"of the prior's dtype {dtype}", Z.dtype)
        require(Z.dtype in _NUGGET, who, "float32 or float64", Z.dtype)
        self.prior = prior
        self.nugget = _NUGGET[Z.dtype] if nugget is None else nugget
        self.Z = nn.Parameter(Z.detach().clone())
        self.u_mean = nn.Parameter(Z.new_zeros(Z.shape[:-1]))
        eye = torch.eye(Z.shape[-2], dtype=Z.dtype, device=Z.device)
        self.u_chol = nn.Parameter(eye.expand(*Z.shape[:-1], -1).clone())

    @classmethod
    def from_data(
        cls,
        X: Inputs,
        y: Num[Tensor, " n"] | None = None,
        *,
        num_inducing: int = 100,
        inducing: InducingName = "kmeans++",
        kernel: KernelName | Expression = "rbf",
        ard: bool = False,
        mean: MeanName = "zero",
        columns: Sequence[ColumnFacts] | None = None,
        generator: torch.Generator | None = None,
    ) -> "SparsePosterior":
        """Return q(u) = p(u), with hyperparameters and inducing inputs chosen from the data.

        The arguments are those of `Prior.from_data` and `choose_inducing`. If a column has codes of
        levels, the default inducing inputs are rows of X, by `most_uncertain`.
        """
        prior = Prior.from_data(X, y, kernel=kernel, ard=ard, mean=mean, columns=columns)
        coded = any(column.coded for column in columns or ())
        if coded and inducing == "kmeans++":
            return cls(prior, most_uncertain(prior, X, num_inducing))
        return cls(prior, choose_inducing(X, num_inducing, inducing, generator))

    def marginals(self, X: Inputs) -> Marginals:
        """Return q(f_i) at each row of X, differentiable in every parameter."""
        return self.marginals_from(self.cross(X))

    def marginals_from(self, cross: Cross) -> Marginals:
        """Return `marginals` from covariances already computed."""
        projected = project(*cross[:3], self.u_mean, self.u_chol)
        return Marginals(cross.mean + projected.mean, projected.variance)

    def fused(self, rows: int, X: Inputs | None = None) -> KernelMarginals[Any, Any]:
        """Return an object that computes marginals at `rows` rows without a tape.

        It needs `prior.fused`. With X, every call must be for these rows. Without X, the rows may
        change, and the centre and units of the inputs come from Z.
        """
        inputs = (self.Z if X is None else X).detach().reshape(-1, self.Z.shape[-1])
        # Take medians of a few rows: a single far input does not move them.
        sample = inputs[:: -(-len(inputs) // _CENTRE_ROWS)]
        centre = sample.median(0, keepdim=True).values
        natural = self.prior.natural()
        size = rows * self.Z.shape[-2]
        batch = tuple(self.u_mean.shape[:-1])
        kernel = natural.kernel
        axes = (
            kernel.lengthscale.dim() - 1 if isinstance(kernel, Stationary) else kernel.shares.dim()
        )
        unbatched = self.Z.dim() == 2 and axes == 1 and natural.scale.dim() == 0
        options = {"shared": len(batch) > 0 and unbatched, "constant_inputs": X is not None}
        if not isinstance(kernel, Stationary):
            return StructuredMarginals(self.nugget, centre, size, batch, **options)
        spread = (sample - centre).abs().median(0, keepdim=True).values
        if kernel.lengthscale.shape[-1] == 1:
            spread = spread.amax().expand(spread.shape)
        unit = torch.where((spread > 0) & spread.isfinite(), spread, 1.0)
        return StationaryMarginals(self.nugget, centre, unit, size, batch, **options)

    @property
    def num_inducing(self) -> int:
        """Number of inducing inputs of each latent function."""
        return self.Z.shape[-2]

    def with_latents(self, number: int, *, shared: bool = False) -> "SparsePosterior":
        """Return independent latent functions that start as this one.

        Each has its own kernel, mean and inducing inputs; with `shared` only its own mean.
        """
        require(number >= 2, "number of with_latents", "at least 2", number)
        require(self.num_latent == 1, "posterior of with_latents", "of one latent", self.num_latent)
        twin = self.repeated(number, shared_prior=shared)
        twin.prior = self.prior.with_means(number) if shared else twin.prior
        twin.num_latent = number
        return twin

    def latent(self, index: int) -> "SparsePosterior":
        """Return one of several latent functions, as a posterior of its own."""
        Z = self.Z if self.Z.dim() == 2 else self.Z[index]
        twin = SparsePosterior(self.prior.latent(index), Z, self.nugget)
        twin.Z.requires_grad_(self.Z.requires_grad)
        twin.set_q(self.u_mean[index], self.u_chol[index])
        return twin

    def with_own_kernels(self) -> "SparsePosterior":
        """Return the same latent functions, with a kernel and inducing inputs for each."""
        latents = [self.latent(k) for k in range(self.num_latent)]
        twin = latents[0].with_latents(self.num_latent)
        values = [latent.state_dict() for latent in latents]
        with torch.no_grad():
            for name, value in twin.state_dict().items():
                many = torch.stack([latent[name] for latent in values])
                value.copy_(many[0] if many[0].shape == value.shape else many.view_as(value))
        return twin

    def kl(self) -> Float[Tensor, "*batch"]:
        """Return KL[q(u) ‖ p(u)], the sum over latent functions."""
        return self.total(kl_from_standard(self.u_mean, self.u_chol.tril()))

    def total(self, kl: Float[Tensor, "*batch"]) -> Float[Tensor, "*rest"]:
        """Return the sum over latent functions of their KL."""
        return kl if self.num_latent == 1 else kl.sum(-1)

    def predict(self, X: Inputs, block_size: int | None = None) -> Marginals:
        """Return `marginals` without gradients, in blocks of rows that bound the memory."""
        self.check_inputs(X, "X of predict")
        valid = block_size is None or block_size >= 1
        require(valid, "block_size of predict", "at least 1", block_size)
        with torch.no_grad():
            cached = self.prior.fused and not X.is_cuda
            values = _CACHED_VALUES if cached else _BLOCK_VALUES
            blocks = X.split(block_size or max(1, values // self.u_mean.numel()))
            if self.prior.fused and len(X):
                parts = self._fused_marginals(len(X), blocks)
            else:
                parts = [self.marginals(block) for block in blocks]
            mean, variance = (
                torch.cat([getattr(part, name) for part in parts], -1)
                for name in ("mean", "variance")
            )
            undefined = (
                torch.isnan(mean + variance).view(self.u_mean[..., 0].numel(), len(X)).any(0)
            )
            if bool(undefined.any()):
                # Recompute these rows: far from Z the products of `fused` overflow.
                far = self.marginals(X[undefined])
                mean[..., undefined] = far.mean
                variance[..., undefined] = far.variance
                if bool(torch.isnan(mean + variance).any()):
                    raise NumericalError(
                        "The posterior is not defined at some rows of X: lengthscales and inputs "
                        f"are too far apart for {X.dtype}. Give inputs in another unit."
                    )
            return Marginals(mean, variance)

    def _fused_marginals(self, rows: int, blocks: Sequence[Tensor]) -> list[Any]:
        """Return the `Marginals` of each block of rows, without a tape."""
        natural = self.prior.natural()
        fused = self.fused(rows)
        with fused.threads():
            fused.set_prior(self.Z, natural)
            fused.set_q(self.u_mean, self.u_chol.tril())
            pairs = [fused.marginals(block) for block in blocks]
        return [Marginals(natural.plus_constant(mean), variance) for mean, variance in pairs]

    def joint(self, X: Float[Tensor, "*#batch n d"], factor: Cholesky | None = None) -> Joint:
        """Return mean and covariance of f at the rows of X, differentiable in X and parameters.

        X may have leading batch axes. `factor` is the factor of K_uu, if already computed.
        """
        prior_mean, A, residual = self._conditional(X, factor)
        T = self.u_chol.tril().mT @ A
        shift = (A.mT @ self.u_mean.unsqueeze(-1)).squeeze(-1)
        return Joint(prior_mean + shift, residual + T.mT @ T)

    def sample(
        self, X: Inputs, num_samples: int = 1, generator: torch.Generator | None = None
    ) -> Float[Tensor, "k *batch n"]:
        """Draw f jointly at the rows of X: mean + Aᵀ(u_mean + S ε) + chol(K_ff − AᵀA) ε′.

        Only this method and `joint` build an n × n matrix.
        """
        self.check_inputs(X, "X of sample")
        require(num_samples >= 1, "num_samples of sample", "at least 1", num_samples)
        if generator is None:
            generator = fresh_generator(X.device)
        if X.dtype != torch.float64:
            # Draw in float64: between close inputs K_ff − AᵀA is below float32's rounding error.
            wide = copy.deepcopy(self).double()
            return wide.sample(X.double(), num_samples, generator).to(X.dtype)
        with torch.no_grad():
            prior_mean, A, residual = self._conditional(X)
            rest = jittered_cholesky(residual).L
            w = standard_normal(num_samples, self.u_mean, generator)
            w = self.u_mean + (self.u_chol.tril() @ w.unsqueeze(-1)).squeeze(-1)
            f = (A.mT @ w.unsqueeze(-1)).squeeze(-1)
            noise = standard_normal(num_samples, f[0], generator)
            return prior_mean + f + (rest @ noise.unsqueeze(-1)).squeeze(-1)

    def cross(
        self,
        X: Float[Tensor, "*#batch n d"],
        factor: Cholesky | None = None,
        *,
        checked: bool = True,
    ) -> Cross:
        """Return the prior covariances of u and f and the factor of K_uu, all differentiable.

        A `factor` already computed is used; `checked` is as in `factor`.
        """
        d = self.Z.shape[-1]
        require(X.shape[-1] == d, "X", f"of shape (n, {d})", f"shape {tuple(X.shape)}")
        L, jitter = self.factor(checked=checked) if factor is None else factor
        Kuf = self.prior.covariance(self.Z, X)
        return Cross(L, Kuf, self.prior.variance(X), self.prior.mean(X), jitter)

    def factor(self, *, checked: bool = True) -> Cholesky:
        """Return L of K_uu = L Lᵀ, factorised in float64, and the jitter beyond the nugget.

        With `checked=False` a matrix that needs jitter gives NaN, and the step does not wait for
        the device; the caller checks later.
        """
        Kuu = self.prior.gram(self.Z)
        # Set the diagonal: gpytorch's distance of an input to itself is off by √eps if Z is free.
        diagonal = (1 + self.nugget) * self.prior.variance(self.Z).double()
        Kuu = torch.diagonal_scatter(Kuu, diagonal.expand(Kuu.shape[:-1]), dim1=-2, dim2=-1)
        L, jitter = jittered_cholesky(Kuu, checked=checked)
        return Cholesky(L.to(self.Z.dtype), jitter)

    def features(self, X: Inputs, factor: Cholesky | None = None) -> Features:
        """Return A, residual and prior mean at the rows of X, without a graph."""
        with torch.no_grad():
            cross = self.cross(X, factor)
            A = whiten(cross.L, cross.Kuf)
            # Copy the mean: a constant one is a view of its parameter, which may change.
            mean = cross.mean.detach().clone()
            return Features(A, residual_variance(cross.k_diag, A), mean)

    def marginals_at(self, features: Features) -> Marginals:
        """Return `marginals` from constant features, differentiable in q(u) alone."""
        projected = project_whitened(features.A, features.residual, self.u_mean, self.u_chol)
        return Marginals(features.mean + projected.mean, projected.variance)

    def _conditional(
        self, X: Float[Tensor, "*#batch n d"], factor: Cholesky | None = None
    ) -> tuple[BatchedRow, Float[Tensor, "*batch m n"], Float[Tensor, "*batch n n"]]:
        """Return mean, A and R: f given w ~ N(mean + Aᵀw, R), R = K_ff − AᵀA.

        The diagonal of R is at least the rounding error of k_ii.
        """
        cross = self.cross(X, factor)
        A = whiten(cross.L, cross.Kuf)
        R = self.prior.gram(X).to(A.dtype) - A.mT @ A
        variance = residual_variance(cross.k_diag, A).expand(R.shape[:-1])
        return cross.mean, A, torch.diagonal_scatter(R, variance, dim1=-2, dim2=-1)

    def check_inputs(self, X: Tensor, who: str) -> None:
        """Raise `InvalidInputError` for inputs of another width or dtype, or with NaN."""
        d = self.Z.shape[-1]
        fits = X.ndim == 2 and X.shape[-1] == d
        require(fits, who, f"of shape (n, {d})", f"shape {tuple(X.shape)}")
        require(bool(torch.isfinite(X).all()), who, "finite", "NaN or infinity")
        require(X.dtype == self.Z.dtype, who, f"of the posterior's dtype {self.Z.dtype}", X.dtype)

    def reset(self) -> None:
        """Set q(u) = p(u)."""
        eye = torch.eye(self.Z.shape[-2], dtype=self.Z.dtype, device=self.Z.device)
        self.set_q(torch.zeros_like(self.u_mean), eye.expand(self.u_chol.shape))

    def set_q(self, u_mean: Float[Tensor, "*batch m"], u_chol: Float[Tensor, "*batch m m"]) -> None:
        """Set the whitened moments of q(u)."""
        with torch.no_grad():
            self.u_mean.copy_(u_mean)
            self.u_chol.copy_(u_chol.tril())

    def with_unit_scale(self) -> "SparsePosterior":
        """Return a posterior with the same mean of f and the prior's output scale fixed at 1."""
        twin = copy.deepcopy(self)
        twin.prior = self.prior.with_unit_scale()
        with torch.no_grad():
            ratio = self.prior.scale / twin.prior.scale
            twin.u_mean.mul_(ratio.sqrt().unsqueeze(-1))
        return twin

    def thinned(self, step: int) -> "SparsePosterior":
        """Return q(u) = p(u) for every `step`-th inducing input."""
        twin = copy.deepcopy(self)
        few = self.Z.detach()[..., ::step, :].clone()
        batch = self.u_mean.shape[:-1]
        m = few.shape[-2]
        eye = torch.eye(m, dtype=few.dtype, device=few.device).expand(*batch, -1, -1).clone()
        twin.Z = nn.Parameter(few, self.Z.requires_grad)
        twin.u_mean = nn.Parameter(few.new_zeros(*batch, m))
        twin.u_chol = nn.Parameter(eye)
        return twin

    def grown(self, X: Inputs, number: int) -> "SparsePosterior":
        """Return the same q(f) with more inducing inputs: the rows of X that u predicts worst.

        Each new input is the row with the largest variance of f given u and the rows chosen
        before. q of the new variables is p(u_new given u), in whitened coordinates N(0, I).
        """
        with torch.no_grad():
            count = min(len(X), _GROWTH_ROWS)
            # Compute the row numbers in integers: float32 rounds large numbers.
            rows = X[torch.arange(count, device=X.device) * len(X) // count]
            Z = rows[self._worst_known(rows, number)]
            twin = copy.deepcopy(self)
            m = self.num_inducing
            k = len(Z)
            added = Z.expand(*self.Z.shape[:-2], -1, -1)
            twin.Z = nn.Parameter(torch.cat([self.Z, added], -2), self.Z.requires_grad)
            batch = self.u_mean.shape[:-1]
            u_mean = torch.cat([self.u_mean, Z.new_zeros(*batch, k)], -1)
            eye = torch.eye(m + k, dtype=Z.dtype, device=Z.device)
            u_chol = eye.expand(*batch, -1, -1).clone()
            u_chol[..., :m, :m] = self.u_chol.tril()
            twin.u_mean = nn.Parameter(u_mean, self.u_mean.requires_grad)
            twin.u_chol = nn.Parameter(u_chol, self.u_chol.requires_grad)
        return twin

    def _worst_known(self, X: Inputs, number: int) -> list[int]:
        """Return rows of X by pivoted Cholesky factorisation of K_ff − Q_ff.

        With several latents, a row is ranked by its largest ratio of residual to prior variance.
        """
        A, residual, _ = self.features(X)
        basis = A
        chosen = []
        residual = residual.clone()
        variance = self.prior.variance(X)
        # Stop above the nugget: at a row of Z the share is the nugget.
        negligible = max(1e-6, 2 * self.nugget)
        for _ in range(min(number, len(X))):
            share = (residual / variance).reshape(-1, len(X)).amax(0)
            i = int(share.argmax())
            if not share[i] > negligible:
                break
            chosen.append(i)
            row = self.prior.covariance(X[i : i + 1], X)[..., 0, :]
            column = row - (basis[..., i].unsqueeze(-2) @ basis).squeeze(-2)
            column = column / residual[..., i : i + 1].clamp(min=self.nugget).sqrt()
            residual = (residual - column**2).clamp(min=0.0)
            residual[..., i] = 0.0
            basis = torch.cat([basis, column.unsqueeze(-2)], -2)
        return chosen

    def repeated(self, number: int, shared_prior: bool) -> "SparsePosterior":
        """Return a batch of `number` q(u), each with its own prior and Z unless shared."""
        twin = copy.deepcopy(self)
        names = ["u_mean", "u_chol"]
        if not shared_prior:
            twin.prior = twin.prior.repeated(number)
            names.append("Z")
        for name in names:
            setattr(twin, name, repeated_parameter(getattr(self, name), number))
        return twin

    def member(self, index: int, like: "SparsePosterior") -> "SparsePosterior":
        """Return one posterior of a batch made by `repeated`, with the shapes of `like`."""
        twin = copy.deepcopy(like)
        batched = self.state_dict()
        with torch.no_grad():
            for name, value in twin.state_dict().items():
                many = batched[name]
                one = many if many.shape == value.shape else many[index]
                value.copy_(one.reshape(value.shape))
        return twin


def most_uncertain(prior: Prior, X: Inputs, number: int) -> Float[Tensor, "m d"]:
    """Return inducing inputs: rows of X, each the one with the largest variance given the others.

    The variance is relative to the prior variance. Fewer rows are returned if they determine f.
    """
    with torch.no_grad():
        first = prior.variance(X).argmax()
        return SparsePosterior(prior, X[first : first + 1]).grown(X, number - 1).Z.detach()
