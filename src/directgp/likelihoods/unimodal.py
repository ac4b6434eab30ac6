"""Bounds of a density with one peak over f, from the place of its peak."""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.base import Likelihood

Values = Float[Tensor, "..."]


class UnimodalInF(Likelihood):
    """A likelihood that rises in f up to `argmax` and falls from there."""

    @abstractmethod
    def argmax(self, y: Values) -> Values:
        """The f that maximises p(y given f); infinite where the supremum is a limit."""

    def log_max(self, y: Values) -> Values:
        """sup over f of log p(y given f); a limit at infinity is taken to be log 1."""
        peak = self.argmax(y)
        attained = torch.isfinite(peak)
        top = self.log_kernel(y, torch.where(attained, peak, 0.0)) + self.log_base(y)
        return torch.where(attained, top, 0.0)

    def log_max_between(self, y: Values, lower: Values, upper: Values) -> Values:
        """Maximum of log p(y given f) over lower ≤ f ≤ upper."""
        nearest = torch.minimum(torch.maximum(self.argmax(y), lower), upper)
        return self.log_kernel(y, nearest) + self.log_base(y)
