"""Checkpoints of an earlier version are resumed, and end where that version ended."""

import shutil
from pathlib import Path

import pytest

from tests.frozen.checkpoints import CHECKPOINTS, KEPT_AT, RUNS, STOPPED_AT, Watch, described, run
from tests.frozen.golden import assert_same_document, read_json

pytestmark = pytest.mark.usefixtures("without_shape_checks", "one_thread")

REMEDY = "A checkpoint must end as it did: this is an error of the code."


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_is_resumed_and_ends_as_it_did(name: str, tmp_path: Path) -> None:
    golden = read_json(CHECKPOINTS / f"{name}.json")
    path = tmp_path / "checkpoint"
    shutil.copy(CHECKPOINTS / f"{name}.checkpoint", path)
    watch = Watch()
    found = described(run(name, path, watch))
    mean, golden_mean = found.pop("mean"), golden.pop("mean")
    steps, golden_steps = found.pop("steps"), golden.pop("steps")
    assert_same_document(found, golden, 1e-6, REMEDY)
    assert mean == pytest.approx(golden_mean, rel=1e-4)
    # Another processor may need some steps more or less to converge.
    assert steps[:-1] == golden_steps[:-1]
    assert abs(steps[-1] - golden_steps[-1]) <= 5
    # The stages before are not run again, and this one goes on at the step of the file.
    stage, _ = STOPPED_AT[name]
    assert watch.steps_run == {stage: steps[-1] - KEPT_AT[name]}
