"""The claims of the paper, each judged by results."""

from directgp_paper.experiments.claims.base import Claim
from directgp_paper.experiments.claims.curves import C7, C9, C10, C11, C12
from directgp_paper.experiments.claims.fits import C1, C2, C3, C4, C5, C6
from directgp_paper.experiments.claims.sampling import C8, C13, C14

__all__ = ["CLAIMS"]

CLAIMS: dict[str, Claim] = {
    claim.id: claim for claim in (C1, C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13, C14)
}
"""All claims in the order of their numbers."""
