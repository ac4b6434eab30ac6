"""Read the marginals of several latent functions of each example from a GPyTorch q(f)."""

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, BlockInterleavedLinearOperator

from directgp.errors import UnsupportedError, require
from directgp.shapes import Marginals


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
