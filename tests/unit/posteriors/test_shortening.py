"""Shorter initial lengthscales for targets that oscillate fast."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

from directgp import SparseGPRegressor
from directgp.posteriors.prior import shortening

RANDOM = np.random.default_rng(0)
X = torch.as_tensor(RANDOM.uniform(0, 20, (200, 1)))
NOISE = torch.as_tensor(RANDOM.standard_normal(200))
SPREAD = X.std()


def waves(periods: float) -> Tensor:
    return torch.sin(2 * torch.pi * periods * X[:, 0] / 20) + 0.2 * NOISE


@pytest.mark.parametrize(
    ("values", "factor"),
    [(waves(1), 1.0), (waves(3), 1.0), (waves(8), 1 / 16), (waves(25), 1 / 16), (NOISE, 1.0)],
)
def test_as_short_as_the_waves(values: Tensor, factor: float) -> None:
    assert shortening(X, values, SPREAD) == factor


def test_each_feature_has_its_lengthscale() -> None:
    wide = torch.cat([X, 1e6 * X.flip(0)], 1)
    scales = torch.stack([SPREAD, 1e6 * SPREAD]) * 2**0.5
    assert shortening(wide[:, :1], waves(10), scales[:1]) < 1
    assert shortening(wide, waves(1), scales) == 1.0


def test_nothing_is_made_of_few_or_equal_values() -> None:
    assert shortening(X[:10], waves(10)[:10], SPREAD) == 1.0
    assert shortening(X, torch.ones(200).double(), SPREAD) == 1.0


def test_ordinary_tables_keep_the_median_distance() -> None:
    features, y = load_diabetes(return_X_y=True)
    rows = torch.as_tensor(features / features.std(0))
    assert shortening(rows, torch.as_tensor(y), torch.tensor(10**0.5)) == 1.0


def test_a_regressor_follows_fast_waves() -> None:
    """The median distance led to an optimum where all is noise: NLL 1.19."""
    model = SparseGPRegressor(
        objective="elbo", beta=1.0, likelihood="gaussian", num_inducing=50, random_state=0
    )
    seen, unseen = slice(0, 150), slice(150, 200)
    y = waves(10).numpy()
    model.fit(X[seen].numpy(), y[seen])
    assert model.nll(X[unseen].numpy(), y[unseen]) < 0.2
