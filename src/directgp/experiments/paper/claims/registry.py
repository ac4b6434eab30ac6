"""All claims, in the order of their numbers."""

from directgp.experiments.paper.claims.airline import C7
from directgp.experiments.paper.claims.base import Claim
from directgp.experiments.paper.claims.chosen_beta import C4
from directgp.experiments.paper.claims.classification import C5
from directgp.experiments.paper.claims.counts import C6
from directgp.experiments.paper.claims.equal_rules import C11, C12
from directgp.experiments.paper.claims.gradient_bias import C8
from directgp.experiments.paper.claims.product_sampler import C13
from directgp.experiments.paper.claims.recovery import C9, C10
from directgp.experiments.paper.claims.regression import C1, C2, C3
from directgp.experiments.paper.claims.sampling_cost import C14

CLAIMS: dict[str, Claim] = {
    claim.id: claim for claim in (C1, C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13, C14)
}
