"""Verdicts of several comparisons taken together; what is not decided stays so."""

from collections.abc import Iterable

from directgp.experiments.paper.claims.base import Part, Verdict
from directgp.experiments.paper.claims.contests import Compared


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Held if all are, not held if any is not; of nothing, nothing is decided."""
    found = set(verdicts)
    if "not held" in found:
        return "not held"
    return "held" if found == {"held"} else "not decided"


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Held if any is, not held if none is; of nothing, nothing is decided."""
    found = set(verdicts)
    if "held" in found:
        return "held"
    return "not held" if found == {"not held"} else "not decided"


def together(parts: Iterable[Part]) -> Verdict:
    """Of the parts that decide."""
    return all_of(part.verdict for part in parts if part.decides)


def hardest(compared: Iterable[Compared]) -> Compared:
    """The one that speaks most against the claim; what was run before what was not."""
    order = {"not held": 0, "not decided": 1, "held": 2}

    def place(each: Compared) -> tuple[bool, int, bool, float]:
        unknown = each.excess != each.excess
        return not each.was_run, order[each.part.verdict], unknown, 0.0 if unknown else -each.excess

    return min(compared, key=place)
