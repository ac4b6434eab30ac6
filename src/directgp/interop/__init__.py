"""directgp inside other libraries, GPyTorch and BoTorch, which are imported when asked for."""

from importlib import import_module
from typing import Any

__all__ = ["botorch", "gpytorch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'directgp.interop' has no attribute {name!r}")
    return import_module(f"directgp.interop.{name}")
