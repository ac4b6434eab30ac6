"""gpytorch means as specs."""

from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from torch import Tensor

from directgp.errors import ModelFileError, UnsupportedError
from directgp.estimators.persistence.constraints import constrain, constraint_names
from directgp.estimators.persistence.schema import MeanSpec

MEANS: dict[str, type[Any]] = {
    "ConstantMean": ConstantMean,
    "LinearMean": LinearMean,
    "ZeroMean": ZeroMean,
}


def mean_spec(mean: Mean) -> MeanSpec:
    """What rebuilds a mean, beside its state."""
    kind = type(mean).__name__
    if MEANS.get(kind) is not type(mean) or mean._priors or getattr(mean, "batch_shape", ()):
        raise UnsupportedError(
            f"The mean {kind} cannot be saved. Those that can are {', '.join(MEANS)}, without a"
            " batch shape and without priors on their parameters."
        )
    return MeanSpec(kind=kind, constraints=constraint_names(mean))


def build_mean(spec: MeanSpec, tensors: Mapping[str, Tensor], num_features: int) -> Mean:
    """A mean like the one of the spec, whose state is still to be filled in."""
    make = MEANS.get(spec.kind)
    if make is None:
        raise ModelFileError(f"no mean {spec.kind!r} is known")
    # On this device nothing is allocated, and nothing drawn from torch's own generator.
    with torch.device("meta"):
        linear = {"input_size": num_features, "bias": "bias" in tensors}
        mean = make(**(linear if make is LinearMean else {}))
    allowed = {"raw_constant"} if make is ConstantMean else set()
    if not spec.constraints.keys() <= allowed:
        raise ModelFileError(f"the constraints of a {spec.kind} are not those of its parameters")
    constrain(mean, spec.constraints, tensors)
    return mean
