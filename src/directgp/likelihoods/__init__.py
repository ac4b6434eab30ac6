"""Likelihoods p(y given f), one family a file."""

from directgp.likelihoods.base import Derivatives, Likelihood
from directgp.likelihoods.bernoulli import Logistic, Probit
from directgp.likelihoods.binomial import Binomial
from directgp.likelihoods.conway_maxwell import ConwayMaxwellPoisson
from directgp.likelihoods.counts import NegativeBinomial, Poisson
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.student_t import StudentT
from directgp.likelihoods.zero_inflated import ZeroInflatedNegativeBinomial, ZeroInflatedPoisson

__all__ = [
    "Binomial",
    "ConwayMaxwellPoisson",
    "Derivatives",
    "Gaussian",
    "Likelihood",
    "Logistic",
    "NegativeBinomial",
    "Poisson",
    "Probit",
    "StudentT",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
]
