"""Gauss–Hermite nodes and log weights in 60 digits, by mpmath."""

import mpmath
from mpmath import mpf

_context = mpmath.mp.clone()
_context.dps = 60


def node_and_log_weight(num_nodes: int, near: float) -> tuple[mpf, mpf]:
    """Polish the node `near` by Newton's method and compute log 1/(K h_{K−1}(z)²) there."""
    node = _context.mpf(near)
    for _ in range(4):
        below, at = _orthonormal_hermite(node, num_nodes)
        node -= at / (_context.sqrt(num_nodes) * below)
    below, _ = _orthonormal_hermite(node, num_nodes)
    return node, -_context.log(num_nodes * below**2)


def _orthonormal_hermite(z: mpf, degree: int) -> tuple[mpf, mpf]:
    """Compute h_{K−1}(z) and h_K(z) by √(n+1) h_{n+1} = z h_n − √n h_{n−1}."""
    previous, current = _context.mpf(0), _context.mpf(1)
    for n in range(degree):
        following = (z * current - _context.sqrt(n) * previous) / _context.sqrt(n + 1)
        previous, current = current, following
    return previous, current
