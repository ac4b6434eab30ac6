"""Read several latent functions of each example from q(f), and mix them to classes."""

import math
from typing import final

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from jaxtyping import Float
from linear_operator.operators import BlockDiagLinearOperator, BlockInterleavedLinearOperator
from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.integration.contract import Derivatives
from directgp.integration.latents import LatentGrid
from directgp.likelihoods import Softmax
from directgp.likelihoods.base import Likelihood
from directgp.shapes import Marginals, Targets, Values


def latent_marginals(who: str, q: MultivariateNormal, number: int) -> Marginals:
    """Return the marginals of q(f), of shape (..., P, n) if examples have P > 1 latents.

    GPyTorch has them as tasks, of shape (..., n, P), or as the last batch axis of q(f). Raise
    `InvalidInputError` for another number of latents, and `UnsupportedError` if those of an example
    are correlated.
    """
    if number == 1:
        return Marginals(q.mean, q.variance)
    tasks = isinstance(q, MultitaskMultivariateNormal)
    latents = q.event_shape[-1:] if tasks else q.batch_shape[-1:]
    allowed = (
        f"of {number} latent functions, a MultitaskMultivariateNormal of shape (..., n, {number}) "
        f"or a batch of MultivariateNormals of shape (..., {number}, n)"
    )
    remedy = f"Use IndependentMultitaskVariationalStrategy with num_tasks={number}."
    require(latents == (number,), f"q(f) of {who}", allowed, tuple(q.mean.shape), remedy)
    if not tasks:
        return Marginals(q.mean, q.variance)
    if _largest_correlation(q) > torch.finfo(q.mean.dtype).eps ** 0.5:
        raise UnsupportedError(
            f"{who} needs latent functions of an example that are independent under q(f). Got "
            f"{number} correlated ones. Use IndependentMultitaskVariationalStrategy. Classes share "
            "functions through the mixing weights of gpytorch.likelihoods.SoftmaxLikelihood."
        )
    return Marginals(q.mean.transpose(-1, -2), q.variance.transpose(-1, -2))


@torch.no_grad()
def _largest_correlation(q: MultitaskMultivariateNormal) -> float:
    """Return the largest size of a correlation between the tasks of one example."""
    covariance = q.lazy_covariance_matrix
    blocks = BlockInterleavedLinearOperator if q._interleaved else BlockDiagLinearOperator
    if isinstance(covariance, blocks) and covariance.num_blocks == q.num_tasks:
        return 0.0
    (rows, tasks) = q.event_shape
    dense = covariance.to_dense()
    pairs = (rows, tasks) * 2 if q._interleaved else (tasks, rows) * 2
    axes = (-4, -2) if q._interleaved else (-3, -1)
    blocks_of_examples = dense.reshape(*dense.shape[:-2], *pairs).diagonal(
        dim1=axes[0], dim2=axes[1]
    )
    blocks_of_examples = blocks_of_examples.movedim(-1, 0)
    deviation = blocks_of_examples.diagonal(dim1=-1, dim2=-2).sqrt()
    # Replace NaN by 0: a deviation of 0 has no correlation.
    correlation = (
        blocks_of_examples / (deviation.unsqueeze(-1) * deviation.unsqueeze(-2))
    ).nan_to_num(0.0)
    return float(correlation.triu(1).abs().max())


@final
class MixedSoftmax(Likelihood):
    """p(y given f) = softmax(W f)_y: K classes that share P latent functions, with W of (K, P).

    The latents of the classes, W f, are correlated, so that the integral over them does not reduce
    to one variable: it is one over f.
    """

    task = "classification"

    weights: Tensor

    def __init__(self, weights: Float[Tensor, "c p"]) -> None:
        super().__init__()
        num_classes, self.num_latent = weights.shape
        self.classes = Softmax(num_classes)
        # Detach: a buffer may belong to a graph of the parameters that it was computed from.
        self.register_buffer("weights", weights.double())

    @property
    @override
    def integration(self) -> LatentGrid:
        # Σ_k e^{(W f)_k} has no zero where the phases of its terms differ by less than π.
        weights = self.weights.detach()
        widest = float((weights.amax(0) - weights.amin(0)).max())
        strip = math.pi / widest if widest > 0 else math.inf
        return LatentGrid(strip=strip, log_concave=True)

    def _mixed(self, f: Values) -> Values:
        return self.weights @ f

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return self.classes.log_kernel(y, self._mixed(f))

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        """∇ℓ = W_y − Σ_k p_k W_k, and ∂²ℓ/∂f_j² is minus the variance of W_kj under p."""
        value, first, _ = self.classes.derivatives(y, self._mixed(f))
        weights = self.weights.T
        chance = self.classes.class_probabilities(self._mixed(f))
        average = weights @ chance
        second = average.square() - weights.square() @ chance
        return Derivatives(value, weights @ first, second.clamp(max=0.0))

    @override
    def conditional_mean(self, f: Values) -> Values:
        return self.classes.conditional_mean(self._mixed(f))

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.classes.conditional_variance(self._mixed(f))

    @override
    def check_targets(self, y: Targets) -> None:
        self.classes.check_targets(y)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """The weights are the same for all examples."""
