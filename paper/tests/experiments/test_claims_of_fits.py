"""C1 to C6, on results whose verdict is known by construction."""

import math

import numpy as np
import pytest
from scipy import stats

from directgp.experiments.cell import FailedRecord, Record
from directgp_paper.experiments.cells import EXACT, BetaScores, PaperRecord, Results
from directgp_paper.experiments.claims.base import Finding, Part, Verdict
from paper.tests.experiments.made_up import fit, fit_cell, fit_of, judge, many, results, scored

REGRESSION = ("pol", "cadata", "sarcos", "song")
LABELS = ("banana", "thyroid", "twonorm", "ringnorm")

BEST_BY_LOG_LOSS = {"elbo": 0.5, "beta-elbo": 0.4, "fitc": 0.45, "log-joint": 0.2}


def _judge(claim: str, *records: PaperRecord | list[PaperRecord], reading: str = "") -> Finding:
    return judge(claim, results(*records), reading)


def _part(finding: Finding, *words: str) -> Part:
    """The one whose name has all these words."""
    found = [part for part in finding.parts if all(word in part.what for word in words)]
    assert len(found) == 1, [part.what for part in found]
    return found[0]


def _where(record: PaperRecord) -> tuple[str, str]:
    cell, _ = fit_of(record)
    return cell.dataset, cell.method


def _regression(joint: float = 0.2, fixed: float = 0.3) -> list[PaperRecord]:
    """The variant of the paper has the level of joint, the other that of fixed."""
    rivals = {"elbo": 0.5, "beta-elbo": 0.4, "fitc": 0.45}
    most = many({**rivals, "log-joint": joint, "log-fixed": fixed}, ("pol", "sarcos", "song"))
    return most + many({**rivals, "log-joint": fixed, "log-fixed": joint}, ("cadata",))


def test_c1_held() -> None:
    found = _judge("C1", _regression())
    assert found.verdict == "held"
    assert sum(part.decides for part in found.parts) == 12
    part = _part(found, "sarcos, 2,000 rows", "(joint) against the β-ELBO")
    assert part.effect == pytest.approx(-0.2, abs=0.002) and part.unit == "NLL"
    assert "the paper's protocol" in part.note and "5 repeats" in part.note
    assert found.sentence.startswith("pol (3 of 3 hold): log-loss DLM (joint) 0.")
    assert "below the β-ELBO in NLL (p < 0.001); cadata" in found.sentence
    assert "cadata (3 of 3 hold): log-loss DLM (fixed) 0." in found.sentence
    # The unit is told once.
    assert found.sentence.count("NLL") == 1


def test_c1_figures_by_hand() -> None:
    ones, others = [0.2, 0.25, 0.1, 0.3], [0.3, 0.33, 0.24, 0.38]
    records = [
        fit(fit_cell("pol", method, repeat), {"nll": nll, "mse": 0.0})
        for method, values in (("log-joint", ones), ("elbo", others))
        for repeat, nll in enumerate(values)
    ]
    part = _part(_judge("C1", records), "pol", "(joint) against the ELBO")
    d = np.array(ones) - np.array(others)
    t = d.mean() / (d.std(ddof=1) * math.sqrt(1 / 4 + 1000 / 4000))
    assert part.effect == pytest.approx(d.mean()) and part.error == pytest.approx(stats.sem(d))
    assert part.p_value == pytest.approx(2 * stats.t.sf(abs(t), 3))


def test_c1_is_contradicted_by_one_data_set() -> None:
    worse = [r for r in _regression() if r.cell.dataset != "song"]
    worse += many({"elbo": 0.1, "beta-elbo": 0.4, "fitc": 0.45, "log-joint": 0.2}, ("song",))
    found = _judge("C1", worse)
    assert found.verdict == "not held"
    assert _part(found, "song", "(joint) against the ELBO").verdict == "not held"
    assert "song (2 of 3 hold): log-loss DLM (joint) 0." in found.sentence
    assert "above the ELBO (p < 0.001)." in found.sentence


def test_c1_the_other_variant_does_not_decide() -> None:
    # Whichever variant has the lower validation loss decides, or the one that the paper names.
    for joint, fixed in ((0.2, 0.9), (0.9, 0.2)):
        records = _regression(joint, fixed)
        assert _judge("C1", records).verdict == "held"
        strict = _judge("C1", records, reading="strict")
        assert strict.verdict == ("held" if joint < fixed else "not held")
        assert sum(part.decides for part in strict.parts) == 12


def test_c1_with_fitc_of_the_script() -> None:
    own = _regression(joint=0.2) + many({"fitc-of-elbo": 0.5}, REGRESSION)
    better = [r for r in own if _where(r)[1] != "fitc"] + many({"fitc": 0.1}, REGRESSION)
    reading = "FITC as in the authors' script"
    assert _judge("C1", better, reading=reading).verdict == "held"
    assert _judge("C1", better, reading="strict").verdict == "not held"
    assert _judge("C1", better).verdict == "not held"
    found = _judge("C1", own, reading=reading)
    assert _part(found, "pol", "(joint) against FITC (ELBO's hyperparameters)").verdict == "held"


def test_c1_without_a_clear_difference() -> None:
    noisy = [r for r in _regression() if r.cell.dataset != "pol"]
    noisy += many({**BEST_BY_LOG_LOSS, "log-joint": 0.35}, ("pol",), jitter=0.3)
    found = _judge("C1", noisy)
    assert found.verdict == "not decided"
    assert "pol (" in found.sentence and ", undecided)" in found.sentence


def test_c1_data_sets_that_were_not_run() -> None:
    found = _judge("C1", [r for r in _regression() if r.cell.dataset in ("pol", "cadata")])
    assert found.verdict == "not decided"
    missing = _part(found, "song", "(joint) against the ELBO")
    assert missing.note == "not run" and math.isnan(missing.effect)
    assert "Not run: sarcos and song." in found.sentence
    # What is told beside the claim is not listed where it was not run.
    assert not [p for p in found.parts if "song" in p.what and "(fixed)" in p.what]


def test_c1_a_method_that_was_not_run_leaves_it_open() -> None:
    found = _judge("C1", [r for r in _regression() if _where(r) != ("pol", "fitc")])
    assert found.verdict == "not decided" and "Partly run: pol." in found.sentence


def test_c1_of_one_repeat() -> None:
    found = _judge("C1", many({**BEST_BY_LOG_LOSS, "log-fixed": 0.2}, REGRESSION, repeats=1))
    assert found.verdict == "not decided"
    part = _part(found, "pol", "(joint) against FITC")
    assert part.effect == pytest.approx(-0.25, abs=0.003)
    assert math.isnan(part.error) and math.isnan(part.p_value)


def test_c1_infinite_scores() -> None:
    def with_infinite(method: str, number: int) -> Finding:
        records = [r for r in _regression() if _where(r) != ("pol", method)]
        finite = scored("pol", method, {"log-joint": 0.2, "elbo": 0.5}[method])
        bad = [fit(fit_of(r)[0], {"nll": math.nan, "mse": 0.0}) for r in finite[:number]]
        return _judge("C1", records, bad, finite[number:])

    assert with_infinite("elbo", 1).verdict == "held"
    assert with_infinite("elbo", 5).verdict == "held"
    once, always = with_infinite("log-joint", 1), with_infinite("log-joint", 5)
    assert once.verdict == "not decided" and always.verdict == "not held"
    for found in (once, always):
        assert _part(found, "pol", "(joint) against the ELBO").effect == math.inf


def test_c1_failures_are_told_with_their_reason() -> None:
    failed = FailedRecord(fit_cell("song", "fitc"), "out of memory", 3)
    found = judge("C1", Results((), (failed,)))
    assert _part(found, "song", "(joint) against FITC").note == "failed: out of memory"
    assert _part(found, "song", "(joint) against the ELBO").note == "not run"
    assert found.sentence == "Not run: pol, cadata and sarcos. Failed: song."


def test_the_largest_size_that_both_have() -> None:
    small = many({"beta-elbo": 0.5, "elbo": 0.4}, REGRESSION, size=500)
    large = many({"beta-elbo": 0.3, "elbo": 0.4}, REGRESSION, size=3000)
    alone = many({"elbo": 0.1}, REGRESSION, size=9000)
    found = _judge("C3", small, large, alone)
    assert found.verdict == "held"
    assert all("3,000 rows" in part.what for part in found.parts)
    assert _judge("C3", small, alone).verdict == "not held"


def test_only_the_same_splits_and_settings_are_paired() -> None:
    elbo = many({"elbo": 0.4}, REGRESSION)
    for changes in ({"protocol": "best"}, {"seed": 1}, {"data": "other"}, {"num_inducing": 9}):
        found = _judge("C3", elbo, many({"beta-elbo": 0.3}, REGRESSION, **changes))
        assert {part.note for part in found.parts} == {"not run"}, changes


def test_repeats_that_one_alone_has_are_left_out() -> None:
    more = many({"elbo": 0.4}, REGRESSION)
    less = many({"beta-elbo": 0.3}, REGRESSION, repeats=3)
    part = _judge("C3", more, less).parts[0]
    assert "3 repeats" in part.note and "2 repeats of only one method left out" in part.note


def _ended_early(record: PaperRecord, fall: float) -> PaperRecord:
    """The fit with a limit of 100 steps, in the last fifth of which the objective fell by this."""
    history = ((20, 2.0), (40, 1.5), (60, 1.2), (80, 1.0 + fall), (100, 1.0))
    changes = {"status": "budget", "history": history}
    outcome = fit_of(record)[1].model_copy(update=changes)
    return Record(record.cell, outcome, record.circumstances)


def test_fits_that_did_not_converge_are_noted() -> None:
    elbo, beta_elbo = many({"elbo": 0.4}, ("pol",)), many({"beta-elbo": 0.3}, ("pol",))
    early = [_ended_early(each, 0.004) for each in elbo[:2]]
    part = _part(_judge("C3", early, elbo[2:], beta_elbo), "pol")
    assert "2 of 10 runs not converged, moving by up to 0.004 in a fifth" in part.note
    # The objective hardly fell any more.
    assert part.verdict == "held" and not part.remedy
    far = [_ended_early(each, 0.05) for each in elbo[:1]]
    part = _part(_judge("C3", far, elbo[1:], beta_elbo), "pol")
    assert part.verdict == "not decided" and "--max-steps" in part.remedy
    assert "(undecided, not converged)" in part.clause
    assert "converged" not in _part(_judge("C3", elbo, beta_elbo), "pol").note


@pytest.mark.parametrize(("fall", "verdict"), [(0.09, "held"), (0.11, "not decided")])
def test_the_square_loss_is_half_of_the_error(fall: float, verdict: Verdict) -> None:
    """The margin of an MSE of 10 is 0.2."""
    mse = {"score": "mse", "others": {"nll": 1.0}}
    square, elbo = (
        many({m: x}, ("pol",), **mse) for m, x in (("square-joint", 10.0), ("elbo", 20.0))
    )
    early = [_ended_early(each, fall) for each in square]
    part = _part(_judge("C2", early, elbo), "pol", "(joint) against the ELBO")
    assert part.verdict == verdict and "5 of 10 runs not converged" in part.note


def test_seeds_may_differ_from_repeat_to_repeat() -> None:
    records = [
        fit(cell.replace(seed=7 + cell.repeat), outcome.scores)
        for cell, outcome in map(fit_of, many({"elbo": 0.4, "beta-elbo": 0.3}, REGRESSION))
    ]
    found = _judge("C3", records)
    assert found.verdict == "held" and "5 repeats" in found.parts[0].note


def test_of_two_protocols_ours_decides_and_the_papers_is_beside() -> None:
    paper = many({"elbo": 0.4, "beta-elbo": 0.3}, REGRESSION)
    ours = many({"elbo": 0.3, "beta-elbo": 0.4}, REGRESSION, protocol="best")
    found = _judge("C3", ours, paper)
    assert found.verdict == "not held"
    beside = [part for part in found.parts if not part.decides]
    assert len(beside) == 4 and {part.verdict for part in beside} == {"held"}
    assert all("the paper's protocol" in part.note for part in beside)
    assert _judge("C3", paper).verdict == "held"


@pytest.mark.parametrize(
    ("beta_elbo", "verdict"), [(0.3, "held"), (0.5, "not held"), (0.4, "no difference")]
)
def test_c3_needs_a_beta_elbo_below_the_elbo(beta_elbo: float, verdict: Verdict) -> None:
    records = many({"elbo": 0.4, "beta-elbo": beta_elbo}, REGRESSION)
    assert _judge("C3", records).verdict == verdict


def _square(joint: float, log_joint: float) -> list[PaperRecord]:
    rivals = {"elbo": 0.5, "beta-elbo": 0.4, "fitc": 0.45, "log-fixed": 0.5}
    levels = {**rivals, "log-joint": log_joint, "square-joint": joint, "square-fixed": 0.8}
    swapped = {**levels, "square-joint": 0.8, "square-fixed": joint}
    most = many(levels, ("pol", "sarcos", "song"), score="mse")
    return most + many(swapped, ("cadata",), score="mse")


def test_c2_has_log_loss_among_its_rivals() -> None:
    found = _judge("C2", _square(0.2, log_joint=0.3))
    assert found.verdict == "held" and sum(part.decides for part in found.parts) == 20
    assert {part.unit for part in found.parts} == {"MSE"}
    assert _judge("C2", _square(0.2, log_joint=0.1)).verdict == "not held"


def _betas(size: int, chosen: dict[str, list[float]], **changes: int) -> list[PaperRecord]:
    return [
        fit(fit_cell("cadata", method, repeat, size=size, **changes), {"nll": 0.0}, beta=beta)
        for method, betas in chosen.items()
        for repeat, beta in enumerate(betas)
    ]


ABOVE = {m: [2.0, 4.0, 8.0, 4.0, 2.0] for m in ("beta-elbo", "log-joint", "log-fixed")}
BELOW = {"log-joint": [0.1, 0.2, 0.1, 0.05, 0.1]}


def test_c4_held() -> None:
    found = _judge("C4", _betas(691, ABOVE), _betas(13000, BELOW))
    assert found.verdict == "held"
    small = _part(found, "cadata with 691 rows", "(joint)")
    assert small.effect == pytest.approx(-np.mean(np.log10(ABOVE["log-joint"])))
    assert "β from 2 to 8, median 4" in small.note
    large = _part(found, "cadata with 13,000 rows", "(joint)")
    assert large.effect == pytest.approx(np.mean(np.log10(BELOW["log-joint"])))
    assert (
        "cadata with 13,000 rows: log-loss DLM (joint) chose β from 0.05 to 0.2" in found.sentence
    )
    assert found.sentence.count("chose β from 2 to 8, median 4") == 3


def test_c4_equal_choices_decide_by_their_side() -> None:
    same = {method: [4.0] * 3 for method in ABOVE}
    found = _judge("C4", _betas(691, same), _betas(5000, {"log-joint": [0.5] * 3}))
    assert found.verdict == "held" and "chose β = 4 each time" in found.sentence
    # There is nothing to test where nothing scatters.
    assert all(math.isnan(part.p_value) for part in found.parts)
    ones = {**same, "log-fixed": [1.0] * 3}
    found = _judge("C4", _betas(691, ones), _betas(5000, BELOW))
    assert found.verdict == "no difference"
    assert _part(found, "691 rows", "(fixed)").clause.endswith("(no difference)")


def test_c4_by_loss() -> None:
    def fits(size: int, method: str, lower: float) -> list[PaperRecord]:
        """Validation losses that are lower above 1 than below."""
        found: list[PaperRecord] = []
        for repeat in range(5):
            cell = fit_cell("cadata", method, repeat, size=size)
            made = fit(cell, {"nll": 0.0}, beta=4.0)
            noise = 0.001 * (-1) ** repeat
            losses = {4.0: 0.5 - lower + noise, 2.0: 0.6, 0.5: 0.5, 0.1: 0.9}
            path = tuple(
                BetaScores(beta=beta, validation=loss, error=0.0, test={})
                for beta, loss in losses.items()
            )
            outcome = fit_of(made)[1].model_copy(update={"path": path})
            found.append(Record(cell, outcome, made.circumstances))
        return found

    small = [each for method in ABOVE for each in fits(691, method, 0.1)]
    found = _judge("C4", small, fits(5000, "log-joint", -0.1), reading="by loss")
    assert found.verdict == "held"
    part = _part(found, "691 rows", "(joint)")
    assert part.effect == pytest.approx(-0.1, abs=0.001) and part.unit == "validation NLL"
    assert "lower with β above 1" in part.clause
    assert "lower with β below 1" in _part(found, "5,000 rows", "(joint)").clause
    flat = [each for method in ABOVE for each in fits(691, method, 0.0)]
    found = _judge("C4", flat, fits(5000, "log-joint", -0.1), reading="by loss")
    assert found.verdict == "no difference"


def test_c4_contradicted() -> None:
    small = {**ABOVE, "log-fixed": [0.1, 0.2, 0.1, 0.1, 0.1]}
    assert _judge("C4", _betas(691, small), _betas(5000, BELOW)).verdict == "not held"
    large = {"log-joint": ABOVE["log-joint"]}
    assert _judge("C4", _betas(691, ABOVE), _betas(5000, large)).verdict == "not held"


def test_c4_takes_the_nearest_size_and_none_that_is_far() -> None:
    low = {method: [0.1] * 3 for method in ABOVE}
    records = [_betas(600, ABOVE), _betas(1000, low), _betas(5000, BELOW)]
    assert _judge("C4", *records).verdict == "held"
    found = _judge("C4", _betas(200, ABOVE), _betas(1999, BELOW))
    assert found.verdict == "not decided"
    assert {part.note for part in found.parts} == {"not run"}
    assert "cadata with about 691 rows and cadata with 2,000 rows or more" in found.sentence


def test_c4_of_one_repeat_and_without_regularisation() -> None:
    once = {method: betas[:1] for method, betas in ABOVE.items()}
    assert _judge("C4", _betas(691, once), _betas(5000, BELOW)).verdict == "not decided"
    none = {"log-joint": [0.0, 0.0, 0.0]}
    assert _judge("C4", _betas(691, ABOVE), _betas(5000, none)).verdict == "held"


def _labels(joint: float, fixed: float, ringnorm: float = 0.1) -> list[PaperRecord]:
    rivals = {"elbo": 0.3, "beta-elbo": 0.29}
    most = many({**rivals, "log-joint": joint, "log-fixed": fixed}, LABELS[:3])
    return most + many({**rivals, "log-joint": ringnorm, "log-fixed": fixed}, ("ringnorm",))


def test_c5_one_variant_is_enough() -> None:
    for joint, fixed in ((0.29, 0.6), (0.6, 0.29), (0.2, 0.2)):
        found = _judge("C5", _labels(joint, fixed))
        assert found.verdict == "held", (joint, fixed)
    assert _judge("C5", _labels(0.6, 0.6)).verdict == "not held"
    # The better of the two is not told from the margin, and more repeats would tell.
    found = _judge("C5", _labels(0.6, 0.2999))
    assert found.verdict == "not decided"
    assert "would decide it" in _part(found, "banana", "comparable").remedy


def test_c5_ringnorm_has_to_be_won() -> None:
    assert _judge("C5", _labels(0.29, 0.6, ringnorm=0.293)).verdict == "not held"
    found = _judge("C5", _labels(0.29, 0.6, ringnorm=0.2895))
    assert found.verdict == "no difference"
    assert _part(found, "ringnorm", "comparable").verdict == "held"


def test_c5_error_of_the_variant_that_is_comparable() -> None:
    def with_errors(joint: float, fixed: float, better: str = "log-joint") -> Verdict:
        records = [r for r in _labels(0.2, 0.6) if r.cell.dataset != "banana"]
        banana = many({"elbo": 0.3, "beta-elbo": 0.29}, ("banana",))
        for method, error in (("log-joint", joint), ("log-fixed", fixed)):
            nll = 0.2 if method == better else 0.6
            banana += many({method: nll}, ("banana",), others={"error": error})
        return _judge("C5", records, banana).verdict

    # All others err on a share of 0.1.
    assert with_errors(joint=0.1, fixed=0.4) == "held"
    assert with_errors(joint=0.4, fixed=0.1) == "not held"
    assert with_errors(joint=0.109, fixed=0.1) == "not decided"
    assert with_errors(joint=0.4, fixed=0.1, better="log-fixed") == "held"
    assert with_errors(joint=0.1, fixed=0.4, better="log-fixed") == "not held"


def test_c5_not_run() -> None:
    found = _judge("C5", [r for r in _labels(0.2, 0.6) if r.cell.dataset != "thyroid"])
    assert found.verdict == "not decided" and "Not run: thyroid." in found.sentence


def _counts(levels: dict[str, dict[str, float]], **settings: dict[str, float]) -> list[PaperRecord]:
    rivals = {"elbo": 2.3, "beta-elbo": 2.29}
    return [
        each
        for dataset, own in levels.items()
        for each in many({**rivals, **own}, (dataset,), **settings)
    ]


WON, LOST = {"log-joint": 2.1, "log-fixed": 2.5}, {"log-joint": 2.5, "log-fixed": 2.5}
EQUAL = {"log-joint": 2.5, "log-fixed": 2.29}


def test_c6_joint_on_all_but_one_and_fixed_there() -> None:
    four = {"abalone": WON, "peds1_dir0": WON, "peds1_dir1": WON, "peds1_dir2": EQUAL}
    found = _judge("C6", _counts(four))
    assert found.verdict == "held" and "direction" not in found.sentence
    assert "log-loss DLM (joint) below both in NLL on 3 of 4" in found.sentence
    assert _judge("C6", _counts({**four, "peds1_dir1": EQUAL})).verdict == "not held"
    assert _judge("C6", _counts({**four, "peds1_dir2": LOST})).verdict == "not held"


def test_c6_joint_that_is_the_same_on_all_sets() -> None:
    same = {"log-joint": 2.29, "log-fixed": 2.29}
    found = _judge("C6", _counts({"abalone": same, "peds1": EQUAL}))
    assert found.verdict == "no difference"
    assert _part(found, "all count sets").effect == 1.0


def test_c6_with_one_direction() -> None:
    found = _judge("C6", _counts({"abalone": WON, "peds1": EQUAL}))
    assert found.verdict == "held"
    assert "Two directions of Peds1 are missing." in found.sentence
    assert "peds1: log-loss DLM (fixed)" in found.sentence
    assert "In MRE 4 of 4 hold, the closest on " in found.sentence


def test_c6_relative_error_is_kept() -> None:
    good = _counts({"peds1": WON})
    worse = [
        fit(cell, {**outcome.scores, "mre": 0.25 if cell.method == "log-joint" else 0.2})
        for cell, outcome in map(fit_of, _counts({"abalone": WON}))
    ]
    found = _judge("C6", good, worse)
    assert found.verdict == "not held"
    contradicted = [part for part in found.parts if part.verdict == "not held" and part.decides]
    assert {part.unit for part in contradicted} == {"MRE"}
    assert contradicted[0].effect == pytest.approx(0.05)


def test_c6_not_run() -> None:
    found = _judge("C6", _counts({"abalone": WON}))
    assert found.verdict == "not decided" and "Not run: peds1." in found.sentence
    assert _judge("C6").sentence.startswith("Not run: abalone and peds1.")


def test_c6_takes_the_papers_rule_where_there_are_two() -> None:
    sampled = _counts({"abalone": WON, "peds1": WON})
    exact = many({"log-joint": 2.9, "log-fixed": 2.9}, ("abalone", "peds1"), rule=EXACT)
    assert _judge("C6", exact, sampled).verdict == "held"
    rivals = [r for r in sampled if "elbo" in fit_of(r)[0].method]
    assert _judge("C6", exact, rivals).verdict == "not held"
