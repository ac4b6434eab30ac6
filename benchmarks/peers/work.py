"""Number of multiply-adds of a step."""

from dataclasses import dataclass

from benchmarks.peers.cases import Case


@dataclass(frozen=True)
class Work:
    """Multiply-adds of one step."""

    products: float
    """Every product and solve counted as a full matrix product."""

    least: float
    """Triangles and symmetry used."""


def work(case: Case) -> Work:
    """K_uf, dZ and dlengthscale: 3·M·n·d.

    A = L⁻¹K_uf, SᵀA, A diag(g) Aᵀ and dK_uf: M²n each, of which the first three need half.
    The Cholesky factor, its derivative (two solves), SSᵀ, H S, (SSᵀ − I)H and two solves by L:
    M³ each, M³/3 for the factor.
    """
    n, d, m = case.n, case.d, case.m
    with_inputs, cubes = 3 * m * n * d, m**3
    full = 4 * m**2 * n + with_inputs + (7 + 1 / 3) * cubes
    least = 2.5 * m**2 * n + with_inputs + (3.5 + 1 / 3) * cubes
    return Work(full, least)
