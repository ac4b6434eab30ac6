"""Objectives and likelihoods of directgp inside GPyTorch."""

from directgp.interop.gpytorch.likelihoods import GPyTorchLikelihood
from directgp.interop.gpytorch.objectives import BetaELBO, DirectLogLoss, DirectLoss

__all__ = ["BetaELBO", "DirectLogLoss", "DirectLoss", "GPyTorchLikelihood"]
