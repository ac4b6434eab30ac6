"""Exported models predict as the estimators do, whatever the likelihood, kernel and format."""

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.estimators.members import set_members
from directgp.export import numpy_predictor, to_numpy, to_onnx, to_torch
from directgp.export.formats import onnx_model
from directgp.export.predictions import program_of
from directgp.export.program import run
from directgp.likelihoods import Likelihood, Tobit
from directgp.registry import LIKELIHOODS
from tests.estimators import fitted_mixtures
from tests.estimators.fitted_mixtures import PLANS, mixture

# A few steps are enough to compare predictions.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{name}")
    for name in ("sklearn.exceptions.ConvergenceWarning", "directgp.errors.DirectGPWarning")
]

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(80, 2))
F = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
POSITIVE = np.exp(F) * RANDOM.gamma(4, 0.25, len(X))
NUMBERS = F + 0.2 * RANDOM.standard_t(4, len(X))
COUNTS = RANDOM.poisson(3 * POSITIVE).astype(float)
QUICK: dict[str, Any] = {
    "objective": "elbo",
    "beta": 1.0,
    "kernel": "rbf",
    "ard": True,
    "num_inducing": 10,
    "max_iter": 10,
    "random_state": 0,
    "combine": "best",
    "stack": None,
}
NEW = 2 * np.random.default_rng(1).normal(size=(200, 2))
LEVELS = (0.05, 0.5, 0.95)

TARGETS = {
    "gamma": POSITIVE,
    "weibull": POSITIVE,
    "log_normal": POSITIVE,
    "beta": 1 / (1 + np.exp(-NUMBERS)),
    "probit": NUMBERS > 0,
    "logistic": NUMBERS > 0,
    "binomial": np.minimum(COUNTS, 12),
}
ROW_VALUES = {"gaussian_known_noise": 0.04, "binomial": 12.0}
SLOW = ("beta", "com_poisson", "poisson_softplus", "zero_inflated_negative_binomial")


def targets(name: str) -> Any:
    task = LIKELIHOODS[name].task
    default = {
        "regression": NUMBERS,
        "count": COUNTS,
        "classification": np.digitize(F, [-0.5, 0.5]),
    }
    return TARGETS.get(name, default[task])


def fitted(name: str, **settings: Any) -> Any:
    tasks = {"regression": SparseGPRegressor, "count": SparseGPCountRegressor}
    kind: Any = tasks.get(LIKELIHOODS[name].task, SparseGPClassifier)
    model = kind(**(QUICK | {"likelihood": name} | settings))
    return model.fit(X, targets(name), **row_values(name, len(X)))


def row_values(name: str, n: int) -> dict[str, Any]:
    if name not in ROW_VALUES:
        return {}
    return {LIKELIHOODS[name].load().rows.argument: np.full(n, ROW_VALUES[name])}


def expected(model: Any, name: str, new: Any) -> dict[str, Any]:
    given = row_values(name, len(new))
    if isinstance(model, SparseGPClassifier):
        return {"probabilities": model.predict_proba(new)}
    quantiles = model.predict_quantiles(new, LEVELS, **given)
    if isinstance(model, SparseGPCountRegressor):
        table = model.predict_frame(pd.DataFrame(new), **given)
        return {"mean": model.predict(new, **given), "std": table["sd"], "quantiles": quantiles}
    mean, std = model.predict(new, return_std=True, **given)
    return {"mean": mean, "std": std, "quantiles": quantiles}


NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in LIKELIHOODS
    if name != "robust_max"
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow_for(
    "poisson", "negative_binomial", "gamma", "heteroscedastic", "weibull", "binomial"
)
def test_every_likelihood_predicts_the_same(name: str) -> None:
    model = fitted(name)
    program = program_of(model, LEVELS, ROW_VALUES.get(name))
    narrow = NEW.astype(np.float32)
    wide = narrow.astype(np.float64)
    wanted = expected(model, name, wide)
    for found, error in (
        (run(program, wide), 1e-6),
        (by_onnx(onnx_model(program, "float64"), wide), 1e-6),
        (by_onnx(onnx_model(program, "float32"), narrow), 1e-4),
    ):
        assert found.keys() >= wanted.keys()
        for key, value in wanted.items():
            np.testing.assert_allclose(found[key], value, rtol=error, atol=error, err_msg=key)


# Mixtures and stacks

FAR = np.concatenate([fitted_mixtures.NEW, fitted_mixtures.X])


def answers(model: Any, levels: tuple[float, ...]) -> dict[str, Any]:
    """The predictions of the estimator, for the rows FAR."""
    if isinstance(model, SparseGPClassifier):
        return {"probabilities": model.predict_proba(FAR)}
    if isinstance(model, SparseGPCountRegressor):
        found = {"mean": model.predict(FAR), "std": model.predict_frame(pd.DataFrame(FAR))["sd"]}
    else:
        found = dict(zip(("mean", "std"), model.predict(FAR, return_std=True), strict=True))
    return found | ({"quantiles": model.predict_quantiles(FAR, levels)} if levels else {})


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.slow_for("changing noise", "positive")
def test_a_mixture_with_trees_predicts_the_same(name: str) -> None:
    model = mixture(name)
    levels = () if name == "counts" else LEVELS
    program = program_of(model, levels, None)
    wanted = answers(model, levels)
    for found in (run(program, FAR), by_onnx(onnx_model(program, "float64"), FAR)):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            error = 1e-6 * (1.0 if key == "probabilities" else model.scalings_.unit)
            np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=error, err_msg=key)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.filterwarnings("ignore:No complete tensor found", "ignore:The given buffer is not")
def test_a_mixture_of_labels_as_a_program_of_torch() -> None:
    model = mixture("labels")
    module = to_torch(model).module()
    for new in (FAR, FAR[:1]):
        found = module(torch.from_numpy(new))["probabilities"].numpy()
        np.testing.assert_allclose(found, model.predict_proba(new), atol=1e-6)


@pytest.mark.usefixtures("without_shape_checks")
def test_quantiles_between_members_far_apart() -> None:
    """The bracket is many times as wide as each member."""
    models = [
        SparseGPRegressor(**QUICK, likelihood="gaussian", mean="zero").fit(X, shift + 0.1 * NUMBERS)
        for shift in (0.0, 50.0)
    ]
    model = models[0]
    apart = copy.deepcopy(model.posterior_)
    apart.u_mean.data += 30.0
    members = [model.members_[0], dataclasses.replace(model.members_[0], posterior=apart)]
    set_members(model, members, (0.7, 0.3))
    levels = (0.01, 0.3, 0.69, 0.71, 0.9)
    found = run(program_of(model, levels, None), NEW)["quantiles"]
    wanted = model.predict_quantiles(NEW, levels)
    np.testing.assert_allclose(found, wanted, atol=1e-6 * model.scalings_.unit)


@pytest.mark.parametrize("settings", [{}, {"standardize": False}, {"missing": "impute"}], ids=str)
def test_one_member_with_a_stack(settings: dict[str, Any]) -> None:
    given = QUICK | {"likelihood": "gaussian", "stack": ["trees", HistGradientBoostingRegressor()]}
    model = SparseGPRegressor(**(given | settings))
    rows = X.copy()
    if settings.get("missing"):
        rows[::9, 0] = np.nan
    model.fit(rows, NUMBERS)
    assert model.members_[0].stacked
    new = np.concatenate([rows, NEW])
    found = run(program_of(model, LEVELS, None), new)
    for key, value in expected(model, "gaussian", new).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-6, err_msg=key)


def test_quantiles_of_a_mixture_of_counts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"levels=\(\), or fit with combine='best'"):
        to_numpy(mixture("counts"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_stack_of_other_estimators_is_refused(tmp_path: Path) -> None:
    model = fitted("gaussian", stack=Ridge())
    with pytest.raises(
        UnsupportedError, match=r"Ridge in its stack is not exported.*stack=.trees."
    ):
        to_numpy(model, tmp_path)
    assert not list(tmp_path.iterdir())


def by_onnx(model: bytes | Path, new: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"X": new}), strict=True))
    assert all(each.dtype == new.dtype for each in found.values())
    return found


def test_an_onnx_file_says_what_it_holds(tmp_path: Path) -> None:
    to_onnx(fitted("probit"), tmp_path / "model.onnx")
    found = {each.key: each.value for each in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert (found["num_features"], found["classes"]) == ("2", "[false, true]")
    with pytest.raises(InvalidInputError, match="float16"):
        to_onnx(fitted("probit"), tmp_path / "other.onnx", dtype="float16")  # type: ignore[arg-type]


# Of torch.export.save, about numbers without axes, and of torch.export.load before 2.11.
@pytest.mark.filterwarnings("ignore:No complete tensor found", "ignore:The given buffer is not")
@pytest.mark.parametrize("name", ["heteroscedastic", "softmax"])
@pytest.mark.slow_for("heteroscedastic")
def test_torch_export_agrees_for_any_number_of_rows(name: str, tmp_path: Path) -> None:
    model = fitted(name)
    torch.export.save(to_torch(model), tmp_path / "model.pt2")
    module = torch.export.load(tmp_path / "model.pt2").module()
    for new in (NEW, NEW[:1]):
        found = module(torch.from_numpy(new))
        for key, value in expected(model, name, new).items():
            np.testing.assert_allclose(found[key].numpy(), value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("dtype, error", [("float64", 1e-6), ("float32", 1e-4)])
def test_every_kernel_at_and_between_inducing_inputs(kernel: str, dtype: str, error: float) -> None:
    model = fitted("gaussian", kernel=kernel, dtype=dtype)
    inducing = model.scalings_.inputs.backward(model.posterior_.Z.detach().double().numpy())
    new = np.concatenate([inducing, NEW, 1e6 * NEW])
    program = program_of(model, LEVELS, None)
    for found in (run(program, new), by_onnx(onnx_model(program, "float64"), new)):
        for key, value in expected(model, "gaussian", new).items():
            np.testing.assert_allclose(found[key], value, rtol=error, atol=error, err_msg=key)


@pytest.mark.parametrize("name", ["gaussian", "student_t", "softmax"])
def test_an_expression_predicts_the_same(name: str) -> None:
    model = fitted(name, kernel="Matern52(0) + Additive(0, 1) * Periodic(1)", ard="auto")
    found = run(program_of(model, LEVELS, None), NEW)
    for key, value in expected(model, name, NEW).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-6, err_msg=key)


def test_linear_effects_need_gaussian_noise(tmp_path: Path) -> None:
    kernel = "Linear(0) + RBF(1)"
    model = fitted("gaussian", kernel=kernel, ard="auto")
    far = np.concatenate([NEW, 100 * NEW])
    found = run(program_of(model, LEVELS, None), far)
    for key, value in expected(model, "gaussian", far).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-6, err_msg=key)
    with pytest.raises(UnsupportedError, match=r"part Linear .*likelihood='gaussian'"):
        to_numpy(fitted("student_t", kernel=kernel, ard="auto"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_large_counts() -> None:
    counts = RANDOM.poisson(1000 * POSITIVE).astype(float)
    settings = QUICK | {"likelihood": "poisson", "max_iter": 30}
    model = SparseGPCountRegressor(**settings).fit(X, counts)
    found = run(program_of(model, LEVELS, None), X)
    assert found["quantiles"].max() > 2000
    np.testing.assert_allclose(found["quantiles"], model.predict_quantiles(X, LEVELS), rtol=1e-6)


@pytest.mark.slow
def test_counts_of_a_wide_prior() -> None:
    random = np.random.default_rng(2)
    inputs = random.normal(size=(300, 2))
    counts = random.poisson(300 * np.exp(np.sin(2 * inputs[:, 0]) + 0.5 * inputs[:, 1]))
    settings = QUICK | {"likelihood": "poisson", "max_iter": 60, "num_inducing": 60}
    model = SparseGPCountRegressor(**settings).fit(inputs, counts)
    found = run(program_of(model, LEVELS, None), inputs)
    np.testing.assert_array_equal(found["quantiles"], model.predict_quantiles(inputs, LEVELS))


def test_gaps_and_several_outputs(tmp_path: Path) -> None:
    gaps = np.where(RANDOM.random(X.shape) < 0.1, np.nan, X)
    both = np.stack([NUMBERS, 100 * POSITIVE], 1)
    model = SparseGPRegressor(**(QUICK | {"likelihood": "gaussian", "missing": "impute"}))
    model.fit(gaps, both)
    reader = numpy_predictor.load(to_numpy(model, tmp_path, levels=[0.9]))
    found = reader.predict(gaps)
    np.testing.assert_allclose(found["mean"], model.predict(gaps), rtol=1e-6)
    np.testing.assert_allclose(found["quantiles"], model.predict_quantiles(gaps, [0.9]), rtol=1e-6)
    assert found["quantiles"].shape == (len(X), 2, 1)


def test_the_reader_needs_numpy_alone(tmp_path: Path) -> None:
    model = fitted("probit")
    to_numpy(model, tmp_path)
    program = (
        "import sys, numpy as np, predictor; "
        "model = predictor.load('model.npz'); "
        "chances = model.predict(np.zeros((2, 2)))['probabilities']; "
        "assert model.facts['classes'] == [False, True]; "
        "assert not {'torch', 'sklearn', 'scipy', 'directgp'} & sys.modules.keys(); "
        "print(repr(float(chances[0, 1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(
        model.predict_proba(np.zeros((1, 2)))[0, 1], abs=1e-8
    )
    source = (tmp_path / "predictor.py").read_text()
    assert len(source.splitlines()) <= 100


def test_missing_values_are_never_silent(tmp_path: Path) -> None:
    model = fitted("gaussian_known_noise")
    reader = numpy_predictor.load(to_numpy(model, tmp_path, row_value=0.04))
    with pytest.raises(ValueError, match="finite"):
        reader.predict([[0.0, np.nan]])
    with pytest.raises(ValueError, match=r"\(n, 2\)"):
        reader.predict([[0.0]])
    to_onnx(model, tmp_path / "model.onnx", row_value=0.04)
    found = by_onnx(tmp_path / "model.onnx", np.array([[0.0, np.nan]]))
    assert all(np.isnan(each).all() for each in found.values())


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    import gpytorch

    with pytest.raises(InvalidInputError, match="an estimator of directgp"):
        to_numpy(object(), tmp_path)
    with pytest.raises(UnsupportedError, match="3 latent functions"):
        to_numpy(fitted("robust_max"), tmp_path)
    periodic = fitted("gaussian", kernel=gpytorch.kernels.PeriodicKernel(), ard="auto")
    with pytest.raises(UnsupportedError, match="matern12"):
        to_numpy(periodic, tmp_path)
    with pytest.raises(InvalidInputError, match="noise"):
        to_numpy(fitted("gaussian_known_noise"), tmp_path)
    with pytest.raises(InvalidInputError, match="row_value"):
        to_numpy(fitted("gaussian"), tmp_path, row_value=2.0)
    wrong: Any
    for wrong in ([1.5], None, "some"):
        with pytest.raises(InvalidInputError, match="levels"):
            to_numpy(fitted("gaussian"), tmp_path, levels=wrong)
    for wrong in (-1.0, [1.0, 2.0]):
        with pytest.raises(InvalidInputError, match="row_value"):
            to_numpy(fitted("poisson"), tmp_path, row_value=wrong)
    assert not list(tmp_path.iterdir())


class Draws(Likelihood):
    """Known by draws alone."""

    def log_kernel(self, y: Any, f: Any) -> Any:
        return -0.5 * (y - f) ** 2

    def sample(self, f: Any, random: Any) -> Any:
        return f.numpy() + random.standard_normal(f.shape)


def test_a_likelihood_of_draws_is_refused(tmp_path: Path) -> None:
    model = fitted("gaussian", likelihood=Draws())
    with pytest.raises(UnsupportedError, match=r"cdf\(y, f\)"):
        to_numpy(model, tmp_path)


def test_labels_that_are_certain() -> None:
    settings = QUICK | {"objective": "log_loss", "max_iter": 100, "likelihood": "probit"}
    model = SparseGPClassifier(**settings).fit(X, np.where(F > 0, "yes", "no"))
    program = program_of(model, (), None)
    assert program.facts["classes"] == ["no", "yes"]
    chances = run(program, NEW)["probabilities"]
    np.testing.assert_allclose(chances, model.predict_proba(NEW), atol=1e-6)


def test_clusters_far_apart_without_scaling() -> None:
    apart = X + np.where(RANDOM.random(len(X)) < 0.5, 0.0, 1e4)[:, None]
    model = SparseGPRegressor(**(QUICK | {"likelihood": "gaussian", "standardize": False}))
    model.fit(apart, NUMBERS)
    wanted = model.posterior_.marginals(torch.from_numpy(apart)).mean.detach().numpy()
    np.testing.assert_allclose(run(program_of(model, (), None), apart)["mean"], wanted, atol=1e-6)
    far = run(program_of(model, (), None), np.full((1, 2), 1e160))
    assert np.isfinite(far["mean"]).all()


def test_limits_and_exposure() -> None:
    tobit = SparseGPRegressor(**(QUICK | {"likelihood": Tobit(lower=-1.0)}))
    tobit.fit(X, np.maximum(NUMBERS, -1.0))
    found = run(program_of(tobit, LEVELS, None), NEW)
    np.testing.assert_allclose(found["mean"], tobit.predict(NEW), atol=1e-6)
    quantiles = tobit.predict_quantiles(NEW, LEVELS)
    np.testing.assert_allclose(found["quantiles"], quantiles, atol=1e-6)
    poisson = fitted("poisson")
    found = run(program_of(poisson, (), 3.0), NEW)
    given = np.full(len(NEW), 3.0)
    np.testing.assert_allclose(found["mean"], poisson.predict(NEW, exposure=given), rtol=1e-6)
