"""C9 and C10: how many samples a rule needs to do what exact gradients do."""

from directgp.experiments.paper.claims.airline import BETAS
from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.claims.contests import Compared, equal, lower
from directgp.experiments.paper.claims.curves import AIRLINE
from directgp.experiments.paper.claims.findings import finding
from directgp.experiments.paper.claims.regression import SETS
from directgp.experiments.paper.claims.rule_contests import (
    is_joint,
    rule,
    rule_contest,
    uses_curves,
)
from directgp.experiments.paper.claims.thresholds import AIRLINE_MARGIN, RECOVERY_MARGIN
from directgp.experiments.paper.results import Results
from directgp.experiments.paper.rules import EXACT, RuleFacts

_BETA = 0.1
"""Of fig. 1i, and of the curves in regression."""

_BMC = {samples: rule("bmc", samples) for samples in (1, 10, 100)}
_UPS = {samples: rule("ups", samples) for samples in (1, 10)}
_OURS = rule("ups-mixed", 1)


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
        *recovers(_UPS[10], _BMC[100], decides=main),
        beats(_UPS[1], decides=main),
        *recovers(_UPS[1], _BMC[10], _BMC[1], _OURS, decides=False),
        beats(_OURS, decides=False),
    ]


def _judge_regression(results: Results) -> Finding:
    return finding([each for dataset in SETS for each in _on_regression(results, dataset)])


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
        (EXACT, *_BMC.values(), *_UPS.values(), _OURS),
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
    uses=uses_curves(lambda cell: is_joint(cell, SETS, _BETA), (EXACT, *_BMC.values())),
    judge=_judge_regression,
)
