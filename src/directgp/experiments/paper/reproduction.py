"""All that a report of the paper's experiments tells."""

from dataclasses import dataclass
from typing import final

from directgp.datasets.problem import Task
from directgp.experiments.paper.cells import Protocol
from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.results import Results


@final
@dataclass(frozen=True)
class DataRow:
    """One data set, as it is here and as it is in the paper's table."""

    name: str
    task: Task
    rows: int
    features: int
    paper_rows: int
    paper_features: int
    num_inducing: int
    origin: str
    """Where these rows came from: a file, an address, the generator."""

    licence: str
    source: str
    """Its public home."""

    differences: str
    """From the paper's; empty where there are none."""


@final
@dataclass(frozen=True, eq=False)
class Reproduction:
    """Results, what they say of each claim, and how they were come by."""

    results: Results
    findings: tuple[tuple[Claim, Finding], ...]
    data: tuple[DataRow, ...]
    scale: str
    """Its name: "smoke", "small" or "full"."""

    scale_words: str
    """What the scale means, in one sentence."""

    protocol: Protocol
    command: str
    began: str
    """Date and time, UTC."""

    seconds: float
    """By the clock, of this run of the command."""

    machine: str
    """In words; other cells may have been run elsewhere."""
