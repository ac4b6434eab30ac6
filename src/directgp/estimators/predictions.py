"""Predict with a fitted estimator: distributions of y for new rows, in the units of the user."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from directgp.errors import NumericalError, require
from directgp.estimators import validation
from directgp.estimators.fit_procedure import TrainableEstimator
from directgp.estimators.inputs import read_inputs
from directgp.estimators.members import Member
from directgp.estimators.preprocessing import Column, Columns
from directgp.estimators.stacking import with_columns
from directgp.estimators.starting_models import check_row_argument
from directgp.estimators.validation import ArrayLike, RowValues
from directgp.predictive.component import Component, check_targets
from directgp.predictive.mixture import PredictiveMixture
from directgp.predictive.moments import check_coverage
from directgp.shapes import Marginals

_BLOCK_VALUES = 2**21
"""Entries of K_uf in one block of predictions, 16 MB in float64."""


class PredictingEstimator(TrainableEstimator):
    """An estimator whose predictions are computed in blocks of rows and scaled back."""

    def _inputs(self, X: ArrayLike, who: str) -> Columns:
        """Return X as encoded float64; raise if `fit` had other features, or if values are missing.

        Missing values are allowed if the model was fitted with ``missing="impute"``.
        """
        return read_inputs(self, X, who, gaps=self.scalings_.imputation is not None)

    def _scaled_rows(self, row_values: RowValues | None, n: int, who: str) -> Tensor | None:
        """Return checked row values of new rows, in the units of training."""
        if row_values is None:
            return None
        for member in self.members_:
            check_row_argument(member.likelihood, row_values.argument, who)
        return torch.as_tensor(self.scalings_.scaled_rows(row_values.checked(n, who), exact=True))

    def _latent_in_units(self, mean: Column, std: Column, p: int) -> tuple[Column, Column]:
        """Return mean and deviation of a latent in the units of the targets, or on its scale."""
        scaling = self.scalings_.of_latent(self.likelihood_, p)
        return scaling.backward(mean[:, None])[:, 0], scaling.backward_deviation(std[:, None])[:, 0]

    def _weighted(self) -> list[tuple[float, Member]]:
        """Return the members with their weights, the heaviest first."""
        return list(zip(self.weights_.tolist(), self.members_, strict=True))

    def _member_inputs(self, inputs: Columns, members: Sequence[Member]) -> list[Tensor]:
        """Return the inputs of each member: the scaled features, and columns of the stack."""
        Z = members[0].posterior.Z
        scaled = torch.as_tensor(self.scalings_.scaled_inputs(inputs)).to(Z)
        extended = scaled
        if any(member.stacked for member in members):
            extended = with_columns(scaled, self.stack_, self.scalings_.sources)
        return [extended if member.stacked else scaled for member in members]

    def _mixture(
        self, inputs: Columns, row_values: Tensor | None, *, heaviest: bool = False
    ) -> PredictiveMixture:
        """Return the distribution of scaled targets for checked rows, without gradients.

        With `heaviest`, it is that of the heaviest member alone.
        """
        weighted = [(1.0, self.members_[0])] if heaviest else self._weighted()
        components = []
        with torch.no_grad():
            X = self._member_inputs(inputs, [member for _, member in weighted])
            for (weight, member), x in zip(weighted, X, strict=True):
                q = member.posterior.predict(x)
                constants = None if row_values is None else row_values.to(x)
                likelihood = member.likelihood.with_row_values(constants)
                wide = Marginals(q.mean.double(), q.variance.double())
                components.append(Component(weight, likelihood, wide))
        return PredictiveMixture(tuple(components))

    def _over_blocks(
        self,
        X: ArrayLike,
        method: str,
        compute: Callable[[PredictiveMixture, slice], Sequence[Tensor]],
        row_values: RowValues | None = None,
        *,
        heaviest: bool = False,
    ) -> list[NDArray[np.float64]]:
        """Return functions of the distribution of scaled y, computed in blocks of rows.

        With `heaviest`, the distribution is that of the heaviest member alone.
        """
        check_is_fitted(self)
        who = self._who(method)
        inputs = self._inputs(X, who)
        values = self._scaled_rows(row_values, len(inputs), who)
        largest = max(member.posterior.u_mean.numel() for member in self.members_)
        size = max(1, _BLOCK_VALUES // largest)
        parts = []
        for start in range(0, len(inputs), size):
            rows = slice(start, start + size)
            constants = None if values is None else values[rows]
            with torch.no_grad():
                columns = compute(self._mixture(inputs[rows], constants, heaviest=heaviest), rows)
            parts.append([column.double().cpu().numpy() for column in columns])
            for column in parts[-1]:
                undefined = np.isnan(column).any(axis=tuple(range(column.ndim - 1)))
                if undefined.any():
                    raise NumericalError(
                        f"{who} is not defined for row {start + int(undefined.argmax())} of X: the "
                        "distribution of y there is beyond float64. Check that X has the units of "
                        "the training rows, or fit with another likelihood."
                    )
        return [np.concatenate(blocks, axis=-1) for blocks in zip(*parts, strict=True)]

    def _quantiles(
        self, X: ArrayLike, levels: ArrayLike, method: str, row_values: RowValues | None = None
    ) -> NDArray[np.float64]:
        """Return quantiles of y, one column a level."""
        shares = validation.check_shares(levels, f"levels of {self._who(method)}")
        (quantiles,) = self._over_blocks(
            X,
            method,
            lambda mixture, _: [mixture.quantiles(shares)],
            row_values,
        )
        return self.scalings_.targets_in_units(quantiles.T)

    def _interval(
        self, X: ArrayLike, coverage: float, row_values: RowValues | None = None
    ) -> tuple[Column, Column]:
        """Return the central interval of y, with equal probability below and above."""
        who = self._who("predict_interval")
        check_coverage(who, coverage)
        tail = 0.5 * (1 - coverage)
        require(1 - tail < 1, f"coverage of {who}", "further from 1 than rounding", coverage)
        ends = self._quantiles(X, [tail, 1 - tail], "predict_interval", row_values)
        return ends[:, 0], ends[:, 1]

    def _log_density(
        self, X: ArrayLike, y: ArrayLike, method: str, row_values: RowValues | None = None
    ) -> Column:
        """Return log p(y) of each row, in the units of the targets."""
        scaled = self._scaled_targets(X, y, method)

        def densities(mixture: PredictiveMixture, rows: slice) -> list[Tensor]:
            return [mixture.log_density(scaled[rows].to(mixture.device))]

        (log_densities,) = self._over_blocks(X, method, densities, row_values)
        return log_densities - self.scalings_.targets.log_scale

    def _nll(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        row_values: RowValues | None = None,
    ) -> float:
        who = self._who("nll")
        densities = self._log_density(X, y, "nll", row_values)
        weights = validation.check_sample_weight(sample_weight, densities[:, None], who)
        return -float(np.average(densities, weights=weights))

    def _sample(
        self, X: ArrayLike, n_samples: int, random_state: Any, row_values: RowValues | None = None
    ) -> NDArray[np.float64]:
        """Return draws of y from the joint posterior, one column each.

        Each draw is that of one member, chosen by weight.
        """
        check_is_fitted(self)
        who = self._who("sample_y")
        validation.check_whole(n_samples, 1, f"n_samples of {who}")
        inputs = self._inputs(X, who)
        values = self._scaled_rows(row_values, len(inputs), who)
        state = check_random_state(random_state)
        seed = int(state.randint(2**31 - 1))
        number = len(self.members_)
        # A single member takes no random numbers for the choice.
        owner = np.zeros(n_samples, dtype=np.int64)
        if number > 1:
            owner = state.choice(number, n_samples, p=self.weights_)
        X = self._member_inputs(inputs, self.members_)
        generator = torch.Generator(X[0].device).manual_seed(seed)
        draws = np.empty((n_samples, len(inputs)))
        for k, (member, x) in enumerate(zip(self.members_, X, strict=True)):
            own = np.flatnonzero(owner == k)
            if len(own):
                f = member.posterior.sample(x, len(own), generator)
                constants = None if values is None else values.to(x)
                draws[own] = member.likelihood.with_row_values(constants).sample(f, state)
        return self.scalings_.targets_in_units(draws.T)

    def _targets(self, X: ArrayLike, y: ArrayLike, method: str) -> Column:
        """Return the targets of new rows as numbers."""
        check_is_fitted(self)
        values = column_or_1d(validation.plain_array(y), warn=True)
        check_consistent_length(X, values)
        return self._encoded(values, None, self._who(method), reset=False)

    def _check_targets(self, y: Column, row_values: RowValues | None, who: str) -> None:
        """Raise `InvalidInputError` for targets that have no log density."""
        scaled = self.scalings_.exact_targets(self._encoded(y, None, who, reset=False))
        values = self._scaled_rows(row_values, len(y), who)
        check_targets(
            [member.likelihood.with_row_values(values) for member in self.members_],
            torch.as_tensor(scaled),
        )

    def _scaled_targets(self, X: ArrayLike, y: ArrayLike, method: str) -> Tensor:
        targets = self._targets(X, y, method)
        return torch.as_tensor(self.scalings_.exact_targets(targets))

    def _pit(self, X: ArrayLike, y: ArrayLike, row_values: RowValues | None = None) -> Column:
        """Return P(Y ≤ y), or for counts a random number from P(Y < y) to it, of a fixed seed."""
        below, up_to = self._probabilities_below(X, y, "plot_calibration", row_values)
        share = np.random.default_rng(0).uniform(size=len(below))
        return np.asarray(np.clip(below + share * (up_to - below), 0.0, 1.0))

    def _probabilities_below(
        self, X: ArrayLike, y: ArrayLike, method: str, row_values: RowValues | None = None
    ) -> tuple[Column, Column]:
        """Return P(Y < y) and P(Y ≤ y) of counts and of censored targets, otherwise P(Y ≤ y)."""
        scaled = self._scaled_targets(X, y, method)

        def both(mixture: PredictiveMixture, rows: slice) -> list[Tensor]:
            return [*mixture.probabilities_below(scaled[rows].to(mixture.device))]

        below, up_to = self._over_blocks(X, method, both, row_values)
        return below, up_to
