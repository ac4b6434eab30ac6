"""Distributions without torch's checks of their arguments, for a while.

Quadrature looks far out, where a parameter may underflow to 0: what is wrong there weighs nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from torch.distributions import Distribution

_LOCK = Lock()
_DEPTH = 0
_DEFAULT = True


@contextmanager
def unvalidated() -> Iterator[None]:
    """Several at once are as one: the last to end restores what the first has found."""
    global _DEPTH, _DEFAULT
    with _LOCK:
        if _DEPTH == 0:
            _DEFAULT = Distribution._validate_args
        _DEPTH += 1
        Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH -= 1
            if _DEPTH == 0:
                Distribution.set_default_validate_args(_DEFAULT)
