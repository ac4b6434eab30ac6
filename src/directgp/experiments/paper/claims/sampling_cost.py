"""C14: what a gradient by product sampling costs, against bMC."""

from directgp.experiments.paper.claims.base import Claim, Finding
from directgp.experiments.paper.claims.findings import finding_of_all
from directgp.experiments.paper.claims.looks import SETS, Asked, at_every_look, uses_samplers
from directgp.experiments.paper.claims.thresholds import FIRST_STEPS, SLOWER
from directgp.experiments.paper.results import Results, SamplerLook


def _merit(look: SamplerLook) -> float:
    """Time at equal error, ours over bMC's: errors fall as 1/samples, times grow as samples.

    That is generous to bMC, whose bias does not fall so.
    """
    ours = look.our_ups_seconds * look.our_ups_error
    return ours / (look.bmc_seconds * look.bmc_error)


def _papers_merit(look: SamplerLook) -> float:
    """The same of the paper's uPS."""
    papers = look.paper_ups_seconds * look.paper_ups_error
    return papers / (look.bmc_seconds * look.bmc_error)


_PAPERS = Asked(
    question=f"the paper's uPS costs at least {SLOWER:g} times the time of bMC",
    unit=f"times the time of bMC short of {SLOWER:g}",
    told="the paper's uPS takes {} times as long as bMC with as many samples",
    ratio=lambda look: look.paper_ups_seconds / look.bmc_seconds,
    beyond=lambda times: SLOWER - times,
)

_OURS = Asked(
    question="at equal squared error our uPS costs less time than bMC",
    unit="times the time of bMC beyond 1",
    told="ours takes {} times as long as bMC for the same squared error",
    ratio=_merit,
    beyond=lambda times: times - 1,
)


_BETTER = Asked(
    question="at equal squared error the paper's uPS costs more time than bMC",
    unit="times the time of bMC short of 1",
    told="the paper's uPS takes {} times as long as bMC for the same squared error",
    ratio=_papers_merit,
    beyond=lambda times: 1 - times,
)


def _judge(results: Results) -> Finding:
    return finding_of_all(
        [
            *(at_every_look(results, name, _PAPERS) for name in SETS),
            *(at_every_look(results, name, _OURS) for name in SETS),
            *(at_every_look(results, name, _BETTER, decides=False) for name in SETS),
        ]
    )


C14 = Claim(
    id="C14",
    statement="The paper: uPS is significantly slower than bMC, which is the better trade-off in "
    "practice. Ours: with our sampler and control variates this is overturned.",
    where="fig. 1, text; appendix",
    criterion=f"On abalone and banana, at every look after {FIRST_STEPS} steps or more: a gradient "
    f"by the paper's uPS must take at least {SLOWER:g} times as long as by bMC with as many "
    "samples; and (ours) time × squared error of a gradient must be lower by our uPS than by bMC. "
    "Every look to the contrary contradicts the claim; looks that disagree decide nothing. Time × "
    "squared error of the paper's uPS is told beside.",
    figures=("S1",),
    uses=uses_samplers,
    judge=_judge,
)
