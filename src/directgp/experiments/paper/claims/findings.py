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
    parts = tuple(each.part for each in compared if each.part.decides or each.was_run)
    sentence = f"{_told(compared)} {_lacking(compared)} {closing}"
    return Finding(together(parts), " ".join(sentence.split()), parts)


def two_claims(
    papers: Sequence[Compared], ours: Sequence[Compared], beside: Sequence[Compared] = ()
) -> Finding:
    """Where the paper says one thing and we say another of it: both have to hold, and are told."""
    every = [*papers, *ours, *beside]
    parts = tuple(each.part for each in every if each.part.decides or each.was_run)
    told = [
        f"{who}: {said}."
        for who, said in (("The paper's", _all(papers)), ("Ours", _all(ours)))
        if said
    ]
    sentence = " ".join([*told, _lacking([*papers, *ours])])
    return Finding(together(parts), sentence.strip(), parts)


def _all(compared: Sequence[Compared]) -> str:
    return "; ".join(f"on {each.place}, {each.clause}" for each in compared if each.was_run)


def _told(compared: Sequence[Compared]) -> str:
    run = {place: [each for each in held if each.was_run] for place, held in _deciding(compared)}
    clauses = [f"on {place}{_closest(found)}" for place, found in run.items() if found]
    return f"O{'; '.join(clauses)[1:]}." if clauses else ""


def _closest(compared: Sequence[Compared]) -> str:
    least = hardest([each.part for each in compared])
    clause = next(each.clause for each in compared if each.part is least)
    return f" (the closest of {len(compared)}), {clause}" if len(compared) > 1 else f", {clause}"


def _lacking(compared: Sequence[Compared]) -> str:
    """Which data sets were not run, or not all of what is needed there."""
    nowhere, partly = [], []
    for place, found in _deciding(compared):
        if not any(each.was_run for each in found):
            nowhere.append(place)
        elif not all(each.was_run for each in found):
            partly.append(place)
    sentence = f"Not run: {joined(nowhere)}." if nowhere else ""
    return f"{sentence} Run in part only: {joined(partly)}." if partly else sentence


def _deciding(compared: Sequence[Compared]) -> list[tuple[str, list[Compared]]]:
    """By place, in the order of their coming."""
    places: dict[str, list[Compared]] = {}
    for each in compared:
        if each.part.decides:
            places.setdefault(each.place, []).append(each)
    return list(places.items())
