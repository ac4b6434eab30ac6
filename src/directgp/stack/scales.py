"""Bring predictions of a mean or of probabilities to the scale of a link function."""

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

Link = Literal["identity", "log", "logit"]


@final
@dataclass(frozen=True)
class Scale:
    """Clip to [low, high], then apply the link.

    Examples
    --------
    >>> import numpy as np
    >>> Scale("log", low=0.5).forward(np.array([[-1.0, 1.0]])).round(3).tolist()
    [[-0.693, 0.0]]
    """

    link: Link = "identity"
    """The function after the clipping."""

    low: float = -math.inf
    """Smallest value before the link."""

    high: float = math.inf
    """Largest value before the link."""

    def __post_init__(self) -> None:
        lowest = -math.inf if self.link == "identity" else 0.0
        highest = 1.0 if self.link == "logit" else math.inf
        inside = self.link == "identity" or lowest < self.low
        inside &= self.link != "logit" or self.high < highest
        # Written so that NaN is rejected, too.
        if not (inside and self.low <= self.high):
            raise ValueError(f"{self.link} cannot be taken from {self.low} to {self.high}")

    def forward(self, values: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n k"]:
        """Return the values on the scale of the link."""
        clipped: NDArray[np.float64] = np.clip(values, self.low, self.high)
        match self.link:
            case "log":
                clipped = np.log(clipped)
            case "logit":
                clipped = np.log(clipped) - np.log1p(-clipped)
        return clipped
