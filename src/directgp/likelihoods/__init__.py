"""Likelihoods p(y given f), one family a file."""

from directgp.likelihoods.base import Derivatives, Likelihood
from directgp.likelihoods.bernoulli import Logistic, Probit
from directgp.likelihoods.counts import NegativeBinomial, Poisson
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.student_t import StudentT

__all__ = [
    "Derivatives",
    "Gaussian",
    "Likelihood",
    "Logistic",
    "NegativeBinomial",
    "Poisson",
    "Probit",
    "StudentT",
]
