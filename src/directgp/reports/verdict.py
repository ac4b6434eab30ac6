"""What a comparison says, in two sentences, and no more than it can say."""

import math
from dataclasses import dataclass
from typing import final

from directgp.experiments.methods import Method
from directgp.experiments.standings import Standing, best_of
from directgp.reports.advice import fit_command
from directgp.reports.cautions import cautions
from directgp.reports.findings import Findings
from directgp.reports.nll_sentence import nll_sentence
from directgp.reports.second_sentence import second_sentence


@final
@dataclass(frozen=True)
class Verdict:
    """What to use, and why."""

    sentences: tuple[str, ...]
    """Two of them; one where nothing can be compared."""

    method: Method | None
    """What to use; None where nothing was finished."""

    command: str
    """What trains it; empty where there is nothing to train."""

    cautions: tuple[str, ...]
    """What stands in the way of believing it."""


def verdict(findings: Findings) -> Verdict:
    """Read the standings at the largest size."""
    if not findings.standings:
        return Verdict((_nothing(findings),), None, "", cautions(findings))
    best = best_of(findings.standings, "nll")
    if not math.isfinite(best.scores["nll"].mean):
        sentence = "No method has a finite NLL: nothing here can be recommended."
        return Verdict((sentence,), None, "", cautions(findings))
    use = _recommended(findings, best)
    plan = findings.comparison.plan
    command = fit_command(plan.data, use.method, plan.settings)
    sentences = nll_sentence(findings, best), second_sentence(findings, use)
    return Verdict(sentences, use.method, command, cautions(findings))


def _nothing(findings: Findings) -> str:
    if not findings.comparison.runs:
        return "No fit was finished: there is nothing to compare."
    return "No repeat was finished by all methods: there is nothing to compare."


def _recommended(findings: Findings, best: Standing) -> Standing:
    """The best, unless a test was possible and could not tell the ELBO from it."""
    elbo = findings.elbo
    return elbo if elbo and elbo.scores["nll"].close else best
