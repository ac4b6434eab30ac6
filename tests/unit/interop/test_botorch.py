"""A fitted model in BoTorch: its posterior, units and errors."""

import copy
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement, PosteriorMean
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.acquisition.objective import IdentityMCObjective, ScalarizedPosteriorTransform
from botorch.models.model import ModelList
from botorch.optim.optimize import optimize_acqf
from botorch.posteriors.gpytorch import GPyTorchPosterior
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from torch import Tensor

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.estimators.members import set_members
from directgp.interop.botorch import DirectModel
from directgp.kernels import parse
from directgp.likelihoods import Gaussian, StudentT
from directgp.posteriors import Prior, SparsePosterior
from tests.reference import gaussian_process as reference

LIGHT = {
    "objective": "elbo",
    "beta": 1.0,
    "kernel": "rbf",
    "ard": False,
    "num_inducing": 8,
    "max_iter": 15,
    "random_state": 0,
    "combine": "best",
    "stack": None,
}
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform((-3, 100), (5, 500), (40, 2))
Y = 1000 + 50 * np.sin(X[:, 0]) * np.cos(X[:, 1] / 100) + RANDOM.standard_normal(40)
INPUTS = torch.as_tensor(X[:7] + 0.1)
Q = torch.Size([4])


def fitted(model: Any, y: Any, inputs: Any = X) -> Any:
    with warnings.catch_warnings():
        # Few steps are enough to have something to look at.
        warnings.simplefilter("ignore")
        return model.fit(inputs, y)


@cache
def regressor(**settings: Any) -> SparseGPRegressor:
    given = LIGHT | {"likelihood": "gaussian"} | settings
    found: SparseGPRegressor = fitted(SparseGPRegressor(**given), Y)
    return found


@cache
def model() -> DirectModel:
    return DirectModel(regressor())


def at(model: DirectModel, inputs: Tensor, **given: Any) -> GPyTorchPosterior:
    found = model.posterior(inputs, **given)
    assert isinstance(found, GPyTorchPosterior)
    return found


def dense(estimator: SparseGPRegressor, inputs: Tensor) -> reference.Gaussian:
    """q(f) by NumPy, in the space of u and in the user's units."""
    q, x, y = estimator.posterior_, estimator.scalings_.inputs, estimator.scalings_.targets
    Z, scale = q.Z.detach().numpy(), q.prior.output_scale.item()
    lengthscale = q.prior.kernel.lengthscale.detach().numpy()
    rows = (inputs.numpy() - x.shift) / x.scale
    Kuu, Kuf, Kff = (
        reference.rbf(a, b, lengthscale, scale) for a, b in ((Z, Z), (Z, rows), (rows, rows))
    )
    Kuu += q.nugget * scale * np.eye(len(Z))
    L, S = np.linalg.cholesky(Kuu), np.tril(q.u_chol.detach().numpy())
    m, V = L @ q.u_mean.detach().numpy(), L @ S @ S.T @ L.T
    f = reference.sparse_posterior(Kuu, Kuf, Kff, m, V)
    return reference.Gaussian(y.shift + y.scale * f.mean, y.scale**2 * f.variance)


def test_mean_and_covariance_are_those_of_the_dense_formula() -> None:
    found, expected = at(model(), INPUTS), dense(regressor(), INPUTS)
    np.testing.assert_allclose(found.mean[:, 0].numpy(), expected.mean, rtol=1e-9)
    covariance = found.distribution.covariance_matrix
    np.testing.assert_allclose(covariance.numpy(), expected.variance, rtol=0, atol=1e-5)
    assert np.abs(expected.variance).min() > 1e-3
    torch.testing.assert_close(found.variance[:, 0], covariance.diagonal())


OTHERS: dict[str, Callable[[], Any]] = {
    "regressor": lambda: regressor(),
    "float32": lambda: regressor(dtype="float32"),
    "unscaled": lambda: regressor(standardize=False, likelihood="student_t"),
    "classifier": lambda: fitted(SparseGPClassifier(**LIGHT), Y > 1000),
    "counts": lambda: fitted(
        SparseGPCountRegressor(likelihood="poisson", **LIGHT), np.round(Y / 100)
    ),
    "gamma": lambda: regressor(likelihood="gamma"),
    "log_normal": lambda: regressor(likelihood="log_normal"),
    "weibull": lambda: regressor(likelihood="weibull"),
    "beta": lambda: fitted(SparseGPRegressor(**LIGHT, likelihood="beta"), Y / 2000),
    "heteroscedastic": lambda: regressor(likelihood="heteroscedastic"),
}


@pytest.mark.parametrize("which", OTHERS)
@pytest.mark.slow_for("unscaled", "float32")
def test_it_is_predict_latent_in_the_units_of_the_user(which: str) -> None:
    """The estimator rounds its scaled inputs to 2⁻³²."""
    estimator = OTHERS[which]()
    # Of heteroscedastic noise, the first latent is the mean of y.
    mean, std = (
        latents.reshape(7, -1)[:, 0] for latents in estimator.predict_latent(INPUTS.numpy())
    )
    found = at(DirectModel(estimator), INPUTS)
    assert found.mean.dtype == torch.float64
    tolerance = 1e-4 if which == "float32" else 1e-7
    np.testing.assert_allclose(found.mean[:, 0].numpy(), mean, rtol=tolerance)
    np.testing.assert_allclose(found.variance[:, 0].sqrt().numpy(), std, rtol=tolerance)


def test_batch_axes() -> None:
    batch = torch.stack([INPUTS, INPUTS + 0.3]).unsqueeze(1)
    found = at(model(), batch)
    assert found.mean.shape == found.variance.shape == (2, 1, 7, 1)
    assert found.rsample(Q).shape == (4, 2, 1, 7, 1)
    alone = at(model(), INPUTS + 0.3)
    torch.testing.assert_close(found.mean[1, 0], alone.mean)
    torch.testing.assert_close(
        found.distribution.covariance_matrix[1, 0], alone.distribution.covariance_matrix
    )
    assert model().num_outputs == 1
    assert model().batch_shape == ()


def test_a_batch_of_models() -> None:
    several = DirectModel(regressor().posterior_.repeated(3, shared_prior=False), Gaussian(0.1))
    assert several.batch_shape == (3,)
    inputs = torch.zeros(5, 1, 4, 2, dtype=torch.float64)
    assert at(several, inputs, observation_noise=True).mean.shape == (5, 3, 4, 1)


def test_gradients_in_the_inputs() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        found = at(model(), x * torch.tensor([1.0, 100.0]))
        return found.mean / 50, found.distribution.covariance_matrix / 2500

    inputs = (INPUTS[:3] / torch.tensor([1.0, 100.0])).requires_grad_()
    assert torch.autograd.gradcheck(both, inputs, eps=1e-5, atol=1e-5)


def test_gradients_go_to_the_inputs_alone() -> None:
    inputs = INPUTS.clone().requires_grad_()
    estimator = copy.deepcopy(regressor())
    estimator.posterior_.zero_grad()
    found = DirectModel(estimator)
    at(found, inputs).rsample(Q).square().sum().backward()
    assert inputs.grad is not None
    assert bool((inputs.grad != 0).all())
    for parameter in (*estimator.posterior_.parameters(), *found.parameters()):
        assert parameter.grad is None
    assert not any(parameter.requires_grad for parameter in found.parameters())
    assert all(parameter.requires_grad for parameter in estimator.posterior_.parameters())
    with torch.no_grad():
        assert not at(model(), inputs).rsample(Q).requires_grad


def test_draws_have_the_covariance() -> None:
    torch.manual_seed(0)
    found, number = at(model(), INPUTS[:3]), 20_000
    draws = found.rsample(torch.Size([number]))[..., 0]
    C = found.distribution.covariance_matrix
    deviation = C.diagonal().sqrt()
    error = ((deviation[:, None] * deviation).square() + C.square()).div(number).sqrt()
    assert bool(((draws.T.cov() - C).abs() < 5 * error).all())


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_an_input_that_is_there_many_times_in_any_unit(unit: float) -> None:
    """Draws agree there, variances are as they were, and nobody warns."""
    scaled = copy.deepcopy(model())
    scaled.f_scale.mul_(unit)
    scaled.f_shift.mul_(unit)
    inputs = INPUTS[[0, 1, 0, 0, 1]].requires_grad_()
    found = at(scaled, inputs)
    known = at(model(), inputs).variance * unit**2
    torch.testing.assert_close(found.variance, known, rtol=1e-12, atol=0)
    draws = found.rsample(Q)[..., 0]
    spread = float(known.detach().max().sqrt())
    torch.testing.assert_close(draws[:, 2], draws[:, 0], rtol=1e-4, atol=1e-3 * spread)
    draws.sum().backward()
    assert inputs.grad is not None
    assert bool(inputs.grad.isfinite().all())


def test_observation_noise_is_that_of_y() -> None:
    _, std = regressor().predict(INPUTS.numpy(), return_std=True)
    f, y = (at(model(), INPUTS, observation_noise=on) for on in (False, True))
    np.testing.assert_allclose(y.variance[:, 0].sqrt().numpy(), std, rtol=1e-7)
    added = y.distribution.covariance_matrix - f.distribution.covariance_matrix
    noise = float(added[0, 0])
    assert noise > 0.1
    torch.testing.assert_close(added, noise * torch.eye(7).double(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (7, 1), (2, 1, 1), (2, 7, 1)])
def test_observation_noise_of_your_own(shape: tuple[int, ...]) -> None:
    batch = INPUTS.expand(2, 7, 2)
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(0)).double()
    f, y = (at(model(), batch, observation_noise=each) for each in (False, noise))
    torch.testing.assert_close(y.variance - f.variance, noise.expand(2, 7, 1))


def test_observation_noise_of_a_posterior() -> None:
    q = regressor().posterior_
    inputs = torch.zeros(1, 2, dtype=torch.float64)
    f = at(DirectModel(q), inputs).variance
    y = at(DirectModel(q, Gaussian(0.25)), inputs, observation_noise=True).variance
    assert (y - f).item() == pytest.approx(0.25, rel=1e-6)
    own = at(DirectModel(q), inputs, observation_noise=torch.tensor([0.5])).variance
    assert (own - f).item() == pytest.approx(0.5, rel=1e-6)
    with pytest.raises(InvalidInputError, match="Give DirectModel the likelihood"):
        at(DirectModel(q), inputs, observation_noise=True)


@pytest.mark.parametrize("noise", [True, torch.ones(1)], ids=["learnt", "given"])
def test_refuses_noise_that_is_not_gaussian(noise: bool | Tensor) -> None:
    robust = DirectModel(regressor().posterior_, StudentT())
    with pytest.raises(UnsupportedError, match=r"is not Gaussian\. Got the likelihood StudentT\."):
        at(robust, INPUTS, observation_noise=noise)


BAD_NOISE = {
    "negative": (-torch.ones(1), "non-negative variances"),
    "nan": (torch.full((1,), torch.nan), "non-negative variances"),
    "without outputs": (torch.ones(7), r"broadcasts to \(7, 1\)\. Got shape \(7,\)"),
    "other rows": (torch.ones(6, 1), r"broadcasts to \(7, 1\)\. Got shape \(6, 1\)"),
    "more axes": (torch.ones(2, 7, 1), r"broadcasts to \(7, 1\)\. Got shape \(2, 7, 1\)"),
}


@pytest.mark.parametrize(("noise", "words"), BAD_NOISE.values(), ids=list(BAD_NOISE))
def test_refuses_noise_of_another_shape(noise: Tensor, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        at(model(), INPUTS, observation_noise=noise)


def test_a_posterior_transform_is_applied() -> None:
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0]).double(), offset=3.0)
    plain = at(model(), INPUTS)
    found = at(model(), INPUTS, posterior_transform=transform)
    torch.testing.assert_close(found.mean, 3 - 2 * plain.mean)
    torch.testing.assert_close(found.variance, 4 * plain.variance)
    assert found.rsample(Q).shape == (4, 7, 1)


@cache
def hill() -> tuple[DirectModel, Tensor]:
    """f = −(x₁ − 2)² − (x₂ + 1)² − 7, seen everywhere but near its top, and the rows seen."""
    steps = np.linspace(-5, 5, 7)
    rows = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2)
    rows = rows[np.abs(rows - (2, -1)).max(-1) > 1.5]
    values = -((rows - (2, -1)) ** 2).sum(-1) - 7
    given = LIGHT | {"likelihood": "gaussian", "num_inducing": 20, "max_iter": 40}
    estimator = fitted(SparseGPRegressor(**given), values, rows)
    return DirectModel(estimator), torch.as_tensor(rows)


def best(model: DirectModel, rows: Tensor) -> Tensor:
    values: Tensor = at(model, rows).mean
    return values.max()


ACQUISITIONS: dict[str, tuple[int, Any]] = {
    "mean": (1, lambda f, x: PosteriorMean(f)),
    "LogEI": (1, lambda f, x: LogExpectedImprovement(f, best(f, x))),
    "qLogEI": (2, lambda f, x: qLogExpectedImprovement(f, best(f, x))),
    "qLogNEI": (1, lambda f, x: qLogNoisyExpectedImprovement(f, x)),
    "qUCB": (2, lambda f, x: qUpperConfidenceBound(f, 0.1, objective=IdentityMCObjective())),
}


@pytest.mark.parametrize("which", ACQUISITIONS)
@pytest.mark.slow
def test_an_acquisition_function_finds_the_top(which: str) -> None:
    torch.manual_seed(0)
    q, make = ACQUISITIONS[which]
    acquisition: AcquisitionFunction = make(*hill())
    bounds = torch.tensor([[-5.0, -5.0], [5.0, 5.0]]).double()
    found, _ = optimize_acqf(acquisition, bounds, q=q, num_restarts=2, raw_samples=32)
    assert found.shape == (q, 2)
    distance = (found - torch.tensor([2.0, -1.0])).norm(dim=-1)
    assert float(distance.min()) < 0.5


def test_it_stays_as_it_was_when_the_estimator_learns() -> None:
    estimator = copy.deepcopy(regressor())
    before = DirectModel(estimator)
    known = at(before, INPUTS).mean
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.partial_fit(X, Y + 30)
    assert torch.equal(at(before, INPUTS).mean, known)
    after = at(DirectModel(estimator), INPUTS).mean
    assert bool((after > known + 5).all())


def test_it_copies_and_keeps_its_state() -> None:
    twin = DirectModel(fitted(SparseGPRegressor(likelihood="gaussian", **LIGHT), -Y))
    assert not torch.allclose(at(twin, INPUTS).mean, at(model(), INPUTS).mean)
    twin.load_state_dict(model().state_dict())
    for each in (twin, copy.deepcopy(model())):
        one, two = at(each, INPUTS), at(model(), INPUTS)
        assert torch.equal(one.mean, two.mean)
        assert torch.equal(one.variance, two.variance)


def test_output_indices_other_than_0_are_refused() -> None:
    assert model().subset_output([0]) is model()
    known = at(model(), INPUTS).mean
    assert torch.equal(at(model(), INPUTS, output_indices=[0]).mean, known)
    assert ModelList(model(), model()).posterior(INPUTS).rsample(Q).shape == (4, 7, 2)
    with pytest.raises(InvalidInputError, match=r"None or \[0\], its one output\. Got \[1\]"):
        at(model(), INPUTS, output_indices=[1])


@pytest.mark.parametrize("inputs", [INPUTS[:, :1], INPUTS[0], torch.zeros(3, 3)])
def test_refuses_another_width(inputs: Tensor) -> None:
    with pytest.raises(InvalidInputError, match=r"X of DirectModel must be of shape \(\.\.\., q"):
        at(model(), inputs)


def test_refuses_inputs_on_another_device() -> None:
    with pytest.raises(InvalidInputError, match=r"on the device cpu\. Got meta\. Move X there"):
        at(model(), INPUTS.to("meta"))


def test_conditioning_on_observations_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="partial_fit or fit of the estimator"):
        model().condition_on_observations(INPUTS, INPUTS[:, :1])
    knowledge = qKnowledgeGradient(model(), num_fantasies=2)
    with pytest.raises(UnsupportedError, match="cannot condition on observations"):
        knowledge(INPUTS[:3])


def test_refuses_what_is_not_fitted() -> None:
    gaps = fitted(SparseGPRegressor(**LIGHT, likelihood="gaussian", missing="impute"), Y)
    with pytest.raises(InvalidInputError, match="must be fitted with missing='error'"):
        DirectModel(gaps)
    with pytest.raises(NotFittedError):
        DirectModel(SparseGPRegressor())
    with pytest.raises(InvalidInputError, match=r"or a SparsePosterior\. Got str\."):
        DirectModel("model")
    with pytest.raises(InvalidInputError, match=r"Got Pipeline\. Of a pipeline"):
        DirectModel(make_pipeline(regressor()))
    with pytest.raises(InvalidInputError, match=r"must be None for an estimator, which has its"):
        DirectModel(regressor(), Gaussian())


def test_refuses_a_mixture_and_a_stack() -> None:
    given = LIGHT | {"likelihood": "gaussian", "stack": "trees"}
    stacked = fitted(SparseGPRegressor(**given), Y)
    with pytest.raises(
        InvalidInputError,
        match=r"of one Gaussian process, without a stack\. Got a SparseGPRegressor of 1 Gaussian "
        r"process with a stack\. Fit with combine='best' and stack=None\.",
    ):
        DirectModel(stacked)
    mixture = fitted(SparseGPRegressor(**LIGHT, likelihood="gaussian"), Y)
    set_members(mixture, [mixture.members_[0]] * 2, [0.5, 0.5])
    with pytest.raises(InvalidInputError, match=r"2 Gaussian processes\. Fit with combine='best'"):
        DirectModel(mixture)


def test_refuses_several_outputs_and_latent_functions() -> None:
    outputs = fitted(SparseGPRegressor(**LIGHT, likelihood="gaussian"), np.stack([Y, -Y], 1))
    with pytest.raises(InvalidInputError, match=r"2 outputs\. Give one of `outputs_`\."):
        DirectModel(outputs)
    assert DirectModel(outputs.outputs_[1]).batch_shape == ()
    classes = fitted(SparseGPClassifier(**LIGHT), np.digitize(Y, [980, 1020]))
    with pytest.raises(InvalidInputError, match="must be of one latent function, or of hetero"):
        DirectModel(classes)
    latent = classes.posterior_.latent(2)
    assert at(DirectModel(latent), INPUTS).mean.shape == (7, 1)


def test_a_model_with_heteroscedastic_noise_is_one_model() -> None:
    """Its two latents were two models, whose values were mixed up in a batch of two inputs."""
    robust = DirectModel(OTHERS["heteroscedastic"]())
    assert robust.batch_shape == ()
    assert at(robust, INPUTS[:2].unsqueeze(1)).mean.shape == (2, 1, 1)


def test_a_kernel_may_be_an_expression() -> None:
    inputs = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)).double()
    prior = Prior.from_data(inputs, kernel=parse("RBF(0) * Periodic(1) + Linear(1) + Additive(0)"))
    q = SparsePosterior(prior, inputs[:5])
    X = inputs.clone().requires_grad_()
    found, known = at(DirectModel(q), X), q.marginals(inputs)
    torch.testing.assert_close(found.mean[:, 0], known.mean)
    torch.testing.assert_close(found.variance[:, 0], known.variance)
    found.variance.sum().backward()
    assert X.grad is not None and bool(X.grad.isfinite().all()) and bool((X.grad != 0).all())


def test_a_posterior_is_in_its_own_units() -> None:
    q: SparsePosterior = regressor().posterior_
    inputs = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).double()
    found, known = at(DirectModel(q), inputs), q.marginals(inputs)
    torch.testing.assert_close(found.mean[:, 0], known.mean)
    torch.testing.assert_close(found.variance[:, 0], known.variance)
