"""Check annotations once for each combination of shapes in a test file, not at each call.

Checking every call of a training loop takes longer than the loop: the same function, called with
arguments of the same types and shapes, is passed over until the next file begins.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any

import jaxtyping
import numpy as np
import torch
from jaxtyping import config

_CHECK_EACH_CALL = jaxtyping.jaxtyped
_SEEN: set[Hashable] = set()

_ARRAYS = torch.Tensor, np.ndarray
_VALUES = bool, int, str, type(None)


def check_each_combination_once() -> None:
    """For what is imported from now on."""
    jaxtyping.jaxtyped = checked_once  # type: ignore[assignment]


def forget() -> None:
    """Every combination is new again."""
    _SEEN.clear()


def checked_once(fn: Any = None, *, typechecker: Any) -> Any:
    """Takes the place of `jaxtyping.jaxtyped`, which jaxtyping's import hook puts on everything."""
    if fn is None:
        return functools.partial(checked_once, typechecker=typechecker)
    if inspect.isclass(fn):
        return _with_checked_fields(fn, typechecker)
    if not inspect.isfunction(fn) or inspect.isgeneratorfunction(fn):
        return _CHECK_EACH_CALL(fn, typechecker=typechecker)
    return _once(fn, typechecker)


def _with_checked_fields(cls: type, typechecker: Any) -> type:
    if dataclasses.is_dataclass(cls) and "__init__" in vars(cls):
        setattr(cls, "__init__", _once(vars(cls)["__init__"], typechecker))  # noqa: B010
    return cls


def _once(fn: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    # Beartype compiles each function: only those that are called, but names that are written as
    # strings are looked up while the class is made, as jaxtyping does it.
    @functools.cache
    def checked() -> Callable[..., Any]:
        made: Callable[..., Any] = _CHECK_EACH_CALL(fn, typechecker=typechecker)
        return made

    if any(isinstance(annotation, str) for annotation in fn.__annotations__.values()):
        checked()

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return fn(*args, **kwargs)
        combination = (fn, *map(_kind, args), *((k, _kind(v)) for k, v in kwargs.items()))
        if combination in _SEEN:
            return fn(*args, **kwargs)
        result = checked()(*args, **kwargs)
        _SEEN.add(combination)
        return result

    return wrapped


def _kind(value: Any) -> Hashable:
    """Type and shapes of a value and of the arrays it holds; small values as they are."""
    kind = type(value)
    if kind is float:
        return (kind,)
    if kind in _VALUES:
        return kind, value
    if isinstance(value, _ARRAYS):
        return kind, value.shape, value.dtype
    if isinstance(value, tuple | list):
        return kind, *map(_kind, value)
    held = getattr(value, "__dict__", {})
    if isinstance(value, torch.nn.Module):
        held = held.get("_parameters", {})
    return kind, *(_kind(each) for each in held.values() if isinstance(each, _ARRAYS))
