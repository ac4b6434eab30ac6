"""C8: the bias of sampled gradients on abalone, right after initialisation."""

import math

import numpy as np

from directgp.experiments.paper.cells import GradientCell, PaperCell
from directgp.experiments.paper.claims.base import Claim, Finding, Verdict
from directgp.experiments.paper.claims.contests import Compared, Contest, lower
from directgp.experiments.paper.claims.evidence import differences, measured
from directgp.experiments.paper.claims.findings import finding
from directgp.experiments.paper.claims.fits import absence
from directgp.experiments.paper.claims.rule_contests import rule
from directgp.experiments.paper.claims.variants import summary
from directgp.experiments.paper.claims.verdicts import all_of
from directgp.experiments.paper.results import GradientOutcome, GradientRow, Results
from directgp.experiments.paper.rules import RuleFacts

_SET = "abalone"
_BLOCKS = ("u_mean", "u_chol")
_BIAS, _ERROR = "squared bias over ‖g*‖²", "squared error over ‖g*‖²"
_STATISTICS = {_BIAS: "squared_bias", _ERROR: "squared_error"}


def _judge(results: Results) -> Finding:
    rows = [row for outcome in _outcomes(results) for row in outcome.rows]
    samples = sorted({row.rule.samples for row in rows if row.rule.name == "ups"}) or [1]
    why = absence(results, _uses)
    compared = [each for block in _BLOCKS for each in _bias(rows, block, samples, why)]
    plotted = [_contest(rows, b, "ups", "bmc", n, _ERROR, why) for b in _BLOCKS for n in samples]
    lumped = [lower(each, decides=False) for each in plotted]
    told = lumped[0].clause.replace(f" in {_ERROR}", "", 1)
    closing = f"In the squared error of one draw, which the paper plots: {told}."
    return finding([*compared, *lumped], closing if lumped[0].was_run else "")


def _bias(rows: list[GradientRow], block: str, samples: list[int], why: str) -> list[Compared]:
    """The block of the paper's figure decides; ours, and the other block, are told beside."""
    decides = block == _BLOCKS[0]

    def below(one: str, other: str, decides: bool) -> list[Compared]:
        contests = [_contest(rows, block, one, other, n, _BIAS, why) for n in samples]
        return [lower(each, decides) for each in contests]

    above_ups, below_bmc = below("ups", "smooth-bmc", False), below("smooth-bmc", "bmc", False)
    return [
        *below("ups", "bmc", decides),
        *([_between(above_ups, below_bmc)] if decides else []),
        *above_ups,
        *below_bmc,
        *below("ups-mixed", "bmc", False),
    ]


def _between(above_ups: list[Compared], below_bmc: list[Compared]) -> Compared:
    """Whether smooth-bMC is between the two for some number of samples, and beyond for none."""
    pairs = list(zip(above_ups, below_bmc, strict=True))
    verdicts = [all_of(each.part.verdict for each in pair) for pair in pairs]
    told: Verdict = "held" if "held" in verdicts else "not decided"
    verdict: Verdict = "not held" if "not held" in verdicts else told
    of = [each for pair, v in zip(pairs, verdicts, strict=True) if v == verdict for each in pair]
    question = "the squared bias of smooth-bMC is between those of uPS and bMC"
    return summary(_SET, question, verdict, of)


def _contest(
    rows: list[GradientRow], block: str, one: str, other: str, samples: int, unit: str, why: str
) -> Contest:
    rules = rule(one, samples), rule(other, samples)
    labels = rules[0].label, rules[1].label
    first, second = (_mean(rows, block, each, unit) for each in rules)
    setting = f"gradient in {block}"
    if first is None or second is None:
        return Contest(_SET, setting, *labels, unit, None, why)
    effect = differences(np.array([first[0]]), np.array([second[0]]))
    evidence = measured(float(effect[0]), math.hypot(first[1], second[1]))
    return Contest(_SET, setting, *labels, unit, evidence, "")


def _mean(
    rows: list[GradientRow], block: str, of: RuleFacts, unit: str
) -> tuple[float, float] | None:
    """Over the repeats, and its standard error; None where there is none."""
    found = [
        getattr(row, _STATISTICS[unit]) for row in rows if (row.rule, row.block) == (of, block)
    ]
    if not found:
        return None
    error = math.hypot(*(each.error for each in found)) / len(found)
    return float(np.mean([each.value for each in found])), error


def _outcomes(results: Results) -> list[GradientOutcome]:
    """Of the largest study, all repeats."""
    studies: dict[tuple[int, str], list[GradientOutcome]] = {}
    for cell, outcome, _ in results.gradients():
        if _uses(cell):
            setting = cell.model_dump_json(exclude={"repeat", "seed"})
            studies.setdefault((cell.size * cell.draws, setting), []).append(outcome)
    return studies[max(studies)] if studies else []


def _uses(cell: PaperCell) -> bool:
    return isinstance(cell, GradientCell) and cell.dataset == _SET


C8 = Claim(
    id="C8",
    statement="The gradient of uPS has a lower bias than that of bMC, and smooth-bMC lies between "
    "(abalone, right after initialisation).",
    where="fig. 1g and 1h, text and appendix",
    criterion="For the gradient in the mean of q(u), and each number of samples, the squared bias "
    "(its Monte Carlo floor removed, the exact gradient as truth) of uPS must be below that of bMC "
    "with p < 0.05 by the standard error of their difference; that of smooth-bMC must be above "
    "uPS's and below bMC's, both with p < 0.05, for at least one number of samples, and beyond "
    "neither for any. The opposite with p < 0.05 contradicts the claim. The gradient in the "
    "Cholesky factor, our uPS, and the squared error of one draw, which the paper plots as bias "
    "and in which uPS need not be lower, are told beside.",
    figures=("1g", "1h", "9"),
    uses=_uses,
    judge=_judge,
)
