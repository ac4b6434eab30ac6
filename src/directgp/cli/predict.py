"""`directgp predict`: what may be typed, and what is refused before any work is done."""

from pathlib import Path
from typing import Annotated

import typer

from directgp.cli.options import (
    DATA,
    OUTPUT,
    DataArgument,
    DataDir,
    Debug,
    Device,
    DropMissing,
    Force,
    Json,
    ModelArgument,
    Quiet,
)
from directgp.cli.terminal import Terminal, WrongUsageError

SUFFIXES = (".parquet", ".csv", ".tsv", ".feather", ".csv.gz", ".tsv.gz")


def predict(
    model: ModelArgument,
    data: DataArgument,
    *,
    id_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Keep this column beside the predictions; may be repeated.",
            rich_help_panel=DATA,
        ),
    ] = None,
    drop_missing: DropMissing = False,
    exposure: Annotated[
        str | None,
        typer.Option(
            "--exposure",
            metavar="COLUMN",
            help="What counts are counted over; as in training unless given.",
            rich_help_panel=DATA,
        ),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help=f"Where the predictions go: {', '.join(SUFFIXES)}.",
            rich_help_panel=OUTPUT,
        ),
    ],
    coverage: Annotated[
        float,
        typer.Option(
            "--coverage",
            metavar="SHARE",
            help="Probability of the intervals, between 0 and 1.",
            rich_help_panel=OUTPUT,
        ),
    ] = 0.9,
    score: Annotated[
        bool,
        typer.Option(
            "--score/--no-score",
            metavar="",
            help="Judge the predictions where DATA has the target.",
            rich_help_panel=OUTPUT,
        ),
    ] = True,
    device: Device = "auto",
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict the rows of a table with a model."""
    _check_suffix(out)
    _check_coverage(coverage)

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


def _check_suffix(out: Path) -> None:
    if not out.name.lower().endswith(SUFFIXES):
        allowed = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise WrongUsageError(f"--out must be a file that ends in {allowed}. Got {str(out)!r}.")


def _check_coverage(coverage: float) -> None:
    if not 0 < coverage < 1:
        raise WrongUsageError(f"--coverage must be between 0 and 1. Got {coverage:g}.")
