"""Saved and loaded models are equal; other files raise an error."""

import copy
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel
from matplotlib.figure import Figure
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor, load
from directgp.errors import InvalidInputError, ModelFileError, UnsupportedError
from directgp.io import read_file, write_file
from directgp.kernels import RBF, Matern52, Periodic
from directgp.likelihoods import Gaussian, Logistic, NegativeBinomial
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.log_expectations.rule import Quadrature
from directgp.objectives import LogLoss, PinballLoss, ZeroOneCost
from directgp.persistence.models import MODEL
from tests.estimators import fitted_mixtures
from tests.estimators.fitted_mixtures import NEW, PLANS, QUICK, mixture
from tests.estimators.fitted_models import (
    COUNTS,
    HOURS,
    LABELS,
    LIGHT,
    SPENT,
    THERE,
    X,
    Y,
    classifier,
    counter,
    regressor,
)

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
]

SHORT = {**LIGHT, "num_inducing": 5, "max_iter": 4}
NAMED = pd.DataFrame({"höhe, in m": X[:, 0], "b": np.cos(X[:, 0])})


def predictions(model: Any, inputs: Any = THERE) -> dict[str, Any]:
    """What every method of prediction says."""
    found: dict[str, Any] = {"predict": model.predict(inputs)}
    found["latent"] = model.predict_latent(inputs)
    if isinstance(model, SparseGPClassifier):
        labels = np.resize(model.classes_, len(inputs))
        return found | {
            "proba": model.predict_proba(inputs),
            "log_proba": model.predict_log_proba(inputs),
            "decision": model.decision_function(inputs),
            "log_density": model.log_density(inputs, labels),
            "nll": model.nll(inputs, labels),
            "score": model.score(inputs, labels),
        }
    y = np.arange(len(inputs)) % 7.0
    given: dict[str, Any] = {}
    if isinstance(model, SparseGPCountRegressor):
        given = {"exposure": np.resize(SPENT, len(inputs))}
        found["pmf"] = model.predict_pmf(inputs, 5, **given)
    else:
        found["std"] = model.predict(inputs, return_std=True)
    return found | {
        "quantiles": model.predict_quantiles(inputs, [0.1, 0.5, 0.99], **given),
        "interval": model.predict_interval(inputs, 0.8, **given),
        "samples": model.sample_y(inputs, 3, random_state=5, **given),
        "log_density": model.log_density(inputs, y, **given),
        "nll": model.nll(inputs, y, **given),
        "score": model.score(inputs, y, **given),
    }


def summary(model: Any) -> str:
    return str(model.summary())


def again(model: Any, folder: Path, **how: Any) -> Any:
    model.save(folder / "model.dgp")
    return load(folder / "model.dgp", **how)


def assert_same(loaded: Any, model: Any, inputs: Any = THERE) -> None:
    assert type(loaded) is type(model)
    there, here = predictions(loaded, inputs), predictions(model, inputs)
    for name, values in here.items():
        np.testing.assert_array_equal(there[name], values, err_msg=name, strict=True)
    assert summary(loaded) == summary(model)
    assert loaded.beta_path_ == model.beta_path_
    for name in ("beta_", "hyperparameters_", "n_iter_", "n_features_in_", "findings_"):
        assert getattr(loaded, name) == getattr(model, name)
    one, other = loaded.training_result_, model.training_result_
    assert (one.stages, one.seconds, one.objective) == (
        other.stages,
        other.seconds,
        other.objective,
    )
    assert [key for key in vars(model) if key not in vars(loaded)] == []


def search(make: Any, y: Any, **settings: Any) -> Any:
    """A fit that had something to choose."""
    choice = {"beta": "auto", "hyperparameters": "auto", "ard": "auto", "validation_fraction": 0.3}
    return make(**{**SHORT, **choice, **settings}).fit(NAMED, y)


MODELS: dict[str, Callable[[], Any]] = {
    "gaussian": regressor,
    "student": lambda: regressor("student_t"),
    "float32": lambda: regressor(dtype="float32"),
    "probit": classifier,
    "logistic": lambda: classifier(likelihood="logistic"),
    "poisson": counter,
    "softplus": lambda: counter("poisson_softplus"),
    "negative binomial": lambda: counter("negative_binomial"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_predicts_the_same_bits(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    assert_same(again(model, tmp_path), model)


EXPRESSIONS: dict[str, Any] = {
    "parts": Matern52(0) + Periodic(0, period=2.0) * RBF(0),
    "text": "Linear(0) + Additive(0)",
}


@pytest.mark.parametrize("make", [regressor, classifier, counter])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_loaded_expression_predicts_the_same_bits(name: str, make: Any, tmp_path: Path) -> None:
    model = make(kernel=EXPRESSIONS[name], ard="auto", num_inducing=8)
    loaded = again(model, tmp_path)
    assert_same(loaded, model)
    assert loaded.kernel == model.kernel == EXPRESSIONS[name]
    assert read_file(MODEL, tmp_path / "model.dgp").manifest["format"] == 6


SEARCHED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "numbers": (SparseGPRegressor, Y, {}),
    "labels": (SparseGPClassifier, LABELS, {}),
    "counts": (SparseGPCountRegressor, COUNTS, {"likelihood": "poisson"}),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_names_of_features_and_the_choice_come_back(name: str, tmp_path: Path) -> None:
    make, y, settings = SEARCHED[name]
    model = search(make, y, **settings)
    loaded = again(model, tmp_path)
    assert_same(loaded, model, NAMED)
    assert loaded.feature_names_in_.tolist() == NAMED.columns.tolist()
    assert loaded.feature_names_in_.dtype == model.feature_names_in_.dtype
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(NAMED[["b", "höhe, in m"]])
    ax = Figure().subplots()
    assert loaded.plot_beta_path(ax) is ax
    assert loaded.plot_calibration(NAMED, y).get_title() is not None


@pytest.mark.parametrize(
    "classes",
    [
        np.array(["ja", "nein"]),
        np.array(["ja", "nein"], dtype=object),
        np.array([3, 7]),
        np.array([False, True]),
        np.array([-1.0, 2.0]),
        np.array([0, 255], dtype=np.uint8),
    ],
    ids=lambda each: str(each.dtype),
)
def test_classes_come_back_with_their_type(classes: Any, tmp_path: Path) -> None:
    model = SparseGPClassifier(objective="elbo", **SHORT).fit(
        X, classes[(LABELS == "yes").astype(int)]
    )
    loaded = again(model, tmp_path)
    assert (loaded.classes_.dtype, loaded.classes_.tolist()) == (classes.dtype, classes.tolist())
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X), strict=True)


PARAMS: list[tuple[Any, dict[str, Any]]] = [
    (SparseGPRegressor, {"kernel": ScaleKernel(PeriodicKernel()) + RBFKernel(), "ard": "auto"}),
    (SparseGPRegressor, {"likelihood": Gaussian(0.3), "beta": 2, "tol": 1e-3}),
    (SparseGPRegressor, {"objective": PinballLoss(0.8), "mean": "constant"}),
    (SparseGPRegressor, {"inducing": np.array([[500.0], [900.0]]), "standardize": True}),
    (SparseGPRegressor, {"inducing": [[500], [900]], "num_inducing": "auto"}),
    (SparseGPRegressor, {"inducing": pd.DataFrame({"a": [500.0, 900.0]})}),
    (SparseGPRegressor, {"dtype": np.float32, "random_state": np.int64(3)}),
    (SparseGPRegressor, {"random_state": None, "max_iter": np.int32(3), "warm_start": True}),
    (SparseGPClassifier, {"rule": ProductSampling(num_samples=4)}),
    (SparseGPClassifier, {"rule": "bmc", "num_samples": np.int64(3), "optimizer": "adam"}),
    (SparseGPClassifier, {"objective": LogLoss(Quadrature()), "likelihood": Logistic()}),
    (SparseGPClassifier, {"objective": ZeroOneCost(1.0, 4.0), "batch_size": 30}),
    (SparseGPCountRegressor, {"likelihood": NegativeBinomial(2.0), "kernel": "matern32"}),
]


@pytest.mark.parametrize(("make", "params"), PARAMS)
def test_parameters_come_back(make: Any, params: dict[str, Any], tmp_path: Path) -> None:
    y = {SparseGPRegressor: Y, SparseGPClassifier: LABELS, SparseGPCountRegressor: COUNTS}[make]
    plain = {"likelihood": "gaussian"} if make is SparseGPRegressor else {}
    model = make(**{**SHORT, **plain, **params}).fit(X, y)
    loaded = again(model, tmp_path)
    assert_same(loaded, model)
    found = loaded.get_params()
    for name, value in params.items():
        if isinstance(value, torch.nn.Module):
            state, kept = found[name].state_dict(), value.state_dict()
            assert type(found[name]) is type(value) and state.keys() == kept.keys()
            assert all(torch.equal(state[key], kept[key]) for key in kept)
        elif name == "dtype":
            assert found[name] == np.dtype(value).name
        else:
            np.testing.assert_array_equal(found[name], value)
    settings = (found["num_inducing"], found["ard"])
    assert settings == (model.num_inducing, model.ard)


def test_a_loaded_model_learns_on_as_the_saved_one_would(tmp_path: Path) -> None:
    numbers, labels, counts = regressor(), classifier(), counter()
    more = slice(0, 20)
    for model, y, given in (
        (numbers, Y[more] + 3, {}),
        (labels, LABELS[more][::-1], {}),
        (counts, COUNTS[more] + 5, {"exposure": HOURS[more]}),
    ):
        before, loaded = model.predict_latent(THERE)[0], again(model, tmp_path)
        for each in (model, loaded):
            each.partial_fit(X[more], y, **given)
        found = loaded.predict_latent(THERE)
        np.testing.assert_array_equal(found, model.predict_latent(THERE))
        assert np.abs(found[0] - before).max() > 1e-3


def test_a_loaded_model_is_fitted_and_cloned_as_any(tmp_path: Path) -> None:
    model = regressor(max_iter=5)
    loaded = again(model, tmp_path)
    fresh = clone(loaded)
    assert not hasattr(fresh, "posterior_")
    assert fresh.get_params() == {**model.get_params(), "device": "auto"}
    for each in (fresh, loaded):
        np.testing.assert_array_equal(each.fit(X, Y).predict(THERE), model.predict(THERE))
    loaded.set_params(warm_start=True).fit(X, Y)


def test_a_saved_model_has_the_structure_of_its_fit(tmp_path: Path) -> None:
    model = regressor(max_iter=5).set_params(kernel="matern12", objective="crps", random_state=7)
    loaded = again(model, tmp_path)
    assert (loaded.kernel, loaded.random_state) == (regressor().kernel, 7)
    assert summary(loaded) == summary(model)
    loaded.set_params(kernel="matern12")
    with pytest.raises(InvalidInputError, match="Got other values of kernel"):
        loaded.partial_fit(X, Y)


def test_a_pickled_copy_of_a_loaded_model_is_equal(tmp_path: Path) -> None:
    loaded = again(regressor(), tmp_path)
    assert_same(pickle.loads(pickle.dumps(loaded)), loaded)


def test_an_unfitted_model_is_not_saved(tmp_path: Path) -> None:
    for make in (SparseGPRegressor, SparseGPClassifier, SparseGPCountRegressor):
        with pytest.raises(NotFittedError, match=f"This {make.__name__} instance is not fitted"):
            make().save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_source_of_random_numbers_is_not_saved(tmp_path: Path) -> None:
    model = SparseGPRegressor(likelihood="gaussian", **SHORT)
    model.set_params(random_state=np.random.RandomState(0)).fit(X, Y)
    with pytest.raises(
        UnsupportedError, match=r"random_state is a RandomState.* as an int or None"
    ):
        model.save(tmp_path / "model")
    model.set_params(random_state=0).save(tmp_path / "model")


def test_a_model_is_loaded_to_the_given_device(tmp_path: Path) -> None:
    model = regressor()
    loaded = again(model, tmp_path, device="cpu")
    assert loaded.device == "cpu" and loaded.posterior_.Z.device.type == "cpu"
    assert again(model, tmp_path).device == "auto"
    for name in ("abacus", "cuda:99"):
        with pytest.raises(
            InvalidInputError, match=r"device of load .* Use device='auto' or 'cpu'"
        ):
            load(tmp_path / "model.dgp", device=name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_model_goes_to_the_gpu_and_back(tmp_path: Path) -> None:
    model = regressor(device="cpu")
    there = again(model, tmp_path, device="cuda")
    assert there.posterior_.Z.is_cuda
    np.testing.assert_allclose(there.predict(THERE), model.predict(THERE), rtol=1e-8)
    assert_same(again(there, tmp_path, device="cpu"), model)


# Mixtures and stacks


def assert_same_members(loaded: Any, model: Any) -> None:
    np.testing.assert_array_equal(loaded.weights_, model.weights_, strict=True)
    assert loaded.posterior_ is loaded.members_[0].posterior
    for one, other in zip(loaded.members_, model.members_, strict=True):
        for name in ("beta", "hyperparameters", "label", "stacked", "loss"):
            assert getattr(one, name) == getattr(other, name)
        assert type(one.likelihood) is type(other.likelihood)
        for part in ("posterior", "likelihood"):
            state, kept = getattr(one, part).state_dict(), getattr(other, part).state_dict()
            assert state.keys() == kept.keys()
            assert all(torch.equal(state[key], kept[key]) for key in kept)
    assert (loaded.stack_ is None) == (model.stack_ is None)
    if model.stack_ is not None:
        scaled = model.scalings_.scaled_inputs(NEW)
        columns = model.stack_.columns(scaled)
        np.testing.assert_array_equal(loaded.stack_.columns(scaled), columns, strict=True)
        assert loaded.stack_.names == model.stack_.names


@pytest.mark.parametrize("name", PLANS)
def test_a_loaded_mixture_predicts_the_same_bits(name: str, tmp_path: Path) -> None:
    model = mixture(name)
    loaded = again(model, tmp_path)
    assert_same_members(loaded, model)
    assert_same(loaded, model, NEW)


def test_a_mixture_without_a_stack(tmp_path: Path) -> None:
    made = [SparseGPRegressor(**QUICK, likelihood=name, stack=None) for name in NOISES]
    models = [each.fit(fitted_mixtures.X, fitted_mixtures.NUMBERS) for each in made]
    model = fitted_mixtures.assembled(models, (0.75, 0.25))
    loaded = again(model, tmp_path)
    assert loaded.stack_ is None and loaded.scalings_.sources is None
    assert_same_members(loaded, model)
    assert_same(loaded, model, NEW)


NOISES = ("gaussian", "student_t")


def test_one_member_with_a_stack_of_imputed_columns(tmp_path: Path) -> None:
    gaps = fitted_mixtures.X.copy()
    gaps[::7, 1] = np.nan
    model = SparseGPRegressor(**QUICK, likelihood="gaussian", stack="trees", missing="impute")
    model.fit(gaps, fitted_mixtures.NUMBERS)
    assert model.members_[0].stacked
    loaded = again(model, tmp_path)
    assert_same_members(loaded, model)
    np.testing.assert_array_equal(loaded.predict(gaps), model.predict(gaps), strict=True)


def test_each_output_has_a_stack_of_its_own(tmp_path: Path) -> None:
    y = np.column_stack([fitted_mixtures.NUMBERS, fitted_mixtures.POSITIVE])
    model = SparseGPRegressor(**QUICK, likelihood="gaussian", stack=["trees", "trees"])
    model.fit(fitted_mixtures.X, y)
    loaded = again(model, tmp_path)
    assert loaded.stack == ["trees", "trees"]
    for one, other in zip(loaded.outputs_, model.outputs_, strict=True):
        assert one.stack_.names == ("trees", "trees 2")
        assert_same_members(one, other)
    np.testing.assert_array_equal(loaded.predict(NEW), model.predict(NEW), strict=True)


def test_combine_and_stack_come_back(tmp_path: Path) -> None:
    settings = {"combine": "best", "stack": None}
    model = SparseGPRegressor(**{**SHORT, **settings}, likelihood="gaussian").fit(X, Y)
    loaded = again(model, tmp_path)
    assert {name: loaded.get_params()[name] for name in settings} == settings
    assert read_file(MODEL, tmp_path / "model.dgp").manifest["format"] == 1


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["numbers", "kinds"])
def test_a_mixture_predicts_the_same_bits_in_a_new_process(name: str, tmp_path: Path) -> None:
    model = mixture(name)
    model.save(tmp_path / "model.dgp")
    np.save(tmp_path / "new.npy", NEW)
    method = "predict_proba" if name == "kinds" else "predict"
    program = (
        "import numpy, torch, directgp; torch.set_num_threads(1);"
        f"values = directgp.load('model.dgp').{method}(numpy.load('new.npy'));"
        "numpy.save('values.npy', values)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    values = getattr(model, method)(NEW)
    np.testing.assert_array_equal(np.load(tmp_path / "values.npy"), values, strict=True)


def test_a_loaded_mixture_learns_on_as_the_saved_one_would(tmp_path: Path) -> None:
    model = mixture("numbers")
    loaded = again(model, tmp_path)
    before = model.predict(NEW)
    for each in (model, loaded):
        each.partial_fit(fitted_mixtures.X[:20], fitted_mixtures.NUMBERS[:20] + 20)
    np.testing.assert_array_equal(loaded.predict(NEW), model.predict(NEW))
    assert np.abs(model.predict(NEW) - before).max() > 1e-2


@pytest.mark.parametrize("stack", [Ridge(), ["trees", Ridge()], HistGradientBoostingRegressor()])
def test_an_estimator_in_the_stack_is_not_saved(stack: Any, tmp_path: Path) -> None:
    model = SparseGPRegressor(**QUICK, likelihood="gaussian", stack=stack)
    model.fit(fitted_mixtures.X, fitted_mixtures.NUMBERS)
    with pytest.raises(UnsupportedError, match=r"in its stack cannot be saved.*stack='trees'"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# What is no model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "whole.dgp"
    search(SparseGPRegressor, Y, likelihood="gaussian").save(path)
    return path


def error_of(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    assert "could not be read" in error_of(tmp_path / "nothing")
    assert "could not be read" in error_of(tmp_path)


def damaged(data: bytes) -> dict[str, bytes]:
    flipped = bytearray(data)
    flipped[-9] ^= 4
    return {
        "empty": b"",
        "cut short": data[:-7],
        "cut in half": data[: len(data) // 2],
        "a bit flipped": bytes(flipped),
        "more at the end": data + b"x",
        "a pickle": pickle.dumps({"a": np.ones(3)}),
        "text": b"SparseGPRegressor(beta=1.0)\n" * 20,
    }


@pytest.mark.parametrize("name", list(damaged(b"0" * 20)))
def test_a_damaged_or_foreign_file_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.dgp"
    path.write_bytes(damaged(whole.read_bytes())[name])
    message = error_of(path)
    assert "cannot be loaded as a model" in message
    assert "Take another copy of it, or fit and save the model again." in message


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


def error_after(path: Path, whole: Path, change: Change) -> str:
    """What is message of a file with a right checksum that says something else."""
    tensors, manifest = read_file(MODEL, whole)
    manifest = json.loads(json.dumps(manifest))
    change(manifest, tensors)
    write_file(MODEL, path, tensors, manifest)
    return error_of(path)


def test_a_file_of_a_newer_format_is_refused(whole: Path, tmp_path: Path) -> None:
    def newer(manifest: dict[str, Any], _: Any) -> None:
        manifest["format"], manifest["versions"]["directgp"] = 7, "9.8"

    message = error_after(tmp_path / "model", whole, newer)
    assert "is a model of format 7" in message and "Load it with directgp 9.8" in message


CHANGES: dict[str, Change] = {
    "another class": lambda m, t: m.update(estimator="SparseGPClassifier"),
    "a class of no estimator": lambda m, t: m.update(estimator="Pipeline"),
    "no beta": lambda m, t: m["record"].pop("beta"),
    "a beta in words": lambda m, t: m["record"].update(beta="much"),
    "a path of another form": lambda m, t: m["record"].update(path={"points": 3}),
    "a point with more": lambda m, t: m["record"]["path"]["points"][0].update(more=1),
    "a choice of none": lambda m, t: m["record"]["path"].update(chosen=99),
    "a parameter that there is not": lambda m, t: m["params"].update(
        gamma={"type": "plain", "value": 1}
    ),
    "scalings of more features": lambda m, t: t.update(
        {"arrays.input_scale": torch.ones(3).double()}
    ),
    "scalings of more targets": lambda m, t: t.update(
        {"arrays.target_shift": torch.ones(2).double()}
    ),
    "a scale of 0": lambda m, t: t["arrays.target_scale"].zero_(),
    "no scalings": lambda m, t: t.pop("arrays.input_shift"),
    "an infinite β": lambda m, t: m["record"].update(beta=math.inf),
    "a β without end": lambda m, t: m["record"].update(beta=10**400),
    "rows without end": lambda m, t: m["record"].update(num_rows=10**400),
    "seconds of NaN": lambda m, t: m["record"].update(fit_seconds=math.nan),
    "seconds in words": lambda m, t: m["record"].update(seconds="long"),
    "a flag that is a number": lambda m, t: m["record"].update(inputs_rounded=1),
    "a mode that there is not": lambda m, t: m["record"].update(hyperparameters="held fast"),
    "a finding that is a number": lambda m, t: m["record"].update(findings=[1]),
    "a finding of a megabyte": lambda m, t: m["record"].update(findings=["x" * 10**6]),
    "an infinite β of a candidate": lambda m, t: m["record"]["path"]["points"][0].update(
        beta=math.inf
    ),
    "a loss in words": lambda m, t: m["record"]["path"].update(loss=["log_loss"]),
    "steps without end": lambda m, t: m["stages"][0].update(steps=10**400),
    "an infinite jitter": lambda m, t: m["stages"][0].update(jitter=math.inf),
    "no stages": lambda m, t: m.update(stages=[]),
    "a name too many": lambda m, t: m["feature_names"].append("c"),
    "a name too few": lambda m, t: m["feature_names"].pop(),
    "classes of numbers": lambda m, t: m.update(classes={"dtype": "<i8", "labels": [0, 1]}),
    "counts with Gaussian noise": lambda m, t: m.update(estimator="SparseGPCountRegressor"),
    "a parameter that is not allowed": lambda m, t: m["params"].update(
        objective={"type": "list", "values": [1]}
    ),
    "a mean without end": lambda m, t: t["posterior.u_mean"].fill_(1e308),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_inconsistent_file_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    assert "cannot be loaded as a model" in error_after(tmp_path / "model", whole, CHANGES[name])


LABEL_CHANGES: dict[str, Change] = {
    "equal classes": lambda m, t: m["classes"].update(labels=["yes", "yes"]),
    "classes in another order": lambda m, t: m["classes"]["labels"].reverse(),
    "a class too many": lambda m, t: m["classes"]["labels"].append("zz"),
    "a threshold of 1": lambda m, t: m["record"].update(threshold=1.0),
    "no threshold": lambda m, t: m["record"].update(threshold=None),
    "labels that are scaled": lambda m, t: t["arrays.target_scale"].fill_(2.0),
    "another family": lambda m, t: m.update(likelihood={"kind": "PoissonExp", "frozen": []}),
    "as many latents as classes": lambda m, t: m.update(
        likelihood={"kind": "Softmax", "frozen": [], "settings": {"num_classes": 2.0}}
    ),
    "a billion classes": lambda m, t: m.update(
        likelihood={"kind": "OrderedProbit", "frozen": [], "settings": {"num_classes": 1e9}}
    ),
}


def of_members(**values: Any) -> Change:
    """Set fields of the record of the second member."""
    return lambda m, t: m["record"]["members"][1].update(values)


def weights(*values: Any) -> Change:
    def change(m: dict[str, Any], t: dict[str, torch.Tensor]) -> None:
        for member, weight in zip(m["record"]["members"], values, strict=True):
            member["weight"] = weight

    return change


def without_stack(m: dict[str, Any], t: dict[str, torch.Tensor]) -> None:
    """Leave out the trees and their scaling."""
    m.update(stack=None)
    m["record"].update(sources_rounded=None)
    for name in [name for name in t if name.startswith(("stack.", "arrays.source"))]:
        del t[name]


def narrow(prefix: str) -> Change:
    """Round the posterior of a member to float32."""

    def change(m: dict[str, Any], t: dict[str, torch.Tensor]) -> None:
        t.update(
            {
                name: tensor.float()
                for name, tensor in t.items()
                if name.startswith(prefix) and tensor.is_floating_point()
            }
        )

    return change


MIXTURE_CHANGES: dict[str, Change] = {
    "no weights": lambda m, t: m["record"].update(members=None),
    "weights without record": lambda m, t: m["record"].pop("members"),
    "a weight too few": lambda m, t: m["record"]["members"].pop(),
    "a weight too many": lambda m, t: m["record"]["members"].append(m["record"]["members"][2]),
    "a negative weight": weights(0.9, 0.3, -0.2),
    "a weight of 0": weights(0.7, 0.3, 0.0),
    "weights above 1": weights(0.5, 0.4, 0.2),
    "weights below 1": weights(0.5, 0.2, 0.2),
    "weights without order": weights(0.2, 0.5, 0.3),
    "a weight of NaN": weights(0.5, math.nan, 0.5),
    "an infinite weight": weights(math.inf, 0.3, 0.2),
    "a weight in words": weights(0.5, "0.3", 0.2),
    "no weight": lambda m, t: m["record"]["members"][0].pop("weight"),
    "an infinite β": of_members(beta=math.inf),
    "a mode that there is not": of_members(hyperparameters="held fast"),
    "a label that is a number": of_members(label=1),
    "a label of a megabyte": of_members(label="x" * 10**6),
    "more of a member": of_members(more=1),
    "a loss in words": of_members(loss="small"),
    "another member with a stack": of_members(stacked=True),
    "a stack that is a number": of_members(stacked=1),
    "no member with a stack": lambda m, t: m["record"]["members"][0].update(stacked=False),
    "a stack for no member": lambda m, t: [
        member.update(stacked=False) for member in m["record"]["members"]
    ],
    "a member without its stack": without_stack,
    "no rounding of columns": lambda m, t: m["record"].update(sources_rounded=None),
    "no scaling of columns": lambda m, t: t.pop("arrays.source_shift"),
    "a scaling of more columns": lambda m, t: t.update(
        {"arrays.source_shift": torch.ones(2).double()}
    ),
    "a scale of 0 for a column": lambda m, t: t["arrays.source_scale"].zero_(),
    "a stack of more features": lambda m, t: m["stack"].update(num_features=3),
    "counts in a mixture": lambda m, t: m["members"][0].update(
        likelihood={"kind": "PoissonExp", "frozen": []}
    ),
    "labels in a mixture": lambda m, t: m["members"][0].update(
        likelihood={"kind": "Probit", "frozen": []}
    ),
    "a member of two latents": lambda m, t: m["members"][0].update(
        likelihood={"kind": "HeteroscedasticGaussian", "frozen": []}
    ),
    "a member in float32": narrow("members.1.posterior."),
    "a member of one feature": lambda m, t: t.update(
        {"members.1.posterior.Z": t["members.1.posterior.Z"][:, :1].clone()}
    ),
    "a mean of a member without end": lambda m, t: t["members.1.posterior.u_mean"].fill_(1e308),
}


@pytest.fixture(scope="module")
def whole_mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "mixture.dgp"
    mixture("numbers").save(path)
    return path


@pytest.mark.parametrize("name", MIXTURE_CHANGES)
def test_an_inconsistent_mixture_is_refused(name: str, whole_mixture: Path, tmp_path: Path) -> None:
    said = error_after(tmp_path / "model", whole_mixture, MIXTURE_CHANGES[name])
    assert "cannot be loaded as a model" in said


def test_a_mixture_of_other_classes_is_refused(tmp_path: Path) -> None:
    mixture("kinds").save(tmp_path / "whole")

    def two_classes(m: dict[str, Any], t: dict[str, torch.Tensor]) -> None:
        m["members"][0].update(
            likelihood={"kind": "Softmax", "frozen": [], "settings": {"num_classes": 2.0}}
        )

    said = error_after(tmp_path / "model", tmp_path / "whole", two_classes)
    assert "cannot be loaded as a model" in said


@pytest.mark.parametrize("name", LABEL_CHANGES)
def test_an_inconsistent_classifier_is_refused(name: str, tmp_path: Path) -> None:
    classifier().save(tmp_path / "whole")
    said = error_after(tmp_path / "model", tmp_path / "whole", LABEL_CHANGES[name])
    assert "cannot be loaded as a model" in said


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    model = regressor()
    model.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()
    for change in ({"beta_": math.nan}, {"tol": -1.0}, {"findings_": ("x" * 10**5,)}):
        changed = copy.copy(model)
        for name, value in change.items():
            setattr(changed, name, value)
        with pytest.raises(InvalidInputError, match="The model cannot be saved: "):
            changed.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == before
