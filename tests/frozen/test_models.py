"""Model files of an earlier version load, predict the same and print the same summary."""

from typing import Any

import pytest

import directgp
from tests.frozen.golden import assert_same_document, assert_same_text, read_json, read_text
from tests.frozen.models import FITS, MODELS, ask, attributes, path_of, summary
from tests.frozen.public_names import fitted_attributes

pytestmark = pytest.mark.usefixtures("without_shape_checks")

REMEDY = "If this is meant: python -m tests.frozen.write model_answers"
TOLERANCE = 1e-10


def load(name: str) -> Any:
    return directgp.load(path_of(name), device="cpu")


@pytest.mark.parametrize("name", FITS)
def test_a_model_file_predicts_as_it_did(name: str) -> None:
    golden = read_json(MODELS / f"{name}.json")
    model = load(name)
    found = {"predictions": ask(model), **attributes(model), "public": fitted_attributes(model)}
    assert_same_document(found, golden, TOLERANCE, REMEDY)


@pytest.mark.parametrize("name", FITS)
def test_a_model_file_prints_the_same_summary(name: str) -> None:
    assert_same_text(summary(load(name)), read_text(MODELS / f"{name}.summary.txt"), REMEDY)


@pytest.mark.parametrize("name", FITS)
def test_a_model_that_is_saved_again_is_the_same(name: str, tmp_path: Any) -> None:
    model = load(name)
    model.save(tmp_path / "again")
    again = directgp.load(tmp_path / "again", device="cpu")
    assert ask(again) == ask(model)
    assert summary(again) == summary(model)
