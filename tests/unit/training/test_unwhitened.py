"""Training of m and V themselves: the same objective in other parameters."""

import pytest
import torch

import directgp
from directgp.errors import InvalidInputError
from directgp.likelihoods import Gaussian, HeteroscedasticGaussian, Probit
from directgp.objectives.base import LogLoss, Objective
from directgp.posteriors import SparsePosterior
from directgp.training.data import Batches, Data, Model, Randomness
from directgp.training.problems import FreeProblem, UnwhitenedProblem
from directgp.training.result import Progress
from directgp.training.run import Monitor

RANDOM = torch.Generator().manual_seed(3)
X = torch.randn(60, 2, generator=RANDOM, dtype=torch.float64)
Y = (X[:, 0] * X[:, 1] > 0).double()


class Never(Monitor):
    def __call__(self, progress: Progress) -> None:
        return None


def start() -> Model:
    posterior = SparsePosterior.from_data(X, None, num_inducing=6, generator=RANDOM)
    with torch.no_grad():
        posterior.u_mean.normal_(generator=RANDOM)
        posterior.u_chol.add_(0.2 * torch.randn(6, 6, generator=RANDOM).double().tril())
    return Model(posterior, Probit())


def test_value_and_gradient_are_those_of_the_whitened_problem() -> None:
    """By the chain rule through m = L·u_mean and C = L·u_chol, L that of the hyperparameters."""
    model = start()
    data, objective = Data(X, Y, None), Objective(LogLoss(), len(X), 0.3)
    others = Randomness(torch.Generator(), False), Batches(data), None
    whitened = FreeProblem(model, data, objective, *others)
    expected, _ = whitened.value_and_gradient(0)
    posterior = model.posterior
    problem = UnwhitenedProblem(model, data, objective, *others)
    value, gradient = problem.value_and_gradient(0)
    torch.testing.assert_close(value, expected)
    assert list(problem.parameters)[-2:] == ["m", "C"] and "u_mean" not in problem.parameters
    # A small step in each parameter changes the objective of the posterior that it stands for.
    sizes = [p.numel() for p in problem.parameters.values()]
    for (name, parameter), slope in zip(
        problem.parameters.items(), gradient.split(sizes), strict=True
    ):
        direction = torch.randn(parameter.shape, generator=RANDOM, dtype=torch.float64)
        direction = direction.tril() if name == "C" else direction
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                parameter.add_(step * direction)
                problem.write_q()
                q = posterior.predict(X)
                losses = -directgp.log_expectation(model.likelihood, Y, q.mean, q.variance)
                values.append(losses.mean() + 0.3 / len(X) * posterior.kl())
                parameter.sub_(step * direction)
        numerical = float(values[0] - values[1]) / 2e-6
        assert float((slope * direction.flatten()).sum()) == pytest.approx(numerical, rel=1e-5)


@pytest.mark.slow
def test_it_reaches_the_same_optimum() -> None:
    """That of q(u): the objective is convex there, and may have several with all parameters."""
    model = start()
    for name, parameter in model.posterior.named_parameters():
        parameter.requires_grad_(name in ("u_mean", "u_chol"))
    runs = [
        directgp.train(
            *(*model, X, Y),
            objective="elbo",
            start="scratch",
            optimizer="adam",
            learning_rate=0.02,
            max_steps=3000,
            stopping=Never(),
            whitened=each,
        )
        for each in (True, False)
    ]
    assert runs[1].loss == pytest.approx(runs[0].loss, abs=2e-3)
    # The path there is another one.
    assert runs[1].history[5] != pytest.approx(runs[0].history[5], abs=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_several_latents(shared: bool) -> None:
    posterior = start().posterior.with_latents(2, shared=shared)
    with torch.no_grad():
        posterior.u_mean.normal_(generator=RANDOM)
    model = Model(posterior, HeteroscedasticGaussian())
    others = Randomness(torch.Generator(), False), Batches(Data(X, X[:, 0])), None
    problems = [
        kind(model, Data(X, X[:, 0]), Objective(LogLoss(), len(X), 0.3), *others)
        for kind in (FreeProblem, UnwhitenedProblem)
    ]
    torch.testing.assert_close(*(problem.value_and_gradient(0)[0] for problem in problems))
    trained = directgp.train(
        *(*model, X, X[:, 0]),
        start="scratch",
        optimizer="adam",
        max_steps=5,
        whitened=False,
    )
    assert trained.history[-1] < trained.history[0]


def test_it_is_for_joint_training_by_adam() -> None:
    model = start()
    with pytest.raises(InvalidInputError, match="optimizer must be 'adam' with whitened=False"):
        directgp.train(*model, X, Y, whitened=False)
    with pytest.raises(InvalidInputError, match="'joint' with whitened=False"):
        directgp.train(*model, X, Y, hyperparameters="fixed", optimizer="adam", whitened=False)
    for objective in ("vfe", "fitc", "square_loss"):
        with pytest.raises(InvalidInputError, match="objective must be one whose q"):
            directgp.train(
                *(model.posterior, Gaussian(0.1), X, Y),
                objective=objective,
                start="scratch",
                optimizer="adam",
                whitened=False,
            )
