"""From comparisons to a finding: its verdict, and one or two sentences."""

from collections.abc import Sequence

from directgp.datasets.wording import joined
from directgp.experiments.paper.claims.base import Finding
from directgp.experiments.paper.claims.contests import Compared
from directgp.experiments.paper.claims.verdicts import hardest, together


def finding(compared: Sequence[Compared], closing: str = "") -> Finding:
    """All comparisons that decide have to hold; on each data set the closest of them is told.

    What is told beside the claim is left out where it was not run. The closing sentence comes last,
    if there is one.
    """
    return _found(compared, _by_unit(compared), closing)


def finding_of_all(compared: Sequence[Compared]) -> Finding:
    """The same, where every comparison that decides is told."""
    deciding = [each for each in compared if each.part.decides and each.was_run]
    told = [
        f"{place}: {'; '.join(each.clause for each in found)}."
        for place, found in _by_place(deciding)
    ]
    return _found(compared, " ".join(told))


def _found(compared: Sequence[Compared], told: str, closing: str = "") -> Finding:
    parts = tuple(each.part for each in compared if each.part.decides or each.was_run)
    sentence = f"{told} {_lacking(compared)} {closing}"
    return Finding(together(parts), " ".join(sentence.split()), parts)


def _by_unit(compared: Sequence[Compared]) -> str:
    """Of the first unit every data set; of each other unit the closest comparison."""
    units: dict[str, list[Compared]] = {}
    for each in compared:
        if each.part.decides and each.was_run:
            units.setdefault(each.part.unit, []).append(each)
    first, *others = units.values() or [[]]
    return " ".join([_places(first), *map(_one, others)])


def _places(compared: Sequence[Compared]) -> str:
    """``pol (3 of 3 hold): …; song: ….``, with the unit where it is named first."""
    clauses = [f"{place}{_score(found)}: {_closest(found)}" for place, found in _by_place(compared)]
    unit = f" in {compared[0].part.unit}" if compared else ""
    later = [clause.replace(unit, "", 1) for clause in clauses[1:]]
    return f"{'; '.join([*clauses[:1], *later])}." if clauses else ""


def _one(compared: Sequence[Compared]) -> str:
    least = hardest(compared)
    if len(compared) == 1:
        return f"{least.place}: {least.clause}."
    held = f"{_held(compared)} of {len(compared)} hold"
    clause = least.clause.replace(f" in {least.part.unit}", "", 1)
    return f"In {least.part.unit} {held}, the closest on {least.place}: {clause}."


def _score(compared: Sequence[Compared]) -> str:
    number = len(compared)
    return f" ({_held(compared)} of {number} hold)" if number > 1 else ""


def _held(compared: Sequence[Compared]) -> int:
    return sum(each.part.verdict == "held" for each in compared)


def _closest(compared: Sequence[Compared]) -> str:
    return hardest(compared).clause


def _lacking(compared: Sequence[Compared]) -> str:
    """Which data sets were not run, or not all of what is needed there."""
    nowhere, partly = [], []
    for place, found in _by_place([each for each in compared if each.part.decides]):
        if not any(each.was_run for each in found):
            nowhere.append(place)
        elif not all(each.was_run for each in found):
            partly.append(place)
    sentence = f"Not run: {joined(nowhere)}." if nowhere else ""
    return f"{sentence} Run in part only: {joined(partly)}." if partly else sentence


def _by_place(compared: Sequence[Compared]) -> list[tuple[str, list[Compared]]]:
    """In the order of their coming."""
    places: dict[str, list[Compared]] = {}
    for each in compared:
        places.setdefault(each.place, []).append(each)
    return list(places.items())
