"""A fitted estimator in the parts that a file keeps."""

from typing import TYPE_CHECKING, Any

import numpy as np

from directgp.estimators.persistence import ModelState

if TYPE_CHECKING:
    from directgp.estimators.telling import TellingEstimator


def state_of(model: "TellingEstimator") -> ModelState:
    """Everything that was learnt, and the constructor's parameters."""
    result, scalings = model.training_result_, model.scalings_
    classes = getattr(model, "classes_", None)
    names = getattr(model, "feature_names_in_", None)
    return ModelState(
        estimator=type(model).__name__,
        params=_params(model),
        posterior=model.posterior_,
        likelihood=model.likelihood_,
        arrays={
            "input_shift": scalings.inputs.shift,
            "input_scale": scalings.inputs.scale,
            "target_shift": scalings.targets.shift,
            "target_scale": scalings.targets.scale,
        },
        classes=None if classes is None else classes.tolist(),
        classes_dtype=None if classes is None else classes.dtype.str,
        feature_names=None if names is None else list(map(str, names)),
        stages=result.stages,
        record={
            "inputs_rounded": scalings.inputs.rounded,
            "targets_rounded": scalings.targets.rounded,
            "objective": result.objective,
            "beta": model.beta_,
            "hyperparameters": model.hyperparameters_,
            "path": None if model.beta_path_ is None else model.beta_path_.to_json(),
            "seconds": result.seconds,
            "fit_seconds": model.fit_seconds_,
            "exposed": model.exposed_,
            "threshold": getattr(model, "threshold_", None),
            "num_rows": model.num_rows_,
            "num_merged": model.num_merged_,
            "findings": list(model.findings_),
        },
    )


def _params(model: "TellingEstimator") -> dict[str, Any]:
    """The constructor's parameters; a type by its name, and a table as an array."""
    params: dict[str, Any] = model.get_params(deep=False)
    params["dtype"] = np.dtype(params["dtype"]).name
    if not isinstance(params["inducing"], str):
        params["inducing"] = np.asarray(params["inducing"], dtype=np.float64)
    return params
