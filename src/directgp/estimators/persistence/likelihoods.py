"""Likelihoods as specs and tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from directgp.errors import ModelFileError, UnsupportedError
from directgp.estimators.persistence.modules import frozen_names, hold, require_finite
from directgp.estimators.persistence.schema import LikelihoodSpec
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.bernoulli import Logistic, Probit
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.negative_binomial import NegativeBinomial
from directgp.likelihoods.poisson import PoissonExp, PoissonSoftplus
from directgp.likelihoods.student_t import StudentT

LIKELIHOODS: dict[str, type[Likelihood]] = {
    make.__name__: make
    for make in (
        Gaussian,
        Logistic,
        NegativeBinomial,
        PoissonExp,
        PoissonSoftplus,
        Probit,
        StudentT,
    )
}


def likelihood_spec(likelihood: Likelihood) -> LikelihoodSpec:
    """What rebuilds a likelihood, beside its state; exposures are data, and no part of it."""
    kind = type(likelihood).__name__
    if LIKELIHOODS.get(kind) is not type(likelihood):
        raise UnsupportedError(
            f"The likelihood {kind} cannot be saved. Those that can are {', '.join(LIKELIHOODS)}."
        )
    if any(parameter.numel() != 1 for parameter in likelihood.parameters()):
        raise UnsupportedError(
            f"A {kind} with more than one value a parameter cannot be saved. Save the members of a"
            " batch one by one."
        )
    return LikelihoodSpec(kind=kind, frozen=frozen_names(likelihood, "likelihood"))


def load_likelihood(spec: LikelihoodSpec, tensors: Mapping[str, Tensor]) -> Likelihood:
    """The likelihood with its raw parameters bit for bit."""
    make = LIKELIHOODS.get(spec.kind)
    if make is None:
        raise ModelFileError(f"no likelihood {spec.kind!r} is known")
    likelihood = make()
    names = [name for name, _ in likelihood.named_parameters()]
    if set(names) != tensors.keys():
        raise ModelFileError(f"the parameters of {spec.kind} are {names}, and not those it has")
    for name in names:
        raw = tensors[name]
        if raw.numel() != 1 or raw.ndim > 2 or raw.dtype not in (torch.float32, torch.float64):
            raise ModelFileError(f"{name} of {spec.kind} has to be one number")
        require_finite(f"{name} of {spec.kind}", raw)
        setattr(likelihood, name, nn.Parameter(raw.clone()))
    hold(likelihood, spec.frozen, "likelihood")
    return likelihood
