"""The cells of a sweep."""

from collections import Counter

import pytest

from directgp_paper.experiments.cells import CurveCell, FitCell
from directgp_paper.experiments.claims import CLAIMS
from directgp_paper.experiments.sweep import SCALES, SweepData, chosen, sweep
from directgp_paper.reports.figures import FIGURES

DATA = (
    SweepData("pol", "regression", 15_000, "a", 100),
    SweepData("cadata", "regression", 20_640, "b", 206),
    SweepData("ringnorm", "classification", 7_400, "c", 74),
    SweepData("banana", "classification", 5_300, "d", 53),
    SweepData("airline", "classification", 2_055_733, "e", 200),
    SweepData("abalone", "count", 4_177, "f", 41),
)


@pytest.mark.parametrize("scale", SCALES)
def test_cells_have_keys_of_their_own_and_come_back_from_json(scale: str) -> None:
    cells = sweep(SCALES[scale], DATA)
    assert len({cell.key for cell in cells}) == len(cells)


def test_full_is_as_in_the_paper() -> None:
    cells = sweep(SCALES["full"], DATA)
    sizes = {c.size for c in cells if isinstance(c, FitCell) and c.dataset == "cadata"}
    assert {691, 11_063} <= sizes
    (joint,) = [
        c
        for c in cells
        if isinstance(c, FitCell)
        and (c.dataset, c.method, c.size, c.repeat) == ("cadata", "log-joint", 691, 0)
    ]
    assert joint.protocol == "paper" and joint.num_inducing == 206
    assert joint.betas[:3] == (691, 691 / 2, 691 / 4) and joint.betas[-1] == 0.01
    counts = [c for c in cells if isinstance(c, FitCell) and c.dataset == "abalone"]
    rules = Counter(c.rule.label for c in counts if c.method == "log-joint")
    assert rules == {"bMC-10": 25}
    curves = [c for c in cells if isinstance(c, CurveCell)]
    airline = [c for c in curves if c.dataset == "airline"]
    bound = [c for c in airline if c.objective == "elbo" and c.beta == 10]
    assert [c.repeat for c in bound] == [0, 1, 2]
    assert bound[0].steps == 20 * 1_956 and bound[0].every == 1_956
    assert (bound[0].batch_size, bound[0].learning_rate) == (1_000, 1e-3)
    smooth = {c.rule.samples for c in airline if c.rule.name == "smooth-bmc"}
    assert smooth == {1, 10, 100}
    assert {c.rule.label for c in airline if not c.whitened} == {
        *("exact", "bMC-10", "bMC-100", "uPS-1", "uPS-10"),
    }
    assert {c.beta for c in curves if c.dataset == "abalone"} == {0.1, 1.0, 10.0}
    # Batches of regression have the rate of full batches, as in the authors' script.
    (pol, *_) = [c for c in curves if c.dataset == "cadata"]
    assert (pol.batch_size, pol.learning_rate, pol.steps) == (6_000, 0.1, 5_000)


@pytest.mark.parametrize("scale", ["small", "full"])
def test_no_grid_has_the_elbo_itself(scale: str) -> None:
    """β-ELBO and ELBO are different methods, and β > 1 is decided by values near 1."""
    for cell in sweep(SCALES[scale], DATA, "best"):
        if isinstance(cell, FitCell) and len(cell.betas) > 1:
            assert 1.0 not in cell.betas
            below, above = ([b for b in cell.betas if (b > 1) == side] for side in (False, True))
            assert max(below) > 0.2 and min(above) < 5


def test_fewer_sizes_other_repeats_and_steps() -> None:
    cells = sweep(SCALES["full"].changed(700, 2, True), DATA, "best")
    fits = [c for c in cells if isinstance(c, FitCell)]
    sizes = {(c.dataset, c.size) for c in fits if c.dataset in ("cadata", "abalone")}
    assert sizes == {("cadata", 691), ("cadata", 11_063), ("abalone", 2_000)}
    assert {c.repeat for c in fits} == {0, 1} and {c.max_steps for c in fits} == {700}
    curves = [c for c in cells if isinstance(c, CurveCell)]
    assert {c.repeat for c in curves} == {0, 1}
    assert {c.steps for c in curves if c.dataset != "airline"} == {700}
    assert {c.steps for c in curves if c.dataset == "airline"} == {20 * 1_956}
    assert SCALES["full"].changed(None, None, False) == SCALES["full"]


def test_fitc_of_the_script_starts_from_the_elbo() -> None:
    (cell, *_) = [
        c
        for c in sweep(SCALES["full"], DATA)
        if isinstance(c, FitCell) and c.method == "fitc-of-elbo"
    ]
    assert cell.betas == (1.0,) and cell.start is not None and cell.start.method == "elbo"


def test_best_never_samples() -> None:
    cells = sweep(SCALES["full"], DATA, "best")
    assert {c.rule.label for c in cells if isinstance(c, FitCell)} == {"exact"}


def test_what_is_chosen_comes_after_what_it_starts_from() -> None:
    cells = sweep(SCALES["smoke"], DATA)
    found = chosen(cells, lambda c: isinstance(c, FitCell) and c.method == "log-fixed")
    assert {c.method for c in found if isinstance(c, FitCell)} == {"elbo", "log-fixed"}
    seen: set[str] = set()
    for cell in found:
        assert cell.start is None or cell.start.key in seen
        seen.add(cell.key)


@pytest.mark.parametrize("scale", SCALES)
def test_every_claim_and_figure_finds_cells_in_the_sweep(scale: str) -> None:
    # Of the sets that a claim or a figure is about, these two are not among the data above.
    data = (
        *DATA,
        SweepData("sarcos", "regression", 48_933, "g", 100),
        SweepData("peds1", "count", 4_000, "h", 40),
    )
    cells = sweep(SCALES[scale], data)
    for claim in CLAIMS.values():
        assert any(map(claim.uses, cells)), claim.id
    sampled_at = {"11", "12", "S2"} if scale != "full" else set()
    for figure in FIGURES.values():
        assert figure.name in sampled_at or any(map(figure.uses, cells)), figure.name


def test_every_figure_of_a_claim_exists() -> None:
    assert {name for claim in CLAIMS.values() for name in claim.figures} <= set(FIGURES)
