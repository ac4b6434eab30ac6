"""Write the frozen files: ``python -m paper.tests.frozen.write NAME`` in the repository's root.

``files`` writes the tables and the store that are missing; they are never written again.
``report`` writes the document, page text and result rows of the store again, when a change of
texts or numbers is meant.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from paper.tests.frozen.reports import PAPER_DATA, REPRODUCE
from tests.frozen.made_data import write_table
from tests.frozen.write import answers_of, store_of

_PAPER_ROWS = 200


def write_paper_tables(folder: Path) -> None:
    """Write tables with the names of data sets of the paper, and other rows."""
    random = np.random.default_rng(1)
    X = random.normal(size=(_PAPER_ROWS, 2)).round(4)
    f = np.sin(2 * X[:, 0])
    targets = {
        "pol": (f + 0.1 * random.normal(size=_PAPER_ROWS)).round(4),
        "banana": (f + 0.3 * random.normal(size=_PAPER_ROWS) > 0).astype(int),
        "airline": (f + random.normal(size=_PAPER_ROWS) > 0).astype(int),
        "abalone": random.poisson(np.exp(1 + f)),
    }
    for name, y in targets.items():
        write_table(folder / f"{name}.csv", {"a": X[:, 0], "b": X[:, 1], "y": y})


def files() -> None:
    """Write the tables, and run `reproduce`."""
    if not PAPER_DATA.exists():
        write_paper_tables(PAPER_DATA)
    store_of(REPRODUCE)


def report() -> None:
    """Write what the report of the store says."""
    answers_of(REPRODUCE)


def main(names: list[str]) -> None:
    """Write what is named."""
    writers = {"files": files, "report": report}
    if not names or not writers.keys() >= set(names):
        sys.exit(f"Name one or more of: {', '.join(writers)}.")
    torch.set_num_threads(1)
    for name in names:
        writers[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
