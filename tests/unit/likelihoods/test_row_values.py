"""The constants that rows bring to a likelihood, whichever they are."""

import re

import pytest
import torch

import directgp
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import Binomial, Gaussian, Poisson, ZeroInflatedPoisson
from directgp.registry import LIKELIHOODS, MAX_COUNT, ROW_CONSTANTS

VALUES = torch.tensor([4.0, 6.0, 9.0])


def test_every_argument_of_a_likelihood_is_known() -> None:
    for row in LIKELIHOODS.values():
        argument = row.load().rows.argument
        assert argument is None or ROW_CONSTANTS[argument].task == row.task


@pytest.mark.parametrize("likelihood", [Poisson(), Binomial(), ZeroInflatedPoisson()])
def test_values_go_with_their_rows(likelihood: directgp.likelihoods.Likelihood) -> None:
    every = likelihood.with_row_values(VALUES)
    some = every.for_rows(torch.tensor([2, 0]))
    y, f = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.1, -0.4, 1.2])
    index = torch.tensor([2, 0])
    assert torch.equal(some.log_prob(y[index], f[index]), every.log_prob(y, f)[index])
    rows = likelihood.rows
    assert rows.present(every) and not rows.present(rows.without(every))
    assert likelihood.with_row_values(None) is likelihood


def test_a_likelihood_without_such_a_constant_takes_none() -> None:
    with pytest.raises(UnsupportedError, match="Gaussian has no constant of each row"):
        Gaussian().with_row_values(VALUES)
    assert Gaussian.rows.without(Gaussian()).noise.item() == pytest.approx(0.1)


@pytest.mark.parametrize("bad", [0.0, 2.5, float("nan"), float("inf")])
def test_trials_are_whole_numbers(bad: float) -> None:
    allowed = f"whole numbers from 1 to {MAX_COUNT:,}"
    message = f"trials of Binomial must be {allowed}. Got {bad!r} at index 1."
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        Binomial().with_row_values(torch.tensor([1.0, bad]))


def test_binomial_needs_its_trials() -> None:
    one = torch.ones(1)
    with pytest.raises(InvalidInputError, match="trials of Binomial must be given for each row"):
        directgp.log_expectation(Binomial(), one, one, one)
    with pytest.raises(InvalidInputError, match="at most the number of trials"):
        directgp.log_expectation(Binomial().with_row_values(one), 2 * one, one, one)
