"""Train the model of an estimator on prepared rows: one run, or a search over candidates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch

from directgp.errors import UnsupportedError, require
from directgp.estimators.preprocessing import TrainingTable
from directgp.estimators.settings import FitSettings
from directgp.estimators.starting_models import named_likelihood
from directgp.integration.contract import has
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.likelihoods.capabilities import GaussianPredictive
from directgp.log_expectations.api import check_own
from directgp.registry import LIKELIHOODS
from directgp.training.beta_path import beta_grid
from directgp.training.coverage import Coverage, Group
from directgp.training.data import Data, Model, check_data
from directgp.training.race import EFFORTS
from directgp.training.result import BetaPath, StageResult, Status, TrainingResult
from directgp.training.run import Recipe
from directgp.training.search import Search, ended
from directgp.training.train import train, update
from directgp.training.trainer import as_elbo
from directgp.training.validation import Folds, Given, HoldOut, Validation

_ROWS_FOR_FOLDS = 1000
"""Fewer rows are validated in folds, which uses each of them."""

_FOLDS = 3
"""Number of folds."""

_HELD_OUT = 0.2
"""Part of the rows for validation where there are no folds."""

_BETAS_IN_BATCHES = (10.0, 1.0, 0.1)
"""Candidates of β for batches, as in the paper's experiment with millions of rows."""


class Fitted(NamedTuple):
    """A trained model, and the candidates it was chosen from."""

    result: TrainingResult
    """The trained model."""

    path: BetaPath | None = None
    """The candidates; None if nothing was chosen."""

    end: StageResult | None = None
    """The run during which a budget, the user or a callback ended the search."""

    untried: tuple[str, ...] = ()
    """Candidates that were not tried because the search was ended."""

    coverage: Coverage = Coverage()
    """Coverage of 90 % intervals, on validation rows if there are some, else on training rows."""

    replaced: tuple[str, Group] | None = None
    """A candidate of lower loss that was not taken, as its intervals are too narrow, and where."""


@final
@dataclass(frozen=True, kw_only=True)
class Fit:
    """The settings, rows and starting models of one call of `fit` or `partial_fit`."""

    settings: FitSettings
    """Parameters of the call."""

    recipe: Recipe
    """Objective, rule, optimiser and stopping rule of every run."""

    table: TrainingTable
    """The training rows."""

    models: Sequence[Sequence[Model]]
    """For each kernel one model per likelihood."""

    generator: torch.Generator
    """Source of random numbers, on the device of the rows."""

    warm: bool
    """Whether the model to start from is a trained one."""

    @property
    def data(self) -> Data:
        """The training rows as examples."""
        return Data(self.table.X, self.table.y, self.table.weights)

    def train(self, examples: Given | None) -> Fitted:
        """Train the model, or search over models, β and modes if the settings leave a choice.

        The candidates are validated by these examples, or by a part of the rows.
        """
        self._check()
        modes = self._modes()
        betas = self._betas()
        if self.settings.betas:
            return self._train_along(examples, modes[0])
        if len(self.models) == len(self.models[0]) == len(betas) == len(modes) == 1:
            return self._train_one(modes[0], betas[0])
        return self._search(examples, modes, betas)

    def _check(self) -> None:
        """Raise `InvalidInputError` if the rows do not fit a starting model."""
        for row in self.models:
            for posterior, likelihood, _ in row:
                check_data("fit", self.data, posterior, likelihood)
        for _, likelihood, _ in self.models[0]:
            check_own(likelihood, self.table.y)

    def _train_one(self, mode: str, beta: float) -> Fitted:
        """Train the only candidate."""
        posterior, likelihood, _ = self.models[0][0]
        result = train(
            posterior,
            likelihood,
            self.table.X,
            self.table.y,
            hyperparameters="fixed" if mode == "fixed" else "joint",
            start="scratch" if self.warm else "elbo",
            **self._arguments(self.recipe, beta),
        )
        result = replace(result, hyperparameters=mode)
        return Fitted(result, coverage=self._coverage(result))

    def _search(self, examples: Given | None, modes: list[str], betas: list[float]) -> Fitted:
        """Choose model, mode and β, and train the chosen candidate on all rows."""
        got = "one, repeated" if self.table.num_merged else "one"
        who = "rows to choose a model by"
        remedy = "Give validation_data, or set beta, hyperparameters, likelihood and ard."
        enough = examples is not None or len(self.data) > 1
        require(enough, who, "at least two different ones", got, remedy)
        validation, description = self._validation(examples)
        changing_noise, noise_name = self._changing_noise()
        search = Search(
            recipe=self.recipe,
            data=self.data,
            validation=validation,
            generator=self.generator,
            effort=EFFORTS[self.settings.effort],
            grows=self.settings.grows,
            n_jobs=self.settings.jobs,
            with_changing_noise=changing_noise,
            noise_name=noise_name,
        ).run(self.models, betas, modes)
        best = search.best
        end = search.end
        if end is not None and end.status is not Status.BUDGET:
            best = ended(best, end)
        return Fitted(
            result=best,
            path=replace(search.path, validation=description),
            end=end,
            untried=tuple(search.untried),
            coverage=search.coverage if search.trials else self._coverage(best),
            replaced=search.replaced,
        )

    def _train_along(self, examples: Given | None, mode: str) -> Fitted:
        """Train one model in one mode while its objective falls, along the given β."""
        validation, description = self._validation(examples)
        search = Search(
            recipe=self.recipe,
            data=self.data,
            validation=validation,
            generator=self.generator,
            effort=EFFORTS[self.settings.effort],
            n_jobs=self.settings.jobs,
        ).along(self.models[0][0], mode, self.settings.betas)
        path = replace(search.path, validation=description) if search.trials else None
        return Fitted(result=search.best, path=path, end=search.end)

    def _coverage(self, result: TrainingResult) -> Coverage:
        """Return the coverage of the training rows."""
        return Coverage.of([(result, self.data, result.likelihood)], self.recipe.point_loss())

    def _changing_noise(self) -> tuple[Likelihood | None, str]:
        """Return the likelihood, and its name, for real targets whose noise depends on X.

        None if the settings leave no such choice.
        """
        row = self.models[0]
        # Likelihoods with f on another scale have noise that depends on the mean already.
        plain = has(row[0].likelihood, GaussianPredictive) and not any(
            m.likelihood.latent_scale for m in row
        )
        # The kernel of a user may be for a single function.
        open_choice = self.settings.likelihood == "auto" and isinstance(self.settings.kernel, str)
        by_density = self.recipe.point_loss().validation_loss().log_density
        if not (plain and open_choice and by_density) or self.table.row_argument is not None:
            return None, ""
        (name,) = (row.name for row in LIKELIHOODS.values() if row.auto_for == "changing noise")
        likelihood = named_likelihood(name, self.table.y)
        try:
            self.recipe.check(likelihood)
        except UnsupportedError:
            return None, ""
        return likelihood, name

    def update(self, beta: float, mode: str) -> TrainingResult:
        """Update q(u) with the rows, for this β and mode; hold all other parameters."""
        recipe = self.recipe
        posterior, likelihood, _ = self.models[0][0]
        loss = recipe.point_loss()
        is_elbo = mode == "elbo" and loss.uses_variance(likelihood)
        # Square loss gives the mean of the Gaussian model with β = 1, which is updated instead.
        conjugate = isinstance(likelihood, ConjugateLikelihood)
        if is_elbo or (conjugate and loss.eliminates == "square_loss"):
            recipe = as_elbo(recipe)
            beta = 1.0
        arguments = self._arguments(recipe, beta)
        return update(posterior, likelihood, self.table.X, self.table.y, **arguments)

    def _arguments(self, recipe: Recipe, beta: float) -> dict[str, Any]:
        """Return the arguments that `train` and `update` share."""
        return {
            "objective": recipe.objective,
            "rule": recipe.rule,
            "optimizer": recipe.optimizer,
            "batch_size": recipe.batch_size,
            "learning_rate": recipe.learning_rate,
            "max_steps": recipe.max_steps,
            "stopping": recipe.stopping,
            "monitors": recipe.monitors,
            "beta": beta,
            "weights": self.table.weights,
            "generator": self.generator,
        }

    def _modes(self) -> list[str]:
        """Return the modes to choose from; with "auto" the plain ELBO solution is one of them."""
        if self.recipe.collapsed is not None:
            return ["joint"]
        if self.recipe.name == "elbo" and self.settings.beta == 1.0:
            # q(u) for the held hyperparameters of the ELBO is the ELBO's own.
            return ["elbo"]
        mode = self.settings.hyperparameters
        return ["elbo", "joint"] if mode == "auto" else [mode]

    def _betas(self) -> list[float]:
        """Return the given β, or every second value of the paper's grid."""
        if self.settings.beta != "auto":
            return [self.settings.beta]
        if self.recipe.collapsed is not None:
            return [1.0]
        num_inducing = self.models[0][0].posterior.Z.shape[-2]
        if self.recipe.chosen_batch_size(len(self.table.y), num_inducing) is not None:
            return list(_BETAS_IN_BATCHES)
        grid = beta_grid(max(1, round(self.table.count)))
        return grid[::2] if len(grid) % 2 else [*grid[::2], grid[-1]]

    def _validation(self, examples: Given | None) -> tuple[Validation, str]:
        """Return how candidates are validated, and a description of it."""
        if examples is not None:
            return examples, f"{len(examples.y)} examples given for validation"
        n = len(self.table.y)
        fraction = self.settings.validation_fraction
        if fraction == "auto" and n < _ROWS_FOR_FOLDS:
            return Folds(_FOLDS), f"all {n} examples, in {min(_FOLDS, n)} folds"
        held_out = HoldOut(_HELD_OUT if fraction == "auto" else fraction)
        return held_out, f"{max(1, round(held_out.fraction * n))} of {n} examples, held out"
