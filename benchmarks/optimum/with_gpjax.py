"""GPJax with Adam; it has the ELBO, and no predictive log loss.

The step is that of `gpx.fit`, compiled once and called in a loop, so that time can be taken.
"""

from typing import Any

import equinox as eqx
import gpjax as gpx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gpjax.parameters import val

from benchmarks.optimum.jobs import Given, Parameters, Run, Settings, run_jobs
from benchmarks.optimum.recorder import Recorder, batches

_JITTER = 1e-6


def model_of(given: Given) -> Any:
    """Return its whitened family with the given hyperparameters."""
    likelihoods = {
        "regression": lambda: gpx.likelihoods.Gaussian(obs_stddev=jnp.sqrt(given.noise)),
        "classification": gpx.likelihoods.Bernoulli,
        "counts": gpx.likelihoods.Poisson,
    }
    means = gpx.mean_functions
    kernel = gpx.kernels.RBF(lengthscale=given.lengthscale, variance=given.output_scale)
    mean = means.Zero() if given.mean is None else means.Constant(given.mean)
    prior = gpx.gps.Prior(mean_function=mean, kernel=kernel, jitter=_JITTER)
    return gpx.variational_families.WhitenedVariationalGaussian(
        model=prior * likelihoods[given.kind](), inducing_inputs=jnp.array(given.Z)
    )


def parameters_of(given: Given, q: Any) -> Parameters:
    """Return the parameters that determine the predictions."""
    prior, likelihood = q.model.prior, q.model.likelihood
    mean = 0.0 if given.mean is None else val(prior.mean_function.constant)
    noise = val(likelihood.obs_stddev) ** 2 if given.kind == "regression" else 0.0
    values = {
        "Z": val(q.inducing_inputs),
        "lengthscale": jnp.squeeze(val(prior.kernel.lengthscale)),
        "output_scale": jnp.squeeze(val(prior.kernel.variance)),
        "mean": jnp.squeeze(jnp.asarray(mean)),
        "noise": jnp.squeeze(jnp.asarray(noise)),
        "u_mean": val(q.variational_mean)[:, 0],
        "u_chol": val(q.variational_root_covariance),
        "jitter": jnp.array(_JITTER),
    }
    return {name: np.asarray(value) for name, value in values.items()}


def train(given: Given, settings: Settings) -> Run:
    """Run the steps of its loop until the time or step limit."""
    data = gpx.Dataset(X=jnp.array(given.X), y=jnp.array(given.y[:, None]))
    n, adam = len(given.y), optax.adam(settings.rate)
    recorder, q = Recorder(settings), model_of(given)
    state = adam.init(eqx.filter(q, eqx.is_array))

    @eqx.filter_jit  # type: ignore[untyped-decorator]
    def step(q: Any, state: Any) -> tuple[Any, Any, Any]:
        def loss(q: Any) -> Any:
            return -gpx.objectives.elbo(q, data) / n

        value, gradient = eqx.filter_value_and_grad(loss)(q)
        updates, state = adam.update(gradient, state, eqx.filter(q, eqx.is_array))
        return eqx.apply_updates(q, updates), state, value

    recorder.look = lambda: parameters_of(given, q)
    recorder.keep()
    claimed = None
    for _ in batches(n, None, settings.seed):
        q, state, value = step(q, state)
        claimed = float(value) if claimed is None else claimed
        if recorder.step():
            break
    return recorder.run(np.nan if claimed is None else claimed)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    run_jobs(train)
