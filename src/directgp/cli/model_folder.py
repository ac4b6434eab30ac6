"""Read and write the folder of a model: one file, with a description of the table in it.

Earlier versions wrote the description to a file of its own, `table.json`, which is still read.
"""

import hashlib
import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from directgp.cli.data import Opened
from directgp.cli.output_paths import check_output_folder, check_writable, held_in
from directgp.datasets.encoding import CategoryColumn, Encoding, LevelColumn
from directgp.errors import ModelFileError, cause_of, refuse
from directgp.files import make_folder, read_bounded, sync_folder, target_of_draft
from directgp.registry import ROW_CONSTANTS, Task

MODEL_FILE = "model.safetensors"
CARD_FILE = "table.json"

_MAX_TEXT = 10_000
"""Characters of a name or a level, as many as the model allows for the name of a feature."""

_MAX_CARD = 2**24
"""Bytes of `table.json`: 1,000 columns with 500 levels of 32 characters."""

_REMEDY = "Take another copy of the folder, or fit the model again."

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(max_length=_MAX_TEXT)]


@final
class ModelCard(BaseModel):
    """The description of the table that a model was trained on."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    format: Literal[1, 2] = 1
    """Version of this layout: 2 with columns of kinds, which earlier versions do not read."""

    directgp: Text
    """Version of directgp that wrote the card."""

    name: Text
    """Name of the data set."""

    source: Text
    """The table as the user named it."""

    header: bool = True
    """Whether the first row of its file has names."""

    rows: Annotated[int, Field(ge=1, le=2**53)]
    """Number of training rows."""

    task: Task
    """The kind of the target."""

    target: Text
    """Column of the target."""

    classes: tuple[Text, ...] | None
    """Names of class 0, class 1, …"""

    positive: Text | None
    """Class 1, if the user chose it."""

    one_against_rest: bool | None = None
    """Whether class 0 is every value but class 1; files of earlier versions lack this field."""

    exposure: Text | None
    """Column of exposures."""

    weights: Text | None
    """Column of weights."""

    trials: Text | None = None
    """Column of numbers of trials; files of earlier versions lack this field."""

    noise: Text | None = None
    """Column of known noise variances; files of earlier versions lack this field."""

    upper: Text | None = None
    """Column of upper bounds; files of earlier versions lack this field."""

    encoding: Encoding
    """How the columns become features."""

    fingerprint: Sha256
    """Checksum of the numbers that the model was trained on."""

    model_sha256: Sha256 | None = None
    """Checksum of the model file, which does not hold its own."""

    @property
    def has_one_against_rest(self) -> bool:
        """Whether class 0 is every value but class 1."""
        if self.one_against_rest is not None:
            return self.one_against_rest
        # Earlier versions said so by the name of class 0 alone.
        return self.positive is not None and self.classes == (f"not {self.positive}", self.positive)

    @property
    def row_column(self) -> tuple[str, str] | None:
        """The constant of each row in training, and its column."""
        return next(((n, at) for n in ROW_CONSTANTS if (at := getattr(self, n))), None)


def check_model_folder(out: Path, force: bool) -> None:
    """Raise `InvalidInputError` if a model cannot be written to the path."""
    # Read once: other programs may write their drafts meanwhile.
    held = held_in(out)
    drafts = {name for name in held if target_of_draft(name) == MODEL_FILE}
    if held and held == drafts:
        # A program was killed before its model was complete.
        check_writable(out, [out])
        return
    check_output_folder(out, held, {MODEL_FILE, *(held & {CARD_FILE, *drafts})}, force)


def write_folder(out: Path, force: bool, model: Any, card: ModelCard) -> None:
    """Write the folder of a fitted estimator; if that fails, the path stays as it was."""
    from directgp.estimators.saving import save

    check_card(card, model)
    check_model_folder(out, force)
    # realpath: the target of a link is replaced, not the link.
    place = Path(os.path.realpath(out))
    new_folders = make_folder(place)
    try:
        save(model, place / MODEL_FILE, card.model_dump(mode="json", exclude={"model_sha256"}))
    except BaseException:
        with suppress(OSError):
            for folder in reversed(new_folders):
                folder.rmdir()
        raise
    # The description in the model is complete: this one is of the model before.
    (place / CARD_FILE).unlink(missing_ok=True)
    sync_folder(place)


def load_folder(path: Path, device: str) -> tuple[Any, ModelCard]:
    """Load the estimator and its card from the folder, or from the model file in it."""
    folder = path.parent if path.name == MODEL_FILE else path
    file = folder / MODEL_FILE
    beside = folder / CARD_FILE
    wanted = f"MODEL must be a folder that directgp fit wrote. Got {str(path)!r}"
    if not file.is_file():
        raise ModelFileError(f"{wanted}, in which there is no {MODEL_FILE}. Check the path.")
    # Imported late, so that errors come without waiting for torch.
    from directgp.estimators.saving import load_with_table

    model, table = load_with_table(file, device)
    if table is None and not beside.is_file():
        raise ModelFileError(
            f"{wanted}, whose {MODEL_FILE} does not say how the columns of a table become features."
            " Use it with directgp.load, or fit it with directgp fit."
        )
    if table is None:
        card = _read_card(beside)
        if card.model_sha256 != _sha256(file):
            raise ModelFileError(f"{beside} and {MODEL_FILE} do not belong together. {_REMEDY}")
    else:
        card = _card(table, file).model_copy(update={"model_sha256": _sha256(file)})
    try:
        check_card(card, model)
    except ValueError as error:
        raise ModelFileError(
            f"{folder} cannot be used: the description of its table does not fit the model"
            f" ({error}). {_REMEDY}"
        ) from error
    return model, card


def card_of(opened: Opened) -> ModelCard:
    """Return the card of a model of the table; raise `InvalidInputError` if it cannot be saved."""
    problem = opened.problem
    facts = {n: getattr(problem, n) for n in ("name", "source", "task", "target", "classes")}
    facts["one_against_rest"] = problem.one_against_rest
    facts |= {n: opened.columns.get(n) for n in (*ROW_CONSTANTS, "weights")}
    from directgp.environment import versions

    # The name of a file may have bytes that are no text.
    facts |= {n: facts[n].encode(errors="backslashreplace").decode() for n in ("name", "source")}
    try:
        card = ModelCard(
            **facts,
            format=1 if opened.encoding.plain else 2,
            directgp=versions()["directgp"],
            rows=len(problem.y),
            header=opened.options.header is not False,
            positive=opened.options.positive,
            encoding=opened.encoding,
            fingerprint=problem.fingerprint(),
        )
        _check_columns(card.encoding)
    except ValueError as error:
        refuse("DATA", "a table whose description can be saved", cause_of(error))
    return card


def check_card(card: ModelCard, model: Any) -> None:
    """Raise ValueError unless the card describes the model."""
    if hasattr(model, "outputs_"):
        raise ValueError("it has several outputs")
    if model._task != card.task:
        raise ValueError(f"its task is {card.task}")
    if list(card.encoding.feature_names) != list(getattr(model, "feature_names_in_", ())):
        raise ValueError("it names other features")
    if not _same_classes(card, model):
        raise ValueError("it names other classes")
    if sum(getattr(card, name) is not None for name in ROW_CONSTANTS) > 1:
        raise ValueError("it has more than one column of row constants")
    row = card.row_column
    if (row is not None) != model.exposed_ or (row and row[0] != model.likelihood_.rows.argument):
        raise ValueError(f"it has other row constants than {type(model.likelihood_).__name__}")
    _check_columns(card.encoding)


def _check_columns(encoding: Encoding) -> None:
    """Raise ValueError for names or levels that are equal or long, or unknown dates."""
    names = encoding.column_names
    if len({*names}) < len(names) or len({*encoding.feature_names}) < len(encoding.feature_names):
        raise ValueError("names of columns are not different")
    for column in encoding.columns:
        texts = [column.name]
        if isinstance(column, CategoryColumn):
            texts += [column.base, *column.levels]
            if len({*texts[1:]}) < len(texts) - 1:
                raise ValueError("levels of a column are not different")
        elif isinstance(column, LevelColumn):
            texts += [level for level in column.levels if isinstance(level, str)]
            if len({*column.levels}) < len(column.levels):
                raise ValueError("levels of a column are not different")
        elif column.dates:
            _check_dates(column.dates)
        if max(map(len, texts)) > _MAX_TEXT:
            raise ValueError(f"a name or a level has more than {_MAX_TEXT:,} characters")


def _same_classes(card: ModelCard, model: Any) -> bool:
    """Return whether the card names the classes 0, 1, … of a classifier, and of no other model."""
    if card.classes is None or card.task != "classification":
        return card.classes is None and card.task != "classification"
    numbers = list(range(len(card.classes)))
    return model.classes_.tolist() == numbers and len({*card.classes}) == len(numbers)


def _check_dates(form: str) -> None:
    """Raise ValueError for a format of dates that cannot be read."""
    try:
        readable = len(form) < 100 and datetime.strptime(
            datetime(2020, 12, 31).strftime(form), form
        )
    except Exception as error:  # a strange format may provoke any exception
        raise ValueError("a format of dates is unknown") from error
    if not readable:
        raise ValueError("a format of dates is unknown")


def _read_card(path: Path) -> ModelCard:
    """Read the file of a card."""
    try:
        return ModelCard.model_validate_json(read_bounded(path, _MAX_CARD))
    except (OSError, ValidationError) as error:
        _refuse_card(path, error)


def _card(table: dict[str, Any], path: Path) -> ModelCard:
    """Return the card in a model file."""
    try:
        return ModelCard.model_validate_json(json.dumps(table))
    except ValidationError as error:
        _refuse_card(path, error)


def _refuse_card(path: Path, error: Exception) -> NoReturn:
    raise ModelFileError(
        f"{path} cannot be read as the description of a model: {cause_of(error)}. {_REMEDY}"
    ) from error


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
