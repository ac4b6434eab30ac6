"""The options of `directgp predict`; `predict_run` is apart because its types need pyarrow."""

from pathlib import Path
from typing import Annotated

from directgp.cli import options
from directgp.cli.terminal import Terminal, WrongUsageError

SUFFIXES = (".parquet", ".csv", ".tsv", ".feather", ".csv.gz", ".tsv.gz")


def predict(
    model: options.ModelArgument,
    data: options.DataArgument,
    *,
    id_columns: Annotated[
        list[str] | None,
        options.data_option("--id", metavar="COLUMN", help="Copy this column; may be repeated."),
    ] = None,
    drop_missing: options.DropMissing = False,
    exposure: Annotated[
        str | None,
        options.data_option(
            "--exposure",
            metavar="COLUMN",
            help="Exposure of counts; by default the column of training.",
        ),
    ] = None,
    data_dir: options.DataDir = None,
    out: Annotated[
        Path,
        options.output_option(
            "--out", metavar="FILE", help=f"The file to write: {', '.join(SUFFIXES)}."
        ),
    ],
    coverage: Annotated[
        float,
        options.output_option(
            "--coverage", metavar="SHARE", help="Probability of the intervals, between 0 and 1."
        ),
    ] = 0.9,
    score: Annotated[
        bool,
        options.output_option(
            "--score/--no-score", metavar="", help="Score the predictions if DATA has the target."
        ),
    ] = True,
    device: options.Device = "auto",
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Predict the rows of a table with a model."""
    if not out.name.lower().endswith(SUFFIXES):
        allowed = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise WrongUsageError(f"--out must be a file that ends in {allowed}. Got {str(out)!r}.")
    if not 0 < coverage < 1:
        raise WrongUsageError(f"--coverage must be between 0 and 1. Got {coverage:g}.")

    from directgp.cli.predict_run import PredictionRequest, predict_and_write

    request = PredictionRequest(
        model=model,
        data=data,
        out=out,
        id_columns=tuple(dict.fromkeys(id_columns or ())),
        drop_missing=drop_missing,
        exposure=exposure,
        data_dir=data_dir,
        coverage=coverage,
        score=score,
        device=device,
        force=force,
    )
    predict_and_write(request, Terminal(quiet, json))
