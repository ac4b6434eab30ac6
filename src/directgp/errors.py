"""One error tree, and the sentence every refusal is written in.

A refusal says who speaks, what is allowed, what came, and what to do.
"""

from typing import NoReturn

import torch
from torch import Tensor


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


class DirectGPWarning(UserWarning):
    """Something that training found and a user should know."""


def refuse(who: str, allowed: str, got: object, remedy: str = "") -> NoReturn:
    """Raise `InvalidInputError`: ``{who} must be {allowed}. Got {got}. {remedy}``."""
    raise InvalidInputError(f"{who} must be {allowed}. Got {got}. {remedy}".rstrip())


def require(condition: bool, who: str, allowed: str, got: object, remedy: str = "") -> None:
    """`refuse` unless the condition holds."""
    if not condition:
        refuse(who, allowed, got, remedy)


def require_all(mask: Tensor, values: Tensor, who: str, allowed: str, remedy: str = "") -> None:
    """Refuse the first value whose mask is False, naming its value and index."""
    if bool(mask.all()):
        return
    bad = torch.nonzero(~mask)
    first = tuple(bad[0].tolist())
    index = first[0] if len(first) == 1 else first
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    refuse(who, allowed, f"{values[first].item()!r} at index {index}{others}", remedy)
