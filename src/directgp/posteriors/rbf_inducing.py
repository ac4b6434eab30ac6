"""K_uu of an RBF prior, factorised in float64, and its way back to the inducing inputs."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.numerics.cholesky import jittered_cholesky
from directgp.numerics.triangular import congruence
from directgp.numerics.workspace import Workspace


class Inducing(NamedTuple):
    """What a step needs of the inducing inputs, in float64."""

    inputs: Float[Tensor, "*batch m c"]
    """(a, 1), with a in units of the lengthscales."""

    Kuu: Float[Tensor, "*batch m m"]
    L: Float[Tensor, "*batch m m"]
    inverse: Float[Tensor, "*batch m m"]
    """L⁻¹."""

    jitter: Float[Tensor, "*batch"]


def factorise(
    a: Float[Tensor, "*batch m d"],
    log_scale: Float[Tensor, "*#batch"],
    nugget: float,
    checked: bool,
    workspace: Workspace,
) -> Inducing:
    """K_uu of inducing inputs in units of their lengthscales, and its factor inverted."""
    m, d = a.shape[-2:]
    top = log_scale.double()[..., None, None]
    inputs = workspace.take("inducing inputs", (*a.shape[:-1], d + 1), top)
    inputs[..., :d] = a
    inputs[..., d] = 1
    Kuu = _log_gram(inputs[..., :d], top, by_differences=a.dtype == torch.float64)
    diagonal = Kuu.diagonal(dim1=-2, dim2=-1).copy_(top.squeeze(-1))
    Kuu.exp_()
    diagonal.mul_(1 + nugget)
    if checked:
        factorised = jittered_cholesky(Kuu)
        L, jitter = factorised.factor, factorised.jitter
    else:
        L = torch.linalg.cholesky_ex(Kuu).L
        jitter = L.new_zeros(L.shape[:-2])
    inverse = torch.linalg.solve_triangular(L, workspace.identity(m, L), upper=False)
    return Inducing(inputs, Kuu, L, inverse, jitter)


def through_gram(
    inner: Float[Tensor, "*batch m m"], inducing: Inducing
) -> tuple[Float[Tensor, "*batch m d"], Float[Tensor, "*batch"]]:
    """What K_uu passes on to a and, twice, to log s².

    Its gradient is ½ L⁻ᵀ C L⁻¹, with C the lower triangle of `inner`, mirrored.
    """
    lower = inner.tril()
    lower.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    C = torch.add(lower, lower.mT, out=torch.empty_like(lower, dtype=torch.float64))
    G = congruence(C, inducing.inverse).mul_(inducing.Kuu)
    summed = G @ inducing.inputs
    rows = summed[..., -1:]
    da = torch.addcmul(summed[..., :-1], rows, inducing.inputs[..., :-1], value=-1)
    return da.to(inner.dtype), rows.sum((-2, -1)).to(inner.dtype)


def _log_gram(a: Tensor, top: Tensor, by_differences: bool) -> Tensor:
    """log K of inputs with themselves; by a product where they come from float32.

    There float64 has digits to spare. As for differences, see `rbf_gram`.
    """
    if by_differences:
        distance = torch.cdist(a, a, compute_mode="donot_use_mm_for_euclid_dist")
        return torch.sub(top, distance.square_(), alpha=0.5)
    product = a @ a.mT
    half = (product.diagonal(dim1=-2, dim2=-1) - top.squeeze(-1)).mul_(0.5).unsqueeze(-1)
    return torch.minimum(product.sub_(half).sub_(half.mT), top, out=product)
