"""A call that fails leaves an estimator as it was."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchanged_on_error(estimator: object) -> Iterator[None]:
    """Take attributes back that were set before something was raised."""
    before = vars(estimator).copy()
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
