"""Render pages from templates."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from directgp.experiments.stats import SIGNIFICANT
from directgp.metrics import Score
from directgp.reports.drawing import address, dimensions
from directgp.reports.scoreboard import CLOSE
from directgp.text import percent


def template(name: str) -> Template:
    """A page with holes; whatever fills them is escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(file_text),
    )
    environment.globals.update(address=address, dimensions=dimensions)
    return environment.get_template(name)


def file_text(name: str) -> str:
    """Of a template, style or script."""
    return files("directgp.reports").joinpath("templates", name).read_text(encoding="utf-8")


def inline(name: str) -> Markup:
    """A style or a script, put into a page as it is: a file of the package, no text of users."""
    return Markup(file_text(name))  # nosec


def digest(script: str) -> str:
    """By which a page allows this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


PAPER = (
    "Yadi Wei, Rishit Sheth and Roni Khardon. Direct Loss Minimization for Sparse Gaussian "
    "Processes. Proceedings of AISTATS 2021, PMLR 130."
)

_ALWAYS = {
    "β": (
        "The weight of the KL term, which holds q(u) near the prior. The ELBO has β = 1; the "
        "others are trained for every β of a grid, and the one with the lowest loss on the "
        "validation rows is kept."
    ),
    "DLM": (
        "Direct loss minimization: training for the loss of the predictions themselves, such as "
        "the log loss, in place of a bound on the marginal likelihood."
    ),
    "joint, fixed": (
        "Joint trains kernel, noise and inducing inputs with the rest; fixed keeps those of the "
        "ELBO and trains q(u) alone."
    ),
    "repeat": (
        "One random split into rows to train on, to choose β by, and to judge by. All methods of "
        "a repeat have the same rows."
    ),
    f"bold, {CLOSE}": (
        f"Bold is the best mean of a column. {CLOSE} marks what cannot be told from it: the paired "
        f"test over the repeats has p ≥ {percent(SIGNIFICANT, 0)}. It is the corrected resampled "
        "t-test of Nadeau and Bengio (2003), which allows for splits that share rows. Many "
        "comparisons are made, so a single p just below the line is weak evidence."
    ),
}

_LONGER = {
    "nll": (
        "Negative log-likelihood: the mean of −log of the probability (or density) that was "
        "predicted for what came, in nats. Lower is better; it judges the mean and the "
        "uncertainty together, and a difference of 0.1 is a factor of 1.1 in probability."
    ),
    "crps": (
        "The distance of the predicted distribution from what came, in the units of the target. "
        "Lower is better, and it is more patient with outliers than NLL."
    ),
    "coverage": (
        "The share of test rows inside their central 90 % interval. Near 90 % is right; more says "
        "that the intervals are too wide, less that they are too narrow."
    ),
}


def glossary(scores: tuple[Score, ...]) -> dict[str, str]:
    """Each word, and what it means."""
    return {score.label: _LONGER.get(score.name, score.about) for score in scores} | _ALWAYS
