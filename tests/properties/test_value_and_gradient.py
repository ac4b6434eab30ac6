"""`value_and_gradient` without a tape equals that of the tape, for any model and objective."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean, Mean
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from directgp.likelihoods.bernoulli import Bernoulli
from directgp.likelihoods.counts import CountLikelihood
from directgp.objectives import GibbsLoss, LogLoss, Objective, PointLoss, SquareLoss
from directgp.posteriors import SparsePosterior, blocks
from directgp.posteriors.collapsed import Whitened
from directgp.posteriors.prior import MeanName, Prior
from directgp.registry import KernelName
from directgp.training.beta_path import repeated
from directgp.training.data import Data, Model, RandomBatches, Randomness
from directgp.training.problems import FreeProblem, HeldProblem, QProblem, TrainingProblem
from directgp.training.profiled import ProfiledProblem
from directgp.training.run import Eliminated
from tests.properties.checks import seeded

TOLERANCE = 1e-9
"""Largest difference, relative to the largest entry of a parameter's gradient."""

NUGGET = 1e-3
"""Bounds the condition of K_uu, and with it the rounding errors of both computations."""


@dataclass(frozen=True)
class Case:
    """Sizes and settings of a model with random parameters and data."""

    n: int = 20
    m: int = 6
    d: int = 2
    kernel: KernelName = "rbf"
    ard: bool = True
    mean: MeanName = "constant"
    scaled: bool = False
    weighted: bool = False
    beta: float = 0.7
    seed: int = 0

    def random(self, *shape: int, stream: int) -> Tensor:
        generator = seeded(100 * self.seed + stream)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def posterior(self) -> SparsePosterior:
        X = self.random(max(self.n, 2), self.d, stream=0)
        prior = Prior.from_data(X, kernel=self.kernel, ard=self.ard, mean=self.mean)
        if self.scaled:
            prior = Prior(ScaleKernel(prior.kernel), prior.mean_function)
        posterior = SparsePosterior(prior, self.random(self.m, self.d, stream=1), NUGGET)
        with torch.no_grad():
            for stream, parameter in enumerate(prior.parameters()):
                parameter.add_(0.3 * self.random(*parameter.shape, stream=10 + stream))
            S = 0.3 / self.m**0.5 * self.random(self.m, self.m, stream=2)
            S += 0.5 * torch.eye(self.m, dtype=torch.float64)
            posterior.set_q(self.random(self.m, stream=3), S)
        return posterior

    def data(self, likelihood: Likelihood) -> Data:
        X = self.random(self.n, self.d, stream=0)
        y = torch.sin(2 * X[:, 0]) + 0.3 * self.random(self.n, stream=4)
        if isinstance(likelihood, Bernoulli):
            y = (y > 0).double()
        elif isinstance(likelihood, CountLikelihood):
            y = torch.exp(1 + y).round()
        weights = self.random(self.n, stream=5).abs()
        # A weight of 0 leaves an example out.
        weights[1:3] = 0
        return Data(X, y, weights if self.weighted else None)

    def exposure(self) -> Tensor:
        return torch.exp(0.5 * self.random(self.n, stream=6))


cases = st.builds(
    Case,
    n=st.integers(1, 60),
    m=st.integers(1, 30),
    d=st.integers(1, 5),
    kernel=st.sampled_from(get_args(KernelName)),
    ard=st.booleans(),
    mean=st.sampled_from(["zero", "constant"]),
    scaled=st.booleans(),
    weighted=st.booleans(),
    beta=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    seed=st.integers(0, 10**6),
)

LIKELIHOODS: dict[str, Callable[[Case], Likelihood]] = {
    "gaussian": lambda case: Gaussian(0.25),
    "student_t": lambda case: StudentT(4.0, 0.6),
    "probit": lambda case: Probit(),
    "logistic": lambda case: Logistic(),
    "poisson": lambda case: Poisson(),
    "poisson_exposure": lambda case: Poisson().with_exposure(case.exposure()),
    "poisson_softplus": lambda case: Poisson(link="softplus"),
    "negative_binomial": lambda case: NegativeBinomial(2.5),
}
LOSSES: dict[str, PointLoss] = {
    "elbo": GibbsLoss(),
    "log_loss": LogLoss(),
    "square_loss": SquareLoss(),
}
WITHOUT_MEAN = {"student_t", "logistic", "poisson_softplus"}
PAIRS = [
    (likelihood, loss)
    for likelihood in LIKELIHOODS
    for loss in LOSSES
    if loss != "square_loss" or likelihood not in WITHOUT_MEAN
]
each_pair = pytest.mark.parametrize(("likelihood", "loss"), PAIRS)
each_kind = pytest.mark.parametrize("kind", get_args(Eliminated))

Found = tuple[Tensor, Tensor]


def model_of(case: Case, likelihood: str) -> tuple[Model, Data]:
    made = LIKELIHOODS[likelihood](case).double()
    return Model(case.posterior(), made), case.data(made)


def free_and_held(case: Case, likelihood: str, loss: str) -> list[QProblem]:
    model, data = model_of(case, likelihood)
    objective = Objective(LOSSES[loss], case.n, case.beta)
    return [kind(model, data, objective, randomness()) for kind in (FreeProblem, HeldProblem)]


def profiled(case: Case, kind: Eliminated) -> ProfiledProblem:
    model, data = model_of(case, "gaussian")
    loss = SquareLoss() if kind == "square_loss" else GibbsLoss()
    objective = Objective(loss, case.n, case.beta)
    return ProfiledProblem(model, data, objective, randomness(), kind, held=False)


def randomness() -> Randomness:
    return Randomness(seeded(), frozen=True)


def by_tape(problem: TrainingProblem) -> Found:
    return TrainingProblem.value_and_gradient(problem, 0)


def by_name(problem: TrainingProblem, gradient: Tensor) -> dict[str, Tensor]:
    sizes = [p.numel() for p in problem.parameters.values()]
    assert gradient.shape == (sum(sizes),)
    return dict(zip(problem.parameters, gradient.split(sizes), strict=True))


def assert_same(problem: TrainingProblem, ours: Found, theirs: Found) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-11, atol=1e-12)
    # What cancels to 0 is left with the rounding errors of its terms.
    floor = 1e-13 * max(1.0, float(theirs[1].abs().max()))
    found, expected = (by_name(problem, gradient) for _, gradient in (ours, theirs))
    for name, one in found.items():
        allowed = TOLERANCE * float(expected[name].abs().max()) + floor
        difference = float((one - expected[name]).abs().max())
        assert difference <= allowed, f"{name}: {difference:.3g} > {allowed:.3g}"


def check(problem: TrainingProblem) -> None:
    problem.prepare()
    ours = problem.value_and_gradient(0)
    assert not ours[0].requires_grad and not ours[1].requires_grad
    assert_same(problem, ours, by_tape(problem))


@each_pair
@given(case=cases)
@settings(max_examples=6, derandomize=True, deadline=None)
def test_free_and_held(likelihood: str, loss: str, case: Case) -> None:
    for problem in free_and_held(case, likelihood, loss):
        check(problem)


@each_kind
@given(case=cases)
@settings(max_examples=15, derandomize=True, deadline=None)
def test_profiled(kind: Eliminated, case: Case) -> None:
    # Without a weight on the KL, P = A diag(p) Aᵀ may be singular, and q(u) rounding.
    check(profiled(replace(case, beta=case.beta or 0.1), kind))


@each_kind
def test_profiled_without_kl(kind: Eliminated) -> None:
    """Of few features and many examples, q(u) is determined; its covariance is 0."""
    check(profiled(Case(n=50, m=3, d=3, beta=0.0), kind))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("entries", [2**22, 40], ids=["one block", "blocks"])
def test_either_library_and_blocks_of_rows(
    library: str, entries: int, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    monkeypatch.setattr(blocks, "_ONE_THREAD", 2**60 if library == "numpy" else -1)
    monkeypatch.setattr(blocks.Projection, "cpu_entries", entries)
    for kernel in get_args(KernelName):
        case = Case(kernel=kernel, weighted=True)
        for problem in free_and_held(case, "poisson_exposure", "log_loss"):
            check(problem)
        for kind in get_args(Eliminated):
            check(profiled(case, kind))


def test_whole_numbers_as_weights() -> None:
    model, data = model_of(Case(), "gaussian")
    data = replace(data, weights=torch.arange(len(data)) % 3)
    objective = Objective(LogLoss(), len(data))
    for kind in (FreeProblem, HeldProblem):
        check(kind(model, data, objective, randomness()))
    for eliminated in get_args(Eliminated):
        check(ProfiledProblem(model, data, objective, randomness(), eliminated, held=False))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_gradient_off_by_a_millionth_is_noticed(likelihood: str) -> None:
    (problem, _) = free_and_held(Case(), likelihood, "log_loss")
    value, gradient = by_tape(problem)
    wrong = by_name(problem, gradient.clone())
    for name, part in wrong.items():
        before = part.clone()
        part.mul_(1 + 1e-6)
        with pytest.raises(AssertionError, match=name):
            assert_same(problem, (value, torch.cat([*wrong.values()])), (value, gradient))
        part.copy_(before)
    with pytest.raises(AssertionError):
        assert_same(problem, (value * (1 + 1e-6), gradient), (value, gradient))


def slope_along(problem: TrainingProblem, direction: Tensor, step: float = 1e-5) -> float:
    """The slope of the value along a direction, by a central difference."""
    values = []
    for sign in (1, -2):
        with torch.no_grad():
            for name, part in by_name(problem, direction).items():
                p = problem.parameters[name]
                p.add_(sign * step * part.view(p.shape))
        values.append(float(problem.value(0).detach()))
    with torch.no_grad():
        for name, part in by_name(problem, direction).items():
            p = problem.parameters[name]
            p.add_(step * part.view(p.shape))
    return (values[0] - values[1]) / (2 * step)


def check_by_differences(problem: TrainingProblem) -> None:
    value, gradient = problem.value_and_gradient(0)
    torch.testing.assert_close(value, problem.value(0).detach(), rtol=1e-12, atol=0)
    for seed in range(2):
        direction = torch.randn(len(gradient), generator=seeded(seed), dtype=torch.float64)
        if "u_chol" in problem.parameters:
            part = by_name(problem, direction)["u_chol"]
            u_chol = problem.parameters["u_chol"]
            part.copy_(part.view(u_chol.shape).tril().reshape(-1))
        expected = slope_along(problem, direction)
        scale = float(gradient.norm() * direction.norm())
        assert float(gradient @ direction) == pytest.approx(expected, rel=1e-6, abs=1e-8 * scale)


@pytest.mark.parametrize("loss", LOSSES)
def test_differences_of_values(loss: str) -> None:
    """Tape and formulas could share an error; differences share none."""
    for problem in free_and_held(Case(weighted=True), "gaussian", loss):
        check_by_differences(problem)


@each_kind
def test_differences_of_profiled_values(kind: Eliminated) -> None:
    check_by_differences(profiled(Case(weighted=True), kind))


Fix = Callable[[Model], nn.Parameter]
FIXED: dict[str, Fix] = {
    "Z": lambda model: model.posterior.Z,
    "u_mean": lambda model: model.posterior.u_mean,
    "u_chol": lambda model: model.posterior.u_chol,
    "prior.kernel.raw_lengthscale": lambda model: model.posterior.prior.kernel.raw_lengthscale,
    "prior.raw_output_scale": lambda model: model.posterior.prior.raw_output_scale,
    "prior.mean_function.raw_constant": (
        lambda model: model.posterior.prior.mean_function.raw_constant
    ),
    "likelihood.raw_df": lambda model: cast(StudentT, model.likelihood).raw_df,
    "likelihood.raw_scale": lambda model: cast(StudentT, model.likelihood).raw_scale,
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_parameters_are_left_out(name: str) -> None:
    case = Case()
    model, data = model_of(case, "student_t")
    objective = Objective(GibbsLoss(), case.n)
    everything = FreeProblem(model, data, objective, randomness())
    whole = by_name(everything, everything.value_and_gradient(0)[1])
    FIXED[name](model).requires_grad_(False)
    problem = FreeProblem(model, data, objective, randomness())
    rest = by_name(problem, problem.value_and_gradient(0)[1])
    assert whole.keys() - rest.keys() == {name}
    assert all(torch.equal(rest[other], whole[other]) for other in rest)
    check(problem)


@each_kind
@pytest.mark.parametrize("name", ["Z", "prior.kernel.raw_lengthscale", "likelihood.raw_noise"])
def test_fixed_parameters_of_a_profiled_problem(kind: Eliminated, name: str) -> None:
    problem = profiled(Case(), kind)
    named = dict(problem.posterior.named_parameters())
    named["likelihood.raw_noise"] = cast(Gaussian, problem.likelihood).raw_noise
    named[name].requires_grad_(False)
    again = ProfiledProblem(
        Model(problem.posterior, problem.likelihood),
        problem.data,
        problem.objective,
        randomness(),
        kind,
        held=False,
    )
    assert name not in again.parameters
    check(again)


OtherPrior = Literal["periodic", "interval", "greater", "linear", "active_dims", "scaled", "sum"]


def other_prior(name: OtherPrior, d: int) -> Prior:
    """A prior that needs the tape."""
    kernel: Kernel = RBFKernel()
    mean: Mean = ConstantMean()
    if name == "periodic":
        kernel = PeriodicKernel()
    elif name == "interval":
        kernel = MaternKernel(1.5, lengthscale_constraint=Interval(0.1, 5.0))
    elif name == "greater":
        kernel = ScaleKernel(RBFKernel(), outputscale_constraint=GreaterThan(0.1))
    elif name == "linear":
        mean = LinearMean(d)
    elif name == "active_dims":
        kernel = RBFKernel(active_dims=(0,))
    elif name == "scaled":
        kernel = ScaleKernel(ScaleKernel(RBFKernel()))
    else:
        kernel = RBFKernel() + MaternKernel(0.5)
    return Prior(kernel, mean)


@pytest.mark.parametrize("name", get_args(OtherPrior))
def test_other_priors_use_the_tape(name: OtherPrior) -> None:
    case = Case()
    model, data = model_of(case, "gaussian")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        prior = other_prior(name, case.d)
    assert not prior.fused and case.posterior().prior.fused
    posterior = SparsePosterior(prior, model.posterior.Z, NUGGET)
    posterior.set_q(model.posterior.u_mean, model.posterior.u_chol)
    model = Model(posterior, model.likelihood)
    objective = Objective(GibbsLoss(), case.n, case.beta)
    check_by_differences(FreeProblem(model, data, objective, randomness()))
    check(HeldProblem(model, data, objective, randomness()))
    for kind in get_args(Eliminated):
        check_by_differences(
            ProfiledProblem(model, data, objective, randomness(), kind, held=False)
        )


@pytest.mark.parametrize("kind", [FreeProblem, HeldProblem])
@pytest.mark.parametrize("likelihood", ["gaussian", "poisson_exposure", "student_t"])
def test_batches_of_examples(kind: type[FreeProblem | HeldProblem], likelihood: str) -> None:
    """Of the examples in a batch, with their exposures; the last batch is smaller."""
    case = Case(weighted=True)
    model, data = model_of(case, likelihood)
    objective, batches = Objective(GibbsLoss(), case.n), RandomBatches(data, 8, seeded())
    problem = kind(model, data, objective, randomness(), batches)
    for _ in range(4):
        check(problem)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("loss", ["elbo", "log_loss"])
def test_a_grid_of_beta(likelihood: str, loss: str) -> None:
    """A batch of models, each with its prior and noise, or held with one prior."""
    case, grid = Case(), torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    model, data = model_of(case, likelihood)
    objective = Objective(LOSSES[loss], case.n, grid)
    for shared in (False, True):
        posterior = model.posterior.repeated(3, shared_prior=shared)
        many = Model(posterior, model.likelihood if shared else repeated(model.likelihood, 3))
        with torch.no_grad():
            posterior.u_mean.add_(0.1 * case.random(3, case.m, stream=20))
        kind = HeldProblem if shared else FreeProblem
        problem = kind(many, data, objective, randomness())
        assert problem.value_and_gradient(0)[0].shape == (3,)
        check(problem)


@pytest.mark.parametrize("likelihood", ["gaussian", "logistic"])
def test_relative_to_an_earlier_q(likelihood: str) -> None:
    case = Case()
    model, data = model_of(case, likelihood)
    earlier = replace(case, seed=1).posterior()
    before = Whitened(earlier.u_mean.detach(), earlier.u_chol.detach())
    objective = Objective(GibbsLoss(), case.n, case.beta)
    check(HeldProblem(model, data, objective, randomness(), None, None, before))


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_collapsed_q(beta: float) -> None:
    """S_jj = 0 has an infinite KL, which a weight of 0 leaves out."""
    for problem in free_and_held(Case(beta=beta), "gaussian", "log_loss"):
        with torch.no_grad():
            problem.posterior.u_chol[2].zero_()
        if beta == 0:
            check(problem)
        else:
            assert not bool(problem.value_and_gradient(0)[0].isfinite())


def test_what_it_returns_is_not_overwritten() -> None:
    """The buffers behind it are used again at once."""
    for problem in [*free_and_held(Case(), "gaussian", "elbo"), profiled(Case(), "vfe")]:
        value, gradient = problem.value_and_gradient(0)
        kept = copy.deepcopy((value, gradient))
        with torch.no_grad():
            for parameter in problem.parameters.values():
                parameter.mul_(0.9)
        other = problem.value_and_gradient(0)
        assert torch.equal(value, kept[0]) and torch.equal(gradient, kept[1])
        assert not torch.equal(other[1], gradient)


def test_no_gradient_is_left_in_the_parameters() -> None:
    for problem in [*free_and_held(Case(), "student_t", "elbo"), profiled(Case(), "fitc")]:
        problem.value_and_gradient(0)
        assert all(parameter.grad is None for parameter in problem.parameters.values())
