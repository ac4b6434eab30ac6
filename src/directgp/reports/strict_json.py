"""JSON that every reader takes."""

import json
import math
from typing import Any


def strict_json(document: Any) -> bytes:
    """Strict JSON; what is not finite is null."""
    return json.dumps(_strict(document), ensure_ascii=False, indent=1, allow_nan=False).encode()


def _strict(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _strict(each) for key, each in value.items()}
    return [_strict(each) for each in value] if isinstance(value, list | tuple) else value
