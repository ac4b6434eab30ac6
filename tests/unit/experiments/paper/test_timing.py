"""Timings alternate between the functions, and the least time counts."""

import time

import pytest

from directgp.experiments.paper.studies import least_seconds


def test_rivals_take_turns_and_the_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], []
    lasts = {"a": iter([50.0, 2.0, 9.0]), "b": iter([3.0, 4.0, 3.5])}
    monkeypatch.setattr(time, "process_time", lambda: clock[0])

    def rival(name: str) -> None:
        order.append(name)
        clock[0] += next(lasts[name])

    found = least_seconds({"a": lambda: rival("a"), "b": lambda: rival("b")}, repeats=3)
    assert found == {"a": 2.0, "b": 3.0}
    assert "".join(order) == "ababab"
