"""Predictions of a fitted estimator, a block of rows at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    column_or_1d,
)
from torch import Tensor

from directgp.errors import require
from directgp.estimators.base import Column
from directgp.estimators.tables.checks import check_sample_weight, check_whole, checked_levels
from directgp.estimators.updating import UpdatableEstimator
from directgp.estimators.user_types import ArrayLike
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.counts import CountLikelihood, exposed
from directgp.predictive import predictive_cdf, predictive_log_density, predictive_quantiles
from directgp.predictive.checks import check_coverage
from directgp.predictive.sampling import sample_targets
from directgp.shapes import Marginals

_BLOCK_VALUES = 2**21
"""Entries of K_uf that one block of predictions holds, 16 MB in float64."""


class PredictingEstimator(UpdatableEstimator):
    """An estimator that says how y is distributed."""

    def _over_blocks(
        self,
        X: ArrayLike,
        who: str,
        compute: Callable[[Likelihood, Marginals, slice], Sequence[Tensor]],
        exposure: ArrayLike | None = None,
    ) -> list[NDArray[np.float64]]:
        """What follows from the marginals of f in float64, a block of rows at a time, joined."""
        check_is_fitted(self)
        who = f"{type(self).__name__}.{who}"
        inputs = self._inputs(X, who)
        exposures = self._exposure(exposure, len(inputs), who)
        Z = self.posterior_.Z
        size = max(1, _BLOCK_VALUES // len(Z))
        parts = []
        for start in range(0, len(inputs), size):
            rows = slice(start, start + size)
            scaled = torch.as_tensor(self.scalings_.inputs.forward(inputs[rows])).to(Z)
            some = None if exposures is None else torch.as_tensor(exposures[rows]).to(Z)
            with torch.no_grad():
                q = self.posterior_.predict(scaled)
                wide = Marginals(q.mean.double(), q.variance.double())
                found = compute(exposed(self.likelihood_, some), wide, rows)
            parts.append([each.double().cpu().numpy() for each in found])
        return [np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)]

    def _quantiles(
        self, X: ArrayLike, levels: ArrayLike, who: str, exposure: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Quantiles of y, one column a level."""
        wanted = checked_levels(levels, f"{type(self).__name__}.{who}")
        (found,) = self._over_blocks(
            X, who, lambda like, q, _: [predictive_quantiles(like, q, wanted)], exposure
        )
        return self.scalings_.targets.backward(found.T[..., None])[..., 0]

    def _interval(
        self, X: ArrayLike, coverage: float, exposure: ArrayLike | None = None
    ) -> tuple[Column, Column]:
        """The central interval of y, as much probability below as above."""
        who = f"{type(self).__name__}.predict_interval"
        check_coverage(who, coverage)
        tail = 0.5 * (1 - coverage)
        require(1 - tail < 1, f"coverage of {who}", "further from 1 than rounding", coverage)
        found = self._quantiles(X, [tail, 1 - tail], "predict_interval", exposure)
        return found[:, 0], found[:, 1]

    def _log_density(
        self, X: ArrayLike, y: ArrayLike, who: str, exposure: ArrayLike | None = None
    ) -> Column:
        """log p(y) of each row, in the units of the targets."""
        scaled = self._targets_of(X, y, who)

        def densities(likelihood: Likelihood, q: Marginals, rows: slice) -> list[Tensor]:
            return [predictive_log_density(likelihood, scaled[rows].to(q.mean.device), q)]

        (found,) = self._over_blocks(X, who, densities, exposure)
        return found - self.scalings_.targets.log_scale

    def _cdf(
        self, X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None = None
    ) -> tuple[Column, Column]:
        """P(Y < y) and P(Y ≤ y); the same for real-valued targets."""
        who = "plot_calibration"
        scaled = self._targets_of(X, y, who)

        def both(likelihood: Likelihood, q: Marginals, rows: slice) -> list[Tensor]:
            here = scaled[rows].to(q.mean.device)
            up_to = predictive_cdf(likelihood, here, q)
            if not isinstance(likelihood, CountLikelihood):
                return [up_to, up_to]
            return [predictive_cdf(likelihood, here - 1, q), up_to]

        below, up_to = self._over_blocks(X, who, both, exposure)
        return below, up_to

    def _targets_of(self, X: ArrayLike, y: ArrayLike, who: str) -> Tensor:
        """Targets of new rows, in the units of training."""
        check_is_fitted(self)
        labels = column_or_1d(y, warn=True)
        check_consistent_length(X, labels)
        targets = self._encoded(labels, None, f"{type(self).__name__}.{who}", reset=False)
        return torch.as_tensor(self.scalings_.targets.exact(targets[:, None])[:, 0])

    def _sample(
        self, X: ArrayLike, n_samples: int, random_state: Any, exposure: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Draws of y from the joint posterior, one column each."""
        check_is_fitted(self)
        who = f"{type(self).__name__}.sample_y"
        check_whole(n_samples, 1, f"n_samples of {who}")
        inputs = self._inputs(X, who)
        exposures = self._exposure(exposure, len(inputs), who)
        state = check_random_state(random_state)
        Z = self.posterior_.Z
        generator = torch.Generator(Z.device).manual_seed(int(state.randint(2**31 - 1)))
        scaled = torch.as_tensor(self.scalings_.inputs.forward(inputs)).to(Z)
        f = self.posterior_.sample(scaled, n_samples, generator)
        given = None if exposures is None else torch.as_tensor(exposures).to(Z)
        drawn = sample_targets(exposed(self.likelihood_, given), f, state)
        return self.scalings_.targets.backward(drawn.T[..., None])[..., 0]

    def _nll(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Mean of −log p(y)."""
        densities = self._log_density(X, y, "nll", exposure)
        who = f"{type(self).__name__}.nll"
        weights = check_sample_weight(sample_weight, densities[:, None], who)
        return -float(np.average(densities, weights=weights))

    def predict_latent(self, X: ArrayLike) -> tuple[Column, Column]:
        """Mean and standard deviation of f, without the noise of y.

        For real-valued targets in their units; for labels and counts on the scale of the
        likelihood's link, for an exposure of 1.
        """
        mean, std = self._over_blocks(
            X, "predict_latent", lambda _, q, rows: (q.mean, q.variance.sqrt())
        )
        return self._in_units(mean), self._deviation_in_units(std)

    def _in_units(self, values: Column) -> Column:
        """Scaled targets in the units of the user's."""
        return self.scalings_.targets.backward(values[:, None])[:, 0]

    def _deviation_in_units(self, std: Column) -> Column:
        return self.scalings_.targets.backward_deviation(std[:, None])[:, 0]
