"""Save and load fitted estimators."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from directgp.errors import ModelFileError
from directgp.estimators.base import STRUCTURE
from directgp.estimators.classifier import SparseGPClassifier
from directgp.estimators.count_regressor import SparseGPCountRegressor
from directgp.estimators.preprocessing import Scaling, Scalings
from directgp.estimators.regressor import SparseGPRegressor
from directgp.estimators.settings import device_of
from directgp.persistence import ModelState, load_model
from directgp.training.result import BetaPath, TrainingResult

if TYPE_CHECKING:
    from directgp.estimators.base import TellingEstimator


_CLASSES: dict[str, type["TellingEstimator"]] = {
    each.__name__: each for each in (SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor)
}


def load(path: str | os.PathLike[str], device: str = "auto") -> Any:
    """Load a model that its `save` method wrote.

    Nothing in the file is run. Predictions are those of the saved model, bit for bit on the same
    machine.

    Parameters
    ----------
    path : path
        The file.
    device : str
        Where the model goes, and its `device` parameter from now on; "auto" is CUDA where there
        is one, wherever the model was trained.

    Returns
    -------
    SparseGPRegressor, SparseGPClassifier or SparseGPCountRegressor
        Fitted.

    Raises
    ------
    ModelFileError
        There is no such file, it is damaged, of another format, or says what cannot be.

    Examples
    --------
    >>> import tempfile, directgp
    >>> from directgp import SparseGPRegressor
    >>> X, y = [[0.0], [0.0], [1.0], [1.0], [2.0], [2.0]], [0.1, -0.1, 1.1, 0.8, 0.1, -0.2]
    >>> model = SparseGPRegressor(objective="elbo", beta=1.0, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model")
    ...     again = directgp.load(f"{folder}/model")
    >>> bool((again.predict(X) == model.predict(X)).all())
    True
    """
    state = load_model(path, device_of(device, "load"))
    try:
        return _estimator(state, device)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{os.fspath(path)} cannot be loaded as a model: what it says of the fit is not whole "
            f"({error}). Take another copy of it, or fit and save the model again."
        ) from error


def _estimator(state: ModelState, device: str) -> "TellingEstimator":
    model = _CLASSES[state.estimator](**{**state.params, "device": device})
    record = state.record
    model.posterior_, model.likelihood_ = state.posterior, state.likelihood
    d = state.posterior.Z.shape[-1]
    model.scalings_ = Scalings(_scaling(state, "input", d), _scaling(state, "target", 1))
    model.beta_, model.hyperparameters_ = float(record["beta"]), str(record["hyperparameters"])
    path = record["path"]
    model.beta_path_ = None if path is None else BetaPath.from_json(path)
    model.training_result_ = TrainingResult(
        posterior=state.posterior,
        likelihood=state.likelihood,
        objective=str(record["objective"]),
        beta=model.beta_,
        hyperparameters=model.hyperparameters_,
        stages=state.stages,
        seconds=float(record["seconds"]),
    )
    model.n_iter_ = model.training_result_.steps
    model.num_rows_, model.num_merged_ = int(record["num_rows"]), int(record["num_merged"])
    model.exposed_ = bool(record["exposed"])
    model._structure = {name: getattr(model, name) for name in STRUCTURE}
    model.fit_seconds_ = float(record["fit_seconds"])
    model.findings_ = tuple(map(str, record["findings"]))
    model.n_features_in_ = d
    if state.feature_names is not None:
        model.feature_names_in_ = np.array(state.feature_names, dtype=object)
    if isinstance(model, SparseGPClassifier):
        classes = state.labels()
        if classes is None or len(classes) != 2:
            raise ValueError("a classifier needs two classes")
        model.classes_ = classes
        model.threshold_ = float(record["threshold"])
        if not 0 < model.threshold_ < 1:
            raise ValueError(f"threshold {model.threshold_} is not between 0 and 1")
    return model


def _scaling(state: ModelState, what: str, d: int) -> Scaling:
    """The scaling of inputs or targets, of d columns."""
    shift, scale = (state.arrays[f"{what}_{part}"] for part in ("shift", "scale"))
    if not shift.shape == scale.shape == (d,) or not scale.all():
        raise ValueError(f"the scaling of each {what} needs {d} numbers, and no scale of 0")
    return Scaling(shift, scale, bool(state.record[f"{what}s_rounded"]))
