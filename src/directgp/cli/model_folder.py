"""Read and write the folder of a model."""

import hashlib
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from directgp.cli.load_data import Opened
from directgp.cli.output_paths import check_folder_place, draft_of
from directgp.datasets.columns import Encoding
from directgp.datasets.problem import Task
from directgp.errors import ModelFileError

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@final
class ModelCard(BaseModel):
    """The file `table.json` of a model's folder."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    format: Literal[1] = 1
    directgp: str
    """Version that wrote it."""

    name: str
    source: str
    """The table as the user named it."""

    rows: int
    task: Task
    target: str
    classes: tuple[str, str] | None
    """Names of class 0 and class 1."""

    positive: str | None
    """Class 1, where every other value of the target is class 0."""

    exposure: str | None
    weights: str | None
    encoding: Encoding
    fingerprint: Sha256
    """Of the numbers that the model was trained on."""

    model_sha256: Sha256
    """Of the file of the model that this one belongs to."""


def card_of(opened: Opened, model: Path) -> ModelCard:
    """The card of a model that has just been saved."""
    problem = opened.problem
    return ModelCard(
        directgp=version("directgp"),
        name=problem.name,
        source=problem.source,
        rows=len(problem.y),
        task=problem.task,
        target=problem.target,
        classes=problem.classes,
        positive=opened.request.positive,
        exposure=opened.request.exposure,
        weights=opened.request.weights,
        encoding=opened.encoding,
        fingerprint=problem.fingerprint(),
        model_sha256=sha256_of(model),
    )


def read_card(path: Path, model: Path) -> ModelCard:
    """Read a card and check that it belongs to the model."""
    try:
        card = ModelCard.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ModelFileError(
            f"{path} cannot be read as the description of a model: {_first(error)}."
            " Take another copy of the folder, or fit the model again."
        ) from error
    if card.model_sha256 != sha256_of(model):
        raise ModelFileError(
            f"{path} and {model.name} do not belong together."
            " Take another copy of the folder, or fit the model again."
        )
    return card


def sha256_of(path: Path) -> str:
    """sha256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, in short."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"][:8]))
    return f"{place}: {first['msg']}" if place else first["msg"]


MODEL_FILE, CARD_FILE = "model.safetensors", "table.json"


def check_place(out: Path, force: bool) -> None:
    """Refuse a place where a model cannot be written to."""
    check_folder_place(out, {MODEL_FILE, CARD_FILE}, force)


def write_folder(out: Path, force: bool, fill: Callable[[Path], None]) -> None:
    """Put a folder in place once it is filled; what was there is as it was if that fails."""
    # A link stays a link: what it points to is replaced.
    place = Path(os.path.realpath(out))
    draft = draft_of(place)
    try:
        draft.mkdir()
        fill(draft)
        check_place(out, force)
        _put(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load_folder(path: Path, device: str) -> tuple[Any, ModelCard]:
    """The estimator and its card; the path is that of the folder or of the model in it."""
    folder = path.parent if path.name == MODEL_FILE else path
    model, card = folder / MODEL_FILE, folder / CARD_FILE
    for file in (model, card):
        if not file.is_file():
            raise ModelFileError(
                f"MODEL must be a folder that directgp fit wrote. Got {str(path)!r},"
                f" in which there is no {file.name}. Check the path."
            )
    read = read_card(card, model)
    # Refusals come without torch.
    from directgp.estimators.saving import load

    return load(model, device), read


def _put(draft: Path, place: Path) -> None:
    """Exchange what is at the place for the draft; nothing is deleted before that is done."""
    if not place.exists():
        draft.rename(place)
        return
    old = draft.with_suffix(".old")
    place.rename(old)
    try:
        draft.rename(place)
    except BaseException:
        old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)
