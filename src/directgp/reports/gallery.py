"""The pictures of a report, in their order on the page."""

from directgp.reports.figures.betas import betas_picture
from directgp.reports.figures.calibration import calibration_picture
from directgp.reports.figures.learning import learning_picture
from directgp.reports.figures.picture import Picture
from directgp.reports.figures.predicted import predicted_picture
from directgp.reports.figures.scores import scores_picture
from directgp.reports.figures.training import training_picture
from directgp.reports.findings import Findings

NAMES = ("scores", "learning", "beta", "calibration", "predicted", "training")
"""Of all pictures that a report may have."""


def gallery(findings: Findings) -> list[Picture]:
    """Those for which there is something to show."""
    if not findings.standings:
        return []
    every = [
        scores_picture(findings),
        learning_picture(findings) if len(findings.by_size) > 1 else None,
        betas_picture(findings),
        calibration_picture(findings),
        predicted_picture(findings),
        training_picture(findings),
    ]
    return [picture for picture in every if picture]
