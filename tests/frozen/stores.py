"""A store with a checksum for each row."""

from pathlib import Path

from directgp.experiments.store import Store
from paper.tests.experiments.sweeps import finished, fit
from tests.frozen.golden import FOLDER

CHECKSUMS = FOLDER / "store_1002" / "cells.sqlite.gz"


def write_store(path: Path) -> None:
    """Write two results and a failure."""
    with Store(path) as store:
        store.put(finished(fit("vfe"), 0.1, model=b"model"))
        store.put(finished(fit("elbo"), 0.2))
        store.fail(fit("fitc"), "It failed.")
