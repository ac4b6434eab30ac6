"""The rules that the paper compares, as plain facts."""

from typing import Literal, final

from directgp.experiments.cells import Frozen
from directgp.log_expectations.base import Rule
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_sampling import ProductSampling

SMOOTHING = 1e-4
"""ν of smooth-bMC, as in the authors' code; the paper gives none."""


@final
class RuleFacts(Frozen):
    """A rule by its name and its number of samples."""

    name: Literal["exact", "bmc", "smooth-bmc", "ups", "ups-mixed"] = "exact"
    """"ups" has the score gradient of the paper, "ups-mixed" ours of little variance."""

    samples: int = 0

    @property
    def label(self) -> str:
        """What pictures call it."""
        called = {"bmc": "bMC", "smooth-bmc": "smooth-bMC", "ups": "uPS", "ups-mixed": "uPS (ours)"}
        return "exact" if self.name == "exact" else f"{called[self.name]}-{self.samples}"

    def rule(self) -> Rule | str:
        """As `directgp.train` takes it."""
        match self.name:
            case "exact":
                return "auto"
            case "bmc":
                return BiasedMonteCarlo(self.samples)
            case "smooth-bmc":
                return BiasedMonteCarlo(self.samples, nu=SMOOTHING)
            case "ups":
                return ProductSampling(self.samples, gradient="score")
            case "ups-mixed":
                return ProductSampling(self.samples)


EXACT = RuleFacts()
