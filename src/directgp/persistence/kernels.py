"""Convert gpytorch kernels, means and constraints to specs: the only module for these classes."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast, get_args

import gpytorch
import torch
from gpytorch import kernels
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from torch import Tensor, nn

from directgp.errors import ModelFileError, UnsupportedError
from directgp.likelihoods.base import broadcast_shape
from directgp.persistence.schema import ConstraintName, KernelSpec, MeanSpec
from directgp.training.checkpoint import under

_BOUNDS = ("_constraint.lower_bound", "_constraint.upper_bound")


def frozen_names(module: nn.Module, who: str) -> list[str]:
    """Return the names of the parameters without gradient; raise if parts share parameters."""
    named = list(module.named_parameters(remove_duplicate=False))
    if len(named) != len(list(module.parameters())):
        raise UnsupportedError(
            f"A {who} whose parts share parameters cannot be saved: the sharing would be lost."
            " Use copies of the parts."
        )
    return [name for name, parameter in named if not parameter.requires_grad]


def fill(module: nn.Module, tensors: Mapping[str, Tensor], frozen: Iterable[str], who: str) -> None:
    """Replace the tensors of a module by copies of these; raise if names or shapes differ."""
    current = module.state_dict()
    if current.keys() != tensors.keys():
        missing = sorted(current.keys() - tensors.keys())
        extra = sorted(tensors.keys() - current.keys())
        raise ModelFileError(
            f"the {who} lacks tensors or has too many (missing {missing[:3]}, extra {extra[:3]})"
        )
    for name, tensor in tensors.items():
        label = f"{name} of the {who}"
        shape = current[name].shape
        if tensor.shape != shape:
            raise ModelFileError(f"{label} has shape {list(tensor.shape)} for {list(shape)}")
        if tensor.is_floating_point() != current[name].is_floating_point():
            raise ModelFileError(f"{label} cannot be of {tensor.dtype}")
        # Bounds may be infinite; `constrain` has checked them.
        if not name.endswith(_BOUNDS):
            require_finite(label, tensor)
    # The last bit of a sum depends on the alignment of its tensor; a copy is aligned as usual.
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    module.load_state_dict(copies, strict=True, assign=True)
    hold(module, frozen, who)


def hold(module: nn.Module, frozen: Iterable[str], who: str) -> None:
    """Switch off the gradient of the named parameters, and of no others."""
    parameters = dict(module.named_parameters())
    held = set(frozen)
    if not held <= parameters.keys():
        raise ModelFileError(f"the {who} holds parameters that it does not have")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in held)


def require_finite(name: str, tensor: Tensor) -> None:
    """Raise `ModelFileError` if the tensor holds NaN or infinity."""
    if not bool(torch.isfinite(tensor).all()):
        raise ModelFileError(f"{name} must be finite, and holds NaN or infinity")


_CLASSES: dict[str, type[Any]] = {
    constraint.__name__: constraint for constraint in (Positive, GreaterThan, LessThan, Interval)
}
"""Maps the name of a constraint to its class."""

_SUFFIX = "_constraint"
"""End of the name of a parameter's constraint."""


def constraint_names(module: gpytorch.Module) -> dict[str, ConstraintName]:
    """Return the kind of constraint of each parameter of a module."""
    return {
        name.removesuffix(_SUFFIX): _kind(constraint, type(module).__name__)
        for name, constraint in module._constraints.items()
    }


def constrain(
    module: gpytorch.Module, names: Mapping[str, ConstraintName], tensors: Mapping[str, Tensor]
) -> None:
    """Set constraints of these kinds on the parameters, with the tensors as bounds."""
    for name, kind in names.items():
        shape = getattr(module, name).shape
        bounds = []
        for side in ("lower_bound", "upper_bound"):
            bound = tensors.get(f"{name}{_SUFFIX}.{side}")
            if bound is None or broadcast_shape(bound.shape, shape) != shape:
                raise ModelFileError(f"the {side} of {name} is missing or does not fit it")
            bounds.append(bound)
        module.register_constraint(name, _built(kind, *bounds))


def _kind(constraint: Interval, owner: str) -> ConstraintName:
    kind = type(constraint).__name__
    transform = constraint._transform
    if type(constraint) is Interval:
        default = transform is torch.sigmoid
    else:
        softplus = type(transform) is nn.Softplus
        default = softplus and (transform.beta, transform.threshold) == (1, 20)
    if _CLASSES.get(kind) is type(constraint) and default:
        return cast(ConstraintName, kind)
    raise UnsupportedError(
        f"The constraint {constraint} of {owner} cannot be saved. Those that can are"
        f" {', '.join(get_args(ConstraintName))} of gpytorch, with their default transforms."
    )


def _built(kind: ConstraintName, lower: Tensor, upper: Tensor) -> Interval:
    below = bool((lower == -math.inf).all())
    above = bool((upper == math.inf).all())
    finite = bool(torch.isfinite(lower).all()), bool(torch.isfinite(upper).all())
    if kind == "Positive" and above and bool((lower == 0).all()):
        return Positive()
    if kind == "GreaterThan" and above and finite[0]:
        return GreaterThan(lower)
    if kind == "LessThan" and below and finite[1]:
        return LessThan(upper)
    if kind == "Interval" and all(finite) and bool((lower < upper).all()):
        return Interval(lower, upper)
    raise ModelFileError(f"the bounds of a constraint are not those of {kind}")


MEANS: dict[str, type[Any]] = {mean.__name__: mean for mean in (ConstantMean, LinearMean, ZeroMean)}
"""Maps the name of a mean to its class."""


def mean_spec(mean: Mean) -> MeanSpec:
    """Return the spec of a mean."""
    kind = type(mean).__name__
    if MEANS.get(kind) is not type(mean) or mean._priors or getattr(mean, "batch_shape", ()):
        raise UnsupportedError(
            f"The mean {kind} cannot be saved. Those that can are {', '.join(MEANS)}, without a"
            " batch shape and without priors on their parameters."
        )
    return MeanSpec(kind=kind, constraints=constraint_names(mean))


def build_mean(spec: MeanSpec, tensors: Mapping[str, Tensor], num_features: int) -> Mean:
    """Return the mean of a spec, without its state."""
    make = MEANS.get(spec.kind)
    if make is None:
        raise ModelFileError(f"no mean {spec.kind!r} is known")
    # Build on the meta device: it allocates nothing, and draws nothing from the global generator.
    with torch.device("meta"):
        linear = {"input_size": num_features, "bias": "bias" in tensors}
        mean = make(**(linear if make is LinearMean else {}))
    allowed = {"raw_constant"} if make is ConstantMean else set()
    if not spec.constraints.keys() <= allowed:
        raise ModelFileError(f"the constraints of a {spec.kind} are not those of its parameters")
    constrain(mean, spec.constraints, tensors)
    return mean


class _Row(NamedTuple):
    """The constructor of a kernel class."""

    make: type[Any]
    """The class."""

    options: tuple[str, ...] = ("ard_num_dims",)
    """Constructor arguments that a file holds."""

    parts: str = ""
    """The attribute with the inner kernels: "base_kernel", or the list "kernels"."""


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
    """Return the spec of a kernel."""
    kind = type(kernel).__name__
    row = KERNELS.get(kind)
    if row is None or row.make is not type(kernel):
        raise UnsupportedError(
            f"The kernel {kind} cannot be saved. Those that can are {', '.join(KERNELS)},"
            " in any sum, product or scaling."
        )
    if kernel._batch_shape:
        raise UnsupportedError(
            f"A {kind} with a batch shape cannot be saved. Save the members of a batch one by one."
        )
    if kernel._priors:
        raise UnsupportedError(
            f"A {kind} with priors on its parameters cannot be saved. Leave them out: training"
            " does not use them."
        )
    options = {name: getattr(kernel, name) for name in row.options}
    parts = getattr(kernel, row.parts) if row.parts else ()
    return KernelSpec(
        kind=kind,
        options={name: value for name, value in options.items() if value is not None},
        constraints=constraint_names(kernel),
        parts=[kernel_spec(part) for part in ([parts] if isinstance(parts, Kernel) else parts)],
    )


def build_kernel(spec: KernelSpec, tensors: Mapping[str, Tensor], num_features: int) -> Kernel:
    """Return the kernel of a spec, without its state; its parameters fit the tensors."""
    row = KERNELS.get(spec.kind)
    if row is None or not spec.options.keys() <= set(row.options):
        raise ModelFileError(f"no kernel {spec.kind!r} with {sorted(spec.options)[:5]} is known")
    tensors_of_kernel = {name: tensor for name, tensor in tensors.items() if "." not in name}
    _check_sizes(spec, tensors_of_kernel, num_features)
    number = len(spec.parts)
    several = row.parts == "kernels"
    if number == 0 if several else number != bool(row.parts):
        raise ModelFileError(f"a {spec.kind} cannot be made of {number} kernels")
    parts = [
        build_kernel(
            part, under(f"kernels.{i}." if several else "base_kernel.", tensors), num_features
        )
        for i, part in enumerate(spec.parts)
    ]
    arguments: dict[str, Any] = dict(spec.options)
    if not several and "active_dims" in tensors_of_kernel:
        dims = tensors_of_kernel["active_dims"]
        arguments["active_dims"] = dims
        indices = dims.dtype == torch.int64 and dims.ndim == 1 and dims.numel() > 0
        if not indices or bool(((dims < 0) | (dims >= num_features)).any()):
            raise ModelFileError(f"active_dims of a kernel do not index {num_features} features")
    kernel = row.make(*parts, **arguments)
    if spec.constraints.keys() != constraint_names(kernel).keys():
        raise ModelFileError(f"the constraints of a {spec.kind} are not those of its parameters")
    constrain(kernel, spec.constraints, tensors)
    return kernel


def _check_sizes(spec: KernelSpec, tensors: Mapping[str, Tensor], num_features: int) -> None:
    """Raise `ModelFileError` if a size exceeds the kernel's tensors and the inputs."""
    size = 1
    for name in {"ard_num_dims", "num_mixtures"} & spec.options.keys():
        option = spec.options[name]
        if not isinstance(option, int) or option < 1:
            raise ModelFileError(f"{name} of a {spec.kind} is {option}, and has to be at least 1")
        size *= option
    largest = max([num_features, *(tensor.numel() for tensor in tensors.values())])
    if size > largest:
        raise ModelFileError(f"a {spec.kind} claims parameters larger than its tensors")
