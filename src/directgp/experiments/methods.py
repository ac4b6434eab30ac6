"""The line-up: training methods that are compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from directgp.datasets.problem import Task
from directgp.errors import require


@final
@dataclass(frozen=True)
class Method:
    """An objective, what is trained with it, and whether β is chosen."""

    name: str
    """What users type."""

    label: str
    """What tables and pictures call it."""

    objective: str
    """As in `directgp.train`."""

    hyperparameters: Literal["joint", "fixed"]
    chooses_beta: bool
    """By validation; else β = 1."""

    about: str
    """What it does, in one sentence."""

    gaussian_only: bool = False
    """Whether it needs a real-valued target with Gaussian noise."""


_ALL = (
    Method(
        "elbo",
        "ELBO",
        "elbo",
        "joint",
        False,
        "The evidence lower bound, β = 1: the usual way to train a sparse Gaussian process.",
    ),
    Method(
        "beta-elbo",
        "β-ELBO",
        "elbo",
        "joint",
        True,
        "The evidence lower bound with its KL term weighted by β.",
    ),
    Method(
        "fitc",
        "FITC",
        "fitc",
        "joint",
        False,
        "The fully independent training conditional, by its own marginal likelihood.",
        gaussian_only=True,
    ),
    Method(
        "log-joint",
        "log-loss DLM, joint",
        "log_loss",
        "joint",
        True,
        "The log loss of predictions plus β·KL, over everything that can be trained.",
    ),
    Method(
        "log-fixed",
        "log-loss DLM, fixed",
        "log_loss",
        "fixed",
        True,
        "The log loss plus β·KL over q(u) alone; kernel, noise and inducing inputs are the ELBO's.",
    ),
    Method(
        "square-joint",
        "square-loss DLM, joint",
        "square_loss",
        "joint",
        True,
        "The squared error of predictions plus β·KL, over everything that can be trained.",
        gaussian_only=True,
    ),
    Method(
        "square-fixed",
        "square-loss DLM, fixed",
        "square_loss",
        "fixed",
        True,
        "The squared error plus β·KL over q(u) alone; the rest is the ELBO's.",
        gaussian_only=True,
    ),
)

METHODS = {method.name: method for method in _ALL}

ELBO = METHODS["elbo"]
"""Every other method starts from its solution."""


def line_up(
    task: Task, names: Sequence[str] | None = None, likelihood: str = "gaussian"
) -> tuple[Method, ...]:
    """The methods of these names, all that suit task and likelihood unless given, in order."""
    gaussian = task == "regression" and likelihood == "gaussian"
    suited = [method.name for method in _ALL if gaussian or not method.gaussian_only]
    wanted = suited if names is None else list(names)
    require(bool(wanted), "methods", f"at least one of {', '.join(suited)}", "none")
    for name in wanted:
        require(name in suited, "methods", f"of {', '.join(suited)} here", repr(name), _why(name))
    return tuple(METHODS[name] for name in suited if name in wanted)


def _why(name: str) -> str:
    known = name in METHODS
    return f"{METHODS[name].label} needs a real-valued target with Gaussian noise." if known else ""
