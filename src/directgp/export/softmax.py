"""Write the class probabilities of a softmax likelihood as a program."""

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
from jaxtyping import Float64

from directgp.export.latents import Latent
from directgp.export.program import Value, concatenate
from directgp.export.tables import chebyshev, chebyshev_nodes, to_coefficients

# P(Y = k) = P(f_k + ξ_k is the largest) for independent ξ with P(ξ ≤ t) = exp(−e^−t). With
# G(u, s) = E[exp(−e^{−u + s·z})] and λ = log(−log G), the sum over equal steps h in t
#
# P(Y = k) = ∫ ∂_t G_k Π_{j≠k} G_j dt = ∫ −λ′_k e^{λ_k} exp(−Σ_j e^{λ_j}) dt
#
# with λ_j = λ(t − μ_j, s_j) errs by e^{−π²/h}. λ is smooth: a line at either end. It is a
# polynomial in s and in u on panels, and those of u have the width h, so that all nodes of a row
# have one place in their panels, and one product of matrices evaluates λ on all panels.

_STEP = 0.5
"""The step h in t."""

_FIRST_PANEL = 0.5
"""Upper end of the first panel of s; every later panel ends at twice its start."""

_DEGREES = 6, 12
"""Numbers of polynomials in u and in s."""

_INNER = 9.0
"""Deviations of f on either side, for G."""


def softmax(latents: Sequence[Latent]) -> Value:
    """Return probabilities of the classes, (n, K)."""
    largest = max(latent.largest_deviation for latent in latents)
    first = -5.0 - 6.5 * largest
    number = math.ceil((26.0 + 13.0 * largest) / _STEP)
    doublings = max(0, math.ceil(math.log2(largest / _FIRST_PANEL)))
    edges = [0.0, *(_FIRST_PANEL * 2.0**i for i in range(doublings + 1))]
    classes = len(latents)
    (P, Q) = _DEGREES
    means = concatenate([latent.mean for latent in latents])
    s = concatenate([latent.deviation for latent in latents]).reshape(-1, 1)
    # The first node lies `first` from the largest mean.
    position = ((means.largest() - means) / _STEP).minimum(float(number))
    panel = position.floor()
    x = (2.0 * (position - panel) - 1.0).reshape(-1, 1)
    by_s = []
    for low, high in pairwise(edges):
        inside = (s < low).where(0.0, (s < high).where(1.0, 0.0))
        # Outside of its panel a polynomial would overflow.
        place = (2.0 * s - (low + high)) / (high - low)
        by_s += [inside * latent for latent in chebyshev(inside * place, Q)]
    in_s = concatenate(by_s)
    size = len(by_s)
    polynomials = chebyshev(x, P)
    coefficients = _gumbel_coefficients(first, number, edges)
    index = (panel.reshape(-1, classes, 1) + np.arange(float(number))).minimum(float(number))
    index = index.is_nan().where(0.0, index).cast("int64")
    on_nodes = []
    # After the last panel λ = −50, and G is 1.
    for basis, last in ((polynomials, 0.0 * x - 50.0), (_slopes(polynomials), 0.0 * x)):
        both = concatenate(basis).reshape(-1, P, 1) * in_s.reshape(-1, 1, size)
        on_panels = concatenate([both.reshape(-1, P * size) @ coefficients, last])
        on_nodes.append(on_panels.reshape(-1, classes, number + 1).take_along(index, axis=2))
    power = on_nodes[0].exp()
    none = (-1.0 * power.sum()).exp()
    chances = (-1.0 * on_nodes[1] * power * none).sum(2).reshape(-1, classes)
    return chances / chances.sum()


def _slopes(polynomials: Sequence[Value]) -> list[Value]:
    """Return T′_i = i·(2T_{i−1} + 2T_{i−3} + …), where T_0 counts once."""
    slopes = [0.0 * polynomials[0]]
    for i in range(1, len(polynomials)):
        terms = ((1.0 if j == 0 else 2.0) * polynomials[j] for j in range(i - 1, -1, -2))
        slopes.append(float(i) * reduce(add, terms))
    return slopes


def _gumbel_coefficients(
    first: float, number: int, edges: Sequence[float]
) -> Float64[np.ndarray, "c p"]:
    """Return the coefficients of λ: polynomials in u, then panels and polynomials of s; by u."""
    x, w = map(chebyshev_nodes, _DEGREES)
    u = first + _STEP * (np.arange(number)[:, None] + (x + 1) / 2)
    s = np.concatenate([low + (high - low) * (w + 1) / 2 for low, high in pairwise(edges)])
    values = np.stack([_log_log_G(u, spread) for spread in s]).reshape(
        len(edges) - 1, len(w), *u.shape
    )
    to_u, to_s = map(to_coefficients, _DEGREES)
    coefficients = np.einsum("ax,bw,pwnx->apbn", to_u, to_s, values)
    return np.ascontiguousarray(coefficients.reshape(-1, number))


def _log_log_G(u: Float64[np.ndarray, "n x"], s: float) -> Float64[np.ndarray, "n x"]:
    """Return λ(u, s), by equal steps in z."""
    nodes = math.ceil(2 * _INNER * max(4.0, 8 * s))
    z = _INNER * (2 * (np.arange(nodes) + 0.5) / nodes - 1)
    log_weight = -0.5 * z * z - np.log(np.exp(-0.5 * z * z).sum())
    rate = np.exp(np.minimum(s * z - u[..., None], 700.0))
    # −log G: by 1 − G where G is near 1.
    away = -np.expm1(-rate) @ np.exp(log_weight)
    log_G = np.logaddexp.reduce(log_weight - rate, axis=-1)
    minus_log_G = np.where(away < 0.5, -np.log1p(-np.minimum(away, 0.5)), -log_G)
    return np.asarray(np.log(minus_log_G))
