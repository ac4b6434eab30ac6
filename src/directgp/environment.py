"""Describe the libraries, the machine and the cores that this process uses."""

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = ("directgp", "torch", "gpytorch", "numpy", "scipy", "scikit-learn")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect the numbers."""
    by_name = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            by_name[library] = version(library)
        except PackageNotFoundError:
            # A source tree that is not installed.
            by_name[library] = "not installed"
    return by_name


def machine() -> str:
    """Return the operating system and the processor: ``Linux x86_64``."""
    return f"{platform.system()} {platform.machine()}"


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
