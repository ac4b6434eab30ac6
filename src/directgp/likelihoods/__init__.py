"""Likelihoods p(y given f), one family a file."""

from directgp.integration.contract import Derivatives
from directgp.likelihoods.base import Likelihood, UnimodalInF
from directgp.likelihoods.bernoulli import Logistic, Probit
from directgp.likelihoods.beta import Beta
from directgp.likelihoods.binomial import Binomial
from directgp.likelihoods.conway_maxwell import ConwayMaxwellPoisson
from directgp.likelihoods.counts import NegativeBinomial, Poisson, PoissonExp, PoissonSoftplus
from directgp.likelihoods.gamma import Gamma
from directgp.likelihoods.gaussian import Gaussian, GaussianKnownNoise
from directgp.likelihoods.heteroscedastic import HeteroscedasticGaussian
from directgp.likelihoods.log_normal import LogNormal
from directgp.likelihoods.ordinal import OrderedProbit
from directgp.likelihoods.softmax import RobustMax, Softmax
from directgp.likelihoods.starts import rough_latent, starting_likelihood
from directgp.likelihoods.student_t import StudentT
from directgp.likelihoods.tobit import Tobit
from directgp.likelihoods.weibull import Weibull
from directgp.likelihoods.zero_inflated import ZeroInflatedNegativeBinomial, ZeroInflatedPoisson

__all__ = [
    "Beta",
    "Binomial",
    "ConwayMaxwellPoisson",
    "Derivatives",
    "Gamma",
    "Gaussian",
    "GaussianKnownNoise",
    "HeteroscedasticGaussian",
    "Likelihood",
    "LogNormal",
    "Logistic",
    "NegativeBinomial",
    "OrderedProbit",
    "Poisson",
    "PoissonExp",
    "PoissonSoftplus",
    "Probit",
    "RobustMax",
    "Softmax",
    "StudentT",
    "Tobit",
    "UnimodalInF",
    "Weibull",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedPoisson",
    "rough_latent",
    "starting_likelihood",
]
