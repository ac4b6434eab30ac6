"""Cholesky factors with jitter, and kept arrays."""

import pytest
import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.numerics.linalg import jittered_cholesky

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def kernel_matrix(points: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.tensor(points, dtype=dtype)
    return torch.exp(-((x[:, None] - x) ** 2))


@each_dtype
def test_no_jitter_where_none_is_needed(dtype: torch.dtype) -> None:
    K = kernel_matrix([-2.0, 0.0, 1.0, 3.0], dtype)
    result = jittered_cholesky(K)
    assert result.jitter.shape == ()
    assert result.jitter == 0
    assert torch.equal(result.L, torch.linalg.cholesky(K))


@each_dtype
def test_duplicates_get_a_jitter_that_is_reported(dtype: torch.dtype) -> None:
    K = 5 * kernel_matrix([0.0, 0.0, 0.0, 1.0], dtype)
    result = jittered_cholesky(K)
    smallest = 5e-10 if dtype == torch.float64 else 5e-6
    assert smallest * 0.99 < result.jitter < 20 * smallest
    restored = result.L @ result.L.T
    expected = K + result.jitter * torch.eye(4, dtype=dtype)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(restored, expected, rtol=0, atol=20 * eps)


def test_jitter_is_of_each_matrix_and_relative_to_its_diagonal() -> None:
    singular = torch.ones(2, 2, dtype=torch.float64)
    K = torch.stack([torch.eye(2).double(), singular, 1e6 * singular]).reshape(3, 1, 2, 2)
    result = jittered_cholesky(K)
    assert result.L.shape == K.shape
    torch.testing.assert_close(
        result.jitter, torch.tensor([[0.0], [1e-10], [1e-4]], dtype=torch.float64)
    )


def test_climbs_the_ladder_as_far_as_needed() -> None:
    K = torch.diag(torch.tensor([1.0, 1.0, -2e-6], dtype=torch.float64))
    assert 2e-6 < jittered_cholesky(K).jitter < 2e-5


def test_factor_is_lower_triangular() -> None:
    factor = jittered_cholesky(kernel_matrix([0.0, 1.0, 2.0])).L
    assert torch.equal(factor, factor.tril())


@pytest.mark.parametrize("points", [[0.0, 1.0, 3.0], [0.0, 0.0, 3.0]])
def test_gradient_of_the_log_determinant(points: list[float]) -> None:
    """d log det (K + jitter I) / dK = (K + jitter I)⁻¹."""
    K = kernel_matrix(points).requires_grad_()
    result = jittered_cholesky(K)
    (slope,) = torch.autograd.grad(2 * result.L.diagonal().log().sum(), K)
    expected = torch.cholesky_inverse(result.L.detach())
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-8)
    assert not result.jitter.requires_grad


def test_failure_says_what_to_do() -> None:
    with pytest.raises(NumericalError) as raised:
        jittered_cholesky(-torch.eye(3))
    text = str(raised.value)
    assert text.startswith("K must be positive definite. Got a matrix that is not, even with 0.001")
    for remedy in ("duplicate inducing points", "constant columns", "rescale", "float64"):
        assert remedy in text


def test_failure_counts_the_matrices_and_does_not_advise_what_is_done() -> None:
    K = torch.stack([torch.eye(2), -torch.eye(2)]).double()
    with pytest.raises(NumericalError, match=r"\(1 of 2 matrices\)") as raised:
        jittered_cholesky(K)
    assert "float64" not in str(raised.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_refuses_non_finite(value: float) -> None:
    K = torch.eye(3)
    K[1, 0] = value
    with pytest.raises(InvalidInputError, match=r"K must be finite\. Got 1 NaN or infinite"):
        jittered_cholesky(K)


@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 4, 3)])
@pytest.mark.usefixtures("without_shape_checks")
def test_refuses_what_is_not_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        InvalidInputError, match=r"K must be a square matrix.* Got shape \("
    ) as raised:
        jittered_cholesky(torch.zeros(shape))
    assert str(shape) in str(raised.value)
