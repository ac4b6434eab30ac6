"""What fitted models show and hand over: HTML, summaries as values, tables; devices they refuse."""

import json
import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import directgp
from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.training.data import Data, check_data
from tests.estimators.small_data import COUNTING, COUNTS, LABELS, LIGHT, REGRESSION, X, Y

pytestmark = [
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

NAMES = ["<script>x</script>", "b & c"]
TABLE = pd.DataFrame(X, columns=NAMES, index=[f"row {i}" for i in range(len(X))])


def regressor(**settings: Any) -> SparseGPRegressor:
    return SparseGPRegressor(**{**REGRESSION, **settings}).fit(TABLE, Y)


def test_the_html_of_a_fitted_model_has_its_summary_with_escaped_names() -> None:
    model = regressor(ard=True)
    page = model._repr_html_()
    assert "directgp-summary" in page and "noise standard deviation" in page
    assert "<script>x" not in page and "&lt;script&gt;x&lt;/script&gt;" in page
    link = "https://directgp.readthedocs.io/en/stable/api.html#directgp.SparseGPRegressor"
    assert f'href="{link}"' in page
    assert "directgp-summary" in model._repr_mimebundle_()["text/html"]
    fresh = SparseGPRegressor()
    assert "directgp-summary" not in fresh._repr_html_() and link in fresh._repr_html_()
    with config_context(display="text"):
        assert not hasattr(model, "_repr_html_") and "text/html" not in model._repr_mimebundle_()
    pipeline = make_pipeline(StandardScaler(), SparseGPRegressor(**REGRESSION)).fit(X, Y)
    assert link in pipeline._repr_html_()


def test_a_summary_is_text_and_values() -> None:
    model = SparseGPRegressor(**{**REGRESSION, "beta": "auto"}).fit(X, Y)
    found = model.summary()
    facts = found.to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["num_rows"] == 24 and facts["likelihood"] == "Gaussian"
    assert facts["beta"] == model.beta_ and facts["warnings"] == list(model.findings_)
    path: Any = model.beta_path_
    assert len(facts["path"]["points"]) == len(path.points)
    assert repr(found) == str(found) and found.startswith("SparseGPRegressor\n")
    assert pickle.loads(pickle.dumps(found)).to_dict() == facts
    two = SparseGPRegressor(**REGRESSION).fit(X, np.stack([Y, -Y], 1))
    assert [each["beta"] for each in two.summary().to_dict()["outputs"]] == [1.0, 1.0]
    assert two._repr_html_().count("Output ") == 2


def test_a_summary_is_of_the_fit_and_not_of_parameters_set_later() -> None:
    model = SparseGPRegressor(**REGRESSION).fit(X, Y)
    before = model.summary()
    assert "β             1, as given" in before
    assert model.set_params(objective="crps", beta="auto").summary() == before


def test_predictions_are_tables_of_the_library_of_the_features() -> None:
    model = regressor()
    found = model.predict_frame(TABLE[:5], intervals=[0.5, 0.9], quantiles=[0.1])
    names = ["mean", "sd", "lower_50", "upper_50", "lower_90", "upper_90", "q0.1"]
    assert isinstance(found, pd.DataFrame) and list(found.columns) == names
    assert found.index.equals(TABLE.index[:5])
    mean, std = model.predict(TABLE[:5], return_std=True)
    np.testing.assert_array_equal(found[["mean", "sd"]], np.stack([mean, std], 1))
    lower, upper = model.predict_interval(TABLE[:5], 0.9)
    np.testing.assert_allclose(found[["lower_90", "upper_90"]], np.stack([lower, upper], 1))
    other = model.predict_frame(pl.DataFrame(TABLE.reset_index(drop=True)))
    assert isinstance(other, pl.DataFrame) and other.columns == ["mean", "sd", "lower", "upper"]
    counter = SparseGPCountRegressor(**COUNTING).fit(TABLE, COUNTS)
    counts = counter.predict_frame(TABLE, intervals=(), exposure=np.full(24, 2.0))
    np.testing.assert_array_equal(counts["mean"], counter.predict(TABLE, np.full(24, 2.0)))
    classifier = SparseGPClassifier(**LIGHT).fit(TABLE, LABELS)
    labels = classifier.predict_frame(TABLE)
    assert list(labels.columns) == ["p_no", "p_yes", "predicted"]
    np.testing.assert_array_equal(labels["predicted"], classifier.predict(TABLE))


def test_tables_that_cannot_be_made_are_refused() -> None:
    model = regressor()
    with pytest.raises(InvalidInputError, match=r"a DataFrame of pandas or polars\. Got ndarray"):
        model.predict_frame(X)
    with pytest.raises(InvalidInputError, match=r"intervals of .* between 0 and 1.* Got 90"):
        model.predict_frame(TABLE, intervals=[90])
    with pytest.raises(InvalidInputError, match=r"intervals and quantiles of .* different"):
        model.predict_frame(TABLE, quantiles=[0.1, 0.1])
    two = SparseGPRegressor(**REGRESSION).fit(TABLE, np.stack([Y, -Y], 1))
    with pytest.raises(UnsupportedError, match=r"model\.outputs_\[k\]\.predict_frame"):
        two.predict_frame(TABLE)


def test_relevance_is_given_by_columns() -> None:
    found = regressor(ard=True).feature_relevance(TABLE, Y, n_repeats=2)
    columns = found.to_dict()
    assert list(columns) == ["feature", "relevance", "importance", "importance_error"]
    assert columns["feature"] == NAMES and sum(columns["relevance"]) == pytest.approx(1.0)
    (curve,) = directgp.estimators.partial_dependence(regressor(), TABLE, features=[1])
    table = pd.DataFrame(curve.to_dict())
    assert list(table.columns) == ["feature", "value", "mean", "lower", "upper"]
    assert (table["feature"] == NAMES[1]).all() and (table["lower"] <= table["upper"]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_device_without_float64_is_refused_before_any_work(
    dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """As on a Mac: MPS is there, and makes no tensor of float64."""
    model = regressor()
    model.save(tmp_path / "model")
    make = torch.zeros

    def zeros(*size: Any, device: Any = None, dtype: Any = None, **more: Any) -> Any:
        if torch.device(device or "cpu").type == "mps":
            if dtype is torch.float64:
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
            device = "cpu"
        return make(*size, device=device, dtype=dtype, **more)

    monkeypatch.setattr(torch, "zeros", zeros)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    message = r"computes in float64\. Got 'mps'.*'cpu'"
    no_data: Any = object()
    with pytest.raises(InvalidInputError, match=message):
        SparseGPRegressor(device="mps", dtype=dtype, **REGRESSION).fit(no_data, no_data)
    with pytest.raises(InvalidInputError, match=message):
        directgp.load(tmp_path / "model", device="mps")
    auto = SparseGPRegressor(dtype=dtype, **{**REGRESSION, "device": "auto"}).fit(X, Y)
    assert auto.posterior_.Z.device.type != "mps"


def test_train_refuses_a_device_without_float64() -> None:
    model = regressor()
    tensors = torch.zeros(3, 2, device="meta"), torch.zeros(3, device="meta")
    model.posterior_.Z = torch.nn.Parameter(torch.zeros(2, 2, device="meta"))
    with pytest.raises(InvalidInputError, match=r"device of train must be one that computes"):
        check_data("train", Data(*tensors), model.posterior_, model.likelihood_)
