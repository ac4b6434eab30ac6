"""The prior: any gpytorch kernel, one output scale, initial values from data."""

import copy
import math

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    ScaleKernel,
)
from sklearn.datasets import load_diabetes
from torch import Tensor

from directgp import SparseGPRegressor
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.posteriors.prior import Prior, evenly_spaced, shortening
from directgp.registry import KernelName
from tests.reference import gaussian_process as reference
from tests.unit.posteriors.test_rbf import Doubled

D = 2

KERNELS: dict[str, Kernel] = {
    "rbf": RBFKernel(),
    "rbf_ard": RBFKernel(ard_num_dims=D),
    "rbf_active_dims": RBFKernel(active_dims=(1,)),
    "rbf_subclass": Doubled(),
    "matern12": MaternKernel(0.5),
    "matern52_ard": MaternKernel(2.5, ard_num_dims=D),
    "periodic": PeriodicKernel(),
    "linear": LinearKernel(),
    "polynomial": PolynomialKernel(2),
    "scaled": ScaleKernel(RBFKernel()),
    "scaled_matern": ScaleKernel(MaternKernel(1.5)),
    "sum": RBFKernel() + PeriodicKernel(),
    "product": RBFKernel() * LinearKernel(),
    "nested": ScaleKernel(ScaleKernel(RBFKernel()) + LinearKernel()),
}

each_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


X1, X2 = random(4, D), random(6, D, seed=1)


@each_kernel
def test_every_kernel_of_gpytorch_works(kernel: Kernel) -> None:
    kernel = copy.deepcopy(kernel).double()
    prior = Prior(kernel, output_scale=1.7)
    expected = 1.7 * kernel(X1, X2).to_dense()
    torch.testing.assert_close(prior.covariance(X1, X2), expected, rtol=1e-10, atol=1e-12)
    K = prior.covariance(X1, X1)
    torch.testing.assert_close(prior.variance(X1), K.diagonal(), rtol=1e-10, atol=1e-12)
    assert torch.equal(prior.mean(X1), torch.zeros(4).double())


@each_kernel
def test_every_parameter_of_a_kernel_gets_its_gradient(kernel: Kernel) -> None:
    """Against central differences of the covariance, whose error is 1e-9."""
    prior = Prior(copy.deepcopy(kernel))
    weights = random(4, 6, seed=2)

    def value() -> Tensor:
        return (weights * prior.covariance(X1, X2)).sum() + prior.variance(X1).sum()

    value().backward()
    for name, parameter in prior.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None
        for i in range(parameter.numel()):
            flat = parameter.data.view(-1)
            start = flat[i].item()
            ends = []
            for step in (1e-5, -1e-5):
                flat[i] = start + step
                ends.append(value().item())
            flat[i] = start
            slope = (ends[0] - ends[1]) / 2e-5
            assert parameter.grad.view(-1)[i].item() == pytest.approx(slope, 1e-6, 1e-8), name


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_is_the_definition(nu: float) -> None:
    prior = Prior(MaternKernel(nu), output_scale=0.3)
    lengthscale = prior.kernel.lengthscale.item()
    expected = reference.matern(nu, X1.numpy(), X2.numpy(), lengthscale, 0.3)
    np.testing.assert_allclose(prior.covariance(X1, X2).detach().numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("name", ["constant", "linear"])
def test_mean_functions_of_gpytorch_are_used(name: str) -> None:
    if name == "constant":
        mean = gpytorch.means.ConstantMean()
        mean.constant = 1.5
        expected = torch.full((4,), 1.5, dtype=torch.float64)
    else:
        mean = gpytorch.means.LinearMean(D).double()
        with torch.no_grad():
            mean.weights.copy_(torch.tensor([[2.0], [-1.0]]))
            mean.bias.fill_(0.5)
        expected = 2 * X1[:, 0] - X1[:, 1] + 0.5
    prior = Prior(LinearKernel(), mean)
    torch.testing.assert_close(prior.mean(X1), expected, rtol=1e-14, atol=1e-14)


def trainable(prior: Prior) -> set[str]:
    return {name for name, value in prior.named_parameters() if value.requires_grad}


def test_one_trained_scale_whatever_the_kernel() -> None:
    assert trainable(Prior(RBFKernel())) == {"raw_output_scale", "kernel.raw_lengthscale"}
    scaled = Prior(ScaleKernel(RBFKernel()))
    assert trainable(scaled) == {"kernel.raw_outputscale", "kernel.base_kernel.raw_lengthscale"}


def test_everything_gets_the_asked_dtype() -> None:
    for dtype in (torch.float32, torch.float64):
        prior = Prior(ScaleKernel(RBFKernel()), gpytorch.means.ConstantMean(), dtype=dtype)
        assert {value.dtype for value in prior.parameters()} == {dtype}
        assert prior.covariance(X1.to(dtype), X2.to(dtype)).dtype == dtype


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 50.0, 1e8])
def test_output_scale_is_what_was_asked(scale: float) -> None:
    assert Prior(RBFKernel(), output_scale=scale).output_scale.item() == pytest.approx(scale, 1e-9)


@each_kernel
@pytest.mark.parametrize("factor", [1e-6, 0.5, 40.0])
def test_rescaled_multiplies_the_covariance(kernel: Kernel, factor: float) -> None:
    prior = Prior(copy.deepcopy(kernel), output_scale=1.7)
    before = prior.covariance(X1, X2).detach()
    after = prior.rescaled(factor)
    torch.testing.assert_close(after.covariance(X1, X2), factor * before, rtol=1e-9, atol=0)
    torch.testing.assert_close(after.variance(X1), factor * prior.variance(X1), rtol=1e-9, atol=0)
    assert trainable(after) == trainable(prior)
    assert torch.equal(prior.covariance(X1, X2), before)


@pytest.mark.parametrize("inner", [RBFKernel(), MaternKernel(1.5)], ids=["rbf", "matern"])
@pytest.mark.parametrize("scaled", [False, True])
def test_with_unit_scale(inner: Kernel, scaled: bool) -> None:
    kernel = copy.deepcopy(inner)
    if scaled:
        kernel = ScaleKernel(kernel).double()
        kernel.outputscale = 3.0
    prior = Prior(kernel, output_scale=2.0)
    unit = prior.with_unit_scale()
    ones = torch.ones(4).double()
    torch.testing.assert_close(unit.variance(X1), ones, rtol=1e-12, atol=0)
    lengthscale = "kernel.base_kernel.raw_lengthscale" if scaled else "kernel.raw_lengthscale"
    assert trainable(unit) == {lengthscale}
    torch.testing.assert_close(prior.variance(X1), (6 if scaled else 2) * ones, rtol=1e-12, atol=0)
    assert len(trainable(prior)) == 2


@each_kernel
def test_repeated_members_start_equal_and_move_apart(kernel: Kernel) -> None:
    """Each parameter of each member is its own number, which an optimiser can write to."""
    prior = Prior(copy.deepcopy(kernel), gpytorch.means.ConstantMean(), output_scale=1.3)
    batch = prior.repeated(3)
    names = [name for name, _ in prior.named_parameters()]
    assert [name for name, _ in batch.named_parameters()] == names
    assert trainable(batch) == trainable(prior)
    for value, many in zip(prior.parameters(), batch.parameters(), strict=True):
        assert many.shape == (3, *value.shape)
    Z = X1.expand(3, 4, D)
    shape = (3, 4, 6)
    assert batch.covariance(Z, X2).shape == shape
    torch.testing.assert_close(
        batch.covariance(Z, X2), prior.covariance(X1, X2).expand(shape), rtol=1e-12, atol=1e-14
    )
    with torch.no_grad():
        for value, many in zip(prior.parameters(), batch.parameters(), strict=True):
            many[1].add_(0.1)
            value.add_(0.1)
    covariance, variance, mean = batch.covariance(Z, X2), batch.variance(X2), batch.mean(X2)
    torch.testing.assert_close(covariance[1], prior.covariance(X1, X2), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(variance[1], prior.variance(X2), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(mean[1], prior.mean(X2), rtol=1e-12, atol=0)
    assert torch.equal(covariance[0], covariance[2])
    assert not torch.allclose(covariance[0], covariance[1])


def test_repeated_trains_with_an_optimiser() -> None:
    batch = Prior(RBFKernel() + ScaleKernel(PeriodicKernel())).repeated(3)
    optimiser = torch.optim.Adam(batch.parameters(), lr=0.1)
    weights = torch.tensor([-1.0, 0.0, 1.0]).double()
    (weights * batch.covariance(X1.expand(3, 4, D), X2).sum((-2, -1))).sum().backward()
    before = {name: value.detach().clone() for name, value in batch.named_parameters()}
    optimiser.step()
    for name, value in batch.named_parameters():
        moved = (value - before[name]).reshape(3, -1)
        assert bool((moved[0] != 0).all()), name
        assert bool((moved[1] == 0).all()), name
        # Adam's first step is the learning rate times the sign of the slope.
        torch.testing.assert_close(moved[0], -moved[2], rtol=1e-5, atol=0)


def test_repeated_leaves_the_original_alone() -> None:
    prior = Prior(RBFKernel())
    shapes = [value.shape for value in prior.parameters()]
    prior.repeated(2)
    assert [value.shape for value in prior.parameters()] == shapes


def test_repeated_refuses_a_mean_it_cannot_repeat() -> None:
    prior = Prior(RBFKernel(), gpytorch.means.LinearMean(D))
    with pytest.raises(UnsupportedError, match=r"zero or a constant mean\. Got LinearMean\."):
        prior.repeated(2)


@pytest.mark.parametrize("kernel", ["rbf", "matern12"])
def test_batches_of_inputs(kernel: KernelName) -> None:
    """Leading axes of the inputs alone, for every kind of kernel alike."""
    prior = Prior.from_data(X1, kernel=kernel)
    many = random(3, 5, D, seed=3)
    assert prior.variance(many).shape == (3, 5)
    assert prior.mean(many).shape == (3, 5)
    covariance = prior.covariance(X1, many)
    assert covariance.shape == (3, 4, 5)
    torch.testing.assert_close(covariance[2], prior.covariance(X1, many[2]), rtol=1e-12, atol=1e-15)


# Starting values.


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("factor", [1e-6, 0.1, 1e6])
def test_lengthscale_scales_with_the_inputs(ard: bool, factor: float) -> None:
    X = random(200, 3)
    one, other = Prior.from_data(X, ard=ard), Prior.from_data(factor * X, ard=ard)
    torch.testing.assert_close(
        other.kernel.lengthscale, factor * one.kernel.lengthscale, rtol=1e-9, atol=0
    )
    # Hence K of scaled inputs is K.
    torch.testing.assert_close(
        other.covariance(factor * X, factor * X[:5]), one.covariance(X, X[:5]), rtol=1e-7, atol=0
    )


def test_lengthscales_of_features_and_of_all_agree_for_one_spread() -> None:
    """The median distance of two normal rows is √(2d) deviations, but for a few per cent."""
    X = 2.5 * random(2000, 8)
    one = Prior.from_data(X).kernel.lengthscale
    each = Prior.from_data(X, ard=True).kernel.lengthscale
    assert one.shape == (1, 1)
    assert each.shape == (1, 8)
    torch.testing.assert_close(each, one.expand(1, 8), rtol=0.08, atol=0)
    torch.testing.assert_close(each.mean(), torch.tensor(2.5 * 8**0.5).double(), rtol=0.02, atol=0)


def test_lengthscale_of_each_feature_follows_its_spread() -> None:
    X = random(500, 3) * torch.tensor([1.0, 10.0, 0.01]).double()
    ratio = Prior.from_data(X, ard=True).kernel.lengthscale / X.std(0, correction=0)
    expected = torch.full((1, 3), 3**0.5, dtype=torch.float64)
    torch.testing.assert_close(ratio, expected, rtol=1e-9, atol=0)


DEGENERATE = {
    "constant column": torch.cat([random(20, 1), torch.full((20, 1), 3.0).double()], 1),
    "one row": random(1, 2),
    "all duplicates": random(1, 2).expand(20, 2),
    "mostly duplicates": torch.cat([random(1, 2).expand(18, 2), random(2, 2, seed=5)]),
    "constant and few": torch.full((2, 2), 7.0).double(),
    "tiny": 1e-150 * random(20, 2),
    "large": 1e100 * random(20, 2),
}


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("X", DEGENERATE.values(), ids=list(DEGENERATE))
def test_degenerate_inputs_give_finite_starting_values(X: Tensor, ard: bool) -> None:
    prior = Prior.from_data(X, torch.zeros(len(X)), ard=ard, mean="constant")
    for name, value in prior.named_parameters():
        assert bool(value.isfinite().all()), name
    assert bool((prior.kernel.lengthscale > 0).all())
    assert bool(prior.covariance(X, X).isfinite().all())


def test_degenerate_values_themselves() -> None:
    lengthscale = {
        name: Prior.from_data(X, ard=True).kernel.lengthscale for name, X in DEGENERATE.items()
    }
    constant = DEGENERATE["constant column"]
    assert lengthscale["constant column"][0, 1] == 1
    assert lengthscale["constant column"][0, 0].item() == pytest.approx(
        2**0.5 * constant[:, 0].std(correction=0).item()
    )
    for name in ("one row", "all duplicates", "constant and few"):
        torch.testing.assert_close(lengthscale[name], torch.ones(1, 2).double())
        assert Prior.from_data(DEGENERATE[name]).kernel.lengthscale.item() == pytest.approx(1)
    mostly = DEGENERATE["mostly duplicates"]
    spread = mostly.var(0, correction=0).sum().sqrt().item()
    assert Prior.from_data(mostly).kernel.lengthscale.item() == pytest.approx(spread)


def test_more_rows_than_are_looked_at() -> None:
    X = random(5000, 2)
    full = torch.pdist(X[::2]).median().item() / 2**0.5
    assert Prior.from_data(X).kernel.lengthscale.item() == pytest.approx(full, rel=0.05)


def test_row_numbers_of_many_rows() -> None:
    """Beyond 2²⁴ rows float32 has not all of the numbers."""
    rows = evenly_spaced(2**24 + 4, 1000, torch.device("cpu"))
    assert (len(rows), int(rows[0]), int(rows[-1])) == (1000, 0, 2**24 + 3)
    steps = rows.diff()
    assert int(steps.max() - steps.min()) == 1
    for few in (1, 2, 7):
        assert evenly_spaced(few, 1000, torch.device("cpu")).tolist() == [*range(few)]


def test_scale_and_mean_come_from_the_values() -> None:
    y = 3 + 2 * random(400)
    plain = Prior.from_data(random(400, 2), y)
    assert plain.output_scale.item() == pytest.approx(y.square().mean().item())
    assert torch.equal(plain.mean(X1), torch.zeros(4).double())
    constant = Prior.from_data(random(400, 2), y, mean="constant")
    assert constant.output_scale.item() == pytest.approx(y.var(correction=0).item())
    torch.testing.assert_close(constant.mean(X1), y.mean().expand(4), rtol=1e-12, atol=0)
    assert "mean_function.raw_constant" in trainable(constant)


def test_scale_is_1_and_mean_0_without_values_or_with_constant_ones() -> None:
    for y in (None, torch.full((4,), 2.5).double(), torch.tensor([2, 2, 2, 2])):
        prior = Prior.from_data(X1, y, mean="constant")
        assert prior.output_scale.item() == pytest.approx(1)
        assert prior.mean(X1)[0].item() == pytest.approx(0.0 if y is None else y[0].item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
def test_named_kernels_in_the_dtype_of_the_data(kernel: KernelName, dtype: torch.dtype) -> None:
    X = X2.to(dtype)
    prior = Prior.from_data(X, X[:, 0], kernel=kernel, ard=True, mean="constant")
    assert {value.dtype for value in prior.parameters()} == {dtype}
    lengthscale = prior.kernel.lengthscale.detach().double().numpy()
    scale = prior.output_scale.item()
    inputs = X1.to(dtype).double().numpy(), X.double().numpy()
    if kernel == "rbf":
        expected = reference.rbf(*inputs, lengthscale, scale)
    else:
        nu = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}[kernel]
        expected = reference.matern(nu, *inputs, lengthscale, scale)
    digits = 1e-10 if dtype == torch.float64 else 1e-5
    actual = prior.covariance(X1.to(dtype), X).detach().double().numpy()
    np.testing.assert_allclose(actual, expected, rtol=digits)


def test_start_does_not_follow_the_graph_of_the_data() -> None:
    X = X1.clone().requires_grad_()
    prior = Prior.from_data(X, X[:, 0].square(), mean="constant")
    assert all(value.is_leaf for value in prior.parameters())


# Refusals.


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_refuses_a_scale_that_is_none(scale: float) -> None:
    with pytest.raises(InvalidInputError, match=r"output_scale of Prior must be positive"):
        Prior(RBFKernel(), output_scale=scale)


@pytest.mark.usefixtures("without_shape_checks")
def test_refuses_unknown_names() -> None:
    with pytest.raises(InvalidInputError, match=r"kernel must be one of .*'matern32'.* Got 'rbg'"):
        Prior.from_data(X1, kernel="rbg")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"mean must be 'zero' or 'constant'\. Got 'one'"):
        Prior.from_data(X1, mean="one")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"kernel of Prior must be a kernel of gpytorch"):
        Prior("rbf")


RANDOM = np.random.default_rng(0)
X = torch.as_tensor(RANDOM.uniform(0, 20, (200, 1)))
NOISE = torch.as_tensor(RANDOM.standard_normal(200))
SPREAD = X.std()


def waves(periods: float) -> Tensor:
    return torch.sin(2 * torch.pi * periods * X[:, 0] / 20) + 0.2 * NOISE


@pytest.mark.parametrize(
    ("values", "factor"),
    [(waves(1), 1.0), (waves(3), 1.0), (waves(8), 1 / 16), (waves(25), 1 / 16), (NOISE, 1.0)],
)
def test_shortening_follows_the_wavelength(values: Tensor, factor: float) -> None:
    assert shortening(X, values, SPREAD) == factor


def test_each_feature_has_its_lengthscale() -> None:
    wide = torch.cat([X, 1e6 * X.flip(0)], 1)
    scales = torch.stack([SPREAD, 1e6 * SPREAD]) * 2**0.5
    assert shortening(wide[:, :1], waves(10), scales[:1]) < 1
    assert shortening(wide, waves(1), scales) == 1.0


def test_nothing_is_made_of_few_or_equal_values() -> None:
    assert shortening(X[:10], waves(10)[:10], SPREAD) == 1.0
    assert shortening(X, torch.ones(200).double(), SPREAD) == 1.0


def test_ordinary_tables_keep_the_median_distance() -> None:
    features, y = load_diabetes(return_X_y=True)
    rows = torch.as_tensor(features / features.std(0))
    assert shortening(rows, torch.as_tensor(y), torch.tensor(10**0.5)) == 1.0


def test_a_regressor_follows_fast_waves() -> None:
    """The median distance led to an optimum where all is noise: NLL 1.19."""
    model = SparseGPRegressor(
        objective="elbo", beta=1.0, likelihood="gaussian", num_inducing=50, random_state=0
    )
    seen, unseen = slice(0, 150), slice(150, 200)
    y = waves(10).numpy()
    model.fit(X[seen].numpy(), y[seen])
    assert model.nll(X[unseen].numpy(), y[unseen]) < 0.2
