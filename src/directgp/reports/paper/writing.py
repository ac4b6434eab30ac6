"""The report of a reproduction, written to a folder."""

from pathlib import Path

from directgp.experiments.paper.reproduction import Reproduction
from directgp.files.replacing import replace_file
from directgp.reports.figures.rendering import Drawn, drawn
from directgp.reports.paper.documents import verdicts_json
from directgp.reports.paper.figures.registry import FIGURES
from directgp.reports.paper.page import reproduction_page
from directgp.reports.paper.records import cells_parquet
from directgp.reports.picture_files import write_pictures


def write_reproduction(told: Reproduction, folder: Path) -> Path:
    """Write figures, table, verdicts and page; the page comes last.

    Parameters
    ----------
    told
        What was run, and what came of it.
    folder
        Made where it is missing; files of an earlier report are replaced, one by one, each in one
        step, and its figures that this one does not have are removed.

    Returns
    -------
    Path
        Of the page, `index.html`, which needs none of the other files.
    """
    pictures = _pictures(told)
    names = [figure.file for figure in FIGURES.values()]
    write_pictures(folder / "figures", list(pictures.values()), names)
    replace_file(folder / "results.parquet", cells_parquet(told.results))
    replace_file(folder / "verdicts.json", verdicts_json(told))
    index = folder / "index.html"
    replace_file(index, reproduction_page(told, pictures).encode())
    return index


def _pictures(told: Reproduction) -> dict[str, Drawn]:
    """By the names of figures, those for which there is something to show."""
    every = {name: figure.picture(told.results) for name, figure in FIGURES.items()}
    return {name: drawn(picture) for name, picture in every.items() if picture}
