"""Compute the predictive distribution of a family that can only draw y, from many draws."""

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from typing_extensions import override

from directgp.likelihoods.numeric import NUM_DRAWS, checked_draws
from directgp.numerics.roots import rounded_down
from directgp.predictive.base import Distribution
from directgp.predictive.moments import example_rows
from directgp.shapes import Row, Values

_SEED = 0
"""Seed of the draws of y."""


@final
class SampledDistribution(Distribution):
    """A family that can only draw y: the distribution of many draws, of a fixed seed.

    Every example has the same random numbers, so that its numbers do not depend on the others.
    """

    @override
    def cdf(self, y: Values) -> Values:
        def share(drawn: Row, y: Values) -> Values:
            return torch.searchsorted(drawn, y, right=True).to(drawn) / len(drawn)

        return self._by_example(share, y)

    @override
    def quantile(self, level: Values) -> Values:
        def order_statistic(drawn: Row, level: Values) -> Values:
            place = torch.ceil(rounded_down(level) * len(drawn)).long() - 1
            return drawn[place.clamp(0, len(drawn) - 1)]

        return self._by_example(order_statistic, level)

    def crps(self, y: Values) -> Values:
        """Return E|Y − y| − ½E|Y − Y′| over the draws."""

        def score(drawn: Row, y: Values) -> Values:
            number = len(drawn)
            place = torch.arange(1 - number, number, 2, dtype=drawn.dtype, device=drawn.device)
            return (drawn[:, None] - y).abs().mean(0) - place @ drawn / number**2

        return self._by_example(score, y)

    def _by_example(self, compute: Callable[[Row, Values], Values], arguments: Values) -> Values:
        """Return a function of the sorted draws and the arguments of each example."""
        number = self.likelihood.num_latent
        rows = example_rows(self.likelihood, self.mean)
        wide = torch.broadcast_shapes(arguments.shape, rows.shape)
        columns = arguments.expand(wide).reshape(-1, rows.numel())
        likelihood = self.likelihood.take(rows.shape)
        means, variances = (
            values.reshape(1, -1) if number == 1 else values.movedim(-2, 0).flatten(1)
            for values in (self.mean, self.variance)
        )
        results = []
        for i in range(rows.numel()):
            mean = means[:, i : i + 1]
            variance = variances[:, i : i + 1]
            random = np.random.RandomState(_SEED)
            # Stratified draws of f: one from each of NUM_DRAWS parts of q of equal probability.
            place = np.stack([random.permutation(NUM_DRAWS) for _ in range(number)]) + 0.5
            z = torch.special.ndtri(torch.as_tensor(place / NUM_DRAWS).to(mean))
            f = mean + variance.sqrt() * z
            example = likelihood.take(torch.tensor([i], device=mean.device))
            drawn = checked_draws(example, f[0] if number == 1 else f, random)
            sorted_draws = torch.as_tensor(np.sort(drawn)).to(mean)
            results.append(compute(sorted_draws, columns[:, i].contiguous()))
        return torch.stack(results, -1).reshape(wide)
