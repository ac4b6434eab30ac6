"""Methods of the comparison: names, tasks, and where they run."""

from dataclasses import dataclass

from benchmarks.problems import Kind

_NUMBERS: tuple[Kind, ...] = ("regression",)
_NOT_COUNTS: tuple[Kind, ...] = ("regression", "classification")
_ALL: tuple[Kind, ...] = ("regression", "classification", "counts")


@dataclass(frozen=True)
class Method:
    """A method with the settings of its documentation."""

    package: str
    """Its distribution on PyPI."""

    kinds: tuple[Kind, ...]
    settings: int = 1
    """Version of its settings in `benchmarks.defaults.peers`; a new one makes old results void."""


METHODS = {
    "directgp": Method("directgp", _ALL),
    "directgp without trees": Method("directgp", _ALL),
    "directgp one GP": Method("directgp", _ALL),
    "directgp ELBO": Method("directgp", _ALL),
    "NGBoost": Method("ngboost", _ALL),
    "XGBDistribution": Method("xgboost-distribution", ("regression", "counts")),
    "XGBDistribution Poisson": Method("xgboost-distribution", ("counts",)),
    "CatBoost": Method("catboost", _ALL),
    "HistGradientBoosting": Method("scikit-learn", _ALL),
    "scikit-learn stack": Method("scikit-learn", _NUMBERS),
    "MAPIE": Method("mapie", _NUMBERS),
    "GPyTorch SVGP": Method("gpytorch", _NOT_COUNTS),
    "GPyTorch PPGPR": Method("gpytorch", _NOT_COUNTS),
    "scikit-learn GP": Method("scikit-learn", _NOT_COUNTS),
    "linear": Method("scikit-learn", _ALL),
}

VARIANTS = ("directgp without trees", "directgp one GP", "directgp ELBO")
"""Variants of ours; they are compared with the other libraries and not with the default."""

REPORTED = tuple(name for name in METHODS if name != "directgp ELBO")
"""Methods of the tables."""


def is_ours(method: str) -> bool:
    """Return whether the method runs in the environment of directgp."""
    return METHODS[method].package == "directgp"
