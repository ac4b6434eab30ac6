"""Marginals without a tape, and gradients through them, equal those of the tape."""

from typing import Any, NamedTuple, get_args

import pytest
import torch
from torch import Tensor

from directgp.posteriors import SparsePosterior, blocks
from directgp.posteriors.marginals import KernelMarginals, Stationary
from directgp.posteriors.prior import Prior
from directgp.posteriors.projection import residual_variance, whiten
from directgp.registry import KernelName

M, N, D = 5, 8, 3
ALL = "mean variance residual kl"
MARGINALS = "mean variance kl"
"""Outputs that a loss depends on."""

each_kernel = pytest.mark.parametrize("kernel", get_args(KernelName))
each_ard = pytest.mark.parametrize("ard", [True, False], ids=["ARD", "isotropic"])
each_sharing = pytest.mark.parametrize("shared", [True, False], ids=["shared prior", "own priors"])


def use_library(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setattr(blocks, "_ONE_THREAD", 2**60 if library == "numpy" else -1)


@pytest.fixture(params=["numpy", "torch"])
def library(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> str:
    """The library that computes models without batch axes."""
    name: str = request.param
    use_library(monkeypatch, name)
    return name


each_library = pytest.mark.usefixtures("library")


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def points(n: int = N, d: int = D) -> Tensor:
    return random(n, d, seed=5)


def model(
    kernel: KernelName = "rbf",
    ard: bool = True,
    m: int = M,
    d: int = D,
    nugget: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> SparsePosterior:
    """A posterior with random parameters; those of float32 are rounded."""
    prior = Prior.from_data(points(d=d), kernel=kernel, ard=ard, mean="constant")
    posterior = SparsePosterior(prior, random(m, d), nugget)
    with torch.no_grad():
        for seed, parameter in enumerate(prior.parameters()):
            parameter.add_(0.3 * random(*parameter.shape, seed=seed))
        posterior.u_mean.copy_(random(m, seed=3))
        S = 0.6 / m**0.5 * random(m, m, seed=4) + torch.eye(m, dtype=torch.float64)
        posterior.u_chol.copy_(S.tril())
    return posterior.to(dtype)


def batch_of(single: SparsePosterior, shared: bool, number: int = 3) -> SparsePosterior:
    """Models with parameters of their own, but for a prior that they share."""
    many = single.repeated(number, shared_prior=shared)
    with torch.no_grad():
        for seed, parameter in enumerate(many.parameters()):
            if parameter.shape[:1] == (number,):
                parameter.add_(0.1 * random(*parameter.shape, seed=seed))
        many.u_chol.copy_(many.u_chol.tril())
    return many


class Weights(NamedTuple):
    """Slopes of a loss in mean, variance, residual and KL."""

    mean: Tensor
    variance: Tensor
    residual: Tensor
    kl: Tensor

    def to(self, dtype: torch.dtype) -> "Weights":
        return Weights(*(row.to(dtype) for row in self))

    def rows(self, index: list[int]) -> "Weights":
        mean, variance, residual = (row[index] for row in self[:3])
        return Weights(mean, variance, residual, self.kl)


def weights_of(posterior: SparsePosterior, n: int, chosen: str = ALL) -> Weights:
    """Random numbers, and 0 for what is not chosen."""
    batch = posterior.u_mean.shape[:-1]
    shapes = [(*batch, n)] * 3 + [batch]
    found = [random(*shape, seed=10 + i) for i, shape in enumerate(shapes)]
    chosen_rows = [row * (name in chosen) for name, row in zip(ALL.split(), found, strict=True)]
    return Weights(*chosen_rows).to(posterior.u_mean.dtype)


Found = dict[str, Tensor]
"""Mean and variance, and the gradient of a loss in every parameter."""


def by_tape(posterior: SparsePosterior, X: Tensor, weights: Weights) -> Found:
    posterior.zero_grad()
    q = posterior.marginals(X)
    loss = (weights.mean * q.mean).sum() + (weights.variance * q.variance).sum()
    loss = loss + (weights.kl * posterior.kl()).sum()
    if bool(weights.residual.any()):
        cross = posterior.cross(X)
        residual = residual_variance(cross.k_diag, whiten(cross.L, cross.Kuf))
        loss = loss + (weights.residual * residual).sum()
    loss.backward()
    slopes = {name: p.grad for name, p in posterior.named_parameters()}
    found = {name: slope for name, slope in slopes.items() if slope is not None}
    return {"mean": q.mean.detach(), "variance": q.variance.detach(), **found}


def without_tape(
    posterior: SparsePosterior,
    X: Tensor,
    weights: Weights,
    fused: KernelMarginals[Any, Any] | None = None,
) -> Found:
    fused = fused or posterior.fused(len(X), X)
    prior, natural = posterior.prior, posterior.prior.natural()
    kl: Any = weights.kl if weights.kl.ndim else float(weights.kl)
    with torch.no_grad():
        fused.set_prior(posterior.Z, natural)
        fused.set_q(posterior.u_mean, posterior.u_chol)
        mean, variance = fused.marginals(X)
        q = {"mean": natural.plus_constant(mean), "variance": variance}
        residual = weights.residual if bool(weights.residual.any()) else None
        slopes = fused.gradient(weights.mean, weights.variance, kl, residual)
        found = {"Z": slopes.Z, "u_mean": slopes.u_mean, "u_chol": slopes.u_chol}
        if slopes.Z.shape != posterior.Z.shape:
            slopes = slopes._replace(Z=slopes.Z.sum(0), log_scale=slopes.log_scale.sum(0))
            if isinstance(slopes.kernel, Tensor):
                # An expression sums over models itself.
                slopes = slopes._replace(kernel=slopes.kernel.sum(0))
            found["Z"] = slopes.Z
        names = {id(p): name for name, p in posterior.named_parameters()}
        constant = weights.mean.sum(-1).sum_to_size(natural.scale.shape)
        raw = prior.raw_gradients(slopes.kernel, slopes.log_scale, constant)
        found |= {names[id(p)]: slope for p, slope in raw}
        # The buffers are written to by the next call.
        return {name: value.clone() for name, value in (q | found).items()}


def assert_same(ours: Found, theirs: Found, tolerance: float = 1e-9) -> None:
    """Up to a share of the largest entry of each."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        share = tolerance * max(1e-6, float(expected.abs().max()))
        found = ours[name].to(expected.dtype)
        difference = float((found - expected).abs().max())
        assert difference <= share, f"{name}: {difference:.3g} > {share:.3g}"


@each_library
@each_kernel
@each_ard
@pytest.mark.parametrize("chosen", ["mean", "variance", "residual", "kl", MARGINALS, ALL])
def test_values_and_gradients_are_those_of_the_tape(
    kernel: KernelName, ard: bool, chosen: str
) -> None:
    """For a loss of any of the outputs."""
    posterior, X = model(kernel, ard), points()
    weights = weights_of(posterior, N, chosen)
    assert_same(without_tape(posterior, X, weights), by_tape(posterior, X, weights))


def test_a_wrong_gradient_is_noticed() -> None:
    posterior, X = model(), points()
    weights = weights_of(posterior, N, MARGINALS)
    theirs = by_tape(posterior, X, weights)
    for name in theirs:
        ours = without_tape(posterior, X, weights)
        ours[name] = ours[name] * (1 + 1e-8)
        with pytest.raises(AssertionError, match=name):
            assert_same(ours, theirs)


@each_library
@each_kernel
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (7, 1, 2), (1, 6, 1), (40, 12, 1)])
def test_any_shape(kernel: KernelName, n: int, m: int, d: int) -> None:
    posterior, X = model(kernel, m=m, d=d, nugget=1e-3), points(n, d)
    weights = weights_of(posterior, n, MARGINALS)
    assert_same(without_tape(posterior, X, weights), by_tape(posterior, X, weights))


@each_library
@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_large_sizes_go_by_bands(kernel: KernelName) -> None:
    """With many inducing inputs, products leave out the triangles that are zero."""
    posterior, X = model(kernel, m=261, nugget=1e-4), points(20)
    weights = weights_of(posterior, 20)
    # K_uu has a condition of up to 261/1e-4.
    assert_same(without_tape(posterior, X, weights), by_tape(posterior, X, weights), 1e-8)


@each_library
@each_kernel
@pytest.mark.parametrize("entries", [1, 3 * M, 4 * M])
def test_blocks_of_rows_add_up(
    kernel: KernelName, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks.Projection, "cpu_entries", entries)
    posterior, X = model(kernel), points()
    fused = posterior.fused(N, X)
    weights = weights_of(posterior, N)
    ours = without_tape(posterior, X, weights, fused)
    assert len(fused.used) == min(N, -(-N * M // entries))
    assert_same(ours, by_tape(posterior, X, weights))


@each_kernel
@each_ard
@each_sharing
@pytest.mark.parametrize("entries", [2**22, 3 * M * 3], ids=["one block", "blocks"])
def test_a_batch_of_models(
    kernel: KernelName, ard: bool, shared: bool, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient in a prior that models share is the sum of theirs."""
    monkeypatch.setattr(blocks.Projection, "cpu_entries", entries)
    posterior, X = batch_of(model(kernel, ard), shared), points()
    weights = weights_of(posterior, N)
    assert_same(without_tape(posterior, X, weights), by_tape(posterior, X, weights))


@each_sharing
def test_a_batch_of_many_inducing_inputs(shared: bool) -> None:
    posterior, X = batch_of(model(m=131, nugget=1e-3), shared), points(20)
    weights = weights_of(posterior, 20, MARGINALS)
    assert_same(without_tape(posterior, X, weights), by_tape(posterior, X, weights), 1e-8)


@each_kernel
@each_ard
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numpy_and_torch_agree(
    kernel: KernelName,
    ard: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    two_threads: None,
) -> None:
    posterior, X = model(kernel, ard, dtype=dtype), points().to(dtype)
    weights = weights_of(posterior, N)
    found = []
    for name in ("numpy", "torch"):
        use_library(monkeypatch, name)
        fused = posterior.fused(N, X)
        assert fused.xp.__name__ == name
        found.append(without_tape(posterior, X, weights, fused))
    by_numpy, by_torch = found
    assert_same(by_numpy, by_torch, tolerance=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("number", [1, 2])
def test_few_entries_are_computed_in_one_thread(
    number: int, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    """Threads of torch and those of BLAS wait for each other."""
    posterior, X = model("rbf", True), points()
    posterior = posterior if number == 1 else posterior.with_latents(number)
    for most, threads in ((N * posterior.num_inducing, 1), (0, 2)):
        monkeypatch.setattr(blocks, "_ONE_THREAD", most)
        with posterior.fused(N, X).threads():
            assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2


@each_library
@each_kernel
@each_ard
def test_float32_keeps_its_digits(kernel: KernelName, ard: bool) -> None:
    """K_uu is built and factorised in float64, so what is left is rounding of what comes in."""
    narrow = model(kernel, ard, nugget=1e-5, dtype=torch.float32)
    X, weights = points().float(), weights_of(narrow, N)
    ours = without_tape(narrow, X, weights)
    assert all(value.dtype == torch.float32 for value in ours.values())
    theirs = by_tape(narrow.double(), X.double(), weights.to(torch.float64))
    assert_same(ours, theirs, 1e-4)


@each_library
def test_float32_knows_small_variances() -> None:
    """Close inducing inputs and a narrow q(u): little is left of s² − ΣA²."""
    X, Z = (torch.linspace(-3, 3, n).reshape(-1, 1) for n in (40, 60))
    posterior = SparsePosterior(Prior.from_data(X), Z)
    posterior.prior.kernel.lengthscale = 1.0
    posterior.set_q(torch.zeros(60), 1e-3 * torch.eye(60))
    narrow = posterior.predict(X).variance
    wide = posterior.double().predict(X.double()).variance
    assert float(wide.max()) < 2e-5
    # K_uf of float32 is off by 6e-8, and L⁻¹ is up to 300.
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=2e-6)


@each_library
@each_kernel
def test_float32_keeps_its_digits_over_many_lengthscales(kernel: KernelName) -> None:
    """Distances are small differences of large inputs: products of these would lose the digits."""
    X = torch.linspace(0, 300, 400).reshape(-1, 1)
    posterior = SparsePosterior(Prior.from_data(X, kernel=kernel), X[::4], nugget=1e-5)
    posterior.prior.kernel.lengthscale = 1.0
    posterior.set_q(random(100, seed=3).float(), 0.1 * torch.eye(100))
    narrow = posterior.predict(X)
    with torch.no_grad():
        wide = posterior.double().marginals(X.double())
    torch.testing.assert_close(narrow.mean.double(), wide.mean, rtol=0, atol=3e-4)
    torch.testing.assert_close(narrow.variance.double(), wide.variance, rtol=1e-3, atol=0)


@each_library
@each_kernel
@pytest.mark.parametrize("far", [1e8, 1e300])
def test_far_inputs_have_the_prior(kernel: KernelName, far: float) -> None:
    """Also where squares of distances overflow; the gradients of the others keep their digits."""
    posterior, X = model(kernel), points()
    natural, weights = posterior.prior.natural(), weights_of(posterior, N, MARGINALS)
    assert natural.constant is not None
    away, near = [1, 4], [0, 2, 3, 5, 6, 7]
    assert isinstance(natural.kernel, Stationary)
    X[1] = far * float(natural.kernel.lengthscale.max())
    X[4] = -X[1]
    ours = without_tape(posterior, X, weights)
    for row in away:
        torch.testing.assert_close(ours["mean"][row], natural.constant, rtol=1e-15, atol=0)
        torch.testing.assert_close(ours["variance"][row], natural.scale, rtol=1e-15, atol=0)
    theirs = by_tape(posterior, X[near], weights.rows(near))
    # A far row acts through its mean, the constant, and its variance, the scale.
    zero = torch.zeros_like(natural.kernel.lengthscale)
    slopes = weights.variance[away].sum() * natural.scale, weights.mean[away].sum()
    names = {id(p): name for name, p in posterior.named_parameters()}
    for parameter, slope in posterior.prior.raw_gradients(zero, *slopes):
        theirs[names[id(parameter)]] += slope
    ours |= {name: ours[name][near] for name in ("mean", "variance")}
    assert_same(ours, theirs)


@each_library
@each_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_far_inducing_input_costs_the_others_no_digits(
    kernel: KernelName, dtype: torch.dtype
) -> None:
    posterior, X = model(kernel, nugget=1e-5, dtype=dtype), points().to(dtype)
    with torch.no_grad():
        posterior.Z[0] = 1e8
    weights = weights_of(posterior, N, MARGINALS)
    ours = without_tape(posterior, X, weights)
    assert not bool(ours["Z"][0].any())
    with torch.no_grad():
        # As independent of the others, and near enough for `rbf_gram`, whose centre is the mean.
        posterior.Z[0] = 1e3
    theirs = by_tape(posterior.double(), X.double(), weights.to(torch.float64))
    assert_same(ours, theirs, 1e-9 if dtype == torch.float64 else 1e-4)


@each_library
@each_kernel
@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_inputs_far_from_the_origin(kernel: KernelName, shift: float) -> None:
    """X + 1e6 is itself rounded to 1e-10, and nothing more is lost."""
    posterior, X = model(kernel), points()
    weights = weights_of(posterior, N, MARGINALS)
    theirs = by_tape(posterior, X, weights)
    with torch.no_grad():
        posterior.Z.add_(shift)
    # Slopes of r, √D² for ν = ½, have D in the denominator.
    assert_same(without_tape(posterior, X + shift, weights), theirs, 1e-7)


@each_library
@each_kernel
@each_ard
def test_coincident_inputs(kernel: KernelName, ard: bool) -> None:
    """Rows at inducing inputs, where distances are 0, and two rows at one place."""
    posterior, X = model(kernel, ard), points()
    X[:3], X[5] = posterior.Z.detach()[:3], X[4]
    weights = weights_of(posterior, N)
    ours, theirs = without_tape(posterior, X, weights), by_tape(posterior, X, weights)
    assert all(bool(value.isfinite().all()) for value in ours.values())
    # Little is left of the residual at an inducing input: its value has an error of rounding, and
    # where it is at its lower bound the tape has no gradient.
    torch.testing.assert_close(ours["variance"], theirs["variance"], rtol=0, atol=1e-14)
    assert_same(ours, theirs, 1e-7)


@each_library
@each_kernel
def test_coincident_inducing_inputs(kernel: KernelName) -> None:
    """The nugget keeps K_uu positive definite."""
    posterior, X = model(kernel, nugget=1e-4), points()
    with torch.no_grad():
        posterior.Z[1] = posterior.Z[0]
    weights = weights_of(posterior, N)
    assert_same(without_tape(posterior, X, weights), by_tape(posterior, X, weights), 1e-8)


@each_library
@each_kernel
def test_a_gram_matrix_that_needs_jitter(kernel: KernelName) -> None:
    """Inducing inputs at one place, and less than no nugget: K_uu has a negative eigenvalue."""
    posterior, X = model(kernel, nugget=-3e-9), points()
    with torch.no_grad():
        posterior.Z[1] = posterior.Z[0]
    fused = posterior.fused(N, X)
    weights = weights_of(posterior, N, MARGINALS)
    ours, theirs = without_tape(posterior, X, weights, fused), by_tape(posterior, X, weights)
    assert 0 < float(fused.jitter) < 1e-7
    # K_uu has a condition of 1e10.
    assert_same(ours, theirs, 1e-4)


def test_without_checks_jitter_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    use_library(monkeypatch, "torch")
    posterior, X = model(nugget=-1.0), points()
    fused = posterior.fused(N, X)
    with torch.no_grad():
        fused.set_prior(posterior.Z, posterior.prior.natural(), checked=False)
        fused.set_q(posterior.u_mean, posterior.u_chol)
        mean, _ = fused.marginals(X)
    assert bool(mean.isnan().any()), "there is NaN, and no error"


@each_library
def test_buffers_are_reused_and_leave_no_trace() -> None:
    """Calls for other parameters and other numbers of rows change nothing but memory."""
    posterior, start, places = model(), points(), []
    kept = posterior.fused(N, start)
    for step, n in enumerate((N, N, 3, N, 11, N)):
        with torch.no_grad():
            for parameter in posterior.parameters():
                parameter.mul_(1 + 0.01 * step)
        X, weights = points(n) + 0.1 * step, weights_of(posterior, n)
        ours = without_tape(posterior, X, weights, kept)
        theirs = without_tape(posterior, X, weights, posterior.fused(N, start))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        if n == N:
            places.append([result.data_ptr() for result in kept.results])
    assert all(place == places[0] for place in places)


@each_library
@each_kernel
def test_arguments_are_not_written_to(kernel: KernelName) -> None:
    posterior, X = model(kernel), points()
    weights = weights_of(posterior, N)
    given = [X, weights.mean, weights.variance, weights.residual, *posterior.parameters()]
    before = [each.detach().clone() for each in given]
    without_tape(posterior, X, weights)
    assert all(torch.equal(each.detach(), was) for each, was in zip(given, before, strict=True))


@each_library
@each_kernel
def test_q_may_depend_on_the_features(kernel: KernelName) -> None:
    """`whiten`, `weighted_gram`, `set_q` and `project` in place of `set_q` and `marginals`."""
    posterior, X = model(kernel), points()
    fused, other = posterior.fused(N, X), posterior.fused(N, X)
    features, precision, target = posterior.features(X), random(N, seed=7).square(), random(N)
    with torch.no_grad():
        for each in (fused, other):
            each.set_prior(posterior.Z, posterior.prior.natural())
        torch.testing.assert_close(fused.whiten(X), features.residual, rtol=1e-10, atol=1e-12)
        gram, b = fused.weighted_gram(precision, target)
        A = features.A
        torch.testing.assert_close(gram, (A * precision) @ A.mT, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(b, A @ target, rtol=1e-10, atol=1e-12)
        for each in (fused, other):
            each.set_q(posterior.u_mean, posterior.u_chol)
        for one, two in zip(fused.project(), other.marginals(X), strict=True):
            assert torch.equal(one, two)
        g_mean, g_variance = random(N, seed=8), random(N, seed=9)
        slopes = [each.gradient(g_mean, g_variance, 0.3) for each in (fused, other)]
        assert all(torch.equal(one, two) for one, two in zip(*slopes, strict=True))


@each_kernel
@pytest.mark.parametrize("shared", [None, True, False], ids=["one", "shared prior", "own priors"])
@pytest.mark.parametrize("block_size", [None, 1, 3])
def test_predictions_are_the_marginals(
    kernel: KernelName, shared: bool | None, block_size: int | None
) -> None:
    posterior, X = model(kernel), points()
    if shared is not None:
        posterior = batch_of(posterior, shared)
    found, expected = posterior.predict(X, block_size), posterior.marginals(X)
    torch.testing.assert_close(found.mean, expected.mean.detach(), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.variance, expected.variance.detach(), rtol=1e-11, atol=1e-12)
