"""Marginals of expressions without a tape, and gradients through them, equal those of the tape."""

import pytest
import torch

from directgp.kernels import parse
from directgp.posteriors import SparsePosterior, blocks
from directgp.posteriors.prior import Prior
from tests.unit.kernels.columns import COLUMNS, EXPRESSIONS, inputs
from tests.unit.posteriors.test_stationary import (
    ALL,
    MARGINALS,
    assert_same,
    batch_of,
    by_tape,
    each_library,
    library,
    random,
    weights_of,
    without_tape,
)

__all__ = ["library"]

M, N = 5, 12

each_expression = pytest.mark.parametrize(
    "text", [*EXPRESSIONS, "Linear(0, 1)", "Categorical('city', rank=2) * RBF('x')"]
)


def model(text: str, dtype: torch.dtype = torch.float64) -> SparsePosterior:
    """Return a posterior with random parameters; those of float32 are rounded."""
    X = inputs(N)
    prior = Prior.from_data(X, kernel=parse(text), columns=COLUMNS, mean="constant")
    posterior = SparsePosterior(prior, X[:M], 1e-4)
    with torch.no_grad():
        for seed, parameter in enumerate(prior.parameters()):
            parameter.add_(0.3 * random(*parameter.shape, seed=seed))
        posterior.u_mean.copy_(random(M, seed=3))
        posterior.u_chol.copy_((0.3 * random(M, M, seed=4) + torch.eye(M)).tril())
        posterior.Z[:, :3].add_(0.1)
    for parameter in posterior.parameters():
        parameter.requires_grad_(True)
    return posterior.to(dtype)


@each_library
@each_expression
@pytest.mark.parametrize("chosen", [ALL, MARGINALS, "mean", "variance", "residual"])
def test_one_model(text: str, chosen: str) -> None:
    posterior = model(text)
    X = inputs(N, seed=1)
    weights = weights_of(posterior, N, chosen)
    theirs = by_tape(posterior, X, weights)
    ours = without_tape(posterior, X, weights)
    assert_same({name: ours[name] for name in theirs}, theirs, 1e-8)
    others = [value for name, value in ours.items() if name not in theirs]
    assert all(float(value.abs().max()) == 0 for value in others)


@each_expression
@pytest.mark.parametrize("shared", [True, False])
def test_a_batch(text: str, shared: bool) -> None:
    posterior = batch_of(model(text), shared)
    with torch.no_grad():
        posterior.Z[..., 3].round_()
    X = inputs(N, seed=1)
    weights = weights_of(posterior, N)
    theirs = by_tape(posterior, X, weights)
    ours = without_tape(posterior, X, weights)
    assert_same({name: ours[name] for name in theirs}, theirs, 1e-8)


@each_library
@each_expression
def test_blocks_of_rows(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = model(text)
    X = inputs(N, seed=1)
    weights = weights_of(posterior, N)
    whole = without_tape(posterior, X, weights)
    monkeypatch.setattr(blocks.Projection, "cpu_entries", 3 * M)
    monkeypatch.setattr("directgp.posteriors.structured.StructuredMarginals.cpu_entries", 3 * M)
    fused = posterior.fused(N, X)
    assert len(fused.row_blocks(N, M)) > 1
    assert_same(without_tape(posterior, X, weights, fused), whole, 1e-9)


@each_expression
def test_float32_is_near_float64(text: str) -> None:
    posterior = model(text)
    X = inputs(N, seed=1)
    weights = weights_of(posterior, N)
    narrow = model(text, torch.float32)
    found = without_tape(narrow, X.float(), weights.to(torch.float32))
    expected = without_tape(posterior, X, weights)
    # K_uu is factorised in float64; its condition is at most M/nugget.
    assert_same({name: value.double() for name, value in found.items()}, expected, 1e-2)
