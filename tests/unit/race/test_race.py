"""A race decides which candidates go on, are added and make the result, by their losses."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from directgp.likelihoods import Poisson, Softmax
from directgp.race.candidates import Candidate
from directgp.race.entrants import FIRST_STEPS, Entrant
from directgp.race.race import (
    EFFORTS,
    MOST_MEMBERS,
    Combine,
    Race,
    next_steps,
    overtakes,
    price,
    shares,
)
from directgp.training.data import Data
from directgp.training.result import Failure, Status
from directgp.training.validation import Folds, Given, HoldOut
from tests.unit.race.fake_runs import (
    EFFORT,
    HELD,
    Call,
    FakeRuns,
    M,
    choices,
    entrant,
    race_of,
    raced,
    some_of,
    trained,
    weight_of,
)
from tests.unit.training.models import StopAt, counts, normal

BETAS = (64.0, 16.0, 4.0, 1.0, 0.25, 0.0625)
EACH: list[Combine] = ["mixture", "best"]
BOTH = pytest.mark.parametrize("combine", EACH)
KERNELS = choices(kernels=("rbf", "matern32"))
OPEN = choices(
    kernels=("matern52", "matern32", "rbf"),
    ard=(True, False),
    likelihoods=("gaussian", "student_t", "heteroscedastic"),
    modes=("elbo", "joint"),
    betas=BETAS,
    stacked=(True, False),
    most_inducing=16,
)
"""Everything is open."""


def line(start: float, slope: float, end: float) -> Callable[[int], float]:
    """A loss that falls by the slope in each step until it ends."""
    return lambda steps: max(end, start - slope * steps)


# Pure functions of a phase


def test_steps_double_while_their_fall_pays() -> None:
    def steps(taken: int, rate: float, share: float = 1.0) -> int:
        return next_steps(entrant(steps=taken, rate=rate), share, EFFORT)

    much = 100 * EFFORT.tolerance
    assert steps(0, 0.0) > 0, "everyone is trained once"
    assert steps(40, much) == 40 and steps(160, much) == 160
    assert steps(40, 0.5 * EFFORT.tolerance) == 0 == steps(40, 0.0)
    assert steps(40, much, share=1e-3) == 0 == steps(40, math.inf, share=0.0)
    # What pays early does not pay late.
    rate = 2 * EFFORT.tolerance
    assert steps(40, rate) > 0 == steps(1000, rate)


@pytest.mark.parametrize("taken", [3200, 5000])
def test_steps_have_a_limit(taken: int) -> None:
    """Adam may have taken more steps than that in one run."""
    assert next_steps(entrant(steps=taken, rate=math.inf), 1.0, EFFORT) == 0


def test_more_effort_takes_more_steps_by_the_same_rule() -> None:
    fast, default, thorough = (EFFORTS[name] for name in ("fast", "default", "thorough"))
    slow = entrant(steps=40, rate=math.sqrt(fast.tolerance * default.tolerance))
    assert next_steps(slow, 1.0, fast) == 0 < next_steps(slow, 1.0, default)
    slower = entrant(steps=40, rate=math.sqrt(default.tolerance * thorough.tolerance))
    assert next_steps(slower, 1.0, default) == 0 < next_steps(slower, 1.0, thorough)


def test_neighbours_are_those_of_as_many_leaders_as_the_effort_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = {}
    for leaders in (0, 1, 2):
        effort = replace(EFFORT, leaders=leaders)
        race = raced(FakeRuns(lively), monkeypatch, settings=OPEN, effort=effort)
        tried[leaders] = len(race.decisions)
        if leaders == 0:
            starting = {each.label for each in OPEN.portfolio(effort.portfolio)}
            assert {each.candidate.label for each in race.entrants} <= starting
    assert tried[0] < tried[1] < tried[2]


def test_a_gap_is_closed_within_twice_the_steps() -> None:
    falling = entrant(steps=50, rate=0.02 + EFFORT.tolerance)
    assert overtakes(falling, 1.99, EFFORT) and not overtakes(falling, 2.01, EFFORT)
    assert not overtakes(replace(falling, rate=0.0), 0.01, EFFORT), "flat"
    assert not overtakes(falling, math.inf, EFFORT) and not overtakes(falling, math.nan, EFFORT)
    assert not overtakes(entrant(steps=0), 0.0, EFFORT), "not trained yet"


def test_shares_of_a_mixture_are_weights_and_of_the_best_all_that_may_be_it() -> None:
    noise = normal(HELD, seed=3)
    # The second is not clearly worse, the third is, and the fourth has no loss.
    losses = [noise, 0.01 + noise.flip(0), 1 + noise, torch.full((HELD,), math.inf).double()]
    each = [entrant(loss=values) for values in losses]
    assert shares(each, torch.tensor([0.7, 0.3, 0.0, 0.0]), "best") == [1, 1, 0, 0]
    weights = torch.tensor([0.5, 0.25, 0.25, 0.0])
    assert shares(each, weights, "mixture") == weights.tolist()


def test_the_price_is_in_steps_of_the_candidate() -> None:
    larger = replace(choices().first(), num_inducing=400)
    assert price(entrant(), 20, EFFORT) == pytest.approx(20 * EFFORT.tolerance)
    assert entrant(larger).cost == pytest.approx(10)
    assert price(entrant(larger), 20, EFFORT) == pytest.approx(200 * EFFORT.tolerance)


def test_the_cost_of_a_step() -> None:
    def cost(**traits: Any) -> float:
        return entrant(replace(choices().first(), **traits)).cost

    assert cost() == cost(num_inducing=100) == 1 < cost(num_inducing=200) < cost(num_inducing=400)
    # Two latents; their log loss is an integral over both.
    two = cost(likelihood="heteroscedastic", mode="elbo")
    assert two == 2 and cost(likelihood="heteroscedastic") > two


def test_classes_share_the_price_of_a_step() -> None:
    one = entrant()
    three, five = (
        replace(one, results=(replace(one.results[0], likelihood=Softmax(number)),))
        for number in (3, 5)
    )
    assert five.cost == three.cost == 2 * one.cost


@pytest.mark.parametrize("errors", [1.9, 2.1])
def test_beaten_by_two_standard_errors(errors: float) -> None:
    """Of the paired differences; the losses themselves vary far more."""
    scores = torch.linspace(-1, 1, HELD, dtype=torch.float64)
    common = 100 * scores.flip(0)
    scores = scores / scores.std()
    best = entrant(loss=common)
    other = entrant(loss=common + 1e-3 * (errors / HELD**0.5 + scores))
    assert other.is_beaten(best) == (errors > 2) and not best.is_beaten(other)


def test_beaten_at_the_limits() -> None:
    ones, zeros = entrant(loss=1.0), entrant(loss=0.0)
    assert ones.is_beaten(zeros) and not zeros.is_beaten(ones), "every difference is the same"
    assert not zeros.is_beaten(zeros)
    broken = entrant(loss=math.nan)
    assert broken.is_beaten(zeros) and not zeros.is_beaten(broken) and broken.loss == math.inf
    one, zero = entrant(loss=torch.ones(1)), entrant(loss=torch.zeros(1))
    assert not one.is_beaten(zero), "one example shows nothing"


# Who goes on


@BOTH
@pytest.mark.parametrize(
    ("slope", "goes_on"),
    # 1 behind after the first steps, and −1 in the end.
    [(0.04, True), (0.002, False), (0.0, False)],
)
def test_one_that_is_behind_goes_on_if_it_falls_fast(
    combine: Combine, slope: float, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, behind = line(0.1, 0.005, 0.0), line(1 + slope * FIRST_STEPS, slope, -1.0)
    fake = FakeRuns(lambda c, steps: (ahead if c.kernel == "rbf" else behind)(steps))
    race = raced(fake, monkeypatch, combine=combine, settings=KERNELS)
    late = trained(race, kernel="matern32")
    if goes_on:
        assert late.loss == -1 and weight_of(race, kernel="matern32") > 0.9
    else:
        assert late.steps == FIRST_STEPS and weight_of(race, kernel="rbf") > 0.9


@BOTH
def test_all_that_may_be_the_best_go_on(combine: Combine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that fall alike, each better on other rows."""
    side = torch.where(torch.arange(HELD) % 2 == 0, 1.0, -1.0).double()

    def loss(c: Candidate, steps: int) -> Tensor:
        return (1 if c.kernel == "rbf" else -1) * side + max(0.0, 1 - steps / 100)

    race = raced(FakeRuns(loss), monkeypatch, combine=combine, settings=KERNELS)
    assert [each.loss for each in race.entrants] == pytest.approx([0, 0], abs=1e-12)
    heaviest = float(race.weights.max())
    assert heaviest == 1 if combine == "best" else 0.4 < heaviest < 0.6


@BOTH
def test_a_run_that_has_converged_is_the_last(
    combine: Combine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(lambda c, steps: -float(steps), converges=lambda call: len(fake.calls) > 4)
    race = raced(fake, monkeypatch, combine=combine)
    assert len(fake.calls) == 5 and race.entrants[0].rate == 0


@pytest.mark.parametrize("best", [20, 40, 80, 160])
def test_the_state_with_the_lowest_loss_is_kept(best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def loss(c: Candidate, steps: int) -> float:
        seen.append(abs(best - steps) / 100)
        return seen[-1]

    race = raced(FakeRuns(loss), monkeypatch)
    (kept,) = race.entrants
    assert kept.loss == pytest.approx(min(seen)) == 0 and len(seen) > 2
    last = kept.results[0].stages
    assert sum(stage.steps for stage in last if stage.stage == kept.candidate.label) == best


def test_a_candidate_far_behind_is_not_in_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    race = raced(
        FakeRuns(lambda c, steps: 0.0 if c.kernel == "rbf" else 4.0), monkeypatch, settings=KERNELS
    )
    assert race.weights[race.entrants.index(trained(race, kernel="rbf"))] > 0.96


def test_members_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten candidates, each the best one of a tenth of the rows."""
    thorough = EFFORTS["thorough"]
    place: dict[Candidate, int] = {}

    def loss(c: Candidate, steps: int) -> Tensor:
        own = place.setdefault(c, len(place))
        return torch.where(torch.arange(HELD) % 8 == own % 8, 0.0, 6.0)

    race = raced(FakeRuns(loss), monkeypatch, settings=OPEN, effort=thorough)
    assert len(race.entrants) >= 8 and int((race.weights > 0).sum()) == MOST_MEMBERS


# Neighbours


def grown(gain: float) -> Callable[[Candidate, int], float]:
    """A loss that each doubling of the inducing inputs lowers."""
    return lambda c, steps: -gain * math.log2(c.num_inducing / M) - min(steps, 40) / 1000


@BOTH
@pytest.mark.parametrize(("most", "number"), [(0, 4), (7, 4), (8, 8), (31, 16), (32, 32)])
def test_inducing_inputs_double_while_that_pays_up_to_the_limit(
    combine: Combine, most: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(grown(0.5))
    race = raced(fake, monkeypatch, combine=combine, settings=choices(most_inducing=most))
    # The grown candidate takes the place of the one that it was made from.
    (only,) = race.entrants
    assert only.candidate.num_inducing == number == only.results[0].posterior.num_inducing
    assert len(fake.labels) == 2 + math.log2(number / M), "the base, and each size once"


@pytest.mark.parametrize("helps", [True, False])
def test_more_inducing_inputs_are_judged_as_further_training_of_their_candidate(
    helps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lower its loss where another member is far better: that of the mixture stays, so far."""
    quarter = torch.arange(HELD) % 4 == 1

    def loss(c: Candidate, steps: int) -> Tensor:
        if c.kernel != "rbf":
            return torch.where(quarter, -5.0, 6.0).double()
        own = 1.0 - 0.5 * (helps and c.num_inducing == 8)
        return torch.where(quarter, own, 0.0).double()

    settings = replace(KERNELS, most_inducing=8)
    race = raced(FakeRuns(loss), monkeypatch, settings=settings)
    assert weight_of(race, kernel="rbf") == pytest.approx(0.75, abs=0.05)
    assert trained(race, kernel="rbf").candidate.num_inducing == (8 if helps else M)


SMOOTH = choices(
    likelihoods=("student_t", "gaussian"),
    modes=("elbo", "joint"),
    conjugate=("gaussian",),
    most_inducing=4 * M,
)
"""The ELBO of the Gaussian has q(u) in closed form."""


@BOTH
@pytest.mark.parametrize(("fall", "number"), [(1.2, 4 * M), (0.4, M)])
def test_a_collapsed_candidate_grows_where_that_may_overtake_the_best(
    combine: Combine, fall: float, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts behind by 2 nats, and falls with each doubling; the others do not."""

    def loss(c: Candidate, steps: int) -> float:
        if c.likelihood == "gaussian" and c.mode == "elbo":
            return 2.0 - fall * math.log2(c.num_inducing / M)
        return 0.0

    race = raced(FakeRuns(loss), monkeypatch, combine=combine, settings=SMOOTH)
    found = trained(race, likelihood="gaussian", mode="elbo")
    assert found.candidate.num_inducing == number
    # The larger size was not refused for the others: where it falls too slowly they try it.
    sizes = {each for each in race.decisions if "8 inducing inputs" in each and "joint" in each}
    assert len(sizes) == (number == M)


def test_a_collapsed_candidate_that_may_grow_first_takes_the_steps_that_pay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is too far behind to go on for its own sake, until more inducing inputs have paid."""

    def loss(c: Candidate, steps: int) -> float:
        if c.likelihood == "gaussian" and c.mode == "elbo":
            return 4.0 - 2.0 * math.log2(c.num_inducing / M) - 0.001 * min(steps, 160)
        return 0.0

    fake = FakeRuns(loss)
    race = raced(fake, monkeypatch, settings=SMOOTH)
    (small,) = SMOOTH.collapsed()
    double = replace(small, num_inducing=2 * M)
    labels = [call.label for call in fake.calls]
    first = labels.index(double.label)
    steps = [call.recipe.max_steps for call in fake.calls[first:] if call.label == small.label]
    assert steps and labels[first:].count(double.label) >= 2
    assert trained(race, likelihood="gaussian", mode="elbo").candidate.num_inducing == 4 * M


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_a_collapsed_candidate_starts_only_if_neighbours_are_tried(
    effort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(OPEN, conjugate=("gaussian",))
    race = race_of(
        FakeRuns(lambda c, steps: 0.0), monkeypatch, effort=EFFORTS[effort], settings=settings
    )
    race._open()
    (collapsed,) = settings.collapsed()
    started = [replace(each.candidate, ard=collapsed.ard) for each in race.entrants]
    assert (collapsed in started) == (effort == "default")


@pytest.mark.parametrize("gain", [0.0, 0.2 * 50 * EFFORT.tolerance, -1.0])
def test_inducing_inputs_that_do_not_pay_are_refused_once(
    gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for another leader: the race goes on to β = 16, which is better."""

    def loss(c: Candidate, steps: int) -> float:
        return grown(gain)(c, steps) + 0.3 * abs(math.log(c.beta / 16))

    fake = FakeRuns(loss)
    race = raced(fake, monkeypatch, settings=choices(betas=BETAS, most_inducing=8))
    assert weight_of(race, beta=16.0) == float(race.weights.max()) > 0.5
    assert {each.candidate.num_inducing for each in race.entrants} == {M}
    assert sum("8 inducing inputs" in label for label in fake.labels) == 1
    (said,) = (each for each in race.decisions if "8 inducing" in each)
    assert said.startswith("Not kept: ")


@BOTH
@pytest.mark.parametrize("best", BETAS)
def test_beta_is_followed_while_the_loss_falls(
    combine: Combine, best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(lambda c, steps: abs(math.log(c.beta / best)))
    race = raced(fake, monkeypatch, combine=combine, settings=choices(betas=BETAS))
    assert weight_of(race, beta=best) == float(race.weights.max())
    tried = {each for each in BETAS if any(f"β = {each:.3g}," in name for name in fake.labels)}
    # Its neighbours, and not all the others.
    place = BETAS.index(best)
    assert tried >= set(BETAS[max(0, place - 1) : place + 2])
    if best in (1.0, 0.0625):
        assert 64.0 not in tried
    assert len(fake.labels) == len(set(fake.labels)) == len(tried) + 1


@BOTH
@pytest.mark.parametrize(("gain", "kept"), [(1.0, True), (1e-3, False), (-1.0, False)])
def test_a_likelihood_that_was_not_in_the_portfolio_is_tried(
    combine: Combine, gain: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(EFFORT, portfolio=1)
    settings = choices(likelihoods=("gaussian", "student_t", "heteroscedastic"))
    fake = FakeRuns(lambda c, steps: -gain * (c.likelihood == "heteroscedastic"))
    race = raced(fake, monkeypatch, combine=combine, effort=few, settings=settings)
    assert len(settings.portfolio(1)) == 1
    names = {each.candidate.likelihood for each in race.entrants}
    assert ("heteroscedastic" in names) == kept
    (said,) = (each for each in race.decisions if "heteroscedastic" in each)
    assert said.startswith("Kept: " if kept else "Not kept: ")
    if kept:
        assert weight_of(race, likelihood="heteroscedastic") == float(race.weights.max())


def test_neighbours_of_the_best_with_the_other_features_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the stack more inducing inputs pay, with it they do not."""

    def loss(c: Candidate, steps: int) -> Tensor:
        rows = torch.arange(HELD) % 4 == 0
        without = 0.0 if c.num_inducing == 8 else 1.0
        return torch.where(rows, 3.0, 0.0) if c.stacked else torch.where(rows, without, 3.0)

    settings = choices(stacked=(True, False), most_inducing=8)
    race = raced(FakeRuns(loss), monkeypatch, settings=settings)
    assert trained(race, stacked=True).candidate.num_inducing == M
    assert trained(race, stacked=False).candidate.num_inducing == 8
    assert 0 < weight_of(race, stacked=False) < weight_of(race, stacked=True)


def test_the_mixture_keeps_a_neighbour_that_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another likelihood is worse on most rows, and far better on some; the best one stays."""

    def loss(c: Candidate, steps: int) -> Tensor:
        rows = torch.arange(HELD) % 4 == 0
        return torch.where(rows == (c.likelihood == "student_t"), 0.0, 2.0)

    how: Any = {
        "effort": replace(EFFORT, portfolio=1),
        "settings": choices(likelihoods=("student_t", "gaussian")),
    }
    mixed = raced(FakeRuns(loss), monkeypatch, **how)
    assert len(mixed.entrants) == 2 and 0.6 < weight_of(mixed, likelihood="gaussian") < 0.9
    how["settings"] = choices(likelihoods=("gaussian", "student_t"))
    best = raced(FakeRuns(lambda c, s: loss(c, s) * 1.0), monkeypatch, combine="best", **how)
    assert weight_of(best, likelihood="gaussian") == 1


# ARD


@pytest.mark.parametrize("preferred", [True, False])
@pytest.mark.parametrize(
    ("gap", "noise", "changed"),
    [(0.5, 0.1, True), (-0.5, 0.1, False), (0.02, 1.0, False), (0.0, 0.0, False)],
)
def test_the_preferred_lengthscales_stay_unless_the_others_are_clearly_better(
    preferred: bool, gap: float, noise: float, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gap is far below its error in the third case."""

    def loss(c: Candidate, steps: int) -> Tensor:
        other = c.ard != preferred
        return noise * normal(HELD, seed=int(other)) - gap * other

    settings = replace(KERNELS, ard=(preferred, not preferred))
    race = raced(FakeRuns(loss), monkeypatch, settings=settings)
    assert {each.candidate.ard for each in race.entrants} == {preferred != changed}
    ours = "A lengthscale for each feature: "
    assert race.decisions[0].startswith(ours) == (preferred != changed)


@pytest.mark.parametrize("failing", ["rbf ARD", "rbf,"])
def test_lengthscales_that_cannot_be_trained_are_not_chosen(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(lambda c, steps: 0.0, fails=lambda call: call.label.startswith(failing))
    race = raced(fake, monkeypatch, settings=choices(ard=(True, False)))
    assert [each.candidate.ard for each in race.entrants] == [failing == "rbf,"]
    assert len(race.trainers.failures) == 1


# Failures


@BOTH
@pytest.mark.parametrize("validation", [HoldOut(0.2), Folds(2)], ids=str)
def test_a_candidate_that_fails_is_recorded_and_passed_over(
    combine: Combine, validation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best likelihood fails, at once or later, in one fold."""

    def fails(call: Call) -> bool:
        return "student_t" in call.label and call.phase.name.endswith(("β = 1", "fold 2", "inputs"))

    fake = FakeRuns(lambda c, steps: -steps * 0.01 - (c.likelihood == "student_t"), fails=fails)
    settings = choices(likelihoods=("gaussian", "student_t"))
    fake.converges = lambda call: len(fake.calls) > 20
    race = raced(fake, monkeypatch, combine=combine, settings=settings, validation=validation)
    assert {each.candidate.likelihood for each in race.entrants} == {"gaussian"}
    assert race.trainers.failures and race.trainers.end is None
    for failure in race.trainers.failures:
        assert isinstance(failure, Failure) and "student_t" in failure.label
        assert "cannot be trained" in failure.reason


def test_one_that_fails_later_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda c, steps: -steps * 0.01, fails=lambda call: len(fake.calls) > 3)
    race = raced(fake, monkeypatch)
    (kept,) = race.entrants
    assert kept.steps == 2 * FIRST_STEPS and kept.rate == 0
    assert kept.loss == pytest.approx(-0.01 * kept.steps)
    assert [failure.beta for failure in race.trainers.failures] == [1.0]


def test_without_any_model_there_are_no_entrants(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda c, steps: 0.0, fails=lambda call: True)
    race = raced(fake, monkeypatch, settings=OPEN)
    assert not race.entrants and race.trainers.failures and race.trainers.end is None


@BOTH
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_losses_that_are_not_finite_win_nothing(
    combine: Combine, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row is enough, at once or in the course."""

    def loss(c: Candidate, steps: int) -> Tensor:
        losses = torch.zeros(HELD) - steps * 0.01
        if c.kernel == "rbf":
            losses -= 1.0
            losses[3] = bad
        return losses

    race = raced(FakeRuns(loss), monkeypatch, combine=combine, settings=KERNELS)
    assert weight_of(race, kernel="matern32") == 1


# Ended


def lively(c: Candidate, steps: int) -> Tensor:
    """Losses for which each kind of neighbour is tried, and some pay."""
    rows = torch.arange(HELD)
    own = 0.3 * abs(math.log(c.beta / 16)) + (c.likelihood == "gaussian")
    size = -0.5 * math.log2(c.num_inducing / M)
    return own + size - min(steps, 100) / 100 + torch.where(rows % 2 == c.stacked, 0.0, 1.0)


def ended_after(
    runs: int, patch: pytest.MonkeyPatch, status: Status = Status.BUDGET, **how: Any
) -> tuple[Race, FakeRuns]:
    fake = FakeRuns(lively)
    settings = replace(OPEN, most_inducing=8)
    how = {"settings": settings, "monitors": [StopAt(runs, status)], **how}
    short = replace(EFFORTS["fast"], leaders=2)
    return raced(fake, patch, effort=short, **how), fake


def test_a_race_that_is_ended_anywhere_has_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = ended_after(10**9, monkeypatch)
    assert whole.trainers.end is None and not whole.untried
    for run in range(1, len(calls.calls) + 1):
        race, fake = ended_after(run, monkeypatch)
        assert len(fake.calls) == run, "no run begins after the end"
        assert race.trainers.end is not None and race.trainers.end.status is Status.BUDGET
        assert race.untried, "what was not tried is listed"
        if not race.entrants:
            assert race.trainers.last is not None
            continue
        assert float(race.weights.sum()) == pytest.approx(1)
        for each in race.entrants:
            assert math.isfinite(each.loss)
            assert not any(result.ended for result in each.results), "the state before"


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.INTERRUPTED, Status.BUDGET])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_every_kind_of_end_is_recorded(
    status: Status, n_jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    race, _ = ended_after(7, monkeypatch, status, n_jobs=n_jobs)
    assert race.trainers.end is not None
    assert (race.trainers.end.status, race.trainers.end.reason) == (status, "Enough.")
    assert race.entrants == [] or not race.entrants[0].results[0].ended


def test_every_candidate_is_tried_or_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those to start with, ended at any run of theirs: in the result, or in the list."""
    settings, effort = replace(OPEN, ard=(True,)), EFFORTS["fast"]
    portfolio = {each.label for each in settings.portfolio(effort.portfolio)}
    for run in range(1, 9):
        race, _ = ended_after(run, monkeypatch, settings=settings)
        assert portfolio <= {each.candidate.label for each in race.entrants} | set(race.untried)


def test_a_neighbour_whose_first_run_was_ended_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuns(lambda c, steps: 0.0)
    how: Any = {"settings": choices(betas=(4.0, 1.0, 0.25)), "effort": EFFORTS["fast"]}
    raced(fake, monkeypatch, **how)
    last = fake.labels[-1]
    runs = [call.label for call in fake.calls].index(last) + 1
    race = raced(FakeRuns(lambda c, s: 0.0), monkeypatch, monitors=[StopAt(runs)], **how)
    assert last in race.untried


@pytest.mark.parametrize("asked", [4, 7, 10, 15])
def test_an_interrupt_between_two_runs_keeps_the_result_so_far(
    asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While losses are computed; during a run it ends the run."""
    seen = []

    def loss(c: Candidate, steps: int) -> Tensor:
        seen.append(c)
        if len(seen) == asked:
            raise KeyboardInterrupt
        return lively(c, steps)

    race = raced(FakeRuns(loss), monkeypatch, settings=OPEN, effort=EFFORTS["fast"])
    end = race.trainers.end
    assert end is not None and end.status is Status.INTERRUPTED and race.untried
    assert race.trainers.last is not None
    assert not race.entrants or math.isfinite(float(race.weights.sum()))


def test_an_interrupt_before_all_runs_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(call: Call) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raced(FakeRuns(lambda c, steps: 0.0, fails=interrupt), monkeypatch)


# The same race


def test_several_jobs_decide_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random losses of each example, with folds."""

    def loss(c: Candidate, steps: int) -> Tensor:
        return lively(c, steps).repeat(5) + 0.3 * normal(5 * HELD, seed=len(c.label))

    races = [
        raced(FakeRuns(loss), monkeypatch, settings=OPEN, n_jobs=jobs, validation=Folds(3))
        for jobs in (1, 3)
    ]
    one, other = races
    assert one.decisions == other.decisions and len(one.decisions) > 3
    assert torch.equal(one.weights, other.weights)
    for ours, theirs in zip(one.entrants, other.entrants, strict=True):
        assert ours.candidate == theirs.candidate and ours.steps == theirs.steps
        assert torch.equal(ours.losses, theirs.losses)


def test_seeds_of_runs_come_from_the_cpu_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of the examples has no part in them."""
    race = race_of(FakeRuns(lambda c, s: 0.0), monkeypatch)
    trainers = race.trainers
    state = trainers.generator.get_state()
    expected = [int(torch.randint(2**62, (), generator=trainers.generator)) for _ in range(2)]
    trainers.generator.set_state(state)
    data = trainers.models.data(False)
    seeds = [trainers.trainer(data, "a run")._generator.initial_seed() for _ in range(2)]
    assert trainers.generator.device.type == "cpu" and seeds == expected


def test_the_result_of_best_is_the_lowest_of_what_the_race_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    race = raced(FakeRuns(lively), monkeypatch, combine="best", settings=OPEN)
    losses = [each.loss for each in race.entrants]
    weights = race.weights.tolist()
    assert sorted(weights) == [0] * (len(weights) - 1) + [1]
    assert losses[weights.index(1)] == min(losses)


def test_a_mixture_is_not_worse_than_the_best_by_more_than_the_part_of_equal_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    race = raced(FakeRuns(lively), monkeypatch, settings=OPEN)
    pool = race.trainers.pool(race.entrants)
    assert pool.mean(race.weights) <= pool.mean(pool.best()) + 5 / HELD


# Some examples first, then all


def widened(race: Race, number: int) -> tuple[list[Entrant], list[Entrant]]:
    """Race on so many training examples, and then on all; return the state before and between."""
    whole = race.trainers.splits
    race.trainers.splits = some_of(whole, number)
    race.run()
    before = list(race.entrants)
    race.widen(dict(whole))
    between = list(race.entrants)
    race.run()
    return before, between


def test_a_race_on_some_examples_goes_on_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the members of the result, each in its state; the others are left behind."""

    def loss(c: Candidate, steps: int) -> float:
        return (3.0 if c.kernel == "rbf" else 0.0) - min(steps, 500) / 1000

    fake = FakeRuns(loss)
    race = race_of(fake, monkeypatch, settings=KERNELS, combine="best")
    before, between = widened(race, 100)
    assert [each.candidate.kernel for each in between] == ["matern32"] and len(before) == 2
    (some,) = (each for each in before if each.candidate.kernel == "matern32")
    assert between[0].steps == some.steps and between[0].learnt == ()
    assert torch.equal(between[0].losses, some.losses), "the examples to validate with are the same"
    (after,) = race.entrants
    assert after.steps > some.steps and {call.rows for call in fake.calls} == {100, 320}
    assert [call.rows for call in fake.calls] == sorted(call.rows for call in fake.calls)


def test_sizes_that_were_refused_on_some_examples_are_tried_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRuns(lambda c, steps: 0.0)

    def loss(c: Candidate, steps: int) -> float:
        return -1.0 * (c.num_inducing == 8 and fake.calls[-1].rows == 320)

    fake.loss = loss
    race = race_of(fake, monkeypatch, settings=choices(most_inducing=8))
    before, _ = widened(race, 100)
    assert [each.candidate.num_inducing for each in before] == [4]
    assert [each.candidate.num_inducing for each in race.entrants] == [8]


@pytest.mark.parametrize("mode", ["joint", "fixed"])
def test_exposures_follow_when_a_race_goes_on_to_all(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are functions of the first feature."""
    X, y, _ = counts(60)
    likelihood = Poisson().with_exposure(X[:, 0].exp())
    fake = FakeRuns(lambda c, steps: -min(steps, 100) / 100)
    settings = choices(likelihoods=("poisson",), modes=(mode,), stacked=(True,))
    race = race_of(
        fake,
        monkeypatch,
        settings=settings,
        data=Data(X, y),
        likelihoods={"poisson": likelihood},
        validation=HoldOut(0.25),
    )
    widened(race, 30)
    assert {call.rows for call in fake.calls} == {30, 45}
    for call in fake.calls:
        exposure = dict(call.start.likelihood.named_buffers())["log_exposure"]
        torch.testing.assert_close(exposure, call.X[:, 0])


@pytest.mark.parametrize("traits", [{"num_inducing": 8}, {"likelihood": "student_t"}], ids=str)
def test_held_hyperparameters_are_those_of_the_candidate(
    traits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of a neighbour start from a model of its size and likelihood."""
    fake = FakeRuns(lambda c, s: -min(s, 40) / 40 - any(getattr(c, k) == traits[k] for k in traits))
    settings = choices(modes=("fixed",), most_inducing=8, likelihoods=("gaussian", "student_t"))
    race = raced(fake, monkeypatch, settings=settings, effort=replace(EFFORT, portfolio=1))
    trained(race, **traits)
    for call in fake.calls:
        assert call.start.posterior.num_inducing == (8 if "8 inducing" in call.label else M)
        kind = type(call.start.likelihood).__name__
        assert kind == ("StudentT" if "student_t" in call.label else "Gaussian")
        if ", fixed" in call.label:
            assert not isinstance(call.start, tuple), "an ELBO solution"


def test_given_examples_are_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = normal(30, 3, seed=7), normal(30, seed=8)
    fake = FakeRuns(lambda c, steps: -min(steps, 40) / 40)
    raced(fake, monkeypatch, validation=Given(X[:, :-1], y))
    assert {call.rows for call in fake.calls} == {400}
