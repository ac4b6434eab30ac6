"""How learning curves are called, drawn and ordered."""

from dataclasses import dataclass
from typing import final

from directgp.experiments.paper.cells import CurveCell
from directgp.reports.figures.inks import Mark
from directgp.reports.paper.figures.marks import mark_of_beta, mark_of_rule

_RULES = ("exact", "bmc", "smooth-bmc", "ups", "ups-mixed")


@final
@dataclass(frozen=True)
class Look:
    """Of one way of training."""

    place: tuple[int, float]
    """In the order of the legend."""

    label: str
    mark: Mark


def method_of(cell: CurveCell) -> str:
    """What the line-up calls the training of a curve."""
    if cell.objective == "log_loss":
        return f"log-{cell.hyperparameters}"
    return "elbo" if cell.beta == 1 else "beta-elbo"


def by_objective(cell: CurveCell) -> Look:
    """Where objectives and values of β are compared."""
    bound = cell.objective == "elbo"
    name = ("ELBO" if cell.beta == 1 else "β-ELBO") if bound else f"DLM {cell.hyperparameters}"
    place = 0 if bound else 1 + (cell.hyperparameters == "fixed")
    mark = mark_of_beta(method_of(cell), cell.beta)
    return Look((place, cell.beta), f"{name}, β = {cell.beta:g}", mark)


def by_rule(cell: CurveCell) -> Look:
    """Where rules and numbers of samples are compared."""
    place = _RULES.index(cell.rule.name), float(cell.rule.samples)
    return Look(place, cell.rule.label, mark_of_rule(cell.rule))


def particulars(cell: CurveCell) -> tuple[str, ...]:
    """What else curves of one name may differ in."""
    batch = "all rows" if cell.batch_size is None else f"batches of {cell.batch_size:,}"
    return f"learning rate {cell.learning_rate:g}", batch, f"{cell.size:,} rows"
