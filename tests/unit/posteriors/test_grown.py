"""More inducing inputs for the same q(f): rows of X that u predicts worst."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from directgp.posteriors import Prior, SparsePosterior, sparse
from directgp.registry import KernelName

M, N, D = 5, 20, 2
KERNELS: list[KernelName] = ["rbf", "matern12", "matern32", "matern52"]


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


X, ELSEWHERE = random(N, D), 2 * random(40, D, seed=9)


def somewhere(kernel: KernelName = "rbf", Z: Tensor = X[:M]) -> SparsePosterior:
    """With a random q(u), whose factor has entries above its diagonal."""
    prior = Prior.from_data(X, 2 + random(N, seed=2), kernel=kernel, ard=True, mean="constant")
    posterior = SparsePosterior(prior, Z)
    with torch.no_grad():
        posterior.u_mean.copy_(random(len(Z), seed=3))
        posterior.u_chol.copy_(0.7 * random(len(Z), len(Z), seed=4))
    return posterior


def by_numpy(posterior: SparsePosterior, rows: Tensor, number: int) -> list[int]:
    """Greedy choice; each variance of f given u anew, from the inverse of all covariances."""
    with torch.no_grad():
        every = torch.cat([posterior.Z, rows])
        K = posterior.prior.covariance(every, every).numpy()
    m, chosen = len(posterior.Z), list[int]()
    for _ in range(number):
        known = [*range(m), *(m + i for i in chosen)]
        nugget = np.diag([posterior.nugget * K[i, i] if i < m else 0.0 for i in known])
        weights = np.linalg.solve(K[np.ix_(known, known)] + nugget, K[known])
        variance = np.diag(K) - (K[known] * weights).sum(0)
        chosen.append(int(variance[m:].argmax()))
    return chosen


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("number", [1, 4, 10])
def test_q_of_f_and_kl_are_unchanged(kernel: KernelName, number: int) -> None:
    before = somewhere(kernel)
    grown = before.grown(X, number)
    assert len(grown.Z) == M + number
    for rows in (X, ELSEWHERE):
        ours, theirs = grown.marginals(rows), before.marginals(rows)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=0, atol=1e-8)
    torch.testing.assert_close(grown.kl(), before.kl(), rtol=1e-12, atol=0)
    both = grown.joint(ELSEWHERE).covariance - before.joint(ELSEWHERE).covariance
    assert both.abs().max() < 1e-8


def test_the_old_part_of_q_of_u_is_where_it_was_and_the_rest_standard_normal() -> None:
    before = somewhere()
    grown = before.grown(X, 6)
    assert torch.equal(grown.Z[:M], before.Z)
    assert torch.equal(grown.u_mean[:M], before.u_mean)
    assert torch.equal(grown.u_chol[:M, :M], before.u_chol.tril())
    rest = torch.eye(6, dtype=torch.float64)
    assert torch.equal(grown.u_chol[M:, M:], rest) and not grown.u_mean[M:].any()
    assert not grown.u_chol[M:, :M].any() and not grown.u_chol[:M, M:].any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_new_ones_are_those_that_u_predicts_worst(kernel: KernelName) -> None:
    posterior, rows = somewhere(kernel, X[:2]), ELSEWHERE[:15]
    expected = by_numpy(posterior, rows, 6)
    assert len({*expected}) == 6 and expected != sorted(expected)
    grown = posterior.grown(rows, 6)
    assert torch.equal(grown.Z[2:], rows[expected])


def test_the_first_of_them_are_those_of_a_smaller_number() -> None:
    posterior = somewhere()
    assert torch.equal(posterior.grown(X, 3).Z, posterior.grown(X, 8).Z[: M + 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_rows_run_out_there_are_fewer(dtype: torch.dtype) -> None:
    """M of the rows are inducing inputs already, and two are there twice."""
    posterior = somewhere("matern12").to(dtype)
    posterior = SparsePosterior(posterior.prior, X[:M].to(dtype))
    rows = torch.cat([X, X[-2:]]).to(dtype)
    grown = posterior.grown(rows, 100)
    assert len(grown.Z) == N
    given = {tuple(row) for row in rows.tolist()}
    assert {tuple(row) for row in grown.Z.tolist()} == given, "each row once"
    assert float(grown.factor().jitter) == 0
    again = grown.grown(rows, 100)
    assert torch.equal(again.Z, grown.Z) and torch.equal(again.u_chol, grown.u_chol)


def test_many_rows_are_chosen_from_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_GROWTH_ROWS", 7)
    few = somewhere(Z=ELSEWHERE[:2]).grown(X, 100).Z[2:]
    spread = X[torch.tensor([0, 2, 5, 8, 11, 14, 17])]
    assert {tuple(row) for row in few.tolist()} == {tuple(row) for row in spread.tolist()}


def test_what_is_held_is_held_in_the_new_one() -> None:
    posterior = somewhere()
    assert all(parameter.requires_grad for parameter in posterior.grown(X, 2).parameters())
    for name, _ in posterior.named_parameters():
        one_held = copy.deepcopy(posterior)
        one_held.get_parameter(name).requires_grad_(False)
        for other, value in one_held.grown(X, 2).named_parameters():
            assert value.requires_grad == (other != name)


def test_the_given_one_is_not_changed_and_nothing_is_shared() -> None:
    posterior = somewhere()
    before = copy.deepcopy(posterior.state_dict())
    grown = posterior.grown(X, 2)
    with torch.no_grad():
        for parameter in grown.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], value) for name, value in posterior.state_dict().items())


def test_the_new_ones_can_be_trained() -> None:
    grown = somewhere().grown(X, 3)
    (grown.marginals(ELSEWHERE).mean.sum() + grown.kl()).backward()
    assert grown.u_mean.grad is not None and grown.Z.grad is not None
    assert bool(grown.u_mean.grad[M:].any()) and bool(grown.Z.grad.isfinite().all())
