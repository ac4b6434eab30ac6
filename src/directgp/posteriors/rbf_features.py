"""Inputs in a form in which one product gives the logarithm of an RBF covariance.

With a = Z/ℓ and b = X/ℓ,

    log K_uf = (a, log s² − ½‖a‖², −½ 1ᵀ) · (b, 1, b∘b)ᵀ
"""

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.numerics.workspace import Workspace
from directgp.posteriors.rbf import farthest

_FEW = 15


def centre_of(Z: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch 1 d"]:
    """The median of some inducing inputs: amid them, and no single far one moves it."""
    some = Z[..., :: -(-Z.shape[-2] // _FEW), :]
    return some.median(-2, keepdim=True).values


def inducing_side(
    Z: Float[Tensor, "*#batch m d"],
    centre: Float[Tensor, "*#batch 1 d"],
    lengthscale: Float[Tensor, "*#batch 1 k"],
    top: Float[Tensor, "*#batch 1 1"],
    out: Float[Tensor, "*batch m c"],
) -> Float[Tensor, "*batch m c"]:
    """(a, log s² − ½‖a‖², −½ 1ᵀ), written to `out`."""
    d = Z.shape[-1]
    a, height = _in_lengthscales(Z, centre, lengthscale, out[..., :d]), out[..., d : d + 1]
    squares = a.square().sum(-1, keepdim=True)
    height.copy_(torch.sub(top, squares, alpha=0.5))
    out[..., d + 1 :] = -0.5
    return out


def input_side(
    X: Float[Tensor, "n d"],
    centre: Float[Tensor, "*#batch 1 d"],
    lengthscale: Float[Tensor, "*#batch 1 k"],
    workspace: Workspace,
) -> Float[Tensor, "*batch n c"]:
    """(b, 1, b∘b)."""
    n, d = X.shape
    shapes = centre.shape[:-2], lengthscale.shape[:-2]
    batch = torch.broadcast_shapes(*shapes) if any(shapes) else ()
    out = workspace.take("inputs", (*batch, n, 2 * d + 1), X)
    b = _in_lengthscales(X, centre, lengthscale, out[..., :d])
    out[..., d] = 1
    torch.mul(b, b, out=out[..., d + 1 :])
    return out


def covariance(
    inducing: Float[Tensor, "*#batch m c"],
    inputs: Float[Tensor, "*#batch n c"],
    top: Float[Tensor, "*#batch 1 1"],
    out: Float[Tensor, "*batch m n"],
) -> Float[Tensor, "*batch m n"]:
    """K_uf from the two sides, at most s² however it is rounded, written to `out`."""
    torch.matmul(inducing, inputs.mT, out=out)
    return torch.minimum(out, top, out=out).exp_()


def _in_lengthscales(x: Tensor, centre: Tensor, lengthscale: Tensor, out: Tensor) -> Tensor:
    """From a centre, where squares lose the fewest digits, and within reach of them."""
    reach = farthest(x.dtype)
    return torch.sub(x.expand(out.shape), centre, out=out).div_(lengthscale).clamp_(-reach, reach)
