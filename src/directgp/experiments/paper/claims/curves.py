"""Judge the claims about learning curves: C7 and C9 to C12."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from directgp.experiments.paper.cells import (
    EXACT,
    CurveCell,
    CurveOutcome,
    PaperCell,
    Results,
    RuleFacts,
)
from directgp.experiments.paper.claims.base import (
    AIRLINE_MARGIN,
    FIRST_EPOCH,
    NLL_MARGIN,
    RECOVERY_MARGIN,
    Claim,
    Compared,
    Contest,
    Evidence,
    Finding,
    Part,
    Verdict,
    absent,
    differences,
    equal,
    finding,
    in_brackets,
    lower,
    measured,
    over_repeats,
    over_rows,
)
from directgp.experiments.paper.claims.fits import COUNT_SETS, REGRESSION_SETS, absence, count_sets
from directgp.experiments.stats import SIGNIFICANT
from directgp.text import p_value, plural, with_error

AIRLINE = "airline"

Chosen = Callable[[CurveCell], bool]


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """One learning curve."""

    cell: CurveCell
    outcome: CurveOutcome
    losses: NDArray[np.float32]

    @property
    def places(self) -> dict[int, int]:
        """Of its looks, by their steps; the later of two at the same step."""
        return {point.step: place for place, point in enumerate(self.outcome.points)}

    def is_told(self, step: int) -> bool:
        """Whether it was looked at then, or had ended before."""
        return step in self.places or step > max(self.places)

    def rows_at(self, step: int) -> NDArray[np.float64]:
        """NLL of the test rows; a curve that has ended before is infinitely bad."""
        if step not in self.places:
            return np.full(self.losses.shape[1], np.inf)
        return np.asarray(self.losses[self.places[step]], dtype=np.float64)

    def nll_at(self, step: int) -> float:
        """Mean over the test rows, likewise."""
        if step not in self.places:
            return math.inf
        return self.outcome.points[self.places[step]].scores["nll"]


@final
@dataclass(frozen=True, eq=False)
class Duel:
    """Pairs of curves, one a repeat."""

    pairs: tuple[tuple[Curve, Curve], ...]

    @property
    def cell(self) -> CurveCell:
        """One of them, for what all share."""
        return self.pairs[0][0].cell

    @property
    def looks(self) -> list[tuple[int, float]]:
        """Steps and epochs at which all were looked at that had not ended."""
        curves = [curve for pair in self.pairs for curve in pair]
        points = {point.step: point.epoch for curve in curves for point in curve.outcome.points}
        return sorted((s, e) for s, e in points.items() if all(c.is_told(s) for c in curves))

    def rows_at(self, step: int) -> Evidence:
        """Paired over the test rows, averaged over the repeats.

        Where only some rows have their losses kept, their scatter gives the error, and the scores
        of all rows the mean.
        """
        kept = [differences(a.rows_at(step), b.rows_at(step)) for a, b in self.pairs]
        found, all_rows = over_rows(kept), sum(one.outcome.num_test for one, _ in self.pairs)
        mean = float(np.mean([a.nll_at(step) - b.nll_at(step) for a, b in self.pairs]))
        number = sum(map(len, kept))
        if number >= all_rows or not math.isfinite(found.effect):
            return found
        over = f"{plural(all_rows, 'test row')}, their scatter by {number:,} of them"
        return replace(measured(mean, found.error * math.sqrt(number / all_rows)), over=over)

    def repeats_at(self, step: int) -> Evidence:
        """Paired over the repeats."""
        ones = np.array([one.nll_at(step) for one, _ in self.pairs])
        others = np.array([other.nll_at(step) for _, other in self.pairs])
        outcome = self.pairs[0][0].outcome
        ratio = outcome.num_test / (outcome.num_training or self.cell.size)
        return over_repeats(differences(ones, others), ratio)

    @property
    def setting(self) -> str:
        """In words."""
        cell, (last, _) = self.cell, self.looks[-1]
        how = f"β = {cell.beta:g}, learning rate {cell.learning_rate:g}"
        return f"{plural(cell.size, 'row')}, {how}, {plural(last, 'step')}"

    def at_the_end(self) -> Evidence:
        """At the last look, over the repeats.

        Over the test rows where there is one repeat, and on airline, which has so many of them.
        """
        last = self.looks[-1][0]
        by_rows = len(self.pairs) == 1 or self.cell.dataset == AIRLINE
        return self.rows_at(last) if by_rows else self.repeats_at(last)


def duels(results: Results, one: Chosen, other: Chosen, differ: set[str]) -> list[Duel]:
    """All settings in which there are both, the largest first; they may differ in these fields."""
    free = differ | {"repeat", "seed"}
    ones, others = _by_setting(results, one, free), _by_setting(results, other, free)
    found = [_duel(ones[setting], others[setting]) for setting in ones if setting in others]
    return sorted((duel for duel in found if duel.pairs), key=_rank, reverse=True)


def _by_setting(
    results: Results, chosen: Chosen, free: set[str]
) -> dict[str, dict[tuple[int, int], Curve]]:
    settings: dict[str, dict[tuple[int, int], Curve]] = {}
    for cell, outcome, losses in results.curves():
        if chosen(cell) and outcome.points:
            setting = cell.model_dump_json(exclude=free)
            curve = Curve(cell, outcome, losses)
            settings.setdefault(setting, {})[cell.repeat, cell.seed] = curve
    return settings


def _duel(ones: dict[tuple[int, int], Curve], others: dict[tuple[int, int], Curve]) -> Duel:
    return Duel(
        tuple((ones[split], others[split]) for split in sorted(ones.keys() & others.keys()))
    )


def _rank(duel: Duel) -> tuple[int, int, int, str]:
    return duel.cell.size, len(duel.pairs), duel.cell.steps, duel.cell.model_dump_json()


def rule(name: str, samples: int = 0) -> RuleFacts:
    """A rule by its name."""
    return RuleFacts.model_validate({"name": name, "samples": samples})


def is_joint(cell: CurveCell, datasets: Collection[str], beta: float | None = None) -> bool:
    """Whether a curve is of joint log-loss DLM on these data sets; of one β, if given."""
    joint = (cell.objective, cell.hyperparameters) == ("log_loss", "joint")
    return joint and cell.dataset in datasets and beta in (None, cell.beta)


def rule_duels(results: Results, of: Chosen, one: RuleFacts, other: RuleFacts) -> list[Duel]:
    """Curves that differ in nothing but the rule."""
    return duels(
        results,
        lambda cell: of(cell) and cell.rule == one,
        lambda cell: of(cell) and cell.rule == other,
        {"rule"},
    )


def rule_contest(
    results: Results, dataset: str, beta: float | None, one: RuleFacts, other: RuleFacts
) -> Contest:
    """At the end of the largest curves that there are."""
    found = rule_duels(results, lambda cell: is_joint(cell, (dataset,), beta), one, other)
    return as_contest(results, dataset, found[0] if found else None, one, other, beta)


def as_contest(
    results: Results,
    dataset: str,
    duel: Duel | None,
    one: RuleFacts,
    other: RuleFacts,
    beta: float | None = None,
) -> Contest:
    """Of a duel, if there is one."""
    if duel is None:
        wanted = uses_curves(lambda cell: is_joint(cell, (dataset,), beta), (one, other))
        why = absence(results, wanted)
        setting = "" if beta is None else f"β = {beta:g}"
        return Contest(dataset, setting, one.label, other.label, "NLL", None, why)
    evidence = duel.at_the_end()
    return Contest(dataset, duel.setting, one.label, other.label, "NLL", evidence, "")


def uses_curves(of: Chosen, rules: Iterable[RuleFacts]) -> Callable[[PaperCell], bool]:
    """Whether a cell is a curve of these, by one of these rules."""
    wanted = frozenset(rules)
    return lambda cell: isinstance(cell, CurveCell) and of(cell) and cell.rule in wanted


BETAS = (0.1, 1.0, 10.0)
_VARIANTS = ("joint", "fixed")

_Look = tuple[float, Evidence]
"""An epoch and what was seen at its end."""


def _judge(results: Results) -> Finding:
    same = [_along(results, v, beta, beta, True) for beta in BETAS for v in _VARIANTS]
    plain = [_along(results, v, beta, 1.0, False) for beta in (0.1, 10.0) for v in _VARIANTS]
    return finding([*same, *plain])


def _along(
    results: Results, variant: str, beta: float, elbo_beta: float, decides: bool
) -> Compared:
    """DLM of one β against the ELBO of one β, at every look after the first epoch."""
    one, other = f"log-loss DLM ({variant})", f"the ELBO of β = {elbo_beta:g}"
    found = duels(
        results,
        lambda cell: _is_dlm(cell, variant, beta),
        lambda cell: _is_elbo(cell, elbo_beta),
        {"objective", "hyperparameters", "beta"},
    )
    looks = _looks(found[0]) if found else []
    why = "no look after the first epoch" if found else absence(results, _uses)
    contest = Contest(AIRLINE, f"β = {beta:g}", one, other, "NLL", None, why)
    return _judged(contest, looks, decides) if looks else absent(contest, decides)


def _looks(duel: Duel) -> list[_Look]:
    return [(epoch, duel.rows_at(step)) for step, epoch in duel.looks if epoch >= FIRST_EPOCH]


def _judged(contest: Contest, looks: list[_Look], decides: bool) -> Compared:
    """With the figures of the last look, and the verdict of all."""
    epoch, last = looks[-1]
    at, worst = max(looks, key=lambda look: look[1].effect)
    seen = f"lower at {sum(e.effect < 0 for _, e in looks)} of {plural(len(looks), 'look')}"
    least = f"least so after epoch {at:.3g} ({with_error(worst.effect, worst.error)})"
    note = f"after epoch {epoch:.3g}; {seen}, {least}"
    part = lower(replace(contest, evidence=last, note=note), decides).part
    verdict = _verdict(looks)
    doubt = "undecided" if verdict == "not decided" else ""
    clause = (
        f"{contest.one} with {contest.setting} ends {_apart(part)} {contest.other} in NLL"
        f"{in_brackets(p_value(part.p_value), seen, doubt)}"
    )
    return Compared(contest.place, replace(part, verdict=verdict), clause, worst.effect)


def _apart(part: Part) -> str:
    side = "below" if part.effect < 0 else "above"
    far = math.isinf(part.effect)
    return f"{'infinitely far' if far else with_error(abs(part.effect), part.error)} {side}"


def _verdict(looks: list[_Look]) -> Verdict:
    """Bonferroni over the looks for what contradicts; the last look has to be sure."""
    number, last = len(looks), looks[-1][1]
    if any(e.effect > 0 and e.p_value < SIGNIFICANT / number for _, e in looks):
        return "not held"
    always = all(e.effect < 0 for _, e in looks)
    return "held" if always and last.p_value < SIGNIFICANT else "not decided"


def _is_dlm(cell: CurveCell, variant: str, beta: float) -> bool:
    dlm = (cell.objective, cell.hyperparameters) == ("log_loss", variant)
    return cell.dataset == AIRLINE and dlm and cell.rule == EXACT and cell.beta == beta


def _is_elbo(cell: CurveCell, beta: float) -> bool:
    return cell.dataset == AIRLINE and cell.objective == "elbo" and cell.beta == beta


def _uses(cell: PaperCell) -> bool:
    return isinstance(cell, CurveCell) and any(
        _is_elbo(cell, beta) or any(_is_dlm(cell, variant, beta) for variant in _VARIANTS)
        for beta in BETAS
    )


C7 = Claim(
    id="C7",
    statement="On airline both variants of log-loss DLM are better in NLL than the ELBO of the "
    "same β, for every β of 0.1, 1 and 10 and at every epoch.",
    where="fig. 1f, text and appendix",
    criterion="With exact gradients, paired over the test rows (averaged over the repeats): "
    "for each β and both variants the NLL must be lower at every look from the end of the first "
    "epoch on, with p < 0.05 at the last. Higher at any look with p < 0.05 divided by the number "
    "of looks contradicts the claim. Against the ELBO of β = 1 it is told beside.",
    figures=("1f", "8"),
    uses=_uses,
    judge=_judge,
)


_BETA = 0.1
"""Of fig. 1i, and of the curves in regression."""

_BMC = {samples: rule("bmc", samples) for samples in (1, 10, 100)}
_RECOVERY_UPS = {samples: rule("ups", samples) for samples in (1, 10)}
_RECOVERY_OURS = rule("ups-mixed", 1)


def _judge_airline(results: Results) -> Finding:
    return finding([each for beta in BETAS for each in _on_airline(results, beta)])


def _on_airline(results: Results, beta: float) -> list[Compared]:
    """Ours, too few samples, and other β are told beside."""

    def recovers(*rules: RuleFacts, decides: bool) -> list[Compared]:
        contests = [rule_contest(results, AIRLINE, beta, each, EXACT) for each in rules]
        return [equal(each, AIRLINE_MARGIN, decides) for each in contests]

    def beats(one: RuleFacts, decides: bool) -> Compared:
        return lower(rule_contest(results, AIRLINE, beta, one, _BMC[10]), decides)

    main = beta == _BETA
    return [
        *recovers(_RECOVERY_UPS[10], _BMC[100], decides=main),
        beats(_RECOVERY_UPS[1], decides=main),
        *recovers(_RECOVERY_UPS[1], _BMC[10], _BMC[1], _RECOVERY_OURS, decides=False),
        beats(_RECOVERY_OURS, decides=False),
    ]


def _judge_regression(results: Results) -> Finding:
    return finding(
        [each for dataset in REGRESSION_SETS for each in _on_regression(results, dataset)]
    )


def _on_regression(results: Results, dataset: str) -> list[Compared]:
    enough = [_BMC[10], _BMC[100]]
    recovered = [rule_contest(results, dataset, _BETA, each, EXACT) for each in enough]
    better = [rule_contest(results, dataset, _BETA, each, _BMC[1]) for each in (EXACT, *enough)]
    return [*(equal(each, RECOVERY_MARGIN) for each in recovered), *map(lower, better)]


C9 = Claim(
    id="C9",
    statement="On airline, uPS with 10 samples and bMC with 100 recover the curve of exact "
    "gradients, and uPS with 1 sample is better than bMC with 10.",
    where="fig. 1i, text",
    criterion="With β = 0.1 and joint DLM, at the last look, paired over the test rows: the 95 % "
    "intervals of the differences of uPS-10 and of bMC-100 from exact must lie within "
    f"±{AIRLINE_MARGIN:g} nats, and uPS-1 must be lower than bMC-10 with p < 0.05. An interval "
    "wholly outside, or uPS-1 higher with p < 0.05, contradicts the claim. β = 1 and 10, fewer "
    "samples, and uPS with our control variates are told beside.",
    figures=("1i", "10", "11", "12"),
    uses=uses_curves(
        lambda cell: is_joint(cell, (AIRLINE,)) and cell.beta in BETAS,
        (EXACT, *_BMC.values(), *_RECOVERY_UPS.values(), _RECOVERY_OURS),
    ),
    judge=_judge_airline,
)

C10 = Claim(
    id="C10",
    statement="In regression, bMC with 10 samples or more recovers the results of exact gradients; "
    "bMC with 1 sample is the worst.",
    where="text and appendix",
    criterion="With β = 0.1 and joint DLM, at the last look, paired over the repeats (over "
    "the test rows if there is one), on each of the four data sets: the 95 % intervals of the "
    f"differences of bMC-10 and of bMC-100 from exact must lie within ±{RECOVERY_MARGIN:g} nats, "
    "and exact, bMC-10 and bMC-100 must be lower than bMC-1 with p < 0.05. An interval wholly "
    "outside, or bMC-1 lower with p < 0.05, contradicts the claim.",
    figures=("16",),
    uses=uses_curves(lambda cell: is_joint(cell, REGRESSION_SETS, _BETA), (EXACT, *_BMC.values())),
    judge=_judge_regression,
)


_RATE = 0.01
"""Of Adam, at which the paper compares uPS with bMC."""

_AIRLINE_BETA = 0.1


@final
@dataclass(frozen=True)
class _Study:
    """A rule that is compared with bMC of as many samples."""

    name: str
    samples: tuple[int, ...]
    of: Chosen
    """The curves of the study."""

    decides: bool = True

    def uses(self, cell: PaperCell) -> bool:
        """Whether a cell belongs to it, on either side."""
        if not isinstance(cell, CurveCell) or not self.of(cell):
            return False
        return cell.rule.name in ("bmc", self.name) and cell.rule.samples in self.samples

    def numbers(self, results: Results, dataset: str) -> tuple[int, ...]:
        """Numbers of samples that the sweep has; all where it has none."""
        own = [cell for cell in _planned(results) if cell.dataset == dataset and self.uses(cell)]
        planned = {cell.rule.samples for cell in own if cell.rule.name == self.name}
        return tuple(n for n in self.samples if n in planned) or self.samples


_SMOOTH = _Study(
    "smooth-bmc",
    (1, 10, 100),
    lambda cell: is_joint(cell, COUNT_SETS) or is_joint(cell, (AIRLINE,), _AIRLINE_BETA),
)
_EQUAL_UPS = _Study(
    "ups",
    (1, 10),
    lambda cell: is_joint(cell, COUNT_SETS) and math.isclose(cell.learning_rate, _RATE),
)
_EQUAL_OURS = replace(_EQUAL_UPS, name="ups-mixed", decides=False)


def _judge_smooth(results: Results) -> Finding:
    smooth = [c for c in _planned(results) if _SMOOTH.uses(c) and c.rule.name == _SMOOTH.name]
    airline = [AIRLINE] if any(cell.dataset == AIRLINE for cell in smooth) else []
    return _found(results, [*_count_sets(results), *airline], _SMOOTH)


def _judge_ups(results: Results) -> Finding:
    return _found(results, _count_sets(results), _EQUAL_UPS, _EQUAL_OURS)


def _found(results: Results, datasets: list[str], *studies: _Study) -> Finding:
    return finding(
        [
            each
            for study in studies
            for dataset in datasets
            for number in study.numbers(results, dataset)
            for each in _like_bmc(results, dataset, study, number)
        ]
    )


def _like_bmc(results: Results, dataset: str, study: _Study, number: int) -> list[Compared]:
    """For each learning rate and β that has both."""
    one, other = rule(study.name, number), rule("bmc", number)
    margin = AIRLINE_MARGIN if dataset == AIRLINE else NLL_MARGIN
    duels = rule_duels(results, lambda cell: cell.dataset == dataset and study.of(cell), one, other)
    contests = [as_contest(results, dataset, duel, one, other) for duel in _largest(duels)]
    nothing = as_contest(results, dataset, None, one, other)
    return [equal(each, margin, study.decides) for each in contests or [nothing]]


def _largest(duels: list[Duel]) -> list[Duel]:
    """The first, which is the largest, of each learning rate and β."""
    kept: dict[tuple[float, float], Duel] = {}
    for duel in duels:
        kept.setdefault((duel.cell.learning_rate, duel.cell.beta), duel)
    return list(kept.values())


def _planned(results: Results) -> list[CurveCell]:
    """All curves of the sweep, run or not."""
    run = [record.cell for record in results.records]
    every = [*run, *(failed.cell for failed in results.failed), *results.missing]
    return [cell for cell in every if isinstance(cell, CurveCell)]


def _count_sets(results: Results) -> list[str]:
    return count_sets({cell.dataset for cell in _planned(results)})


_ENDS = (
    "At the last look of the learning curves of joint DLM, with all settings equal but the rule, "
    "paired over the repeats (over the test rows if there is one, and on airline): the 95 % "
    "interval of the difference in NLL from bMC with as many samples must lie within "
)

C11 = Claim(
    id="C11",
    statement="Smooth-bMC ends at the same log loss as bMC with as many samples.",
    where="appendix",
    criterion=f"{_ENDS}±{NLL_MARGIN:g} nats on the count sets, and within ±{AIRLINE_MARGIN:g} on "
    "airline (β = 0.1) if it was run; an interval wholly outside contradicts the claim.",
    figures=("13", "15"),
    uses=_SMOOTH.uses,
    judge=_judge_smooth,
)

C12 = Claim(
    id="C12",
    statement="For counts there is no significant difference in log loss between uPS and bMC.",
    where="text and appendix",
    criterion=f"{_ENDS}±{NLL_MARGIN:g} nats for uPS with the score gradient, both trained with a "
    f"learning rate of {_RATE:g}; an interval wholly outside contradicts the claim. uPS with our "
    "control variates is told beside.",
    figures=("14",),
    uses=lambda cell: _EQUAL_UPS.uses(cell) or _EQUAL_OURS.uses(cell),
    judge=_judge_ups,
)
