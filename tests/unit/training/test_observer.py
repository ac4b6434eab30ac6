from pathlib import Path
from typing import Any

import pytest
import torch

import directgp
from directgp.errors import InvalidInputError
from directgp.likelihoods import Gaussian
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training import Checkpoints, Observer


def sine() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.linspace(-3, 3, 40, dtype=torch.float64).reshape(-1, 1)
    return X, torch.sin(2 * X[:, 0])


def start(X: torch.Tensor, y: torch.Tensor) -> SparsePosterior:
    generator = torch.Generator().manual_seed(1)
    return SparsePosterior.from_data(X, y, num_inducing=6, generator=generator)


def observed(steps: int, every: int, **settings: Any) -> tuple[list[int], list[torch.Tensor]]:
    X, y = sine()
    posterior = start(X, y)
    seen: list[int] = []
    means: list[torch.Tensor] = []

    def see(step: int, posterior: SparsePosterior, likelihood: Likelihood) -> None:
        seen.append(step)
        means.append(posterior.predict(X).mean)

    directgp.train(
        posterior,
        Gaussian(0.1),
        X,
        y,
        start="scratch",
        optimizer="adam",
        max_steps=steps,
        observer=Observer(every, see),
        generator=torch.Generator().manual_seed(3),
        **settings,
    )
    return seen, means


def test_an_observer_sees_the_model_after_every_so_many_steps() -> None:
    steps, means = observed(20, 5, batch_size=10)
    assert steps == [5, 10, 15, 20]
    # What a run of ten steps ends with is what the observer saw after ten.
    X, y = sine()
    posterior = start(X, y)
    ten = directgp.train(
        posterior,
        Gaussian(0.1),
        X,
        y,
        start="scratch",
        optimizer="adam",
        batch_size=10,
        max_steps=10,
        generator=torch.Generator().manual_seed(3),
    )
    torch.testing.assert_close(means[1], ten.posterior.predict(X).mean, rtol=0, atol=0)


def test_an_observer_of_an_eliminated_q_sees_its_optimum() -> None:
    y = sine()[1]
    _, (at_first, later, last) = observed(30, 10, objective="square_loss", beta=0.1)
    errors = [float((mean - y).square().mean()) for mean in (last, later, at_first)]
    assert errors == sorted(errors) and errors[-1] < float(y.square().mean())


def test_an_observer_and_checkpoints_each_keep_their_own_time(tmp_path: Path) -> None:
    steps, _ = observed(24, 6, checkpoints=Checkpoints(tmp_path / "run", every=4))
    assert steps == [6, 12, 18, 24]


def test_the_last_look_is_at_the_last_state_and_not_at_the_best() -> None:
    """With steps that are too large: the result has the best state, the curve what was passed."""
    _, means = observed(6, 3, learning_rate=1.5, beta=0.1)
    X, y = sine()
    whole = directgp.train(
        start(X, y),
        Gaussian(0.1),
        X,
        y,
        beta=0.1,
        start="scratch",
        optimizer="adam",
        learning_rate=1.5,
        max_steps=6,
    )
    losses = whole.history
    assert losses.index(min(losses)) < len(losses) - 1
    assert not torch.equal(means[-1], whole.posterior.predict(X).mean)
    # As a longer run passes it.
    torch.testing.assert_close(means[-1], observed(9, 3, learning_rate=1.5, beta=0.1)[1][1])


def test_only_adam_can_be_observed() -> None:
    with pytest.raises(InvalidInputError, match="optimizer must be 'adam' with an observer"):
        _lbfgs()


def _lbfgs() -> None:
    X, y = sine()
    posterior = start(X, y)
    nothing = Observer(5, lambda step, posterior, likelihood: None)
    directgp.train(posterior, Gaussian(0.1), X, y, optimizer="lbfgs", observer=nothing)


def test_a_look_needs_steps_between() -> None:
    with pytest.raises(InvalidInputError, match="every of Observer must be at least 1"):
        Observer(0, lambda step, posterior, likelihood: None)
