"""Invalid calls raise an error where GPyTorch returns another number."""

import math
from typing import Any

import gpytorch
import pytest
import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError, UnsupportedError
from directgp.interop.gpytorch import BetaELBO, DirectLogLoss, DirectLoss
from directgp.likelihoods import Gaussian, Probit
from tests.unit.interop.gpytorch_models import Model, whitened

X = torch.linspace(0, 1, 10)[:, None]
Y = torch.sin(6 * X[:, 0])


def model() -> Model:
    made = Model(X[::3].clone(), whitened)
    with torch.no_grad():
        made(X)
    return made


def ask(likelihood: Any, output: Any, y: Tensor = Y, **kwargs: Any) -> Any:
    return DirectLogLoss(likelihood, model(), 10)(output, y, **kwargs)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("with_graph", [True, False])
def test_p_of_y_in_place_of_q_of_f(train: bool, with_graph: bool) -> None:
    likelihood, gp = gpytorch.likelihoods.GaussianLikelihood().train(train), model().train(train)
    message = "Got one with the noise of GaussianLikelihood .* Pass model.x., not likelihood"
    with torch.set_grad_enabled(with_graph), pytest.raises(InvalidInputError, match=message):
        ask(likelihood, likelihood(gp(X)))
    with torch.set_grad_enabled(with_graph):
        assert torch.isfinite(ask(likelihood, gp(X)))


def test_p_of_y_of_fixed_noise_and_of_our_own() -> None:
    fixed = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.linspace(0.1, 0.2, 10))
    with pytest.raises(InvalidInputError, match="noise of FixedNoiseGaussianLikelihood"):
        ask(fixed, fixed(model()(X)))
    objective = DirectLogLoss(Gaussian(0.1), model(), 10)
    with pytest.raises(InvalidInputError, match="noise of GPyTorchLikelihood"):
        objective(objective.likelihood(model()(X)), Y)


def test_p_of_y_that_is_no_gaussian() -> None:
    likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    with pytest.raises(UnsupportedError, match=r"q.f., a MultivariateNormal. Got Bernoulli. Pass"):
        ask(likelihood, likelihood(model()(X)), (Y > 0).float())


@pytest.mark.parametrize("shape", [(10, 1), (1, 10, 1), (9,), (), (2, 10)])
def test_targets_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    y = torch.zeros(shape)
    with pytest.raises(InvalidInputError, match="y of DirectLogLoss must be of the shape of q"):
        ask(gpytorch.likelihoods.GaussianLikelihood(), model()(X), y)


def test_the_error_for_a_column_says_how_to_flatten_it() -> None:
    with pytest.raises(InvalidInputError, match=r"Got \(10, 1\). Flatten a column y with"):
        ask(gpytorch.likelihoods.GaussianLikelihood(), model()(X), Y[:, None])


def test_missing_targets_that_nobody_announced() -> None:
    y = Y.clone()
    y[3] = math.nan
    with pytest.raises(InvalidInputError, match=r"nan at index 3.*observation_nan_policy"):
        ask(gpytorch.likelihoods.GaussianLikelihood(), model()(X), y)


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (
            gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2, rank=1),
            "Got MultitaskGaussianLikelihood, with noise correlated between tasks.",
        ),
        (
            gpytorch.likelihoods.LikelihoodList(gpytorch.likelihoods.GaussianLikelihood()),
            "Got LikelihoodList, of several latent values.",
        ),
    ],
)
def test_likelihoods_of_several_latent_values(likelihood: Any, message: str) -> None:
    for objective in (DirectLogLoss, BetaELBO):
        with pytest.raises(UnsupportedError, match=message):
            objective(likelihood, model(), 10)


def test_labels_other_than_0_and_1_are_refused() -> None:
    likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    with pytest.raises(InvalidInputError, match="a label, 0 or 1"):
        ask(likelihood, model()(X), Y.sign())


@pytest.mark.filterwarnings("ignore:You have passed data through a FixedNoise")
def test_fixed_noise_of_other_examples() -> None:
    fixed = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.full((10,), 0.1))
    message = "noise of FixedNoiseGaussianLikelihood must be given for examples of shape"
    with pytest.raises(InvalidInputError, match=message):
        ask(fixed, model()(X[:4]), Y[:4])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1.0}, "beta of Objective must be finite and at least 0"),
        ({"beta": math.nan}, "beta of Objective must be finite and at least 0"),
        ({"num_data": 0}, "num_data of Objective must be at least 1"),
        ({"rule": "magic"}, "rule must be 'auto', one of"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        DirectLogLoss(
            gpytorch.likelihoods.GaussianLikelihood(), model(), **{"num_data": 10, **settings}
        )(model()(X), Y)


def test_losses_without_what_they_need() -> None:
    with pytest.raises(UnsupportedError, match="CRPSLoss needs a likelihood with a closed-form"):
        DirectLoss(Probit(), model(), 10, "crps")(model()(X), (Y > 0).float())
    with pytest.raises(InvalidInputError, match="objective must be one of"):
        DirectLoss(Probit(), model(), 10, "nothing")


def test_other_losses_of_deep_gps() -> None:
    deep = gpytorch.models.deep_gps.DeepGP()
    objective = DirectLoss(gpytorch.likelihoods.GaussianLikelihood(), deep, 10, "crps")
    with pytest.raises(UnsupportedError, match="DirectLoss has no loss for a deep GP"):
        objective(model()(X).expand(torch.Size([3])), Y)


def test_nan_in_the_model_is_told() -> None:
    gp = model()
    gp.mean_module.constant.data.fill_(math.nan)
    with pytest.raises((InvalidInputError, NumericalError), match="mean of DirectLogLoss"):
        ask(gpytorch.likelihoods.GaussianLikelihood(), gp(X))


def test_a_module_that_both_have_is_no_noise() -> None:
    gp, likelihood = model(), gpytorch.likelihoods.LaplaceLikelihood()
    likelihood.shared = gp.covar_module
    assert torch.isfinite(DirectLogLoss(likelihood, gp, 10)(gp(X), Y))


def test_no_examples_and_noise_of_other_tasks() -> None:
    gaussian = gpytorch.likelihoods.GaussianLikelihood()
    with pytest.raises(InvalidInputError, match="of at least one example"):
        ask(gaussian, model()(X), Y[:0])
    tasks = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2)
    with pytest.raises(InvalidInputError, match="noise of MultitaskGaussianLikelihood must be"):
        ask(tasks, model()(X))
