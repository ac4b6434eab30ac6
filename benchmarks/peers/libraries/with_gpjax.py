"""GPJax with `jit` and optax's Adam, as its documentation trains variational models."""

from typing import Any

import equinox as eqx
import gpjax as gpx
import jax
import jax.numpy as jnp
import optax
from gpjax.parameters import val
from gpjax.variational_families import WhitenedVariationalGaussian

from benchmarks.peers.cases import Arrays
from benchmarks.peers.libraries.base import LEARNING_RATE, Library
from benchmarks.peers.protocol import serve


class GPJax(Library):
    """`WhitenedVariationalGaussian`; the log loss is written with its likelihoods' own parts."""

    def version(self) -> str:
        return f"gpjax {gpx.__version__}, jax {jax.__version__}"

    def set_up(self, arrays: Arrays) -> None:
        jax.config.update("jax_enable_x64", self.dtype == "float64")
        self._data = gpx.Dataset(jnp.asarray(arrays["X"]), jnp.asarray(arrays["y"][:, None]))
        kernel = gpx.kernels.RBF(
            lengthscale=jnp.asarray(arrays["lengthscale"]),
            variance=jnp.asarray(arrays["output_scale"]),
        )
        prior = gpx.gps.Prior(
            mean_function=gpx.mean_functions.Zero(), kernel=kernel, jitter=self.nugget
        )
        if self.likelihood == "gaussian":
            likelihood = gpx.likelihoods.Gaussian(jnp.sqrt(jnp.asarray(arrays["noise"])))
        else:
            likelihood = gpx.likelihoods.Bernoulli()
        self._model = WhitenedVariationalGaussian(
            model=prior * likelihood,
            inducing_inputs=jnp.asarray(arrays["Z"]),
            variational_mean=jnp.asarray(arrays["u_mean"][:, None]),
            variational_root_covariance=jnp.asarray(arrays["u_chol"]),
        )
        self._adam = optax.adam(LEARNING_RATE)
        self._moments = self._adam.init(eqx.filter(self._model, eqx.is_array))
        # Create new functions each time: jit caches a bound method and would ignore a changed
        # objective.
        self._jitted_loss = eqx.filter_jit(lambda *given: self._loss(*given))
        self._jitted_step = eqx.filter_jit(lambda *given: self._step(*given))
        self._jitted_predict = eqx.filter_jit(lambda *given: self._marginals(*given))

    def departures(self) -> dict[str, float]:
        floor = {"probit_floor": 1e-3} if self.likelihood == "probit" else {}
        return {"variance_jitter": self.nugget, **floor}

    def _marginals(self, model: WhitenedVariationalGaussian, X: Any) -> tuple[Any, Any]:
        q = model.condition(None)(X, covariance="diagonal")
        return q.mean, q.variance

    def _loss(self, model: WhitenedVariationalGaussian, data: gpx.Dataset) -> jax.Array:
        if self.objective == "elbo":
            return -gpx.objectives.elbo(model, data)
        mean, variance = self._marginals(model, data.X)
        likelihood, y = model.model.likelihood, data.y[:, 0]
        if self.likelihood == "gaussian":
            total = variance + val(likelihood.obs_stddev) ** 2
            log_p = -0.5 * (jnp.log(2 * jnp.pi * total) + (y - mean) ** 2 / total)
        else:
            log_p = likelihood.link_function(mean / jnp.sqrt(1 + variance)).log_prob(y)
        return model.prior_kl() - jnp.sum(log_p)

    def _step(
        self, model: WhitenedVariationalGaussian, moments: optax.OptState, data: gpx.Dataset
    ) -> tuple[WhitenedVariationalGaussian, optax.OptState]:
        gradient = eqx.filter_grad(self._loss)(model, data)
        change, moments = self._adam.update(gradient, moments)
        return eqx.apply_updates(model, change), moments

    def loss(self) -> float:
        return float(self._jitted_loss(self._model, self._data)) / len(self.arrays["y"])

    def steps(self, number: int) -> None:
        for _ in range(number):
            self._model, self._moments = self._jitted_step(self._model, self._moments, self._data)
        jax.block_until_ready(self._moments)

    def predict(self, X: Any, block: int) -> None:
        for since in range(0, len(X), block):
            rows = jnp.asarray(X[since : since + block])
            self._predicted = self._jitted_predict(self._model, rows)
        jax.block_until_ready(self._predicted)


if __name__ == "__main__":
    serve(GPJax())
