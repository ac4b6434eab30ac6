"""What text looks like that holds no plain categories, and what to do about it."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Look:
    """What all values of a column look like."""

    pattern: re.Pattern[str]

    name: str
    """What the values are."""

    remedy: str

    may_be_category: bool
    """Whether a few such values can be meant as categories."""


_LOOKS = (
    Look(
        re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?"),
        "numbers stored as text",
        "Store them as numbers.",
        may_be_category=True,
    ),
    # Plain numbers are above, so at least one value has a mark in what follows.
    Look(
        re.compile(r"[-+]?\d{1,3}([,' ’]\d{3})*(\.\d+)?|[-+]?\d{1,3}(\.\d{3})*"),
        "numbers with thousands separators",
        "Write them without, as in 1234.5.",
        may_be_category=False,
    ),
    Look(
        re.compile(r"[-+]?\d+(,\d+)?|[-+]?\d{1,3}([.' ’]\d{3})*,\d+"),
        "numbers with decimal commas",
        "Write them with a point, as in 1234.5.",
        may_be_category=False,
    ),
    Look(
        re.compile(r"[€$£]\s*[-+]?\d[\d.,' ]*|[-+]?\d[\d.,' ]*\s*[€$£%]"),
        "numbers with units",
        "Write the numbers alone.",
        may_be_category=True,
    ),
    Look(
        re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}([ T].*)?"),
        "dates",
        "Give numbers instead, such as year, month or days since a date.",
        may_be_category=False,
    ),
)


def look_of(values: Collection[str]) -> Look | None:
    """What all the values look like, if it is something.

    Examples
    --------
    >>> look_of(["1,5", "2"]).name, look_of(["1,500", "20"]).name, look_of(["red", "2"])
    ('numbers with decimal commas', 'numbers with thousands separators', None)
    """
    for look in _LOOKS:
        if values and all(look.pattern.fullmatch(value.strip()) for value in values):
            return look
    return None
