"""Integrals over q(f) of a density p(y given f) and of its log: one integrator a file."""

from directgp.integration.adaptive import Adaptive
from directgp.integration.contract import Density, Derivatives, Integrator
from directgp.integration.gamma_mixture import GammaMixture
from directgp.integration.inflated import InflatedIntegrals
from directgp.integration.latents import LatentGrid, ReducedIntegrals
from directgp.integration.trapezoid import TrapezoidSums

__all__ = [
    "Adaptive",
    "Density",
    "Derivatives",
    "GammaMixture",
    "InflatedIntegrals",
    "Integrator",
    "LatentGrid",
    "ReducedIntegrals",
    "TrapezoidSums",
]
