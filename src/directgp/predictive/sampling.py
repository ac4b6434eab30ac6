"""Draws of y given f."""

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.bernoulli import Bernoulli
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.negative_binomial import NegativeBinomial
from directgp.likelihoods.poisson import PoissonCounts
from directgp.likelihoods.student_t import StudentT

Draws = Float64[np.ndarray, "k n"]

_LARGEST_RATE = 1e18


@torch.no_grad()
def sample_targets(likelihood: Likelihood, f: Tensor, random: np.random.RandomState) -> Draws:
    """One draw of y for each f, of the same shape."""
    latent = f.detach().double().cpu()
    mean: Draws = likelihood.conditional_mean(latent.to(f.device)).detach().cpu().numpy()
    if isinstance(likelihood, Gaussian):
        noise = random.standard_normal(latent.shape)
        return np.asarray(mean + np.sqrt(float(likelihood.noise)) * noise)
    if isinstance(likelihood, StudentT):
        # Its mean may not exist; f is the centre.
        noise = random.standard_t(float(likelihood.df), latent.shape)
        return latent.numpy() + float(likelihood.scale) * noise
    if isinstance(likelihood, Bernoulli):
        return (random.random_sample(latent.shape) < mean).astype(np.float64)
    if isinstance(likelihood, NegativeBinomial):
        r = float(likelihood.dispersion)
        return _poisson(mean * random.gamma(r, 1 / r, latent.shape), random)
    if isinstance(likelihood, PoissonCounts):
        return _poisson(mean, random)
    raise UnsupportedError(
        f"Draws of y need a likelihood of directgp. Got {type(likelihood).__name__}. "
        "Draw f, and y from it."
    )


def _poisson(mean: Draws, random: np.random.RandomState) -> Draws:
    """Poisson draws; numpy has none beyond 9e18, where their spread is below rounding anyway."""
    drawn = random.poisson(np.minimum(mean, _LARGEST_RATE)).astype(np.float64)
    return np.asarray(np.where(mean > _LARGEST_RATE, np.floor(mean), drawn))
