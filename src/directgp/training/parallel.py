"""What is refused, and what is made equal, before several processes train one model."""

import copy
from dataclasses import replace

import torch
from torch import nn

from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.data import Data
from directgp.training.monitors import Monitor
from directgp.training.processes import Processes
from directgp.training.progress import ProgressBar
from directgp.training.recipe import Recipe
from directgp.training.together import Together

_WHERE = "with processes"


def parallel_recipe(
    recipe: Recipe,
    data: Data,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    beta: float,
    processes: Processes,
) -> Recipe:
    """The recipe for one of the processes; refused where it needs all examples at once.

    Adam is chosen whatever their number, so that one process trains as several do.
    """
    here = data.X.device
    require(here == processes.device, f"X {_WHERE}", f"on {processes.device}, theirs", here)
    allowed = "'auto' or 'adam', which need no more than the gradient"
    require(recipe.optimizer != "lbfgs", f"optimizer {_WHERE}", allowed, "'lbfgs'")
    with_adam = replace(recipe, optimizer="adam", monitors=_heard(recipe, processes))
    batches = with_adam.chosen_batch_size(len(data), posterior.Z.shape[-2]) is not None
    require(
        with_adam.eliminated(likelihood, beta, "adam", batches) is None,
        f"objective {_WHERE}",
        "one that trains q(u) by its gradient",
        f"'{recipe.name}', which solves for q(u) from all examples at once",
        "Use objective='elbo', or for 'square_loss' a batch_size.",
    )
    return with_adam


def common_start(
    together: Together, posterior: SparsePosterior, likelihood: Likelihood
) -> tuple[SparsePosterior, Likelihood]:
    """Copies that begin with the numbers of the first process, for all to begin at the same."""
    if together.alone:
        return posterior, likelihood
    together.require_same(f"{_outline(posterior)} {_outline(likelihood)}")
    posterior, likelihood = copy.deepcopy((posterior, likelihood))
    for model in (posterior, likelihood):
        model.load_state_dict(together.first(model.state_dict()))
    return posterior, likelihood


def common_order(together: Together, generator: torch.Generator) -> None:
    """Set the generator to the state that it has in the first process."""
    generator.set_state(together.first({"state": generator.get_state()})["state"])


def _outline(model: nn.Module) -> list[tuple[str, str, tuple[int, ...]]]:
    """Names, dtypes and shapes of what a model holds."""
    return [(name, str(t.dtype), tuple(t.shape)) for name, t in model.state_dict().items()]


def _heard(recipe: Recipe, processes: Processes) -> tuple[Monitor, ...]:
    """The monitors of this process: one progress bar is enough."""
    shows = processes.rank == 0
    return tuple(m for m in recipe.monitors if shows or not isinstance(m, ProgressBar))
