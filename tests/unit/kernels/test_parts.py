"""Values and gradients by hand against the definition with a tape, and against differences."""

import numpy as np
import pytest
import torch
from torch import Tensor

from directgp.errors import InvalidInputError
from directgp.kernels import ColumnFacts
from directgp.kernels.evaluation import KernelArrays, evaluate, evaluate_variance
from directgp.kernels.structured import StructuredGradient, StructuredKernel
from tests.unit.kernels.columns import COLUMNS, EXPRESSIONS, PARTS, inputs

N = 30
M = 7
RELATIVE = 1e-9


def kernel_of(text: str, X: Tensor, seed: int = 1) -> StructuredKernel:
    """Return the kernel of an expression, with parameters away from their start."""
    kernel = StructuredKernel.from_data(text, X, COLUMNS)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).double())
    return kernel


def by_hand(
    kernel: StructuredKernel, Z: Tensor, X: Tensor, G: Tensor, g: Tensor, numpy: bool, exact: bool
) -> tuple[Tensor, Tensor, Tensor, dict[int, Tensor]]:
    """Return covariance, variance, and the gradients of ΣG∘K + Σg·k in Z and raw parameters."""

    def array(tensor: Tensor) -> object:
        return tensor.detach().numpy() if numpy else tensor.detach()

    arrays = KernelArrays.of(kernel.natural(), array)
    evaluation = evaluate(arrays, array(Z), array(X), exact=exact)
    gradient = evaluation.backward(array(G))
    values = [dict(of_part) for of_part in gradient.values]
    shares = gradient.shares
    variances = evaluate_variance(arrays, array(X))
    k = torch.ones(len(X)).double()
    if variances is not None:
        k = torch.as_tensor(variances.value)
        more = variances.backward(array(g))
        shares = shares + more.shares
        for of_part, others in zip(values, more.values, strict=True):
            for name, value in others.items():
                of_part[name] = of_part[name] + value
    tensors = [{name: torch.as_tensor(v) for name, v in of_part.items()} for of_part in values]
    raw = kernel.raw_gradients(StructuredGradient(tensors, torch.as_tensor(shares)))
    in_Z = torch.as_tensor(gradient.inputs)
    return torch.as_tensor(evaluation.value), k, in_Z, {id(p): value for p, value in raw}


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "torch"])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_values_and_gradients_are_those_of_the_definition(
    text: str, exact: bool, numpy: bool
) -> None:
    X = inputs(N)
    kernel = kernel_of(text, X)
    Z = (X[:M] + 0.05).clone()
    Z[:, 3] = X[:M, 3]
    generator = torch.Generator().manual_seed(2)
    G = torch.randn(M, N, generator=generator, dtype=torch.float64)
    g = torch.randn(N, generator=generator, dtype=torch.float64)
    value, k, in_Z, raw = by_hand(kernel, Z, X, G, g, numpy, exact)

    Z = Z.requires_grad_()
    for parameter in kernel.parameters():
        parameter.requires_grad_(True)
    expected = kernel.covariance(Z, X)
    variance = kernel.variance(X)
    ((expected * G).sum() + (variance * g).sum()).backward()
    torch.testing.assert_close(value, expected.detach(), rtol=RELATIVE, atol=RELATIVE)
    torch.testing.assert_close(k, variance.detach(), rtol=RELATIVE, atol=RELATIVE)
    gradient = torch.zeros_like(Z) if Z.grad is None else Z.grad
    torch.testing.assert_close(in_Z, gradient, rtol=RELATIVE, atol=RELATIVE)
    for parameter in kernel.parameters():
        torch.testing.assert_close(raw[id(parameter)], parameter.grad, rtol=RELATIVE, atol=RELATIVE)


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_derivatives_of_the_definition_are_limits_of_differences(text: str) -> None:
    X = inputs(N)
    kernel = kernel_of(text, X)
    a = X[:3].clone()
    b = (X[10:14] + 0.1).clone()
    b[:, 3] = X[10:14, 3]
    smooth = [j for j in range(X.shape[1]) if j != 3]

    def covariance(part: Tensor, *parameters: Tensor) -> Tensor:
        moved = a.clone()
        moved[:, smooth] = part
        for (name, _), parameter in zip(kernel.named_parameters(), parameters, strict=True):
            named[name] = parameter
        value: Tensor = torch.func.functional_call(kernel, named, (moved, b), tie_weights=False)
        return value

    named = dict(kernel.named_buffers())
    kernel.forward = kernel.covariance
    arguments = [a[:, smooth].clone(), *(p.detach().clone() for p in kernel.parameters())]
    for argument in arguments:
        argument.requires_grad_(True)
    assert torch.autograd.gradcheck(covariance, tuple(arguments), atol=1e-7)


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_covariance_matrices_are_positive_semidefinite(text: str) -> None:
    X = inputs(N)
    kernel = kernel_of(text, X)
    with torch.no_grad():
        K = kernel.covariance(X, X)
        torch.testing.assert_close(K.diagonal(), kernel.variance(X), rtol=1e-12, atol=1e-12)
        smallest = torch.linalg.eigvalsh(K).min()
    assert float(smallest) > -1e-12 * N


@pytest.mark.parametrize("text", [*PARTS, *EXPRESSIONS])
def test_a_batch_of_kernels_has_the_values_of_its_members(text: str) -> None:
    X = inputs(N)
    members = [kernel_of(text, X, seed) for seed in (1, 2)]
    batch = kernel_of(text, X)
    for name, _ in batch.named_parameters():
        both = torch.stack([getattr(member, name).detach() for member in members])
        setattr(batch, name, torch.nn.Parameter(both))
    Z = torch.stack([X[:M], X[M : 2 * M]])
    G = torch.randn(2, M, N, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    g = torch.ones(2, N, dtype=torch.float64)
    value, k, in_Z, raw = by_hand(batch, Z, X, G, g, numpy=False, exact=False)
    for index, member in enumerate(members):
        alone = by_hand(member, Z[index], X, G[index], g[index], numpy=False, exact=False)
        torch.testing.assert_close(value[index], alone[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(k.expand(2, N)[index], alone[1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(in_Z[index], alone[2], rtol=1e-10, atol=1e-10)
        for name, parameter in batch.named_parameters():
            expected = alone[3][id(getattr(member, name))]
            torch.testing.assert_close(raw[id(parameter)][index], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            batch.covariance(Z, X)[index], member.covariance(Z[index], X), rtol=1e-12, atol=1e-12
        )


def test_two_levels_are_as_far_apart_as_indicators_of_one_half() -> None:
    # Columns of 0 and ½√2 for each level have the distance 1 between any two levels.
    X = inputs(N)
    indicators = torch.nn.functional.one_hot(X[:, 3].long().clamp(min=0) + 1).double() * 0.5**0.5
    indicators[X[:, 3] < 0] = 0.0
    indicators[X[:, 3] < 0, 0] = 0.5**0.5
    kernel = StructuredKernel.from_data("Matern32('x', 'city')", X, COLUMNS)
    own, of_levels = kernel.values()[0]["lengthscale"][0]
    wide = torch.cat([X[:, :1] / own, indicators / of_levels], 1)
    D = 3**0.5 * torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist")
    expected = (1 + D) * torch.exp(-D)
    torch.testing.assert_close(kernel.covariance(X, X), expected, rtol=1e-12, atol=1e-12)


def test_a_season_repeats_after_its_period_in_days() -> None:
    X = inputs(N)
    kernel = StructuredKernel.from_data("Periodic('date', period='1y')", X, COLUMNS)
    later = X.clone()
    later[:, 2] += 365.2425 / 100.0
    K, again = kernel.covariance(X, X), kernel.covariance(X, later)
    torch.testing.assert_close(K, again, rtol=1e-12, atol=1e-12)


def test_places_on_both_sides_of_the_date_line_are_near() -> None:
    columns = [ColumnFacts("lat", kind="place"), ColumnFacts("lon", kind="place")]
    places = [[10.0, 179.9], [10.0, -179.9], [10.0, 175.0], [-60.0, 20.0]]
    X = torch.tensor(places, dtype=torch.float64)
    kernel = StructuredKernel.from_data("Sphere('lat', 'lon')", X, columns)
    K = kernel.covariance(X, X).detach()
    assert float(K[0, 1]) > 0.99 > float(K[0, 2]) > float(K[0, 3])
    # A chord of 0.2° of longitude at 10° of latitude: 2 sin(0.1°) cos(10°).
    chord = 2 * np.sin(np.radians(0.1)) * np.cos(np.radians(10.0))
    spread = float(kernel.values()[0]["lengthscale"].detach())
    r = 3**0.5 * chord / spread
    assert float(K[0, 1]) == pytest.approx((1 + r) * np.exp(-r), rel=1e-9)


def test_additive_effects_have_the_mean_0_over_the_training_values() -> None:
    X = inputs(20)
    kernel = kernel_of("Additive('x', 'z', order=2)", X)
    # With at most 32 different values the nodes are the rows themselves.
    with torch.no_grad():
        K = StructuredKernel.from_data("Additive('x')", X, COLUMNS).covariance(X, X)
        pairs = kernel.covariance(X, X)
    assert float(K.mean(0).abs().max()) < 1e-12
    assert float(K.diagonal().mean()) == pytest.approx(1.0)
    # The interaction has the mean 0 over either column with the other one fixed.
    grid = torch.cartesian_prod(X[:, 0], X[:, 1])
    wide = torch.zeros(400, X.shape[1], dtype=torch.float64)
    wide[:, :2] = grid
    with torch.no_grad():
        whole = kernel.covariance(wide, wide)
    assert float(whole.mean(0).abs().max()) < 1e-12
    assert pairs.shape == (20, 20)


def test_an_unseen_level_is_correlated_as_a_mean_level() -> None:
    X = inputs(N)
    X[:, 3] = X[:, 3].clamp(min=0)
    new = X[:1].clone()
    new[:, 3] = -1.0
    group = StructuredKernel.from_data("Group('city')", X, COLUMNS)
    assert float(group.covariance(new, X).abs().max()) == 0.0
    one = StructuredKernel.from_data("Categorical('city')", X, COLUMNS)
    assert one.covariance(new, X).detach().unique().tolist() == pytest.approx([0.5])
    vectors = kernel_of("Categorical('city', rank=2)", X)
    with torch.no_grad():
        levels = X[[int((X[:, 3] == level).nonzero()[0]) for level in range(4)]]
        v = vectors.values()[0]["vectors"].reshape(4, 2)
        mean = v.mean(0)
        size = (1 + v.square().sum(1)).sqrt() * (1 + mean.square().sum()).sqrt()
        expected = (v @ mean) / size
        torch.testing.assert_close(vectors.covariance(new, levels)[0], expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RBF('age')", "'age'"),
        ("RBF(6)", "below 6"),
        ("Periodic('city')", "numbers"),
        ("Periodic('x', period='1y')", "not of dates"),
        ("Categorical('x', rank=2)", "a category or a group"),
        ("Linear('city')", "Categorical or Group"),
        ("Sphere('date', 'lon')", "from −90 to 90"),
        ("RBF('x', 0)", "different"),
    ],
)
def test_parts_that_do_not_suit_a_column_raise_an_error(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        StructuredKernel.from_data(text, 3 * inputs(N), COLUMNS)
    assert words in str(raised.value)


def test_a_season_has_the_mean_0_over_its_period() -> None:
    columns = [ColumnFacts("t")]
    X = torch.linspace(0, 6, 601, dtype=torch.float64)[:-1].reshape(-1, 1)
    for lengthscale in (0.3, 1.0, 10.0):
        kernel = StructuredKernel.from_data("Periodic('t', period=3.0)", X, columns)
        kernel = StructuredKernel(
            kernel.expression,
            (),
            [{"lengthscale": X.new_tensor([lengthscale]), "period": X.new_tensor([3.0])}],
        )
        K = kernel.covariance(X[:5], X).detach()
        # The trapezoid rule over whole periods is exact to rounding.
        assert float(K.mean(-1).abs().max()) < 1e-12
        assert float(kernel.covariance(X[:1], X[:1]).detach()) == pytest.approx(1.0)
