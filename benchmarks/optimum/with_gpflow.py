"""GPflow, as its documentation trains an SVGP: Adam under tf.function, natural gradients too."""

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from benchmarks.optimum.jobs import Given, Parameters, Run, Settings, run_jobs
from benchmarks.optimum.recorder import Recorder, batches

_GAMMA = {"regression": 1.0, "classification": 0.1, "counts": 0.1}
"""Length of a natural gradient step: whole where the likelihood is conjugate."""


def model_of(given: Given) -> Any:
    """Return its SVGP with the given hyperparameters."""
    likelihoods = {
        "regression": lambda: gpflow.likelihoods.Gaussian(given.noise),
        "classification": gpflow.likelihoods.Bernoulli,
        "counts": gpflow.likelihoods.Poisson,
    }
    constant = gpflow.functions.Constant
    return gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(given.output_scale, given.lengthscale),
        likelihoods[given.kind](),
        inducing_variable=given.Z.copy(),
        mean_function=None if given.mean is None else constant(np.array([given.mean])),
        whiten=True,
        num_data=len(given.y),
    )


def loss_of(given: Given, model: Any) -> Callable[[Any], Any]:
    """Return the mean objective of a batch: minus its ELBO, or a user-written log loss."""
    n = len(given.y)

    def elbo(data: Any) -> Any:
        return -model.elbo(data) / n

    def log_loss(data: Any) -> Any:
        X, y = data
        mean, variance = model.predict_f(X, full_cov=False, full_output_cov=False)
        density = model.likelihood.predict_log_density(X, mean, variance, y)
        return -tf.reduce_mean(density) + given.beta * model.prior_kl() / n

    return elbo if given.objective == "elbo" else log_loss


def parameters_of(model: Any) -> Parameters:
    """Return the parameters that determine the predictions."""
    mean, noise = model.mean_function, getattr(model.likelihood, "variance", None)
    values = {
        "Z": model.inducing_variable.Z,
        "lengthscale": model.kernel.lengthscales,
        "output_scale": model.kernel.variance,
        "mean": getattr(mean, "c", None),
        "noise": noise,
        "u_mean": model.q_mu,
        "u_chol": model.q_sqrt,
    }
    plain = {
        name: np.zeros(()) if v is None else np.squeeze(v.numpy()) for name, v in values.items()
    }
    plain["Z"] = model.inducing_variable.Z.numpy()
    return {**plain, "jitter": np.array(gpflow.config.default_jitter())}


def step_of(given: Given, settings: Settings, model: Any) -> Any:
    """Return a compiled step that returns the loss before it."""
    loss = loss_of(given, model)
    adam = tf.optimizers.Adam(settings.rate)
    natural = gpflow.optimizers.NaturalGradient(_GAMMA[given.kind])
    if settings.natural:
        gpflow.set_trainable(model.q_mu, False)
        gpflow.set_trainable(model.q_sqrt, False)
    variables = model.trainable_variables

    @tf.function  # type: ignore[untyped-decorator]
    def step(X: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss((X, y))
        adam.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        if settings.natural:
            natural.minimize(lambda: loss((X, y)) * len(given.y), [(model.q_mu, model.q_sqrt)])
        return value

    return step


def train(given: Given, settings: Settings) -> Run:
    """Run the loop of the documentation until the time or step limit."""
    tf.random.set_seed(settings.seed)
    X, y = tf.constant(given.X), tf.constant(given.y[:, None])
    recorder = Recorder(settings)
    model = model_of(given)
    recorder.look = lambda: parameters_of(model)
    step = step_of(given, settings, model)
    recorder.keep()
    claimed = None
    for rows in batches(len(given.y), settings.batch_size, settings.seed):
        whole = isinstance(rows, slice)
        value = step(X, y) if whole else step(tf.gather(X, rows), tf.gather(y, rows))
        claimed = float(value) if claimed is None else claimed
        if recorder.step():
            break
    return recorder.run(np.nan if claimed is None or settings.batch_size else claimed)


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    run_jobs(train)
