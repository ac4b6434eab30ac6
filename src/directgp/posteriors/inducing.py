"""Choose inducing inputs."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import require
from directgp.numerics.arrays import ignoring, require_buffers
from directgp.numerics.random import fresh_generator
from directgp.shapes import Inputs

InducingName = Literal["kmeans++", "random"]

_ROWS = 20_000
"""Largest number of rows that are clustered."""

_SWEEPS = 30
"""Iterations of k-means."""


def choose_inducing(
    X: Inputs,
    number: int,
    method: InducingName = "kmeans++",
    generator: torch.Generator | None = None,
) -> Float[Tensor, "m d"]:
    """Return inducing inputs for training inputs X, without duplicates.

    Parameters
    ----------
    X : tensor of shape (n, d)
        Training inputs.
    number : int
        Number of inducing inputs; fewer if X has fewer distinct rows.
    method : {"kmeans++", "random"}
        Centres of k-means with k-means++ seeding, on standardised features; or rows of X.
    generator : torch.Generator
        A CPU generator; freshly seeded by default.
    """
    require(number >= 1, "number of inducing inputs", "at least 1", number)
    require(len(X) >= 1, "X of choose_inducing", "at least one row", f"shape {tuple(X.shape)}")
    finite = bool(torch.isfinite(X).all())
    require(finite, "X of choose_inducing", "finite", "NaN or infinity")
    methods = ("kmeans++", "random")
    require(method in methods, "method of choose_inducing", f"one of {methods}", repr(method))
    if generator is None:
        generator = fresh_generator(torch.device("cpu"))
    rows: Tensor = torch.unique(X.detach().cpu(), dim=0)
    order = torch.randperm(len(rows), generator=generator)
    if len(rows) <= number or method == "random":
        return rows[order[:number]].to(X)
    rows = rows[order[: max(_ROWS, number)]]
    spread = rows.std(0)
    spread = torch.where(spread > 0, spread, 1.0)
    seed = int(torch.randint(2**31, (), generator=generator))
    # Import here: it takes 0.3 s, which other uses of the package spare.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    # Check the memory first: OpenBLAS waits for ever for the memory of its buffers.
    require_buffers()
    clustering = KMeans(number, init="k-means++", n_init=1, max_iter=_SWEEPS, random_state=seed)
    # Ignore empty clusters, from rows that differ by rounding alone; the centres are still good.
    with ignoring(ConvergenceWarning):
        clustering.fit((rows / spread).numpy())
    centres = torch.as_tensor(clustering.cluster_centers_, dtype=rows.dtype)
    distinct: Tensor = torch.unique(centres * spread, dim=0)
    return distinct.to(X)
