"""Objectives of directgp as GPyTorch's marginal log likelihoods: maximised, as those are."""

import math
from typing import final

import gpytorch
import torch
from torch import Tensor
from typing_extensions import override

from directgp.interop.gpytorch.direct_objective import AnyLikelihood, DirectObjective
from directgp.log_expectations.base import Rule
from directgp.objectives.base import PointLoss
from directgp.objectives.log_losses import GibbsLoss
from directgp.objectives.names import resolve_point_loss


@final
class DirectLogLoss(DirectObjective):
    """Log-loss DLM: (1/n) Σ_i log E_q[p(y_i given f_i)] − (β/N)·KL, to be maximised.

    It takes the place of `gpytorch.mlls.PredictiveLogLikelihood` and `VariationalELBO`.

    Parameters
    ----------
    likelihood : gpytorch.likelihoods.Likelihood or directgp.likelihoods.Likelihood
        p(y given f) of one latent value.
    model : gpytorch.models.ApproximateGP
        Any variational strategy and kernel, batches of models and of tasks; deep GPs too.
    num_data : int
        N, the number of training examples, whatever the size of a batch.
    beta : float or tensor
        β ≥ 0, or one for each model of a batch.
    rule : Rule or {"auto", "closed_form", "quadrature", "bmc", "smooth_bmc", "ups"}
        How log E_q[p] and its gradient are got; "auto" is right to many digits, for a likelihood
        of your own as long as it does not oscillate within an eighth of the deviation of q.
        Schedules of a rule count the calls in training mode.
    combine_terms : bool
        If not, log likelihood, KL·β/N, log prior and added loss are returned apart.
    generator : torch.Generator
        Randomness of the Monte Carlo rules; freshly seeded when none is given.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
    >>> class Model(gpytorch.models.ApproximateGP):
    ...     def __init__(self, Z):
    ...         q = CholeskyVariationalDistribution(len(Z))
    ...         super().__init__(VariationalStrategy(self, Z, q))
    ...         self.mean, self.kernel = gpytorch.means.ZeroMean(), gpytorch.kernels.RBFKernel()
    ...     def forward(self, x):
    ...         return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))
    >>> x = torch.linspace(0, 1, 20)[:, None]
    >>> model, likelihood = Model(x[::5]), gpytorch.likelihoods.BernoulliLikelihood()
    >>> objective = DirectLogLoss(likelihood, model, num_data=20, beta=0.1)
    >>> loss = -objective(model(x), (x[:, 0] > 0.5).float())
    >>> loss.backward()
    """

    def __init__(
        self,
        likelihood: AnyLikelihood,
        model: gpytorch.models.GP,
        num_data: int,
        beta: float | Tensor = 1.0,
        rule: Rule | str = "auto",
        combine_terms: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        loss = resolve_point_loss("log_loss", rule)
        super().__init__(likelihood, model, num_data, loss, beta, combine_terms, generator)

    @override
    def _over_samples(self, losses: Tensor) -> Tensor:
        # The log is outside of the average.
        return -torch.logsumexp(_log_weights(self.model, losses) - losses, 0)


@final
class BetaELBO(DirectObjective):
    """(1/n) Σ_i E_q[log p(y_i given f_i)] − (β/N)·KL, to be maximised: the ELBO where β = 1.

    It takes the place of `gpytorch.mlls.VariationalELBO`. The parameters are those of
    `DirectLogLoss`, but for the rule: the expectation is exact.
    """

    def __init__(
        self,
        likelihood: AnyLikelihood,
        model: gpytorch.models.GP,
        num_data: int,
        beta: float | Tensor = 1.0,
        combine_terms: bool = True,
    ) -> None:
        super().__init__(likelihood, model, num_data, GibbsLoss(), beta, combine_terms)

    @override
    def _over_samples(self, losses: Tensor) -> Tensor:
        return (_log_weights(self.model, losses).exp() * losses).sum(0)


def _log_weights(model: gpytorch.models.GP, losses: Tensor) -> Tensor:
    """Of the samples of a deep GP, all alike, or of the sigma points of a DSPP."""
    equal = losses.new_full((len(losses),), -math.log(len(losses)))
    weights: Tensor = getattr(model, "quad_weights", equal)
    return weights.reshape(-1, *[1] * (losses.dim() - 1))


@final
class DirectLoss(DirectObjective):
    """−(1/n) Σ_i loss_i − (β/N)·KL for any point loss, to be maximised.

    The parameters are those of `DirectLogLoss`, with a loss in place of the rule.

    Parameters
    ----------
    objective : PointLoss or str
        A loss of `directgp.objectives`, or its name: "crps", "square_loss", "absolute_loss",
        "pinball_loss", "zero_one_cost".
    """

    def __init__(
        self,
        likelihood: AnyLikelihood,
        model: gpytorch.models.GP,
        num_data: int,
        objective: PointLoss | str,
        beta: float | Tensor = 1.0,
        combine_terms: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        loss = resolve_point_loss(objective)
        super().__init__(likelihood, model, num_data, loss, beta, combine_terms, generator)
