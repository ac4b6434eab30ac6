"""C5: DLM in classification."""

from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.claims.contests import Compared, lower, not_above
from directgp.experiments.paper.claims.findings import finding
from directgp.experiments.paper.claims.fits import contest, uses_fits
from directgp.experiments.paper.claims.thresholds import ERROR_MARGIN, NLL_MARGIN
from directgp.experiments.paper.claims.variants import (
    RIVALS,
    VARIANTS,
    better,
    not_sacrificed,
    summary,
    verdict_of,
)
from directgp.experiments.paper.claims.verdicts import any_of
from directgp.experiments.paper.results import Results

SETS = ("banana", "thyroid", "twonorm", "ringnorm")

_WON = "ringnorm"
"""Where the paper has DLM in front."""


def _judge(results: Results) -> Finding:
    return finding([each for dataset in SETS for each in _on(results, dataset)])


def _on(results: Results, dataset: str) -> list[Compared]:
    nll = {variant: _comparable(results, dataset, variant) for variant in VARIANTS}
    verdicts = {variant: verdict_of(nll[variant]) for variant in VARIANTS}
    held = [variant for variant in VARIANTS if verdicts[variant] == "held"]
    variant = held[0] if len(held) == 1 else better(results, dataset)
    question = "a variant of log-loss DLM has an NLL comparable to the ELBO's and the β-ELBO's"
    return [
        summary(dataset, question, any_of(verdicts.values()), nll[variant]),
        *(_won(results) if dataset == _WON else []),
        *not_sacrificed(results, dataset, variant, "error", ERROR_MARGIN),
        *(each for variant in VARIANTS for each in nll[variant]),
    ]


def _comparable(results: Results, dataset: str, variant: str) -> list[Compared]:
    return [
        not_above(contest(results, dataset, variant, rival, "nll"), NLL_MARGIN, decides=False)
        for rival in RIVALS
    ]


def _won(results: Results) -> list[Compared]:
    variant = better(results, _WON)
    return [lower(contest(results, _WON, variant, rival, "nll")) for rival in RIVALS]


C5 = Claim(
    id="C5",
    statement="In classification, log-loss DLM is comparable to or better than the ELBO and the "
    "β-ELBO in NLL (better on ringnorm), without sacrificing classification error.",
    where="fig. 1d, text and appendix",
    criterion="On banana, thyroid, twonorm and ringnorm, at the largest training size, the 95 % "
    "interval of the mean difference in NLL must end below "
    f"{NLL_MARGIN:g} against both the ELBO and the β-ELBO, for at least one variant of DLM, and "
    f"that of its error rate below {ERROR_MARGIN:g}; on ringnorm the better variant must be lower "
    "than both with p < 0.05. Intervals wholly above the margin, or higher with p < 0.05, "
    "contradict the claim.",
    figures=("1d", "4", "5"),
    uses=uses_fits(SETS, (*VARIANTS, *RIVALS)),
    judge=_judge,
)
