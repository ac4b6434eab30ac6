"""Exact objective at a library's parameters, in float64."""

import math

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean, ZeroMean
from numpy.polynomial.hermite import hermgauss
from scipy.special import gammaln, log_ndtr, logsumexp
from torch import Tensor

from benchmarks.optimum.jobs import Array, Given, Parameters
from benchmarks.optimum.recorder import start
from directgp.errors import DirectGPError
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit
from directgp.objectives import GibbsLoss, LogLoss, Objective
from directgp.posteriors import Prior, SparsePosterior

_LEAST = 1e-12
"""Relative nugget of a library that adds none."""


def posterior_of(given: Given, at: Parameters | None = None) -> SparsePosterior:
    """Return the posterior with these parameters, or the starting one.

    A library's jitter of K_uu is part of the definition of u, so it becomes our nugget.
    """
    values = start(given) if at is None else at
    scale = float(values["output_scale"])
    kernel = RBFKernel().double()
    # A plain float would be stored in single precision.
    kernel.lengthscale = _tensor(values["lengthscale"])
    mean = ZeroMean()
    if given.mean is not None:
        mean = ConstantMean().double()
        mean.constant = _tensor(values["mean"])
    nugget = None if at is None else max(float(values["jitter"]) / scale, _LEAST)
    Z = torch.tensor(values["Z"], dtype=torch.float64)
    posterior = SparsePosterior(Prior(kernel, mean, scale), Z, nugget)
    posterior.set_q(_tensor(values["u_mean"]), _tensor(values["u_chol"]))
    return posterior


def likelihood_of(given: Given, at: Parameters | None = None) -> Likelihood:
    """Return the likelihood with these parameters, or the starting one."""
    if given.kind == "regression":
        return Gaussian(given.noise if at is None else float(at["noise"])).double()
    return Probit() if given.kind == "classification" else Poisson()


def objective_at(given: Given, at: Parameters) -> float:
    """Return the objective, infinity for invalid parameters."""
    loss = GibbsLoss() if given.objective == "elbo" else LogLoss()
    objective = Objective(loss, len(given.y), given.beta)
    try:
        posterior, likelihood = posterior_of(given, at), likelihood_of(given, at)
        marginals = posterior.predict(torch.from_numpy(given.X))
        with torch.no_grad():
            value = objective(likelihood, torch.from_numpy(given.y), marginals, posterior.kl())
    except DirectGPError:
        return math.inf
    return float(value) if torch.isfinite(value) else math.inf


def nll_at(given: Given, at: Parameters, X: Array, y: Array) -> Array:
    """Return the exact −log p(y given x) of each row."""
    marginals = posterior_of(given, at).predict(torch.from_numpy(X))
    with torch.no_grad():
        losses: Tensor = LogLoss()(likelihood_of(given, at), torch.from_numpy(y), marginals)
    return losses.numpy()


def claim_at(given: Given, at: Parameters, floor: float, extra: float) -> float:
    """Return the objective as a library defines it: 20 nodes, its floors, its jitter.

    This does not use `directgp.objectives`.
    """
    posterior = posterior_of(given, at)
    marginals = posterior.predict(torch.from_numpy(given.X))
    m, v = marginals.mean.numpy(), marginals.variance.numpy() + extra
    kl = float(posterior.kl().detach())
    return float(_losses(given, at, m, v, floor).mean()) + given.beta * kl / len(given.y)


def _losses(given: Given, at: Parameters, m: Array, v: Array, floor: float) -> Array:
    """Return the loss of each example."""
    gibbs = given.objective == "elbo"
    if given.kind == "regression":
        noise = float(at["noise"])
        spread = noise if gibbs else noise + v
        square = (given.y - m) ** 2 + (v if gibbs else 0.0)
        losses: Array = 0.5 * (np.log(2 * np.pi * spread) + square / spread)
        return losses
    if given.kind == "classification" and not gibbs:
        return -_log_label(given.y, m / np.sqrt(1 + v), floor)
    places, weights = hermgauss(20)
    f = m + np.sqrt(2 * v) * places[:, None]
    shares = weights[:, None] / np.sqrt(np.pi)
    counts = given.kind == "counts"
    log_p = _log_count(given.y, f) if counts else _log_label(given.y, f, floor)
    expected: Array = (shares * log_p).sum(0) if gibbs else logsumexp(log_p, axis=0, b=shares)
    return -expected


def _log_count(y: Array, f: Array) -> Array:
    density: Array = y * f - np.exp(f) - gammaln(y + 1)
    return density


def _log_label(y: Array, f: Array, floor: float) -> Array:
    """Return log Φ(±f), mixed with a constant share of both labels."""
    sure: Array = log_ndtr((2 * y - 1) * f)
    return sure if floor == 0 else np.log(np.exp(sure) * (1 - 2 * floor) + floor)


def _tensor(values: Array) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
