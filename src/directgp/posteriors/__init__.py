"""Sparse posteriors: prior, inducing inputs, q(u) and the marginals of f."""

from directgp.posteriors.inducing import choose_inducing
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior

__all__ = ["Prior", "SparsePosterior", "choose_inducing"]
