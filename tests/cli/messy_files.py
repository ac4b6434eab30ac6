"""Write tables as people have them: each has something that a strict reader refuses."""

import csv
import datetime as dt
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 60

Cells = list[list[Any]]
"""Rows of cells, the names first."""


def houses() -> Cells:
    """Return sizes, districts, ages and prices that depend on them, without anything messy."""
    random = np.random.default_rng(0)
    size, age = random.uniform(40, 200, ROWS).round(1), random.integers(0, 60, ROWS)
    district = random.choice(["north", "south", "west"], ROWS)
    price = 1000 + 20 * size - 8 * age + 300 * (district == "west") + random.normal(0, 90, ROWS)
    rows = zip(size.tolist(), district.tolist(), age.tolist(), price.round(2).tolist(), strict=True)
    return [["size", "district", "age", "price"], *map(list, rows)]


def text(cells: Cells, delimiter: str = ",") -> str:
    """Return the cells as CSV."""
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, lineterminator="\n").writerows(cells)
    return stream.getvalue()


def changed(column: str, change: Callable[[Any], Any], rows: Sequence[int] | None = None) -> Cells:
    """Return the houses with the cells of a column changed, in all rows or some."""
    cells = houses()
    j = cells[0].index(column)
    for i in range(ROWS) if rows is None else rows:
        cells[i + 1][j] = change(cells[i + 1][j])
    return cells


def with_column(name: str, values: Sequence[Any]) -> Cells:
    """Return the houses with one more column, before the price."""
    return [
        [*row[:-1], value, row[-1]] for row, value in zip(houses(), [name, *values], strict=True)
    ]


def comma(value: Any) -> str:
    return str(value).replace(".", ",")


DAYS = [dt.date(2020, 1, 1) + dt.timedelta(7 * i) for i in range(ROWS)]


def decimal_commas(path: Path) -> None:
    cells = changed("size", comma)
    path.write_text(text([cells[0], *([*row[:3], comma(row[3])] for row in cells[1:])], ";"))


def latin_1(path: Path) -> None:
    path.write_bytes(text(changed("district", lambda d: f"{d} Zürich")).encode("latin-1"))


def utf_16(path: Path) -> None:
    path.write_bytes(text(houses(), "\t").encode("utf-16"))


def thousands(path: Path) -> None:
    path.write_text(text(changed("price", lambda p: f"{p:,.0f}")))


def dollars(path: Path) -> None:
    path.write_text(text(changed("price", lambda p: f"${p:,.2f}")))


def percents(path: Path) -> None:
    path.write_text(text(changed("age", lambda a: f"{a} %")))


def iso_dates(path: Path) -> None:
    path.write_text(text(with_column("sold", DAYS)))


def german_dates(path: Path) -> None:
    path.write_text(text(with_column("sold", [f"{d:%d.%m.%Y}" for d in DAYS])))


def times(path: Path) -> None:
    path.write_text(text(with_column("sold", [f"{d} 10:30:00" for d in DAYS])))


def times_and_text(path: Path) -> None:
    path.write_text(text(with_column("sold", ["soon", *(f"{d} 10:30:00" for d in DAYS[1:])])))


def gaps_in_numbers(path: Path) -> None:
    path.write_text(text(changed("size", lambda _: "", range(0, ROWS, 9))))


def gaps_in_categories(path: Path) -> None:
    path.write_text(text(changed("district", lambda _: "NA", range(0, ROWS, 9))))


def gaps_in_target(path: Path) -> None:
    path.write_text(text(changed("price", lambda _: "", [3, 4])))


def one_bad_cell(path: Path) -> None:
    path.write_text(text(changed("size", lambda _: "unknown", [7])))


def bad_cells_among_whole_numbers(path: Path) -> None:
    path.write_text(text(changed("age", lambda _: "new", [7, 30])))


def workbook(path: Path) -> None:
    _save_workbook(path, {"Sheet1": with_column("sold", DAYS)})


def workbook_of_two_sheets(path: Path) -> None:
    _save_workbook(path, {"Prices": houses(), "Notes": [["made by hand"]]})


def _save_workbook(path: Path, sheets: dict[str, Cells]) -> None:
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for name, cells in sheets.items():
        sheet = book.create_sheet(name)
        for row in cells:
            sheet.append(row)
    book.save(path)


def twelve_rows(path: Path) -> None:
    path.write_text(text(houses()[:13]))


def identifiers(path: Path) -> None:
    path.write_text(text(with_column("code", [f"H-{i:03d}" for i in range(ROWS)])))


def ragged_rows(path: Path) -> None:
    lines = text(houses()).splitlines()
    lines[5] += ",sold twice"
    path.write_text("\n".join(lines) + "\n")


def no_header(path: Path) -> None:
    path.write_text(text([[row[0], row[2], row[3]] for row in houses()[1:]]))


def title_above_names(path: Path) -> None:
    path.write_text("Prices of houses\n\n" + text(houses(), ";"))


def repeated_names(path: Path) -> None:
    path.write_text(text([["size", "district", "size", "price"], *houses()[1:]]))


def empty_column(path: Path) -> None:
    path.write_text(text(with_column("remarks", [""] * ROWS)))


def columns_without_names(path: Path) -> None:
    path.write_text(text([[*row, "", ""] for row in houses()], ";"))


def commas_in_names(path: Path) -> None:
    cells = with_column("price, usd", [""] * ROWS)
    codes = ["the code", *(f"H-{i:03d}" for i in range(ROWS))]
    path.write_text(text([[code, *row] for code, row in zip(codes, cells, strict=True)]))


def bad_cell_in_a_name_of_two_words(path: Path) -> None:
    cells = changed("size", lambda _: "unknown", [7])
    path.write_text(text([["living area", *cells[0][1:]], *cells[1:]]))


def three_classes(path: Path) -> None:
    path.write_text(text([[row[0], row[2], row[3], row[1]] for row in houses()]))


def a_class_seen_once(path: Path) -> None:
    cells = [[row[0], row[2], row[3], row[1]] for row in houses()]
    cells[7][-1] = "harbour"
    path.write_text(text(cells))


def everything_at_once(path: Path) -> None:
    cells = with_column("sold", [f"{d:%d.%m.%Y}" for d in DAYS])
    cells = [[*row[:-1], f"id{i}", row[-1]] for i, row in enumerate(cells)]
    cells[0][-2], cells[4][0], cells[9][1] = "code", "unknown", ""
    cells = [cells[0], *([comma(row[0]), *row[1:-1], f"{row[-1]} €"] for row in cells[1:])]
    path.write_bytes(text(cells, ";").encode("cp1252"))
