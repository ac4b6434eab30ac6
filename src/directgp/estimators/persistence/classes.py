"""The labels of a classifier, as a spec."""

from typing import Any

import numpy as np

from directgp.errors import ModelFileError, UnsupportedError
from directgp.estimators.persistence.schema import ClassesSpec

_TYPES: dict[str, type[Any]] = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": str}


def classes_spec(labels: list[Any] | None, dtype: str | None) -> ClassesSpec | None:
    """What rebuilds the labels."""
    if labels is None:
        return None
    kind = np.dtype(dtype)
    if dtype is None or kind.kind not in _TYPES or not _of_kind(labels, kind.kind):
        raise UnsupportedError(
            f"Classes of dtype {dtype} cannot be saved. Those that can are bools, integers, floats"
            " and strings."
        )
    return ClassesSpec(dtype=kind.str, labels=labels)


def load_classes(spec: ClassesSpec | None) -> tuple[list[Any] | None, str | None]:
    """The labels and their dtype, which holds them exactly."""
    if spec is None:
        return None, None
    dtype = np.dtype(spec.dtype)
    if (
        not _of_kind(spec.labels, dtype.kind)
        or np.array(spec.labels, dtype).tolist() != spec.labels
    ):
        raise ModelFileError(f"its classes are not of dtype {spec.dtype}")
    return spec.labels, spec.dtype


def _of_kind(labels: list[Any], kind: str) -> bool:
    return all(type(label) is _TYPES[kind] for label in labels)
