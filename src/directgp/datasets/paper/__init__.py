"""Describe and open the data sets of the paper."""

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
