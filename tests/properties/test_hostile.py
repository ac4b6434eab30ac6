"""Training on difficult problems gives a finite result or a clear error, never NaN or a hang."""

import math

import pytest
import torch

from directgp.errors import DirectGPError, NumericalError
from directgp.numerics.log_square import expected_log_square
from directgp.posteriors import Prior, SparsePosterior
from directgp.posteriors.collapsed import optimal_q
from directgp.registry import KernelName
from directgp.training.result import Status, TrainingResult
from tests.properties.hostile import Problem, hostile_problem

_FEW = [*range(40), 61]
"""Seeds; with 61 training began again without end, in steps of 1e-13."""

_MANY = 200
_RESULTS = 0.97
"""Smallest share that ends with a result: the rest is beyond the range of floating point."""


def _check(seed: int) -> bool:
    """Whether it ended with a result."""
    problem = hostile_problem(seed)
    try:
        result = problem.train()
    except DirectGPError as error:
        _check_message(str(error), problem)
        return False
    _check_result(result, problem)
    return True


def _check_message(message: str, problem: Problem) -> None:
    """What happened, and what to try."""
    assert message.endswith("."), problem.traits
    assert message.count(". ") >= 2, problem.traits
    assert any(word in message for word in ("Scale", "Use", "Check", "Remove")), problem.traits


def _check_result(result: TrainingResult, problem: Problem) -> None:
    assert math.isfinite(result.loss), problem.traits
    assert isinstance(result.status, Status)
    assert result.reason
    for module in (result.posterior, result.likelihood):
        for name, parameter in module.named_parameters():
            assert bool(parameter.isfinite().all()), (name, problem.traits)
    _check_predictions(result.posterior, problem.X, problem)
    _check_predictions(result.posterior, problem.new_inputs(), problem)


def _check_predictions(posterior: SparsePosterior, X: torch.Tensor, problem: Problem) -> None:
    q = posterior.predict(X)
    assert bool(q.mean.isfinite().all()), problem.traits
    assert bool((q.variance.isfinite() & (q.variance > 0)).all()), problem.traits


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("seed", _FEW)
def test_a_finite_result_or_a_clear_error(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", sorted({*range(_MANY)} - {*_FEW}))
def test_many_more_end_with_a_finite_result_or_a_clear_error(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nearly_all_end_with_a_result() -> None:
    results = [_check(seed) for seed in range(_MANY, _MANY + 100)]
    assert sum(results) >= _RESULTS * len(results)


def test_problems_are_those_of_their_seed() -> None:
    one, same, other = hostile_problem(1), hostile_problem(1), hostile_problem(2)
    assert one.traits == same.traits != other.traits
    assert torch.equal(one.X, same.X)
    assert torch.equal(one.y, same.y)


_KERNELS: tuple[KernelName, ...] = ("rbf", "matern12", "matern32", "matern52")


@pytest.mark.parametrize("kernel", _KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_inputs_far_from_the_others_keep_their_covariance(
    kernel: KernelName, dtype: torch.dtype
) -> None:
    near = torch.tensor([[0.0, 0.0], [0.25, 0.5], [1.0, 0.5]], dtype=dtype)
    far = torch.tensor([[2.0**20, 0.0]], dtype=dtype)
    prior = Prior.from_data(near, kernel=kernel)
    alone = prior.gram(near)
    together = prior.gram(torch.cat([near, far]))
    torch.testing.assert_close(alone, prior.covariance(near, near).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(together[:3, :3], alone, rtol=1e-8, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_covariance_with_inputs_whose_squares_overflow_is_zero(dtype: torch.dtype) -> None:
    Z = torch.zeros(1, 1, dtype=dtype)
    far = torch.tensor([[-1.0], [1.0]], dtype=dtype) * torch.finfo(dtype).max ** 0.6
    assert not Prior.from_data(Z).covariance(Z, far).any()


def test_q_of_examples_without_information_is_zero() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    q = optimal_q(nothing, torch.ones(3).double(), torch.ones(3).double(), beta=0.0)
    assert not q.u_mean.any()
    assert not q.u_chol.any()


def test_an_offset_that_overflows_is_a_numerical_error() -> None:
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(NumericalError, match="NaN or infinite, or underflows"):
        expected_log_square(one * torch.inf, one, one)
