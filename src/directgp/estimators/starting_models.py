"""The models that training may start from: kernels × likelihoods, with inducing inputs."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean, ZeroMean
from jaxtyping import Float
from sklearn.utils.validation import check_array
from torch import Tensor

from directgp.errors import UnsupportedError, require
from directgp.estimators.families import Family
from directgp.estimators.tables.checks import about
from directgp.estimators.user_types import ArrayLike
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.counts import exposed
from directgp.posteriors.inducing import InducingName, choose_inducing
from directgp.posteriors.prior import KernelName, Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.candidates import Model
from directgp.training.recipe import Recipe

_MOST_INDUCING, _FEWEST_INDUCING = 100, 50

_GRID = 2.0**32


@dataclass(frozen=True)
class ModelSettings:
    """The constructor's choices that say which models there are."""

    family: Family
    likelihood: str | Likelihood
    kernel: str | Kernel
    ard: bool | Literal["auto"]
    mean: Literal["zero", "constant"]
    num_inducing: int
    inducing: str | Float[Tensor, "m d"]
    """A method, or the inputs themselves, scaled."""


def starting_models(
    settings: ModelSettings,
    recipe: Recipe,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    latent: Float[Tensor, " n"] | None,
    exposure: Float[Tensor, " n"] | None,
    generator: torch.Generator,
) -> list[list[Model]]:
    """For each kernel one model a likelihood, the simplest first.

    Parameters
    ----------
    settings : ModelSettings
        What the user asked for.
    recipe : Recipe
        Likelihoods that its objective cannot be used with are left out.
    X, y : tensor of shape (n, d), (n,)
        Scaled training data.
    latent : tensor of shape (n,)
        Rough values of f, where the targets give some.
    exposure : tensor of shape (n,)
        Of counts.
    generator : torch.Generator
        Of the CPU, for the inducing inputs.
    """
    likelihoods = _likelihoods(settings, recipe, y)
    Z = _inducing(settings, X, generator)
    priors = _priors(settings, X, latent)
    return [
        [
            Model(
                SparsePosterior(copy.deepcopy(prior), Z),
                exposed(copy.deepcopy(likelihood), exposure),
                f"{k}, {name}",
            )
            for name, likelihood in likelihoods.items()
        ]
        for k, prior in priors.items()
    ]


def _likelihoods(
    settings: ModelSettings, recipe: Recipe, y: Float[Tensor, " n"]
) -> dict[str, Likelihood]:
    given = settings.likelihood
    if isinstance(given, Likelihood):
        recipe.check(given)
        return {type(given).__name__: copy.deepcopy(given).to(y)}
    names = settings.family.auto if given == "auto" else (given,)
    found, refusals = {}, []
    for name in names:
        likelihood = settings.family.named(name, y)
        try:
            recipe.check(likelihood)
            found[name] = likelihood
        except UnsupportedError as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    return found


def _inducing(
    settings: ModelSettings, X: Float[Tensor, "n d"], generator: torch.Generator
) -> Float[Tensor, "m d"]:
    if isinstance(settings.inducing, Tensor):
        return settings.inducing
    method = cast(InducingName, settings.inducing)
    Z = choose_inducing(X, settings.num_inducing, method, generator)
    # On the grid of the scaled inputs, sums that round otherwise give the same centres.
    return torch.round(Z * _GRID) / _GRID


def _priors(
    settings: ModelSettings, X: Float[Tensor, "n d"], latent: Float[Tensor, " n"] | None
) -> dict[str, Prior]:
    kernel, mean = settings.kernel, settings.mean
    if isinstance(kernel, Kernel):
        return {type(kernel).__name__: _own_prior(kernel, mean, X, latent)}
    name = cast(KernelName, kernel)
    ards = (False, True) if settings.ard == "auto" and X.shape[-1] > 1 else (settings.ard is True,)
    return {
        f"{name} ARD" if ard else name: Prior.from_data(X, latent, kernel=name, ard=ard, mean=mean)
        for ard in ards
    }


def _own_prior(
    kernel: Kernel, mean: str, X: Float[Tensor, "n d"], latent: Float[Tensor, " n"] | None
) -> Prior:
    """A prior of the user's own kernel, which is left as it is."""
    function: Mean = ConstantMean() if mean == "constant" else ZeroMean()
    if isinstance(function, ConstantMean) and latent is not None:
        function.constant = latent.mean()
    prior = Prior(copy.deepcopy(kernel), function, dtype=X.dtype)
    return prior.to(X.device)


def auto_inducing(num_rows: int) -> int:
    """A quarter of the rows, between 50 and 100; all of them where they are fewer."""
    return min(num_rows, max(_FEWEST_INDUCING, min(_MOST_INDUCING, num_rows // 4)))


def check_kernel(kernel: Kernel, d: int) -> None:
    """Refuse a kernel for batches, or for another number of features, whole and in parts."""
    name = f"the kernel {type(kernel).__name__}"
    require(
        kernel.batch_shape == torch.Size(),
        name,
        "of an empty batch_shape",
        f"batch_shape {tuple(kernel.batch_shape)}",
        "One estimator trains one model: leave batch_shape out.",
    )
    features = d if kernel.active_dims is None else len(kernel.active_dims)
    require(
        kernel.ard_num_dims in (None, features),
        name,
        f"of ard_num_dims None or {features}, the number of features it sees",
        kernel.ard_num_dims,
    )
    require(
        kernel.active_dims is None or bool((kernel.active_dims < d).all()),
        name,
        f"of active_dims below {d}, the number of features it is given",
        [] if kernel.active_dims is None else kernel.active_dims.tolist(),
    )
    for part in _parts(kernel):
        # A ScaleKernel takes the active_dims of its kernel for its own, and selects once.
        shared = isinstance(kernel, ScaleKernel) and part.active_dims is not None
        check_kernel(part, d if shared else features)


def _parts(module: torch.nn.Module) -> Iterator[Kernel]:
    """The kernels that a kernel is made of, but not theirs."""
    for child in module.children():
        if isinstance(child, Kernel):
            yield child
        else:
            yield from _parts(child)


def given_inducing(inducing: ArrayLike, d: int, who: str) -> np.ndarray:
    """Inducing inputs that the user has chosen, refused unless of shape (m, d) and finite."""
    name, allowed = f"inducing of {who}", f"finite, of shape (m, {d}), in the units of X"
    with about(f"{name} must be {allowed}"):
        Z: np.ndarray = check_array(inducing, dtype=np.float64, input_name="inducing")
    require(Z.shape[1] == d, name, allowed, f"shape {Z.shape}")
    return Z
