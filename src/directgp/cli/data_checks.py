"""What is refused of the options that name columns, before the data are read."""

from collections.abc import Mapping, Sequence

from directgp.cli.errors import WrongUsageError


def check_task(task: str | None, positive: str | None, exposure: str | None = None) -> None:
    """Refuse options that belong to another task."""
    for option, value, own in (
        ("--positive", positive, "classification"),
        ("--exposure", exposure, "count"),
    ):
        if value is not None and task not in (None, own):
            raise WrongUsageError(
                f"{option} must be given with --task {own} only. Got --task {task}. Leave one out."
            )


def check_columns(roles: Mapping[str, Sequence[str | None] | None]) -> None:
    """Refuse a column that is to be two things at once."""
    taken: dict[str, str] = {}
    for option, columns in roles.items():
        for column in dict.fromkeys(each for each in columns or () if each is not None):
            if column in taken:
                raise WrongUsageError(
                    f"{taken[column]} and {option} must name different columns."
                    f" Got {column!r} for both."
                )
            taken[column] = option
