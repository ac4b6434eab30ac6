"""A store with a checksum for each row."""

from pathlib import Path

from directgp.experiments.store import Store
from tests.frozen.golden import FOLDER
from tests.unit.experiments.cells import finished, small_cell

CHECKSUMS = FOLDER / "store_1002" / "cells.sqlite.gz"


def write_store(path: Path) -> None:
    """Write two results and a failure."""
    with Store(path) as store:
        store.put(finished(small_cell("vfe"), 0.1, model=b"model"))
        store.put(finished(small_cell("elbo"), 0.2))
        store.fail(small_cell("fitc"), "It failed.")
