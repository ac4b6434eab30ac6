"""Define the errors, and the form of their messages.

A message says what is wrong, what is allowed, what was given, and what to do.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, NoReturn

from directgp.text import first_problems, joined, visible

__all__ = [
    "CheckpointError",
    "DirectGPError",
    "DirectGPWarning",
    "InvalidInputError",
    "InvalidTableError",
    "LostProcessError",
    "MissingExtraError",
    "ModelFileError",
    "NumericalError",
    "StoreError",
    "TableProblem",
    "UnsupportedError",
    "cause_of",
    "refuse",
    "require",
    "require_all",
    "require_extra",
]


class DirectGPError(Exception):
    """Base class of all errors that directgp raises on purpose."""

    def __init__(self, *args: object) -> None:
        # Messages name columns and files, whose names may hold codes of a terminal.
        super().__init__(*(visible(a, keep="\n") if isinstance(a, str) else a for a in args))


class InvalidInputError(DirectGPError, ValueError):
    """An argument or a data value is not allowed."""

    rule = ""
    """The first sentence of the message, if it tells what is wrong without value and place."""


class TableProblem(NamedTuple):
    """A problem of a table, which a change of the table or an option solves."""

    sentence: str
    """Description of the problem."""

    options: Mapping[str, Sequence[str]] = {}
    """Options of the command line that solve the problem, with their values."""


class InvalidTableError(InvalidInputError):
    """A table cannot be used as it is; all its problems are in one message."""

    def __init__(self, problems: Sequence[TableProblem]) -> None:
        super().__init__(" ".join(first_problems([problem.sentence for problem in problems])))
        self.problems = tuple(problems)
        self.options: dict[str, tuple[str, ...]] | None = None
        self.instead: list[str] = []
        """Options with which the command works, or words of another command that works."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the problems: by default the message would be the argument."""
        return type(self), (self.problems,), self.__dict__


class UnsupportedError(DirectGPError, TypeError):
    """A rule or a loss does not support the likelihood."""


class NumericalError(DirectGPError, ArithmeticError):
    """A computation failed in the given precision."""


class CheckpointError(DirectGPError, OSError):
    """A checkpoint could not be written or read, or has wrong contents."""


class ModelFileError(DirectGPError, OSError):
    """A model file could not be written or read, or has wrong contents."""


class StoreError(DirectGPError, OSError):
    """A store of finished fits could not be written or read, or has wrong contents."""


class LostProcessError(DirectGPError, RuntimeError):
    """A process of distributed training ended, or did not answer in time."""

    def add(self, sentence: str) -> None:
        """Add a sentence to the message."""
        self.args = (f"{self} {sentence}",)


class MissingExtraError(DirectGPError, ImportError):
    """A library of an optional extra is not installed."""

    def __init__(self, who: str, library: str, extra: str) -> None:
        super().__init__(f"{who} needs {library}. Run: pip install 'directgp[{extra}]'.")
        self._arguments = (who, library, extra)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: by default the message would be the only one."""
        return type(self), self._arguments, self.__dict__


class DirectGPWarning(UserWarning):
    """A warning about training that the user should read."""


_MAX_CAUSE = 300
"""Characters of a cause in an error message."""


def cause_of(error: Exception) -> str:
    """Return the cause of an error in a short phrase; for an invalid record, its first fault."""
    from pydantic import ValidationError  # 50 ms that `directgp --help` does not need

    text = str(error) or type(error).__name__
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        text = ": ".join(filter(None, (".".join(map(str, first["loc"][:8])), first["msg"])))
    # Cut first: a text of a file may be large.
    short = " ".join(text[: 2 * _MAX_CAUSE].split())
    return (short if len(short) <= _MAX_CAUSE else f"{short[:_MAX_CAUSE]}…").rstrip(".")


def require_extra(who: str, extra: str, *libraries: str) -> None:
    """Raise `MissingExtraError` unless these libraries of an optional extra are installed."""
    missing = [library for library in libraries if find_spec(library) is None]
    if missing:
        raise MissingExtraError(who, joined(missing), extra)


def refuse(who: str, allowed: str, got: object, remedy: str = "") -> NoReturn:
    """Raise `InvalidInputError`: ``{who} must be {allowed}. Got {got}. {remedy}``."""
    rule = f"{who} must be {allowed}."
    error = InvalidInputError(f"{rule} Got {got}. {remedy}".rstrip())
    error.rule = rule
    raise error


def require(condition: bool, who: str, allowed: str, got: object, remedy: str = "") -> None:
    """Raise `InvalidInputError`, as `refuse` does, unless the condition holds."""
    if not condition:
        refuse(who, allowed, got, remedy)


def require_all(mask: Any, values: Any, who: str, allowed: str, remedy: str = "") -> None:
    """Raise `InvalidInputError` with value and index of the first element whose mask is False.

    Mask and values are tensors; this module imports no torch.
    """
    if bool(mask.all()):
        return
    bad = (~mask).nonzero()
    first = tuple(bad[0].tolist())
    index = first[0] if len(first) == 1 else first
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    refuse(who, allowed, f"{values[first].item()!r} at index {index}{others}", remedy)
