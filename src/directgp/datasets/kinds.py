"""What a column holds: numbers, categories, times, or something that cannot be used."""

from typing import Literal

import pyarrow as pa

Kind = Literal["number", "category", "time", "nothing", "other"]


def kind_of(kind: pa.DataType) -> Kind:
    """What a column of this type holds."""
    types = pa.types
    if types.is_null(kind):
        return "nothing"
    if types.is_boolean(kind) or _is_number(kind):
        return "number"
    if types.is_dictionary(kind):
        return "category" if kind_of(kind.value_type) in ("number", "category") else "other"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "category"
    return "time" if types.is_temporal(kind) else "other"


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
