"""Write the predictive distribution of y as a program: mean, deviation, quantiles, probabilities.

A table of the library's results replaces every function of one latent mean and variance, so that
likelihoods of users are exported, too.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.estimators.frames import deviation
from directgp.export.counts import counts
from directgp.export.family import (
    TOLERANCE,
    Outputs,
    Rows,
    TargetFamily,
    deviation_of_gaussian,
    table_over_f,
)
from directgp.export.latents import Latent
from directgp.export.program import Value, concatenate
from directgp.export.softmax import softmax
from directgp.export.tables import Axis, tabulate
from directgp.integration.contract import has
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Classes, NoiseLatent, SoftmaxLink
from directgp.likelihoods.gaussian import GaussianTruth
from directgp.predictive import predictive_quantiles
from directgp.predictive.api import label_log_probabilities, point_prediction
from directgp.predictive.distributions import distribution_of
from directgp.predictive.sampled import SampledDistribution
from directgp.shapes import Marginals


def check_exportable(likelihood: Likelihood) -> None:
    """Raise `UnsupportedError` for a likelihood that is not exported."""
    name = type(likelihood).__name__
    number = likelihood.num_latent
    supported = has(likelihood, SoftmaxLink) or has(likelihood, NoiseLatent)
    if number > 1 and not supported:
        raise UnsupportedError(
            f"{name} is not exported, because it has {number} latent functions: of those, softmax "
            "and the heteroscedastic Gaussian are. Fit with another likelihood."
        )
    if number == 1 and likelihood.task != "classification":
        one = torch.ones(1, dtype=torch.float64)
        if isinstance(distribution_of(likelihood, one, one), SampledDistribution):
            raise UnsupportedError(
                f"{name} is not exported, because its distribution is known by draws alone. Give "
                "it a method cdf(y, f)."
            )


def probabilities(family: TargetFamily, latents: Sequence[Latent]) -> Outputs:
    """Return the probability of each class, (n, K)."""
    if has(family.likelihood, SoftmaxLink):
        return {"probabilities": softmax(latents)}
    many = isinstance(family.likelihood, Classes)

    def log_odds(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        logs = label_log_probabilities(likelihood, q)
        return list((logs if many else logs[1:] - logs[:1]).asinh())

    # Tabulate over z = μ/√(1 + v): the result hardly depends on v, and is a line in log z far out.
    (q,) = latents
    z = q.mean / (1.0 + q.variance).sqrt()

    def values(z: Any, s: Any) -> Rows:
        return family.evaluate(log_odds, z * np.sqrt(1 + s**2), s**2)

    ends = min(q.lower, 0.0), max(q.upper, 0.0)
    axes = Axis(*ends, bend=1.0), Axis(0.0, q.largest_deviation)
    log_odds_or_logs = tabulate(values, axes, TOLERANCE).evaluate(z, q.deviation)
    log_odds_or_logs = 0.5 * (log_odds_or_logs.exp() - (-1.0 * log_odds_or_logs).exp())
    if not many:
        columns = [1.0 / (1.0 + x.exp()) for x in (log_odds_or_logs, -1.0 * log_odds_or_logs)]
        return {"probabilities": concatenate(columns)}
    chances = (log_odds_or_logs - log_odds_or_logs.largest()).exp()
    return {"probabilities": chances / chances.sum()}


def numbers(family: TargetFamily, latents: Sequence[Latent]) -> Outputs:
    """Return mean, standard deviation and quantiles of real numbers or counts."""
    likelihood = family.likelihood
    if likelihood.task == "count":
        return counts(family, *latents)
    if len(latents) > 1:
        return _changing_noise(family, *latents)
    if isinstance(likelihood, GaussianTruth):
        return _gaussian(family, *latents)
    return (_additive if likelihood.additive else _general)(family, *latents)


def _additive(family: TargetFamily, q: Latent) -> Outputs:
    """Write y = f + noise: deviation and quantiles around the mean depend on the variance alone."""
    levels = list(family.levels)

    def values(s: Any) -> Rows:
        def both(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
            offsets = predictive_quantiles(likelihood, q, levels) if levels else ()
            return [deviation(likelihood, q).log(), *offsets]

        return family.evaluate(both, np.zeros_like(s), s**2)

    axes = [Axis(0.0, q.largest_deviation)]
    table_values = tabulate(values, axes, TOLERANCE).evaluate(q.deviation)
    outputs = {
        "mean": family.in_units(q.mean),
        "std": table_values.column(0).exp() * abs(family.unit),
    }
    if levels:
        outputs["quantiles"] = family.in_units(q.mean + _columns(table_values, 1, len(levels)))
    return outputs


def _gaussian(family: TargetFamily, q: Latent) -> Outputs:
    """Write y = f + noise of variance σ²: √(v + σ²), and quantiles μ + √(v + σ²) Φ⁻¹(level)."""
    total = deviation_of_gaussian(family, q)
    outputs = {"mean": family.in_units(q.mean), "std": total * abs(family.unit)}
    if family.levels:
        probits = torch.special.ndtri(torch.tensor(family.levels, dtype=torch.float64))
        outputs["quantiles"] = family.in_units(q.mean + total * probits.numpy()[None])
    return outputs


def _general(family: TargetFamily, q: Latent) -> Outputs:
    """Write targets in the units of the user, from a table of their logs if f is on a log scale."""
    levels = list(family.levels)
    unit = abs(family.unit)
    logs = family.likelihood.latent_scale == "log"

    def values(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        y = [point_prediction(likelihood, q)]
        y += list(predictive_quantiles(likelihood, q, levels)) if levels else []
        mean, *quantiles = (target * family.unit + family.offset for target in y)
        columns = [mean, deviation(likelihood, q) * unit, *quantiles]
        return [target.log() if logs else target / unit for target in columns]

    predictions = table_over_f(family, q, values).evaluate(q.mean, q.deviation)
    predictions = predictions.exp() if logs else predictions * unit
    outputs = {"mean": predictions.column(0), "std": predictions.column(1)}
    if levels:
        outputs["quantiles"] = _columns(predictions, 2, len(levels))
    return outputs


def _columns(values: Value, start: int, number: int) -> Value:
    return values.take(np.arange(start, start + number), axis=1)


def _changing_noise(family: TargetFamily, q: Latent, log_noise: Latent) -> Outputs:
    """Write N(f, e^g): scale and shift quantiles of the variance u + (1 − u)e^{g − E g}."""
    noise = log_noise.mean.exp()
    total = q.variance + noise
    variance = q.variance + noise * (0.5 * log_noise.variance).exp()
    outputs = {
        "mean": family.in_units(q.mean),
        "std": variance.sqrt() * abs(family.unit),
    }
    if not family.levels:
        return outputs
    levels = list(family.levels)

    def values(share: Any, spread: Any) -> Rows:
        mean = np.stack([np.zeros_like(share), np.log1p(-share)])
        return family.evaluate(
            lambda likelihood, q: list(predictive_quantiles(likelihood, q, levels)),
            mean,
            np.stack([share, spread**2]),
        )

    axes = Axis(0.0, 1.0), Axis(0.0, log_noise.largest_deviation)
    table = tabulate(values, axes, TOLERANCE)
    quantiles = table.evaluate(q.variance / total, log_noise.deviation)
    outputs["quantiles"] = family.in_units(q.mean + total.sqrt() * quantiles)
    return outputs
