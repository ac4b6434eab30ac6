"""Names in sentences: lists that stay short, and the names nearest to one that is not there."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NoReturn

from directgp.errors import refuse

_FEW = 8
"""Names that a sentence can carry."""


def listed(names: Iterable[str], most: int = _FEW) -> str:
    """``'a', 'b' and 3 more``.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d"], most=2)
    ("'a'", "'a' and 'b'", "'a', 'b' and 2 more")
    """
    quoted = [repr(name) for name in names]
    return joined([*quoted[:most], f"{len(quoted) - most} more"] if len(quoted) > most else quoted)


def counted(counts: Mapping[str, int], most: int = _FEW) -> str:
    """``'a' (3) and 'b' (1)``."""
    parts = [f"{name!r} ({count})" for name, count in counts.items()]
    return joined([*parts[:most], f"{len(parts) - most} more"] if len(parts) > most else parts)


def joined(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def several(number: int, noun: str) -> str:
    """``1 row``, ``2 rows``, ``25,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names most like this one, whatever their case, the likest first."""
    by_folded: dict[str, list[str]] = {}
    for candidate in names:
        by_folded.setdefault(candidate.casefold(), []).append(candidate)
    close = get_close_matches(name.casefold(), by_folded, n=most, cutoff=0.5)
    return [candidate for folded in close for candidate in by_folded[folded]][:most]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``Did you mean 'price'?``, or an empty text if no name is similar."""
    close = nearest(name, names)
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""


def suggestion(name: str, names: Iterable[str], what: str) -> str:
    """Return ``Did you mean 'price'?``, or a list of all names if none is similar."""
    known = list(names)
    return did_you_mean(name, known) or f"{what}: {listed(known) if known else 'none'}."


def refuse_name(who: str, name: str, names: Iterable[str]) -> NoReturn:
    """Refuse the name of a column that the table does not have."""
    refuse(who, "a column of the table", repr(name), suggestion(name, names, "Its columns"))


def drop_options(names: Iterable[str]) -> str:
    """``--drop a --drop b``, quoted for a shell where that is needed."""
    from shlex import quote

    return " ".join(f"--drop {quote(name)}" for name in names)
