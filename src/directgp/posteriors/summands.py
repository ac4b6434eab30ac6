"""Compute the posterior of single summands of f, such as the terms of a kernel."""

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.kernels.summands import Summand, covariances, summands_of, variances
from directgp.posteriors.projection import project_whitened, residual_variance
from directgp.posteriors.sparse import SparsePosterior
from directgp.shapes import Inputs, Marginals

# f = mean + Σ_t f_t with independent f_t ~ GP(0, k_t) and k = Σ_t k_t. As u = f(Z), the covariance
# of f_t and u is k_t, and with A_t = L⁻¹ K_t(Z, X),
#
# mean_t     = A_tᵀ m
# variance_t = k_t(x, x) − Σ_j A_tj² + Σ_j (SᵀA_t)_j²

_BLOCK_VALUES = 2**20
"""Entries of K_t in one block of rows."""


@final
class SummandPosterior:
    """The posterior of summands of f, in float64 and without gradients.

    `summands` has those of the kernel: each term, or the effects of an additive term. A kernel that
    is no expression is one summand.

    Examples
    --------
    >>> X = torch.linspace(-1, 1, 5, dtype=torch.float64).reshape(-1, 1)
    >>> from directgp.kernels import parse
    >>> posterior = SparsePosterior.from_data(X, kernel=parse("RBF('x0') + Linear('x0')"))
    >>> SummandPosterior(posterior).marginals(X).mean.shape
    torch.Size([2, 5])
    """

    def __init__(self, posterior: SparsePosterior) -> None:
        self.posterior = copy.deepcopy(posterior).double()
        structure = self.posterior.prior.structure
        self.summands = [Summand(())] if structure is None else summands_of(structure)
        """The summands of the kernel, whose means add up to the mean of f without its constant."""

    @cached_property
    def _inverse(self) -> Float[Tensor, "*batch m m"]:
        """L⁻¹."""
        with torch.no_grad():
            L = self.posterior.factor().L
            eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
            inverse: Tensor = torch.linalg.solve_triangular(L, eye, upper=False)
        return inverse

    def marginals(self, X: Inputs, summands: Sequence[Summand] | None = None) -> Marginals:
        """Return mean and variance of each summand at each row of X, of shape (t, *batch, n)."""
        posterior = self.posterior
        summands = self.summands if summands is None else summands
        means, deviations = [], []
        with torch.no_grad():
            for block in self._blocks(X):
                pairs = zip(
                    self._covariances(block, summands),
                    self._variances(block, summands),
                    strict=True,
                )
                moments = []
                for K, k_diag in pairs:
                    A = self._inverse @ K
                    residual = residual_variance(k_diag, A)
                    moments.append(
                        project_whitened(A, residual, posterior.u_mean, posterior.u_chol)
                    )
                means.append(torch.stack([each.mean for each in moments]))
                deviations.append(torch.stack([each.variance for each in moments]))
        return Marginals(torch.cat(means, -1), torch.cat(deviations, -1))

    def means(
        self, X: Inputs, summands: Sequence[Summand] | None = None
    ) -> Float[Tensor, "t *batch n"]:
        """Return the means of `marginals`, in a fraction of the time."""
        summands = self.summands if summands is None else summands
        with torch.no_grad():
            # K_tᵀ L⁻ᵀ m
            weights = self.posterior.u_mean.unsqueeze(-2) @ self._inverse
            blocks = [
                torch.stack([(weights @ K).squeeze(-2) for K in self._covariances(block, summands)])
                for block in self._blocks(X)
            ]
        return torch.cat(blocks, -1)

    def constant(self, X: Inputs) -> Float[Tensor, "*batch n"]:
        """Return the prior mean of f, which is in no summand."""
        with torch.no_grad():
            return self.posterior.prior.mean(X.to(self.posterior.Z)).detach()

    def _blocks(self, X: Inputs) -> Sequence[Tensor]:
        """Return the rows in blocks that bound the memory."""
        rows = max(1, _BLOCK_VALUES // self.posterior.u_mean.numel())
        blocks: tuple[Tensor, ...] = X.to(self.posterior.Z).split(rows)
        return blocks

    def _covariances(self, X: Tensor, summands: Sequence[Summand]) -> Iterator[Tensor]:
        """Yield K_t(Z, X) of each summand."""
        prior = self.posterior.prior
        structure = prior.structure
        if structure is None:
            return (prior.covariance(self.posterior.Z, X) for _ in summands)
        scale = prior.scale[..., None, None]
        return (scale * K for K in covariances(structure, self.posterior.Z, X, summands))

    def _variances(self, X: Tensor, summands: Sequence[Summand]) -> Iterator[Tensor]:
        """Yield k_t(x, x) of each summand."""
        prior = self.posterior.prior
        structure = prior.structure
        if structure is None:
            return (prior.variance(X) for _ in summands)
        return (prior.scale[..., None] * k for k in variances(structure, X, summands))
