"""Candidates, those that a race starts with, and their neighbours."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from directgp.race.candidates import Candidate
from directgp.race.race import EFFORTS
from tests.unit.race.fake_runs import choices

BETAS = (64.0, 16.0, 4.0, 1.0, 0.25, 0.0625)
OPEN = choices(
    kernels=("matern52", "matern32", "rbf"),
    likelihoods=("gaussian", "student_t", "heteroscedastic"),
    modes=("elbo", "joint"),
    betas=BETAS,
    stacked=(True, False),
    most_inducing=16,
)


def test_every_part_of_a_candidate_is_in_its_label() -> None:
    plain = OPEN.first()
    changes: dict[str, Any] = {
        "kernel": "rbf",
        "ard": True,
        "likelihood": "heteroscedastic",
        "num_inducing": 9,
        "mode": "elbo",
        "beta": 0.25,
        "stacked": not plain.stacked,
        "own_kernels": True,
    }
    assert set(changes) == set(Candidate.__dataclass_fields__)
    labels = {plain.label} | {replace(plain, **{name: new}).label for name, new in changes.items()}
    assert len(labels) == len(changes) + 1


def test_the_elbo_has_no_beta() -> None:
    label = replace(OPEN.first(), mode="elbo").label
    assert "ELBO" in label and "β" not in label


@pytest.mark.parametrize("number", [effort.portfolio for effort in EFFORTS.values()])
def test_starting_candidates_differ_and_the_preferred_model_is_among_them(number: int) -> None:
    found = OPEN.portfolio(number)
    assert len(set(found)) == len(found) == number
    assert all(each.kernel in OPEN.kernels and each.beta in OPEN.betas for each in found)
    # Both kinds of features, and an objective near the ELBO.
    assert {each.stacked for each in found[:2]} == {True, False}
    if number >= 5:
        assert {each.mode for each in found} == {"elbo", "joint"}
        assert {each.kernel for each in found} == set(OPEN.kernels)
        assert len({each.likelihood for each in found}) > 1


def test_a_larger_effort_has_the_candidates_of_a_smaller_one_and_more() -> None:
    sizes = [EFFORTS[name].portfolio for name in ("fast", "default", "thorough")]
    fast, default, thorough = map(OPEN.portfolio, sizes)
    assert default[: len(fast)] == fast and thorough[: len(default)] == default
    assert len(fast) < len(default) < len(thorough)


def test_the_collapsed_candidate_is_the_elbo_of_a_conjugate_likelihood() -> None:
    (found,) = replace(OPEN, conjugate=("gaussian",)).collapsed()
    plain = replace(OPEN.first(), mode="elbo", beta=1.0)
    assert found == replace(plain, kernel="rbf", likelihood="gaussian", stacked=False)
    # The objective or the likelihood of the user has no closed form, or all have the stack.
    assert not [*OPEN.collapsed()]
    assert not [*replace(OPEN, conjugate=("gaussian",), modes=("joint",)).collapsed()]
    (stacked,) = replace(OPEN, conjugate=("gaussian",), stacked=(True,)).collapsed()
    assert stacked.stacked


VALUES: dict[str, list[Any]] = {
    "kernels": [("rbf",), ("matern52", "matern32", "rbf")],
    "ard": [(True,), (True, False)],
    "likelihoods": [("gaussian",), ("gaussian", "student_t"), tuple("abcde")],
    "modes": [("elbo",), ("joint",), ("fixed",), ("elbo", "joint")],
    "betas": [(1.0,), (0.0,), BETAS, (10.0, 1.0, 0.1)],
    "stacked": [(False,), (True,), (True, False)],
    "most_inducing": [0, 8, 100],
    "own_kernels": [False, True],
}


@given(
    st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}),
    st.integers(1, 9),
)
def test_candidates_are_within_the_choices(settings: dict[str, Any], number: int) -> None:
    given_choices = choices(**settings)
    portfolio = given_choices.portfolio(number)
    assert 1 <= len(portfolio) <= number and len(set(portfolio)) == len(portfolio)
    if given_choices.single:
        assert portfolio == [given_choices.first()]
    tried = {each.likelihood for each in portfolio}
    for candidate in portfolio:
        neighbours = list(given_choices.neighbours(candidate, tried))
        assert candidate not in neighbours and len(set(neighbours)) == len(neighbours)
        for each in (candidate, *neighbours):
            assert each.kernel in given_choices.kernels and each.ard in given_choices.ard
            assert each.mode in given_choices.modes and each.stacked in given_choices.stacked
            assert each.likelihood in given_choices.likelihoods
            assert each.mode == "elbo" or each.beta in given_choices.betas
            assert each.num_inducing <= max(given_choices.most_inducing, candidate.num_inducing)
            assert given_choices.own_kernels or not each.own_kernels
        for each in neighbours:
            mode = "mode" if candidate.mode != each.mode else "beta"
            names = ["num_inducing", mode, "likelihood", "own_kernels"]
            changed = [name for name in names if getattr(each, name) != getattr(candidate, name)]
            same = {"kernel", "ard", "stacked"}
            assert len(changed) == 1
            assert all(getattr(each, name) == getattr(candidate, name) for name in same)


def test_neighbours_by_number_of_inducing_inputs() -> None:
    def sizes(number: int) -> set[int]:
        of = replace(OPEN.first(), num_inducing=number)
        return {each.num_inducing for each in OPEN.neighbours(of, OPEN.likelihoods)} - {number}

    assert sizes(4) == {8} and sizes(8) == {16} and sizes(9) == sizes(16) == set()


@pytest.mark.parametrize(
    ("beta", "next_to"),
    [(64.0, {16.0}), (1.0, {4.0, 0.25}), (0.0625, {0.25})],
)
def test_neighbours_by_beta(beta: float, next_to: set[float]) -> None:
    of = replace(OPEN.first(), beta=beta)
    assert {each.beta for each in OPEN.neighbours(of, OPEN.likelihoods)} - {beta} == next_to


def test_a_neighbour_of_the_elbo_is_trained_for_the_objective() -> None:
    of = replace(OPEN.first(), mode="elbo", beta=1.0)
    (other,) = (each for each in OPEN.neighbours(of, OPEN.likelihoods) if each.mode != "elbo")
    assert (other.mode, other.beta) == ("joint", 1.0)


def test_some_likelihoods_are_trained_by_the_elbo_alone() -> None:
    by_elbo = replace(OPEN, by_elbo=("heteroscedastic",))
    known, new = set(by_elbo.portfolio(9)), set[Candidate]()
    while known != new:
        new = set(known)
        known |= {each for of in new for each in by_elbo.neighbours(of, ("gaussian",))}
    modes = {(each.likelihood, each.mode) for each in known}
    assert {("gaussian", "joint"), ("student_t", "joint"), ("heteroscedastic", "elbo")} <= modes
    assert ("heteroscedastic", "joint") not in modes


def test_only_likelihoods_that_were_not_tried_are_neighbours() -> None:
    def named(*tried: str) -> set[str]:
        return {each.likelihood for each in OPEN.neighbours(OPEN.first(), tried)} - {"gaussian"}

    assert named("gaussian") == {"student_t", "heteroscedastic"}
    assert (
        named("gaussian", "heteroscedastic") == {"student_t"} and named(*OPEN.likelihoods) == set()
    )


def test_kernels_of_each_latent_are_tried_once() -> None:
    several = replace(OPEN, own_kernels=True)
    (own,) = (each for each in several.neighbours(several.first(), ()) if each.own_kernels)
    with_own = several.neighbours(own, several.likelihoods)
    assert all(each.own_kernels for each in with_own)


def test_objectives_are_near_the_elbo_a_smaller_beta_and_the_elbo_itself() -> None:
    assert OPEN.objectives == (("joint", 1.0), ("joint", 0.0625), ("elbo", 1.0))
    both = replace(OPEN, modes=("joint", "fixed"), betas=(1.0,))
    assert both.objectives == (("joint", 1.0), ("fixed", 1.0))
    assert choices(modes=("elbo",)).objectives == (("elbo", 1.0),)
