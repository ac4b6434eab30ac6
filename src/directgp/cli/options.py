"""Define options that several commands share, and validate their values."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import Signature, signature
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, final, get_args

import typer

from directgp import registry
from directgp.cli.terminal import HELP, WrongUsageError, output_option, panel
from directgp.errors import InvalidInputError
from directgp.registry import Task, likelihoods_of
from directgp.text import joined

DeviceName = Literal["auto", "cpu", "cuda"]

data_option = panel("Data")

model_option = panel("Model")


def checked(option: str, allowed: str, test: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Return a callback that raises `WrongUsageError` for values that are not allowed."""

    def check(value: Any) -> Any:
        if value is not None and not test(value):
            raise WrongUsageError(f"{option} must be {allowed}. Got {value:.15g}.")
        return value

    return check


MAX_REPEATS = 1_000
"""Largest number of repeats; with 1,000 the standard error is 3 % of the standard deviation."""

MAX_STEPS = 10**9
"""Largest number of steps of a run; 10⁹ steps take weeks."""

_MAX_JOBS = 1_000
"""Processes: more than a machine has cores."""

_MAX_WHOLE = 10**9
"""Inducing inputs or rows: more do not fit in any memory."""


def count_checked(option: str, most: int) -> Callable[[Any], Any]:
    """Return a callback that raises `WrongUsageError` for numbers that are not from 1 to `most`."""
    return checked(option, f"from 1 to {most:,}", lambda value: 1 <= value <= most)


_check_seed = checked("--seed", "from 0 to 2³² − 1", lambda seed: 0 <= seed < 2**32)

DataArgument = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A file, or the name of a data set.", show_default=False),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The folder of a model.", show_default=False)
]
Force = Annotated[bool, output_option("", "Replace the output if it exists.", "--force")]
Seed = Annotated[int, model_option("NUMBER", "Random seed.", callback=_check_seed)]
Device = Annotated[DeviceName, model_option("NAME", f"{joined(get_args(DeviceName), 'or')}.")]
Kernel = Annotated[str, model_option("NAME|TEXT", HELP["data"]["kernel"])]
Inducing = Annotated[str, model_option("auto|NUMBER", "Number of inducing inputs.")]


def time_budget_option(option: Callable[..., Any], text: str) -> Any:
    """Return the option ``--time-budget``, in the panel of the given option."""
    check = checked("--time-budget", "positive and finite", lambda value: 0 < value < inf)
    return option("SECONDS", text, callback=check)


MaxIter = Annotated[
    int | None,
    model_option(
        "NUMBER", "Maximum steps of one run.", callback=count_checked("--max-iter", MAX_STEPS)
    ),
]
DataDir = Annotated[Path | None, data_option("FOLDER", HELP["data"]["data_dir"])]


def jobs_option(option: Callable[..., Any], text: str) -> Any:
    """Return the option ``--jobs``, in the panel of the given option."""
    return option("NUMBER", text, "--jobs", "-j", callback=count_checked("--jobs", _MAX_JOBS))


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The options that say how a file is found and read."""

    decimal: Annotated[
        Literal[".", ","] | None, data_option("MARK", "Decimal mark of numbers; guessed.")
    ] = None
    thousands: Annotated[
        Literal[".", ",", " ", "'"] | None, data_option("MARK", HELP["data"]["thousands"])
    ] = None
    encoding: Annotated[str | None, data_option("NAME", HELP["data"]["encoding"])] = None
    sheet: Annotated[str | None, data_option("NAME", HELP["data"]["sheet"])] = None
    header: Annotated[
        bool | None, data_option("", HELP["data"]["header"], "--header/--no-header")
    ] = None
    data_dir: DataDir = None

    @property
    def reading(self) -> Any:
        """How to read the file, from the options."""
        from directgp.datasets.dialect import Reading

        header = self.header is not False
        return Reading(self.decimal, self.thousands, self.encoding, self.sheet, header)


@final
@dataclass(frozen=True)
class DataOptions(FileOptions):
    """The options that describe the data to train on."""

    data: DataArgument
    target: Annotated[str | None, data_option("COLUMN", HELP["data"]["target"])] = None
    task: Annotated[
        Task | None,
        data_option("TASK", f"{joined(get_args(Task), 'or')}; guessed from the target by default."),
    ] = None
    drop: Annotated[list[str] | None, data_option("COLUMN,…", HELP["data"]["drop"])] = None
    categories: Annotated[list[str] | None, data_option("COLUMN,…", HELP["data"]["categories"])] = (
        None
    )
    columns: Annotated[list[str] | None, data_option("NAME=KIND,…", HELP["data"]["columns"])] = None
    missing: Annotated[registry.Missing, data_option("NAME", HELP["data"]["missing"])] = "error"
    drop_missing: Annotated[
        bool, data_option("", "The same as --missing drop.", "--drop-missing")
    ] = False
    dates: Annotated[registry.Dates, data_option("NAME", HELP["data"]["dates"])] = "error"
    positive: Annotated[str | None, data_option("LABEL", HELP["data"]["positive"])] = None

    @property
    def policy(self) -> registry.Missing:
        """What to do with missing values."""
        return "drop" if self.drop_missing and self.missing == "error" else self.missing

    def with_options(self, changes: Mapping[str, Sequence[str]]) -> "DataOptions":
        """Return the options with others on the command line after them."""
        new: dict[str, Any] = {}
        for option, values in changes.items():
            name = option.removeprefix("--").replace("-", "_")
            if option == "--no-header":
                new["header"] = False
            else:
                several = name in ("drop", "categories", "columns")
                new[name] = [*(getattr(self, name) or ()), *values] if several else values[0]
        return replace(self, **new)

    def words(self) -> list[str]:
        """Return the command-line words of the options that were given, without the task."""
        words = [self.data]
        for option_field in fields(self):
            value = getattr(self, option_field.name)
            option = f"--{option_field.name.replace('_', '-')}"
            if option_field.name in ("data", "task") or value == option_field.default:
                continue
            if isinstance(value, bool):
                words.append(option if value else option.replace("--", "--no-"))
            else:
                several = value if isinstance(value, list) else [str(value)]
                words += [word for one in several for word in (option, one)]
        return words


@final
@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """The columns with a constant for each row; a likelihood uses at most one."""

    exposure: Annotated[str | None, data_option("COLUMN", HELP["rows"]["exposure"])] = None
    trials: Annotated[str | None, data_option("COLUMN", HELP["rows"]["trials"])] = None
    noise: Annotated[str | None, data_option("COLUMN", HELP["rows"]["noise"])] = None
    upper: Annotated[str | None, data_option("COLUMN", HELP["rows"]["upper"])] = None

    @property
    def column(self) -> tuple[str, str] | None:
        """The constant that is given, and its column; raise `WrongUsageError` for two."""
        constants = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name)]
        if len(constants) > 1:
            names = " and ".join(f"--{name}" for name, _ in constants)
            raise WrongUsageError(f"{names} must be given one at a time. Got all of them.")
        return constants[0] if constants else None


def split_names(texts: Sequence[str] | None, column_names: Collection[str] = ()) -> list[str]:
    """Return names that were given one by one or with commas; a known name may have commas."""
    return [
        name
        for text in texts or ()
        for name in ([text] if text in column_names else map(str.strip, text.split(",")))
        if name
    ]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer in which the fields of dataclass parameters are options.

    The function is called with instances of these dataclasses.
    """
    groups: dict[str, tuple[type, list[str]]] = {}
    hints: dict[str, Any] = {}
    parameters = []
    for name, parameter in signature(function).parameters.items():
        kind = parameter.annotation
        members = [parameter]
        if isinstance(kind, type) and is_dataclass(kind):
            members = list(signature(kind).parameters.values())
            groups[name] = (kind, [member.name for member in members])
        parameters += [member.replace(kind=member.KEYWORD_ONLY) for member in members]
        hints |= {member.name: member.annotation for member in members}

    def run(**arguments: Any) -> None:
        for name, (kind, members) in groups.items():
            arguments[name] = kind(**{member: arguments.pop(member) for member in members})
        function(**arguments)

    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    run.__annotations__ = hints
    # Typer reads the options by `inspect.signature`, which takes this attribute.
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


LIKELIHOOD_NAMES = ", ".join(" or ".join(likelihoods_of(task)) for task in get_args(Task))


def check_name(option: str, name: str | None, names: Sequence[str]) -> None:
    """Raise `WrongUsageError` if the name is unknown."""
    if name is not None and name not in names:
        raise WrongUsageError(f"{option} must be one of {', '.join(names)}. Got {name!r}.")


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn `InvalidInputError` on an argument into `WrongUsageError` on the option of its name."""
    try:
        yield
    except InvalidInputError as error:
        raise WrongUsageError(f"--{error}") from error


def whole_number(option: str, text: str, allowed: str = "'auto' or a whole number") -> int:
    """Return a whole number from 1 to 10⁹; raise `WrongUsageError` for other text."""
    is_short = text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_WHOLE))
    if not (is_short and 1 <= int(text) <= _MAX_WHOLE):
        raise WrongUsageError(f"{option} must be {allowed} from 1 to {_MAX_WHOLE:,}. Got {text!r}.")
    return int(text)


def weight(option: str, text: str, allowed: str = "'auto' or a number") -> float:
    """Return a finite β of at least 0; raise `WrongUsageError` for other text."""
    return _real(option, text, f"{allowed} of at least 0", lambda value: 0 <= value < inf)


def share(option: str, text: str) -> float:
    """Return a number between 0 and 1; raise `WrongUsageError` for other text."""
    return _real(option, text, "numbers between 0 and 1", lambda value: 0 < value < 1)


def _real(option: str, text: str, allowed: str, is_allowed: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not is_allowed(value):
        raise WrongUsageError(f"{option} must be {allowed}. Got {text!r}.")
    return value


def listed(option: str, text: str | None, parse: Callable[[str, str], Any]) -> tuple[Any, ...]:
    """Parse each text of an option, split at commas, without repetitions."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise WrongUsageError(f"{option} must name at least one. Got none.")
    return tuple(dict.fromkeys(parse(option, part) for part in parts))


def check_task(data: DataOptions, row_column: tuple[str, str] | None = None) -> None:
    """Raise `WrongUsageError` if an option belongs to another task, or two exclude each other."""
    if data.drop_missing and data.missing not in ("error", "drop"):
        raise WrongUsageError(
            f"--missing {data.missing} and --drop-missing cannot be given together. Leave one out."
        )
    required = [("--positive", "classification")] if data.positive is not None else []
    if row_column is not None:
        required.append((f"--{row_column[0]}", registry.ROW_CONSTANTS[row_column[0]].task))
    for option, needed in required:
        if data.task not in (None, needed):
            raise WrongUsageError(
                f"{option} must be given with --task {needed} only. "
                f"Got --task {data.task}. Leave one"
                " out."
            )
