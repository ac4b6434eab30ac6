"""The report of a comparison, written to a folder."""

from pathlib import Path

from directgp.experiments.comparison import Comparison
from directgp.files.replacing import replace_file
from directgp.reports.document import report_json
from directgp.reports.figures.rendering import Drawn, drawn
from directgp.reports.findings import Findings
from directgp.reports.gallery import NAMES, gallery
from directgp.reports.page import page
from directgp.reports.records import results_parquet
from directgp.reports.verdict import verdict


def write_report(comparison: Comparison, folder: Path) -> Path:
    """Write page, pictures, table and document; the page comes last.

    Parameters
    ----------
    comparison
        What was run, and what came of it.
    folder
        Made where it is missing; files of an earlier report are replaced, one by one, each in one
        step, and its pictures that this one does not have are removed.

    Returns
    -------
    Path
        Of the page, `index.html`, which needs none of the other files.
    """
    findings = Findings(comparison)
    said = verdict(findings)
    pictures = [drawn(picture) for picture in gallery(findings)]
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for each in pictures:
        _write_picture(figures, each)
    _remove_pictures(figures, {*NAMES} - {each.picture.name for each in pictures})
    replace_file(folder / "results.parquet", results_parquet(comparison))
    replace_file(folder / "report.json", report_json(findings, said))
    index = folder / "index.html"
    replace_file(index, page(findings, said, pictures).encode())
    return index


def _write_picture(folder: Path, each: Drawn) -> None:
    replace_file(folder / f"{each.picture.name}.png", each.png)
    replace_file(folder / f"{each.picture.name}.svg", each.wide.encode())


def _remove_pictures(folder: Path, names: set[str]) -> None:
    """Those of an earlier report; pictures by other names are not ours."""
    for name in names:
        for kind in ("png", "svg"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
