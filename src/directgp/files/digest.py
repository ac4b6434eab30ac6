"""What a file keeps of tensors and plain values, and a sha256 over it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from directgp.errors import refuse, require

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 of a text and of tensors on the CPU, each part announced by its length."""
    sha = hashlib.sha256()
    parts = [text]
    for name in sorted(tensors):
        parts += [name, str(tensors[name].dtype), str(list(tensors[name].shape))]
    sha.update(json.dumps(parts).encode())
    for name in sorted(tensors):
        # Flat first: a scalar cannot be viewed as bytes.
        sha.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def on_cpu(name: str, tensor: Tensor) -> Tensor:
    """The tensor's values, contiguous on the CPU."""
    allowed = tensor.layout == torch.strided and tensor.dtype in DTYPES
    require(
        allowed,
        f"tensor {name!r}",
        "dense, of a bool, integer or floating dtype",
        f"{tensor.layout}, {tensor.dtype}",
    )
    values = tensor.detach().cpu().contiguous()
    # A single number counts as contiguous whatever its stride, and cannot be viewed as bytes then.
    return values.clone(memory_format=torch.contiguous_format) if values.numel() == 1 else values


def as_json(value: Any, where: str, tuples: bool = False) -> Any:
    """The value itself, refused unless JSON gives it back as it was."""
    if isinstance(value, dict):
        keys = [key for key in value if not isinstance(key, str)]
        require(not keys, f"keys of {where}", "strings", keys)
        return {key: as_json(item, f"{where}[{key!r}]", tuples) for key, item in value.items()}
    if isinstance(value, list) or (tuples and isinstance(value, tuple)):
        return [as_json(item, f"{where}[{i}]", tuples) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    refuse(
        where,
        "None, a bool, number or string, or a list or dict of these",
        f"a {type(value).__name__}",
        "Convert it first; tensors go by names of their own.",
    )
