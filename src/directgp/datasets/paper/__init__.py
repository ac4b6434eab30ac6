"""The data sets of the paper: what is known of each, and how it is opened."""

from directgp.datasets.paper.download import FetchError, Origin, PaperData, open_paper
from directgp.datasets.paper.sets import PAPER, Download, Home, PaperDataset

__all__ = [
    "PAPER",
    "Download",
    "FetchError",
    "Home",
    "Origin",
    "PaperData",
    "PaperDataset",
    "open_paper",
]
