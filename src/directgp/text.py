"""Format numbers, durations, lists of names, plain-text tables and JSON; make text safe to show."""

import json
import math
import re
import shlex
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

__all__ = [
    "duration",
    "joined",
    "number",
    "one_line",
    "p_value",
    "plural",
    "suggestion",
    "text_table",
    "with_error",
]

_MAX_DECIMALS = 6
"""Numbers that need more decimals are written with a power of ten."""

_LARGE = 1e6
"""Numbers from here on are written with a power of ten."""

_SMALL = 1e-5
"""Numbers below are written with a power of ten."""

_MIN_P = 0.001
"""Smallest p-value that is written with its digits."""

_WIDTH = 100
"""Columns of plain text."""

_COMMAND_WIDTH = 76
"""Columns of a line of a command."""

_MARGIN = 14
"""Columns of the names in the margin of a summary."""

_MAX_CELL = 40
"""Characters of a cell in a plain-text table."""

_MAX_NAMES = 8
"""Names in a list; the rest is counted."""

_MAX_SIMILAR = 3
"""Names in a question such as "Did you mean 'price'?"."""

_MAX_PROBLEMS = 20
"""Largest number of problems in a message; a wide table may have thousands."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a cell that spreadsheets compute, or leave out and compute the rest."""

NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
"""Numbers without separators of thousands, currencies and the like."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3) -> str:
    """Format a number with significant digits: ``0.05``, ``13,828``, ``1.7·10⁻⁸``."""
    if value == 0 or not math.isfinite(value):
        return fixed(value, 0)
    if not _SMALL <= abs(value) < _LARGE:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{_trim(_minus(mantissa))}·{_power(int(exponent))}"
    return _trim(_minus(f"{value:,.{max(0, digits - 1 - _exponent(value))}f}"))


def fixed(value: float, decimals: int) -> str:
    """Format a number with fixed decimals; with a power of ten if that would be long."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and (abs(value) >= _LARGE or decimals > _MAX_DECIMALS):
        return number(value)
    return _minus(f"{value:,.{decimals}f}")


def decimals_for(values: Sequence[float], errors: Sequence[float]) -> int:
    """Return the decimals that show the lower quartile of the errors, or four digits of a value.

    So methods with huge errors do not hide the differences of the others. The error gets one digit,
    or two if they are below 3.55 (the rule of the Particle Data Group).
    """
    from statistics import median  # 3 ms that `directgp --help` does not need

    positive = [error for error in errors if math.isfinite(error) and error > 0]
    if positive:
        typical = sorted(positive)[(len(positive) - 1) // 4]
        exponent = _exponent(typical)
        return max(0, (typical < 3.55 * 10.0**exponent) - exponent)
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    return max(0, 3 - _exponent(median(sizes))) if sizes else 0


def with_error(value: float, error: float, decimals: int | None = None) -> str:
    """Format ``0.366 ± 0.012``; the value alone if it or the error is not finite.

    Without `decimals`, the error decides their number.
    """
    if not (math.isfinite(value) and math.isfinite(error) and (error > 0 or decimals is not None)):
        return number(value) if decimals is None else fixed(value, decimals)
    if decimals is None:
        decimals = decimals_for([value], [error])
    size = max(abs(value), error)
    if size == 0 and decimals > _MAX_DECIMALS:
        return "0 ± 0"
    if decimals <= _MAX_DECIMALS and size < _LARGE:
        return f"{fixed(value, decimals)} ± {fixed(error, decimals)}"
    exponent = _exponent(size)
    digits = decimals_for([value], [error / 10.0**exponent])
    parts = [fixed(quantity / 10.0**exponent, digits) for quantity in (value, error)]
    return f"({' ± '.join(parts)})·{_power(exponent)}"


def percent(share: float, decimals: int | None = None) -> str:
    """Format ``0.906`` as ``90.6 %``, with fixed decimals if they are given."""
    if not math.isfinite(share):
        return "–"
    return f"{number(100 * share, 4) if decimals is None else fixed(100 * share, decimals)} %"


def p_value(p: float, level: float = 0.05) -> str:
    """Format ``p = 0.012`` or ``p < 0.001``, with digits that show on which side of `level` p is.

    Returns an empty string for NaN.
    """
    if math.isnan(p):
        return ""
    if p < _MIN_P:
        return f"p < {_MIN_P:g}"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return f"p = {next((text for text in texts if float(text) != level), level)}"


def duration(seconds: float) -> str:
    """Format ``4.1 s``, ``1 min 23 s`` or ``2 h 1 min``."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 59.5:
        return f"{number(seconds, 2)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def rough_time(seconds: float) -> str:
    """Format an estimate as ``about 25 s``, ``about 3 min`` or ``about 1.5 h``."""
    if seconds < 10:
        rough = f"{max(1, round(seconds))} s"
    elif seconds < 90:
        rough = f"{5 * round(seconds / 5)} s"
    else:
        rough = f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    return f"about {rough}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Format ``1 row`` or ``25,000 rows``; `nouns` is an irregular plural."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def joined(parts: Sequence[str], word: str = "and") -> str:
    """Format ``a``, ``a and b`` or ``a, b and c``."""
    return f" {word} ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def listed(names: Iterable[str], limit: int = _MAX_NAMES) -> str:
    """Quote and join names; those beyond `limit` are counted.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d"], limit=2)
    ("'a'", "'a' and 'b'", "'a', 'b' and 2 more")
    """
    return _limited([repr(name) for name in names], limit)


def counted(counts: Mapping[str, object]) -> str:
    """Format ``'a' (3) and 'b' (1)``."""
    return _limited([f"{name!r} ({count})" for name, count in counts.items()], _MAX_NAMES)


def first_problems(sentences: Sequence[str]) -> list[str]:
    """Return the first sentences about a table, and a sentence that counts the rest."""
    more = len(sentences) - _MAX_PROBLEMS
    rest = [f"There are {more:,} more problems."] if more > 0 else []
    return [*sentences[:_MAX_PROBLEMS], *rest]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Format ``Did you mean 'price'?``, ignoring case; an empty string if no name is similar."""
    by_folded: dict[str, list[str]] = {}
    for candidate in names:
        by_folded.setdefault(candidate.casefold(), []).append(candidate)
    folded = get_close_matches(name.casefold(), by_folded, n=_MAX_SIMILAR, cutoff=0.5)
    close = [repr(candidate) for spelling in folded for candidate in by_folded[spelling]]
    return f"Did you mean {' or '.join(close[:_MAX_SIMILAR])}?" if close else ""


def suggestion(name: str, names: Iterable[str], title: str) -> str:
    """Format ``Did you mean 'price'?``, or the title with all names if none is similar."""
    candidates = list(names)
    return (
        did_you_mean(name, candidates)
        or f"{title}: {listed(candidates) if candidates else 'none'}."
    )


def visible(text: str, keep: str = "") -> str:
    r"""Return the text with escapes in place of characters that nobody sees, but for those to keep.

    These are control characters, such as the codes that move a cursor or set a title, marks that
    change the direction of text, and characters without width. Text of files and of users is shown
    on terminals, in figures, pages and CSV files through this function.

    Examples
    --------
    >>> print(visible("\x1b[31mred"))
    \x1b[31mred
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or _is_visible(c) else _escaped(c) for c in text)


def one_line(text: str, limit: int | None = None) -> str:
    """Return visible text without line breaks, cut to `limit` characters."""
    line = visible(" ".join(text.split()))
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def shell_word(text: str) -> str:
    r"""Quote a word for a shell; one with characters that nobody sees as ``$'\x1b'``."""
    if visible(text) == text:
        return shlex.quote(text)
    quoted = text.replace("\\", r"\\").replace("'", r"\'")
    return f"$'{visible(quoted)}'"


def csv_cell(text: str) -> str:
    """Return text for a cell of CSV: visible, and with an apostrophe before a formula."""
    shown = visible(text, keep="\t\r\n")
    is_formula = shown.startswith(_FORMULA) and not NUMBER.fullmatch(shown)
    return f"'{shown}" if is_formula else shown


def text_table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Align rows of cells, the header first, in columns; columns in `right` to the right.

    A long cell is cut, but in a last column that is aligned to the left it continues below itself.
    """
    cells = [[one_line(cell, _MAX_CELL) for cell in row] for row in rows]
    if cells and len(cells[0]) - 1 not in right:
        cells = [*_continued(cells, [one_line(row[-1]) for row in rows])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "   ".join(
            cell.rjust(width) if j in right else cell.ljust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def entry(name: str, text: str) -> str:
    """Format a paragraph of a summary, with its name in the margin."""
    return _wrapped(text, f"  {name:<{_MARGIN}}", " " * (_MARGIN + 2))


def bullet(text: str) -> str:
    """Format a paragraph of a bulleted list."""
    return _wrapped(text, "  - ", "    ")


def command_lines(words: Sequence[str]) -> str:
    """Format a shell command; break a long one into lines that end with a backslash."""
    parts: list[str] = []
    for word in map(shell_word, words):
        # An option stays with its value.
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and word[0] != "-":
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    lines = [""]
    for part in parts:
        fits = not lines[-1] or len(lines[-1]) + len(part) < _COMMAND_WIDTH
        lines[-1:] = [f"{lines[-1]} {part}".strip()] if fits else [lines[-1], part]
    return " \\\n  ".join(lines)


def strict_json(document: Any, ascii_only: bool = False) -> str:
    """Return the document as indented JSON; numbers that are not finite become null."""
    return json.dumps(finite(document), ensure_ascii=ascii_only, indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """Return a copy for JSON: numbers that are not finite become None, and tuples lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _is_visible(character: str) -> bool:
    # Of the characters that are not printable for Python, only spaces are harmless.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    r"""Return ``\x1b``, ``\u202e`` or ``\U000e0001``, as Python and shells write them."""
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _limited(parts: Sequence[str], limit: int) -> str:
    more = len(parts) - limit
    return joined([*parts[:limit], f"{more} more"] if more > 0 else parts)


def _wrapped(text: str, first: str, others: str) -> str:
    """Wrap text without line breaks within "a ± b" or "a = b"."""
    shown = visible(text, keep="\n").replace(" ± ", "\xa0±\xa0").replace(" = ", "\xa0=\xa0")
    filled = textwrap.fill(
        shown, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    return filled.replace("\xa0", " ")


def _continued(cells: Sequence[list[str]], last: Sequence[str]) -> Iterator[list[str]]:
    """Yield rows with the texts of the last column in as many lines as they need."""
    others = [max(len(row[j]) for row in cells) for j in range(len(cells[0]) - 1)]
    # A table in a summary is indented by two columns.
    width = max(_MAX_CELL, _WIDTH - 2 - sum(other + 3 for other in others))
    for row, text in zip(cells, last, strict=True):
        first, *rest = textwrap.wrap(text, width) or [""]
        yield [*row[:-1], first]
        yield from ([*[""] * len(others), line] for line in rest)


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _power(exponent: int) -> str:
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def _minus(text: str) -> str:
    """Write the minus sign as "−", and no sign before zero."""
    return text.replace("-", "−" if text.strip("-0.") else "")


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
