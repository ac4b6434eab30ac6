"""C1 to C3: which objective predicts best in regression."""

from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.claims.contests import Compared, lower
from directgp.experiments.paper.claims.findings import finding
from directgp.experiments.paper.claims.fits import contest, uses_fits
from directgp.experiments.paper.results import Results

SETS = ("pol", "cadata", "sarcos", "song")

_VARIATIONAL = ("elbo", "beta-elbo", "fitc")
_LOG = ("log-joint", "log-fixed")
_SQUARE = ("square-joint", "square-fixed")

_PAIRED = (
    "On every data set, at the largest training size that both have, the mean difference over the "
    "repeats must be negative with p < 0.05 in a paired t-test (variance corrected for splits "
    "that share rows); a positive one with p < 0.05 contradicts the claim, anything else decides "
    "nothing."
)


def _best(
    results: Results, variants: tuple[str, str], rivals: tuple[str, ...], score: str
) -> Finding:
    return finding(
        [
            each
            for dataset in SETS
            for variant in variants
            for each in _against(results, dataset, variant, rivals, score)
        ]
    )


def _against(
    results: Results, dataset: str, variant: str, rivals: tuple[str, ...], score: str
) -> list[Compared]:
    """The variant that the paper has in front on the data set decides; the other is told."""
    decides = variant.endswith("-fixed") == (dataset == "cadata")
    return [lower(contest(results, dataset, variant, rival, score), decides) for rival in rivals]


def _beta_helps(results: Results) -> Finding:
    return finding([lower(contest(results, name, "beta-elbo", "elbo", "nll")) for name in SETS])


C1 = Claim(
    id="C1",
    statement="In regression, log-loss DLM has a lower test NLL than the ELBO, the β-ELBO and "
    "FITC: joint on pol, sarcos and song, fixed on cadata.",
    where="fig. 1a, text and appendix",
    criterion=f"{_PAIRED} The other variant of DLM is told beside.",
    figures=("1a", "2"),
    uses=uses_fits(SETS, (*_LOG, *_VARIATIONAL)),
    judge=lambda results: _best(results, _LOG, _VARIATIONAL, "nll"),
)

C2 = Claim(
    id="C2",
    statement="Square-loss DLM has a lower test MSE than all others, log-loss DLM included: joint "
    "on pol, sarcos and song, fixed on cadata.",
    where="fig. 1b, text and appendix",
    criterion=f"{_PAIRED} The other variant of DLM is told beside.",
    figures=("1b", "3"),
    uses=uses_fits(SETS, (*_SQUARE, *_VARIATIONAL, *_LOG)),
    judge=lambda results: _best(results, _SQUARE, (*_VARIATIONAL, *_LOG), "mse"),
)

C3 = Claim(
    id="C3",
    statement="The β-ELBO has a lower test NLL than the ELBO in regression.",
    where="fig. 1a, text",
    criterion=_PAIRED,
    figures=("1a", "2"),
    uses=uses_fits(SETS, ("elbo", "beta-elbo")),
    judge=_beta_helps,
)
