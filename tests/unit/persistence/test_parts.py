"""Every part of a model file is restored bit for bit; other objects raise an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch import constraints as bounds
from gpytorch import kernels as k
from gpytorch import means
from gpytorch.priors import GammaPrior
from torch.nn.functional import softplus

from directgp import registry
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import Gaussian, Likelihood, Poisson
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Quadrature, Rule
from directgp.objectives import LogLoss, PointLoss
from directgp.persistence import ModelState, kernels, load_model, save_model
from directgp.posteriors import SparsePosterior
from directgp.training.beta_path import repeated
from tests.unit.persistence.cases import (
    KERNELS,
    LIKELIHOODS,
    LOSSES,
    MEANS,
    RULES,
    D,
    bits,
    inputs,
    posterior_with,
    shaken,
    state,
)

CPU = torch.device("cpu")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.dgp"


def round_trip(path: Path, **changes: Any) -> ModelState:
    save_model(path, state(**{"params": {}, **changes}))
    return load_model(path, CPU)


def finals(root: type[Any]) -> set[str]:
    """The classes of the package below one that can be made."""
    found = set()
    for child in root.__subclasses__():
        found |= finals(child)
        # Those of other libraries live inside theirs.
        ours = child.__module__.startswith("directgp.") and "interop" not in child.__module__
        if ours and not getattr(child, "__abstractmethods__", None):
            found.add(child.__name__)
    return found


def test_the_tables_are_complete() -> None:
    kinds = {type(part).__name__ for make in KERNELS.values() for part in make().modules()}
    assert kinds >= kernels.KERNELS.keys()
    assert {type(make()).__name__ for make in MEANS.values()} == kernels.MEANS.keys()
    assert {
        type(make()).__name__ for make in LIKELIHOODS.values()
    } == registry.LIKELIHOODS.classes().keys()
    assert {type(rule).__name__ for rule in RULES} == registry.RULES.classes().keys()
    assert {type(loss).__name__ for loss in LOSSES} == registry.LOSSES.classes().keys()


def test_every_choice_of_the_package_can_be_saved() -> None:
    assert finals(Rule) == registry.RULES.classes().keys()
    assert finals(PointLoss) == registry.LOSSES.classes().keys()
    assert finals(Likelihood) == registry.LIKELIHOODS.classes().keys()


def assert_same_posterior(found: SparsePosterior, saved: SparsePosterior) -> None:
    assert bits(found) == bits(saved)
    assert found.nugget == saved.nugget
    X = inputs(20, saved.Z.dtype)
    ours, theirs = found.predict(X), saved.predict(X)
    assert torch.equal(ours.mean, theirs.mean) and torch.equal(ours.variance, theirs.variance)
    assert bool(torch.isfinite(ours.mean).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_come_back_to_the_bit(path: Path, name: str, dtype: torch.dtype) -> None:
    saved = posterior_with(KERNELS[name](), dtype=dtype)
    given = shaken(KERNELS[name]().to(dtype), seed=1)
    found = round_trip(path, posterior=saved, params={"kernel": given})
    assert_same_posterior(found.posterior, saved)
    assert bits(found.params["kernel"]) == bits(given)
    assert repr(found.params["kernel"]) == repr(given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MEANS)
def test_means_come_back_to_the_bit(path: Path, name: str, dtype: torch.dtype) -> None:
    before = torch.get_rng_state()
    saved = posterior_with(mean=MEANS[name](), dtype=dtype)
    drawn = torch.get_rng_state()
    found = round_trip(path, posterior=saved).posterior
    assert torch.equal(torch.get_rng_state(), drawn), "loading drew from torch's generator"
    assert_same_posterior(found, saved)
    torch.set_rng_state(before)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_come_back_to_the_bit(path: Path, name: str) -> None:
    saved, given = LIKELIHOODS[name](), shaken(LIKELIHOODS[name]())
    for parameter in saved.parameters():
        parameter.requires_grad_(False)
    found = round_trip(path, likelihood=saved, params={"likelihood": given})
    for one, other in ((found.likelihood, saved), (found.params["likelihood"], given)):
        assert type(one) is type(other) and bits(one) == bits(other)
        assert one.settings() == other.settings()
    y, f = torch.ones(3), torch.tensor([-1.0, 0.1, 3.0])
    if saved.num_latent > 1:
        f = f + torch.arange(saved.num_latent)[:, None]
    ours, theirs = found.likelihood, saved
    if saved.rows.required:
        ours, theirs = (each.with_row_values(torch.ones(3)) for each in (ours, theirs))
    assert torch.equal(ours.log_prob(y, f), theirs.log_prob(y, f))


@pytest.mark.parametrize("choice", [*RULES, *LOSSES], ids=repr)
def test_rules_and_losses_come_back(path: Path, choice: Rule | PointLoss) -> None:
    found = round_trip(path, params={"choice": choice}).params["choice"]
    assert found == choice and repr(found) == repr(choice) and type(found) is type(choice)


def test_exposures_are_no_part_of_a_model(path: Path) -> None:
    counts = Poisson().with_exposure(torch.tensor([1.0, 2.0]))
    found = round_trip(path, likelihood=counts).likelihood
    assert found.log_exposure is None


# What cannot be saved


class OwnKernel(k.RBFKernel):
    """Its code is not in the library."""


class RBFKernel(k.RBFKernel):
    """One that has the name of another."""


class OwnMean(means.ZeroMean):
    """Not in the library."""


def shared() -> Any:
    kernel = k.RBFKernel()
    return kernel * kernel


def twin_of(kernel: Any) -> Any:
    other = k.MaternKernel(1.5)
    other.raw_lengthscale = kernel.raw_lengthscale
    return kernel + other


def nested(depth: int) -> Any:
    kernel = k.RBFKernel()
    for _ in range(depth):
        kernel = k.ScaleKernel(kernel)
    return kernel


EXP = bounds.Positive(transform=torch.exp, inv_transform=torch.log)

REFUSED_KERNELS: dict[str, tuple[Callable[[], Any], str]] = {
    "own": (OwnKernel, "OwnKernel cannot be saved. Those that can are .*RBFKernel"),
    "of the same name": (RBFKernel, "RBFKernel cannot be saved"),
    "within": (lambda: k.ScaleKernel(k.RBFKernel() + OwnKernel()), "OwnKernel"),
    "of gpytorch": (lambda: k.RFFKernel(num_samples=3), "RFFKernel cannot be saved"),
    "exp": (lambda: k.RBFKernel(lengthscale_constraint=EXP), "default transforms"),
    "not enforced": (
        lambda: k.RBFKernel(lengthscale_constraint=bounds.GreaterThan(0.1, transform=None)),
        "default transforms",
    ),
    "batch": (lambda: k.RBFKernel(batch_shape=torch.Size([2])), "batch shape"),
    "prior": (lambda: k.RBFKernel(lengthscale_prior=GammaPrior(2.0, 3.0)), "priors"),
    "shared": (shared, "share parameters"),
    "tied": (lambda: twin_of(k.RBFKernel()), "share parameters"),
}


@pytest.mark.parametrize("name", REFUSED_KERNELS)
def test_a_kernel_that_a_file_cannot_hold_is_refused(path: Path, name: str) -> None:
    make, said = REFUSED_KERNELS[name]
    with pytest.raises(UnsupportedError, match=said):
        save_model(path, state(params={"kernel": make()}))
    assert not path.exists()


def test_kernels_may_be_nested_so_deep_and_no_deeper(path: Path) -> None:
    deepest = nested(7)
    assert bits(round_trip(path, params={"k": deepest}).params["k"]) == bits(deepest)
    path.unlink()
    with pytest.raises(InvalidInputError, match="more than 8 nested kernels"):
        save_model(path, state(params={"k": nested(8)}))
    assert not path.exists()


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "mean": (lambda: {"posterior": posterior_with(mean=OwnMean())}, "OwnMean cannot be saved"),
    "batch of means": (
        lambda: {"posterior": posterior_with(mean=means.ZeroMean(torch.Size([1])))},
        "batch shape",
    ),
    "batch of q(u)": (
        lambda: {"posterior": posterior_with().repeated(2, shared_prior=True)},
        "batch of posteriors",
    ),
    "batch of likelihoods": (lambda: {"likelihood": repeated(Gaussian(), 2)}, "one value"),
    "schedule": (
        lambda: {"params": {"rule": BiasedMonteCarlo(num_samples=lambda step: step + 1)}},
        "num_samples of BiasedMonteCarlo is a function",
    ),
    "schedule in a loss": (
        lambda: {"params": {"objective": LogLoss(ProductSampling(num_samples=abs))}},
        "num_samples of ProductSampling is a function",
    ),
    "odd settings": (lambda: {"params": {"objective": LogLoss("x" * 300)}}, "cannot be saved"),
    "generator": (
        lambda: {"params": {"random_state": np.random.default_rng(0)}},
        "random_state is a Generator, .* as an int or None",
    ),
    "function": (lambda: {"params": {"callback": softplus}}, "callback is a"),
    "object array": (lambda: {"params": {"inducing": np.array([None])}}, "inducing is a ndarray"),
    "list of arrays": (lambda: {"params": {"a": [np.ones(2)]}}, "a is a ndarray"),
    "dates": (
        lambda: {"classes": np.array([1, 2], "datetime64[s]")},
        "Classes of dtype datetime64",
    ),
    "mixed labels": (lambda: {"classes": np.array(["a", 1], "O")}, "Classes of dtype object"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_file_cannot_hold_is_refused(path: Path, name: str) -> None:
    make, said = REFUSED[name]
    with pytest.raises(UnsupportedError, match=said):
        save_model(path, state(**make()))
    assert not path.exists()


def with_nan(name: str) -> SparsePosterior:
    posterior = posterior_with()
    posterior.get_parameter(name).data.fill_(torch.nan)
    return posterior


INVALID: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "NaN in q(u)": (lambda: {"posterior": with_nan("u_mean")}, "u_mean .* must be finite"),
    "NaN in Z": (lambda: {"posterior": with_nan("Z")}, "finite"),
    "NaN in the kernel": (
        lambda: {"posterior": with_nan("prior.kernel.raw_lengthscale")},
        "raw_lengthscale .* must be finite",
    ),
    "NaN in an array": (lambda: {"arrays": {"a": np.array([np.nan])}}, "array a must be finite"),
    "estimator": (lambda: {"estimator": "Other"}, "estimator"),
    "name of a parameter": (lambda: {"params": {"a.b": 1}}, "params"),
    "record": (lambda: {"record": {"a": {"b": (1, 2)}}}, r"record\['a'\]\['b'\]"),
    "wide kernel": (
        lambda: {"posterior": posterior_with(k.RBFKernel(active_dims=[D]))},
        "active_dims of a kernel do not index 3 features",
    ),
    "nugget": (
        lambda: {"posterior": SparsePosterior(posterior_with().prior, inputs(2), -1.0)},
        "nugget",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_would_not_be_loaded_is_not_saved(path: Path, name: str) -> None:
    make, said = INVALID[name]
    # Values are at fault here, and types where the sanitiser of the tests comes first.
    with pytest.raises(InvalidInputError, match=said):
        save_model(path, state(**make()))
    assert not path.exists()


def test_a_rule_given_by_name_stays_a_name(path: Path) -> None:
    params = {"rule": "quadrature", "objective": LogLoss("bmc"), "other": Quadrature()}
    assert round_trip(path, params=params).params == params
