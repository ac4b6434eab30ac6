"""Three and more classes on the command line: fit, predict, inspect and compare."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import log_loss

from directgp import SparseGPClassifier
from directgp.cli import model_folder
from tests.cli.running import QUICK, Answer, run

FAST = (*QUICK, "--kernel", "rbf", "--ard")
EVERY = load_iris()
SOME = np.arange(0, 150, 2)
X, KINDS = EVERY.data[SOME][:, [0, 2]], EVERY.target[SOME]
NAMES = EVERY.target_names.tolist()


@pytest.fixture
def iris(here: Path) -> Path:
    """Every second flower, two of its features, and its class as text and as a number."""
    columns = {"length": X[:, 0], "width": X[:, 1]}
    table = pa.table(columns | {"kind": [NAMES[k] for k in KINDS], "code": KINDS})
    pq.write_table(table, "iris.parquet")
    return here / "iris.parquet"


def fit(target: str, *words: str) -> Answer:
    other = {"kind": "code", "code": "kind"}[target]
    options = ("--target", target, "--drop", other, *FAST, "--out", "m", "--force")
    return run("fit", "iris.parquet", *options, *words)


def predictions(*words: str) -> tuple[Answer, pa.Table]:
    answer = run("predict", "m", "iris.parquet", "--out", "p.parquet", "--force", *words)
    return answer, pq.read_table("p.parquet")


@pytest.mark.filterwarnings("ignore:.*not converged", "ignore:.*repeat another row")
def test_text_of_three_classes_is_fitted_and_predicted(iris: Path) -> None:
    answer = fit("kind")
    assert answer.code == 0, answer.err
    assert "suggests the task classification: it has 3 different values." in answer.err
    settings = {"beta": 1.0, "hyperparameters": "joint", "max_iter": 3, "num_inducing": 5}
    own = SparseGPClassifier(**settings, kernel="rbf", ard=True, random_state=0).fit(X, KINDS)
    answer, found = predictions("--density", "--json")
    assert found.column_names == [
        "row",
        *(f"p_{n}" for n in NAMES),
        "predicted",
        "log_density",
        "reason",
    ]
    chances = np.column_stack([found[f"p_{name}"].to_numpy() for name in NAMES])
    np.testing.assert_array_equal(chances, own.predict_proba(X))
    assert found["predicted"].to_pylist() == [NAMES[k] for k in chances.argmax(1)]
    facts = json.loads(answer.out)
    assert facts["scores"]["nll"] == pytest.approx(log_loss(KINDS, chances), rel=1e-9)
    assert facts["scores"]["error"] == pytest.approx((chances.argmax(1) != KINDS).mean())
    density = np.log(chances[np.arange(len(X)), KINDS])
    np.testing.assert_allclose(found["log_density"].to_numpy(), density, rtol=1e-9)


def test_numbers_are_classes_if_the_user_says_so(iris: Path) -> None:
    assert "suggests the task count" in fit("code").err
    answer = fit("code", "--task", "classification", "--likelihood", "ordinal", "--json")
    assert json.loads(answer.out)["classes"] == ["0", "1", "2"]
    model, card = model_folder.load_folder(Path("m"), "cpu")
    assert type(model.likelihood_).__name__ == "OrderedProbit"
    assert card.classes == ("0", "1", "2")
    _, found = predictions("--no-proba")
    assert found.column_names == ["row", "predicted", "reason"]


def test_a_model_of_classes_is_described(iris: Path) -> None:
    fit("kind")
    shown = run("inspect", "m").out
    assert "kind, classification: 'setosa', 'versicolor' and 'virginica'" in shown
    assert json.loads(run("inspect", "m", "--json").out)["classes"] == NAMES


def test_an_unknown_class_is_refused_unless_it_is_not_scored(iris: Path) -> None:
    fit("kind")
    table = pq.read_table(iris)
    labels = ["rose", *table["kind"].to_pylist()[1:]]
    pq.write_table(table.set_column(2, "kind", [labels]), iris)
    answer = run("predict", "m", "iris.parquet", "--out", "p.csv")
    assert answer.code == 1
    assert answer.err.strip() == (
        "Error: The target 'kind' must be of the classes 'setosa', 'versicolor' and 'virginica'. "
        "Got other labels with their counts: 'rose' (1). Correct or remove these rows, or ignore "
        "the target with --no-score."
    )
    assert not Path("p.csv").exists()
    assert run("predict", "m", "iris.parquet", "--no-score", "--out", "p.csv").code == 0


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        (
            "kind",
            ("--likelihood", "probit"),
            "--likelihood must be one of softmax, robust_max, ordinal for 3 classes. Got 'probit'.",
        ),
        ("kind", ("--task", "regression"), "must be numbers for the task regression. Got 3 class"),
        ("kind", ("--objective", "zero_one_cost"), "two labels"),
    ],
)
def test_options_for_other_targets_are_refused(
    iris: Path, target: str, words: tuple[str, ...], message: str
) -> None:
    answer = fit(target, *words)
    assert answer.code in (1, 2)
    assert message in answer.err
    assert not Path("m").exists()


def test_weights_need_a_row_of_each_class(iris: Path) -> None:
    table = pq.read_table(iris)
    pq.write_table(table.append_column("w", [np.where(KINDS == 1, 0.0, 1.0)]), iris)
    answer = fit("kind", "--weights", "w")
    assert answer.code == 1
    assert "must be positive in some row of each class. Got 0 in every row of 'versi" in answer.err


@pytest.mark.slow
def test_a_comparison_has_the_scores_of_classes(iris: Path) -> None:
    options = ("--target", "kind", "--drop", "code", "--methods", "elbo,auto,mean,linear")
    more = ("--repeats", "1", "--max-iter", "3", "--inducing", "5", "--kernel", "rbf", "--ard")
    answer = run("compare", "iris.parquet", *options, *more, "--jobs", "1", "--out", "r", "--json")
    assert answer.code == 0, answer.err
    report = json.loads(Path("r/report.json").read_text())
    assert report["data"]["classes"] == NAMES
    assert report["settings"]["likelihood"] == "softmax"
    assert [score["name"] for score in report["scores"]] == ["nll", "error", "brier", "ece"]
    rows = {row["method"]: row["scores"] for row in report["standings"]}
    # 25 flowers of each class: predictions of the mean are a third each.
    assert rows["mean"]["nll"]["mean"] == pytest.approx(np.log(3), abs=0.01)
    assert rows["mean"]["brier"]["mean"] == pytest.approx(1 / 3, abs=0.01)
    for method in ("elbo", "auto", "linear"):
        assert rows[method]["nll"]["mean"] < rows["mean"]["nll"]["mean"]
    page = Path("r/index.html").read_text()
    assert "Predicting kind, one of 3 classes" in page
    assert "each of which counts once for every class" in page
    assert "which should be 90" not in page
    assert "--likelihood softmax" in report["verdict"]["command"]


@pytest.mark.parametrize(
    ("stored", "positive", "rest"),
    [
        (True, "ill", True),
        (False, "ill", False),
        # Cards of earlier versions.
        (None, "ill", True),
        (None, None, False),
    ],
)
def test_a_class_that_is_called_not_another_is_no_rest(
    stored: bool | None, positive: str | None, rest: bool
) -> None:
    classes = ("not ill", "ill")
    card = model_folder.ModelCard.model_construct(
        classes=classes, positive=positive, one_against_rest=stored
    )
    assert card.has_one_against_rest == rest


@pytest.mark.filterwarnings("ignore:.*not converged", "ignore:.*repeat another row")
def test_labels_that_training_did_not_have_are_not_scored_as_class_0(here: Path) -> None:
    labels = np.where(KINDS == 0, "ill", "not ill")
    pq.write_table(pa.table({"length": X[:, 0], "width": X[:, 1], "kind": labels}), "t.parquet")
    words = ("--target", "kind", "--positive", "ill", *FAST, "--out", "m")
    assert run("fit", "t.parquet", *words).code == 0
    labels[0] = "unsure"
    pq.write_table(pa.table({"length": X[:, 0], "width": X[:, 1], "kind": labels}), "t.parquet")
    answer = run("predict", "m", "t.parquet", "--out", "p.parquet")
    assert answer.code == 1 and "Got other labels with their counts: 'unsure' (1)." in answer.err
