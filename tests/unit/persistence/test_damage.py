"""Damaged, foreign or forged files raise one clear error, and no code of them runs."""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from directgp.errors import ModelFileError
from directgp.io import CHECKSUM, digest, read_file, write_file
from directgp.persistence import load_model, save_model
from directgp.persistence.models import MODEL
from directgp.training.checkpoint import CHECKPOINT
from tests.unit.audit import UNWANTED, events_of
from tests.unit.persistence.cases import mixture, state

CPU = torch.device("cpu")
Tensors = dict[str, Tensor]
Change = Callable[[dict[str, Any], Tensors], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is as it should be."""
    path = tmp_path_factory.mktemp("models") / "whole.dgp"
    save_model(path, state(estimator="SparseGPClassifier", classes=np.array(["no", "yes"])))
    return path


@pytest.fixture(scope="module")
def whole_mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture with a stack that is as it should be."""
    path = tmp_path_factory.mktemp("models") / "mixture.dgp"
    save_model(path, mixture())
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.dgp"


def refusal(path: Path) -> str:
    """The message of the error."""
    with pytest.raises(ModelFileError) as caught:
        load_model(path, CPU)
    message = str(caught.value)
    assert str(path) in message and len(message) < 1000 and "\n" not in message
    return message


# Damage


@pytest.mark.parametrize("name", ["whole", "whole_mixture"])
def test_a_model_cut_short_anywhere_is_refused(
    path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    data = request.getfixturevalue(name).read_bytes()
    for length in random.Random(0).sample(range(len(data)), 300):
        path.write_bytes(data[:length])
        refusal(path)


@pytest.mark.parametrize("name", ["whole", "whole_mixture"])
def test_flipped_bits_are_caught_or_change_nothing(
    path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    whole = request.getfixturevalue(name)
    data, sound = whole.read_bytes(), read_file(MODEL, whole)
    rng, caught = random.Random(1), 0
    for _ in range(400):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            load_model(path, CPU)
        except ModelFileError:
            caught += 1
        else:
            assert repr(read_file(MODEL, path).manifest) == repr(sound.manifest)
    assert caught > 390


def test_swapped_headers_are_caught(path: Path, whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.dgp"
    changed = state()
    changed.posterior.u_mean.data.add_(1.0)
    save_model(other, changed)
    save_model(path, state())
    ours, theirs = path.read_bytes(), other.read_bytes()
    at, there = (8 + int.from_bytes(data[:8], "little") for data in (ours, theirs))
    path.write_bytes(theirs[:there] + ours[at:])
    assert "do not match their sha256" in refusal(path)


class Bomb:
    """Runs a command if it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('run')",)


def many_tensors(count: int) -> bytes:
    entry = {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"x{i}": entry for i in range(count)}).encode()
    return len(header).to_bytes(8, "little") + header


FOREIGN: dict[str, bytes] = {
    "empty": b"",
    "pickle": pickle.dumps(Bomb()),
    "zip": b"PK\x03\x04 as torch.save writes it",
    "text": b"estimator: SparseGPRegressor\n",
    "length": b"\xff" * 8 + b"{}",
    "array": (2).to_bytes(8, "little") + b"[]",
    "safetensors": save({"Z": torch.ones(2)}, {"format": "pt"}),
    "many tensors": many_tensors(10_000),
    "deep": save({}, {MODEL.key: "[" * 100_000, "sha256": ""}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_refused(path: Path, name: str) -> None:
    path.write_bytes(FOREIGN[name])
    assert "cannot be loaded as a model" in refusal(path)


def test_a_checkpoint_is_no_model(path: Path) -> None:
    write_file(CHECKPOINT, path, {}, {"format": 1})
    assert "it was not written by the save method of a directgp estimator" in refusal(path)


def test_what_is_not_there_is_an_error_with_words(path: Path) -> None:
    assert "could not be read" in refusal(path) and "Check the path." in refusal(path)
    assert "could not be read" in refusal(path.parent)


# False entries: files with a right checksum that say what cannot be


def put(where: str, value: Any) -> Change:
    """Set one entry of the manifest."""

    def change(manifest: dict[str, Any], tensors: Tensors) -> None:
        *steps, last = where.split("/")
        parent: Any = manifest
        for step in steps:
            parent = parent[int(step) if step.isdigit() else step]
        parent[int(last) if last.isdigit() else last] = value

    return change


def drop(where: str) -> Change:
    return lambda manifest, tensors: manifest.pop(where)


def tensor(name: str, value: Tensor) -> Change:
    return lambda manifest, tensors: tensors.update({name: value})


def without(name: str) -> Change:
    return lambda manifest, tensors: tensors.pop(name)


def chain(depth: int) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "kind": "RBFKernel",
        "options": {},
        "constraints": {},
        "parts": [],
    }
    for _ in range(depth):
        spec = {"kind": "ScaleKernel", "options": {}, "constraints": {}, "parts": [spec]}
    return spec


def bushy() -> dict[str, Any]:
    empty: dict[str, Any] = {"kind": "AdditiveKernel", "options": {}, "constraints": {}}
    twigs = [{**empty, "parts": [chain(0) for _ in range(60)]} for _ in range(60)]
    return {**empty, "parts": twigs}


KERNEL, RULE, Z = "posterior/kernel", "params/rule/rule", "posterior.Z"
RBF = f"{KERNEL}/parts/0"
SCALE = "posterior.prior.kernel.base_kernel.raw_lengthscale"
WIDE = torch.ones(4, 3, dtype=torch.float64)

FALSE_ENTRIES: dict[str, Change] = {
    "no format": drop("format"),
    "format as text": put("format", "1"),
    "format true": put("format", True),
    "no posterior": drop("posterior"),
    "more": put("surprise", 1),
    "estimator": put("estimator", "os.system"),
    "estimator of a list": put("estimator", []),
    "versions": put("versions", {"torch": 2}),
    "huge name": put("params/" + "x" * 10_000, {"type": "plain", "value": 1}),
    "dotted name": put("params/a.b", {"type": "plain", "value": 1}),
    "param type": put("params/rule", {"type": "pickle", "data": "gASV"}),
    "param code": put("params/rule", {"type": "plain", "value": {"__reduce__": "exec"}}),
    "array without tensor": put("params/new", {"type": "array"}),
    "kernel class": put(f"{KERNEL}/kind", "subprocess.Popen"),
    "kernel of the name of a method": put(f"{KERNEL}/kind", "__class__"),
    "other kernel": put(f"{RBF}/kind", "PeriodicKernel"),
    "kernel in no kernel": put(f"{RBF}/parts", [chain(0)]),
    "no kernel in a scale": put(f"{KERNEL}/parts", []),
    "two kernels in a scale": put(f"{KERNEL}/parts", [chain(0), chain(0)]),
    "empty sum": put(KERNEL, {**chain(0), "kind": "AdditiveKernel"}),
    "deep kernel": put(KERNEL, chain(9)),
    "very deep kernel": put(KERNEL, chain(200)),
    "many kernels": put(KERNEL, bushy()),
    "unknown option": put(f"{RBF}/options", {"lengthscale_prior": 1}),
    "option of text": put(f"{RBF}/options", {"ard_num_dims": "3"}),
    "option true": put(f"{RBF}/options", {"ard_num_dims": True}),
    "wide kernel": put(f"{RBF}/options", {"ard_num_dims": 10**8}),
    "very wide kernel": put(f"{RBF}/options", {"ard_num_dims": 10**30}),
    "narrow kernel": put(f"{RBF}/options", {"ard_num_dims": 2}),
    "negative width": put(f"{RBF}/options", {"ard_num_dims": -1}),
    "width of a half": put(f"{RBF}/options", {"ard_num_dims": 0.5}),
    "NaN option": put(f"{RBF}/options", {"ard_num_dims": float("nan")}),
    "no constraints": put(f"{RBF}/constraints", {}),
    "unknown constraint": put(f"{RBF}/constraints", {"raw_lengthscale": "eval"}),
    "other constraint": put(f"{RBF}/constraints", {"raw_lengthscale": "Positive"}),
    "constraint on another": put(f"{RBF}/constraints", {"forward": "Interval"}),
    "mean class": put("posterior/mean/kind", "Mean"),
    "other mean": put("posterior/mean/kind", "LinearMean"),
    "constrained mean": put("posterior/mean/constraints", {"forward": "Positive"}),
    "nugget": put("posterior/nugget", float("nan")),
    "nugget of text": put("posterior/nugget", "1e-8"),
    "negative nugget": put("posterior/nugget", -1e-8),
    "held nothing": put("posterior/frozen", ["forward"]),
    "likelihood class": put("likelihood/kind", "Binomial"),
    "other likelihood": put("likelihood/kind", "StudentT"),
    "setting of another one": put("likelihood/settings", {"min_df": 1.0}),
    "negative setting": put("params/likelihood/likelihood/settings", {"min_df": -1.0}),
    "rule class": put(f"{RULE}/kind", "Rule"),
    "rule samples": put(f"{RULE}/num_samples", 0),
    "rule of text": put(f"{RULE}/num_samples", "3"),
    "rule of NaN": put(f"{RULE}/num_samples", float("nan")),
    "rule word": put(f"{RULE}/gradient", "import os"),
    "rule flag": put(f"{RULE}/exact_value", 1),
    "rule surprise": put(f"{RULE}/surprise", 1),
    "loss class": put("params/objective/loss/kind", "Objective"),
    "classes of another type": put("classes/labels", [1, 2]),
    "classes too long": put("classes/labels", ["never", "always"]),
    "no classes": put("classes/labels", []),
    "dtype": put("classes/dtype", "<M8[s]"),
    "huge dtype": put("classes/dtype", "<U999999999"),
    "structured dtype": put("classes/dtype", "i4,f8"),
    "feature names": put("feature_names", [1]),
    "status": put("stages/0/status", "excellent"),
    "steps": put("stages/0/steps", 1.5),
    "losses": put("stages/0/losses", ["0.1"]),
    "record": put("record", []),
    "deep record": put("record", {"a": json.loads("[" * 400 + "]" * 400)}),
    "no Z": without(Z),
    "no bound": without(f"{SCALE}_constraint.upper_bound"),
    "surplus tensor": tensor("extra", WIDE),
    "surplus of the posterior": tensor("posterior.extra", WIDE),
    "surplus of a parameter": tensor("params.extra.values", WIDE),
    "surplus of a rule": tensor("params.rule.values", WIDE),
    "scalar Z": tensor(Z, torch.tensor(1.0)),
    "empty Z": tensor(Z, torch.empty(4, 0, dtype=torch.float64)),
    "more Z": tensor(Z, torch.ones(2000, 3, dtype=torch.float64)),
    "long Z": tensor(Z, torch.ones(10**6, 3, dtype=torch.float64)),
    "wider Z": tensor(Z, torch.ones(4, 5, dtype=torch.float64)),
    "float32 Z": tensor(Z, WIDE.float()),
    "half Z": tensor(Z, WIDE.half()),
    "whole Z": tensor(Z, WIDE.long()),
    "NaN Z": tensor(Z, WIDE * torch.nan),
    "infinite u_mean": tensor("posterior.u_mean", torch.full((4,), torch.inf).double()),
    "NaN u_chol": tensor("posterior.u_chol", torch.full((4, 4), torch.nan).double()),
    "long u_mean": tensor("posterior.u_mean", torch.ones(5).double()),
    "lengthscale": tensor(SCALE, torch.ones(1, 4).double()),
    "NaN lengthscale": tensor(SCALE, torch.full((1, 3), torch.nan).double()),
    "NaN bound": tensor(f"{SCALE}_constraint.upper_bound", torch.tensor(torch.nan).double()),
    "NaN bound of a parameter": tensor(
        "params.kernel.kernels.1.raw_alpha_constraint.lower_bound", torch.tensor(torch.nan)
    ),
    "empty interval": tensor(f"{SCALE}_constraint.upper_bound", torch.tensor(-1.0).double()),
    "endless interval": tensor(f"{SCALE}_constraint.upper_bound", torch.tensor(torch.inf).double()),
    "wide bound": tensor(f"{SCALE}_constraint.upper_bound", torch.ones(7).double()),
    "active dims": tensor(
        "posterior.prior.kernel.base_kernel.active_dims", torch.tensor([0, 1, 10**9])
    ),
    "negative active dims": tensor(
        "posterior.prior.kernel.base_kernel.active_dims", torch.tensor([0, 1, -1])
    ),
    "floating active dims": tensor(
        "posterior.prior.kernel.base_kernel.active_dims", torch.tensor([0.0, 1.0, 2.0]).double()
    ),
    "two noises": tensor("likelihood.raw_noise", torch.ones(2).double()),
    "NaN noise": tensor("likelihood.raw_noise", torch.tensor(torch.nan).double()),
    "whole noise": tensor("likelihood.raw_noise", torch.tensor(1)),
    "no noise": without("likelihood.raw_noise"),
    "NaN scaling": tensor("arrays.X.mean", torch.full((3,), torch.nan).double()),
    "float32 scaling": tensor("arrays.X.mean", torch.ones(3)),
}


SOURCES, FOLD, MEMBER = "stack/sources", "stack.0.1.", "members.0."
FLAGS = torch.tensor([False, True, False, True, True, True])

FALSE_MEMBERS: dict[str, Change] = {
    "members as a dict": put("members", {}),
    "a member too many": lambda m, t: m["members"].append(m["members"][0]),
    "a member too few": lambda m, t: m["members"].pop(),
    "a member without a likelihood": lambda m, t: m["members"][0].pop("likelihood"),
    "a member with more": put("members/0/surprise", 1),
    "the kernel of another member": put("members/0/posterior/kernel/kind", "RQKernel"),
    "the likelihood of another member": put("members/0/likelihood/kind", "Gaussian"),
    "a member of two latents": put("members/0/posterior/num_latent", 2),
    "no Z of a member": without(f"{MEMBER}posterior.Z"),
    "NaN Z of a member": tensor(f"{MEMBER}posterior.Z", WIDE * torch.nan),
    "float32 Z of a member": tensor(f"{MEMBER}posterior.Z", WIDE.float()),
    "long u_mean of a member": tensor(f"{MEMBER}posterior.u_mean", torch.ones(5).double()),
    "a surplus of a member": tensor(f"{MEMBER}posterior.extra", WIDE),
    "a member without a number": tensor("members.posterior.Z", WIDE),
    "a member of another number": tensor("members.00.posterior.Z", WIDE),
    "no stack": put("stack", None),
    "a stack as a list": put("stack", []),
    "no sources": put(SOURCES, []),
    "a source too many": lambda m, t: m["stack"]["sources"].append(m["stack"]["sources"][0]),
    "a source too few": lambda m, t: m["stack"]["sources"].pop(),
    "a fold too many": lambda m, t: m["stack"]["sources"][0]["folds"].append(
        {"link": "identity", "low": 0.0, "high": 1.0}
    ),
    "a fold too few": lambda m, t: m["stack"]["sources"][0]["folds"].pop(),
    "no folds": put(f"{SOURCES}/0/folds", []),
    "a million folds": lambda m, t: m["stack"]["sources"][0].update(
        folds=m["stack"]["sources"][0]["folds"] * 500_000
    ),
    "a name too many": put(f"{SOURCES}/0/names", ["a", "b"]),
    "a name too few": put(f"{SOURCES}/1/names", ["a", "b"]),
    "no names": put(f"{SOURCES}/0/names", []),
    "a name that is a number": put(f"{SOURCES}/0/names", [1]),
    "code of a source": put(f"{SOURCES}/0/estimator", "gASV"),
    "a link": put(f"{SOURCES}/0/folds/0/link", "exp"),
    "an end of the range in words": put(f"{SOURCES}/0/folds/0/low", "0"),
    "an end of the range that is NaN": put(f"{SOURCES}/0/folds/0/low", float("nan")),
    "an empty range": put(f"{SOURCES}/0/folds/0/high", float("-inf")),
    "a log of 0": put(f"{SOURCES}/0/folds/1/low", 0.0),
    "a logit of 1": put(f"{SOURCES}/1/folds/0/high", 1.0),
    "no features": put("stack/num_features", 0),
    "fewer features than splits need": put("stack/num_features", 2),
    "features in words": put("stack/num_features", "3"),
    "features without end": put("stack/num_features", 10**400),
    "no flags": without(f"{FOLD}is_leaf"),
    "a tree without an end": tensor(f"{FOLD}is_leaf", ~FLAGS),
    "a tree without its last leaf": tensor(f"{FOLD}is_leaf", FLAGS[:-1]),
    "more trees": tensor(f"{FOLD}is_leaf", torch.ones(6, dtype=torch.bool)),
    "flags that are numbers": tensor(f"{FOLD}is_leaf", FLAGS.to(torch.uint8)),
    "flags of two axes": tensor(f"{FOLD}is_leaf", FLAGS.reshape(2, 3)),
    "leaves of another number": tensor(f"{FOLD}value", torch.ones(5).double()),
    "a tree of many leaves": lambda m, t: t.update(
        {
            f"{FOLD}is_leaf": torch.tensor([False] * 64 + [True] * 65),
            f"{FOLD}feature": torch.zeros(64, dtype=torch.int32),
            f"{FOLD}threshold": torch.zeros(64).double(),
            f"{FOLD}missing_left": torch.zeros(64, dtype=torch.bool),
            f"{FOLD}value": torch.zeros(65).double(),
            f"{FOLD}output": torch.zeros(1, dtype=torch.int32),
        }
    ),
    "children, of another layout": tensor(f"{FOLD}left", torch.tensor([1, 0])),
    "a feature beyond the last": tensor(f"{FOLD}feature", torch.tensor([0, 3]).int()),
    "a negative feature": tensor(f"{FOLD}feature", torch.tensor([0, -1]).int()),
    "features of 64 bits": tensor(f"{FOLD}feature", torch.tensor([0, 1])),
    "a feature too few": tensor(f"{FOLD}feature", torch.tensor([0]).int()),
    "a NaN threshold": tensor(f"{FOLD}threshold", torch.tensor([0.0, torch.nan]).double()),
    "narrow thresholds": tensor(f"{FOLD}threshold", torch.zeros(2)),
    "sides of gaps that are numbers": tensor(f"{FOLD}missing_left", torch.zeros(2).double()),
    "a NaN leaf": tensor(f"{FOLD}value", torch.full((4,), torch.nan).double()),
    "an infinite leaf": tensor(f"{FOLD}value", torch.full((4,), torch.inf).double()),
    "an output beyond the last": tensor(f"{FOLD}output", torch.tensor([0, 1]).int()),
    "outputs that fall": tensor("stack.1.0.output", torch.tensor([0, 0, 2, 2, 1, 1]).int()),
    "an infinite baseline": tensor(f"{FOLD}baseline", torch.tensor([torch.inf]).double()),
    "no baseline": tensor(f"{FOLD}baseline", torch.empty(0).double()),
    "a baseline too many": tensor(f"{FOLD}baseline", torch.zeros(2).double()),
}


def write_changed(path: Path, whole: Path, change: Change) -> None:
    """Write the file with one change in it."""
    tensors, manifest = read_file(MODEL, whole)
    change(manifest, tensors)
    text = json.dumps({"schema": MODEL.schema, "manifest": manifest})
    path.write_bytes(save(tensors, {MODEL.key: text, CHECKSUM: digest(text, tensors)}))


def test_a_file_without_a_false_entry_is_loaded(path: Path, whole: Path) -> None:
    write_changed(path, whole, lambda manifest, tensors: None)
    classes = load_model(path, CPU).classes
    assert classes is not None and classes.tolist() == ["no", "yes"]


@pytest.mark.parametrize("name", FALSE_ENTRIES)
def test_a_false_entry_is_refused(
    path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_changed(path, whole, FALSE_ENTRIES[name])
    really_zeros = torch.zeros

    def small_zeros(*size: Any, **how: Any) -> Tensor:
        made = really_zeros(*size, **{**how, "device": "meta"})
        assert made.numel() < 1000, "a false entry made something large"
        return really_zeros(*size, **how)

    monkeypatch.setattr(torch, "zeros", small_zeros)
    message = refusal(path)
    assert message.startswith(f"{path} cannot be loaded as a model: ")
    assert message.endswith(". Take another copy of it, or fit and save the model again.")
    assert "a false entry made something large" not in message


def test_a_mixture_without_a_false_entry_is_loaded(path: Path, whole_mixture: Path) -> None:
    write_changed(path, whole_mixture, lambda manifest, tensors: None)
    state = load_model(path, CPU)
    assert len(state.members) == 2 and state.stack is not None


@pytest.mark.parametrize("name", FALSE_MEMBERS)
def test_a_false_entry_of_a_mixture_is_refused(path: Path, whole_mixture: Path, name: str) -> None:
    write_changed(path, whole_mixture, FALSE_MEMBERS[name])
    assert refusal(path).startswith(f"{path} cannot be loaded as a model: ")


@pytest.mark.parametrize("name", ["whole", "whole_mixture"])
def test_random_entries_are_refused_or_harmless(
    path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    """Any entry of the manifest, set to anything."""
    whole = request.getfixturevalue(name)
    rng, caught = random.Random(2), 0
    values = [None, True, -1, 10**12, float("nan"), "x", "", [], {}, [1], {"kind": "RBFKernel"}]

    def places(at: Any, way: str = "") -> list[str]:
        items = list(enumerate(at)) if isinstance(at, list) else list(dict(at).items())
        inside = [(key, item) for key, item in items if isinstance(item, dict | list)]
        deeper = [place for key, item in inside for place in places(item, f"{way}{key}/")]
        return [f"{way}{key}" for key, _ in items] + deeper

    everywhere = places(read_file(MODEL, whole).manifest)
    assert len(everywhere) > 50
    for _ in range(150):
        write_changed(path, whole, put(rng.choice(everywhere), rng.choice(values)))
        try:
            load_model(path, CPU)
        except ModelFileError:
            caught += 1
    assert caught > 100


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["whole", "whole_mixture"])
def test_loading_a_model_opens_one_file_and_runs_nothing(
    name: str, request: pytest.FixtureRequest
) -> None:
    whole = request.getfixturevalue(name)
    unpickled = events_of(lambda: pickle.loads(pickle.dumps(Path())))
    assert any(event.name.startswith(UNWANTED) for event in unpickled), "nothing is found at all"
    events = events_of(lambda: load_model(whole, CPU))
    opened = [event.arguments for event in events if event.name == "open"]
    assert opened and all(str(whole) in arguments for arguments in opened), opened
    assert not [event for event in events if event.name.startswith(UNWANTED)]
