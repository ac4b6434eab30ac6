"""Fitted models in Bayesian optimisation with BoTorch, which is the extra `botorch`."""

from directgp.interop.botorch.model import DirectModel

__all__ = ["DirectModel"]
