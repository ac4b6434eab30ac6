"""gpytorch kernels as specs: trees built from a fixed table of classes."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from gpytorch import kernels
from gpytorch.kernels import Kernel
from torch import Tensor

from directgp.errors import ModelFileError, UnsupportedError
from directgp.estimators.persistence.constraints import constrain, constraint_names
from directgp.estimators.persistence.modules import fill
from directgp.estimators.persistence.schema import KernelSpec
from directgp.training.journal import under

MAX_KERNELS = 100


class _Row(NamedTuple):
    """How a class is called."""

    make: type[Any]
    options: tuple[str, ...] = ("ard_num_dims",)
    parts: str = ""
    """Where the kernels inside it are: one of its own name, or a list."""


KERNELS: dict[str, _Row] = {
    "AdditiveKernel": _Row(kernels.AdditiveKernel, (), "kernels"),
    "ConstantKernel": _Row(kernels.ConstantKernel, ()),
    "CosineKernel": _Row(kernels.CosineKernel),
    "LinearKernel": _Row(kernels.LinearKernel),
    "MaternKernel": _Row(kernels.MaternKernel, ("nu", "ard_num_dims")),
    "PeriodicKernel": _Row(kernels.PeriodicKernel),
    "PiecewisePolynomialKernel": _Row(kernels.PiecewisePolynomialKernel, ("q", "ard_num_dims")),
    "PolynomialKernel": _Row(kernels.PolynomialKernel, ("power", "ard_num_dims")),
    "ProductKernel": _Row(kernels.ProductKernel, (), "kernels"),
    "RBFKernel": _Row(kernels.RBFKernel),
    "RQKernel": _Row(kernels.RQKernel),
    "ScaleKernel": _Row(kernels.ScaleKernel, ("ard_num_dims",), "base_kernel"),
    "SpectralMixtureKernel": _Row(kernels.SpectralMixtureKernel, ("num_mixtures", "ard_num_dims")),
}


def kernel_spec(kernel: Kernel) -> KernelSpec:
    """What rebuilds a kernel, beside its state."""
    kind = type(kernel).__name__
    row = KERNELS.get(kind)
    if row is None or row.make is not type(kernel):
        raise UnsupportedError(
            f"The kernel {kind} cannot be saved. Those that can are {', '.join(KERNELS)},"
            " in any sum, product or scaling."
        )
    _check_plain(kernel, kind)
    options = {name: getattr(kernel, name) for name in row.options}
    return KernelSpec(
        kind=kind,
        options={name: value for name, value in options.items() if value is not None},
        constraints=constraint_names(kernel),
        parts=[kernel_spec(part) for part in _parts(kernel, row).values()],
    )


def load_kernel(
    spec: KernelSpec, tensors: Mapping[str, Tensor], frozen: Iterable[str], num_features: int
) -> Kernel:
    """The kernel with its state; no tensor of it is larger than those given."""
    kernel = build_kernel(spec, tensors, num_features)
    fill(kernel, tensors, frozen, "kernel")
    return kernel


def build_kernel(spec: KernelSpec, tensors: Mapping[str, Tensor], num_features: int) -> Kernel:
    """A kernel like the one of the spec, whose state is still to be filled in."""
    if spec.size() > MAX_KERNELS:
        raise ModelFileError(f"it has {spec.size()} kernels in one, and {MAX_KERNELS} are allowed")
    return _build(spec, dict(tensors), num_features)


def _build(spec: KernelSpec, tensors: dict[str, Tensor], num_features: int) -> Kernel:
    row = KERNELS.get(spec.kind)
    if row is None or not spec.options.keys() <= set(row.options):
        raise ModelFileError(f"no kernel {spec.kind!r} with {sorted(spec.options)[:5]} is known")
    own = {name: tensor for name, tensor in tensors.items() if "." not in name}
    _check_sizes(spec, own, num_features)
    parts = [
        _build(part, under(prefix, tensors), num_features)
        for prefix, part in zip(_prefixes(spec, row), spec.parts, strict=True)
    ]
    arguments: dict[str, Any] = dict(spec.options)
    if row.parts != "kernels" and "active_dims" in own:
        arguments["active_dims"] = _active_dims(own["active_dims"], num_features)
    kernel = row.make(*parts, **arguments)
    if spec.constraints.keys() != constraint_names(kernel).keys():
        raise ModelFileError(f"the constraints of a {spec.kind} are not those of its parameters")
    constrain(kernel, spec.constraints, tensors)
    return kernel


def _check_plain(kernel: Kernel, kind: str) -> None:
    """Refuse what a spec does not tell."""
    if kernel._batch_shape:
        raise UnsupportedError(
            f"A {kind} with a batch shape cannot be saved. Save the members of a batch one by one."
        )
    if kernel._priors:
        raise UnsupportedError(
            f"A {kind} with priors on its parameters cannot be saved. Leave them out: training"
            " does not use them."
        )


def _parts(kernel: Kernel, row: _Row) -> dict[str, Kernel]:
    """The kernels directly inside one, by their place in its state."""
    if row.parts == "kernels":
        return {f"kernels.{index}.": part for index, part in enumerate(kernel.kernels)}
    return {"base_kernel.": kernel.base_kernel} if row.parts else {}


def _prefixes(spec: KernelSpec, row: _Row) -> list[str]:
    """The place of each part in the state."""
    number = len(spec.parts)
    if row.parts == "kernels" and number > 0:
        return [f"kernels.{index}." for index in range(number)]
    prefixes = ["base_kernel."] if row.parts == "base_kernel" else []
    if row.parts == "kernels" or number != len(prefixes):
        raise ModelFileError(f"a {spec.kind} cannot be made of {number} kernels")
    return prefixes


def _check_sizes(spec: KernelSpec, own: Mapping[str, Tensor], num_features: int) -> None:
    """Refuse sizes that neither the kernel's own tensors nor the inputs have."""
    size = 1
    for name in {"ard_num_dims", "num_mixtures"} & spec.options.keys():
        option = spec.options[name]
        if not isinstance(option, int) or option < 1:
            raise ModelFileError(f"{name} of a {spec.kind} is {option}, and has to be at least 1")
        size *= option
    largest = max([num_features, *(tensor.numel() for tensor in own.values())])
    if size > largest:
        raise ModelFileError(f"a {spec.kind} claims parameters larger than its tensors")


def _active_dims(tensor: Tensor, num_features: int) -> Tensor:
    """Indices of features, refused outside of them."""
    indices = tensor.dtype == torch.int64 and tensor.ndim == 1 and tensor.numel() > 0
    if not indices or bool(((tensor < 0) | (tensor >= num_features)).any()):
        raise ModelFileError(f"active_dims of a kernel are not indices of {num_features} features")
    return tensor
