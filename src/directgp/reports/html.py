"""Render pages from templates, and write the files of a report."""

import base64
import hashlib
import io
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from directgp.plots.rendering import RenderedPicture, data_uri, dimensions
from directgp.reports.folder import FIGURES, ReportFolder
from directgp.text import joined, plural, strict_json, visible

PAPER = (
    "Yadi Wei, Rishit Sheth and Roni Khardon. Direct Loss Minimization for Sparse Gaussian "
    "Processes. Proceedings of AISTATS 2021, PMLR 130."
)


_PACKAGE = "directgp.reports"
"""Package whose folder ``templates`` has the templates that all reports share."""


def render_page(name: str, styles: Sequence[str], /, package: str = _PACKAGE, **values: Any) -> str:
    """Return a page without links to other files; all values are escaped.

    Parameters
    ----------
    name : str
        Template of the page; it may extend ``base.html``.
    styles : sequence of str
        Style sheets, such as ``report.css``.
    package : str
        Package with a folder ``templates``, in which files are looked up first.
    values
        Values of the template, and `title` and others that ``base.html`` needs.
    """

    def template_file(file: str) -> str:
        folders = (files(source).joinpath("templates") for source in (package, _PACKAGE))
        paths = (folder.joinpath(file) for folder in folders)
        return next(path for path in paths if path.is_file()).read_text(encoding="utf-8")

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(template_file),
        finalize=_visible,
    )
    environment.globals.update(
        data_uri=data_uri, dimensions=dimensions, joined=joined, plural=plural, paper=PAPER
    )
    script = template_file("report.js")
    # Styles and script are files of the package, without text of users.
    style = Markup("\n".join(map(template_file, styles)))  # nosec
    return environment.get_template(name).render(
        **values,
        style=style,
        script=Markup(script),  # nosec
        # The page allows the script of this digest and no other.
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _visible(value: Any) -> Any:
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return visible(value, keep="\n") if is_text else value


def damaged_sentence(rows: int) -> str:
    """Say that stored results were damaged."""
    if rows == 1:
        return "1 stored result is damaged: it did not match the checksum, and was not used."
    return (
        f"{plural(rows, 'stored result')} are damaged: they did not match the checksum, and were "
        "not used."
    )


Columns = Sequence[tuple[str, Sequence[str]]]
"""Types, by their names in pyarrow, and the names of columns of each type."""


def parquet(rows: list[dict[str, Any]], columns: Columns) -> bytes:
    """Return a Parquet file of the rows; missing values are null."""
    fields = [(name, pa.type_for_alias(kind)) for kind, names in columns for name in names]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(fields)), buffer)
    return buffer.getvalue()


def write_files(
    folder: Path,
    pictures: Iterable[RenderedPicture],
    results: bytes,
    document: tuple[str, dict[str, Any]],
    page: str,
) -> Path:
    """Write pictures, results, JSON document and page, and return the path of the page.

    Each file is replaced in one step, the page last. Pictures of an earlier report that this one
    does not have are removed.
    """
    files = {}
    for rendered in pictures:
        files[f"{FIGURES}/{rendered.picture.name}.png"] = rendered.png
        files[f"{FIGURES}/{rendered.picture.name}.svg"] = rendered.wide.encode()
    files["results.parquet"] = results
    files[document[0]] = strict_json(document[1]).encode()
    files["index.html"] = page.encode()
    ReportFolder(folder).write(files)
    return folder / "index.html"
