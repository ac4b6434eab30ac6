"""The objectives equal a plain sum of directgp's losses and a KL term."""

from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import VariationalELBO
from torch import Tensor

from directgp import Marginals, expected_log_prob, log_expectation
from directgp.interop.gpytorch import BetaELBO, DirectLogLoss, DirectLoss
from directgp.likelihoods import Gaussian, Poisson, Probit, StudentT
from directgp.log_expectations import BiasedMonteCarlo
from directgp.objectives import resolve_point_loss
from tests.unit.interop.gpytorch_models import (
    STRATEGIES,
    Model,
    Strategy,
    batched,
    independent,
    mixed,
    whitened,
)

# GPyTorch's decoupled and multi-task strategies call torch in ways that it has deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.sparse.SparseTensor"),
]

N = 100


@pytest.fixture
def x() -> Tensor:
    return torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]


@pytest.fixture
def y() -> Tensor:
    return torch.sin(torch.linspace(0, 5, 12, dtype=torch.float64))


def moved(x: Tensor, strategy: Strategy = whitened, batch: tuple[int, ...] = ()) -> Model:
    """A model whose q(u) is not the prior."""
    model: Model = Model(x[::3].clone(), strategy, batch).double()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model(x)
        for name, parameter in model.named_parameters():
            if "variational_mean" in name or "natural_vec" in name:
                parameter.normal_()
    return model


def gradients(value: Tensor, *modules: torch.nn.Module) -> list[Tensor]:
    parameters = [each for module in modules for each in module.parameters()]
    found = torch.autograd.grad(value.sum(), parameters, allow_unused=True)
    return [
        torch.zeros_like(each) if slope is None else slope
        for each, slope in zip(parameters, found, strict=True)
    ]


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_sum_of_losses_and_the_kl(name: str, x: Tensor, y: Tensor) -> None:
    model, likelihood = moved(x, STRATEGIES[name]), gpytorch.likelihoods.BernoulliLikelihood()
    labels = (y > 0).double()
    q, kl = model(x), model.variational_strategy.kl_divergence()
    predictive = log_expectation(Probit(), labels, q.mean, q.variance).mean()
    gibbs = expected_log_prob(Probit(), labels, q.mean, q.variance).mean()
    for objective, expected in ((DirectLogLoss, predictive), (BetaELBO, gibbs)):
        found = objective(likelihood, model, N, beta=0.3)(model(x), labels)
        torch.testing.assert_close(found, expected - 0.3 * kl / N)


@pytest.mark.parametrize("name", STRATEGIES)
def test_gradients_are_those_of_gpytorch_where_that_is_exact(
    name: str, x: Tensor, y: Tensor
) -> None:
    model = moved(x, STRATEGIES[name])
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    pairs = (
        (BetaELBO, VariationalELBO),
        (DirectLogLoss, gpytorch.mlls.PredictiveLogLikelihood),
    )
    for ours, theirs in pairs:
        found = gradients(ours(likelihood, model, N, beta=0.3)(model(x), y), model, likelihood)
        known = gradients(theirs(likelihood, model, N, beta=0.3)(model(x), y), model, likelihood)
        assert any(bool(each.any()) for each in known)
        torch.testing.assert_close(found, known, rtol=1e-9, atol=1e-12)


def test_beta_may_be_zero_even_where_the_kl_is_infinite(x: Tensor, y: Tensor) -> None:
    model, likelihood = moved(x), gpytorch.likelihoods.GaussianLikelihood().double()
    with torch.no_grad():
        model.variational_strategy._variational_distribution.chol_variational_covar.zero_()
    value = DirectLogLoss(likelihood, model, N, beta=0.0)(model(x), y)
    q = model(x)
    alone = log_expectation(Gaussian(likelihood.noise.item()), y, q.mean, q.variance).mean()
    torch.testing.assert_close(value, alone)


def test_beta_may_be_annealed(x: Tensor, y: Tensor) -> None:
    model, likelihood = moved(x), gpytorch.likelihoods.GaussianLikelihood().double()
    objective = DirectLogLoss(likelihood, model, N, beta=1.0)
    before = objective(model(x), y)
    objective.beta = 0.1
    kl = model.variational_strategy.kl_divergence()
    torch.testing.assert_close(objective(model(x), y) - before, 0.9 * kl / N)


def test_a_batch_of_models_has_a_value_and_a_beta_each(x: Tensor, y: Tensor) -> None:
    model = moved(x, batched(3), (3,))
    likelihood = gpytorch.likelihoods.LaplaceLikelihood(batch_shape=torch.Size([3])).double()
    likelihood.noise = torch.tensor([[0.1], [0.5], [2.0]], dtype=torch.float64)
    beta = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    together = DirectLogLoss(likelihood, model, N, beta=beta)(model(x), y)
    slopes = gradients(together, model, likelihood)
    q, kl = model(x), model.variational_strategy.kl_divergence()
    for k, noise in enumerate((0.1, 0.5, 2.0)):
        alone = gpytorch.likelihoods.LaplaceLikelihood().double()
        alone.noise = noise
        one = MultivariateNormal(q.mean[k], torch.diag(q.variance[k]))
        single = DirectLogLoss(alone, moved(x), N, beta=0.0)(one, y)
        torch.testing.assert_close(together[k], single - beta[k] * kl[k] / N)
        torch.testing.assert_close(slopes[-1][k], *gradients(single, alone))


def test_tasks_of_an_example_are_summed(x: Tensor, y: Tensor) -> None:
    targets = torch.stack([y, -y], -1)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2).double()
    likelihood.task_noises = torch.tensor([0.1, 0.4])
    for strategy, batch in ((independent(2), 2), (mixed(2, 3), 3)):
        model = moved(x, strategy, (batch,))
        q = model(x)
        noise = likelihood.noise + torch.tensor([0.1, 0.4])
        normal = torch.distributions.Normal(q.mean, (q.variance + noise).sqrt())
        expected = normal.log_prob(targets).sum(-1).mean()
        kl = model.variational_strategy.kl_divergence()
        found = DirectLogLoss(likelihood, model, N)(model(x), targets)
        torch.testing.assert_close(found, expected - kl / N)


def test_tasks_with_labels(x: Tensor, y: Tensor) -> None:
    """Where GPyTorch's own sum is over tasks alone, and its objective a vector."""
    model, labels = moved(x, independent(2), (2,)), torch.stack([y > 0, y < 0.5], -1).double()
    likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    q, kl = model(x), model.variational_strategy.kl_divergence()
    expected = expected_log_prob(Probit(), labels, q.mean, q.variance).sum(-1).mean()
    found = BetaELBO(likelihood, model, N)(model(x), labels)
    torch.testing.assert_close(found, expected - kl / N)
    assert VariationalELBO(likelihood, model, N)(model(x), labels).shape == (12,)


@pytest.mark.parametrize("policy", ["mask", "fill"])
def test_missing_targets_are_passed_over(policy: str, x: Tensor, y: Tensor) -> None:
    model, likelihood = moved(x), gpytorch.likelihoods.GaussianLikelihood().double()
    gaps = y.clone()
    gaps[[2, 7]] = torch.nan
    there = ~torch.isnan(gaps)
    objective = DirectLogLoss(likelihood, model, N)
    with gpytorch.settings.observation_nan_policy(policy):
        found = objective(model(x), gaps)
        slopes = gradients(found, model, likelihood)
        theirs = gpytorch.mlls.PredictiveLogLikelihood(likelihood, model, N)(model(x), gaps)
    torch.testing.assert_close(found, theirs)
    q, kl = model(x), model.variational_strategy.kl_divergence()
    some = MultivariateNormal(q.mean[there], torch.diag(q.variance[there]))
    expected = (objective(some, y[there]) + kl / N) * 10 / 12 - kl / N
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(slopes, gradients(expected, model, likelihood))


def test_missing_targets_of_some_tasks_and_of_labels(x: Tensor, y: Tensor) -> None:
    model, labels = moved(x, independent(2), (2,)), torch.stack([y > 0, y < 0.5], -1).double()
    labels[3, 0] = torch.nan
    q, kl = model(x), model.variational_strategy.kl_divergence()
    each = log_expectation(Probit(), labels.nan_to_num(0.0), q.mean, q.variance)
    expected = (each.sum() - each[3, 0]) / 12 - kl / N
    objective = DirectLogLoss(gpytorch.likelihoods.BernoulliLikelihood(), model, N)
    with gpytorch.settings.observation_nan_policy("mask"):
        torch.testing.assert_close(objective(model(x), labels), expected)
        labels[:] = torch.nan
        torch.testing.assert_close(objective(model(x), labels), -kl / N)


def test_missing_targets_of_a_batch_with_parameters_each(x: Tensor, y: Tensor) -> None:
    """What is taken of the examples is taken of their parameters and arguments too."""
    model, gaps = moved(x, batched(2), (2,)), torch.stack([y, y])
    gaps[0, 2] = gaps[1, 7] = torch.nan
    there = ~torch.isnan(gaps)
    likelihood = gpytorch.likelihoods.LaplaceLikelihood(batch_shape=torch.Size([2])).double()
    likelihood.noise = torch.tensor([[0.1], [2.0]], dtype=torch.float64)
    with gpytorch.settings.observation_nan_policy("mask"):
        found = DirectLogLoss(likelihood, model, N, beta=0.0)(model(x), gaps)
    q = model(x)
    for k, noise in enumerate((0.1, 2.0)):
        alone = gpytorch.likelihoods.LaplaceLikelihood().double()
        alone.noise = noise
        some = MultivariateNormal(q.mean[k, there[k]], torch.diag(q.variance[k, there[k]]))
        single = DirectLogLoss(alone, moved(x), N, beta=0.0)(some, y[there[k]])
        torch.testing.assert_close(found[k], single * 11 / 12)


def test_noise_of_each_example(x: Tensor, y: Tensor) -> None:
    noise = torch.linspace(0.1, 1, 12, dtype=torch.float64)
    model, likelihood = moved(x), gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
    q, kl = model(x), model.variational_strategy.kl_divergence()
    normal = torch.distributions.Normal(q.mean, (q.variance + noise).sqrt())
    objective = DirectLogLoss(likelihood, model, N)
    torch.testing.assert_close(objective(model(x), y), normal.log_prob(y).mean() - kl / N)
    batch = objective(model(x[:5]), y[:5], noise=noise[:5])
    torch.testing.assert_close(batch, normal.log_prob(y)[:5].mean() - kl / N)


def test_priors_and_terms(x: Tensor, y: Tensor) -> None:
    prior = gpytorch.priors.GammaPrior(3.0, 6.0)
    model = Model(x[::3].clone(), whitened, lengthscale_prior=prior).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    whole = DirectLogLoss(likelihood, model, N, beta=0.5)(model(x), y)
    apart = DirectLogLoss(likelihood, model, N, beta=0.5, combine_terms=False)(model(x), y)
    fit, kl, log_prior, added = apart
    scale = model.covar_module.base_kernel.lengthscale
    torch.testing.assert_close(log_prior, prior.log_prob(scale).sum() / N)
    torch.testing.assert_close(kl, 0.5 * model.variational_strategy.kl_divergence() / N)
    assert added == 0
    torch.testing.assert_close(whole, fit - kl + log_prior)


def test_the_kl_term_keeps_its_digits_beside_a_large_loss(x: Tensor, y: Tensor) -> None:
    model, likelihood = moved(x), gpytorch.likelihoods.GaussianLikelihood().double()
    _, kl, _, _ = BetaELBO(likelihood, model, N, combine_terms=False)(model(x), y + 1e6)
    torch.testing.assert_close(kl, model.variational_strategy.kl_divergence() / N)


@pytest.mark.parametrize("loss", ["crps", "square_loss", "absolute_loss", "pinball_loss"])
def test_other_losses(loss: str, x: Tensor, y: Tensor) -> None:
    model, likelihood = moved(x), gpytorch.likelihoods.GaussianLikelihood().double()
    q, kl = model(x), model.variational_strategy.kl_divergence()
    own = Gaussian(likelihood.noise.item())
    each = resolve_point_loss(loss)(own, y, Marginals(q.mean, q.variance))
    found = DirectLoss(likelihood, model, N, loss, beta=0.1)(model(x), y)
    torch.testing.assert_close(found, -each.mean() - 0.1 * kl / N)


def test_rules_draw_from_the_generator_and_count_the_steps(x: Tensor, y: Tensor) -> None:
    model, likelihood = moved(x), gpytorch.likelihoods.BernoulliLikelihood()
    seen: list[int] = []

    def samples(step: int) -> int:
        seen.append(step)
        return 10

    def value(seed: int) -> Tensor:
        rule = BiasedMonteCarlo(num_samples=samples)
        generator = torch.Generator().manual_seed(seed)
        objective = DirectLogLoss(likelihood, model, N, rule=rule, generator=generator)
        for _ in range(3):
            found: Tensor = objective(model(x), (y > 0).double())
        objective.eval()(model(x), (y > 0).double())
        return found

    assert torch.equal(value(0), value(0)) and not torch.equal(value(0), value(1))
    assert seen[:4] == [0, 1, 2, 3]


def test_float32_models(x: Tensor, y: Tensor) -> None:
    model, likelihood = moved(x).float(), gpytorch.likelihoods.StudentTLikelihood()
    narrow = DirectLogLoss(likelihood, model, N)(model(x.float()), y.float())
    assert narrow.dtype == torch.float32
    q, kl = model(x.float()), model.variational_strategy.kl_divergence()
    own = StudentT(likelihood.deg_free.item(), likelihood.noise.sqrt().item())
    wide = log_expectation(own, y, q.mean.double(), q.variance.double()).mean() - kl / N
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-6)
    assert all(torch.isfinite(each).all() for each in gradients(narrow, model, likelihood))


class _Deep(gpytorch.models.deep_gps.DeepGP):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer


def test_a_deep_gp_is_a_mixture_over_its_samples(x: Tensor, y: Tensor) -> None:
    model = _Deep(moved(x))
    q, shift = model.layer(x), torch.tensor([[-0.5], [0.0], [0.5]], dtype=torch.float64)
    samples = MultivariateNormal(q.mean + shift, torch.diag(q.variance).expand(3, 12, 12))
    for own, likelihood in (
        (Probit(), gpytorch.likelihoods.BernoulliLikelihood()),
        (StudentT(), StudentT()),
    ):
        target = (y > 0).double()
        kl = model.layer.variational_strategy.kl_divergence() / N
        each = log_expectation(own, target, samples.mean, samples.variance).exp().mean(0).log()
        found = DirectLogLoss(likelihood, model, N)(samples, target)
        torch.testing.assert_close(found, each.mean() - kl)
        each = expected_log_prob(own, target, samples.mean, samples.variance)
        found = BetaELBO(likelihood, model, N)(samples, target)
        torch.testing.assert_close(found, each.mean() - kl)
        wrapped = gpytorch.mlls.DeepApproximateMLL(BetaELBO(likelihood, model, N))
        torch.testing.assert_close(wrapped(samples, target), found)


def test_sigma_points_have_their_weights(x: Tensor, y: Tensor) -> None:
    model = _Deep(moved(x))
    model.quad_weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    q, shift = model.layer(x), torch.tensor([[-0.5], [0.0], [0.5]], dtype=torch.float64)
    points = MultivariateNormal(q.mean + shift, torch.diag(q.variance).expand(3, 12, 12))
    kl = model.layer.variational_strategy.kl_divergence() / N
    weights, target = model.quad_weights.exp()[:, None], (y > 0).double()
    each = log_expectation(Probit(), target, points.mean, points.variance).exp()
    found = DirectLogLoss(Probit(), model, N)(points, target)
    torch.testing.assert_close(found, (weights * each).sum(0).log().mean() - kl)
    each = expected_log_prob(Probit(), target, points.mean, points.variance)
    found = BetaELBO(Probit(), model, N)(points, target)
    torch.testing.assert_close(found, (weights * each).sum(0).mean() - kl)


def test_a_gaussian_with_a_mean_of_its_own_is_another_likelihood(x: Tensor, y: Tensor) -> None:
    class Softplus(gpytorch.likelihoods.GaussianLikelihood):
        def forward(self, function_samples: Tensor, *params: Any, **kwargs: Any) -> Any:
            return super().forward(torch.nn.functional.softplus(function_samples))

    model, likelihood = moved(x), Softplus().double()
    q, kl = model(x), model.variational_strategy.kl_divergence()
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None]
    mean = torch.nn.functional.softplus(q.mean + q.variance.sqrt() * z)
    normal = torch.distributions.Normal(mean, likelihood.noise.sqrt())
    weights = torch.exp(-0.5 * z * z) * 18 / 20_000 / (2 * torch.pi) ** 0.5
    expected = (weights * normal.log_prob(y).exp()).sum(0).log().mean() - kl / N
    torch.testing.assert_close(DirectLogLoss(likelihood, model, N)(model(x), y), expected)


def test_exposure_goes_with_the_call(x: Tensor, y: Tensor) -> None:
    model, counts = moved(x), (3 + 2 * y).round()
    exposure = torch.linspace(1, 4, 12, dtype=torch.float64)
    q, kl = model(x), model.variational_strategy.kl_divergence()
    own = Poisson().with_exposure(exposure)
    expected = log_expectation(own, counts, q.mean, q.variance).mean() - kl / N
    found = DirectLogLoss(Poisson(), model, N)(model(x), counts, exposure=exposure)
    torch.testing.assert_close(found, expected)
