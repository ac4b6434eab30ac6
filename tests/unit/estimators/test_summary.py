"""The text of a summary: contents, widths, numbers."""

import json
import math
import re
from dataclasses import replace

import pytest

from directgp.estimators.summary import Facts, MemberFacts, Summary, summary_text
from directgp.training.result import BetaPath, Failure, PathPoint

POINTS = (
    PathPoint(1.0, "elbo", None, 1.2512345678, 0.0213, 0.0162, 0.0041, "converged"),
    PathPoint(10.0, "joint", None, 1.2412345678, 0.0213, 0.0023, 0.0041, "converged"),
    PathPoint(0.3898123, "joint", None, 1.2345678901, 0.0213, 0.0, 0.0, "budget"),
    PathPoint(0.00123, "joint", None, math.inf, math.nan, math.inf, math.nan, "converged"),
)
PATH = BetaPath(
    points=POINTS,
    chosen=1,
    loss="log_loss",
    seconds=1.0,
    validation="all 812 examples, in 3 folds",
    grid=(10.0, 0.3898123, 0.00123),
    failed=(Failure(0.1, "joint", "The loss is not finite. " * 8),),
)
BARE = Facts(
    estimator="SparseGPRegressor",
    num_rows=812,
    num_features=1,
    kernel="rbf",
    likelihood="gaussian",
    num_inducing=1,
    objective="log_loss",
    hyperparameters="joint",
    beta=0.5,
    beta_given=True,
    status="converged",
    reason="The last 20 losses lie within 0.0001 of each other.",
    steps=1,
    evaluations=1502,
    seconds=12.3456789,
)
FULL = replace(
    BARE,
    num_features=50,
    kernel="rbf ARD",
    likelihood="student_t",
    num_inducing=100,
    beta=10.0,
    beta_given=False,
    num_merged=31,
    jitter=1e-6,
    noise={"scale": 1234.5678901, "degrees of freedom": 4.123456789},
    length_scales=tuple((f"x{i}", 1e-3 * 3.14159**i, (7.0 * i) % 50 + 0.5) for i in range(50)),
    output_scale=0.123456789,
    path=PATH,
    warnings=("One thing to know. " * 9, "Another."),
)


def entrant(label: str, weight: float, loss: float, mode: str = "joint") -> PathPoint:
    """A candidate of a race; the best one has the loss 1.2."""
    error = 0.0 if loss == 1.2 else 0.01
    return PathPoint(
        0.5, mode, None, loss, 0.0213, loss - 1.2, error, rmse=3.21, label=label, weight=weight
    )


def member(point: PathPoint, stacked: bool) -> MemberFacts:
    return MemberFacts(
        weight=point.weight or 0.0,
        label=point.label,
        loss=point.validation_loss,
        loss_error=point.validation_error,
        stacked=stacked,
        beta=point.beta,
        hyperparameters=point.hyperparameters,
        likelihood="StudentT",
        num_inducing=100,
    )


RACE = BetaPath(
    points=(
        entrant("matern52 ARD, " + "long_name, " * 9 + "with stack", 0.25, 1.31, "elbo"),
        entrant("rbf ARD, student_t, joint, β = 0.5", 0.7512, 1.25),
        entrant("rbf ARD, gaussian, joint, β = 0.5", 0.0, 1.2),
        entrant("rbf, gaussian, joint, β = 0.5", 0.0, math.inf),
    ),
    chosen=1,
    loss="log_loss",
    seconds=1.0,
    validation="all 812 examples, in 3 folds",
    grid=(10.0, 0.5, 0.001),
    mixture_loss=1.1512345,
    mixture_error=0.0234,
    decisions=("Kept: rbf ARD. " * 9, "Not kept: another."),
)
MIXTURE = replace(
    FULL,
    path=RACE,
    members=(member(RACE.points[1], False), member(RACE.points[0], True)),
    stack=("trees",),
)


def words(facts: Facts) -> str:
    """The text without its line breaks."""
    return " ".join(summary_text(facts).split())


@pytest.mark.parametrize("facts", [BARE, FULL, replace(FULL, kernel="a" * 300), MIXTURE])
def test_a_summary_fits_a_page_and_no_number_is_long(facts: Facts) -> None:
    text = summary_text(facts)
    assert all(len(line) <= 100 and line == line.rstrip() for line in text.splitlines())
    assert all(line.isprintable() for line in text.splitlines())
    assert not re.search(r"\d\.\d{7}|[1-9]\d{4}", text)


def test_a_summary_of_required_facts() -> None:
    assert summary_text(BARE).splitlines() == [
        "SparseGPRegressor",
        "  data          812 rows, 1 feature",
        "  model         rbf kernel, gaussian likelihood, 1 inducing input",
        "  objective     log_loss, joint: all parameters trained for this objective",
        "  β             0.5, as given",
        "  training      Converged. The last 20 losses lie within 0.0001 of each other.",
        "                1 step, 1,502 evaluations, 12 s",
    ]


def test_a_summary_of_all_facts() -> None:
    text = words(FULL)
    assert "812 rows (31 repeated others and were merged with them), 50 features" in text
    assert "rbf ARD kernel, student_t likelihood, 100 inducing inputs" in text
    assert "likelihood scale 1,235, degrees of freedom 4.123 output scale 0.1235" in text
    assert "12 s, jitter up to 1e-06" in text
    assert "Could not be trained - joint, β = 0.1: The loss" in text
    assert text.endswith("- Another.")


def test_the_choice_of_beta_is_explained() -> None:
    assert (
        "β 10, of 4 candidates, the most regularised within one standard error of the best by "
        "log_loss on all 812 examples, in 3 folds (0.002 ± 0.004 above it)"
    ) in words(FULL)
    best = replace(FULL, beta=0.3898123, path=replace(PATH, chosen=2))
    assert "β 0.39, the best of 4 candidates by log_loss on all 812 examples" in words(best)
    given = replace(best, beta_given=True)
    assert "β 0.39, as given; the best of 4 candidates" in words(given)
    # A search of earlier versions could choose another one than the best.
    points = tuple(replace(point, rmse=1.0) for point in POINTS)
    earlier = words(replace(FULL, path=replace(PATH, points=points)))
    assert "β 10, of 4 candidates, near the best by log_loss on all 812 examples" in earlier
    alone = replace(FULL, path=replace(PATH, points=POINTS[:1], chosen=0))
    assert "β 10, the only candidate that was trained" in words(alone)


def test_the_elbo_solution_has_a_beta_of_its_own() -> None:
    kept = replace(FULL, hyperparameters="elbo", beta=1.0, path=replace(PATH, chosen=0))
    for given in (True, False):
        text = words(replace(kept, beta_given=given))
        assert "log_loss, elbo: the plain ELBO solution" in text
        assert "β 1, that of the ELBO; of 4 candidates, the most regularised" in text
    ended = words(replace(kept, path=replace(PATH, points=(), chosen=0)))
    assert "the plain ELBO solution, compared with no other β 1, that of the ELBO" in ended
    asked = words(replace(BARE, objective="elbo", beta=1.0, beta_given=False))
    assert "objective elbo β 1, that of the objective itself" in asked


def test_a_searched_beta_of_the_elbo_is_explained() -> None:
    text = words(replace(FULL, objective="elbo"))
    assert "objective elbo, joint: all parameters trained for this objective β 10, of 4" in text
    kept = replace(FULL, objective="elbo", hyperparameters="elbo", beta=1.0)
    assert "elbo, elbo: the plain ELBO solution" in words(kept)
    assert "itself" not in words(kept)


def test_the_candidates_in_a_table() -> None:
    lines = summary_text(FULL).splitlines()
    start = lines.index("Candidates compared, log_loss")
    assert lines[start + 1 : start + 6] == [
        "            β   mode    validation loss    above the best   training",
        "            1   elbo    1.2512 ± 0.0213   0.0162 ± 0.0041   converged",
        "  →        10   joint   1.2412 ± 0.0213   0.0023 ± 0.0041   converged",
        "         0.39   joint   1.2346 ± 0.0213              best   budget",
        "      0.00123   joint                 ∞                 ∞   converged",
    ]


def test_candidates_that_hardly_differ_are_shown() -> None:
    near = replace(POINTS[1], difference=3e-8, difference_error=1e-8)
    path = replace(PATH, points=(near, POINTS[2]), chosen=0)
    assert "(3.0 ± 1.0)·10⁻⁸" in summary_text(replace(FULL, path=path))


def test_the_members_in_a_table() -> None:
    lines = summary_text(MIXTURE).splitlines()
    start = lines.index("Members")
    assert lines[start + 1 : start + 3] == [
        "      weight   validation loss   model",
        "  1   75.1 %   1.2500 ± 0.0213   rbf ARD, student_t, joint, β = 0.5",
    ]
    # A long name continues in its column.
    name = " ".join(line[33:] for line in lines[start + 3 : lines.index("", start)])
    assert name == RACE.points[0].label
    assert lines[start + 3].startswith("  2   25.0 %   1.3100 ± 0.0213   matern52 ARD, ")
    unknown = tuple(replace(each, loss=None, loss_error=None) for each in MIXTURE.members)
    lines = summary_text(replace(MIXTURE, members=unknown, path=None)).splitlines()
    assert lines[lines.index("Members") + 1] == "      weight   model"


def test_a_mixture_is_compared_with_the_best_candidate() -> None:
    text = words(MIXTURE)
    assert "model mixture of 2 Gaussian processes, its members" in text
    assert (
        "validation log_loss 1.1512 ± 0.0234 on all 812 examples, in 3 folds, with weights of "
        "other rows 1.2000 ± 0.0213 for the best of 4 candidates alone"
    ) in text
    assert "stack the out-of-fold predictions of trees are a feature of 1 member, too" in text
    assert "Member 1, rbf ARD kernel, student_t likelihood, 100 inducing inputs" in text
    assert "β 10" not in text and "trade" not in text


def test_the_candidates_of_a_race_the_best_first() -> None:
    lines = summary_text(MIXTURE).splitlines()
    start = lines.index("Candidates compared, log_loss, the best first")
    assert lines[start + 1 : start + 4] == [
        "  weight     loss    above the best   RMSE   candidate",
        "           1.2000              best   3.21   rbf ARD, gaussian, joint, β = 0.5",
        "  75.1 %   1.2500   0.0500 ± 0.0100   3.21   rbf ARD, student_t, joint, β = 0.5",
    ]
    *_, last = lines[start : lines.index("", start)]
    assert last.split()[:4] == ["∞", "∞", "3.21", "rbf,"]


def test_candidates_of_several_classes_have_no_rmse() -> None:
    path = replace(RACE, points=tuple(replace(point, rmse=None) for point in RACE.points))
    lines = summary_text(replace(MIXTURE, path=path)).splitlines()
    start = lines.index("Candidates compared, log_loss, the best first")
    assert lines[start + 1 : start + 3] == [
        "  weight     loss    above the best   candidate",
        "           1.2000              best   rbf ARD, gaussian, joint, β = 0.5",
    ]


def test_decisions_are_a_list() -> None:
    text = words(MIXTURE)
    assert "Decisions of the race - Kept: rbf ARD. Kept:" in text
    assert "- Not kept: another. Warnings" in text


def test_the_chosen_candidate_alone_reads_as_a_single_model() -> None:
    points = tuple(replace(p, weight=float(p.difference == 0)) for p in RACE.points)
    alone = replace(RACE, points=points, chosen=2, mixture_loss=None, mixture_error=None)
    members = (member(points[2], False),)
    text = words(replace(FULL, path=alone, members=members, beta=0.5))
    assert "model rbf ARD kernel, student_t likelihood, 100 inducing inputs" in text
    assert "β 0.5, the best of 4 candidates by log_loss on all 812 examples" in text
    assert "Members" not in text and "100.0 % 1.2000 best" in text


def test_the_facts_of_a_mixture_are_plain_values() -> None:
    facts = Summary("", [("", MIXTURE)]).to_dict()
    assert [entry["weight"] for entry in facts["members"]] == [0.7512, 0.25]
    assert facts["members"][1]["stacked"] and facts["stack"] == ["trees"]
    assert facts["path"]["mixture_loss"] == 1.1512345
    assert facts["path"]["points"][3]["validation_loss"] is None
    json.dumps(facts, allow_nan=False)


def test_a_page_has_the_members_and_decisions() -> None:
    page = Summary("", [("", MIXTURE)])._repr_html_()
    assert RACE.points[0].label in page and "<li>Not kept: another.</li>" in page


def test_length_scales_the_most_relevant_first() -> None:
    lines = summary_text(FULL).splitlines()
    start = lines.index("Lengthscales, the most relevant feature first")
    rows = lines[start + 2 : start + 14]
    assert [float(row.split()[2]) for row in rows] == [i + 0.5 for i in range(12)]
    assert lines[start + 14] == "  … and 38 more"
    few = summary_text(replace(FULL, length_scales=FULL.length_scales[:12]))
    assert "more\n" not in few


def test_relevance_stands_beside_the_length_scales() -> None:
    """It decides the order: a constant column has none, however short its lengthscale."""
    scales = (("one", 1.0, 0.1), ("age", 2.0, 4.0), ("size", 3.0, 3.0))
    text = summary_text(replace(FULL, length_scales=scales, relevance=(0.0, 0.4286, 0.5714)))
    lines = text.splitlines()
    start = lines.index("Lengthscales, the most relevant feature first")
    assert lines[start + 1 : start + 5] == [
        "  feature   in its units   in standard deviations   relevance",
        "  size                 3                        3      57.1 %",
        "  age                  2                        4      42.9 %",
        "  one                  1                      0.1       0.0 %",
    ]


def test_one_length_scale_is_one_line() -> None:
    named = replace(BARE, length_scales=(("age", 12.3456, 0.84),))
    assert "  lengthscale   12.35, 0.84 standard deviations of age\n" in summary_text(named)
    shared = replace(BARE, length_scales=(("", 1.0, 0.84),))
    assert "0.84 standard deviations, the same for every feature" in summary_text(shared)


def test_names_that_would_break_the_table_are_cut() -> None:
    scales = (("a\n" + "long " * 30, 1.0, 1.0), ("b", 2.0, 2.0))
    text = summary_text(replace(FULL, length_scales=scales))
    assert "  a long long" in text
    assert all(len(line) <= 100 for line in text.splitlines())
