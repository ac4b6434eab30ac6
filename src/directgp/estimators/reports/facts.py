"""What there is to tell of a fitted estimator, gathered for its summary."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.kernels import Kernel

from directgp.estimators.reports.findings import length_scales
from directgp.estimators.reports.summary import Facts
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.negative_binomial import NegativeBinomial
from directgp.likelihoods.student_t import StudentT
from directgp.objectives.base import PointLoss

if TYPE_CHECKING:
    from directgp.estimators.telling import TellingEstimator


def facts_of(model: "TellingEstimator") -> Facts:
    """The facts of a fitted estimator, in the user's units."""
    result = model.training_result_
    objective = model.objective
    return Facts(
        estimator=type(model).__name__,
        num_rows=model.num_rows_,
        num_features=model.n_features_in_,
        kernel=_kernel(model),
        likelihood=type(model.likelihood_).__name__,
        num_inducing=len(model.posterior_.Z),
        objective=objective.name if isinstance(objective, PointLoss) else objective,
        hyperparameters=model.hyperparameters_,
        beta=model.beta_,
        beta_given=model.beta != "auto",
        status=result.status.value,
        reason=result.reason,
        steps=result.steps,
        evaluations=result.evaluations,
        seconds=model.fit_seconds_,
        num_merged=model.num_merged_,
        jitter=result.jitter,
        noise=_noise(model),
        length_scales=_length_scales(model),
        output_scale=_in_units(model, float(model.posterior_.prior.scale.detach().sqrt())),
        path=model.beta_path_,
        warnings=model.findings_,
    )


def _kernel(model: "TellingEstimator") -> str:
    kernel = model._structure["kernel"]
    if isinstance(kernel, Kernel):
        return type(kernel).__name__
    scales = length_scales(model.posterior_)
    return f"{kernel} ARD" if scales is not None and len(scales) > 1 else str(kernel)


def _in_units(model: "TellingEstimator", deviation: float) -> float:
    return float(model._deviation_in_units(np.array([deviation]))[0])


def _noise(model: "TellingEstimator") -> tuple[tuple[str, float], ...]:
    """Parameters of the likelihood."""
    likelihood = model.likelihood_
    with torch.no_grad():
        if isinstance(likelihood, Gaussian):
            noise = _in_units(model, float(likelihood.noise.sqrt()))
            return (("noise standard deviation", noise),)
        if isinstance(likelihood, StudentT):
            scale = _in_units(model, float(likelihood.scale))
            return ("noise scale", scale), ("degrees of freedom", float(likelihood.df))
        if isinstance(likelihood, NegativeBinomial):
            return (("dispersion", float(likelihood.dispersion)),)
    return ()


def _length_scales(model: "TellingEstimator") -> tuple[tuple[str, float, float], ...]:
    """One for all features, or one for each, in its units and in its deviations."""
    scales = length_scales(model.posterior_)
    if scales is None:
        return ()
    spread = np.abs(model.scalings_.inputs.scale)
    if len(scales) == 1 < model.n_features_in_:
        return (("", float("nan"), float(scales[0])),)
    numbers = [f"column {j}" for j in range(model.n_features_in_)]
    names = getattr(model, "feature_names_in_", numbers)
    return tuple(
        (str(name), float(scale * unit), float(scale))
        for name, scale, unit in zip(names, scales, spread, strict=True)
    )
