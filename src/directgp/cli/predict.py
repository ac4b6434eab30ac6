"""The command `directgp predict`: predict the rows of a table, write and score them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, final

from directgp.cli import options
from directgp.cli.terminal import HELP, Terminal, WrongUsageError, output_option
from directgp.errors import InvalidInputError, refuse
from directgp.registry import ROW_CONSTANTS
from directgp.text import csv_cell, number, plural

if TYPE_CHECKING:
    from directgp.cli.model_folder import ModelCard
    from directgp.cli.prediction_rows import PredictionRows

PREDICTED_LABEL = "predicted"
"""Column of predictions that is no number."""

SUFFIXES = (".parquet", ".csv", ".tsv", ".feather", ".csv.gz", ".tsv.gz")
"""Suffixes of the files that can be written."""

_HELP = HELP["predict"]
"""Help of the options."""

_BLOCK = 2**16
"""Rows that are predicted and written at once, which bounds the memory."""

_SCORE_NAMES = {"nll": "NLL", "rmse": "RMSE", "error": "error", "mre": "MRE"}
"""Names of the scores in text."""

REASON = "reason"
"""Column that says why a row has no prediction, or what was assumed."""


@final
@dataclass(frozen=True)
class Predicted:
    """What to predict besides the mean: central intervals, quantiles and densities."""

    intervals: tuple[float, ...]
    """Probabilities of the intervals; the scores use the first."""

    quantiles: tuple[float, ...]
    """Levels of the quantiles."""

    proba: bool
    """Whether to write the probabilities of classes."""

    density: bool
    """Whether to write the log density of the target."""

    drop_missing: bool
    """Whether to leave out rows that cannot be predicted."""

    def names(self, card: "ModelCard") -> list[str]:
        """Return the names of the columns of predictions."""
        if card.classes is not None:
            columns = [f"p_{label}" for label in card.classes] if self.proba else []
            columns.append(PREDICTED_LABEL)
        else:
            from directgp.estimators.frames import names_of_numbers

            columns = names_of_numbers(self.intervals, self.quantiles)
        return [*columns, "log_density"] if self.density else columns

    def columns(
        self, model: Any, card: "ModelCard", X: Any, constants: dict[str, Any]
    ) -> list[Any]:
        """Return the columns of predictions, without densities; `constants` has row constants."""
        import numpy as np

        if card.classes is not None:
            place = model.predict(X).astype(int)
            proba = model.predict_proba(X).T if self.proba else []
            return [*proba, np.array(card.classes, dtype=object)[place]]
        from directgp.estimators.frames import predicted_numbers
        from directgp.estimators.validation import row_values

        values = row_values("directgp predict", **constants)
        return predicted_numbers(model, X, self.intervals, self.quantiles, values)


def predict(
    model: options.ModelArgument,
    data: options.DataArgument,
    *,
    id_columns: Annotated[
        list[str] | None, options.data_option("COLUMN,…", _HELP["id"], "--id")
    ] = None,
    drop_missing: Annotated[
        bool, options.data_option("", _HELP["drop_missing"], "--drop-missing")
    ] = False,
    rows: options.RowOptions,
    file: options.FileOptions,
    out: Annotated[Path, output_option("FILE", f"The file to write: {', '.join(SUFFIXES)}.")],
    interval: Annotated[
        str, output_option("SHARE,…", _HELP["interval"], "--interval", "--coverage")
    ] = "0.9",
    quantiles: Annotated[str | None, output_option("LEVEL,…", _HELP["quantiles"])] = None,
    proba: Annotated[bool | None, output_option("", _HELP["proba"], "--proba/--no-proba")] = None,
    density: Annotated[bool, output_option("", _HELP["density"], "--density")] = False,
    score: Annotated[bool, output_option("", _HELP["score"], "--score/--no-score")] = True,
    device: options.Device = "auto",
    force: options.Force = False,
    terminal: Terminal,
) -> None:
    """Predict the rows of a table with a model: one row of output for each row of DATA.

    A row that cannot be predicted has empty cells and a reason.
    """
    if not out.name.lower().endswith(SUFFIXES):
        allowed = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise WrongUsageError(f"--out must be a file that ends in {allowed}. Got {str(out)!r}.")
    wanted = Predicted(
        intervals=options.listed("--interval", interval, options.share),
        quantiles=options.listed("--quantiles", quantiles, options.share),
        proba=proba is not False,
        density=density,
        drop_missing=drop_missing,
    )
    from directgp.cli.model_folder import load_folder
    from directgp.cli.output_paths import check_output_file
    from directgp.cli.prediction_rows import check_targets, open_rows
    from directgp.datasets.sources import open_source

    check_output_file(out, force, inputs=(Path(data),))
    row_column = rows.column
    fitted, card = load_folder(model, device)
    if row_column is not None and fitted.likelihood_.rows.argument != row_column[0]:
        likelihood = type(fitted.likelihood_).__name__
        got = f"it for a model of the task {card.task} with {likelihood}"
        refuse(f"--{row_column[0]}", "given for a likelihood that uses it", got, "Leave it out.")
    if proba is not None and card.classes is None:
        raise WrongUsageError(f"--proba is for classification. The model is of {card.task}.")
    if quantiles is not None and card.classes is not None:
        raise WrongUsageError("--quantiles is for numbers. The model is of classification.")
    file = file if file.header is not None else replace(file, header=card.header)
    source = open_source(data, file.data_dir, file.reading)
    ids = tuple(dict.fromkeys(options.split_names(id_columns, set(source.table.names))))
    written = [*wanted.names(card), REASON]
    repeated = next((name for name in written if written.count(name) > 1), None)
    if repeated is not None:
        raise WrongUsageError(
            "--interval and --quantiles must be numbers that name different columns. Got two for"
            f" {repeated!r}. Give them with fewer digits, or leave one out."
        )
    table = open_rows(card, source, row_column, ids, written, score, density, drop_missing)
    check_targets(fitted, card, table, density)
    if density and table.y is None:
        raise InvalidInputError(f"--density needs the target {card.target!r} in DATA. Got none.")
    if source.table.path is not None:
        check_output_file(out, force, inputs=(source.table.path,))
    notes = [*source.table.notes, *table.notes]
    for note in notes:
        terminal.note(note)
    if source.table.irregular:
        notes.append(source.table.rows_left_out())
        terminal.warn(notes[-1])
    predicted = int(table.usable.sum())
    skipped = len(table.X) - predicted
    if skipped:
        first = table.reasons[int(table.usable.argmin())]
        what = "left out" if drop_missing else "without a prediction"
        terminal.warn(f"{plural(skipped, 'row')} {what}, the first because {first}.")
    if not predicted:
        raise InvalidInputError("DATA must have rows that can be predicted. Got none.")
    totals = _write(out, fitted, card, table, wanted)
    scored = totals["nll"].rows if "nll" in totals else 0
    num_rows = predicted if drop_missing else len(table.X)
    scores = {name: total.mean for name, total in totals.items()} if scored and score else None
    if scores and "mse" in scores:
        scores["rmse"] = scores["mse"] ** 0.5
    terminal.answer(
        {
            "source": source.shown,
            "rows": num_rows,
            "predicted": predicted,
            "out": str(out),
            "coverage": wanted.intervals[0],
            "scores": scores,
            "scored_rows": scored if score else 0,
            "notes": notes,
        }
    )
    terminal.show(f"Wrote {plural(num_rows, 'row')} to {out}.")
    if scores is not None:
        share = f"{100 * wanted.intervals[0]:g} %"
        names = _SCORE_NAMES | {"coverage": f"coverage of {share} intervals"}
        shown = {name: value for name, value in scores.items() if name != "mse"}
        parts = ", ".join(f"{names[name]} {number(value, 4)}" for name, value in shown.items())
        terminal.show(f"Compared with {card.target!r} in {plural(scored, 'row')}: {parts}.")
        censored = scored - totals.get("coverage", Total()).rows
        if censored and card.classes is None:
            count = "counts" if censored == 1 else "count"
            terminal.show(f"{plural(censored, 'censored target')} {count} in the NLL only.")


class Total(NamedTuple):
    """The sum of a score over rows, and their number."""

    value: float = 0.0
    """Sum of the score."""

    rows: int = 0
    """Number of the rows."""

    @property
    def mean(self) -> float:
        """The score of all rows."""
        return self.value / self.rows

    def plus(self, scores: Any) -> "Total":
        """Return the total with the scores of more rows."""
        return Total(self.value + float(scores.sum()), self.rows + len(scores))


def _write(
    out: Path, model: Any, card: "ModelCard", rows: "PredictionRows", wanted: Predicted
) -> dict[str, Total]:
    """Predict and write blocks of rows; return the total of each score."""
    import numpy as np
    import pyarrow as pa

    from directgp.cli.output_paths import writing

    kinds = {PREDICTED_LABEL: pa.string()}
    fields = [pa.field(name, kinds.get(name, pa.float64())) for name in wanted.names(card)]
    schema = pa.schema([*rows.ids.schema, *fields, pa.field(REASON, pa.string())])
    totals: dict[str, Total] = {}
    is_text_file = not out.name.lower().endswith((".parquet", ".feather"))
    if is_text_file:
        schema = pa.schema([field.with_name(csv_cell(field.name)) for field in schema])
    with writing(out, schema) as write:
        for start in range(0, len(rows.X), _BLOCK):
            stop = min(start + _BLOCK, len(rows.X))
            usable = rows.usable[start:stop]
            usable_rows = start + np.flatnonzero(usable)
            X = card.encoding.table(rows.X[usable_rows])
            of_inputs: dict[str, Any] = {}
            of_targets: dict[str, Any] = {}
            if rows.row_values is not None:
                argument, values = rows.row_values
                of_rows = of_targets if ROW_CONSTANTS[argument].of_target else of_inputs
                of_rows[argument] = values[usable_rows]
            y = None if rows.y is None else rows.y[usable_rows]
            predicted = wanted.columns(model, card, X, of_inputs) if len(usable_rows) else []
            if y is not None and len(usable_rows):
                density = _log_density(model, X, y, of_inputs | of_targets)
                for name, scores in _scores(card, y, of_targets.get("upper"), density, predicted):
                    totals[name] = totals.get(name, Total()).plus(scores)
                predicted += [density] if wanted.density else []
            ids = rows.ids.slice(start, stop - start)
            # A missing index takes a missing value.
            places = pa.array(np.cumsum(usable) - 1, mask=~usable)
            columns = [pa.array(column).take(places) for column in predicted]
            columns = columns or [pa.nulls(stop - start, field.type) for field in fields]
            reasons = pa.array([rows.reasons.get(row) for row in range(start, stop)], pa.string())
            cells = [*ids.columns, *columns, reasons]
            cells = [_safe_cells(column) for column in cells] if is_text_file else cells
            table = pa.table(cells, schema=schema)
            write(table.filter(pa.array(usable)) if wanted.drop_missing else table)
    return totals


def _safe_cells(column: Any) -> Any:
    """Return a column for a text file: text is visible, and no formula of a spreadsheet."""
    import pyarrow as pa

    from directgp.datasets.columns import kind_of

    if kind_of(column.type) != "category":
        return column
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    coded = pa.chunked_array(chunks, column.type).combine_chunks().dictionary_encode()
    cells = [None if text is None else csv_cell(text) for text in coded.dictionary.to_pylist()]
    return pa.array(cells, column.type).take(coded.indices)


def _log_density(model: Any, X: Any, y: Any, constants: dict[str, Any]) -> Any:
    """Return the log density of each target, NaN where it is missing."""
    import numpy as np

    observed = np.isfinite(y)
    density = np.full(len(y), np.nan)
    if observed.any():
        of_rows = {name: values[observed] for name, values in constants.items()}
        density[observed] = model.log_density(X.filter(observed), y[observed], **of_rows)
    return density


def _scores(
    card: "ModelCard", y: Any, upper: Any, density: Any, predicted: list[Any]
) -> Iterator[tuple[str, Any]]:
    """Yield each score of the rows with a target; only the density scores censored targets."""
    import numpy as np

    observed = np.isfinite(y)
    if not observed.any():
        return
    yield "nll", -density[observed]
    if card.classes is not None:
        label = next(column for column in predicted if column.dtype == object)[observed]
        yield "error", label != np.array(card.classes, dtype=object)[y[observed].astype(int)]
        return
    exact = observed if upper is None else observed & (upper <= y)
    if not exact.any():
        return
    y = y[exact]
    mean, _, lower, upper_end = (column[exact] for column in predicted[:4])
    if card.task == "count":
        yield "mre", np.abs(mean - y) / np.maximum(1, y)
    else:
        yield "mse", (mean - y) ** 2
    yield "coverage", (lower <= y) & (y <= upper_end)
