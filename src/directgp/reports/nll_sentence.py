"""The first sentence of a verdict: who has the best NLL, and whether that is more than chance."""

import math

from directgp.datasets.wording import joined
from directgp.experiments.methods import ELBO
from directgp.experiments.standings import Standing
from directgp.reports.findings import Findings
from directgp.reports.numbers import p_value
from directgp.reports.wording import called, capitalised

_LARGEST = 9.0
"""Beyond this factor, e to the 9, numbers no longer help."""


def nll_sentence(findings: Findings, best: Standing) -> str:
    """About the best method, against the ELBO or, where that was not run, the next best."""
    elbo, others = findings.elbo, [each for each in findings.standings if each is not best]
    if not others:
        return _alone(findings, best)
    runner_up = min(others, key=lambda standing: standing.scores["nll"].mean)
    other = runner_up if elbo is None or elbo is best else elbo
    if findings.num_repeats == 1:
        return _untested(findings, best, other)
    if best is elbo:
        return _elbo_is_best(findings, best, other)
    if other.scores["nll"].close:
        return _cannot_tell(findings, best, other)
    return _told_apart(findings, best, other)


def _alone(findings: Findings, only: Standing) -> str:
    value = _nll(findings, only)
    return f"Only {called(only.method)} was run: its NLL is {value}, with nothing to compare it to."


def _untested(findings: Findings, best: Standing, other: Standing) -> str:
    whose = f"{_nll(findings, other)} of {called(other.method)}"
    return (
        f"{capitalised(called(best.method))} has the lowest NLL, {_nll(findings, best)} against "
        f"{whose}, in the one split that was run: no test is possible with one repeat, so run more "
        "(--repeats 5) before you rely on it."
    )


def _elbo_is_best(findings: Findings, elbo: Standing, other: Standing) -> str:
    close = other.scores["nll"].close
    why = ", it is the simplest" if close else ""
    told = "cannot be told from it" if close else "is worse by more than chance"
    return (
        f"Keep the ELBO{why}: its NLL of {_nll(findings, elbo)} is the lowest over "
        f"{findings.num_repeats} repeats, and the next, {_nll(findings, other)} of "
        f"{called(other.method)}, {told}{_test(other)}."
    )


def _cannot_tell(findings: Findings, best: Standing, other: Standing) -> str:
    elbo = other.method == ELBO
    advice = (
        "keep the ELBO, it is the simplest" if elbo else "take the one that is quicker to train"
    )
    return (
        f"Nothing here tells {called(best.method)}, which has the lowest NLL, from "
        f"{called(other.method)} ({_nll(findings, best)} against {_nll(findings, other)} over "
        f"{findings.num_repeats} repeats{_test(other, ', {}')}): {advice}."
    )


def _told_apart(findings: Findings, best: Standing, other: Standing) -> str:
    mine, theirs = best.scores["nll"].values, other.scores["nll"].values
    always = all(a < b for a, b in zip(mine, theirs, strict=True))
    where = f"{'in each of' if always else 'over'} {findings.num_repeats} repeats{_test(other)}"
    whose = f"the {_nll(findings, other)} of {called(other.method)}"
    return (
        f"{capitalised(called(best.method))} predicts best: its NLL of {_nll(findings, best)} is "
        f"below {whose} {where}{_meaning(best, other)}{_also(findings, best)}."
    )


def _meaning(best: Standing, other: Standing) -> str:
    """A difference of NLL is a factor of probability."""
    gap = other.scores["nll"].mean - best.scores["nll"].mean
    if not 0 < gap < _LARGEST:
        return ""
    return f", so that what came was {_factor(gap)} times as probable on (geometric) average"


def _factor(gap: float) -> str:
    """e to the gap, as it is read: 1.03, 1.6, 250."""
    factor = math.exp(gap)
    if factor >= 10:
        return f"{factor:,.0f}"
    return f"{factor:.2f}" if factor < 1.2 else f"{factor:.1f}"


def _also(findings: Findings, best: Standing) -> str:
    """Those that cannot be told from it."""
    names = [called(s.method) for s in findings.standings if s.scores["nll"].close and s != best]
    return f"; {joined(names)} cannot be told from it" if names else ""


def _nll(findings: Findings, standing: Standing) -> str:
    return findings.value(standing, "nll")


def _test(standing: Standing, form: str = " ({})") -> str:
    """The outcome of the paired test against the best, where there is one."""
    p = standing.scores["nll"].p_value
    return "" if math.isnan(p) else form.format(p_value(p))
