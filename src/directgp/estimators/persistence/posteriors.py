"""A sparse posterior as a spec and tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from directgp.errors import ModelFileError, UnsupportedError
from directgp.estimators.persistence.kernels import build_kernel, kernel_spec
from directgp.estimators.persistence.means import build_mean, mean_spec
from directgp.estimators.persistence.modules import fill, frozen_names
from directgp.estimators.persistence.schema import PosteriorSpec
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.journal import under


def posterior_spec(posterior: SparsePosterior) -> PosteriorSpec:
    """What rebuilds a posterior, beside its state."""
    if posterior.u_chol.ndim != 2 or posterior.Z.ndim != 2:
        raise UnsupportedError(
            "A batch of posteriors cannot be saved. Save its members one by one."
        )
    return PosteriorSpec(
        kernel=kernel_spec(posterior.prior.kernel),
        mean=mean_spec(posterior.prior.mean_function),
        nugget=posterior.nugget,
        frozen=frozen_names(posterior, "posterior"),
    )


def load_posterior(spec: PosteriorSpec, tensors: Mapping[str, Tensor]) -> SparsePosterior:
    """The posterior with its state; no tensor of it is larger than those given."""
    Z = _inducing_inputs(tensors)
    d, own = Z.shape[-1], dict(tensors)
    kernel = build_kernel(spec.kernel, under("prior.kernel.", own), d)
    mean = build_mean(spec.mean, under("prior.mean_function.", own), d)
    posterior = SparsePosterior(Prior(kernel, mean, dtype=Z.dtype), Z, spec.nugget)
    fill(posterior, tensors, spec.frozen, "posterior")
    _check_prior(posterior.prior, posterior.Z.detach()[:2])
    return posterior


def _inducing_inputs(tensors: Mapping[str, Tensor]) -> Tensor:
    """Z, with q(u) checked against it and all in one precision."""
    Z, u_mean, u_chol = (tensors.get(name) for name in ("Z", "u_mean", "u_chol"))
    if Z is None or u_mean is None or u_chol is None:
        raise ModelFileError("the posterior lacks Z, u_mean or u_chol")
    if Z.ndim != 2 or Z.numel() == 0 or Z.dtype not in (torch.float32, torch.float64):
        raise ModelFileError(f"Z of the posterior has shape {list(Z.shape)} and is {Z.dtype}")
    m = Z.shape[0]
    if u_mean.shape != (m,) or u_chol.shape != (m, m):
        raise ModelFileError(f"q(u) has not the shape that {m} inducing inputs need")
    floating = (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    if any(dtype != Z.dtype for dtype in floating):
        raise ModelFileError(f"the parameters of the posterior are not all {Z.dtype}, as Z is")
    return Z


def _check_prior(prior: Prior, Z: Tensor) -> None:
    """Refuse a prior that cannot be evaluated at inputs of this width."""
    with torch.no_grad():
        values = (prior.covariance(Z, Z), prior.variance(Z), prior.mean(Z))
    k = Z.shape[0]
    shapes = [tuple(value.shape) for value in values]
    if shapes != [(k, k), (k,), (k,)]:
        raise ModelFileError("the prior gives no single covariance for a pair of inputs")
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise ModelFileError("the prior is not finite at the inducing inputs")
