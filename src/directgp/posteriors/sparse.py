"""The sparse posterior: q(u) at inducing inputs, and the q(f) it implies everywhere."""

import copy
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from directgp.errors import require
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.linalg import Workspace, jittered_cholesky
from directgp.numerics.random import fresh_generator, standard_normal
from directgp.posteriors.fused import Fused, FusedPrediction, rbf_marginals
from directgp.posteriors.inducing import InducingName, choose_inducing
from directgp.posteriors.prior import KernelName, MeanName, Prior
from directgp.posteriors.projection import (
    Conditional,
    Joint,
    joint,
    project,
    project_whitened,
    residual_covariance,
    residual_variance,
    whiten,
)
from directgp.shapes import BatchedRow, Marginals

_BLOCK_VALUES = 2**24
"""Entries of K_uf that one block of predictions holds, 128 MB in float64."""

_NUGGET = {torch.float64: 1e-8, torch.float32: 1e-5}


class Factor(NamedTuple):
    """K_uu = L Lᵀ."""

    L: Float[Tensor, "*batch m m"]
    jitter: Float[Tensor, "*batch"]
    """What the factorisation needed beyond the nugget."""


class Cross(NamedTuple):
    """What the prior says about some examples and the inducing inputs."""

    L: Float[Tensor, "*batch m m"]
    """Lower Cholesky factor of K_uu."""

    Kuf: Float[Tensor, "*batch m n"]
    k_diag: BatchedRow
    mean: BatchedRow
    """Prior mean."""

    jitter: Float[Tensor, "*batch"]
    """What the factorisation of K_uu needed beyond the nugget."""


class Features(NamedTuple):
    """What is constant of some examples while kernel, mean and inducing inputs are held."""

    A: Float[Tensor, "*batch m n"]
    residual: BatchedRow
    mean: BatchedRow


@final
class SparsePosterior(nn.Module):
    """q(f) = ∫ p(f given u) q(u) du, with q(u) free and whitened.

    u = L w, w ~ N(u_mean, u_chol u_cholᵀ).
    L Lᵀ = K_uu + nugget·diag(K_uu): the inducing variables are f(Z) plus noise of that relative
    variance, which keeps the factorisation and its derivative accurate. That is a choice of
    inducing variables, not an approximation: q(f) is exact for them, and nothing else is added to
    any variance.

    Parameters
    ----------
    prior : Prior
        Kernel and mean.
    Z : tensor of shape (m, d)
        Inducing inputs.
    nugget : float
        Relative variance of the noise of u; 1e-8 unless given (1e-5 in float32).

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

    def __init__(
        self, prior: Prior, Z: Float[Tensor, "*batch m d"], nugget: float | None = None
    ) -> None:
        super().__init__()
        who, shape = "Z of SparsePosterior", f"shape {tuple(Z.shape)}"
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
        X: Float[Tensor, "n d"],
        y: Num[Tensor, " n"] | None = None,
        *,
        num_inducing: int = 100,
        inducing: InducingName = "kmeans++",
        kernel: KernelName = "rbf",
        ard: bool = False,
        mean: MeanName = "zero",
        generator: torch.Generator | None = None,
    ) -> "SparsePosterior":
        """q(u) at the prior, with hyperparameters and inducing inputs that suit the data.

        The arguments are those of `Prior.from_data` and `choose_inducing`.
        """
        prior = Prior.from_data(X, y, kernel=kernel, ard=ard, mean=mean)
        return cls(prior, choose_inducing(X, num_inducing, inducing, generator))

    def marginals(self, X: Float[Tensor, "n d"]) -> Marginals:
        """q(f_i) at each row of X, differentiable in every parameter."""
        return self.marginals_from(self.cross(X))

    def marginals_from(self, cross: Cross) -> Marginals:
        """`marginals` where the covariances are at hand."""
        projected = project(*cross[:3], self.u_mean, self.u_chol)
        return Marginals(cross.mean + projected.mean, projected.variance)

    def fused(
        self, X: Float[Tensor, "n d"], *, checked: bool = True, workspace: Workspace | None = None
    ) -> Fused | None:
        """Marginals, less the prior mean, and KL in one piece, for a plain RBF kernel.

        None for other kernels; the rest as in `rbf_marginals`.
        """
        rbf = self.prior.rbf
        if rbf is None:
            return None
        return rbf_marginals(
            self.Z,
            rbf.lengthscale,
            self.prior.scale.log(),
            self.u_mean,
            self.u_chol,
            X,
            self.nugget,
            checked=checked,
            workspace=workspace,
        )

    def kl(self) -> Float[Tensor, "*batch"]:
        """KL[q(u) ‖ p(u)]."""
        return kl_from_standard(self.u_mean, self.u_chol.tril())

    def predict(self, X: Float[Tensor, "n d"], block_size: int | None = None) -> Marginals:
        """`marginals` without gradients, in blocks of rows, so that memory stays bounded."""
        self.check_inputs(X, "X of predict")
        require(
            block_size is None or block_size >= 1, "block_size of predict", "at least 1", block_size
        )
        with torch.no_grad():
            rbf = self.prior.rbf
            if rbf is None:
                size = block_size or max(1, _BLOCK_VALUES // self.u_mean.numel())
                return _joined([self.marginals(block) for block in X.split(size)])
            prediction = FusedPrediction(
                self.Z,
                rbf.lengthscale,
                self.prior.scale.log(),
                self.u_mean,
                self.u_chol,
                self.nugget,
            )
            blocks = X.split(block_size or prediction.block_size())
            found = _joined([prediction(block) for block in blocks])
            return Marginals(self.prior.mean(X) + found.mean, found.variance)

    def joint(self, X: Float[Tensor, "*#batch n d"], factor: Factor | None = None) -> Joint:
        """Mean and covariance of f at the rows of X, differentiable in X and every parameter.

        X may have batch axes in front. A factor of K_uu at hand is used.
        """
        return joint(self._conditional(X, factor), self.u_mean, self.u_chol)

    def sample(
        self,
        X: Float[Tensor, "n d"],
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "k *batch n"]:
        """Joint draws of f at the rows of X: mean + Aᵀ(u_mean + S ε) + chol(K_ff − AᵀA) ε′.

        Of all methods this and `joint` alone build an n × n matrix.
        """
        self.check_inputs(X, "X of sample")
        require(num_samples >= 1, "num_samples of sample", "at least 1", num_samples)
        if generator is None:
            generator = fresh_generator(X.device)
        if X.dtype != torch.float64:
            # Between close inputs little of K_ff − AᵀA is left, less than float32 can tell from 0.
            wide = copy.deepcopy(self).double()
            return wide.sample(X.double(), num_samples, generator).to(X.dtype)
        with torch.no_grad():
            prior_mean, A, residual = self._conditional(X)
            rest = jittered_cholesky(residual).factor
            w = standard_normal(num_samples, self.u_mean, generator)
            w = self.u_mean + (self.u_chol.tril() @ w.unsqueeze(-1)).squeeze(-1)
            f = (A.mT @ w.unsqueeze(-1)).squeeze(-1)
            noise = standard_normal(num_samples, f[0], generator)
            return prior_mean + f + (rest @ noise.unsqueeze(-1)).squeeze(-1)

    def cross(
        self, X: Float[Tensor, "*#batch n d"], factor: Factor | None = None, *, checked: bool = True
    ) -> Cross:
        """The prior's covariances of u and f, with K_uu factorised, all differentiable.

        A factor at hand is used; `checked` is as in `factor`.
        """
        d = self.Z.shape[-1]
        require(X.shape[-1] == d, "X", f"of shape (n, {d})", f"shape {tuple(X.shape)}")
        L, jitter = self.factor(checked=checked) if factor is None else factor
        Kuf = self.prior.covariance(self.Z, X)
        return Cross(L, Kuf, self.prior.variance(X), self.prior.mean(X), jitter)

    def factor(self, *, checked: bool = True) -> Factor:
        """L of K_uu = L Lᵀ, factorised in float64, and the jitter that this needed.

        Without the check a matrix that would need jitter gives NaN: for steps that must not wait
        for an answer, and are looked at afterwards.
        """
        Kuu = self.prior.gram(self.Z)
        # gpytorch's distance of an input to itself is off by √eps while Z asks for a gradient.
        diagonal = (1 + self.nugget) * self.prior.variance(self.Z).double()
        Kuu = torch.diagonal_scatter(Kuu, diagonal.expand(Kuu.shape[:-1]), dim1=-2, dim2=-1)
        if not checked:
            L = torch.linalg.cholesky_ex(Kuu).L
            return Factor(L.to(self.Z.dtype), L.new_zeros(L.shape[:-2]))
        cholesky = jittered_cholesky(Kuu)
        return Factor(cholesky.factor.to(self.Z.dtype), cholesky.jitter)

    def features(self, X: Float[Tensor, "n d"], factor: Factor | None = None) -> Features:
        """A, residual and prior mean at the rows of X, outside of any graph."""
        with torch.no_grad():
            cross = self.cross(X, factor)
            A = whiten(cross.L, cross.Kuf)
            # A constant mean is a view of its parameter, which may move.
            mean = cross.mean.detach().clone()
            return Features(A, residual_variance(cross.k_diag, A), mean)

    def marginals_at(self, features: Features) -> Marginals:
        """`marginals` from constant features, differentiable in q(u) alone."""
        projected = project_whitened(features.A, features.residual, self.u_mean, self.u_chol)
        return Marginals(features.mean + projected.mean, projected.variance)

    def _conditional(
        self, X: Float[Tensor, "*#batch n d"], factor: Factor | None = None
    ) -> Conditional:
        """f at the rows of X given the inducing variables."""
        cross = self.cross(X, factor)
        A = whiten(cross.L, cross.Kuf)
        Kff = self.prior.gram(X).to(A.dtype)
        return Conditional(cross.mean, A, residual_covariance(Kff, cross.k_diag, A))

    def check_inputs(self, X: Tensor, who: str) -> None:
        """Refuse inputs of another width or with NaN."""
        d = self.Z.shape[-1]
        fits = X.ndim == 2 and X.shape[-1] == d
        require(fits, who, f"of shape (n, {d})", f"shape {tuple(X.shape)}")
        require(bool(torch.isfinite(X).all()), who, "finite", "NaN or infinity")
        require(X.dtype == self.Z.dtype, who, f"of the posterior's dtype {self.Z.dtype}", X.dtype)

    def reset(self) -> None:
        """q(u) = p(u)."""
        eye = torch.eye(self.Z.shape[-2], dtype=self.Z.dtype, device=self.Z.device)
        self.set_q(torch.zeros_like(self.u_mean), eye.expand(self.u_chol.shape))

    def set_q(self, u_mean: Float[Tensor, "*batch m"], u_chol: Float[Tensor, "*batch m m"]) -> None:
        """Give q(u) these whitened moments."""
        with torch.no_grad():
            self.u_mean.copy_(u_mean)
            self.u_chol.copy_(u_chol.tril())

    def with_unit_scale(self) -> "SparsePosterior":
        """The same mean of f, with the prior's output scale held at 1."""
        twin = copy.deepcopy(self)
        twin.prior = self.prior.with_unit_scale()
        with torch.no_grad():
            ratio = self.prior.scale / twin.prior.scale
            twin.u_mean.mul_(ratio.sqrt().unsqueeze(-1))
        return twin

    def repeated(self, number: int, shared_prior: bool) -> "SparsePosterior":
        """A batch of this posterior: `number` q(u), each with its own prior and Z unless shared."""
        twin = copy.deepcopy(self)
        names = ["u_mean", "u_chol"]
        if not shared_prior:
            twin.prior = twin.prior.repeated(number)
            names.append("Z")
        for name in names:
            value = getattr(self, name)
            many = value.detach().unsqueeze(0).repeat(number, *(1 for _ in value.shape))
            setattr(twin, name, nn.Parameter(many, value.requires_grad))
        return twin

    def member(self, index: int, like: "SparsePosterior") -> "SparsePosterior":
        """One posterior of a batch that is `repeated` from another like it."""
        twin = copy.deepcopy(like)
        batched = self.state_dict()
        with torch.no_grad():
            for name, value in twin.state_dict().items():
                many = batched[name]
                value.copy_(
                    (many if many.shape == value.shape else many[index]).reshape(value.shape)
                )
        return twin


def _joined(parts: list[Marginals]) -> Marginals:
    """Successive rows as one."""
    means, variances = [part.mean for part in parts], [part.variance for part in parts]
    return Marginals(torch.cat(means, -1), torch.cat(variances, -1))
