"""The data sets of the paper: what is known of each, and how it is opened."""

from directgp.datasets.paper.facts import Download, Home, PaperDataset
from directgp.datasets.paper.fetching import FetchError
from directgp.datasets.paper.opening import Origin, PaperData, open_paper
from directgp.datasets.paper.registry import PAPER

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
