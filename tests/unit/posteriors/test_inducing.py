"""Inducing inputs: different, spread over the data, and repeatable."""

import pytest
import torch
from torch import Tensor

from directgp.errors import InvalidInputError
from directgp.posteriors import inducing
from directgp.posteriors.inducing import InducingName, choose_inducing

each_method = pytest.mark.parametrize("method", ["kmeans++", "random"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def rows_among(Z: Tensor, X: Tensor) -> bool:
    """Every row of Z is a row of X, to the last bit."""
    return bool((Z[:, None] == X[None]).all(-1).any(1).all())


def all_different(Z: Tensor) -> bool:
    return len(torch.unique(Z, dim=0)) == len(Z)


@each_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("n", "d", "m"), [(200, 3, 20), (50, 1, 10), (30, 2, 29), (30, 2, 1)])
def test_as_many_as_asked_all_different(
    method: InducingName, dtype: torch.dtype, n: int, d: int, m: int
) -> None:
    X = random(n, d).to(dtype)
    Z = choose_inducing(X, m, method, seeded())
    assert Z.shape == (m, d)
    assert Z.dtype == dtype
    assert all_different(Z)
    # Within the data, but for the rounding of a mean of rows.
    rounding = 10 * torch.finfo(dtype).eps
    assert bool((Z >= X.amin(0) - rounding).all())
    assert bool((Z <= X.amax(0) + rounding).all())


@each_method
@pytest.mark.parametrize("m", [5, 6, 40])
def test_fewer_different_rows_than_asked(method: InducingName, m: int) -> None:
    distinct = random(5, 2)
    X = distinct.repeat(8, 1)
    Z = choose_inducing(X, m, method, seeded())
    assert Z.shape == (5, 2)
    assert torch.equal(torch.unique(Z, dim=0), torch.unique(distinct, dim=0))


@each_method
def test_duplicated_rows_do_not_use_up_the_number(method: InducingName) -> None:
    X = torch.cat([random(1, 2).expand(1000, 2), random(20, 2, seed=1)])
    Z = choose_inducing(X, 15, method, seeded())
    assert Z.shape == (15, 2)
    assert all_different(Z)


@each_method
def test_one_row_is_the_only_inducing_input(method: InducingName) -> None:
    X = random(1, 3)
    assert torch.equal(choose_inducing(X, 7, method, seeded()), X)


def test_random_takes_rows() -> None:
    X = random(60, 2)
    assert rows_among(choose_inducing(X, 20, "random", seeded()), X)


def test_random_takes_every_row_alike() -> None:
    """Over 400 seeds each of 20 rows comes 100 times, within 5 deviations of √75."""
    X = random(20, 1)
    counts = torch.zeros(20)
    for seed in range(400):
        Z = choose_inducing(X, 5, "random", seeded(seed))
        counts += (X == Z.T).any(1)
    assert bool(((counts - 100).abs() < 5 * 75**0.5).all())


@each_method
def test_same_seed_same_inputs(method: InducingName) -> None:
    X = random(300, 2)
    one, two = (choose_inducing(X, 25, method, seeded(3)) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, choose_inducing(X, 25, method, seeded(4)))


@each_method
def test_the_global_generator_is_left_alone(method: InducingName) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    choose_inducing(random(60, 2), 5, method)
    assert torch.equal(torch.get_rng_state(), before)


@each_method
def test_order_of_the_rows_does_not_matter(method: InducingName) -> None:
    X = random(100, 2)
    shuffled = X[torch.randperm(100, generator=seeded(1))]
    one, two = (
        choose_inducing(X, 9, method, seeded()),
        choose_inducing(shuffled, 9, method, seeded()),
    )
    assert torch.equal(one, two)


@pytest.mark.parametrize("factors", [(1e-3, 1e4), (1e6, 1.0)])
def test_kmeans_does_not_see_the_units_of_the_features(factors: tuple[float, float]) -> None:
    X = random(300, 2)
    units = torch.tensor(factors, dtype=torch.float64)
    plain = choose_inducing(X, 12, "kmeans++", seeded())
    scaled = choose_inducing(X * units, 12, "kmeans++", seeded())
    torch.testing.assert_close(scaled / units, plain, rtol=1e-9, atol=1e-9)


def test_kmeans_covers_the_data_better_than_chance() -> None:
    X = random(400, 2)

    def error(method: InducingName, seed: int) -> float:
        nearest = torch.cdist(X, choose_inducing(X, 20, method, seeded(seed))).amin(1)
        return nearest.square().mean().item()

    clustered = max(error("kmeans++", seed) for seed in range(5))
    assert clustered < 0.8 * min(error("random", seed) for seed in range(5))


def test_kmeans_finds_separate_clusters() -> None:
    centres = torch.tensor([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]]).double()
    X = (centres[:, None] + 0.1 * random(3, 40, 2)).reshape(-1, 2)
    Z = choose_inducing(X, 3, "kmeans++", seeded())
    means = X.reshape(3, 40, 2).mean(1)
    order = torch.cdist(means, Z).argmin(1)
    torch.testing.assert_close(Z[order], means, rtol=1e-9, atol=1e-9)


def test_a_constant_column_stays_constant() -> None:
    X = torch.cat([random(50, 1), torch.full((50, 1), 4.0).double()], 1)
    Z = choose_inducing(X, 6, "kmeans++", seeded())
    assert Z.shape == (6, 2)
    torch.testing.assert_close(Z[:, 1], torch.full((6,), 4.0).double(), rtol=1e-12, atol=0)


def test_rows_that_differ_by_rounding_alone() -> None:
    """No warning from the clustering, and nothing that is not finite."""
    X = 1 + 1e-15 * random(50, 2).round()
    Z = choose_inducing(X, 4, "kmeans++", seeded())
    assert 1 <= len(Z) <= 4
    assert all_different(Z)
    assert bool(Z.isfinite().all())


@pytest.mark.parametrize("m", [8, 30, 45])
def test_more_rows_than_the_clustering_looks_at(monkeypatch: pytest.MonkeyPatch, m: int) -> None:
    monkeypatch.setattr(inducing, "_ROWS", 30)
    Z = choose_inducing(random(100, 2), m, "kmeans++", seeded())
    assert Z.shape == (m, 2)
    assert all_different(Z)


def test_inputs_with_a_graph_give_inputs_without() -> None:
    Z = choose_inducing(random(20, 2).requires_grad_(), 4, "kmeans++", seeded())
    assert not Z.requires_grad


def test_no_inducing_inputs_and_no_rows_are_refused() -> None:
    X = random(10, 2)
    with pytest.raises(InvalidInputError, match=r"number of inducing inputs must be at least 1"):
        choose_inducing(X, 0)
    with pytest.raises(InvalidInputError, match=r"at least one row\. Got shape \(0, 2\)\."):
        choose_inducing(X[:0], 3)


@pytest.mark.usefixtures("without_shape_checks")
def test_refuses_an_unknown_method() -> None:
    with pytest.raises(InvalidInputError, match=r"method of choose_inducing .* Got 'kmeans'\."):
        choose_inducing(random(10, 2), 3, "kmeans")  # type: ignore[arg-type]


@each_method
def test_refuses_what_is_not_finite(method: InducingName) -> None:
    X = random(10, 2)
    X[3, 1] = torch.nan
    with pytest.raises(InvalidInputError, match=r"X of choose_inducing must be finite"):
        choose_inducing(X, 3, method)
