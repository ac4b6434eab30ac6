"""Markdown tables of the results, for the terminal and the documentation."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_PEERS = ("GPyTorch", "GPflow", "GPJax")


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table; the first column is text, the others are numbers."""
    rule = "|---|" + "---:|" * (len(heads) - 1)
    body = ["| " + " | ".join(line) + " |" for line in (heads, *lines)]
    return "\n".join([body[0], rule, *body[1:]]) + "\n"


def all_tables(results: Row) -> dict[str, str]:
    """Return every table by name; the main table has the empty name."""
    steps, growth = results["steps"], results["growth"]
    measured = [row for row in steps if "memory" in row]
    rate = results["matmul_rate"]
    return {
        "": step_table(steps),
        "floor": floor_table(steps, rate),
        "prediction": prediction_table(measured),
        "memory": memory_table(measured),
        "growth": growth_table(growth),
        "agreement": agreement_table(steps),
    }


def write_tables(folder: Path, stem: str, tables: dict[str, str]) -> None:
    """Write one file per table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        (folder / f"{'_'.join(filter(None, (stem, name)))}.md").write_text(text, encoding="utf-8")


def step_table(rows: list[Row]) -> str:
    """Return our step time and the ratios of the others."""
    peers = _present(rows, "ratio")
    heads = ["", "directgp, ms", *(f"{peer} / directgp" for peer in peers)]
    return markdown(
        heads,
        (
            [_label(row), spread_text(row["ms"]["directgp"])]
            + [spread_text(row["ratio"].get(peer)) for peer in peers]
            for row in rows
        ),
    )


def floor_table(rows: list[Row], rate: float) -> str:
    """Return our time relative to the raw operations, and the share of the matrix rate."""
    heads = ["", "directgp / floor", "of the matrix rate", "triangles and symmetry counted"]
    return markdown(heads, (_floor_line(row, rate) for row in rows))


def _floor_line(row: Row, rate: float) -> list[str]:
    floor = row["ratio"]["floor"]
    inverse = {"median": 1 / floor["median"], "low": 1 / floor["high"], "high": 1 / floor["low"]}
    seconds = 1e-3 * row["ms"]["directgp"]["median"]
    counts = row["multiply_adds"]
    shares = [counts[key] / seconds / rate for key in ("products", "least")]
    return [
        _label(row),
        spread_text(inverse),
        *(f"{share:.0%}".replace("%", " %") for share in shares),
    ]


def prediction_table(rows: list[Row]) -> str:
    """Return rows per second and the ratios of the others."""
    peers = _present(rows, "prediction_ratio")
    heads = ["", "directgp, rows/s", *(f"{peer} / directgp" for peer in peers)]
    return markdown(
        heads,
        (
            [_label(row, False), f"{row['rows_per_second']['directgp']['median']:,.0f}"]
            + [spread_text(row["prediction_ratio"].get(peer)) for peer in peers]
            for row in rows
        ),
    )


def memory_table(rows: list[Row]) -> str:
    """Return the peak memory of steps in MB."""
    names = ["directgp", *_present(rows, "memory")]
    heads = ["", *(f"{name}, MB" for name in names)]
    return markdown(
        heads,
        ([_label(row, False), *(_megabytes(row["memory"].get(n)) for n in names)] for row in rows),
    )


def growth_table(rows: list[Row]) -> str:
    """Return exponents with standard errors."""
    names = list(rows[0]["exponent"]) if rows else []
    heads = ["time of a step grows with", *names]
    return markdown(
        heads,
        (
            [f"{row['axis']} = {', '.join(map(str, row['sizes']))}"]
            + [_exponent(row["exponent"][name]) for name in names]
            for row in rows
        ),
    )


def agreement_table(rows: list[Row]) -> str:
    """Return differences from the reference, and the known changes of the libraries."""
    lines = (
        [_label(row), name, *_differences(found)]
        for row in rows
        for name, found in row["agreement"].items()
    )
    return markdown(["", "library", "float64", "float32", "by design"], lines)


def _differences(found: Row) -> list[str]:
    departure = found["float32"]["departure"]
    both = [f"{found[dtype]['difference']:.0e}" for dtype in ("float64", "float32")]
    return [*both, f"{departure:.0e}" if departure else "–"]


def _present(rows: list[Row], key: str) -> list[str]:
    return [peer for peer in _PEERS if any(peer in row[key] for row in rows)]


def _label(row: Row, with_objective: bool = True) -> str:
    size = row["size"]
    words = f"{row['case']}: {size['likelihood']}, n {size['n']}, d {size['d']}, M {size['m']}"
    objective = {"log_loss": "log loss", "elbo": "ELBO"}[row["objective"]]
    return f"{words}; {objective}" if with_objective else words


def spread_text(spread: dict[str, float] | None) -> str:
    """Return a median with its quartiles."""
    if spread is None:
        return "–"
    return f"{spread['median']:.3g} ({spread['low']:.3g} to {spread['high']:.3g})"


def _megabytes(held: int | None) -> str:
    return "–" if held is None else f"{held / 1e6:.0f}"


def _exponent(fit: dict[str, float]) -> str:
    return f"{fit['value']:.2f} ± {fit['error']:.2f}"
