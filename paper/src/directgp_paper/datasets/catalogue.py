"""List the data sets of the paper for `directgp datasets`."""

from directgp.datasets import Catalogue, CatalogueEntry
from directgp_paper.datasets.sets import PAPER, PaperDataset

_FACTS = (
    "task",
    "rows",
    "features",
    "num_inducing",
    "target",
    "licence",
    "source",
    "url",
    "differences",
)


def _entry(dataset: PaperDataset) -> CatalogueEntry:
    return CatalogueEntry(
        name=dataset.name,
        cells={"task": dataset.task, "size": dataset.size, "M": str(dataset.num_inducing)},
        where=dataset.where_from,
        remedy=f"{dataset.remedy} Its source: {dataset.source}, {dataset.url}",
        facts={fact: getattr(dataset, fact) for fact in _FACTS},
    )


CATALOGUE = Catalogue(
    name="paper",
    title="Of the paper: rows × features, M inducing inputs, and where the numbers come from",
    described="one of the paper's data sets",
    entries=tuple(map(_entry, PAPER.values())),
    numeric=("size", "M"),
)
"""What the entry point ``directgp.datasets`` of this package names."""
