"""Register likelihoods of the user's own, and probe that they are smooth."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch

from directgp.errors import InvalidInputError, require
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.starts import rough_latent
from directgp.registry import LIKELIHOODS, LikelihoodRow, OwnLikelihoodRow
from directgp.shapes import Points, Row

SomeClass = TypeVar("SomeClass", bound=type[Likelihood])


@overload
def register_likelihood(name: str) -> Callable[[SomeClass], SomeClass]: ...
@overload
def register_likelihood(name: str, cls: SomeClass) -> SomeClass: ...
def register_likelihood(name: str, cls: Any = None) -> Any:
    """Make a likelihood of your own known by a name, in this process.

    Estimators then take ``likelihood=name``, and models with this likelihood can be saved. A file
    has the name and no code: register the class in the process that loads it, too.

    Parameters
    ----------
    name : str
        Letters, digits and underscores. It is not that of another likelihood.
    cls : subclass of Likelihood
        It can be made without arguments. Without it the result is a decorator.

    Returns
    -------
    class
        `cls`, unchanged.

    Examples
    --------
    As a function, and as a decorator of the class:

    >>> directgp.register_likelihood("waiting", Waiting)  # doctest: +SKIP
    >>> @directgp.register_likelihood("waiting")  # doctest: +SKIP
    ... class Waiting(Likelihood):
    ...     def log_kernel(self, y, f):
    ...         return f - y * torch.exp(f)
    """
    if cls is None:
        return lambda decorated: register_likelihood(name, decorated)
    who = "name of register_likelihood"
    require(isinstance(name, str) and name.isidentifier(), who, "letters, digits and _", repr(name))
    is_class = isinstance(cls, type) and issubclass(cls, Likelihood)
    owner = "cls of register_likelihood"
    got = getattr(cls, "__name__", repr(cls))
    require(is_class, owner, "a subclass of directgp.likelihoods.Likelihood", got)
    missing = ", ".join(sorted(cls.__abstractmethods__))
    require(not missing, owner, "complete", f"{got} without {missing}", "Give it these methods.")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        require(False, owner, "a class that can be made without arguments", f"{got}: {error}")
    _check_free(name, cls, who)
    source = f"{cls.__module__}:{cls.__qualname__}"
    LIKELIHOODS[name] = OwnLikelihoodRow(name, source, task=cls.task, cls=cls)
    return cls


def written_by_user(likelihood: Likelihood) -> bool:
    """Return whether the family is the user's, and not one of directgp."""
    return not type(likelihood).__module__.startswith("directgp.")


def _check_free(name: str, cls: type, who: str) -> None:
    """Raise `InvalidInputError` if the name is taken, or the class has another one.

    A cell of a notebook that runs again makes a new class of the same module and name.
    """
    built_in = {row.kind for row in LIKELIHOODS.values() if type(row) is LikelihoodRow}
    free = (
        name != "auto" and name not in built_in and type(LIKELIHOODS.get(name)) is not LikelihoodRow
    )
    require(free, who, "a name that directgp does not use", repr(name))
    row = LIKELIHOODS.get(name)
    if row is not None:
        same = row.source == f"{cls.__module__}:{cls.__qualname__}"
        require(same, who, "one that no other class has", f"{name!r}, which is {row.source}")
    names = [row.name for row in LIKELIHOODS.values() if row.name != name and row.load() is cls]
    if names:
        raise InvalidInputError(
            f"A class can be registered under one name only. Got {name!r}; {cls.__name__} is "
            f"already registered as {names[0]!r}."
        )


# log p(y given f) is probed near f = 0 and near each target. The interval over which ℓ′ or ℓ″
# changes most is halved many times: the change of a smooth function vanishes, that of a kink stays.

_REACH = 8.0
"""Largest distance of a probe from its centre."""

_POINTS = 128
"""Probes around each centre."""

_INTERVALS = 8
"""Intervals of each target that are halved."""

_HALVINGS = 34
"""Number of halvings: they find a kink to 1e-11."""

_JUMP = 1e-3
"""Share of the slopes on both sides by which they differ at a kink."""

_FLAT = 1e-6
"""Share of the largest slope below which slopes count as 0."""


def check_smooth(likelihood: Likelihood, y: Row) -> None:
    """Raise `InvalidInputError` if log p(y given f) is not smooth and concave, and claims to be."""
    name = type(likelihood).__name__
    kink = _first_kink(likelihood, y)
    if kink is not None:
        target, place, left, right = kink
        raise InvalidInputError(
            f"log p(y given f) of {name} has a kink: for y = {target:.6g} its {left[0]} is "
            f"{left[1]:.4g} left of f = {place:.6g} and {right:.4g} right of it, but its "
            f"integration, {type(likelihood.integration).__name__}, needs a smooth function. "
            "Leave integration out: then quadrature finds the kinks itself."
        )
    if likelihood.integration.log_concave:
        f = probes(likelihood, y)
        second = likelihood.derivatives(y, f).second
        scale = second.abs().where(torch.isfinite(second), 0.0).amax(0)
        rising = second > _FLAT * scale + 1e-12
        if bool(rising.any()):
            k, i = rising.nonzero()[0].tolist()
            raise InvalidInputError(
                f"log p(y given f) of {name} is not concave: for y = {y[i].item():.6g} its "
                f"second derivative at f = {f[k, i].item():.6g} is {second[k, i].item():.4g}. Set "
                "log_concave=False in its integration."
            )


def probes(likelihood: Likelihood, y: Row) -> Points:
    """Return increasing values of f near 0, near y, and near a rough value of f."""
    rough = rough_latent(likelihood, y)
    centres = torch.stack([torch.zeros_like(y), y, y if rough is None else rough.to(y)])
    # No probe is at a round number, where a kink may be.
    steps = torch.linspace(-_REACH, _REACH, _POINTS, dtype=y.dtype, device=y.device) + 0.0137
    return (centres[:, None] + steps[:, None]).flatten(0, 1).sort(0).values


@torch.no_grad()
def _first_kink(
    likelihood: Likelihood, y: Row
) -> tuple[float, float, tuple[str, float], float] | None:
    """Return target, place, and name and values of the derivative that jumps there, if one does."""
    f = probes(likelihood, y)
    for which, name in ((1, "slope"), (2, "second derivative")):

        def at(points: Points, which: int = which) -> Points:
            return likelihood.derivatives(y, points)[which]

        values = at(f)
        # Far from y they may overflow; there is nothing to compare.
        sizes = values.abs().where(torch.isfinite(values), 0.0)
        floor = _FLAT * sizes.amax(0)
        change = values.diff(dim=0).abs() / (sizes[1:] + sizes[:-1] + floor + 1e-300)
        change = change.where(torch.isfinite(change), 0.0)
        top = change.topk(min(_INTERVALS, len(change)), dim=0).indices
        left = f.gather(0, top)
        right = f.gather(0, top + 1)
        low = values.gather(0, top)
        high = values.gather(0, top + 1)
        for _ in range(_HALVINGS):
            middle = 0.5 * (left + right)
            here = at(middle)
            first = (here - low).abs() >= (high - here).abs()
            left = torch.where(first, left, middle)
            low = torch.where(first, low, here)
            right = torch.where(first, middle, right)
            high = torch.where(first, here, high)
        gap = (high - low).abs()
        size = high.abs() + low.abs()
        jump = torch.isfinite(size) & (gap > _JUMP * size + floor)
        if bool(jump.any()):
            k, i = jump.nonzero()[0].tolist()
            place = 0.5 * (left + right)[k, i].item()
            return y[i].item(), place, (name, low[k, i].item()), high[k, i].item()
    return None
