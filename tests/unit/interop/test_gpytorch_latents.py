"""Likelihoods of several latents in GPyTorch: classes, mixed latents, noise that changes."""

import math
from contextlib import nullcontext as _fine
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import SoftmaxLikelihood
from gpytorch.mlls import PredictiveLogLikelihood, VariationalELBO
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    VariationalStrategy,
)
from torch import Tensor

from directgp import Marginals
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.interop.gpytorch import BetaELBO, DirectLogLoss, DirectLoss, GPyTorchLikelihood
from directgp.likelihoods import HeteroscedasticGaussian, RobustMax, Softmax
from directgp.log_expectations import BiasedMonteCarlo
from directgp.objectives import resolve_point_loss
from tests.unit.interop.gpytorch_models import Model, batched, independent, mixed, whitened

# GPyTorch's multi-task strategies call torch in ways that it has deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.sparse.SparseTensor"),
]

N = 50
X = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
LABELS = torch.tensor([0, 2, 1, 1, 2, 0])
Y = torch.sin(5 * X[:, 0])


def softmax(num_features: int | None = None) -> SoftmaxLikelihood:
    if num_features is None:
        return SoftmaxLikelihood(num_classes=3, mixing_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        likelihood = SoftmaxLikelihood(num_features, num_classes=3).double()
        likelihood.mixing_weights.data.mul_(3)
    return likelihood


def moved(strategy: Any, *batch: int) -> Model:
    """A model whose q(u) is not the prior, with another mean for each latent."""
    model: Model = Model(X[::2].clone(), strategy, batch).double()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model(X)
        for name, parameter in model.named_parameters():
            if "variational_mean" in name or name.endswith("constant"):
                parameter.normal_()
    return model


def kl(model: Any) -> Tensor:
    terms: Tensor = model.variational_strategy.kl_divergence()
    return terms.sum() / N


def averages(log_p: Any, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """log E_q[p] and E_q[log p] of one example, by a sum over a grid in all latents."""
    z = torch.linspace(-8.5, 8.5, 69, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(*[z] * len(mean), indexing="ij")).flatten(1)
    log_weights = torch.log_softmax(-0.5 * grid.square().sum(0), 0)
    logs = log_p(mean[:, None] + variance.sqrt()[:, None] * grid)
    return torch.logsumexp(log_weights + logs, 0), (log_weights.exp() * logs).sum()


def expected(q: Any, y: Tensor, log_p: Any) -> list[Tensor]:
    """Means over the examples of log E_q[p] and E_q[log p], for q(f) with tasks."""
    rows = zip(y, q.mean, q.variance, strict=True)
    pairs = [averages(lambda f, k=k: log_p(k, f), mean, v) for k, mean, v in rows]
    return [torch.stack(each).mean() for each in zip(*pairs, strict=True)]


def log_softmax(k: Tensor, f: Tensor, weights: Tensor | None = None) -> Tensor:
    return torch.log_softmax(f if weights is None else weights @ f, 0)[k]


def log_normal(y: Tensor, f: Tensor) -> Tensor:
    return -0.5 * (math.log(2 * math.pi) + f[1] + (y - f[0]).square() * torch.exp(-f[1]))


@pytest.mark.parametrize("rows", [6, 3])
@pytest.mark.parametrize("make", [softmax, lambda: Softmax(3)], ids=["gpytorch", "directgp"])
def test_classes(make: Any, rows: int) -> None:
    """Also with as many examples as classes, where GPyTorch's forward transposes f."""
    model, y = moved(independent(3), 3), LABELS[:rows]
    with torch.no_grad():
        known = expected(model(X[:rows]), y, log_softmax)
    for objective, value in zip((DirectLogLoss, BetaELBO), known, strict=True):
        found = objective(make(), model, N, beta=0.3)(model(X[:rows]), y)
        torch.testing.assert_close(found, value - 0.3 * kl(model), rtol=1e-9, atol=0)


def test_a_batch_of_functions_is_the_same_as_tasks() -> None:
    tasks, batch = moved(independent(3), 3), moved(batched(3), 3)
    batch.variational_strategy.load_state_dict(
        tasks.variational_strategy.base_variational_strategy.state_dict(), strict=False
    )
    batch.mean_module, batch.covar_module = tasks.mean_module, tasks.covar_module
    found = DirectLogLoss(softmax(), batch, N)(batch(X), LABELS)
    torch.testing.assert_close(found, DirectLogLoss(softmax(), tasks, N)(tasks(X), LABELS))


@pytest.mark.parametrize("tasks", [True, False])
def test_a_batch_of_models_has_a_value_each(tasks: bool) -> None:
    def strategy(model: Any, Z: Tensor) -> Any:
        q = CholeskyVariationalDistribution(len(Z), batch_shape=torch.Size([2, 3]))
        base = VariationalStrategy(model, Z.expand(2, 3, *Z.shape), q)
        return IndependentMultitaskVariationalStrategy(base, num_tasks=3) if tasks else base

    model = moved(strategy, 2, 3)
    q, terms = model(X), model.variational_strategy.kl_divergence()
    mean, variance = q.mean, q.variance
    if not tasks:
        mean, variance, terms = mean.mT, variance.mT, terms.sum(-1)
    y = torch.stack([LABELS, 2 - LABELS])
    found = DirectLogLoss(softmax(), model, N)(model(X), y)
    for k in range(2):
        one = Marginals(mean[k].detach(), variance[k].detach())
        value = expected(one, y[k], log_softmax)[0] - terms[k] / N
        torch.testing.assert_close(found[k], value, rtol=1e-9, atol=0)


@pytest.mark.parametrize("number", [2, 3])
def test_mixed_latents(number: int) -> None:
    """By quadrature over two; by draws over three, whose mean error is that of the draws."""
    model, likelihood = moved(independent(number), number), softmax(number)
    weights = likelihood.mixing_weights.detach()
    with torch.no_grad():
        known = expected(model(X), LABELS, lambda k, f: log_softmax(k, f, weights))
    if number == 2:
        for objective, value in zip((DirectLogLoss, BetaELBO), known, strict=True):
            found = objective(likelihood, model, N)(model(X), LABELS)
            torch.testing.assert_close(found, value - kl(model), rtol=1e-9, atol=0)
        return
    generator = torch.Generator().manual_seed(0)
    objective = DirectLogLoss(
        likelihood, model, N, beta=0.0, rule=BiasedMonteCarlo(2000), generator=generator
    )
    with torch.no_grad():
        found = torch.stack([objective(model(X), LABELS) for _ in range(100)])
    assert abs(found.mean() - known[0]) < 4 * found.std() / 10


@pytest.mark.parametrize("rule", ["bmc", "ups"])
def test_gradients_of_draws_over_mixed_latents(rule: str) -> None:
    model, likelihood = moved(independent(3), 3), softmax(3)
    value = DirectLogLoss(likelihood, model, N, rule=rule)(model(X), LABELS)
    slopes = torch.autograd.grad(value, [*model.parameters(), likelihood.mixing_weights])
    assert all(torch.isfinite(each).all() and each.any() for each in slopes)


CASES = [
    (softmax, (), 3, LABELS),
    (softmax, (2,), 2, LABELS),
    (HeteroscedasticGaussian, (), 2, Y),
]


@pytest.mark.parametrize(("make", "arguments", "number", "y"), CASES)
@pytest.mark.parametrize("objective", [DirectLogLoss, BetaELBO])
def test_gradients_reach_every_parameter(
    objective: Any, make: Any, arguments: tuple[int, ...], number: int, y: Tensor
) -> None:
    model, likelihood = moved(independent(number), number), make(*arguments)
    parameters = [*model.parameters(), *likelihood.parameters()]
    direction = [torch.randn(each.shape, generator=_generator()).double() for each in parameters]

    def value() -> Tensor:
        found: Tensor = objective(likelihood, model, N)(model(X), y)
        return found

    def at(step: float) -> Tensor:
        with torch.no_grad():
            for each, part in zip(parameters, direction, strict=True):
                each.add_(part, alpha=step)
            found = value()
            for each, part in zip(parameters, direction, strict=True):
                each.sub_(part, alpha=step)
        return found

    slopes = torch.autograd.grad(value(), parameters)
    assert all(bool(each.any()) for each in slopes)
    along = sum((a * b).sum() for a, b in zip(slopes, direction, strict=True))
    torch.testing.assert_close(along, (at(1e-5) - at(-1e-5)) / 2e-5, rtol=1e-6, atol=1e-8)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_noise_that_changes() -> None:
    model = moved(independent(2), 2)
    with torch.no_grad():
        known = expected(model(X), Y, log_normal)
    for objective, value in zip((DirectLogLoss, BetaELBO), known, strict=True):
        found = objective(HeteroscedasticGaussian(), model, N)(model(X), Y)
        torch.testing.assert_close(found, value - kl(model), rtol=1e-8, atol=0)
    q = model(X)
    rows = Marginals(q.mean.mT, q.variance.mT)
    for name in ("crps", "square_loss", "pinball_loss"):
        each = resolve_point_loss(name)(HeteroscedasticGaussian(), Y, rows)
        found = DirectLoss(HeteroscedasticGaussian(), model, N, name)(model(X), Y)
        torch.testing.assert_close(found, -each.mean() - kl(model))


def test_noise_model_of_gpytorch_enters_by_its_mean() -> None:
    """The variance of the noise model is not integrated over, and its KL is not added."""
    model, noise_model = moved(whitened), moved(whitened)
    noise = gpytorch.likelihoods.noise_models.HeteroskedasticNoise(noise_model)
    likelihood = gpytorch.likelihoods.gaussian_likelihood._GaussianLikelihoodBase(noise)
    q, log_noise = model(X), noise_model.eval()(X)
    assert bool((log_noise.variance > 0.1).any())
    variance = q.variance + torch.nn.functional.softplus(log_noise.mean) + 1e-4
    normal = torch.distributions.Normal(q.mean, variance.sqrt())
    found = DirectLogLoss(likelihood, model, N)(model(X), Y, X)
    torch.testing.assert_close(found, normal.log_prob(Y).mean() - kl(model))
    (slope,) = torch.autograd.grad(found, noise_model.mean_module.constant)
    assert slope != 0


def test_missing_labels() -> None:
    model, gaps = moved(independent(3), 3), LABELS.double()
    gaps[2] = math.nan
    objective, rest = DirectLogLoss(softmax(), model, N, beta=0.0), [0, 1, 3, 4, 5]
    with gpytorch.settings.observation_nan_policy("mask"):
        found = objective(model(X), gaps)
    torch.testing.assert_close(found, objective(model(X[rest]), LABELS[rest]) * 5 / 6)


class Layer(DeepGPLayer):
    def __init__(self, Z: Tensor, outputs: int | None) -> None:
        batch = torch.Size([] if outputs is None else [outputs])
        q = CholeskyVariationalDistribution(len(Z), batch_shape=batch)
        strategy = VariationalStrategy(self, Z.expand(*batch, *Z.shape), q)
        super().__init__(strategy, Z.shape[-1], outputs)
        self.mean = gpytorch.means.ConstantMean(batch_shape=batch)
        kernel = gpytorch.kernels.RBFKernel(batch_shape=batch)
        self.kernel = gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean(x), self.kernel(x))


class Deep(DeepGP):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Layer(X[::2].clone(), 1), Layer(X[::2].clone(), 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x))


def test_a_deep_gp_is_a_mixture_over_its_samples() -> None:
    with torch.random.fork_rng(), gpytorch.settings.num_likelihood_samples(4):
        torch.manual_seed(0)
        model = Deep().double()
        q = model(X)
    assert q.mean.shape == (4, 6, 3)
    each = GPyTorchLikelihood(Softmax(3)).log_marginal(LABELS, q)
    found = DirectLogLoss(softmax(), model, N)(q, LABELS)
    expected_value = each.exp().mean(0).log().mean()
    torch.testing.assert_close(found, expected_value - kl(model))
    found = BetaELBO(softmax(), model, N)(q, LABELS)
    each = GPyTorchLikelihood(Softmax(3)).expected_log_prob(LABELS, q)
    torch.testing.assert_close(found, each.mean() - kl(model))


def test_float32() -> None:
    model = moved(independent(3), 3)
    wide = DirectLogLoss(softmax(), model, N)(model(X), LABELS)
    narrow = DirectLogLoss(softmax(), model.float(), N)(model(X.float()), LABELS)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-3, atol=0)


def test_gpytorchs_draws_are_noise_around_the_value() -> None:
    model, likelihood = moved(independent(3), 3), softmax()
    objective = DirectLogLoss(likelihood, model, N, beta=0.0)

    def values(samples: int, number: int) -> Tensor:
        with gpytorch.settings.num_likelihood_samples(samples):
            draws = [likelihood.log_marginal(LABELS, q).mean() for _ in range(number)]
        return torch.stack(draws)

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        q = model(X)
        exact, few, many = objective(q, LABELS), values(10, 600), values(20_000, 20)
        assert torch.equal(exact, objective(q, LABELS))
        assert abs(many.mean() - exact) < 4.5 * many.std() / 20**0.5
        # Ten draws have a bias, too: the log of an average is low.
        assert few.std() > 0.05
        assert few.mean() < exact - 4 * few.std() / 600**0.5


@pytest.mark.slow
def test_training_lowers_the_log_loss_of_three_classes() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.rand(160, 1, dtype=torch.float64)
        y = (3 * x[:, 0] + 0.3 * torch.randn(160).double()).long().clamp(0, 2)
    model = Model(x[:8].clone(), independent(3), (3,)).double()
    with torch.no_grad():
        model.variational_strategy.base_variational_strategy.mean_init_std = 0.0
        model(x)
    likelihood = GPyTorchLikelihood(Softmax(3))
    objective = DirectLogLoss(softmax(), model, 120, beta=0.1)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)

    def test_loss() -> float:
        with torch.no_grad():
            return -likelihood.log_marginal(y[120:], model(x[120:])).mean().item()

    assert test_loss() == pytest.approx(math.log(3), abs=1e-3)
    for _ in range(40):
        adam.zero_grad()
        loss = -objective(model(x[:120]), y[:120])
        loss.backward()
        adam.step()
    assert test_loss() < 0.75


def test_probabilities_of_classes() -> None:
    q = moved(independent(3), 3)(X)
    for base in (Softmax(3), RobustMax(3)):
        p: Any = GPyTorchLikelihood(base)(q)
        torch.testing.assert_close(p.probs.sum(-1), torch.ones(6, dtype=torch.float64))
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            f = torch.distributions.Normal(q.mean, q.stddev).sample((20_000,))
        chances = base.class_probabilities(f.mT)
        error = chances.std(0) / 20_000**0.5
        assert bool(((chances.mean(0).mT - p.probs).abs() < 4.5 * error.mT).all())
        each = GPyTorchLikelihood(base).log_marginal(LABELS, q)
        torch.testing.assert_close(p.log_prob(LABELS), each)
    # The log of an improbable class is not rounded away.
    far = MultivariateNormal(torch.tensor([[0.0], [0.0], [-900.0]]), torch.ones(3, 1, 1))
    log_p = GPyTorchLikelihood(Softmax(3))(MultitaskMultivariateNormal.from_batch_mvn(far)).logits
    assert log_p[0, 2] == pytest.approx(-900, abs=2)


def test_predictions_of_noise_that_changes() -> None:
    likelihood, base = GPyTorchLikelihood(HeteroscedasticGaussian()), HeteroscedasticGaussian()
    q = moved(independent(2), 2)(X)
    p: Any = likelihood(q)
    assert p.batch_shape == (6,)
    torch.testing.assert_close(p.log_prob(Y), likelihood.log_marginal(Y, q))
    torch.testing.assert_close(p.cdf(p.icdf(0.3)), torch.full_like(Y, 0.3))
    both: Any = likelihood(q.expand(torch.Size([2])))
    torch.testing.assert_close(both.cdf(Y), p.cdf(Y).expand(2, 6))
    levels = torch.tensor([[0.1], [0.8]], dtype=torch.float64)
    torch.testing.assert_close(both.icdf(levels)[1], p.icdf(0.8))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for distribution in (p, likelihood(q.mean)):
            drawn = distribution.sample(torch.Size([4000]))
            assert drawn.shape == (4000, 6)
            assert bool(((drawn.mean(0) - distribution.mean).abs() < 0.07 * drawn.std(0)).all())
    given = likelihood(q.mean)
    torch.testing.assert_close(given.log_prob(Y), base.log_prob(Y, q.mean.mT))
    torch.testing.assert_close(given.variance, q.mean[:, 1].exp())


def test_gpytorchs_objectives_take_our_classes() -> None:
    model, likelihood = moved(independent(3), 3), GPyTorchLikelihood(Softmax(3))
    pairs = ((VariationalELBO, BetaELBO), (PredictiveLogLikelihood, DirectLogLoss))
    for theirs, ours in pairs:
        found = theirs(likelihood, model, N)(model(X), LABELS)
        torch.testing.assert_close(found, ours(Softmax(3), model, N)(model(X), LABELS))


def test_correlated_latents_are_refused() -> None:
    model = moved(mixed(3, 2), 2)
    with pytest.raises(UnsupportedError, match=r"Got 3 correlated ones. Use Independent"):
        DirectLogLoss(softmax(), model, N)(model(X), LABELS)
    q = moved(independent(3), 3)(X)
    covariance = torch.diag(q.variance.flatten())
    dense = MultitaskMultivariateNormal(q.mean, covariance)
    alone = DirectLogLoss(softmax(), model, N, beta=0.0)
    torch.testing.assert_close(alone(dense, LABELS), alone(q, LABELS))
    # Examples may be correlated, but not the latents of one; tasks may be listed in two orders.
    for i, j, order, raises in ((0, 3, True, False), (0, 3, False, False), (0, 6, False, True)):
        tied = covariance.clone()
        tied[i, j] = tied[j, i] = 1e-3
        one = MultitaskMultivariateNormal(q.mean, tied, interleaved=order)
        with pytest.raises(UnsupportedError, match="independent under q") if raises else _fine():
            alone(one, LABELS)


@pytest.mark.parametrize(
    ("strategy", "batch", "shape"),
    [(whitened, (), "6,"), (independent(2), (2,), "6, 2"), (batched(2), (2,), "2, 6")],
)
def test_another_number_of_latents(strategy: Any, batch: tuple[int, ...], shape: str) -> None:
    model = moved(strategy, *batch)
    message = rf"of 3 latent functions, .*Got \({shape}\). Use Independent.* num_tasks=3"
    for likelihood in (softmax(), Softmax(3)):
        with pytest.raises(InvalidInputError, match=message):
            DirectLogLoss(likelihood, model, N)(model(X), LABELS)


def test_functions_that_share_one_q_of_u() -> None:
    """Such functions are not independent."""
    model = moved(whitened, 3)
    assert model(X).batch_shape == (3,)
    with pytest.raises(InvalidInputError, match=r"one for each of 3 .*Got \(\). Give the vari"):
        DirectLogLoss(softmax(), model, N)(model(X), LABELS)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (LABELS[:, None], r"of the shape of q\(f\), \(6,\). Got \(6, 1\). Flatten a column"),
        (LABELS[:5], "of the shape of q"),
        (torch.stack([LABELS] * 3, -1), "of the shape of q"),
        (LABELS + 1, "a label, 0, 1, … or 2"),
        (LABELS + 0.5, "a label, 0, 1, … or 2"),
    ],
)
def test_targets_that_are_no_labels(y: Tensor, message: str) -> None:
    model = moved(independent(3), 3)
    with pytest.raises(InvalidInputError, match=message):
        DirectLogLoss(softmax(), model, N)(model(X), y)


def test_what_mixed_latents_cannot_do() -> None:
    model = moved(independent(3), 3)
    for objective in (DirectLogLoss, BetaELBO):
        with pytest.raises(UnsupportedError, match=r"Got 3. Set mixing_weights=False .*rule='ups'"):
            objective(softmax(3), model, N)
    with pytest.raises(InvalidInputError, match="num_features of SoftmaxLikelihood with mixing"):
        DirectLogLoss(softmax(1), model, N)


def test_other_softmax_likelihoods_are_refused() -> None:
    class Tempered(SoftmaxLikelihood):
        def forward(self, function_samples: Tensor, *params: Any, **kwargs: Any) -> Any:
            return super().forward(2 * function_samples)

    with pytest.raises(UnsupportedError, match="Got Tempered, of several latent values"):
        DirectLogLoss(Tempered(num_classes=3, mixing_weights=False), moved(independent(3), 3), N)


def test_latent_values_of_another_shape() -> None:
    with pytest.raises(InvalidInputError, match=r"f of Softmax must be of shape \(..., n, 3\)"):
        GPyTorchLikelihood(Softmax(3))(torch.zeros(3, 5))
