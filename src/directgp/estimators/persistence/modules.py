"""A module and its tensors: what is held fixed, and how the tensors are put back."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from directgp.errors import ModelFileError, UnsupportedError

_BOUNDS = ("_constraint.lower_bound", "_constraint.upper_bound")


def frozen_names(module: nn.Module, who: str) -> list[str]:
    """The parameters that ask for no gradient."""
    named = list(module.named_parameters(remove_duplicate=False))
    if len(named) != len(list(module.parameters())):
        raise UnsupportedError(
            f"A {who} whose parts share parameters cannot be saved: the sharing would be lost."
            " Use copies of the parts."
        )
    return [name for name, parameter in named if not parameter.requires_grad]


def fill(module: nn.Module, tensors: Mapping[str, Tensor], frozen: Iterable[str], who: str) -> None:
    """Put copies of the tensors in the place of the module's own, whose shapes they must have."""
    own = module.state_dict()
    _same_names(own, tensors, who)
    for name, tensor in tensors.items():
        _fits(f"{name} of the {who}", tensor, own[name])
    # A copy is aligned as memory usually is, and sums depend on it in the last bit.
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    module.load_state_dict(copies, strict=True, assign=True)
    hold(module, frozen, who)


def hold(module: nn.Module, frozen: Iterable[str], who: str) -> None:
    """Let the named parameters, and no others, ask for no gradient."""
    parameters = dict(module.named_parameters())
    held = set(frozen)
    if not held <= parameters.keys():
        raise ModelFileError(f"the {who} holds parameters that it does not have")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in held)


def require_finite(name: str, tensor: Tensor) -> None:
    """Refuse what no model can compute with."""
    if not bool(torch.isfinite(tensor).all()):
        raise ModelFileError(f"{name} must be finite, and holds NaN or infinity")


def _same_names(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], who: str) -> None:
    if own.keys() != tensors.keys():
        missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        raise ModelFileError(
            f"the {who} lacks tensors or has too many (missing {missing[:3]}, extra {extra[:3]})"
        )


def _fits(name: str, tensor: Tensor, own: Tensor) -> None:
    if tensor.shape != own.shape:
        raise ModelFileError(f"{name} has shape {list(tensor.shape)} for {list(own.shape)}")
    if tensor.is_floating_point() != own.is_floating_point():
        raise ModelFileError(f"{name} cannot be of {tensor.dtype}")
    # Of bounds infinity is allowed, and their own check has been passed.
    if not name.split(" ")[0].endswith(_BOUNDS):
        require_finite(name, tensor)
