"""Roots of increasing functions and smallest counts, where the function is not a number."""

import pytest
import torch
from torch import Tensor

from directgp.numerics.roots import increasing_root, smallest_count


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("edge", [-torch.inf, 2.5])
def test_a_root_is_nan_where_the_function_is(edge: float) -> None:
    """Everywhere, or only inside the first bracket; the other examples have their roots."""

    def offset(index: Tensor, x: Tensor) -> Tensor:
        undefined = (index == 1) & (x > edge) & (x < 4)
        return torch.where(undefined, torch.nan, x - 3)

    roots = increasing_root(offset, row(3.4, 3.4, 3.4), row(1.0, 1.0, 1.0), 1e10)
    torch.testing.assert_close(roots, row(3.0, torch.nan, 3.0), equal_nan=True)


def test_a_function_without_a_root_has_the_farthest_number() -> None:
    roots = increasing_root(lambda _, x: torch.full_like(x, -1.0), row(0.0), row(1.0), 1e3)
    assert roots.tolist() == [1e3]


def test_a_count_is_nan_where_the_distribution_function_is() -> None:
    def cdf(index: Tensor, k: Tensor) -> Tensor:
        return torch.where(index == 0, torch.nan, 1 - torch.exp(-k))

    counts = smallest_count(cdf, row(0.9, 0.9), row(1.0, 1.0))
    torch.testing.assert_close(counts, row(torch.nan, 3.0), equal_nan=True)
