"""Gradients of the objective in q(u) from those of the marginals."""

import pytest
import torch

from directgp.diagnostics import gradient_draws
from directgp.experiments.paper.studies import objective_pullback
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit
from directgp.log_expectations.api import resolve_rule
from directgp.objectives import LogLoss, Objective
from directgp.posteriors import SparsePosterior

N, M, BETA = 30, 5, 0.7


def a_posterior(X: torch.Tensor, generator: torch.Generator) -> SparsePosterior:
    """Far from the prior, and with rubbish above the diagonal that nobody reads."""
    posterior = SparsePosterior.from_data(X, num_inducing=M, generator=generator)
    with torch.no_grad():
        posterior.u_mean.copy_(torch.randn(M, generator=generator))
        posterior.u_chol.add_(0.3 * torch.randn(M, M, generator=generator))
    return posterior


@pytest.mark.parametrize("likelihood", [Gaussian(0.2), Probit(), Poisson()])
def test_it_is_the_gradient_of_the_objective(likelihood: Likelihood) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (N,), generator=generator).double()
    posterior = a_posterior(X, generator)
    objective = Objective(LogLoss(), num_data=N, beta=BETA)
    objective(likelihood, y, posterior.marginals(X), posterior.kl()).backward()
    marginals = posterior.predict(X)
    exact = resolve_rule("auto", likelihood)
    by_mean, by_variance = gradient_draws(exact, likelihood, y, marginals)
    found = objective_pullback(posterior, X, BETA)(by_mean, by_variance)
    assert posterior.u_mean.grad is not None and posterior.u_chol.grad is not None
    torch.testing.assert_close(found["u_mean"][0], posterior.u_mean.grad)
    torch.testing.assert_close(found["u_chol"][0], posterior.u_chol.grad.tril())


def test_draws_do_not_mix() -> None:
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    pullback = objective_pullback(a_posterior(X, generator), X, BETA)
    by_mean, by_variance = torch.randn(2, 3, N, generator=generator, dtype=torch.float64)
    together = pullback(by_mean, by_variance)
    for r in range(3):
        alone = pullback(by_mean[r : r + 1], by_variance[r : r + 1])
        for block in ("u_mean", "u_chol"):
            torch.testing.assert_close(together[block][r], alone[block][0])


def test_at_the_prior_the_kl_has_no_gradient() -> None:
    X = torch.linspace(-1, 1, N, dtype=torch.float64).reshape(-1, 1)
    posterior = SparsePosterior.from_data(X, num_inducing=M)
    nothing = torch.zeros(1, N, dtype=torch.float64)
    for block in objective_pullback(posterior, X, 1.0)(nothing, nothing).values():
        assert not block.any()
