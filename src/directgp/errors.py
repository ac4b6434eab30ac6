"""Define the errors, and the form of their messages.

A message says what is wrong, what is allowed, what was given, and what to do.
"""

from typing import Any, NoReturn


class DirectGPError(Exception):
    """Base class of all errors that directgp raises on purpose."""


class InvalidInputError(DirectGPError, ValueError):
    """An argument or a data value is not allowed."""


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


class DirectGPWarning(UserWarning):
    """A warning about training that the user should read."""


def refuse(who: str, allowed: str, got: object, remedy: str = "") -> NoReturn:
    """Raise `InvalidInputError`: ``{who} must be {allowed}. Got {got}. {remedy}``."""
    raise InvalidInputError(f"{who} must be {allowed}. Got {got}. {remedy}".rstrip())


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
