"""Model files, model folders and checkpoints of an earlier version give the same results."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import directgp
from tests.frozen.checkpoints import CHECKPOINTS, KEPT_AT, RUNS, STOPPED_AT, Watch, described, run
from tests.frozen.golden import assert_same_document, assert_same_text, read_json, read_text
from tests.frozen.model_folder import MODEL_FOLDERS, copy_folder, inspected, predicted
from tests.frozen.models import FITS, MODELS, ask, attributes, path_of, summary
from tests.frozen.public_names import fitted_attributes

pytestmark = pytest.mark.usefixtures("without_shape_checks", "one_thread")

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


@pytest.mark.parametrize("name", MODEL_FOLDERS)
def test_inspect_prints_the_same(name: str, here: Path) -> None:
    copy_folder(name, here)
    assert_same_text(inspected(), read_text(MODEL_FOLDERS[name] / "inspect.txt"), REMEDY)


@pytest.mark.parametrize("name", MODEL_FOLDERS)
def test_predict_writes_the_same_rows(name: str, here: Path) -> None:
    copy_folder(name, here)
    golden = read_json(MODEL_FOLDERS[name] / "predict.json")
    assert_same_document(predicted(here), golden, 1e-10, REMEDY)


CHECKPOINT_REMEDY = "A checkpoint must end as it did: this is an error of the code."


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_is_resumed_and_ends_as_it_did(name: str, tmp_path: Path) -> None:
    golden = read_json(CHECKPOINTS / f"{name}.json")
    path = tmp_path / "checkpoint"
    shutil.copy(CHECKPOINTS / f"{name}.checkpoint", path)
    watch = Watch()
    found = described(run(name, path, watch))
    mean, golden_mean = found.pop("mean"), golden.pop("mean")
    steps, golden_steps = found.pop("steps"), golden.pop("steps")
    assert_same_document(found, golden, 1e-6, CHECKPOINT_REMEDY)
    assert mean == pytest.approx(golden_mean, rel=1e-4)
    # Another processor may need some steps more or less to converge.
    assert steps[:-1] == golden_steps[:-1]
    assert abs(steps[-1] - golden_steps[-1]) <= 5
    # The stages before are not run again, and this one goes on at the step of the file.
    stage, _ = STOPPED_AT[name]
    assert watch.steps_run == {stage: steps[-1] - KEPT_AT[name]}
