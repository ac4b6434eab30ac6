"""C7: DLM against the ELBO on airline, along the epochs."""

import math
from dataclasses import replace

from directgp.datasets.wording import several
from directgp.experiments.paper.cells import CurveCell, PaperCell
from directgp.experiments.paper.claims.base import Claim, Finding, Part, Verdict
from directgp.experiments.paper.claims.contests import Compared, Contest, absent, lower
from directgp.experiments.paper.claims.curves import AIRLINE, Duel, duels
from directgp.experiments.paper.claims.evidence import Evidence
from directgp.experiments.paper.claims.findings import finding
from directgp.experiments.paper.claims.fits import absence
from directgp.experiments.paper.claims.thresholds import FIRST_EPOCH
from directgp.experiments.paper.claims.wording import amount, in_brackets, p_text
from directgp.experiments.paper.results import Results
from directgp.experiments.paper.rules import EXACT
from directgp.experiments.standings import SIGNIFICANT

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
    seen = f"lower at {sum(e.effect < 0 for _, e in looks)} of {several(len(looks), 'look')}"
    least = f"least so after epoch {at:.3g} ({amount(worst.effect, worst.error)})"
    note = f"after epoch {epoch:.3g}; {seen}, {least}"
    part = lower(replace(contest, evidence=last, note=note), decides).part
    verdict = _verdict(looks)
    doubt = "undecided" if verdict == "not decided" else ""
    clause = (
        f"{contest.one} with {contest.setting} ends {_apart(part)} {contest.other} in NLL"
        f"{in_brackets(p_text(part.p_value), seen, doubt)}"
    )
    return Compared(contest.place, replace(part, verdict=verdict), clause, worst.effect)


def _apart(part: Part) -> str:
    side = "below" if part.effect < 0 else "above"
    far = math.isinf(part.effect)
    return f"{'infinitely far' if far else amount(abs(part.effect), part.error)} {side}"


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
