"""Model files: all fields, labels, versions, and failures of a save."""

import copy
import dataclasses
import errno
import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from directgp import files
from directgp.errors import DirectGPError, ModelFileError, UnsupportedError
from directgp.io import digest, read_file, write_file
from directgp.persistence import ModelState, load_model, save_model
from directgp.persistence.models import MODEL
from directgp.stack import Stack, Trees
from directgp.stack.scales import Scale
from directgp.stack.sources import FittedSource, ForeignModel
from directgp.stack.stack import FoldedSource
from tests.unit.persistence.cases import bits, inputs, is_module, mixture, stack, state

CPU = torch.device("cpu")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.dgp"


@pytest.fixture
def old(path: Path) -> bytes:
    """A model in place, and its bytes."""
    save_model(path, state())
    return path.read_bytes()


def plain(value: Any) -> Any:
    """A value in a form whose text tells all bits."""
    if is_module(value):
        return type(value).__name__, bits(value)
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Stack):
        return [
            (source.names, fitted.scale, plain(fitted.model.arrays()), fitted.model.num_features)
            for source in value.sources
            for fitted in source.folds
            if isinstance(fitted.model, Trees)
        ]
    if isinstance(value, tuple) and any(isinstance(item, tuple) for item in value):
        return [[plain(part) for part in item] for item in value]
    return value.item() if isinstance(value, np.generic) else value


def described(state: ModelState) -> str:
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    fields.pop("versions")
    more = fields["params"].get("more", [])
    fields["params"] = {**fields["params"], "more": [plain(item) for item in more]}
    return repr(plain(fields))


def test_every_field_comes_back_to_the_bit(path: Path) -> None:
    saved = state()
    before = described(copy.deepcopy(saved))
    save_model(path, saved)
    assert described(load_model(path, CPU)) == described(saved) == before
    assert os.listdir(path.parent) == [path.name]


def test_a_loaded_model_saves_to_the_same_contents(path: Path, old: bytes) -> None:
    before = read_file(MODEL, path)
    save_model(path, load_model(path, CPU))
    after = read_file(MODEL, path)
    assert repr(after.manifest) == repr(before.manifest)
    assert digest("", after.tensors) == digest("", before.tensors)


def test_the_description_sees_differences(path: Path) -> None:
    ours, theirs = state(), state()
    theirs.posterior.u_mean.data[0] += 1e-15
    assert described(ours) == described(state()) != described(theirs)
    mixtures = [mixture(), mixture(stack=None), mixture(members=()), mixture()]
    mixtures[3].members[1].posterior.u_mean.data[0] += 1e-15
    assert len({described(each) for each in mixtures}) == 4


# Mixtures


@pytest.mark.parametrize("parts", [{}, {"stack": None}, {"members": ()}], ids=list)
def test_members_and_trees_come_back_to_the_bit(path: Path, parts: dict[str, Any]) -> None:
    saved = mixture(**parts)
    before = described(saved)
    save_model(path, saved)
    found = load_model(path, CPU)
    assert described(found) == before
    assert read_file(MODEL, path).manifest["format"] == 4
    contents = digest("", read_file(MODEL, path).tensors)
    save_model(path, found)
    assert digest("", read_file(MODEL, path).tensors) == contents


def test_a_loaded_stack_predicts_the_same_bits(path: Path) -> None:
    save_model(path, mixture())
    found = load_model(path, CPU).stack
    X = np.concatenate([inputs(20).numpy(), [[np.nan, 0.0, np.nan]]])
    assert found is not None
    np.testing.assert_array_equal(found.columns(X), stack().columns(X), strict=True)
    assert found.names == ("trees", "a", "b", "c β")


def test_a_model_alone_has_the_fields_of_earlier_formats(path: Path) -> None:
    later = {"members", "stack", "others", "table"}
    for saved, file_format, fields in (
        (state(), 1, set()),
        (state(others=(state(),)), 2, {"others"}),
        (state(table={}), 3, {"table"}),
        (state(others=(mixture(),), table={}), 4, {"others", "table"}),
    ):
        save_model(path, saved)
        tensors, manifest = read_file(MODEL, path)
        assert manifest["format"] == file_format
        assert manifest.keys() & later == fields
        first = (name for name in tensors if not name.startswith("others."))
        assert not any(name.startswith(("members.", "stack.")) for name in first)


def test_each_output_has_members_and_trees(path: Path) -> None:
    saved = mixture(others=(state(), mixture()))
    save_model(path, saved)
    found = load_model(path, CPU)
    for one, other in zip((found, *found.others), (saved, *saved.others), strict=True):
        alone = (dataclasses.replace(each, others=()) for each in (one, other))
        assert len({described(each) for each in alone}) == 1


def test_members_go_to_the_device(path: Path) -> None:
    save_model(path, mixture())
    for member in load_model(path, torch.device("meta")).members:
        for part in member:
            assert {tensor.device.type for tensor in part.state_dict().values()} == {"meta"}


def test_an_estimator_in_the_stack_is_refused(path: Path) -> None:
    model = ForeignModel("Ridge", object(), is_classifier=False, width=1)
    source = FoldedSource(("Ridge",), (FittedSource(model, Scale()),))
    with pytest.raises(UnsupportedError, match=r"Ridge in its stack .* stack='trees'.* joblib"):
        save_model(path, mixture(stack=Stack((source,), 3)))
    assert not path.exists()


@pytest.mark.parametrize(
    "labels",
    [
        np.array([False, True]),
        np.array([-1, 1], np.int8),
        np.array([0, 2**63], np.uint64),
        np.array([0.1, 0.5], np.float32),
        np.array([1.5, 2.5], ">f8"),
        np.array(["no", "β yes"]),
        np.array(["no", "yes"], "<U9"),
        np.array(["no", "yes"], object),
    ],
    ids=lambda labels: labels.dtype.str,
)
def test_labels_come_back_with_their_dtype(path: Path, labels: Any) -> None:
    save_model(path, state(estimator="SparseGPClassifier", classes=labels))
    again = load_model(path, CPU).classes
    assert again is not None
    assert again.dtype == labels.dtype and again.tolist() == labels.tolist()


def test_a_model_without_classes_has_no_labels(path: Path, old: bytes) -> None:
    assert load_model(path, CPU).classes is None


def test_the_file_says_what_wrote_it(path: Path, old: bytes) -> None:
    found = load_model(path, CPU).versions
    libraries = {"directgp", "torch", "gpytorch", "numpy", "scipy", "scikit-learn", "python"}
    assert found.keys() == libraries
    assert found["torch"] == version("torch") and found["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"directgp": "9.1"}, "Load it with directgp 9.1"),
        ({"directgp": 9}, "Load it with the version that wrote it"),
        ({"directgp": "x" * 10_000}, "Load it with the version that wrote it"),
        (None, "Load it with the version that wrote it"),
    ],
)
def test_another_format_says_which_version_reads_it(
    path: Path, old: bytes, versions: Any, said: str
) -> None:
    tensors, _ = read_file(MODEL, path)
    write_file(MODEL, path, tensors, {"format": 7, "versions": versions, "unheard": "of"})
    with pytest.raises(
        ModelFileError, match=r"a model of format 7.* reads formats 1 to 6"
    ) as caught:
        load_model(path, CPU)
    assert said in str(caught.value) and str(path) in str(caught.value)


def test_the_model_goes_to_the_device(path: Path, old: bytes) -> None:
    found = load_model(path, torch.device("meta"))
    devices = {tensor.device.type for tensor in found.posterior.state_dict().values()}
    devices |= {tensor.device.type for tensor in found.likelihood.state_dict().values()}
    assert devices == {"meta"}
    assert {t.device.type for t in found.params["kernel"].state_dict().values()} == {"cpu"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_model_of_a_gpu_loads_on_the_cpu(path: Path) -> None:
    saved = state()
    saved.posterior.cuda()
    saved.likelihood.cuda()
    save_model(path, saved)
    found = load_model(path, CPU)
    assert bits(found.posterior) == bits(saved.posterior)
    assert found.posterior.Z.device == CPU


def test_a_loaded_model_shares_nothing_with_the_file_or_another(path: Path, old: bytes) -> None:
    one, other = load_model(path, CPU), load_model(path, CPU)
    before = described(other)
    for tensor in one.posterior.state_dict().values():
        tensor.zero_()
    path.write_bytes(b"\xff" * len(old))
    assert described(other) == before


def test_tensors_are_aligned_as_fresh_ones_are(path: Path, old: bytes) -> None:
    def aligned(tensor: Tensor) -> bool:
        return tensor.data_ptr() % 64 == 0

    assert all(map(aligned, load_model(path, CPU).posterior.state_dict().values()))


# Saves that fail


def assert_kept(path: Path, old: bytes) -> None:
    assert path.read_bytes() == old
    assert os.listdir(path.parent) == [path.name]
    assert described(load_model(path, CPU)) == described(state())


def fail_with(failure: BaseException) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise failure

    return fail


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_save_that_fails_leaves_the_old_model(
    path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch, moment: str, number: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, moment, fail_with(OSError(number, os.strerror(number))))
        with pytest.raises(ModelFileError, match=os.strerror(number)) as caught:
            save_model(path, state(feature_names=None))
    said = str(caught.value)
    assert str(path) in said and "a model that was there has not been damaged" in said
    assert_kept(path, old)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_crash_leaves_the_old_model(
    path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, moment, fail_with(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            save_model(path, state(feature_names=None))
    assert_kept(path, old)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_leaves_the_old_model(
    path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = path.with_name("draft")
    with monkeypatch.context() as patch:
        patch.setattr(files, "_new_draft", lambda path: (draft, open("/dev/full", "wb")))
        with pytest.raises(ModelFileError, match="No space left"):
            save_model(path, state(feature_names=None))
    assert_kept(path, old)


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that cannot be written to, with a model; permissions do not bind root."""
    with tempfile.TemporaryDirectory() as name:
        folder, user = Path(name), os.geteuid()
        save_model(folder / "model.dgp", state())
        folder.chmod(0o555)
        if user == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


def test_a_model_in_a_read_only_folder_is_an_error(read_only: Path) -> None:
    path = read_only / "model.dgp"
    old = path.read_bytes()
    with pytest.raises(ModelFileError, match="could not be written") as caught:
        save_model(path, state(feature_names=None))
    assert isinstance(caught.value.__cause__, PermissionError)
    assert_kept(path, old)


def test_a_model_file_error_is_a_directgp_error_and_an_os_error() -> None:
    assert issubclass(ModelFileError, DirectGPError) and issubclass(ModelFileError, OSError)
