"""The report of a comparison, written to a folder."""

from pathlib import Path

from directgp.experiments.comparison import Comparison
from directgp.files.replacing import replace_file
from directgp.reports.document import report_json
from directgp.reports.figures.rendering import drawn
from directgp.reports.findings import Findings
from directgp.reports.gallery import NAMES, gallery
from directgp.reports.page import page
from directgp.reports.picture_files import write_pictures
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
    write_pictures(folder / "figures", pictures, NAMES)
    replace_file(folder / "results.parquet", results_parquet(comparison))
    replace_file(folder / "report.json", report_json(findings, said))
    index = folder / "index.html"
    replace_file(index, page(findings, said, pictures).encode())
    return index
