"""Golden files: reading, writing and comparing with a readable difference."""

import difflib
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

_MAX_LINES = 60
"""Lines of a difference in a failed test; more are cut."""


def read_json(path: Path) -> Any:
    """Return the document of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, document: Any) -> None:
    """Write a document, one value a line."""
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def read_text(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write a text, with the same line ends on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def unpack(path: Path, to: Path) -> Path:
    """Write the content of a gzip file to another file."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(gzip.decompress(path.read_bytes()))
    return to


def pack(path: Path, to: Path) -> Path:
    """Write a gzip file with the content of another file."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return to


def assert_same_text(found: str, golden: str, remedy: str) -> None:
    """Fail with a line difference unless two texts are equal."""
    if found == golden:
        return
    lines = difflib.unified_diff(
        golden.splitlines(), found.splitlines(), "golden", "found", lineterm="", n=1
    )
    raise AssertionError(_message(list(lines), remedy))


def assert_same_document(found: Any, golden: Any, tolerance: float, remedy: str) -> None:
    """Fail with a list of places unless two JSON documents are equal.

    Parameters
    ----------
    found, golden : document
        What JSON can hold.
    tolerance : float
        Relative difference of floats that is allowed; 0 for none.
    remedy : str
        What to do if the change is meant.
    """
    lines = list(_differences(found, golden, tolerance, ""))
    if lines:
        raise AssertionError(_message(lines, remedy))


def _message(lines: list[str], remedy: str) -> str:
    more = len(lines) - _MAX_LINES
    cut = [f"… and {more} lines more"] if more > 0 else []
    return "\n".join(["differs from the golden file:", *lines[:_MAX_LINES], *cut, remedy])


def _differences(found: Any, golden: Any, tolerance: float, place: str) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(golden, dict):
        for key in sorted({*found, *golden}):
            inner = f"{place}.{key}" if place else str(key)
            if key not in found:
                yield f"- {inner}: {_short(golden[key])}"
            elif key not in golden:
                yield f"+ {inner}: {_short(found[key])}"
            else:
                yield from _differences(found[key], golden[key], tolerance, inner)
    elif isinstance(found, list) and isinstance(golden, list) and len(found) == len(golden):
        for index, (one, other) in enumerate(zip(found, golden, strict=True)):
            yield from _differences(one, other, tolerance, f"{place}[{index}]")
    elif not _same(found, golden, tolerance):
        yield f"- {place}: {_short(golden)}"
        yield f"+ {place}: {_short(found)}"


def _same(found: Any, golden: Any, tolerance: float) -> bool:
    if type(found) is float and type(golden) is float:
        close = math.isclose(found, golden, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
        return close or (math.isnan(found) and math.isnan(golden))
    return type(found) is type(golden) and bool(found == golden)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"
