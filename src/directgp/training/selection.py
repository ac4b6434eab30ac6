"""Choosing among trained candidates by their losses on the same validation examples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """Index of the one to take."""


def compare(losses: Float[Tensor, "c n"], threshold: float = 1.0) -> Comparison:
    """Choose by paired differences with their standard error.

    On few or heavy-tailed validation examples the smallest mean is noise. A candidate counts as
    not distinguishable from the best while its mean difference is at most `threshold` standard
    errors of that difference; of those the first is taken, so order them from the most to the
    least regularised. A candidate whose losses are not finite is out.
    """
    comparison = _against_best(losses)
    close = comparison.difference <= threshold * comparison.difference_error
    close[comparison.chosen] = True
    return replace(comparison, chosen=int(close.nonzero()[0]))


def compare_groups(
    losses: Float[Tensor, "c n"], groups: Sequence[str], threshold: float = 1.0
) -> Comparison:
    """Choose the best of the first group whose best is not distinguishable from the best of all.

    Groups come from the safest to the boldest, as the ELBO solution, fixed and joint ones; within
    a group the smallest mean counts. The rest is as in `compare`.
    """
    comparison = _against_best(losses)
    mean = comparison.mean
    for group in dict.fromkeys(groups):
        members = [i for i, each in enumerate(groups) if each == group]
        best = min(members, key=lambda i: float(mean[i]))
        error = comparison.difference_error[best]
        if best == comparison.chosen or comparison.difference[best] <= threshold * error:
            return replace(comparison, chosen=best)
    return comparison


def _against_best(losses: Float[Tensor, "c n"]) -> Comparison:
    """Every candidate against that of the smallest mean, which is the one chosen."""
    wide = losses.double()
    finite = torch.isfinite(wide).all(-1)
    if not bool(finite.any()):
        raise NumericalError(
            "No candidate has a finite loss on every validation example. Look at the validation "
            "data, or train with other settings."
        )
    mean = torch.where(finite, wide.mean(-1), torch.inf)
    gap = wide - wide[mean.argmin()]
    return Comparison(
        mean=mean,
        error=_standard_error(wide),
        difference=torch.where(finite, gap.mean(-1), torch.inf),
        difference_error=torch.where(finite, _standard_error(gap), torch.nan),
        chosen=int(mean.argmin()),
    )


def _standard_error(values: Float[Tensor, "c n"]) -> Float[Tensor, " c"]:
    n = values.shape[-1]
    return values.std(-1) / n**0.5 if n > 1 else torch.full_like(values[:, 0], torch.inf)
