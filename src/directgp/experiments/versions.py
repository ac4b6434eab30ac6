"""Versions of what decides the numbers."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = ("directgp", "torch", "gpytorch", "numpy", "scipy", "scikit-learn")


def _version_of(library: str) -> str:
    """Of a library; a source tree that is not installed has none."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


@cache
def versions() -> dict[str, str]:
    """Of Python and the libraries."""
    return {"python": platform.python_version(), **{n: _version_of(n) for n in _LIBRARIES}}
