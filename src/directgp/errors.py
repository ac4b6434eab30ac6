"""One error tree, and the sentence every refusal is written in.

A refusal says who speaks, what is allowed, what came, and what to do.
"""

from typing import NoReturn


class DirectGPError(Exception):
    """Base of every error raised on purpose by directgp."""


class InvalidInputError(DirectGPError, ValueError):
    """An argument or a data value is not allowed."""


class UnsupportedError(DirectGPError, TypeError):
    """A rule or a loss was asked for a likelihood that lacks what it needs."""


class NumericalError(DirectGPError, ArithmeticError):
    """A computation could not be carried out in the given precision."""


class CheckpointError(DirectGPError, OSError):
    """A checkpoint could not be written or read, or is not what it claims to be."""


class ModelFileError(DirectGPError, OSError):
    """A model file could not be written or read, or is not what it claims to be."""


class StoreError(DirectGPError, OSError):
    """A store of finished fits could not be written or read, or is not what it claims to be."""


class LostProcessError(DirectGPError, RuntimeError):
    """One of the processes that train together is gone, or did not answer in time."""

    def add(self, sentence: str) -> None:
        """Say one thing more."""
        self.args = (f"{self} {sentence}",)


class DirectGPWarning(UserWarning):
    """Something that training found and a user should know."""


def refuse(who: str, allowed: str, got: object, remedy: str = "") -> NoReturn:
    """Raise `InvalidInputError`: ``{who} must be {allowed}. Got {got}. {remedy}``."""
    raise InvalidInputError(f"{who} must be {allowed}. Got {got}. {remedy}".rstrip())


def require(condition: bool, who: str, allowed: str, got: object, remedy: str = "") -> None:
    """`refuse` unless the condition holds."""
    if not condition:
        refuse(who, allowed, got, remedy)
