"""Products of triangular matrices: those of the whole matrices, whatever the bands."""

import pytest
import torch
from torch import Tensor

from directgp.numerics.linalg import congruence, symmetric_product, triangular_times

SIZES = [1, 7, 64, 131, 201, 514]
"""From whole products to four bands, of unequal heights too."""


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_products(m: int, batch: tuple[int, ...]) -> None:
    T, B = random(*batch, m, m), random(*batch, m, 3, seed=1)
    for triangle, upper in ((T.tril(), False), (T.triu(), True)):
        out = torch.empty_like(B)
        assert triangular_times(triangle, B, out=out, upper=upper) is out
        torch.testing.assert_close(out, triangle @ B, rtol=1e-12, atol=1e-11)
    weighted = B * random(3, seed=2)
    product = symmetric_product(weighted, B)
    torch.testing.assert_close(product, weighted @ B.mT, rtol=1e-12, atol=1e-11)
    C, L = T + T.mT, random(*batch, m, m, seed=3).tril()
    torch.testing.assert_close(congruence(C, L), L.mT @ C @ L, rtol=1e-11, atol=1e-9)


def test_bands_do_less_work() -> None:
    """What lies beyond the triangle is not read where products are banded."""
    m = 128
    L, B = torch.ones(m, m).tril(), torch.ones(m, 1)
    L[: m // 4, -1] = torch.nan
    assert not bool(triangular_times(L, B, out=torch.empty_like(B), upper=False).isnan().any())
