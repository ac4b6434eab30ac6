"""Posteriors of several independent latent functions."""

import copy

import pytest
import torch
from torch import Tensor, nn

from directgp import train
from directgp.errors import InvalidInputError
from directgp.likelihoods import Softmax
from directgp.objectives import GibbsLoss, LogLoss, Objective, PointLoss
from directgp.posteriors import SparsePosterior
from directgp.posteriors.marginals import Stationary
from directgp.predictive.moments import class_log_probabilities
from directgp.training.data import Data, Model, Randomness
from directgp.training.problems import FreeProblem, HeldProblem, TrainingProblem

RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(30, 2, generator=RANDOM, dtype=torch.float64)
LABELS = (X[:, 0] > 0).double() + (X[:, 1] > 0.5).double()


def posterior(shared: bool, kernel: str = "matern52") -> SparsePosterior:
    one = SparsePosterior.from_data(X, num_inducing=6, kernel=kernel, ard=True, mean="constant")  # type: ignore[arg-type]
    many = one.with_latents(3, shared=shared)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in many.parameters():
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter.add_(0.1 * noise)
        many.u_chol.copy_(many.u_chol.tril())
    return many


@pytest.mark.parametrize("shared", [True, False])
def test_each_latent_is_a_posterior_of_its_own(shared: bool) -> None:
    many = posterior(shared)
    found, total = many.predict(X), many.kl()
    assert found.mean.shape == found.variance.shape == (3, 30)
    singles = [many.latent(k) for k in range(3)]
    for k, single in enumerate(singles):
        own = single.marginals(X)
        torch.testing.assert_close(found.mean[k], own.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.variance[k], own.variance, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(total, torch.stack([single.kl() for single in singles]).sum())


def test_only_the_means_differ_where_the_kernel_is_shared() -> None:
    many = posterior(shared=True)
    assert many.Z.shape == (6, 2)
    kernel = many.prior.natural().kernel
    assert isinstance(kernel, Stationary)
    assert kernel.lengthscale.shape == (1, 2)
    assert many.prior.mean_function.constant.shape == (3,)


def test_kernels_of_their_own_start_as_the_shared_one() -> None:
    many = posterior(shared=True)
    own = many.with_own_kernels()
    assert own.Z.shape == (3, 6, 2)
    kernel = own.prior.natural().kernel
    assert isinstance(kernel, Stationary)
    assert kernel.lengthscale.shape[0] == 3
    before, after = many.predict(X), own.predict(X)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after.variance, before.variance, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own.kl(), many.kl())


@pytest.mark.parametrize("shared", [True, False])
def test_more_inducing_inputs_change_no_latent(shared: bool) -> None:
    many = posterior(shared)
    more = many.grown(X, 5)
    assert more.num_inducing == 11
    before, after = many.predict(X), more.predict(X)
    torch.testing.assert_close(before.mean, after.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(before.variance, after.variance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "loss", [GibbsLoss(), LogLoss(), LogLoss("bmc")], ids=["elbo", "dlm", "bmc"]
)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("held", [False, True])
def test_gradients_without_a_tape_are_those_with_one(
    loss: PointLoss, shared: bool, held: bool
) -> None:
    model, data = Model(posterior(shared), Softmax(3)), Data(X, LABELS)
    objective, make = Objective(loss, len(data), 0.7), HeldProblem if held else FreeProblem

    def problem() -> TrainingProblem:
        random = Randomness(torch.Generator().manual_seed(3), frozen=True)
        return make(copy.deepcopy(model), data, objective, random)

    found, taped = problem(), problem()
    found.prepare()
    value, gradient = found.value_and_gradient(0)
    taped.prepare()
    other, truth = TrainingProblem.value_and_gradient(taped, 0)
    torch.testing.assert_close(value, other)
    places = _used(found.parameters)
    torch.testing.assert_close(gradient[places], truth[places], rtol=1e-6, atol=1e-9)


def _used(parameters: dict[str, nn.Parameter]) -> Tensor:
    """Entries of the gradient other than those above the diagonal of u_chol."""
    masks = (
        torch.ones(p.shape).tril() if name == "u_chol" else torch.ones(p.shape)
        for name, p in parameters.items()
    )
    return torch.cat([mask.reshape(-1) for mask in masks]).bool()


@pytest.mark.parametrize("objective", ["elbo", "log_loss"])
@pytest.mark.slow_for("log_loss")
def test_training_lowers_the_loss_of_three_classes(objective: str) -> None:
    start = SparsePosterior.from_data(X, num_inducing=8, mean="constant").with_latents(3)
    result = train(start, Softmax(3), X, LABELS, objective=objective, max_steps=25)
    chances = class_log_probabilities(Softmax(3), result.posterior.predict(X))
    assert float((chances.argmax(0) == LABELS).double().mean()) > 0.9
    assert result.loss < 0.9


def test_a_single_latent_is_refused_where_several_are_made() -> None:
    one = SparsePosterior.from_data(X, num_inducing=4)
    with pytest.raises(InvalidInputError, match="at least 2"):
        one.with_latents(1)
    with pytest.raises(InvalidInputError, match="of one latent"):
        one.with_latents(2).with_latents(2)


def test_a_likelihood_of_other_latents_is_refused() -> None:
    one = SparsePosterior.from_data(X, num_inducing=4)
    with pytest.raises(InvalidInputError, match=r"posterior of train must be of 3 latent"):
        train(one, Softmax(3), X, LABELS)
