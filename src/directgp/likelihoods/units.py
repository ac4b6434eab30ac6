"""Relate latents and densities to the units of the user's targets, t = unit·y + offset."""

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

from typing_extensions import override

from directgp.errors import require
from directgp.shapes import Values


@dataclass(frozen=True)
class Units:
    """The units of a likelihood that is the same for scaled targets as for those of the user.

    Parameters
    ----------
    log_variances : tuple of int
        Which latents are the log of a variance of y, and shift where the unit of y changes.
    """

    log_variances: tuple[int, ...] = ()

    @property
    def latent_offset(self) -> float:
        """Offset added to a reported f that has a scale of its own, to undo target scaling."""
        return 0.0

    def rescaled(self, unit: float, offset: float) -> "Units":
        """Return the units for targets y = (t − offset)/unit."""
        return self

    def settings(self) -> dict[str, float]:
        """Return the units as constructor arguments of the likelihood, for model files."""
        return {}


@final
@dataclass(frozen=True)
class OriginalUnits(Units):
    """The units of a likelihood that needs the user's values t = unit·y + offset.

    They are positive, lie between 0 and 1, or have limits. Densities, moments, quantiles and draws
    are those of y. The density of y is |unit| times that of t.

    Parameters
    ----------
    unit, offset : float
        The unit, which is not 0, and the offset of scaled targets.
    log_latent : bool
        Whether f is the log of a typical t/|unit|.
    """

    unit: float = 1.0
    offset: float = 0.0
    log_latent: bool = False

    @staticmethod
    def of(who: str, unit: float, offset: float, log_latent: bool = False) -> "OriginalUnits":
        """Return the units; raise `InvalidInputError` if they are not valid."""
        usable = math.isfinite(unit) and unit != 0
        require(usable, f"unit of {who}", "finite and not 0", unit)
        require(math.isfinite(offset), f"offset of {who}", "finite", offset)
        return OriginalUnits(unit=float(unit), offset=float(offset), log_latent=log_latent)

    @property
    @override
    def latent_offset(self) -> float:
        return math.log(abs(self.unit)) if self.log_latent else 0.0

    @override
    def rescaled(self, unit: float, offset: float) -> "OriginalUnits":
        return replace(self, unit=float(unit), offset=float(offset))

    @override
    def settings(self) -> dict[str, float]:
        return {"unit": self.unit, "offset": self.offset}

    def original(self, y: Values) -> Values:
        """Return t."""
        return y * self.unit + self.offset

    def relative(self, y: Values) -> Values:
        """Return r = t/|unit|."""
        return y * math.copysign(1.0, self.unit) + self.offset / abs(self.unit)

    def of_relative(self, r: Values) -> Values:
        """Return the y of r."""
        return (r - self.offset / abs(self.unit)) * math.copysign(1.0, self.unit)

    def ordered(self, probability: Values) -> Values:
        """Return P(Y ≤ y), given P(T ≤ t); the same map takes a level of y to one of t."""
        return probability if self.unit > 0 else 1 - probability


SomeLikelihood = TypeVar("SomeLikelihood", bound=Any)


def in_units(likelihood: SomeLikelihood, unit: float, offset: float) -> SomeLikelihood:
    """Return the likelihood for targets y = (t − offset)/unit, sharing its parameters."""
    units = likelihood.units.rescaled(unit, offset)
    if units is likelihood.units:
        return likelihood
    twin = copy.copy(likelihood)
    twin.units = units
    return twin
