"""The folder of a model: written in one step, and read only as a whole."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from directgp.cli.model_card import ModelCard, read_card
from directgp.cli.places import check_folder_place, draft_of
from directgp.errors import ModelFileError

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
