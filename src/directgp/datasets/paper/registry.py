"""The data sets of the paper by name, in the order of its table."""

from directgp.datasets.paper.classification import CLASSIFICATION
from directgp.datasets.paper.count import COUNT
from directgp.datasets.paper.facts import PaperDataset
from directgp.datasets.paper.regression import REGRESSION

PAPER: dict[str, PaperDataset] = {
    facts.name: facts for facts in (*REGRESSION, *CLASSIFICATION, *COUNT)
}
"""The 13 sets of the paper's table, and ``peds1``, which stands for one of them."""
