"""Kernels that are expressions are restored bit for bit; false entries raise an error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from directgp.errors import ModelFileError
from directgp.io import CHECKSUM, digest, read_file
from directgp.kernels import RBF, Expression, Matern52, Periodic, parse
from directgp.likelihoods import Softmax
from directgp.persistence import MemberState, ModelState, load_model, save_model
from directgp.persistence.models import MODEL
from directgp.posteriors import Prior, SparsePosterior
from tests.unit.kernels.columns import COLUMNS, EXPRESSIONS, PARTS, inputs
from tests.unit.persistence.cases import bits, posterior_with, shaken, state

CPU = torch.device("cpu")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.dgp"


def posterior_of(kernel: str, dtype: torch.dtype = torch.float64) -> SparsePosterior:
    """A posterior away from its start, with every second parameter held."""
    X = inputs(12).to(dtype)
    prior = Prior.from_data(X, kernel=parse(kernel), columns=COLUMNS, mean="constant")
    shaken(prior)
    posterior = SparsePosterior(prior, X[:4], nugget=1e-4)
    u_chol = torch.eye(4, dtype=dtype) + 0.1 * torch.ones(4, 4, dtype=dtype)
    posterior.set_q(X[:4, 0], u_chol)
    return posterior


def round_trip(path: Path, **changes: Any) -> ModelState:
    save_model(path, state(**{"params": {}, **changes}))
    return load_model(path, CPU)


def assert_same_posterior(found: SparsePosterior, saved: SparsePosterior) -> None:
    assert bits(found) == bits(saved)
    ours, theirs = found.prior.structure, saved.prior.structure
    assert ours is not None and theirs is not None
    assert ours.expression == theirs.expression and ours.coded == theirs.coded
    assert [part.coded for part in ours.parts] == [part.coded for part in theirs.parts]
    X = inputs(20, seed=1).to(saved.Z)
    one, other = found.predict(X), saved.predict(X)
    assert torch.equal(one.mean, other.mean) and torch.equal(one.variance, other.variance)
    assert bool(torch.isfinite(one.mean).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_expressions_come_back_to_the_bit(path: Path, text: str, dtype: torch.dtype) -> None:
    saved = posterior_of(text, dtype)
    found = round_trip(path, posterior=saved, params={"kernel": parse(text)})
    assert_same_posterior(found.posterior, saved)
    assert found.params["kernel"] == parse(text)
    assert read_file(MODEL, path).manifest["format"] == 6


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_several_latents_come_back_to_the_bit(path: Path, text: str, shared: bool) -> None:
    saved = posterior_of(text).with_latents(3, shared=shared)
    found = round_trip(path, posterior=saved, likelihood=Softmax(3))
    assert_same_posterior(found.posterior, saved)


def test_a_kernel_of_one_term_has_no_shares_to_train(path: Path) -> None:
    kernel = round_trip(path, posterior=posterior_of("Group('city')")).posterior.prior.kernel
    assert not kernel.raw_shares.requires_grad


def test_members_of_a_mixture_may_have_expressions(path: Path) -> None:
    member = MemberState(posterior_of(EXPRESSIONS[0]), Softmax(2))
    found = round_trip(path, members=(member,))
    assert_same_posterior(found.members[0].posterior, member.posterior)
    assert read_file(MODEL, path).manifest["format"] == 6


def test_a_loaded_expression_saves_to_the_same_contents(path: Path) -> None:
    save_model(path, state(posterior=posterior_of(EXPRESSIONS[1])))
    before = read_file(MODEL, path)
    save_model(path, load_model(path, CPU))
    after = read_file(MODEL, path)
    assert repr(after.manifest) == repr(before.manifest)
    assert digest("", after.tensors) == digest("", before.tensors)


def test_a_model_without_expressions_has_the_fields_of_earlier_formats(path: Path) -> None:
    save_model(path, state(posterior=posterior_with()))
    manifest = read_file(MODEL, path).manifest
    assert manifest["format"] == 1
    assert manifest["posterior"]["kernel"].keys() == {"kind", "options", "constraints", "parts"}


@pytest.mark.parametrize(
    "expression",
    [
        Matern52("β [°C] \"'\\\n", "") + RBF(0) * Periodic(-1, period=0.1 + 0.2),
        Matern52(*np.array(["a", "b"])),
        Periodic("date", period=np.float64(12.5)),
        RBF(*range(10_000)),
    ],
    ids=["odd names", "names of numpy", "number of numpy", "many columns"],
)
def test_the_parameter_comes_back(path: Path, expression: Expression) -> None:
    found = round_trip(path, params={"kernel": expression}).params["kernel"]
    assert found == expression and repr(found) == repr(expression)


def test_many_columns_come_back(path: Path) -> None:
    X = torch.randn(3, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    saved = SparsePosterior(Prior.from_data(X, kernel=parse("RBF() + Linear(0)")), X)
    assert bits(round_trip(path, posterior=saved).posterior) == bits(saved)


# False entries

Tensors = dict[str, Tensor]
Change = Callable[[dict[str, Any], Tensors], object]
KERNEL = "posterior.prior.kernel."
TEXT = (
    "Matern52(0, 3) + Periodic(2, period='1y') * Categorical(3, rank=2)"
    " + Additive(0, 1, order=2) + Sphere(4, 5)"
)


def text(expression: Any, coded: Any = (3,)) -> Change:
    """Change the spec of the kernel."""
    spec = {"expression": expression, "coded": list(coded) if coded != "3" else coded}
    return lambda manifest, tensors: manifest["posterior"].update(kernel=spec)


def tensor(name: str, *shape: int, value: float = 0.5) -> Change:
    new = torch.full(shape, value, dtype=torch.float64)
    return lambda manifest, tensors: tensors.update({f"{KERNEL}{name}": new})


def without(name: str) -> Change:
    return lambda manifest, tensors: tensors.pop(f"{KERNEL}{name}")


def more(**entries: Any) -> Change:
    return lambda manifest, tensors: manifest["posterior"]["kernel"].update(entries)


FALSE_ENTRIES: dict[str, Change] = {
    "code": text("__import__('os').system('true')"),
    "code in an option": text(TEXT.replace("'1y'", "open('x')")),
    "no text": text(""),
    "text of a number": text(1),
    "long text": text("RBF(0)" + " " * 100_000),
    "many parts": text(" + ".join(["RBF(0)"] * 101)),
    "exponentially many terms": text(" * ".join(["(RBF(0) + RBF(1))"] * 50)),
    "nested": text("(" * 50_000),
    "another part": text(TEXT.replace("Matern52", "Linear")),
    "another part of the same tensors": text(TEXT.replace("Matern52(0, 3)", "Matern52(0, 9)")),
    "fewer parts": text("Matern52(0, 3)"),
    "another rank": text(TEXT.replace("rank=2", "rank=3")),
    "another order": text(TEXT.replace(", order=2", "")),
    "names of columns": text(TEXT.replace("(0, 3)", "('x0', 'x3')")),
    "all columns": text(TEXT.replace("(0, 3)", "()")),
    "a negative position": text(TEXT.replace("(0, 3)", "(0, -3)")),
    "a position beyond the last": text(TEXT.replace("(4, 5)", "(4, 6)")),
    "a huge position": text(TEXT.replace("(4, 5)", f"(4, {10**30})")),
    "another form": text(TEXT.replace(", ", ",")),
    "codes beyond the last": text(TEXT, [3, 6]),
    "negative codes": text(TEXT, [-3]),
    "codes twice": text(TEXT, [3, 3]),
    "codes of numbers": text(TEXT, [0, 3]),
    "no codes": text(TEXT, []),
    "codes in words": text(TEXT, "3"),
    "a surprise": more(surprise=1),
    "a kind": more(kind="RBFKernel"),
    "a gpytorch kernel": lambda manifest, tensors: manifest["posterior"].update(
        kernel={"kind": "RBFKernel", "options": {}, "constraints": {}, "parts": []}
    ),
    "no shares": without("raw_shares"),
    "no lengthscale": without("raw_0_lengthscale"),
    "no nodes": without("raw_3_nodes"),
    "no period": without("raw_1_period"),
    "no vectors": without("raw_2_vectors"),
    "a share too many": tensor("raw_shares", 5),
    "NaN share": tensor("raw_shares", 4, value=torch.nan),
    "a lengthscale too many": tensor("raw_0_lengthscale", 3),
    "one lengthscale": tensor("raw_0_lengthscale", 1),
    "a lengthscale without axes": tensor("raw_0_lengthscale"),
    "lengthscales of two axes": tensor("raw_0_lengthscale", 1, 2),
    "two periods": tensor("raw_1_period", 2),
    "a period of 0": tensor("raw_1_period", 1, value=0.0),
    "half a vector": tensor("raw_2_vectors", 7),
    "no vector at all": tensor("raw_2_vectors", 0),
    "fewer nodes": tensor("raw_3_nodes", 2, 3),
    "nodes of one column": tensor("raw_3_nodes", 1, 32),
    "weights of 0": tensor("raw_3_weights", 2, 32, value=0.0),
    "a surplus": tensor("raw_9_lengthscale", 1),
    "whole numbers": lambda manifest, tensors: tensors.update(
        {f"{KERNEL}raw_4_shift": torch.zeros(2, dtype=torch.int64)}
    ),
    "a parameter of code": lambda manifest, tensors: manifest["params"].update(
        kernel={"type": "expression", "expression": "open('x')"}
    ),
    "a parameter of a list": lambda manifest, tensors: manifest["params"].update(
        kernel={"type": "expression", "expression": []}
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "whole.dgp"
    save_model(path, state(posterior=posterior_of(TEXT), params={}))
    return path


def write_changed(path: Path, whole: Path, change: Change) -> None:
    """Write the file with one change in it."""
    tensors, manifest = read_file(MODEL, whole)
    change(manifest, tensors)
    header = json.dumps({"schema": MODEL.schema, "manifest": manifest})
    path.write_bytes(save(tensors, {MODEL.key: header, CHECKSUM: digest(header, tensors)}))


def test_a_file_without_a_false_entry_is_loaded(path: Path, whole: Path) -> None:
    write_changed(path, whole, text(TEXT))
    structure = load_model(path, CPU).posterior.prior.structure
    assert structure is not None and repr(structure.expression) == TEXT


@pytest.mark.parametrize("name", FALSE_ENTRIES)
def test_a_false_entry_is_refused(path: Path, whole: Path, name: str) -> None:
    write_changed(path, whole, FALSE_ENTRIES[name])
    with pytest.raises(ModelFileError) as caught:
        load_model(path, CPU)
    message = str(caught.value)
    assert message.startswith(f"{path} cannot be loaded as a model: ")
    assert len(message) < 1000 and "\n" not in message
