"""Write the frozen files: ``python -m tests.frozen.write NAME`` in the root of the repository.

Answers may be written again, when a change of names, texts or numbers is meant; the difference
belongs in the same commit as the change:

``public_names``
    `public_names.json`.
``model_answers``
    Predictions and summaries of the model files; texts of `inspect` and `predict`.
``reports``
    Documents, page texts and result rows of the stores.

Files are what users have on their disks. They are kept for ever and are never written again: a
later version of directgp must still read them. If a format gets a new version, its files are added
beside these under other names. A file that exists is not replaced:

``data``, ``model_files``, ``model_folder``, ``checkpoints``, ``stores``
    Tables, model files, folders of `directgp fit`, checkpoints with the end of their runs, and
    stores of `compare`.

``all`` writes the files that are missing, and then all answers.
"""

import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

import directgp
from tests.frozen.checkpoints import CHECKPOINTS, RUNS, STOPPED_AT, Watch, described, run
from tests.frozen.golden import FOLDER, pack, read_json, unpack, write_json, write_text
from tests.frozen.made_data import write_tables
from tests.frozen.model_folder import MODEL_FOLDERS, copy_folder, fit_folder, inspected, predicted
from tests.frozen.models import FITS, MODELS, ask, attributes, fit, path_of, summary
from tests.frozen.public_names import describe_all, fitted_attributes
from tests.frozen.reports import (
    COMPARE,
    DATA,
    Case,
    make_report,
    masked_document,
    masked_page,
    prepare,
    result_rows,
    set_versions,
)
from tests.frozen.stores import CHECKSUMS, write_store

# Files: written once.


def data() -> None:
    """Write the tables."""
    if not DATA.exists():
        write_tables(DATA)


def model_files() -> None:
    """Fit and save a model of each kind."""
    MODELS.mkdir(exist_ok=True)
    for name in FITS:
        if not path_of(name).exists():
            fit(name).save(path_of(name))


def model_folder() -> None:
    """Run `directgp fit`, for the format of this version."""
    newest = list(MODEL_FOLDERS.values())[-1]
    if not newest.exists():
        with working_folder() as here:
            shutil.copytree(fit_folder(here), newest / "model")


def checkpoints() -> None:
    """Stop each run halfway, and write down how it ends when it is resumed."""
    CHECKPOINTS.mkdir(exist_ok=True)
    for name in RUNS:
        path = CHECKPOINTS / f"{name}.checkpoint"
        if not path.exists():
            run(name, path, Watch(*STOPPED_AT[name]))
            with tempfile.TemporaryDirectory() as folder:
                copy = shutil.copy(path, folder)
                write_json(CHECKPOINTS / f"{name}.json", described(run(name, Path(copy), Watch())))


def stores() -> None:
    """Run `compare` for each task, and `reproduce`; write a store with checksums."""
    if not CHECKSUMS.exists():
        with working_folder() as here:
            write_store(here / "store")
            pack(here / "store", CHECKSUMS)
    for case in COMPARE.values():
        store_of(case)


def store_of(case: Case) -> None:
    """Run the command of a case, and pack its store."""
    if case.packed_store.exists():
        return
    with working_folder() as here:
        prepare(case, here)
        make_report(case)
        store = here / "report" / case.store
        with closing(sqlite3.connect(store)) as file:
            file.execute("vacuum")
        pack(store, case.packed_store)
        document = read_json(here / "report" / case.document)
        if "versions" in document:
            write_ordered_versions(case, document["versions"])


def write_ordered_versions(case: Case, versions: dict[str, str]) -> None:
    """Write the versions of a store; the order is part of the keys."""
    lines = ",\n".join(f' "{name}": "{value}"' for name, value in versions.items())
    write_text(case.folder / "versions.json", f"{{\n{lines}\n}}\n")


# Answers: may be written again.


def public_names() -> None:
    """Write the public names."""
    write_json(FOLDER / "public_names.json", describe_all())


def model_answers() -> None:
    """Write what the model files predict and say."""
    for name in FITS:
        model = directgp.load(path_of(name), device="cpu")
        found = {"predictions": ask(model), **attributes(model), "public": fitted_attributes(model)}
        write_json(MODELS / f"{name}.json", found)
        write_text(MODELS / f"{name}.summary.txt", summary(model))
    for name, folder in MODEL_FOLDERS.items():
        with working_folder() as here:
            copy_folder(name, here)
            write_text(folder / "inspect.txt", inspected())
            write_json(folder / "predict.json", predicted(here))


def reports() -> None:
    """Write what the reports of the stores say."""
    for case in COMPARE.values():
        answers_of(case)


def answers_of(case: Case) -> None:
    """Write what the report of a case says."""
    with working_folder() as here:
        prepare(case, here)
        store = unpack(case.packed_store, here / "report" / case.store)
        versions = case.folder / "versions.json"
        if versions.exists():
            set_versions(store, read_json(versions))
        answer = make_report(case, "--resume")
        write_json(case.folder / "results.json", result_rows(here))
        write_json(case.folder / case.document, masked_document(case, here))
        write_text(case.folder / "page.txt", masked_page(case, here))
        write_text(case.folder / "printed.txt", answer.out)


@contextmanager
def working_folder() -> Iterator[Path]:
    """Work in an empty folder, without settings of the user."""
    before = Path.cwd()
    for name in ("DIRECTGP_DATA", "COLUMNS"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


FILES = (data, model_files, model_folder, checkpoints, stores)
ANSWERS = (public_names, model_answers, reports)


def main(names: list[str]) -> None:
    """Write what is named."""
    known: dict[str, tuple[Callable[[], None], ...]] = {
        each.__name__: (each,) for each in (*FILES, *ANSWERS)
    }
    known["all"] = (*FILES, *ANSWERS)
    if not names or not known.keys() >= set(names):
        sys.exit(f"Name one or more of: {', '.join(known)}.")
    torch.set_num_threads(1)
    for name in names:
        for write in known[name]:
            print(write.__name__)
            write()


if __name__ == "__main__":
    main(sys.argv[1:])
