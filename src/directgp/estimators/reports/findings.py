"""Everything that a fit has found and a user should know."""

import warnings
from collections.abc import Sequence

import numpy as np
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Float64

from directgp.errors import DirectGPWarning
from directgp.estimators.reports.advice import (
    NOISES,
    at_floor,
    beta_at_end,
    cut_short,
    flat_features,
)
from directgp.estimators.reports.record import ChosenPath
from directgp.estimators.tables.checks import FeatureNames
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import TrainingResult

_STILL_FALLING = 5e-3
"""Relative fall of the loss over the last tenth of the steps from which a run is called cut off."""


def length_scales(posterior: SparsePosterior) -> Float64[np.ndarray, " k"] | None:
    """Length scales of the kernel, one or one a feature; None where it has none of its own."""
    kernel: Kernel = posterior.prior.kernel
    while isinstance(kernel, ScaleKernel) and kernel.active_dims is None:
        kernel = kernel.base_kernel
    if not kernel.has_lengthscale or kernel.active_dims is not None:
        return None
    scales: Float64[np.ndarray, " k"] = kernel.lengthscale.detach().double().cpu().numpy().ravel()
    return scales


def findings_of_training(
    result: TrainingResult, path: ChosenPath | None, feature_names: FeatureNames | None
) -> list[str]:
    """What the result of a fit gives to think about."""
    # A model that has been compared with the ELBO may well let the variance of f be all the noise.
    compared = path is not None and any(p.hyperparameters == "elbo" for p in path.points)
    floors = [name for name in result.at_floor if not (compared and name in NOISES)]
    found = at_floor(floors) + cut_short(result.status, result.reason)
    scales = length_scales(result.posterior)
    if scales is not None and len(scales) > 1:
        found += flat_features(scales, feature_names)
    if path is not None:
        if path.points and result.hyperparameters != "elbo":
            found += beta_at_end(path.points[path.chosen].beta, path.grid)
        found += [f"A candidate could not be trained: {failure}" for failure in path.failed]
    return found


def still_falling(result: TrainingResult) -> bool:
    """Whether the last run was cut off by its steps while the loss fell fast."""
    losses = result.history
    tail = max(2, len(losses) // 10)
    if result.status != "budget":
        return False
    if len(losses) <= tail:
        return True
    fall = losses[-tail - 1] - losses[-1]
    return fall > _STILL_FALLING * max(1.0, abs(losses[-1]))


def issue(findings: Sequence[str], category: type[Warning] = DirectGPWarning) -> None:
    """One warning for each finding, attributed to who called the estimator."""
    for finding in findings:
        warnings.warn(finding, category, stacklevel=_OUTSIDE)


_OUTSIDE = 5
"""Frames between `issue` and the caller of `fit`."""
