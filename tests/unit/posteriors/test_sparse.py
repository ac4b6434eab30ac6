"""The sparse posterior against dense unwhitened formulas."""

import copy

import gpytorch
import numpy as np
import pytest
import torch
from torch import Tensor

from directgp.errors import InvalidInputError
from directgp.posteriors import Prior, SparsePosterior
from directgp.registry import KernelName
from tests.reference import gaussian_process as reference

M, N, D = 6, 15, 2

KERNELS: list[KernelName] = ["rbf", "matern12", "matern32", "matern52"]
NU = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}

each_kernel = pytest.mark.parametrize("kernel", KERNELS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


X, Z = random(N, D), 1.5 * random(M, D, seed=1)


def at_the_prior(kernel: KernelName = "rbf", nugget: float | None = None) -> SparsePosterior:
    prior = Prior.from_data(
        X, 2 + 1.3 * random(N, seed=2), kernel=kernel, ard=True, mean="constant"
    )
    return SparsePosterior(prior, Z, nugget)


def somewhere(kernel: KernelName = "rbf", nugget: float | None = None) -> SparsePosterior:
    """With a random q(u), whose factor has negative entries on its diagonal and some above it."""
    posterior = at_the_prior(kernel, nugget)
    with torch.no_grad():
        posterior.u_mean.copy_(random(M, seed=3))
        posterior.u_chol.copy_(0.7 * random(M, M, seed=4))
    return posterior


class Dense:
    """The same posterior in the space of u, by NumPy."""

    def __init__(self, posterior: SparsePosterior, kernel: KernelName, X: Tensor) -> None:
        prior, Z = posterior.prior, posterior.Z.detach().numpy()
        self.kernel, self.x = kernel, X.numpy()
        self.lengthscale = prior.kernel.lengthscale.detach().numpy()
        self.scale = prior.output_scale.item()
        nugget = posterior.nugget * self.scale * np.eye(len(Z))
        self.Kuu = self.covariance(Z, Z) + nugget
        self.Kuf = self.covariance(Z, self.x)
        self.Kff = self.covariance(self.x, self.x)
        L = np.linalg.cholesky(self.Kuu)
        S = np.tril(posterior.u_chol.detach().numpy())
        self.m = L @ posterior.u_mean.detach().numpy()
        self.V = L @ S @ S.T @ L.T
        f = reference.sparse_posterior(self.Kuu, self.Kuf, self.Kff, self.m, self.V)
        self.mean = f.mean + prior.mean(X).detach().numpy()
        self.covariance_f = f.variance

    def covariance(self, X1: reference.Array, X2: reference.Array) -> reference.Array:
        if self.kernel == "rbf":
            return reference.rbf(X1, X2, self.lengthscale, self.scale)
        return reference.matern(NU[self.kernel], X1, X2, self.lengthscale, self.scale)


@each_kernel
def test_starts_at_the_prior(kernel: KernelName) -> None:
    posterior = at_the_prior(kernel)
    marginals = posterior.marginals(X)
    prior = posterior.prior
    torch.testing.assert_close(marginals.mean, prior.mean(X), rtol=1e-14, atol=0)
    torch.testing.assert_close(marginals.variance, prior.variance(X), rtol=1e-13, atol=0)
    assert posterior.kl().item() == 0


@each_kernel
def test_whitened_is_unwhitened(kernel: KernelName) -> None:
    posterior = somewhere(kernel)
    dense = Dense(posterior, kernel, X)
    marginals = posterior.marginals(X)
    # K_uu has a condition of 1e3 at most here.
    np.testing.assert_allclose(marginals.mean.detach().numpy(), dense.mean, rtol=1e-8)
    variance = dense.covariance_f.diagonal()
    np.testing.assert_allclose(marginals.variance.detach().numpy(), variance, rtol=1e-8)
    kl = reference.kl(dense.m, dense.V, dense.Kuu)
    assert posterior.kl().item() == pytest.approx(kl, rel=1e-8)


@pytest.mark.parametrize("block_size", [1, 2, 7, N - 1, N, N + 1, None])
def test_predict_in_blocks_is_marginals(block_size: int | None) -> None:
    posterior = somewhere()
    expected = posterior.marginals(X)
    predicted = posterior.predict(X, block_size)
    torch.testing.assert_close(predicted.mean, expected.mean, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(predicted.variance, expected.variance, rtol=1e-13, atol=1e-13)
    assert not predicted.mean.requires_grad
    assert not predicted.variance.requires_grad


def test_no_rows_give_no_marginals() -> None:
    predicted = somewhere().predict(X[:0])
    assert predicted.mean.shape == (0,)
    assert predicted.variance.shape == (0,)


@each_kernel
def test_joint_samples(kernel: KernelName) -> None:
    """Mean and covariance of 20000 draws within 5 standard errors of the dense formula."""
    posterior, number = somewhere(kernel), 20_000
    dense = Dense(posterior, kernel, X)
    draws = posterior.sample(X, number, seeded(5)).numpy()
    assert draws.shape == (number, N)
    C = dense.covariance_f
    deviation = np.sqrt(C.diagonal())
    assert np.all(np.abs(draws.mean(0) - dense.mean) < 5 * deviation / number**0.5)
    # The variance of a product of two normals is C_ii C_jj + C_ij².
    error = np.sqrt((np.outer(deviation, deviation) ** 2 + C**2) / number)
    assert np.all(np.abs(np.cov(draws.T) - C) < 5 * error)


def test_samples_follow_the_generator_and_leave_the_global_one_alone() -> None:
    posterior = somewhere()
    one, two = (posterior.sample(X, 3, seeded(1)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, posterior.sample(X, 3, seeded(2)))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert not torch.equal(posterior.sample(X), posterior.sample(X))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_kernel
def test_samples_of_many_close_inputs(kernel: KernelName, dtype: torch.dtype) -> None:
    """K_ff − AᵀA has lost most of its rank to rounding, at inducing inputs and between them."""
    x = torch.linspace(0, 1, 120, dtype=dtype).reshape(-1, 1)
    posterior = SparsePosterior(Prior.from_data(x, kernel=kernel), x[::6])
    draws = posterior.sample(x, 400, seeded())
    assert bool(draws.isfinite().all())
    # 400 draws of a unit variance: 5 standard errors are 5√(2/400) = 0.35.
    torch.testing.assert_close(draws.var(0), torch.ones(120, dtype=dtype), rtol=0, atol=0.36)


@each_kernel
@pytest.mark.parametrize("nugget", [1e-8, 1e-3, 0.5])
def test_the_nugget_is_in_u_and_nowhere_else(kernel: KernelName, nugget: float) -> None:
    """At q = prior the variance is the prior's, at Z too, however large the nugget."""
    posterior = at_the_prior(kernel, nugget)
    variance = posterior.marginals(Z).variance
    torch.testing.assert_close(variance, posterior.prior.variance(Z), rtol=1e-13, atol=0)
    Kuu = posterior.prior.covariance(Z, Z)
    L, jitter = posterior.factor()
    expected = Kuu + nugget * torch.diag(posterior.prior.variance(Z))
    torch.testing.assert_close(L @ L.T, expected, rtol=1e-12, atol=1e-14)
    assert jitter.item() == 0


@pytest.mark.parametrize("nugget", [1e-8, 1e-3])
def test_what_the_nugget_leaves_open_at_Z(nugget: float) -> None:
    """Knowing u = f + noise exactly leaves f at one inducing input k·ν/(1 + ν) of variance."""
    prior = Prior(gpytorch.kernels.RBFKernel(), output_scale=3.0)
    posterior = SparsePosterior(prior, Z[:1], nugget)
    with torch.no_grad():
        posterior.u_chol.zero_()
    variance = posterior.marginals(Z[:1]).variance.item()
    # 3 − 3/(1 + ν) is rounded to 1e-15 before it is compared with 3e-8.
    assert variance == pytest.approx(3 * nugget / (1 + nugget), rel=1e-6)


@each_kernel
def test_float32_is_float64_to_three_digits(kernel: KernelName) -> None:
    wide = somewhere(kernel)
    narrow = copy.deepcopy(wide).float()
    one, other = narrow.marginals(X.float()), wide.marginals(X)
    assert one.mean.dtype == one.variance.dtype == torch.float32
    torch.testing.assert_close(one.mean.double(), other.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.variance.double(), other.variance, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(narrow.kl().double(), wide.kl(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_kernel
def test_duplicated_inducing_inputs(kernel: KernelName, dtype: torch.dtype) -> None:
    """The nugget alone makes K_uu positive definite, and q = prior stays the prior."""
    prior = Prior.from_data(X.to(dtype), kernel=kernel)
    posterior = SparsePosterior(prior, Z.repeat(3, 1).to(dtype))
    assert posterior.factor()[1].item() == 0
    variance = posterior.marginals(X.to(dtype)).variance
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(variance, prior.variance(X.to(dtype)), rtol=tolerance, atol=0)


@each_kernel
def test_asking_for_gradients_changes_no_value(kernel: KernelName) -> None:
    """gpytorch's distances are of two accuracies, with a gradient and without; √eps is 1.5e-8."""
    posterior = somewhere(kernel)
    with torch.no_grad():
        held, jitter = posterior.factor()
    free, _ = posterior.factor()
    torch.testing.assert_close(free, held, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(
        posterior.predict(X).variance, posterior.marginals(X).variance, rtol=1e-12, atol=0
    )
    assert jitter.item() == 0


@each_kernel
def test_gradients_through_marginals_and_kl(kernel: KernelName) -> None:
    """Every parameter against central differences; a nugget of 1e-4 keeps those accurate."""
    posterior = somewhere(kernel, nugget=1e-4)
    weights = random(2, N, seed=6)

    def loss() -> Tensor:
        marginals = posterior.marginals(X)
        data = weights[0] * marginals.mean.sin() + weights[1] * marginals.variance.log()
        return data.sum() + 0.3 * posterior.kl()

    loss().backward()
    checked = set()
    for name, parameter in posterior.named_parameters():
        assert parameter.grad is not None
        flat, slopes = parameter.data.view(-1), parameter.grad.view(-1)
        for i in range(len(flat)):
            start, ends = flat[i].item(), []
            for step in (1e-5, -1e-5):
                flat[i] = start + step
                ends.append(loss().item())
            flat[i] = start
            numeric = (ends[0] - ends[1]) / 2e-5
            assert slopes[i].item() == pytest.approx(numeric, rel=1e-6, abs=1e-7), (name, i)
        checked.add(name.split(".")[-1])
    parts = {"Z", "u_mean", "u_chol", "raw_output_scale", "raw_lengthscale", "raw_constant"}
    assert checked == parts


def test_constant_features_give_the_same_marginals_and_gradients_to_q() -> None:
    posterior = somewhere()
    features = posterior.features(X)
    assert not any(part.requires_grad for part in features)
    short, full = posterior.marginals_at(features), posterior.marginals(X)
    q = [posterior.u_mean, posterior.u_chol]
    for name in ("mean", "variance"):
        one, other = getattr(short, name), getattr(full, name)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        slopes = torch.autograd.grad(one.sin().sum(), q, allow_unused=True)
        known = torch.autograd.grad(other.sin().sum(), q, retain_graph=True)
        for slope, value in zip(slopes, known, strict=True):
            expected = torch.zeros_like(value) if slope is None else slope
            torch.testing.assert_close(expected, value, rtol=1e-11, atol=1e-11)


def test_constant_features_stay_when_the_posterior_moves() -> None:
    posterior = somewhere()
    features = posterior.features(X)
    before = [part.clone() for part in features]
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(one, two) for one, two in zip(features, before, strict=True))


def test_reset_returns_to_the_prior() -> None:
    posterior = somewhere()
    posterior.reset()
    assert posterior.kl().item() == 0
    assert torch.equal(posterior.u_chol, torch.eye(M).double())
    torch.testing.assert_close(
        posterior.marginals(X).variance, posterior.prior.variance(X), rtol=1e-13, atol=0
    )


@each_kernel
@pytest.mark.parametrize("shared_prior", [False, True])
def test_a_batch_is_its_members(kernel: KernelName, shared_prior: bool) -> None:
    single = somewhere(kernel)
    batch = single.repeated(3, shared_prior)
    assert batch.u_mean.shape == (3, M)
    assert batch.u_chol.shape == (3, M, M)
    assert batch.Z.shape == ((M, D) if shared_prior else (3, M, D))
    with torch.no_grad():
        for i, parameter in enumerate(batch.parameters()):
            parameter.add_(0.1 * random(*parameter.shape, seed=i))
    marginals, predicted, kl = batch.marginals(X), batch.predict(X, 4), batch.kl()
    assert marginals.mean.shape == marginals.variance.shape == (3, N)
    torch.testing.assert_close(predicted.mean, marginals.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(predicted.variance, marginals.variance, rtol=1e-12, atol=1e-12)
    assert batch.sample(X, 4, seeded()).shape == (4, 3, N)
    for i in range(3):
        member = batch.member(i, single)
        expected = member.marginals(X)
        torch.testing.assert_close(marginals.mean[i], expected.mean, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(marginals.variance[i], expected.variance, rtol=1e-11, atol=0)
        torch.testing.assert_close(kl[i], member.kl(), rtol=1e-12, atol=0)
    assert not torch.allclose(marginals.mean[0], marginals.mean[1])


@pytest.mark.parametrize("shared_prior", [False, True])
def test_gradients_of_a_batch_are_those_of_its_members(shared_prior: bool) -> None:
    single = somewhere()
    batch = single.repeated(3, shared_prior)
    with torch.no_grad():
        for i, parameter in enumerate(batch.parameters()):
            parameter.add_(0.1 * random(*parameter.shape, seed=i))
    members = [batch.member(i, single) for i in range(3)]
    for posterior in (batch, *members):
        marginals = posterior.marginals(X)
        (marginals.mean.sin().sum() + marginals.variance.log().sum()).backward()
    for name, parameter in batch.named_parameters():
        slopes = [dict(member.named_parameters())[name].grad for member in members]
        together = torch.stack([slope for slope in slopes if slope is not None])
        if parameter.shape != together.shape:
            together = together.sum(0)
        torch.testing.assert_close(parameter.grad, together, rtol=1e-9, atol=1e-10, msg=name)


def test_repeating_keeps_what_is_held() -> None:
    single = somewhere()
    single.Z.requires_grad_(False)
    batch = single.repeated(2, shared_prior=False)
    assert not batch.Z.requires_grad
    assert batch.u_mean.requires_grad
    assert single.u_mean.shape == (M,)


def test_joint_samples_of_a_batch_follow_their_members() -> None:
    single, number = somewhere(), 20_000
    batch = single.repeated(2, shared_prior=False)
    with torch.no_grad():
        batch.u_mean[1].add_(1.0)
        batch.u_chol[1].mul_(2.0)
    draws = batch.sample(X, number, seeded(7))
    marginals = batch.predict(X)
    error = (marginals.variance / number).sqrt()
    assert bool(((draws.mean(0) - marginals.mean).abs() < 5 * error).all())
    ratio = draws.var(0) / marginals.variance
    assert bool(((ratio - 1).abs() < 5 * (2 / number) ** 0.5).all())


def test_from_data() -> None:
    many = random(200, D)
    y = random(200, seed=1)
    posterior = SparsePosterior.from_data(
        many, y, num_inducing=20, kernel="matern32", ard=True, mean="constant", generator=seeded()
    )
    assert posterior.Z.shape == (20, D)
    assert posterior.prior.kernel.nu == 1.5
    assert posterior.prior.kernel.lengthscale.shape == (1, D)
    assert posterior.marginals(many).mean[0].item() == pytest.approx(y.mean().item())
    assert SparsePosterior.from_data(many[:7]).Z.shape == (7, D)
    same = SparsePosterior.from_data(many, num_inducing=20, generator=seeded())
    assert torch.equal(posterior.Z, same.Z)


def test_Z_is_copied() -> None:
    inputs = Z.clone()
    posterior = SparsePosterior(Prior.from_data(X), inputs)
    inputs.zero_()
    assert torch.equal(posterior.Z, Z)


# Refusals, as a user meets them.


def with_nan(values: Tensor) -> Tensor:
    spoilt = values.clone()
    spoilt[1, 0] = torch.nan
    return spoilt


BAD_INPUTS = {
    "narrow": (X[:, :1], r"must be of shape \(n, 2\)\. Got shape \(15, 1\)\."),
    "wide": (random(N, 3), r"must be of shape \(n, 2\)\. Got shape \(15, 3\)\."),
    "one row": (X[0], r"must be of shape \(n, 2\)\. Got shape \(2,\)\."),
    "nan": (with_nan(X), r"must be finite\. Got NaN or infinity\."),
    "infinite": (X / 0, r"must be finite\. Got NaN or infinity\."),
    "float32": (X.float(), r"must be of the posterior's dtype torch\.float64\. Got torch\.float32"),
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("inputs", "words"), BAD_INPUTS.values(), ids=list(BAD_INPUTS))
def test_refuses_bad_inputs(inputs: Tensor, words: str) -> None:
    with pytest.raises(InvalidInputError, match=f"X of predict {words}"):
        somewhere().predict(inputs)
    with pytest.raises(InvalidInputError, match=f"X of sample {words}"):
        somewhere().sample(inputs)


@pytest.mark.usefixtures("without_shape_checks")
def test_marginals_do_not_stretch_a_narrow_input() -> None:
    """Divided by two lengthscales, one column would become two."""
    with pytest.raises(InvalidInputError, match=r"X must be of shape \(n, 2\)"):
        somewhere().marginals(X[:, :1])


BAD_Z = {
    "one axis": (Z[0], r"of shape \(m, d\)"),
    "empty": (Z[:0], r"of shape \(m, d\) with m ≥ 1\. Got shape \(0, 2\)"),
    "nan": (with_nan(Z), r"finite"),
    "float32": (Z.float(), r"of the prior's dtype torch\.float64"),
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("inputs", "words"), BAD_Z.values(), ids=list(BAD_Z))
def test_refuses_bad_inducing_inputs(inputs: Tensor, words: str) -> None:
    with pytest.raises(InvalidInputError, match=f"Z of SparsePosterior must be {words}"):
        SparsePosterior(Prior.from_data(X), inputs)


def test_refuses_empty_blocks_and_no_samples() -> None:
    with pytest.raises(InvalidInputError, match=r"block_size of predict must be at least 1"):
        somewhere().predict(X, 0)
    with pytest.raises(InvalidInputError, match=r"num_samples of sample must be at least 1"):
        somewhere().sample(X, 0)


def test_predict_where_the_products_of_distances_overflow() -> None:
    X = 1e-9 * torch.randn(8, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    posterior = SparsePosterior.from_data(X, num_inducing=3)
    with torch.no_grad():
        posterior.u_mean.fill_(1.0)
    far = posterior.predict(torch.tensor([[0.0], [1e6], [-1e12]]))
    assert bool(torch.isfinite(far.mean).all()) and float(far.mean[0]) != 0.0
    assert far.mean[1:].tolist() == [0.0, 0.0]
    scale = float(posterior.prior.output_scale.detach())
    assert far.variance[1:].tolist() == pytest.approx([scale, scale], rel=1e-6)
