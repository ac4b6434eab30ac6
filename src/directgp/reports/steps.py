"""How many steps a run was allowed."""

import torch

from directgp.estimators.starting_models import auto_inducing
from directgp.experiments.comparison import Plan
from directgp.experiments.models import FAMILIES
from directgp.reports.numbers import whole
from directgp.training.grid import brief
from directgp.training.recipe import Recipe

_NAMES = {"lbfgs": "L-BFGS", "adam": "Adam"}


def most_steps(plan: Plan) -> int:
    """Of any run of the plan."""
    return max(limit for limit, _ in _limits(plan).values())


def steps_allowed(plan: Plan) -> str:
    """``at most 500 of L-BFGS in a run, and 50 in one that starts from a neighbouring β``."""
    shortened = any(method.chooses_beta for method in plan.methods)
    return "; ".join(
        f"at most {whole(limit)} of {_NAMES[optimizer]} in a run"
        + _neighbour(shorter, shortened and optimizer == "lbfgs")
        for optimizer, (limit, shorter) in _limits(plan).items()
    )


def _neighbour(steps: int, told: bool) -> str:
    # Adam trains all β at once, each by whole runs.
    return f", and {whole(steps)} in one that starts from a neighbouring β" if told else ""


def _limits(plan: Plan) -> dict[str, tuple[int, int]]:
    """By optimiser: the steps of a run, and of one that starts from a neighbouring β."""
    settings = plan.settings
    likelihood = FAMILIES[plan.data.task].named(settings.likelihood, torch.ones(2))
    found: dict[str, tuple[int, int]] = {}
    for size in plan.sizes:
        inducing = settings.num_inducing or auto_inducing(size)
        for method in plan.methods:
            recipe = Recipe(objective=method.objective, max_steps=settings.max_steps)
            optimizer = recipe.chosen_optimizer(size, inducing)
            limit = recipe.chosen_max_steps(optimizer, likelihood)
            found[optimizer] = limit, brief(recipe, optimizer, likelihood).max_steps or limit
    return found
