"""The command `directgp predict`: predict the rows of a table, write and score them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from directgp.cli import options
from directgp.cli.terminal import HELP, Terminal, WrongUsageError, output_option
from directgp.text import number, plural

if TYPE_CHECKING:
    from directgp.cli.model_folder import ModelCard

SUFFIXES = (".parquet", ".csv", ".tsv", ".feather", ".csv.gz", ".tsv.gz")

_HELP = HELP["predict"]

_BLOCK = 2**16
"""Rows that are predicted and written at once, which bounds the memory."""

_SCORE_NAMES = {"nll": "NLL", "mse": "MSE", "error": "error", "mre": "MRE"}


def predict(
    model: options.ModelArgument,
    data: options.DataArgument,
    *,
    id_columns: Annotated[
        list[str] | None, options.data_option("COLUMN", _HELP["id"], "--id")
    ] = None,
    drop_missing: options.DropMissing = False,
    exposure: Annotated[str | None, options.data_option("COLUMN", _HELP["exposure"])] = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path, output_option("FILE", f"The file to write: {', '.join(SUFFIXES)}.")],
    coverage: Annotated[float, output_option("SHARE", _HELP["coverage"])] = 0.9,
    score: Annotated[bool, output_option("", _HELP["score"], "--score/--no-score")] = True,
    device: options.Device = "auto",
    force: options.Force = False,
    terminal: Terminal,
) -> None:
    """Predict the rows of a table with a model."""
    if not out.name.lower().endswith(SUFFIXES):
        allowed = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise WrongUsageError(f"--out must be a file that ends in {allowed}. Got {str(out)!r}.")
    if not 0 < coverage < 1:
        raise WrongUsageError(f"--coverage must be between 0 and 1. Got {coverage:g}.")
    from directgp.cli.data import open_rows
    from directgp.cli.model_folder import load_folder
    from directgp.cli.output_paths import check_output_file

    check_output_file(out, force, inputs=(Path(data),))
    found, card = load_folder(model, device)
    ids = tuple(dict.fromkeys(id_columns or ()))
    rows = open_rows(card, data, data_dir, exposure, ids, drop_missing, score)
    if rows.file is not None:
        check_output_file(out, force, inputs=(rows.file,))
    for note in rows.notes:
        terminal.note(note)
    sums = _write(out, found, card, rows, coverage)
    scored = int(sums.pop("rows"))
    scores = {name: total / scored for name, total in sums.items()} if scored else None
    terminal.answer(
        {
            "source": rows.source,
            "rows": len(rows.X),
            "out": str(out),
            "coverage": coverage,
            "scores": scores,
            "scored_rows": scored,
            "notes": list(rows.notes),
        }
    )
    terminal.show(f"Wrote predictions of {plural(len(rows.X), 'row')} to {out}.")
    if scores is not None:
        names = _SCORE_NAMES | {"coverage": f"coverage of {100 * coverage:g} % intervals"}
        parts = ", ".join(f"{names[name]} {number(value, 4)}" for name, value in scores.items())
        terminal.show(f"Compared with {card.target!r} in {plural(scored, 'row')}: {parts}.")


def _write(
    out: Path, model: Any, card: "ModelCard", rows: Any, coverage: float
) -> dict[str, float]:
    """Predict and write blocks of rows; return the sums of their scores, and "rows" scored."""
    import pyarrow as pa

    from directgp.cli.data import named_columns
    from directgp.cli.model_folder import PREDICTED_LABEL
    from directgp.cli.output_paths import writing

    kinds = {PREDICTED_LABEL: pa.string()}
    fields = [pa.field(name, kinds.get(name, pa.float64())) for name in card.predicted_names]
    schema = pa.schema([*rows.ids.schema, *fields])
    sums = {"rows": 0.0}
    with writing(out, schema) as write:
        for start in range(0, len(rows.X), _BLOCK):
            block = slice(start, start + _BLOCK)
            X = named_columns(rows.X[block], card.encoding.feature_names)
            exposure = None if rows.exposure is None else rows.exposure[block]
            predicted = predicted_columns(model, card, X, exposure, coverage)
            if rows.y is not None:
                for name, value in _sums(model, card, X, rows.y[block], exposure, predicted):
                    sums[name] = sums.get(name, 0.0) + value
            ids = rows.ids.slice(start, len(X))
            write(pa.table([*ids.columns, *predicted], schema=schema))
    return sums


def predicted_columns(
    model: Any, card: "ModelCard", X: Any, exposure: Any, coverage: float
) -> list[Any]:
    """Return mean, deviation and interval of y, or probabilities of the classes and the label."""
    import numpy as np

    if card.classes is not None:
        label = np.array(card.classes, dtype=object)[(model.decision_function(X) > 0).astype(int)]
        return [*model.predict_proba(X).T, label]
    if card.task == "count":
        interval = model.predict_interval(X, coverage, exposure)
        return [model.predict(X, exposure), _count_deviation(model, X, exposure), *interval]
    return [*model.predict(X, return_std=True), *model.predict_interval(X, coverage)]


def _count_deviation(model: Any, X: Any, exposure: Any) -> Any:
    """Return the standard deviation of counts, from the marginals of f."""
    import torch

    from directgp.likelihoods.counts import exposed
    from directgp.predictive import predictive_variance
    from directgp.shapes import Marginals

    device = model.posterior_.Z.device
    mean, sd = (torch.as_tensor(each, device=device) for each in model.predict_latent(X))
    over = None if exposure is None else torch.as_tensor(exposure, device=device)
    with torch.no_grad():
        variance = predictive_variance(exposed(model.likelihood_, over), Marginals(mean, sd**2))
    return variance.sqrt().cpu().numpy()


def _sums(
    model: Any, card: "ModelCard", X: Any, y: Any, exposure: Any, predicted: list[Any]
) -> Iterator[tuple[str, float]]:
    """Yield the sum of each score over rows with a target, and "rows", their number."""
    import numpy as np

    known = np.isfinite(y)
    if not known.any():
        return
    given = {}
    if card.task == "count":
        given["exposure"] = None if exposure is None else exposure[known]
    y, found = y[known], [column[known] for column in predicted]
    yield "rows", float(len(y))
    yield "nll", -float(model.log_density(X.filter(known), y, **given).sum())
    if card.classes is not None:
        yield "error", float(((found[-1] == card.classes[1]) != (y > 0.5)).sum())
        return
    mean, _, lower, upper = found
    if card.task == "count":
        yield "mre", float((np.abs(mean - y) / np.maximum(1, y)).sum())
    else:
        yield "mse", float(((mean - y) ** 2).sum())
    yield "coverage", float(((lower <= y) & (y <= upper)).sum())
