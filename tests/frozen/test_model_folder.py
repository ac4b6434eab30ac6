"""`inspect` and `predict` read a folder of an earlier `directgp fit` with the same output."""

from pathlib import Path

import pytest

from tests.frozen.golden import assert_same_document, assert_same_text, read_json, read_text
from tests.frozen.model_folder import MODEL_FOLDER, copy_folder, inspected, predicted

pytestmark = pytest.mark.usefixtures("without_shape_checks")

REMEDY = "If this is meant: python -m tests.frozen.write model_answers"


def test_inspect_prints_the_same(here: Path) -> None:
    copy_folder(here)
    assert_same_text(inspected(), read_text(MODEL_FOLDER / "inspect.txt"), REMEDY)


def test_predict_writes_the_same_rows(here: Path) -> None:
    copy_folder(here)
    golden = read_json(MODEL_FOLDER / "predict.json")
    assert_same_document(predicted(here), golden, 1e-10, REMEDY)
