"""Read and write the folder of a model."""

import hashlib
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from directgp.cli.data import Opened
from directgp.cli.output_paths import check_output_folder, draft_of
from directgp.datasets.encoding import Encoding
from directgp.errors import ModelFileError
from directgp.registry import ROW_CONSTANTS, Task

MODEL_FILE, CARD_FILE = "model.safetensors", "table.json"

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

    header: bool = True
    """Whether the first row of its file has names."""

    rows: int
    task: Task
    target: str
    classes: tuple[str, ...] | None
    """Names of class 0, class 1, …"""

    positive: str | None
    """Class 1, where every other value of the target is class 0."""

    exposure: str | None
    weights: str | None
    trials: str | None = None
    noise: str | None = None
    upper: str | None = None
    """Columns of weights and row constants; files of earlier versions lack the last three."""

    encoding: Encoding
    fingerprint: Sha256
    model_sha256: Sha256
    """Of the numbers that the model was trained on, and of the file of the model."""

    @property
    def row_column(self) -> tuple[str, str] | None:
        """The constant of each row in training, and its column."""
        return next(((n, at) for n in ROW_CONSTANTS if (at := getattr(self, n))), None)


def check_model_folder(out: Path, force: bool) -> None:
    """Raise `InvalidInputError` if a model cannot be written to the path."""
    check_output_folder(out, {MODEL_FILE, CARD_FILE}, force)


def write_folder(out: Path, force: bool, model: Any, opened: Opened) -> None:
    """Write the folder of a fitted estimator; if that fails, the path stays as it was."""
    from directgp.io import replace_file

    # realpath: the target of a link is replaced, not the link.
    place = Path(os.path.realpath(out))
    draft = draft_of(place)
    try:
        draft.mkdir()
        model.save(draft / MODEL_FILE)
        card = card_of(opened, draft / MODEL_FILE)
        replace_file(draft / CARD_FILE, card.model_dump_json(indent=2).encode())
        check_model_folder(out, force)
        _exchange(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load_folder(path: Path, device: str) -> tuple[Any, ModelCard]:
    """Load the estimator and its card from the folder, or from the model file in it."""
    folder = path.parent if path.name == MODEL_FILE else path
    model, card = folder / MODEL_FILE, folder / CARD_FILE
    for file in (model, card):
        if not file.is_file():
            raise ModelFileError(
                f"MODEL must be a folder that directgp fit wrote. Got {str(path)!r},"
                f" in which there is no {file.name}. Check the path."
            )
    found = read_card(card, model)
    # Imported late, so that errors come without waiting for torch.
    from directgp.estimators.saving import load

    return load(model, device), found


def card_of(opened: Opened, model: Path) -> ModelCard:
    """Return the card of a model that has been saved."""
    problem = opened.problem
    facts = {n: getattr(problem, n) for n in ("name", "source", "task", "target", "classes")}
    facts |= {n: opened.columns.get(n) for n in (*ROW_CONSTANTS, "weights")}
    return ModelCard(
        **facts,
        directgp=version("directgp"),
        rows=len(problem.y),
        header=opened.given.header is not False,
        positive=opened.given.positive,
        encoding=opened.encoding,
        fingerprint=problem.fingerprint(),
        model_sha256=_sha256(model),
    )


def read_card(path: Path, model: Path) -> ModelCard:
    """Read a card and check that it belongs to the model."""
    remedy = "Take another copy of the folder, or fit the model again."
    try:
        card = ModelCard.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"][:8]))
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise ModelFileError(
            f"{path} cannot be read as the description of a model: {what}. {remedy}"
        ) from error
    if card.model_sha256 != _sha256(model):
        raise ModelFileError(f"{path} and {model.name} do not belong together. {remedy}")
    return card


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _exchange(draft: Path, place: Path) -> None:
    """Move the draft to the place; the old folder is deleted only after that."""
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
