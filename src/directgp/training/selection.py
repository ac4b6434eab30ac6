"""Choosing among trained candidates by their losses on the same validation examples."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import NumericalError


@dataclass(frozen=True)
class Comparison:
    """Candidates compared with the best of them, example by example."""

    mean: Float[Tensor, " c"]
    """Mean validation loss of each candidate."""

    error: Float[Tensor, " c"]
    """Its standard error."""

    difference: Float[Tensor, " c"]
    """Mean of loss minus loss of the best candidate, over the same examples."""

    difference_error: Float[Tensor, " c"]
    """Its standard error: that of paired differences, far smaller than that of the means."""

    chosen: int
    """The most regularised of those that are not distinguishable from the best."""


def compare(losses: Float[Tensor, "c n"], threshold: float = 1.0) -> Comparison:
    """Choose by paired differences with their standard error.

    On few or heavy-tailed validation examples the smallest mean is noise. A candidate counts as
    not distinguishable from the best while its mean difference is at most `threshold` standard
    errors of that difference; of those the first is taken, so order them from the most to the
    least regularised. A candidate whose losses are not finite is out.
    """
    wide = losses.double()
    finite = torch.isfinite(wide).all(-1)
    if not bool(finite.any()):
        raise NumericalError(
            "No candidate has a finite loss on every validation example. Look at the validation "
            "data, or train with other settings."
        )
    mean = torch.where(finite, wide.mean(-1), torch.inf)
    gap = wide - wide[mean.argmin()]
    difference = torch.where(finite, gap.mean(-1), torch.inf)
    error = _standard_error(gap)
    close = finite & (difference <= threshold * error)
    close[mean.argmin()] = True
    return Comparison(
        mean=mean,
        error=_standard_error(wide),
        difference=difference,
        difference_error=error,
        chosen=int(close.nonzero()[0]),
    )


def _standard_error(values: Float[Tensor, "c n"]) -> Float[Tensor, " c"]:
    n = values.shape[-1]
    return values.std(-1) / n**0.5 if n > 1 else torch.full_like(values[:, 0], torch.inf)
