"""Inputs in a form in which one product gives the logarithm of an RBF covariance.

With a = Z/ℓ and b = X/ℓ,

    log K_uf = (a, log s² − ½‖a‖², −½ 1ᵀ) · (b, 1, b∘b)ᵀ
"""

import numpy as np
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


def in_lengthscales(
    x: Float[Tensor, "*#batch n d"],
    centre: Float[Tensor, "*#batch 1 d"],
    lengthscale: Float[Tensor, "*#batch 1 k"],
    out: Float[Tensor, "*batch n d"],
) -> Float[Tensor, "*batch n d"]:
    """From a centre, where squares lose the fewest digits, and within reach of them."""
    reach = farthest(x.dtype)
    return torch.sub(x.expand(out.shape), centre, out=out).div_(lengthscale).clamp_(-reach, reach)


def complete(left: Float[Tensor, "*batch m c"], top: Float[Tensor, "*#batch 1 1"]) -> None:
    """Write log s² − ½‖a‖² and −½ 1ᵀ beside a."""
    d = left.shape[-1] // 2
    squares = left[..., :d].square().sum(-1, keepdim=True)
    left[..., d : d + 1] = torch.sub(top, squares, alpha=0.5)
    left[..., d + 1 :] = -0.5


def input_features(
    X: Float[Tensor, "n d"],
    centre: Float[Tensor, "*#batch 1 d"],
    lengthscale: Float[Tensor, "*#batch 1 k"],
    workspace: Workspace,
) -> Float[Tensor, "*batch n c"]:
    """(b, 1, b∘b)."""
    n, d = X.shape
    shapes = centre.shape[:-2], lengthscale.shape[:-2]
    batch = np.broadcast_shapes(*shapes) if any(shapes) else ()
    out = workspace.take("features", (*batch, n, 2 * d + 1), X)
    b = in_lengthscales(X, centre, lengthscale, out[..., :d])
    out[..., d] = 1
    torch.mul(b, b, out=out[..., d + 1 :])
    return out


def covariance(
    left: Float[Tensor, "*#batch m c"],
    features: Float[Tensor, "*#batch n c"],
    top: Float[Tensor, "*#batch 1 1"],
    out: Float[Tensor, "*batch m n"],
) -> Float[Tensor, "*batch m n"]:
    """K_uf from the two factors, at most s² however it is rounded, written to `out`."""
    torch.matmul(left, features.mT, out=out)
    return torch.minimum(out, top, out=out).exp_()
