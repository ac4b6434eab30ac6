"""GPflow with `tf.function`, as its documentation trains an SVGP with Adam."""

import math
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from benchmarks.peers.cases import NUM_SAMPLES, Arrays
from benchmarks.peers.libraries.base import LEARNING_RATE, Library
from benchmarks.peers.protocol import serve

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class GPflow(Library):
    """SVGP, whitened; the log loss is minus the mean of `predict_log_density`."""

    def version(self) -> str:
        return f"gpflow {gpflow.__version__}, tensorflow {tf.__version__}"

    def set_up(self, arrays: Arrays) -> None:
        gpflow.config.set_default_float(np.dtype(self.dtype).type)
        gpflow.config.set_default_jitter(self.nugget)
        self._X, self._y = tf.constant(arrays["X"]), tf.constant(arrays["y"][:, None])
        families = {
            "gaussian": lambda: gpflow.likelihoods.Gaussian(arrays["noise"]),
            "probit": gpflow.likelihoods.Bernoulli,
            "poisson": gpflow.likelihoods.Poisson,
        }
        self._model = gpflow.models.SVGP(
            gpflow.kernels.SquaredExponential(arrays["output_scale"], arrays["lengthscale"]),
            families[self.likelihood](),
            arrays["Z"],
            q_mu=arrays["u_mean"][:, None],
            q_sqrt=arrays["u_chol"][None],
            whiten=True,
            num_data=len(arrays["y"]),
        )
        self._adam = tf.keras.optimizers.Adam(LEARNING_RATE)
        self._compiled_loss, self._compiled_step = map(tf.function, (self._loss, self._step))
        self._compiled_predict = tf.function(self._model.predict_f)

    def departures(self) -> dict[str, float]:
        return {"probit_floor": 1e-3} if self.likelihood == "probit" else {}

    def _loss(self) -> Any:
        if self.objective == "elbo":
            return self._model.training_loss((self._X, self._y))
        mean, variance = self._model.predict_f(self._X)
        if self.likelihood == "poisson":
            log_p = self._biased_monte_carlo(mean, variance)
        else:
            log_p = self._model.likelihood.predict_log_density(self._X, mean, variance, self._y)
        return self._model.prior_kl() - tf.reduce_sum(log_p)

    def _biased_monte_carlo(self, mean: Any, variance: Any) -> Any:
        noise = tf.random.normal((NUM_SAMPLES, *mean.shape), dtype=mean.dtype)
        f = mean + tf.sqrt(variance) * noise
        log_p = self._model.likelihood.log_prob(self._X, f, self._y)
        return tf.reduce_logsumexp(log_p, axis=0) - math.log(NUM_SAMPLES)

    def _step(self) -> Any:
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss()
        self._adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def loss(self) -> float:
        return float(self._compiled_loss()) / len(self.arrays["y"])

    def steps(self, number: int) -> None:
        for _ in range(number):
            loss = self._compiled_step()
        float(loss)

    def predict(self, X: Any, block: int) -> None:
        for since in range(0, len(X), block):
            mean, variance = self._compiled_predict(tf.constant(X[since : since + block]))
        self._predicted = mean.numpy(), variance.numpy()


if __name__ == "__main__":
    serve(GPflow())
