"""Which copy of a data set this is, by its numbers."""

from dataclasses import replace

import numpy as np

from directgp.datasets.paper.facts import PaperDataset, size
from directgp.datasets.problem import Problem


def numbers_fingerprint(problem: Problem) -> str:
    """Fingerprint of the numbers in single precision, as which the known copies are kept.

    So a copy that went through text, which gives 0.1 for what was 0.1 in single precision, is
    recognised all the same.
    """
    with np.errstate(over="ignore"):
        X, y = (each.astype(np.float32).astype(np.float64) for each in (problem.X, problem.y))
    return replace(problem, X=X, y=y).fingerprint()


def differences_of(facts: PaperDataset, problem: Problem) -> str:
    """What a copy of a user's has otherwise than the paper's table; empty if nothing."""
    if numbers_fingerprint(problem) in facts.copies:
        return facts.differences
    found = size(*problem.X.shape)
    if found == facts.size:
        return f"A copy that is not known, of {found} rows × features, as in the paper."
    return f"A copy that is not known, of {found} rows × features instead of {facts.size}."
