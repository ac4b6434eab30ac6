"""Collect the public names: packages, signatures, command line, estimators."""

import inspect
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from typer.main import get_command

from tests.frozen.program import app

PACKAGES = (
    "directgp",
    "directgp.cli",
    "directgp.datasets",
    "directgp.datasets.streams",
    "directgp.diagnostics",
    "directgp.errors",
    "directgp.estimators",
    "directgp.experiments",
    "directgp.integration",
    "directgp.interop.botorch",
    "directgp.interop.gpytorch",
    "directgp.likelihoods",
    "directgp.log_expectations",
    "directgp.metrics",
    "directgp.objectives",
    "directgp.plots",
    "directgp.posteriors",
    "directgp.predictive",
    "directgp.processes",
    "directgp.reports",
    "directgp.shapes",
    "directgp.text",
    "directgp.training",
)
"""Public packages and modules; the others hold what users do not import."""

_PLAIN = (bool, int, float, str, Path, type(None))
_NO_BASES = ("object", "ABC", "Generic")

Document = dict[str, Any]


def describe_all() -> Document:
    """Return everything that is public, as a JSON document."""
    return {
        "packages": {name: _package(import_module(name)) for name in PACKAGES},
        "imported on first use": _lazy_names(),
        "commands": _commands(),
        "estimators": {model.__class__.__name__: _estimator(model) for model in _fitted()},
    }


# Packages.


def _package(package: ModuleType) -> Document:
    """Return each public name of a package with what is known of it."""
    return {name: _name(getattr(package, name)) for name in _names(package)}


def _lazy_names() -> list[str]:
    """Return what `import directgp` offers without having imported it."""
    code = "import directgp, json; print(json.dumps(sorted({*dir(directgp)} - {*vars(directgp)})))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    names: list[str] = json.loads(found.stdout)
    return names


def _names(package: ModuleType) -> list[str]:
    """Return `__all__`; without it, what the module itself defines."""
    if hasattr(package, "__all__"):
        names = list(package.__all__)
        assert len(names) == len(set(names)), f"{package.__name__}.__all__ repeats a name"
        return sorted(names)
    return sorted(
        name
        for name, value in vars(package).items()
        if not name.startswith("_")
        and (name.isupper() or getattr(value, "__module__", "") == package.__name__)
    )


def _name(value: Any) -> Any:
    if inspect.isclass(value):
        return _class(value)
    if callable(value) and not _is_type_alias(value):
        return {"call": _signature(value)}
    return {"value": _repr(value)}


def _is_type_alias(value: Any) -> bool:
    return type(value).__module__ == "typing"


def _class(found: type) -> Document:
    made: Document = {"bases": _bases(found)}
    # Python's own constructors differ between its versions.
    protocol = getattr(found, "_is_protocol", False)
    if not issubclass(found, BaseException | Enum) and not protocol:
        made["call"] = _signature(found)
    members = {name: _member(found, name) for name in _members(found)}
    return {**made, "members": members} if members else made


def _bases(found: type) -> list[str]:
    """Return base classes of other libraries, and those of directgp that are public errors."""
    return [
        base.__name__
        for base in found.__mro__[1:]
        if base.__name__ not in _NO_BASES
        and (not _is_ours(base) or base.__module__ == "directgp.errors")
    ]


def _members(found: type) -> list[str]:
    """Return the public members that a class of directgp defines."""
    ours = {name for base in found.__mro__ if _is_ours(base) for name in vars(base)}
    return sorted(name for name in ours if not name.startswith(("_", "model_config")))


def _is_ours(found: type) -> bool:
    return found.__module__.split(".")[0] == "directgp"


def _member(found: type, name: str) -> Any:
    for base in found.__mro__:
        if isinstance(vars(base).get(name), property):
            return "property"
    # Some of scikit-learn's are made when they are looked up.
    value = getattr(found, name)
    if isinstance(value, Enum):
        return {"value": repr(value.value)}
    if callable(value) and not inspect.isclass(value) and not _is_type_alias(value):
        return {"call": _signature(value)}
    return "attribute"


def _signature(value: Callable[..., Any]) -> list[str]:
    """Return the parameters as they are written in a call, without annotations."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        # Python has no signature of classes that are written in C.
        return ["…"]
    return list(_parameters(parameters))


def _parameters(parameters: Any) -> Iterator[str]:
    before = None
    for each in parameters:
        if before is each.POSITIONAL_ONLY and each.kind is not before:
            yield "/"
        if each.kind is each.KEYWORD_ONLY and before not in (
            each.KEYWORD_ONLY,
            each.VAR_POSITIONAL,
        ):
            yield "*"
        before = each.kind
        prefix = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f"={_repr(each.default)}"
        yield f"{prefix}{each.name}{default}"
    if before is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def _repr(value: Any) -> str:
    """Return the text of a plain value; of others only the class."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Path):
        return f"Path({value.as_posix()!r})"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple | list) and all(isinstance(each, _PLAIN) for each in value):
        return repr(value)
    if isinstance(value, dict):
        return f"dict of {sorted(map(str, value))}"
    if _is_type_alias(value):
        # An object in `Annotated` is shown with its address.
        return re.sub(r" object at 0x[0-9a-f]+", "", str(value))
    return f"<{type(value).__name__}>"


# The command line.


def _commands() -> Document:
    """Return every command with its options; the program's own options are under ""."""
    group: Any = get_command(app())
    commands = {"": group, **group.commands}
    return {name: [_option(each) for each in command.params] for name, command in commands.items()}


def _option(option: Any) -> Document:
    return {
        "kind": option.param_type_name,
        "names": [*option.opts],
        "off": [*option.secondary_opts],
        "default": _repr(option.default),
        "required": option.required,
        "multiple": getattr(option, "multiple", False),
        "flag": getattr(option, "is_flag", False),
        "type": _type(option.type_descriptor.annotation),
    }


def _type(annotation: Any) -> str:
    """Return the name of a class, or the text of an annotation such as a `Literal`."""
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


# Estimators.


def _fitted() -> list[Any]:
    """Return one small fitted estimator of each kind."""
    from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor

    random = np.random.default_rng(0)
    X = random.normal(size=(24, 2))
    f = np.sin(X[:, 0])
    light: dict[str, Any] = {
        "beta": 1.0,
        "hyperparameters": "joint",
        "ard": False,
        "num_inducing": 4,
        "max_iter": 3,
        "random_state": 0,
    }
    with warnings.catch_warnings():
        # Three steps are too few to converge.
        warnings.simplefilter("ignore")
        return [
            SparseGPRegressor(likelihood="gaussian", **light).fit(X, f),
            SparseGPClassifier(**light).fit(X, np.where(f > 0, "yes", "no")),
            SparseGPCountRegressor(likelihood="poisson", **light).fit(X, np.round(np.exp(1 + f))),
        ]


def _estimator(model: Any) -> Document:
    params = type(model)().get_params()
    return {
        "params": {name: _repr(value) for name, value in params.items()},
        "fitted": fitted_attributes(model),
        "methods": _members(type(model)),
    }


def fitted_attributes(model: Any) -> list[str]:
    """Return the public attributes that a fit has set."""
    params = model.get_params()
    return sorted(name for name in vars(model) if name[0] != "_" and name not in params)
