"""Describe and open the data sets of the paper."""

from directgp_paper.datasets.catalogue import CATALOGUE
from directgp_paper.datasets.download import FetchError, Origin, PaperData, open_paper
from directgp_paper.datasets.sets import PAPER, Download, Home, PaperDataset

__all__ = [
    "CATALOGUE",
    "PAPER",
    "Download",
    "FetchError",
    "Home",
    "Origin",
    "PaperData",
    "PaperDataset",
    "open_paper",
]
