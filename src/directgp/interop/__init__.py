"""Adapters to GPyTorch and BoTorch, imported on first use."""

from importlib import import_module
from typing import Any

_LIBRARIES = ("botorch", "gpytorch")


def __getattr__(name: str) -> Any:
    if name not in _LIBRARIES:
        raise AttributeError(f"module 'directgp.interop' has no attribute {name!r}")
    return import_module(f"directgp.interop.{name}")
